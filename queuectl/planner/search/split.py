"""Splitting podsets over flavors, where the ClusterQueue permits it (``splitFlavors``).

Tried when a gang fits now under no choice of whole flavors, before an eviction and before it starts with fewer pods.
A *portion* is the pods of one podset under one flavor of each resource group. Of all ways to split, the one with the most
pods in the first podset's most preferred portion wins, then in its next, and so on through the podsets. Fewer pods fit
wherever more do, in quota and on nodes, whether admitted gangs move or not; so :mod:`queuectl.planner.search.count_search` finds it with few
questions, each answered by the same sums, greedy placement and model as for whole flavors.

Never split are podsets of a group, for they share their flavors; and a slice, so a share ends where a slice ends. Shares of
a podset all take nodes or none does; where it requires a domain, they name the same topology.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, product
from math import prod
from typing import Final

from queuectl.domain.queues import ClusterQueue, WhenCan
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Pending
from queuectl.domain.words import counted
from queuectl.domain.workload import PodSet, TopologyMode
from queuectl.planner.placement.feasible import decide
from queuectl.planner.preempt.shortage import borrows
from queuectl.planner.problem.flavors import Choice, Flavors, Options
from queuectl.planner.problem.parts import SplitGang, part_of, topologies
from queuectl.planner.problem.request import GangRequest, request_of
from queuectl.planner.reasons.passing import awaiting_nodes
from queuectl.planner.search.count_search import (
    MOST_QUESTIONS,
    CountColumn,
    Greatest,
    PodCounts,
)
from queuectl.planner.search.flavor_choice import (
    Fit,
    FitsAfterEviction,
    FlavorChooser,
    Outcome,
    Refuted,
    Unknown,
)
from queuectl.planner.solver.solver import Status

MOST_PORTIONS: Final = 64  # of one podset: combinations of one flavor of each resource group


@dataclass(frozen=True, slots=True)
class Portion:
    """Pods of one podset group under one choice of flavors.

    Attributes:
        podset_group: its number in the gang.
        flavors: per podset of the gang, resource to flavor; empty for podsets of other podset groups.
        step: pods that stay together; 0 where the podset group is not split.
    """

    podset_group: int
    flavors: Flavors
    step: int


def split(
    by: FlavorChooser,
    pending: Pending,
    queue: ClusterQueue,
    options: Options,
    usable: Callable[[Choice], bool],
    whole: Outcome,
) -> Outcome:
    """The outcome for a gang with splittable podsets, when no choice of whole flavors lets it start.

    Args:
        by: the chooser of the cycle.
        pending: the gang.
        queue: its ClusterQueue, which lets podsets be split.
        options: all flavors it could take.
        usable: whether no gang ahead of it in a StrictFIFO queue waits for these flavors.
        whole: what was found with whole flavors.
    """
    last_try = pending.budget >= by.solver.limits.max_budget
    if isinstance(whole, Unknown) and not last_try:
        return whole
    search = _Search(by, pending, queue, options, usable)
    if not search.possible:
        return whole
    split_fit = search.find()
    found = by.beside_planned(split_fit) if isinstance(split_fit, Fit) else split_fit
    if isinstance(found, Fit):
        return replace(found, sure=found.sure and not isinstance(whole, Unknown))
    if isinstance(found, Reason):  # it would delay a planned start
        return Refuted((found, *whole.why)) if isinstance(whole, Refuted) else whole
    if isinstance(found, Unknown):
        return whole if isinstance(whole, FitsAfterEviction) and last_try else found
    if isinstance(whole, Refuted):
        return Refuted(search.explained(whole.why))
    return whole


@dataclass(eq=False, slots=True)
class _Search:
    """The ways to split one gang."""

    by: FlavorChooser
    pending: Pending
    queue: ClusterQueue
    options: Options
    usable: Callable[[Choice], bool]
    portions: list[Portion] = field(init=False)
    totals: list[int] = field(init=False)
    columns: list[CountColumn] = field(init=False)
    most: list[int] = field(default_factory=list)  # of each portion alone, in steps
    _complete: bool = True
    _unknown: Unknown | None = None
    _found: dict[PodCounts, Fit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.portions = [
            p for podset_group in range(len(self.options.members)) for p in self._of(podset_group)
        ]
        steps = [self._step(podset_group) for podset_group in range(len(self.options.members))]
        self.totals = [
            self._podsets(podset_group)[0].count // step if step else 1
            for podset_group, step in enumerate(steps)
        ]
        self.columns = [CountColumn(p.podset_group, self._kind(p)) for p in self.portions]

    def _podsets(self, podset_group: int) -> list[PodSet]:
        podsets = self.pending.workload.podsets
        return [podsets[i] for i in self.options.members[podset_group]]

    def _step(self, podset_group: int) -> int:
        first = self._podsets(podset_group)[0]
        slices = first.topology.slices if first.topology is not None else ()
        step = slices[0].size if slices else 1
        alone = first.group is None and first.count >= step and first.count % step == 0
        return step if alone else 0

    def _of(self, podset_group: int) -> list[Portion]:
        """The portions of a podset group, most preferred first."""
        keys = [key for key in self.options.allowed if key[0] == podset_group]
        rows = [self.options.allowed[key] for key in keys]
        self._complete &= prod(map(len, rows)) <= MOST_PORTIONS
        choices = (dict(zip(keys, names, strict=True)) for names in product(*rows))
        workload = self.pending.workload
        return [
            Portion(
                podset_group,
                self.options.flavors_by_podset(choice, self.queue, workload),
                self._step(podset_group),
            )
            for choice in islice(choices, MOST_PORTIONS)
            if not choice or self.usable(choice)
        ]

    def _kind(self, portion: Portion) -> object:
        """Portions of a podset are merged if it has the same value for them."""
        if not portion.step:
            return None
        (number,) = self.options.members[portion.podset_group]
        request = self.pending.workload.podsets[number].topology
        named = topologies(portion.flavors[number], self.by.problem.snapshot.config)
        required = request is not None and request.mode is TopologyMode.REQUIRED
        return named if required else bool(named)

    @property
    def possible(self) -> bool:
        """Whether anything can be split at all."""
        several = [
            p.podset_group for p in self.portions if p.step and self.totals[p.podset_group] > 1
        ]
        return len(several) > len(set(several))

    # Asking.

    def find(self) -> Fit | Unknown | None:
        """The best way to split the gang that fits now; None = proved that there is none."""
        sure = True
        lenient = self.queue.fungibility.when_can_borrow is WhenCan.MAY_STOP_SEARCH
        for borrowing in (True,) if lenient else (False, True):
            counts, exact = self._greatest(partial(self._fits, borrowing=borrowing))
            sure &= exact and self._complete
            if counts is not None:
                return replace(self._found[counts], sure=sure and self._unknown is None)
        if self._unknown is not None:
            return self._unknown
        return None if sure else Unknown()

    def _greatest(self, fits: Callable[[PodCounts], bool]) -> tuple[PodCounts | None, bool]:
        asked = MOST_QUESTIONS << self.pending.budget
        search = Greatest(self.totals, self.columns, fits, asked)
        counts = search.find()
        self.most = search.most
        return counts, search.exact

    def _fits(self, counts: PodCounts, *, borrowing: bool) -> bool:
        """Whether so much of each portion fits now, beside all gangs admitted so far."""
        state, solver = self.by.state, self.by.solver
        if solver.stop.stopped:
            self._unknown = Unknown()
            return False
        request = self._request(counts)
        if not state.quota.fits(request):
            return False
        heights = borrows(state, request)
        if not borrowing and any(heights):
            return False
        decision = decide(state, request, solver)
        if decision.status is Status.FOUND:
            self._found[counts] = Fit(request, decision, heights)
            return True
        if decision.status is not Status.REFUTED:
            self._unknown = Unknown(decision.alarm)
        return False

    def _request(self, counts: PodCounts, *, lasting: bool = False) -> GangRequest:
        """The request of the gang when it is split so: a part for each portion that has pods."""
        config = self.by.problem.snapshot.config
        workload = self.pending.workload
        parts: list[tuple[int, PodSet, dict[str, str]]] = []
        for at, (portion, count) in enumerate(zip(self.portions, counts, strict=True)):
            for number in self.options.members[portion.podset_group] if count else ():
                podset, flavors = workload.podsets[number], dict(portion.flavors[number])
                if portion.step:
                    podset = part_of(podset, at, count * portion.step, flavors, config)
                parts.append((number, podset, flavors))
        parts.sort(key=lambda part: part[0])
        podsets = tuple(podset for _, podset, _ in parts)
        asked = replace(self.pending, workload=replace(workload, podsets=podsets))
        flavors_of = tuple(flavors for _, _, flavors in parts)
        request = request_of(self.by.problem, asked, self.queue, flavors_of, lasting=lasting)
        return replace(request, cut=SplitGang(workload, tuple(number for number, _, _ in parts)))

    # Explaining.

    def explained(self, whole: Sequence[Reason]) -> tuple[Reason, ...]:
        """Why it cannot be split either, beside why it does not fit whole.

        A gang that is too large for each flavor can still fit several of them later: then it waits, and that reason is the first.
        """
        most = list(self.most)
        quota, _ = self._greatest(lambda c: self.by.state.quota.fits(self._request(c)))
        code = Code.WAITING_FOR_QUOTA if quota is None else Code.TOPOLOGY_PLACEMENT_FAILED
        why = self._reason(code, most)
        if not whole or not whole[0].never_fits:
            return (*whole, why)
        ever, exact = self._greatest(partial(self._fits_ever, lasting=True))
        if ever is None:
            return tuple(whole) if exact else (why, *whole)
        now, exact = self._greatest(partial(self._fits_ever, lasting=False))
        if now is None and exact:
            why = awaiting_nodes(self.by.problem, self._request(ever, lasting=True), why)
        return (why, *whole)

    def _fits_ever(self, counts: PodCounts, *, lasting: bool) -> bool:
        """Whether so much of each portion fits the unused quota and the empty nodes, as they are or as they can be."""
        request = self._request(counts, lasting=lasting)
        if not self.by.state.quota.ever(request):
            return False
        index, excluded = self.by.problem.index, self.pending.excluded
        on = (index.recovered, frozenset[str]()) if lasting else (index, excluded)
        return self.by.fits_empty(request, *on) is not False

    def _reason(self, code: Code, most: Sequence[int]) -> Reason:
        rows = list(zip(self.portions, most, strict=True))
        for podset_group, total in enumerate(self.totals):
            own = [(p, count) for p, count in rows if p.podset_group == podset_group and p.step]
            if own and sum(count for _, count in own) < total:
                (podset,) = self._podsets(podset_group)
                (number,) = self.options.members[podset_group]
                room = {"+".join(_names(p.flavors[number])): n * p.step for p, n in own}
                fits = " and ".join(f"{pods} with flavor {name}" for name, pods in room.items())
                lacks = "quota" if code is Code.WAITING_FOR_QUOTA else "room"
                more = counted(podset.count - sum(room.values()), "more pod")
                text = f"{lacks} for {more} of podset {podset.name} is needed; split over flavors, {fits} fit"
                details = {"podset": podset.name, "pods": podset.count, "room": room}
                return Reason(code, text, details)
        text = "no split over flavors fits, although each flavor has room for some of the pods"
        return Reason(code, text)


def _names(flavors: Mapping[str, str]) -> list[str]:
    return list(dict.fromkeys(flavors.values()))
