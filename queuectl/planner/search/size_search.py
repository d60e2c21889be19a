"""The number of pods that a gang gets: all, else the largest number that may start (partial admission).

A proof for one gang is kept for the equal ones that follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from queuectl.domain.queues import ClusterQueue
from queuectl.domain.snapshot import Pending
from queuectl.planner.order.limits import GangLimits
from queuectl.planner.order.pending_gangs import length_of
from queuectl.planner.order.queue_order import BlockingHead, StrictFifoHeads, behind
from queuectl.planner.problem.flavors import Choice
from queuectl.planner.problem.fleet import NodeRoom
from queuectl.planner.problem.parts import (
    admissible,
    at_least,
    shrinks,
    smallest,
    with_counts,
)
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.search.count_search import Largest, PodCounts
from queuectl.planner.search.flavor_choice import (
    Fit,
    FitsAfterEviction,
    FlavorChooser,
    Outcome,
    Refuted,
    Unknown,
)
from queuectl.planner.search.gang_classes import Candidate, GangClass, GangClasses
from queuectl.planner.search.split import split
from queuectl.planner.solver.solver import Solver


@dataclass(eq=False, slots=True)
class SizeSearch:
    """Searches for the gangs of one cycle, which acts on the outcome.

    Attributes:
        chooser: can be another where a cycle is repeated or looks ahead.
        doubt: called with each gang whose part is not proved to be the largest.
    """

    chooser: FlavorChooser
    classes: GangClasses
    strict: StrictFifoHeads
    limits: GangLimits
    solver: Solver
    doubt: Callable[[Pending], None]

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
        outcome = self.chooser.choose(gang.pending, gang.queue, self._open(gang), leased)
        return outcome if isinstance(outcome, Fit) else None

    def never(self, gang: Candidate, *, nodes: bool) -> bool:
        """Whether not even the fewest pods of a gang would start on empty nodes and with unused quota.

        Args:
            gang: a pending gang.
            nodes: whether the nodes count; else quota alone does.
        """
        pending, queue = gang.pending, gang.queue
        if shrinks(pending.workload):
            pending = replace(pending, workload=smallest(pending.workload))
            gang = self.classes.candidate(pending, queue)
        kind = gang.known
        if kind.never is None:
            kind.never = not kind.requests or self._never(gang, nodes=nodes)
        return kind.never

    def _never(self, gang: Candidate, *, nodes: bool) -> bool:
        pending, queue, kind = gang.pending, gang.queue, gang.known
        asked = gang.requests
        whole = kind.options.complete and all(
            self._beyond(one, queue, nodes=nodes) for one in asked
        )
        if not whole or queue is None or not queue.split_flavors:
            return whole
        refuted = self.chooser.choose(pending, queue, asked) if nodes else None
        return isinstance(refuted, Refuted) and self._never_split(gang, refuted)

    def _never_split(self, gang: Candidate, refuted: Refuted) -> bool:
        """Whether a gang that never fits one choice of flavors does not fit split over several either, those that heads hold back included."""
        queue, options = gang.queue, gang.known.options
        if queue is None or not queue.split_flavors:
            return True
        found = split(self.chooser, gang.pending, queue, options, lambda _: True, refuted)
        return isinstance(found, Refuted) and found.why[0].never_fits

    def _beyond(self, request: GangRequest, queue: ClusterQueue | None, *, nodes: bool) -> bool:
        """Whether one choice of flavors has never enough quota, or never a place."""
        if not self.chooser.state.quota.ever(request):
            return True
        return nodes and self.chooser.room(request, queue) is NodeRoom.NEVER

    def _ask(self, gang: Candidate) -> Outcome:
        """The outcome of a gang with exactly these pods.

        Heads hold back all choices only of a gang that never fits: it is asked for its reason.
        """
        pending, queue, kind = gang.pending, gang.queue, gang.known
        asked = self._open(gang) or [template for _, template in kind.requests]
        outcome = self.chooser.choose(pending, queue, asked)
        if isinstance(outcome, Refuted) and not kind.options.complete:
            outcome = Unknown()
        if not isinstance(outcome, Fit) and queue is not None and queue.split_flavors:

            def usable(choice: Choice) -> bool:
                return self.strict.ahead(queue, choice) is None

            outcome = split(self.chooser, pending, queue, kind.options, usable, outcome)
        if isinstance(outcome, Refuted) and outcome.why[0].never_fits:
            return self._unless_held_back(gang, outcome)
        return outcome

    def _open(self, gang: Candidate) -> list[GangRequest]:
        """The requests of a gang under the choices of flavors that no head holds back."""
        return [
            d for choice, d in gang.known.requests if self.strict.ahead(gang.queue, choice) is None
        ]

    def _unless_held_back(self, gang: Candidate, refuted: Refuted) -> Refuted:
        """The refutation of a gang that never fits under the choices that are open to it.

        It waits behind a head if it could ever fit under a choice of flavors that the head holds back, or split over several.
        """
        queue, kind = gang.queue, gang.known
        first: BlockingHead | None = None
        for choice, template in kind.requests:
            head = self.strict.ahead(queue, choice)
            if head is None:
                continue
            first = first or head
            if not self._beyond(replace(template, pending=gang.pending), queue, nodes=True):
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
            known = candidate.known
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
        if unknown and (counts is None or pending.budget < self.solver.limits.max_budget):
            return unknown[0]
        if counts is None:
            (least,) = (o for o in outcomes.values() if isinstance(o, Refuted))
            return Refuted(tuple(at_least(why, choices) for why in least.why))
        if unknown or not search.exact:
            self.doubt(pending)
        return outcomes[counts]
