"""The number of pods that a gang gets: all, otherwise the largest number that may start (partial admission), perhaps split over flavors.

A proof for one gang is kept for the equal ones that follow.

Podsets are split where the ClusterQueue permits it (``splitFlavors``). That is tried when a gang fits now under no choice of whole flavors, before an eviction and before it starts with fewer pods.
A *portion* is the pods of one podset under one flavor of each resource group. Of all ways to split, the one with the most
pods in the first podset's most preferred portion wins, then in its next, and so on through the podsets. Fewer pods fit
wherever more do, in quota and on nodes, whether admitted gangs move or not; so :mod:`queuectl.planner.search.count_search` finds it with few
questions, each answered by the same sums, greedy placement and model as for whole flavors.

Never split are podsets of a group, for they share their flavors; and a slice, so a share ends where a slice ends. Shares of
a podset all take nodes or none does; where it requires a domain, they name the same topology.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, product
from math import prod
from typing import Final

from queuectl.domain.queues import ClusterQueue, WhenCan
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Pending
from queuectl.domain.words import counted
from queuectl.domain.workload import PodSet, TopologyMode
from queuectl.planner.order.limits import GangLimits
from queuectl.planner.order.pending_gangs import length_of
from queuectl.planner.order.queue_order import BlockingHead, StrictFifoHeads, behind
from queuectl.planner.placement.feasible import decide
from queuectl.planner.preempt.find import may_fit_in_turn
from queuectl.planner.preempt.shortage import borrows
from queuectl.planner.problem.flavors import Choice, Flavors, Options
from queuectl.planner.problem.request import (
    GangRequest,
    SplitGang,
    admissible,
    at_least,
    part_of,
    request_of,
    shrinks,
    smallest,
    topologies,
    with_counts,
)
from queuectl.planner.reasons.refusals import awaiting_nodes
from queuectl.planner.search.count_search import (
    MOST_QUESTIONS,
    CountColumn,
    Greatest,
    Largest,
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
from queuectl.planner.search.gang_classes import Candidate, GangClass, GangClasses
from queuectl.planner.solver import Solver, Status

# ---- Splits over flavors

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
    last_try = pending.budget >= by.solver.limits.max_budget and not by.solver.limited
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
        """The best way to split the gang that fits now; None = proved that none exists."""
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
        """Whether so much of each portion fits now, alongside all gangs admitted so far."""
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
        if decision.status is Status.SOLVED:
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
        """Why it cannot be split either, in addition to why it does not fit whole.

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
                room = {
                    "+".join(dict.fromkeys(p.flavors[number].values())): n * p.step for p, n in own
                }
                fits = " and ".join(f"{pods} with flavor {name}" for name, pods in room.items())
                lacks = "quota" if code is Code.WAITING_FOR_QUOTA else "room"
                more = counted(podset.count - sum(room.values()), "more pod")
                text = f"{lacks} for {more} of podset {podset.name} is needed; split over flavors, {fits} fit"
                details = {"podset": podset.name, "pods": podset.count, "room": room}
                return Reason(code, text, details)
        text = "no split over flavors fits, although each flavor has room for some of the pods"
        return Reason(code, text)


# ---- Numbers of pods


