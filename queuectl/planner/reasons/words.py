"""Pods, podset groups, levels and amounts as text, and how much of a podset group fits its best domain by sums of free capacity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from queuectl.domain.devices import DEVICE_ROW
from queuectl.domain.numa import ONE_NUMA_NODE
from queuectl.domain.quantity import PODS, Resources, format_quantity
from queuectl.domain.words import counted, is_or_are
from queuectl.planner.placement.single import Capacity
from queuectl.planner.problem.problem import COMMON, caps
from queuectl.planner.problem.request import ANYWHERE, Pods, PodSetGroup
from queuectl.planner.problem.reserved_rows import is_reserved_row
from queuectl.planner.problem.topology import Ints

TIMES: Final = "\u00d7"
NAMED: Final = 3  # nodes or gangs that a sentence names


def amount(resource: str, value: int) -> str:
    """``8 nvidia.com/gpu``, ``1500m cpu``. The number of a limit for one gang (shared_gpus.py) has no meaning for people."""
    return f"{format_quantity(resource, value)} {resource.partition('#')[0]}"


def pods_of(pods: Pods) -> str:
    """``4 pods x 8 nvidia.com/gpu in slices (8 per rack, 2 per node)``."""
    return f"{counted(pods.total, 'pod')} {_kind_of(pods)}"


def _kind_of(pods: Pods) -> str:
    return f"{TIMES} {requests_of(each(pods))}"


def each(pods: Pods) -> Resources:
    """The request of one pod, also where a slice of several counts as one."""
    if pods.size == 1:
        return pods.shape.requests
    return Resources({name: value // pods.size for name, value in pods.shape.requests.items()})


def _slices_of(podset_group: PodSetGroup, pods: Pods) -> str:
    """`` in slices (8 per rack, 2 per node)``; empty for pods without slices."""
    layers = [
        (level_name(podset_group.tree.levels[at]), size * pods.size) for at, size in pods.slices
    ]
    layers += [("node", pods.size)] if pods.size > 1 else []
    parts = ", ".join(f"{size} per {level}" for level, size in layers)
    return f" in slices ({parts})" if parts else ""


def asked_by(podset_group: PodSetGroup) -> str:
    """The pods of a podset group and the domain that they share: ``4 pods x 8 nvidia.com/gpu in one rack``."""
    pods = " and ".join(pods_of(p) + _slices_of(podset_group, p) for p in podset_group.pods)
    return pods + _where(podset_group)


def _where(podset_group: PodSetGroup) -> str:
    if podset_group.on_one_node:
        return " on one node"
    if podset_group.required == ANYWHERE:
        return ""
    level = level_of(podset_group)
    return f" on one {level}" if level == "node" else f" in one {level}"


def no_placement(podset_groups: Sequence[PodSetGroup]) -> str:
    """The sentence for pods that do not fit, although the sums of free capacity are large enough."""
    first, *others = map(asked_by, podset_groups)
    if others:
        return (
            f"{'; '.join((first, *others))}: each of these fits alone, but not all of them together"
        )
    return f"no placement exists for {first}, although enough capacity is free in total"


def requests_of(requests: Resources) -> str:
    """The request of a pod in short form: its devices, or else all resources."""
    named = [(n, v) for n, v in shown(requests).items() if n != PODS]
    devices = [(n, v) for n, v in named if "/" in n]
    return " + ".join(amount(n, v) for n, v in devices or named or [(PODS, requests[PODS])])


def shown(requests: Resources) -> dict[str, int]:
    """The amounts by name, without device rows and the rows of Reservations."""
    return {
        name: value
        for name, value in sorted(requests.items())
        if devices_asked(name) is None and not is_reserved_row(name)
    }


def devices_asked(resource: str) -> str | None:
    """The request for devices that a device row stands for; None for all other resources."""
    if not resource.startswith(DEVICE_ROW):
        return None
    return resource.removeprefix(DEVICE_ROW).partition(" #")[0]


def without_devices(asked: str, adverb: str = "") -> str:
    """The words for a request for devices that no node can serve."""
    devices = "" if asked.startswith(ONE_NUMA_NODE) else f"{adverb}devices for "
    return f"no node has {devices}{asked}"


def some(names: Sequence[str], most: int = NAMED) -> str:
    """The first ``most`` names and the number of the others: ``a, b, c and 2 more``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def level_of(podset_group: PodSetGroup) -> str:
    """The level that all pods of a podset group share."""
    if podset_group.required >= podset_group.tree.depth:
        return "node"
    return level_name(podset_group.tree.levels[podset_group.required])


def level_name(label: str) -> str:
    """``cloud.example.com/topology-rack`` reads as ``rack``, the hostname label as ``node``."""
    name = label.rpartition("/")[2]
    name = name.removeprefix("topology-").removeprefix("topology.")
    return "node" if name == "hostname" else name


