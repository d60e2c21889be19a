"""The request of a gang that lost nodes: exactly the lost pods, beside the healthy ones that stay.

A lost pod is placed in the domain that the healthy pods of its podset group hold at the required level. With slices, the
pods that a slice lost go into the domain its healthy pods are in, so that every domain again holds whole slices; slices
that lost every pod go wherever the coarser layers let them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from queuectl.domain.snapshot import Admitted, Pending
from queuectl.domain.workload import PodSet, Slice, TopologyRequest
from queuectl.planner.placement.several import both
from queuectl.planner.problem.flavors import flavors_of
from queuectl.planner.problem.parts import SplitGang, cut_running
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import ANYWHERE, GangRequest, PodSetGroup, request_of
from queuectl.planner.problem.topology import Ints, Mask, Tree


@dataclass(eq=False)
class Broken:
    """A gang that lost slots.

    Attributes:
        gang: in parts where podsets of it are split: each lost pod keeps the flavor of its share.
        cut: how the gang was cut into these parts, None where it was not.
        staying: podset to node to healthy pods.
        lost: the same of the lost ones.
    """

    problem: Problem
    gang: Admitted
    staying: dict[str, dict[str, int]] = field(default_factory=dict)
    lost: dict[str, dict[str, int]] = field(default_factory=dict)
    cut: SplitGang | None = field(init=False)

    def __post_init__(self) -> None:
        self.gang, self.cut = cut_running(self.gang, self.problem.snapshot.config)
        for name, node, count in self.gang.lost:
            row = self.lost.setdefault(name, {})
            row[node] = row.get(node, 0) + count
        for placed in self.gang.placement.podsets:
            row = self.staying.setdefault(placed.podset, {})
            for node, count in placed.nodes:
                row[node] = row.get(node, 0) + count
            for node, count in self.lost.get(placed.podset, {}).items():
                row[node] = row.get(node, 0) - count
            self.staying[placed.podset] = {n: c for n, c in row.items() if c > 0}

    @property
    def known(self) -> bool:
        """Whether every node of a healthy pod is known; if not, the mirror has not reported all lost nodes yet."""
        return all(
            node in self.problem.index.position for row in self.staying.values() for node in row
        )

    @property
    def healthy_nodes(self) -> Mask:
        """Nodes that hold healthy pods of the gang."""
        mask = np.zeros(self.problem.size, dtype=np.bool_)
        for row in self.staying.values():
            mask[[self.problem.index.position[name] for name in row]] = True
        return mask

    def request(self) -> GangRequest:
        """The lost pods alone, charged nothing (their quota still is), never on a node they were lost on."""
        podsets = self.gang.workload.podsets
        whole = self._asked([(i, p, None) for i, p in enumerate(podsets)])
        trees = {
            pods.podset: podset_group.tree
            for podset_group in whole.podset_groups
            for pods in podset_group.pods
        }
        bounds = {
            pods.podset: self.bounds(podset_group, podset_group.required)
            for podset_group in whole.podset_groups
            for pods in podset_group.pods
        }
        pieces: list[tuple[int, PodSet, Mask | None]] = []
        for number, podset in enumerate(podsets):
            if not self.lost.get(podset.name) or number not in trees:
                continue
            parts = _Split(self, podset, trees[number]).pieces()
            pieces += [(number, part, both(mask, bounds[number])) for part, mask in parts]
        return self._asked(pieces)

    def _asked(self, pieces: list[tuple[int, PodSet, Mask | None]]) -> GangRequest:
        """A request for pieces of podsets; its pods name the podsets of the gang itself."""
        workload = self.gang.workload
        excluded = frozenset(node for _, node, _ in self.gang.lost)
        split = replace(workload, podsets=tuple(podset for _, podset, _ in pieces))
        flavors = flavors_of(workload, self.gang.placement)
        found = request_of(
            self.problem,
            Pending(split, excluded=excluded),
            None,
            tuple(flavors[number] for number, _, _ in pieces),
            within={i: mask for i, (_, _, mask) in enumerate(pieces) if mask is not None},
            placed=True,
        )
        podset_groups = tuple(
            replace(
                podset_group,
                pods=tuple(replace(p, podset=pieces[p.podset][0]) for p in podset_group.pods),
            )
            for podset_group in found.podset_groups
        )
        pending = Pending(workload, excluded=excluded)
        return replace(
            found, pending=pending, podset_groups=podset_groups, flavors=flavors, cut=self.cut
        )

    def bounds(self, podset_group: PodSetGroup, level: int) -> Mask | None:
        """Nodes of the domains that the podset group's healthy pods hold at a level; None when there are no bounds."""
        nodes = np.array(sorted(self._healthy(podset_group)), dtype=np.int64)
        if level == ANYWHERE or not len(nodes):
            return None
        if level == podset_group.tree.depth:
            mask = np.zeros(self.problem.size, dtype=np.bool_)
            mask[nodes] = True
            return mask
        domain: Ints = podset_group.tree.domain[level]
        inside: Mask = np.isin(domain, np.unique(domain[nodes]))
        return inside

    def _healthy(self, podset_group: PodSetGroup) -> Iterator[int]:
        """Node indexes of the healthy pods of the podset group's podsets, those of its group that lost nothing included."""
        podsets = self.gang.workload.podsets
        mine = {podsets[p.podset].name for p in podset_group.pods}
        groups = {podsets[p.podset].group for p in podset_group.pods} - {None}
        for podset in podsets:
            if podset.name in mine or podset.group in groups:
                for name in self.staying.get(podset.name, {}):
                    yield self.problem.index.position[name]


