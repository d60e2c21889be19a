"""Whom a gang may evict, and why: Kueue's policies within a ClusterQueue, across its cohorts, and by shares.

*Within* the ClusterQueue by ``withinClusterQueue``. From *other* ClusterQueues of the cohort tree by ``reclaimWithinCohort``,
only while they use more than their own (:mod:`queuectl.planner.preempt.order`), and only gangs that use what the preemptor contends for:

- *by its place in the tree*: where the preemptor's queue, or a cohort it is in, has quota of its own for it, whoever uses
  that quota from outside may go, though the preemptor borrows within the cohort;
- *while it borrows*, by ``borrowWithinCohort``: gangs of lower priority, up to the threshold;
- *without borrowing*: anybody else the policy names, if the preemptor's queue is then within its nominal quota. A queue that
  uses all of that already may not ask for it, unless it may preempt to borrow.

*Idle* gangs yield to higher priorities whatever these policies say (:mod:`queuectl.planner.preempt.idle`). They are asked first: if
they alone make room, nobody who works goes. If not, they stand beside the others as candidates that no rule about the use of
queues, or about shares, holds back: they leave after all others of their side of the tree. Nobody takes one who could take the
place back at once: an older equal where the queue lets newer ones be evicted or is strict, or, for a gang that borrows, one whose queue
may reclaim what it lent.

A gang that is not ``preemptible`` may leave only for another ClusterQueue that reclaims what its own borrows, and only
where its own allows that (``preemption_opt_out``).

Where fair sharing is on, shares decide instead of the last three (:mod:`queuectl.planner.preempt.fair`). A queue may also have its gangs
evict others that are within their nominal quota, if quota is not what they lack but room (``evictWithinNominal``).

What these rules allow is a list of *schemes*, each with its candidates and terms. Of the first schemes that make room at
all the least victims are taken; later ones are looked at only where earlier ones cannot help.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from queuectl.domain.queues import (
    ClusterQueue,
    QueueingStrategy,
    ReclaimWithinCohort,
    WithinClusterQueue,
)
from queuectl.domain.rules import FairStrategy
from queuectl.domain.snapshot import Admitted
from queuectl.domain.workload import Workload
from queuectl.planner.capacity.state import State
from queuectl.planner.preempt.comeback import Comeback, Place
from queuectl.planner.preempt.contest import contest_of
from queuectl.planner.preempt.idle import Candidates, anybody_yields
from queuectl.planner.preempt.prospect import Prospect
from queuectl.planner.preempt.roster import Roster, bench_of, roster_of, staying
from queuectl.planner.preempt.scheme import Kind, Scheme
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.topology import Ints, Mask
from queuectl.planner.quota.tree import FlavorResource, Pool


def schemes(
    state: State,
    request: GangRequest,
    queue: ClusterQueue,
    candidates: Candidates = Candidates.LEGAL,
) -> list[list[Scheme]]:
    """Whom ``request`` may evict, as alternatives: first those that are looked at together, then those for want of them.

    Args:
        state: capacity and quota at this point of the walk.
        request: of a gang that waits; of a repair, which is charged nothing and takes nobody for idleness.
        queue: the ClusterQueue whose policies count.
        candidates: who of them is asked.
    """
    policy = _policy_of(state, request, queue, candidates)
    if not policy.conceivable():
        return []
    found = [policy.idle_alone()] if policy.idle.any() else []
    if candidates is Candidates.LEGAL:
        found += policy.by_share() if policy.fair else policy.classic()
    return found


def allowed(state: State, request: GangRequest, queue: ClusterQueue) -> frozenset[str]:
    """Uids of all gangs that some rule lets ``request`` evict, whether or not their exits would be enough."""
    policy = _policy_of(state, request, queue, Candidates.LEGAL)
    found = policy.by_share() if policy.fair else policy.classic()
    together = (scheme for alternatives in found for scheme in alternatives)
    return frozenset(gang.workload.uid for scheme in together for gang in scheme.bench.gangs)


def within_nominal(
    state: State, request: GangRequest, queue: ClusterQueue, other: str
) -> str | None:
    """The ClusterQueue ``other``, or the first cohort above it, that uses no more than its own of what ``request`` lacks.

    None where each of them does: what they use beyond that may be reclaimed.
    """
    policy = _policy_of(state, request, queue, Candidates.LEGAL)
    meeting = policy.contest.meeting(other)
    pools = meeting.below if meeting is not None else ()
    checked = pools[:1] if policy.fair else pools
    return next((pool.name for pool in checked if not policy.all_over((pool,))), None)


def would_return(state: State, request: GangRequest, queue: ClusterQueue, gang: Admitted) -> bool:
    """Whether a gang of another ClusterQueue could come back within the nominal quota of its own, and evict ``request`` then."""
    policy = _policy_of(state, request, queue, Candidates.LEGAL)
    roster = policy.roster
    found = [at for at, other in enumerate(roster.gangs) if other.workload == gang.workload]
    pools = policy.contest.use.pools
    names = {at: name for name, at in roster.queues.items()}
    return any(policy.settled(pools[names[int(roster.owner[at])]])[at] for at in found)


def _policy_of(
    state: State, request: GangRequest, queue: ClusterQueue, candidates: Candidates
) -> _Policy:
    dry = candidates is Candidates.DRY_RUN
    contest = contest_of(state, request, queue.name)
    waits = request.queue is not None
    idlers = waits and anybody_yields(state.problem, request.pending.workload, queue, dry=dry)
    names: tuple[str, ...] = (queue.name,)
    reclaims = queue.reclaim_within_cohort is not ReclaimWithinCohort.NEVER
    if len(contest.path) > 1 and (idlers or reclaims or queue.evicts_within_nominal):
        names = contest.path[-1].queues
    roster = roster_of(state.problem, names)
    idle = np.zeros(len(roster.gangs), dtype=np.bool_)
    if idlers:
        idle = _yielding(roster, queue, request.pending.workload, dry=dry) & staying(state, roster)
    guarded = _guarded(state, roster, queue, idle)
    return _Policy(state, request, queue, contest, roster, idle, guarded)


def _yielding(roster: Roster, queue: ClusterQueue, preemptor: Workload, *, dry: bool) -> Mask:
    """Gangs of a roster that yield to a preemptor for being idle, less those that would come back before it. Shape (C,)."""
    yields = roster.yields_dry if dry else roster.yields
    idle = yields <= preemptor.priority
    evicts = queue.within_cluster_queue is WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY
    if evicts or queue.strategy is QueueingStrategy.STRICT_FIFO:
        equal = (roster.owner == roster.queues[queue.name]) & (
            roster.priority == preemptor.priority
        )
        idle &= ~(equal & (roster.queued_at <= preemptor.queued_at))
    return idle


def _guarded(state: State, roster: Roster, queue: ClusterQueue, idle: Mask) -> Mask:
    """Idle gangs of other queues that could take back what a borrower got of them. Shape (C,)."""
    if not idle.any():
        return idle
    known = state.problem.snapshot.config.cluster_queues
    reclaims = [
        name in known
        and name != queue.name
        and known[name].reclaim_within_cohort is not ReclaimWithinCohort.NEVER
        for name in roster.queues
    ]
    return idle & np.array(reclaims, dtype=np.bool_)[roster.owner]


def _above(roster: Roster, place: Place | None, policy: WithinClusterQueue) -> Mask:
    """Gangs to which one at this place of their ClusterQueue yields. Shape (C,)."""
    if place is None or policy is WithinClusterQueue.NEVER:
        return np.zeros(len(roster.gangs), dtype=np.bool_)
    priority, queued_at = place[0], -place[1]
    higher: Mask = roster.priority > priority
    if policy is WithinClusterQueue.LOWER_PRIORITY:
        return higher
    older: Mask = (roster.priority == priority) & (roster.queued_at < queued_at)
    return higher | older


@dataclass(frozen=True, eq=False, slots=True)
class _Policy(Prospect):
    """One preemptor against the gangs of a roster.

    Attributes:
        guarded: those of the idle ones that it may take only without borrowing. Shape (C,).
    """

    guarded: Mask

    def idle_alone(self) -> list[Scheme]:
        """Gangs that do nothing, and nobody else."""
        return self._with_idle(np.zeros(len(self.roster.gangs), dtype=np.int64))

    def classic(self) -> list[list[Scheme]]:
        kinds = self._within()
        if self.queue.reclaim_within_cohort is not ReclaimWithinCohort.NEVER:
            self._reclaim(kinds)
        found = self._with_idle(np.where(kinds == Kind.WITHOUT_BORROWING, Kind.NEVER, kinds))
        others = (kinds == Kind.WITHOUT_BORROWING) | (kinds == Kind.WHILE_BORROWING)
        if others.any() and self.may_go_without_borrowing():
            found.append(self._scheme(kinds, borrows=False))
        return [found, *self._for_room(kinds)]

    def by_share(self) -> list[list[Scheme]]:
        strategies = self.state.problem.snapshot.config.rules.fair_sharing
        kinds = self._within()
        room = list(self._for_room(kinds))
        if self.queue.reclaim_within_cohort is not ReclaimWithinCohort.NEVER:
            self._share(kinds)
        if not (kinds > Kind.WITHIN).any():
            return [self._with_idle(kinds), *room]
        tried = (strategies[: n + 1] for n in range(len(strategies)))
        return [*(self._with_idle(kinds, some) for some in tried), *room]

    def _with_idle(self, kinds: Ints, strategies: tuple[FairStrategy, ...] = ()) -> list[Scheme]:
        """These candidates and those who are idle; some of these only for a preemptor that does not borrow."""
        found = [self._scheme(kinds, strategies=strategies)]
        if self.guarded.any():
            found.append(self._scheme(kinds, borrows=False, strategies=strategies))
        return found

    def _scheme(
        self, kinds: Ints, *, borrows: bool = True, strategies: tuple[FairStrategy, ...] = ()
    ) -> Scheme:
        yields = self.idle & ~self.guarded if borrows else self.idle
        kinds = np.where(yields, Kind.IDLE, kinds)
        legal = (kinds != Kind.NEVER) & staying(self.state, self.roster)
        bench = bench_of(self.roster, legal, self.state.problem.snapshot.now)
        return Scheme(self.contest, bench, kinds[legal], self._comeback(), borrows, strategies)

    def _comeback(self) -> Comeback:
        return Comeback(self.state, self.preemptor, self._uphill())

    def _uphill(self) -> bool:
        """Whether another queue of the tree reclaims from higher ones too."""
        known = self.state.problem.snapshot.config.cluster_queues
        return any(
            known[name].reclaim_within_cohort is ReclaimWithinCohort.ANY
            for name in self.roster.queues
            if name in known and name != self.queue.name
        )

    # Within the ClusterQueue.

    def _within(self) -> Ints:
        """Candidates of the preemptor's own queue."""
        roster, policy = self.roster, self.queue.within_cluster_queue
        kinds = np.zeros(len(roster.gangs), dtype=np.int64)
        own = roster.owner == roster.queues[self.queue.name]
        legal = roster.priority < self.preemptor.priority
        if policy is WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY:
            equal = roster.priority == self.preemptor.priority
            legal |= equal & (roster.queued_at > self.preemptor.queued_at)
        if policy is not WithinClusterQueue.NEVER:
            kinds[own & legal & ~roster.reclaim_only] = Kind.WITHIN
        return kinds

    # Across the cohorts.

    def _reclaim(self, kinds: Ints) -> None:
        advantages = self.advantages()
        for named, pools, level in self._others():
            if not self.all_over(pools):
                continue
            theirs = named & ~self.settled(pools[0])
            if advantages[level]:
                kinds[theirs] = Kind.BY_PLACE
                continue
            kinds[theirs] = Kind.WITHOUT_BORROWING
            if self.queue.preempts_to_borrow:
                low = theirs & (self.roster.priority < self.preemptor.priority)
                if self.queue.borrow_threshold is not None:
                    low &= self.roster.priority <= self.queue.borrow_threshold
                kinds[low] = Kind.WHILE_BORROWING

    def _share(self, kinds: Ints) -> None:
        kind = Kind.BY_PLACE if self.within_nominal() else Kind.BY_SHARE
        for theirs, pools, _ in self._others():
            if self.all_over(pools[:1]):
                settled = self.settled(pools[0], alone=kind is Kind.BY_SHARE)
                kinds[theirs & ~settled] = kind

    def _others(self) -> Iterator[tuple[Mask, tuple[Pool, ...], int]]:
        """Per other queue: its gangs that the policy names and that use what is contended for, and where it is in the tree."""
        roster = self.roster
        legal = np.ones(len(roster.gangs), dtype=np.bool_)
        if self.queue.reclaim_within_cohort is ReclaimWithinCohort.LOWER_PRIORITY:
            legal = roster.priority < self.preemptor.priority
        for name, at in roster.queues.items():
            meeting = self.contest.meeting(name)
            if meeting is not None:
                theirs = legal & (roster.owner == at) & self._using(name)
                if theirs.any():
                    yield theirs, meeting.below, meeting.level

    def _using(self, queue: str) -> Mask:
        """Gangs of a queue that use a contested row."""
        return self._charged(queue, self.contest.rows)

    def _charged(self, queue: str, rows: Iterable[FlavorResource]) -> Mask:
        charged = np.zeros(len(self.roster.gangs), dtype=np.bool_)
        for row in rows:
            amounts = self.roster.quota.get((queue, *row))
            if amounts is not None:
                charged |= amounts > 0
        return charged

    def settled(self, pool: Pool, *, alone: bool = False) -> Mask:
        """Gangs of a ClusterQueue that could come back within its nominal quota and then evict the preemptor.

        Not all of them: what else leaves with them is looked at later (``Foreign.stays_out``).
        """
        roster, comeback = self.roster, self._comeback()
        queue = self.state.problem.snapshot.config.cluster_queues[pool.name]
        borrows = np.zeros(len(roster.gangs), dtype=np.bool_)
        for row in self.contest.rows:
            beyond = self.contest.beyond(pool, row)
            if beyond > 0:
                using = self._charged(pool.name, [row])
                place = None if alone else comeback.settled_above((pool.name, *row), beyond)
                borrows |= using & ~_above(roster, place, queue.within_cluster_queue)
        return ~borrows & comeback.dangerous(queue, roster.priority)

    # For room alone.

    def _for_room(self, kinds: Ints) -> Iterator[list[Scheme]]:
        """Gangs within their queues' nominal quota, for one that has the quota but finds no room."""
        if not (self.queue.evicts_within_nominal and self.request.units and self.within_nominal()):
            return
        if any(True for _ in self.contest.shortages()):
            return
        wider = kinds.copy()
        for name, at in self.roster.queues.items():
            if self.contest.meeting(name) is not None:
                theirs = (self.roster.owner == at) & (kinds == Kind.NEVER)
                theirs &= ~self.roster.reclaim_only
                wider[theirs & (self.roster.priority < self.preemptor.priority)] = Kind.FOR_ROOM
        if (wider == Kind.FOR_ROOM).any():
            yield [self._scheme(wider, borrows=False)]
