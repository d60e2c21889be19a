"""Refusing by counting: many questions about what is free without the gangs that the plan admits, each a few sums.

Two proofs that a gang finds no place beside others, wherever those stand: for one of its podset groups no domain has room even alone;
or all pods together exceed all nodes together, by the plain sums and by :mod:`queuectl.planner.model.bounds`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from queuectl.planner.model.bounds import LARGEST, overfull
from queuectl.planner.model.classes import asked_pods
from queuectl.planner.placement.single import Capacity
from queuectl.planner.problem.problem import Shape, caps
from queuectl.planner.problem.request import ANYWHERE, GangRequest, Pods, PodSetGroup
from queuectl.planner.problem.topology import Ints, Mask


def refuted_by_sums(request: GangRequest, free: Ints) -> bool:
    """Whether floor sums alone exclude every domain for some podset group."""
    return any(not _some_domain_holds(podset_group, free) for podset_group in request.podset_groups)


def held(podset_group: PodSetGroup, pods: Pods, level: int, free: Ints) -> Ints:
    """Pods that fit each domain of a level by themselves, in whole slices; the whole fleet for ANYWHERE."""
    return Capacity(podset_group.tree, caps(free, pods.shape), pods.slices).holding(level)


def _some_domain_holds(podset_group: PodSetGroup, free: Ints) -> bool:
    level = ANYWHERE if podset_group.on_one_node else podset_group.required
    holds: Mask | None = None
    for pods in asked_pods(podset_group):
        enough = held(podset_group, pods, level, free) >= pods.count
        holds = enough if holds is None else holds & enough
    return holds is None or bool(holds.any())


@dataclass(eq=False)
class Load:
    """What some gangs ask together of the nodes that any of them may use.

    Attributes:
        free: (R, N) without any of them.
        sizes: per resource, pods by how much they ask of it.
    """

    free: Ints
    sizes: defaultdict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    _usable: Mask | None = None
    _there: dict[int, tuple[int, Ints]] = field(
        default_factory=dict
    )  # resource -> sum, nodes by amount

    @classmethod
    def of(cls, requests: Iterable[GangRequest], free: Ints) -> Load:
        """That of these gangs."""
        load = cls(free)
        load.add(*requests)
        return load

    def add(self, *requests: GangRequest) -> None:
        """So many gangs more."""
        counts: dict[Shape, int] = {}  # gangs come in many, shapes in few
        for request in requests:
            for podset_group in request.podset_groups:
                for pods in asked_pods(podset_group):
                    counts[pods.shape] = counts.get(pods.shape, 0) + pods.count
        for shape, count in counts.items():
            self.put(shape.vector, count, shape.eligible)

    def put(self, vector: Ints, count: int, eligible: Mask) -> None:
        """So many pods more that ask this and may use these nodes."""
        if self._usable is None:
            self._usable = eligible
        elif eligible is not self._usable and bool((eligible & ~self._usable).any()):
            self._usable = self._usable | eligible
            self._there = {}
        for column, amount in enumerate(vector.tolist()):
            if amount:
                counts = self.sizes[column]
                counts[amount] = counts.get(amount, 0) + count

    def copy(self) -> Load:
        """The same, to be added to."""
        load = Load(self.free, _usable=self._usable, _there=self._there)
        load.sizes.update((column, dict(counts)) for column, counts in self.sizes.items())
        return load

    def exceeds(self) -> bool:
        """Whether it is more than there is, wherever each pod goes."""
        return any(self._lacks(column, sizes) for column, sizes in self.sizes.items())

    def _lacks(self, column: int, sizes: Mapping[int, int]) -> bool:
        total, nodes = self._room(column)
        if sum(size * count for size, count in sizes.items()) > total:
            return True
        return bool(len(nodes)) and overfull(sizes, nodes)

    def _room(self, column: int) -> tuple[int, Ints]:
        """What is free of a resource in all, and how many nodes have 0, 1, 2, ... of it; no numbers where they would be too many."""
        known = self._there.get(column)
        if known is None:
            there = np.maximum(self.free[column, self._usable], 0)
            few = int(there.max(initial=0)) <= LARGEST
            nodes = np.bincount(there) if few else np.zeros(0, dtype=np.int64)
            known = self._there[column] = int(there.sum()), nodes
        return known
