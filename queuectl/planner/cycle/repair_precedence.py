"""Precedence between broken gangs and pending gangs.

A gang that lost nodes runs: it holds its quota and its place, so it is repaired before any pending gang is considered. Only a
gang that starts by evicting it must not be delayed by its repair. If a pending gang finds neither room nor victims
alongside the repairs, those of gangs which policy lets it evict are undone, and it is considered again. If it then succeeds, starting now or
with victims, the broken gangs are repaired again on what is left, as far as they are not its victims; a repair that no
longer fits ends in an eviction. If it does not, the repairs stand as they were. So no gang is repaired in one cycle and
evicted for a known preemptor in the next.
"""

from __future__ import annotations

from contextlib import ExitStack
from weakref import WeakMethod

from queuectl.domain.plan import Eviction, Proof
from queuectl.planner.capacity.node_counts import TentativeAdmission, short_nodes
from queuectl.planner.capacity.state import HeldCapacity
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.preempt.rules import evictable
from queuectl.planner.preempt.running import may_evict
from queuectl.planner.repair import AwaitingRepair, Repaired, repair, repair_order
from queuectl.planner.search.flavor_choice import Fit, FitsAfterEviction, Outcome, Refuted, Unknown
from queuectl.planner.search.gang_classes import Candidate


class Repairs:
    """The repairs of one cycle.

    Attributes:
        repaired: those whose lost pods move now, in the order in which they were considered.
    """

    def __init__(self, cycle: AdmissionCycle) -> None:
        """Repair every broken gang; from here on the cycle can undo repairs."""
        self._cycle = cycle
        self._done: dict[str, Repaired | AwaitingRepair] = {}
        self._changes: dict[str, ExitStack] = {}  # by uid, what a repair has changed in the state
        self._undone = False
        self._repair()
        if self._done:
            cycle.without_repairs = WeakMethod(self._without_repairs)

    @property
    def repaired(self) -> list[Repaired]:
        return [done for done in self._done.values() if isinstance(done, Repaired)]

    def resume(self) -> None:
        """Repair the other gangs on the remaining capacity, if repairs were undone for the last considered gang."""
        if self._undone:
            self._undone = False
            self._repair()

    def _repair(self) -> None:
        """Repair each broken gang that neither has a repair nor leaves: a repair can also evict broken gangs.

        A pod that was added to a broken gang waits for the next plan, because the repair of the gang decides on the domain.
        """
        cycle = self._cycle
        for gang in repair_order(cycle.problem.usage.broken):
            if gang.workload.uid in self._done or cycle.state.leaves(gang):
                continue
            if cycle.ranks.lower(gang.workload, cycle.ranks.refused) is not None:
                continue
            cycle.solver.repair()
            done = repair(cycle.state, gang, cycle.solver)
            if done is None:
                cycle.undecided = True
            elif isinstance(done, Eviction):
                cycle.evicted.append(done)
            else:
                self._record(gang.workload.uid, done)

    def _apply(self, uid: str, repair_result: Repaired | AwaitingRepair) -> None:
        self._changes[uid] = ExitStack()
        for undo in repair_result.changes(self._cycle.state):
            self._changes[uid].callback(undo)

    def _record(self, uid: str, repair_result: Repaired | AwaitingRepair) -> None:
        self._done[uid] = repair_result
        self._apply(uid, repair_result)
        if isinstance(repair_result, AwaitingRepair):
            self._cycle.preempted.extend(repair_result.victims)
            self._cycle.unproved |= repair_result.proof is not Proof.OPTIMAL
            self._cycle.waiting_repairs.append(repair_result.refusal(self._cycle.problem))

    def _without_repairs(self, gang: Candidate, refuted: Refuted) -> Outcome:
        """The outcome for a gang that was refuted alongside the repairs."""
        yielding = self._undoable(self._evictable(gang))
        if not yielding:
            return refuted
        cycle = self._cycle
        undone = {uid: self._done[uid] for uid in yielding}
        for uid in undone:
            self._changes.pop(uid).close()
        known = cycle.classes.set_aside()
        outcome = cycle.sizing.outcome(gang)
        waits = (
            isinstance(outcome, FitsAfterEviction) and cycle.waits(outcome, gang.queue) is not None
        )
        if isinstance(outcome, Fit | FitsAfterEviction) and not waits and self._others_stand():
            self._forget(undone)
            cycle.classes.forget_refusals()
            self._undone = True
            return outcome
        cycle.classes.put_back(known)
        for uid, done in undone.items():
            self._apply(uid, done)
        cycle.unproved |= isinstance(outcome, Unknown)
        return refuted

    def _others_stand(self) -> bool:
        """Whether all that the cycle has decided still has room and quota later, without what the victims of undone repairs would free."""
        state, later = self._cycle.state, self._cycle.state.later
        decided: list[HeldCapacity | TentativeAdmission] = [*state.held.values(), *state.admissions]
        for each in decided:
            queue, rows = each.request.queue, each.request.charges
            if queue is not None and any(later.quota.left(queue, row) < 0 for row in rows):
                return False
            if short_nodes(later.free, each.request.pods, each.node_counts).size:
                return False
        return True

    def _undoable(self, uids: list[str]) -> list[str]:
        """Of some repairs, those that can be undone together: no reservation of another gang needs their victims to leave."""
        others = {uid: named for uid, named in self._cycle.state.awaited.items() if uid not in uids}
        needed = {victim for named in others.values() for victim in named}
        found = [uid for uid in uids if needed.isdisjoint(self._done[uid].evicts)]
        return found if len(found) == len(uids) else self._undoable(found)

    def _forget(self, undone: dict[str, Repaired | AwaitingRepair]) -> None:
        cycle = self._cycle
        cycle.preempted[:] = [p for p in cycle.preempted if p.preemptor not in undone]
        cycle.waiting_repairs[:] = [
            refusal for refusal in cycle.waiting_repairs if refusal.uid not in undone
        ]
        for uid in undone:
            del self._done[uid]

    def _evictable(self, candidate: Candidate) -> list[str]:
        """Of the repaired gangs, those that policy lets this one evict."""
        pending, queue = candidate.pending, candidate.queue
        if queue is None or not may_evict(self._cycle.problem, pending.workload, queue):
            return []
        state = self._cycle.state
        with state.before_repairs():
            legal = {
                uid for request in candidate.requests for uid in evictable(state, request, queue)
            }
        return [uid for uid in self._done if uid in legal]