class _Split:
    """The lost pods of one podset, slice by slice: ranks are handed out in the order of its nodes."""

    def __init__(self, broken: Broken, podset: PodSet, tree: Tree) -> None:
        self.podset = podset
        self.tree = tree
        self.at = list(_ranks(broken, podset.name))
        self.found: list[tuple[PodSet, Mask | None]] = []

    def pieces(self) -> list[tuple[PodSet, Mask | None]]:
        """Pods to place, and the nodes they are confined to."""
        request = self.podset.topology
        layers = [
            (level, layer)
            for layer in (request.slices if request is not None else ())
            if (level := self.tree.level_of(layer.level)) is not None
        ]
        finer: tuple[Slice, ...] = ()
        for level, layer in reversed(layers):
            for domain, count in sorted(self._returning(level, layer.size).items()):
                self._add(count, finer, self._domain(level) == domain)
            finer = (layer, *finer)
        self._add(self.at.count(None), finer, None)
        return self.found

    def _returning(self, level: int, size: int) -> dict[int, int]:
        """Domain to the pods lost by slices that still have pods in it; from here on they count as there."""
        returning: dict[int, int] = {}
        for start in range(0, len(self.at), size):
            ranks = range(start, min(start + size, len(self.at)))
            lost = [rank for rank in ranks if self.at[rank] is None]
            there = next((node for rank in ranks if (node := self.at[rank]) is not None), None)
            if lost and there is not None:
                domain = int(self._domain(level)[there])
                returning[domain] = returning.get(domain, 0) + len(lost)
                for rank in lost:
                    self.at[rank] = there
        return returning

    def _domain(self, level: int) -> Ints:
        if level < self.tree.depth:
            return self.tree.domain[level]
        return np.arange(len(self.tree.position), dtype=np.int64)

    def _add(self, count: int, slices: tuple[Slice, ...], inside: Mask | None) -> None:
        if not count:
            return
        request = self.podset.topology
        if request is not None:
            request = TopologyRequest(request.mode, request.level, slices)
        self.found.append((replace(self.podset, count=count, topology=request), inside))


def _ranks(broken: Broken, podset: str) -> Iterator[int | None]:
    """The node index of each rank, None where it was lost; of a node that lost only some, the last."""
    placed = broken.gang.placement.of(podset)
    lost = dict(broken.lost.get(podset, {}))
    for node, count in placed.nodes if placed is not None else ():
        gone = min(lost.get(node, 0), count)
        lost[node] = lost.get(node, 0) - gone
        if count > gone:
            yield from [broken.problem.index.position[node]] * (count - gone)
        yield from [None] * gone
