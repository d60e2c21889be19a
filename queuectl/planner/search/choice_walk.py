"""The choices of flavors of a gang with many of them, in order of preference, without those that a part of the gang rules out.

A choice is one flavor of each resource group for each podset group. If a part of the gang does not fit, the whole gang does not:

- If all podset groups exceed the sum of what their flavors have, no choice is left.
- A flavor that a podset group cannot get even alone is in no choice.
- After a choice that does not fit, a binary search finds the fewest of its first podset groups that do not fit. All choices
  that begin with them are passed over.
- Of equal podset groups, the later ones have no flavor that is preferred to that of an earlier one: to exchange their flavors changes nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Final

from queuectl.domain.queues import ClusterQueue
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import PodSet
from queuectl.planner.model.counts import GangLoad
from queuectl.planner.placement.feasible import refuted_by_sums
from queuectl.planner.problem.flavors import Options
from queuectl.planner.problem.fleet import Ints
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import GangRequest, charged_to, request_of
from queuectl.planner.quota import FlavorResource
from queuectl.planner.solver import Solver


@dataclass(frozen=True, eq=False, slots=True)
class ChoiceBounds:
    """The most that a gang can get.

    Attributes:
        left: quota, by flavor and resource.
        free: of each node, (R, N); None if nodes do not count.
        lasting: these are the nodes as they can be.
    """

    left: Mapping[FlavorResource, int]
    free: Ints | None
    lasting: bool = False

    def exceeded(self, request: GangRequest) -> bool:
        """Whether sums refute a request."""
        if any(need and need > self.left.get(row, 0) for row, need in request.charges.items()):
            return True
        free = self.free
        return free is not None and (
            refuted_by_sums(request, free) or GangLoad.of([request], free).exceeds()
        )


_MOST_OF_ONE: Final = 512  # choices of one podset group: of one flavor of each resource group
_MOST_LIMITS: Final = 4.0
"""The most steps of a walk, in limits of a cycle: half of those of one gang, so that victims can still be searched for."""


@dataclass(eq=False, slots=True)
class ChoiceWalk:
    """The requests of one gang, to be judged one by one.

    Each podset group that is judged, in a part or in the whole gang, counts as a step of the solver. A walk has as many as a cycle, and more
    after an earlier search without an answer.

    Attributes:
        pending: the gang.
        queue: its ClusterQueue.
        options: all its flavors.
        bounds: of all choices.
        refuted: whether it is proved that a request does not fit, nor any with more podset groups.
        ended: whether a limit ended the walk, so that more choices may fit.
    """

    problem: Problem
    solver: Solver
    pending: Pending
    queue: ClusterQueue
    options: Options
    bounds: ChoiceBounds
    refuted: Callable[[GangRequest], bool]
    ended: bool = False
    _until: float = field(init=False)  # steps of the solver
    _absent: Sequence[PodSet] = field(init=False)

    def __post_init__(self) -> None:
        limits = self.solver.limits
        budget = min(self.pending.budget, limits.max_budget)
        most = limits.search_steps * min(limits.growth**budget, _MOST_LIMITS)
        self._until = self.solver.steps + most
        self._absent = [replace(podset, count=0) for podset in self.pending.workload.podsets]

    def __iter__(self) -> Iterator[GangRequest]:
        columns = [] if self._over() else self._columns()
        if self._over() or not all(columns) or self._exceed(columns):
            return
        order = sorted(range(len(columns)), key=lambda number: len(columns[number]) > 1)
        most = [len(columns[number]) for number in order]
        before = self._equal_before(order)
        chosen: list[int] | None = [0] * len(order)
        while chosen is not None and not self._over():
            parts = {n: columns[n][at] for n, at in zip(order, chosen, strict=True)}
            self.solver.steps += len(parts)
            yield self._joined(parts)
            chosen = _next(chosen, self._conflict(parts), most, before)

    def _conflict(self, parts: Mapping[int, GangRequest]) -> int:
        """The place of the first podset group that does not fit together with those before it, whatever is behind; otherwise the last place."""

        def refuted(place: int) -> bool:
            return self._is_refuted(dict(islice(parts.items(), place + 1)))

        return bisect_left(range(len(parts) - 1), True, key=refuted)

    def _equal_before(self, order: Sequence[int]) -> list[int | None]:
        """Of each place in the order, that of the last podset group before it that is equal."""
        last: dict[object, int] = {}
        before = []
        for place, kind in enumerate(map(self._kind, order)):
            before.append(last.get(kind))
            last[kind] = place
        return before

    def _over(self) -> bool:
        solver = self.solver
        over = solver.ended() or solver.exhausted or solver.steps >= self._until
        self.ended |= over
        return over

    def _columns(self) -> list[list[GangRequest]]:
        """Per podset group, its requests under the choices of flavors that it can get alone, most preferred first."""
        kept: dict[object, list[int]] = {}
        columns = []
        for number in range(len(self.options.members)):
            requests, kind = self._of(number), self._kind(number)
            if kind not in kept:
                kept[kind] = [
                    at for at, one in enumerate(requests) if not self._is_refuted({number: one})
                ]
            columns.append([requests[at] for at in kept[kind]])
        return columns

    def _exceed(self, columns: Sequence[Sequence[GangRequest]]) -> bool:
        """Whether all podset groups ask for more than all of their flavors have together."""
        needs, rows = Counter[str](), set[FlavorResource]()
        for column in columns:
            for (_, resource), amount in column[0].charges.items():
                needs[resource] += amount
            rows.update(row for one in column for row in one.charges)
        left = Counter[str]()
        for row in rows:
            left[row[1]] += max(0, self.bounds.left.get(row, 0))
        if any(amount > left[resource] for resource, amount in needs.items()):
            return True
        return self.bounds.free is not None and self._overload(columns, self.bounds.free)

    def _overload(self, columns: Sequence[Sequence[GangRequest]], free: Ints) -> bool:
        """The same for the nodes that any of their flavors names.

        Pods that some flavor places otherwise, or nowhere, add only their nodes.
        """
        load = GangLoad(free)
        for column in columns:
            asked = column
            if self.bounds.lasting:
                asked = [
                    request_of(self.problem, one.pending, self.queue, one.flavors, lasting=True)
                    for one in column
                ]
            same = len({tuple((p.count, p.shape.requests) for p in one.pods) for one in asked}) == 1
            for at, one in enumerate(asked):
                for pods in one.pods:
                    count = pods.count if same and at == 0 else 0
                    load.put(pods.shape.vector, count, pods.shape.eligible)
        return load.exceeds()

    def _kind(self, number: int) -> object:
        """The same for equal podset groups."""
        podsets = (self.pending.workload.podsets[i] for i in self.options.members[number])
        return tuple(replace(podset, name="", group=None) for podset in podsets)

    def _of(self, number: int) -> list[GangRequest]:
        """The requests of a podset group alone, under each choice of its flavors."""
        allowed = {key: names for key, names in self.options.allowed.items() if key[0] == number}
        choices = list(islice(product(*allowed.values()), _MOST_OF_ONE + 1))
        self.ended |= len(choices) > _MOST_OF_ONE
        workload, pending = self.pending.workload, self._alone({number})
        return [
            request_of(
                self.problem,
                pending,
                self.queue,
                self.options.flavors_by_podset(
                    dict(zip(allowed, names, strict=True)), self.queue, workload
                ),
            )
            for names in choices[:_MOST_OF_ONE]
        ]

    def _alone(self, numbers: set[int]) -> Pending:
        """The gang with the pods of these podset groups alone."""
        workload = self.pending.workload
        podsets = list(self._absent)
        for number in numbers:
            for i in self.options.members[number]:
                podsets[i] = workload.podsets[i]
        return replace(self.pending, workload=replace(workload, podsets=tuple(podsets)))

    def _is_refuted(self, parts: Mapping[int, GangRequest]) -> bool:
        """Whether these podset groups do not fit, whatever the others get."""
        if self._over():
            return False
        self.solver.steps += len(parts)
        return self.refuted(self._joined(parts))

    def _joined(self, parts: Mapping[int, GangRequest]) -> GangRequest:
        """The request of these podset groups together, of the whole gang if these are all."""
        whole = len(parts) == len(self.options.members)
        pending = self.pending if whole else self._alone(set(parts))
        flavors: list[Mapping[str, str]] = [{} for _ in pending.workload.podsets]
        charges: dict[tuple[str, str], int] = {}
        for number in sorted(parts):
            for i in self.options.members[number]:
                flavors[i] = parts[number].flavors[i]
            for row, amount in parts[number].charges.items():
                charges[row] = charges.get(row, 0) + amount
        groups = tuple(group for n in sorted(parts) for group in parts[n].podset_groups)
        return charged_to(GangRequest(pending, groups, charges, tuple(flavors)), self.queue)


def _next(
    chosen: Sequence[int], final: int, most: Sequence[int], before: Sequence[int | None]
) -> list[int] | None:
    """The next choice that differs at place ``final`` or before it; None after the last one.

    Args:
        chosen: numbers of flavors, by place.
        final: a place.
        most: how many flavors each place has.
        before: of each place, the one of the equal podset group before it, which has no later flavor.
    """
    for place in range(final, -1, -1):
        if chosen[place] + 1 < most[place]:
            after = [*chosen[:place], chosen[place] + 1]
            for earlier in before[place + 1 :]:
                after.append(0 if earlier is None else after[earlier])
            return after
    return None
