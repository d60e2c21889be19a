"""Pods, podset groups, levels and amounts in words, and how much of a podset group its best domain holds by the floor sums alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from queuectl.domain.quantity import PODS, Resources, format_quantity
from queuectl.domain.words import counted
from queuectl.planner.placement.single import Capacity
from queuectl.planner.problem.problem import COMMON, caps
from queuectl.planner.problem.request import ANYWHERE, Pods, PodSetGroup
from queuectl.planner.problem.topology import Ints

TIMES: Final = "\u00d7"
NAMED: Final = 3  # nodes or gangs called by name in a sentence


def amount(resource: str, value: int) -> str:
    """``8 nvidia.com/gpu``, ``1500m cpu``."""
    return f"{format_quantity(resource, value)} {resource}"


def pods_of(pods: Pods) -> str:
    """``4 pods x 8 nvidia.com/gpu``."""
    return f"{counted(pods.total, 'pod')} {TIMES} {requests_of(each(pods))}"


def each(pods: Pods) -> Resources:
    """What one pod asks, also where a slice of several counts as one."""
    if pods.size == 1:
        return pods.shape.requests
    return Resources({name: value // pods.size for name, value in pods.shape.requests.items()})


def _slices_of(podset_group: PodSetGroup, pods: Pods) -> str:
    """`` (in slices: 8 to a rack, 2 to a node)``, nothing for pods that come one by one."""
    layers = [
        (level_name(podset_group.tree.levels[at]), size * pods.size) for at, size in pods.slices
    ]
    layers += [("node", pods.size)] if pods.size > 1 else []
    parts = ", ".join(f"{size} to a {level}" for level, size in layers)
    return f" (in slices: {parts})" if parts else ""


def asked_by(podset_group: PodSetGroup) -> str:
    """What a podset group needs, and how close together."""
    pods = " and ".join(pods_of(p) + _slices_of(podset_group, p) for p in podset_group.pods)
    if podset_group.on_one_node:
        return f"needs {pods} on one node"
    where = f" in one {level_of(podset_group)}" if podset_group.required != ANYWHERE else ""
    return f"needs {pods}{where}"


def requests_of(requests: Resources) -> str:
    """What a pod asks for, in short: its devices, or else all resources."""
    named = [(n, v) for n, v in sorted(requests.items()) if n != PODS]
    devices = [(n, v) for n, v in named if "/" in n]
    shown = devices or named or [(PODS, requests[PODS])]
    return " + ".join(amount(n, v) for n, v in shown)


def some(names: Sequence[str], most: int = NAMED) -> str:
    """The first few of them, and how many more there are."""
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
class Room:
    """What the best domain holds of a podset group.

    Attributes:
        domain: the best one at the podset group's level; -1 without a level, or when none has room for anything.
        fits: how many of each pods it holds, each by itself.
        nodes: nodes eligible for the first pods.
        free: of the scarcest resource that the first pods ask, on all nodes eligible for them.
    """

    podset_group: PodSetGroup
    asked: tuple[Pods, ...]
    domain: int
    fits: tuple[int, ...]
    nodes: int
    free: int

    @property
    def short(self) -> bool:
        """Whether these sums alone prove that the podset group does not fit."""
        return any(n < p.count for n, p in zip(self.fits, self.asked, strict=True))

    @property
    def name(self) -> str:
        """Of the best domain."""
        return self.podset_group.tree.names[self.podset_group.required][self.domain][-1]

    @property
    def sentence(self) -> str:
        """What the best domain has room for."""
        podset_group = self.podset_group
        if podset_group.on_one_node:
            return f"no node of the {self.nodes} it may use has room for all of them"
        parts = [
            f"{n * p.size}"
            if len(self.fits) == 1
            else f"{n * p.size} of {p.total} {TIMES} {requests_of(each(p))}"
            for n, p in zip(self.fits, self.asked, strict=True)
        ]
        held = " and ".join(parts)
        if any(p.slices or p.size > 1 for p in self.asked):
            held += " in whole slices"
        if podset_group.required == ANYWHERE:
            return f"the {self.nodes} nodes it may use have room for {held}"
        level = level_of(podset_group)
        if self.domain < 0:
            if not self.nodes:
                return f"no {level} has a node it may use"
            return f"no {level} has room for any part of it on the {self.nodes} nodes it may use"
        return f"the freest {level}, {self.name}, has room for {held}"

    @property
    def free_in_all(self) -> str:
        """How much of the scarcest resource it asks is free on all nodes it may use."""
        name = scarcest(self.podset_group.pods[0])
        if name is None or self.podset_group.required == ANYWHERE:
            return ""
        return f"; {amount(name, self.free)} are free in all"

    @property
    def details(self) -> dict[str, Any]:
        """The numbers as plain JSON values."""
        details = plain(self.podset_group)
        details["fits"] = [n * p.size for n, p in zip(self.fits, self.asked, strict=True)]
        if (
            not self.podset_group.on_one_node
            and self.podset_group.required != ANYWHERE
            and self.domain >= 0
        ):
            details["domain"] = list(
                self.podset_group.tree.names[self.podset_group.required][self.domain]
            )
        return details


def room_of(podset_group: PodSetGroup, free: Ints) -> Room:
    """The room a podset group has on a free matrix (R, N)."""
    asked = podset_group.asked
    per_node = [caps(free, p.shape) for p in asked]
    eligible = asked[0].shape.eligible
    nodes, left = int(np.count_nonzero(eligible)), 0
    if podset_group.pods[0].shape.columns:
        column = podset_group.pods[0].shape.columns[0]
        left = int(np.maximum(free[column], 0)[podset_group.pods[0].shape.eligible].sum())
    level = ANYWHERE if podset_group.on_one_node else podset_group.required
    held = [
        Capacity(podset_group.tree, row, p.slices).holding(level)
        for row, p in zip(per_node, asked, strict=True)
    ]
    if level == ANYWHERE:
        return Room(podset_group, asked, -1, tuple(int(row.sum()) for row in held), nodes, left)
    sums = np.stack(held)
    if not sums.shape[1] or not sums.any():
        return Room(podset_group, asked, -1, (0,) * len(asked), nodes, left)
    counts = np.array([p.count for p in asked], dtype=np.int64)[:, None]
    share = (np.minimum(sums, counts) / counts).min(axis=0)
    best = int(np.lexsort((-sums.sum(axis=0), -share))[0])
    return Room(podset_group, asked, best, tuple(int(n) for n in sums[:, best]), nodes, left)


def scarcest(pods: Pods) -> str | None:
    """What is likely short for these pods: the first of their devices, else of what they ask; None if no node has it."""
    if not pods.shape.columns:
        return None
    return min(pods.shape.requests, key=lambda name: (name in COMMON, name))


def plain(podset_group: PodSetGroup) -> dict[str, Any]:
    """What a podset group asks, as plain JSON values."""
    level = None
    if podset_group.on_one_node:
        level = podset_group.tree.node_level
    elif podset_group.required != ANYWHERE:
        level = podset_group.tree.levels[podset_group.required]
    return {
        "level": level,
        "pods": [
            {"count": p.total, "requests": dict(sorted(each(p).items()))} for p in podset_group.pods
        ],
    }