@dataclass(eq=False, slots=True)
class SizeSearch:
    """Searches for the gangs of one cycle, which acts on the outcome.

    Attributes:
        chooser: can be another where a cycle is repeated or looks ahead.
        doubtful: uids of gangs, to which it adds those whose part is not proved to be the largest.
    """

    chooser: FlavorChooser
    classes: GangClasses
    strict: StrictFifoHeads
    limits: GangLimits
    solver: Solver
    doubtful: set[str]

    def outcome(self, gang: Candidate) -> Outcome:
        """The outcome of a gang: with all its pods, or else with the largest admissible part of them."""
        if not shrinks(gang.pending.workload):
            return self._ask(gang)
        if self.limits.too_large(gang.pending.workload):
            return self._largest(gang)
        outcome = self._ask(gang)
        return self._largest(gang) if isinstance(outcome, Refuted) else outcome

    def instead(self, gang: Candidate, leased: GangRequest) -> Fit | None:
        """A start now of a gang that has a lease, under a choice of flavors that it prefers to waiting for the lease."""
        asked, more = self._open(gang)
        outcome = self.chooser.choose(gang.pending, gang.queue, asked, leased, more)
        return outcome if isinstance(outcome, Fit) else None

    def smallest(self, gang: Candidate) -> Candidate:
        """A gang with the fewest pods with which it may start."""
        if not shrinks(gang.pending.workload):
            return gang
        part = replace(gang.pending, workload=smallest(gang.pending.workload))
        return self.classes.candidate(part, gang.queue)

    def may_fit_in_turn(self, gang: Candidate, queue: ClusterQueue) -> bool:
        """Whether the ends of time slices can start a gang, as far as sums decide."""
        gang = self.smallest(gang)
        kind, priority = gang.gang_class, gang.pending.workload.priority
        if not kind.options.complete or queue.split_flavors:
            return True  # not all its choices of flavors are among its requests
        if priority > kind.no_turn:
            state = self.chooser.state
            if any(may_fit_in_turn(state, request, queue) for request in gang.requests):
                return True
            kind.no_turn = priority
        return False

    def never(self, gang: Candidate, *, nodes: bool) -> bool:
        """Whether not even the fewest pods of a gang would start on empty nodes and with unused quota.

        Args:
            gang: a pending gang.
            nodes: whether the nodes count; otherwise quota alone does.
        """
        gang = self.smallest(gang)
        kind = gang.gang_class
        if kind.never is None:
            kind.never = not kind.requests or self._never(gang, nodes=nodes)
        return kind.never

    def _never(self, gang: Candidate, *, nodes: bool) -> bool:
        pending, queue = gang.pending, gang.queue
        whole = self._all_beyond(gang, nodes=nodes)
        if not whole or queue is None or not queue.split_flavors:
            return whole
        refuted = self.chooser.choose(pending, queue, gang.requests) if nodes else None
        return isinstance(refuted, Refuted) and self._never_split(gang, refuted)

    def _never_split(self, gang: Candidate, refuted: Refuted) -> bool:
        """Whether a gang that never fits one choice of flavors does not fit split over several either, those that heads hold back included."""
        queue, options = gang.queue, gang.gang_class.options
        if queue is None or not queue.split_flavors:
            return True
        found = split(self.chooser, gang.pending, queue, options, lambda _: True, refuted)
        return isinstance(found, Refuted) and found.why[0].never_fits

    def _all_beyond(self, gang: Candidate, *, nodes: bool) -> bool:
        """Whether each choice of flavors has never enough quota, or never a place."""
        queue, options = gang.queue, gang.gang_class.options
        beyond = partial(self.chooser.beyond, queue=queue, nodes=nodes)
        if queue is None or options.complete:
            return all(map(beyond, gang.requests))
        walk = self.chooser.ever_possible(gang.pending, queue, options, nodes=nodes)
        return all(map(beyond, walk)) and not walk.ended

    def _ask(self, gang: Candidate) -> Outcome:
        """The outcome of a gang with exactly these pods.

        Heads hold back all choices only of a gang that never fits: it is asked for its reason.
        """
        pending, queue, kind = gang.pending, gang.queue, gang.gang_class
        asked, more = self._open(gang)
        if not asked and (more is None or more.impossible):
            asked = [template for _, template in kind.requests]
            more = None if more is None else kind.options
        outcome = self.chooser.choose(pending, queue, asked, None, more)
        if not isinstance(outcome, Fit) and queue is not None and queue.split_flavors:

            def usable(choice: Choice) -> bool:
                return self.strict.ahead(queue, choice.values()) is None

            outcome = split(self.chooser, pending, queue, kind.options, usable, outcome)
        if isinstance(outcome, Refuted) and outcome.why[0].never_fits:
            return self._unless_held_back(gang, outcome)
        return outcome

    def _open(self, gang: Candidate) -> tuple[list[GangRequest], Options | None]:
        """The requests of a gang under the choices of flavors that no head holds back; if they are many, the first ones, and its open flavors."""
        queue, kind = gang.queue, gang.gang_class
        requests = [
            d for choice, d in kind.requests if self.strict.ahead(queue, choice.values()) is None
        ]
        if queue is None or kind.options.complete:
            return requests, None
        more = self.strict.open(queue, kind.options)
        if not requests and not more.impossible:
            first, workload = next(more.choices()), gang.pending.workload
            flavors = more.flavors_by_podset(first, queue, workload)
            requests.append(request_of(self.classes.problem, gang.pending, queue, flavors))
        return requests, more

    def _unless_held_back(self, gang: Candidate, refuted: Refuted) -> Refuted:
        """The refutation of a gang that never fits under the choices that are open to it.

        It waits behind a head if it could ever fit under a choice of flavors that the head holds back, or split over several.
        """
        queue, options = gang.queue, gang.gang_class.options
        beyond = partial(self.chooser.beyond, queue=queue)
        first: BlockingHead | None = None
        requests: Iterable[GangRequest] = gang.requests
        if queue is not None and not options.complete:
            requests = chain(requests, self.chooser.ever_possible(gang.pending, queue, options))
        for request in requests:
            head = self.strict.ahead(queue, request.flavor_names)
            if head is None:
                continue
            first = first or head
            if not beyond(request):
                return Refuted((behind(head.ref), *refuted.why))
        if first is not None and not self._never_split(gang, refuted):
            return Refuted((behind(first.ref), *refuted.why))
        return refuted

    def learn(self, pending: Pending, kind: GangClass, outcome: Outcome) -> None:
        """Keep for the equal gangs that follow what is known of this one."""
        if isinstance(outcome, Refuted):
            kind.refute(pending.workload, outcome.why)
        elif isinstance(outcome, Unknown):
            least = length_of(pending.workload) if outcome.beside_planned else 0.0
            kind.leave_open(pending, outcome.alarm, least)

    def _largest(self, gang: Candidate) -> Outcome:
        """The outcome of the largest admissible part of a gang."""
        pending = gang.pending
        outcomes: dict[PodCounts, Outcome] = {}

        def fits(counts: PodCounts) -> bool:
            part = with_counts(pending, counts)
            # With the fewest pods, only a gang that never fits is over a limit here.
            if counts != fewest and self.limits.too_large(part.workload):
                return False
            candidate = self.classes.candidate(part, gang.queue)
            known = candidate.gang_class
            if (refusal := candidate.refusal) is not None:
                outcomes[counts] = Refuted(refusal)
            elif known.open(part):
                outcomes[counts] = Unknown(known.alarm)
            else:
                outcomes[counts] = self._ask(candidate)
                self.learn(part, known, outcomes[counts])
            return isinstance(outcomes[counts], Fit | FitsAfterEviction)

        choices = [admissible(podset) for podset in pending.workload.podsets]
        fewest = tuple(counts[0] for counts in choices)
        search = Largest(choices, fits, whole=False)
        counts = search.find()
        unknown = [o for o in outcomes.values() if isinstance(o, Unknown)]
        last_try = pending.budget >= self.solver.limits.max_budget and not self.solver.limited
        if unknown and (counts is None or not last_try):
            return unknown[0]
        if counts is None:
            (least,) = (o for o in outcomes.values() if isinstance(o, Refuted))
            return Refuted(tuple(at_least(why, choices) for why in least.why))
        if unknown or not search.exact:
            self.doubtful.add(pending.workload.uid)
        return outcomes[counts]