@dataclass(frozen=True, slots=True)
class LargestFit:
    """How much of a podset group the best domain can hold.

    Attributes:
        domain: the best one at the podset group's level; -1 without a level, or if no domain can hold any pod.
        fits: how many of each kind of pods it can hold, each kind alone.
        nodes: number of nodes that are eligible for the first pods.
        free: amount of the scarcest resource of the first pods, on all nodes that are eligible for them.
    """

    podset_group: PodSetGroup
    items: tuple[Pods, ...]
    domain: int
    fits: tuple[int, ...]
    nodes: int
    free: int

    @property
    def short(self) -> bool:
        """Whether these sums alone prove that the podset group does not fit."""
        return any(n < p.count for n, p in zip(self.fits, self.items, strict=True))

    @property
    def name(self) -> str:
        """Of the best domain."""
        return self.podset_group.tree.names[self.podset_group.required][self.domain][-1]

    @property
    def sentence(self) -> str:
        """The missing room, and how much the best domain has."""
        if not self.short:
            return no_placement([self.podset_group])
        return f"{self.needed}; {self.at_most}"

    @property
    def needed(self) -> str:
        """``room for 2 more pods x 8 nvidia.com/gpu is needed in one rack``."""
        if self.podset_group.on_one_node:
            pods = " and ".join(map(pods_of, self.podset_group.pods))
            return f"one node with room for {pods} is needed"
        parts = [
            f"{_more((p.count - n) * p.size, n)} {_kind_of(p)}{_slices_of(self.podset_group, p)}"
            for n, p in zip(self.fits, self.items, strict=True)
            if n < p.count
        ]
        return f"room for {' and '.join(parts)} is needed{_where(self.podset_group)}"

    @property
    def at_most(self) -> str:
        """``at most 6 of 8 fit (rack-3)``."""
        nodes = counted(self.nodes, "eligible node")
        if self.podset_group.on_one_node:
            return f"none of {nodes} has it" if self.nodes else "no node is eligible"
        if self.podset_group.required == ANYWHERE:
            if not self.nodes:
                return "no node is eligible"
            return f"{self._held} on {nodes}"
        level = level_of(self.podset_group)
        if self.domain < 0:
            return f"no {level} has {'room for any of them' if self.nodes else 'an eligible node'}"
        return f"{self._held} ({self.name})"

    @property
    def _held(self) -> str:
        pairs = [
            (min(n, p.count) * p.size, f"{min(n, p.count) * p.size} of {p.total}")
            for n, p in zip(self.fits, self.items, strict=True)
        ]
        whole = " in whole slices" if any(p.slices or p.size > 1 for p in self.items) else ""
        if len(pairs) > 1:
            parts = [
                f"{text} {_kind_of(p)}" for (_, text), p in zip(pairs, self.items, strict=True)
            ]
            return f"at most {' and '.join(parts)} fit{whole}"
        ((number, text),) = pairs
        if not number:
            return f"none fits{whole}"
        return f"at most {text} {'fits' if number == 1 else 'fit'}{whole}"

    @property
    def free_in_all(self) -> str:
        """``; 96 nvidia.com/gpu are free in total``, on all eligible nodes."""
        name = scarcest(self.podset_group.pods[0])
        if name is None or self.podset_group.required == ANYWHERE or not self.nodes:
            return ""
        return f"; {amount(name, self.free)} {is_or_are(name, self.free)} free in total"

    @property
    def details(self) -> dict[str, Any]:
        """The numbers as plain JSON values."""
        details = plain(self.podset_group)
        details["fits"] = [n * p.size for n, p in zip(self.fits, self.items, strict=True)]
        if (
            not self.podset_group.on_one_node
            and self.podset_group.required != ANYWHERE
            and self.domain >= 0
        ):
            details["domain"] = list(
                self.podset_group.tree.names[self.podset_group.required][self.domain]
            )
        return details


def _more(missing: int, fits: int) -> str:
    """``2 more pods``, or ``8 pods`` if none of them fits."""
    return counted(missing, "more pod" if fits else "pod")


def largest_fit(podset_group: PodSetGroup, free: Ints) -> LargestFit:
    """The room that a podset group has on a free matrix (R, N)."""
    items = podset_group.items
    per_node = [caps(free, p.shape) for p in items]
    eligible = items[0].shape.eligible
    nodes, left = int(np.count_nonzero(eligible)), 0
    if podset_group.pods[0].shape.columns:
        column = podset_group.pods[0].shape.columns[0]
        left = int(np.maximum(free[column], 0)[podset_group.pods[0].shape.eligible].sum())
    level = ANYWHERE if podset_group.on_one_node else podset_group.required
    held = [
        Capacity(podset_group.tree, row, p.slices).holding(level)
        for row, p in zip(per_node, items, strict=True)
    ]
    if level == ANYWHERE:
        return LargestFit(
            podset_group, items, -1, tuple(int(row.sum()) for row in held), nodes, left
        )
    sums = np.stack(held)
    if not sums.shape[1] or not sums.any():
        return LargestFit(podset_group, items, -1, (0,) * len(items), nodes, left)
    counts = np.array([p.count for p in items], dtype=np.int64)[:, None]
    share = (np.minimum(sums, counts) / counts).min(axis=0)
    best = int(np.lexsort((-sums.sum(axis=0), -share))[0])
    return LargestFit(podset_group, items, best, tuple(int(n) for n in sums[:, best]), nodes, left)


def scarcest(pods: Pods) -> str | None:
    """The resource that is likely short for these pods: their first device, else their first resource; None if no node has it."""
    if not pods.shape.columns:
        return None
    return min(pods.shape.requests, key=lambda name: (name in COMMON, name))


def plain(podset_group: PodSetGroup) -> dict[str, Any]:
    """The request of a podset group as plain JSON values."""
    level = None
    if podset_group.on_one_node:
        level = podset_group.tree.node_level
    elif podset_group.required != ANYWHERE:
        level = podset_group.tree.levels[podset_group.required]
    return {
        "level": level,
        "pods": [{"count": p.total, "requests": shown(each(p))} for p in podset_group.pods],
    }
