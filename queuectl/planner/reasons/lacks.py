"""The resources that nodes lack: how much of a podset group fits its best domain by sums, the nodes without room for one more pod, and who holds it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from queuectl.domain.devices import ONE_NUMA_NODE
from queuectl.domain.quantity import PODS, format_quantity
from queuectl.domain.words import counted, is_or_are
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.placement.single import ShapeCapacity
from queuectl.planner.problem.fleet import Ints, Mask
from queuectl.planner.problem.problem import COMMON, Problem, caps
from queuectl.planner.problem.request import ANYWHERE, PodSetGroup, ShapePods
from queuectl.planner.reasons.words import (
    amount,
    devices_asked,
    is_row,
    joined,
    kind_of,
    level_of,
    no_placement,
    plain,
    slices_of,
    where,
)

_SHOWN: Final = 3  # kinds of nodes that a sentence has
_NAMED: Final = 3  # gangs that a sentence or its details have
_COLUMNS: Final = 61  # resources of a pod that are examined: bits of an integer


@dataclass(frozen=True, slots=True)
class Holders:
    """The holders of one resource on some nodes.

    Attributes:
        total: allocatable on these nodes.
        running: amount of the running gangs.
        gangs: ``namespace/name`` of each of them that holds any, the largest amount first.
        daemons: amount of the pods of DaemonSets.
        other_pods: amount of all other pods without a queue.
        before: amount of the gangs that come first in this plan, and of what is reserved.
    """

    total: int
    running: int = 0
    gangs: tuple[str, ...] = ()
    daemons: int = 0
    other_pods: int = 0
    before: int = 0

    def words(self, resource: str) -> str:
        """``pods without a queue hold 55 of 96, team/a 40``; empty if it is all free."""
        kinds = [
            (self.running, _gangs(self.gangs)),
            (self.daemons, "DaemonSets"),
            (self.other_pods, "pods without a queue"),
            (self.before, "gangs before it"),
        ]
        held = sorted((kind for kind in kinds if kind[0] > 0), key=lambda kind: -kind[0])
        parts = [f"{name} {format_quantity(resource, value)}" for value, name in held]
        if held:
            (value, name), total = held[0], format_quantity(resource, self.total)
            verb = "holds" if (name,) == self.gangs else "hold"
            parts[0] = f"{name} {verb} {format_quantity(resource, value)} of {total}"
        return ", ".join(parts)

    @property
    def details(self) -> dict[str, Any]:
        """The numbers as plain JSON values."""
        return {
            "of": self.total,
            "running": self.running,
            "daemonSets": self.daemons,
            "otherPods": self.other_pods,
            "before": self.before,
            "holders": list(self.gangs[:_NAMED]),
        }


@dataclass(frozen=True, slots=True)
class Lack:
    """Nodes that have too little of the same resources.

    Attributes:
        names: each of them alone rules the nodes out.
        needs: the request of one pod for them.
        nodes: how many.
        most: of the first resource, the most that is free on one of the nodes.
        held: of the first resource; None where the nodes would be too small if they were empty. Empty nodes have no holders.
        further: each node has room for a pod, and for no other one besides.
    """

    names: tuple[str, ...]
    needs: tuple[int, ...]
    nodes: int
    most: int
    held: Holders | None
    further: bool = False

    @property
    def words(self) -> str:
        """``10 nodes lack cpu (at most 1 free; pods without a queue hold 950 of 960)``."""
        first, nodes = self.names[0], counted(self.nodes, "node")
        have = "has" if self.nodes == 1 else "have"
        most = format_quantity(first, self.most)
        if self.held is None:
            if is_row(first):
                return f"{nodes} {have} too few {_named(first)}"
            if not self.most and len(self.names) == 1:
                return f"{nodes} {have} no {_named(first)}"
            needs = map(_amount, self.names, self.needs)
            at_most = f" (at most {most})" if len(self.names) == 1 else ""
            return f"{nodes} {have} less than {joined(list(needs))}{at_most}"
        lack = "lacks" if self.nodes == 1 else "lack"
        text = f"{nodes} {lack} {joined(list(map(_named, self.names)))}"
        if is_row(first):
            return text
        free = most if len(self.names) == 1 else f"{most} {_named(first)}"
        free = f"at most {free} free" if self.nodes > 1 and self.most > 0 else f"{free} free"
        parts = ["" if self.further else free, self.held.words(first)]
        why = "; ".join(filter(None, parts))
        return f"{text}{' for one more pod' * self.further}{f' ({why})' * bool(why)}"

    @property
    def details(self) -> dict[str, Any]:
        """The numbers as plain JSON values."""
        details: dict[str, Any] = {"resources": list(self.names), "nodes": self.nodes}
        details |= {"needs": self.needs[0], "most": self.most}
        return details if self.held is None else details | self.held.details


def _gangs(refs: Sequence[str]) -> str:
    """Their names; the number where there are many."""
    return ", ".join(refs) if len(refs) <= _NAMED else counted(len(refs), "gang")


def _named(resource: str) -> str:
    """The name of a resource of nodes in a sentence."""
    if resource == PODS:
        return "pod slots"
    asked = devices_asked(resource)
    if asked is None:
        return resource.partition("#")[0]
    return asked if asked.startswith(ONE_NUMA_NODE) else f"devices for {asked}"


def _amount(resource: str, needed: int) -> str:
    return f"{needed} pod slots" if resource == PODS else amount(resource, needed)


def in_words(lacks: Sequence[Lack]) -> str:
    """All nodes that have no room, in one line."""
    parts = [lack.words for lack in lacks[:_SHOWN]]
    others = sum(lack.nodes for lack in lacks[_SHOWN:])
    return ", ".join([*parts, *([f"and {others} more"] if others else [])])


def lacks_of(state: CycleState, pods: ShapePods, nodes: Ints, free: Ints) -> tuple[Lack, ...]:
    """The nodes that have no room for a pod; if all have, the nodes by the resources that limit how many pods they have room for.

    Nodes that pass come before those that would be too small if they were empty; then, the most nodes first.

    Args:
        state: of the cycle.
        pods: of one kind.
        nodes: indexes of the nodes that these may use. Shape (K,).
        free: the capacity that they find, (R, N): of ``state``, or of empty nodes.
    """
    columns = np.array(pods.shape.columns[:_COLUMNS], dtype=np.int64)
    vector = pods.shape.vector[columns, None]
    here = np.maximum(free[np.ix_(columns, nodes)], 0)
    empty = state.problem.index.recovered.allocatable
    too_small = empty[np.ix_(columns, nodes)] < vector
    short: Mask = np.less(here, vector)
    never = too_small.any(axis=0)
    short[:, never] = too_small[:, never]
    further = bool(columns.size and nodes.size) and not short.any()
    if further:
        fits = here // vector
        short = np.equal(fits, fits.min(axis=0))
    key = (2 << np.arange(columns.size)) @ short + never
    lacks = []
    for value, alike in _kinds(key[short.any(axis=0)], key):
        rows = [i for i in range(columns.size) if value >> i & 2]
        named = _shown(state.problem, [int(columns[i]) for i in rows])
        first = next(i for i in rows if columns[i] == named[0])
        lack = Lack(
            tuple(state.problem.resources[column] for column in named),
            tuple(int(pods.shape.vector[column]) for column in named),
            int(np.count_nonzero(alike)),
            int(here[first, alike].max()),
            None if value & 1 else holders_of(state, named[0], nodes[alike], free),
            further,
        )
        lacks.append(lack)
    return tuple(sorted(lacks, key=lambda lack: (lack.held is None, -lack.nodes)))


def _kinds(out: Ints, key: Ints) -> Iterator[tuple[int, Mask]]:
    """The nodes by the resources that each of them lacks, as bits.

    Nodes that lack more than most others are counted with these: one sentence for all that lack the same first.

    Args:
        out: the keys of the nodes without room.
        key: of all nodes.
    """
    values, counts = np.unique(out, return_counts=True)
    kinds: dict[int, list[int]] = {}
    for value in values[np.argsort(-counts, kind="stable")].tolist():
        less = (known for known in kinds if known & value == known and (known ^ value) & 1 == 0)
        kinds.setdefault(next(less, value), []).append(value)
    for value, alike in kinds.items():
        yield value, np.isin(key, alike)


def _shown(problem: Problem, columns: list[int]) -> list[int]:
    """Without the rows of plans, where a resource that people know is short too."""
    known = [column for column in columns if not is_row(problem.resources[column])]
    return known or columns[:1]


def holders_of(state: CycleState, column: int, nodes: Ints, free: Ints) -> Holders:
    """The holders of a resource on some nodes.

    Args:
        state: of the cycle.
        column: number of the resource.
        nodes: indexes. Shape (K,).
        free: what is left, (R, N); the allocatable amounts mean that the nodes are empty.
    """
    problem = state.problem
    total = int(problem.index.allocatable[column, nodes].sum())
    if free is problem.index.recovered.allocatable:
        return Holders(total)
    beside_gangs = int(problem.usage.free[column, nodes].sum())
    now = int(problem.now[column, nodes].sum())
    daemons = int(problem.once(_of_daemons, column)[nodes].sum())
    gangs = _gangs_on(problem, column, nodes) if total > beside_gangs else ()
    before = now - int(free[column, nodes].sum())
    others = beside_gangs - now - daemons
    return Holders(total, total - beside_gangs, gangs, daemons, others, before)


def _of_daemons(problem: Problem, column: int) -> Ints:
    """The use of a resource by pods of DaemonSets, of each node."""
    used = np.zeros(problem.size, dtype=np.int64)
    for node, requests in problem.snapshot.of_daemons.items():
        at = problem.index.position.get(node)
        if at is not None:
            used[at] = requests[problem.resources[column]]
    return used


def _gangs_on(problem: Problem, column: int, nodes: Ints) -> tuple[str, ...]:
    """The running gangs that hold some of a resource on these nodes, the largest amount first."""
    refs, owners, places, amounts = problem.once(_slots)
    counts = problem.mask_of(nodes)[places]
    held = np.zeros(len(refs), dtype=np.int64)
    np.add.at(held, owners[counts], amounts[column, counts])
    order = np.argsort(-held, kind="stable")[: np.count_nonzero(held)]
    return tuple(map(refs.__getitem__, order.tolist()))


def _slots(problem: Problem) -> tuple[list[str], Ints, Ints, Ints]:
    """The names of all running gangs in order; of each of their slots the number of its gang, its node, and its amounts (R, K)."""
    entries = sorted(problem.usage.entries.values(), key=lambda entry: entry.gang.workload.ref)
    sizes = [entry.slots[0].size for entry in entries]
    owners = np.repeat(np.arange(len(entries)), sizes)
    places = np.concatenate([entry.slots[0] for entry in entries])
    amounts = np.concatenate([entry.slots[1] for entry in entries], axis=1)
    return [entry.gang.workload.ref for entry in entries], owners, places, amounts


# ---- How much of a podset group fits its best domain


@dataclass(frozen=True, slots=True)
class LargestFit:
    """How much of a podset group the best domain can hold.

    Attributes:
        domain: the best one at the podset group's level; -1 without a level, or if no domain can hold any pod.
        fits: how many of each kind of pods it can hold, each kind alone.
        nodes: number of nodes that are eligible for the first pods.
        free: amount of the scarcest resource of the first pods, on all nodes that are eligible for them.
        lacks: what the nodes of the best domain, or all without one, lack for the first pods that do not fit.
        missing: requested resources that no node offers.
    """

    podset_group: PodSetGroup
    pods: tuple[ShapePods, ...]
    domain: int
    fits: tuple[int, ...]
    nodes: int
    free: int
    lacks: tuple[Lack, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def short(self) -> bool:
        """Whether these sums alone prove that the podset group does not fit."""
        return any(n < p.count for n, p in zip(self.fits, self.pods, strict=True))

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
            pods = " and ".join(
                f"{counted(p.total, 'pod')} {kind_of(p, self._short)}"
                for p in self.podset_group.pods
            )
            return f"one node with room for {pods} is needed"
        parts = [
            f"{_more((p.count - n) * p.size, n)} {kind_of(p, self._short)}{slices_of(self.podset_group, p)}"
            for n, p in zip(self.fits, self.pods, strict=True)
            if n < p.count
        ]
        return f"room for {' and '.join(parts)} is needed{where(self.podset_group)}"

    @property
    def _short(self) -> frozenset[str]:
        return frozenset(name for lack in self.lacks for name in lack.names)

    @property
    def at_most(self) -> str:
        """``at most 6 of 8 fit (rack-3), where 1 node lacks cpu (2 free; team/a holds 94 of 96)``."""
        if self.missing:
            return f"no node offers {joined(self.missing)}"
        if not self.lacks:
            return self._most
        return f"{self._most}{', where' if self.domain >= 0 else ':'} {in_words(self.lacks)}"

    @property
    def _most(self) -> str:
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
            for n, p in zip(self.fits, self.pods, strict=True)
        ]
        whole = " in whole slices" if any(p.slices or p.size > 1 for p in self.pods) else ""
        if len(pairs) > 1:
            parts = [
                f"{text} {kind_of(p, self._short)}"
                for (_, text), p in zip(pairs, self.pods, strict=True)
            ]
            return f"at most {' and '.join(parts)} fit{whole}"
        ((number, text),) = pairs
        if not number:
            return f"none fits{whole}"
        return f"at most {text} {'fits' if number == 1 else 'fit'}{whole}"

    @property
    def free_in_all(self) -> str:
        """``; 96 nvidia.com/gpu are free in total``, on all eligible nodes; empty where the best domain lacks something else."""
        name = scarcest(self.podset_group.pods[0])
        if name is None or self.domain < 0 or (self.lacks and name not in self.lacks[0].names):
            return ""
        return f"; {amount(name, self.free)} {is_or_are(name, self.free)} free in total"

    @property
    def details(self) -> dict[str, Any]:
        """The numbers as plain JSON values."""
        details = plain(self.podset_group)
        details["fits"] = [n * p.size for n, p in zip(self.fits, self.pods, strict=True)]
        if self.lacks:
            details["limits"] = [lack.details for lack in self.lacks]
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


def largest_fit(
    podset_group: PodSetGroup, free: Ints, state: CycleState | None = None
) -> LargestFit:
    """The room that a podset group has on a free matrix (R, N); with ``state``, what its nodes lack as well."""
    fit = _by_sums(podset_group, free)
    if state is None or not fit.short:
        return fit
    column = state.problem.index.column
    asked = {name for p in fit.pods for name in p.shape.requests if name not in column}
    if asked and state.problem.size:
        return replace(fit, missing=tuple(sorted(name for name in asked if not is_row(name))))
    pods = next(p for n, p in zip(fit.fits, fit.pods, strict=True) if n < p.count)
    tree = podset_group.tree
    nodes = tree.order if fit.domain < 0 else tree.nodes_in(podset_group.required, fit.domain)
    lacks = lacks_of(state, pods, nodes[pods.shape.eligible[nodes]], free)
    if any(lack.further and lack.names[0] == scarcest(pods) for lack in lacks):
        lacks = ()  # the numbers of pods that fit say it already
    return replace(fit, lacks=lacks)


def _by_sums(podset_group: PodSetGroup, free: Ints) -> LargestFit:
    kinds = podset_group.to_place
    per_node = [caps(free, p.shape) for p in kinds]
    eligible = kinds[0].shape.eligible
    nodes, left = int(np.count_nonzero(eligible)), 0
    if podset_group.pods[0].shape.columns:
        column = podset_group.pods[0].shape.columns[0]
        left = int(np.maximum(free[column], 0)[podset_group.pods[0].shape.eligible].sum())
    level = ANYWHERE if podset_group.on_one_node else podset_group.required
    held = [
        ShapeCapacity(podset_group.tree, row, p.slices).holding(level)
        for row, p in zip(per_node, kinds, strict=True)
    ]
    if level == ANYWHERE:
        return LargestFit(
            podset_group, kinds, -1, tuple(int(row.sum()) for row in held), nodes, left
        )
    sums = np.stack(held)
    if not sums.shape[1] or not sums.any():
        return LargestFit(podset_group, kinds, -1, (0,) * len(kinds), nodes, left)
    counts = np.array([p.count for p in kinds], dtype=np.int64)[:, None]
    share = (np.minimum(sums, counts) / counts).min(axis=0)
    best = int(np.lexsort((-sums.sum(axis=0), -share))[0])
    return LargestFit(podset_group, kinds, best, tuple(int(n) for n in sums[:, best]), nodes, left)


def scarcest(pods: ShapePods) -> str | None:
    """The resource that is likely short for these pods: their first device, otherwise their first resource; None if no node has it."""
    if not pods.shape.columns:
        return None
    return min(pods.shape.requests, key=lambda name: (name in COMMON, name))
