"""The diagnosis of a pending gang: its irreducible conflict and the ranked ways out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from queuectl.domain.diagnosis import Diagnosis, Way
from queuectl.domain.plan import Plan, Proof
from queuectl.domain.snapshot import Snapshot
from queuectl.planner.cache import PlannerCache
from queuectl.planner.explain import usercap
from queuectl.planner.explain.allow import more_quota, one_more_flavor
from queuectl.planner.explain.conflict import conflict_of
from queuectl.planner.explain.ease import (
    coarser_level,
    fewer_pods,
    fewer_rules,
    higher_priority,
)
from queuectl.planner.explain.grow import more_nodes
from queuectl.planner.explain.heal import heal_nodes
from queuectl.planner.explain.known import know, of_plan
from queuectl.planner.explain.leave import holders_withdraw, others_end, those_leaving
from queuectl.planner.explain.moving import others_move
from queuectl.planner.explain.obstacles import obstacle_of
from queuectl.planner.explain.permit import others_evicted
from queuectl.planner.explain.trial import ask, past_heads
from queuectl.planner.explain.turn import Turn, turn_of
from queuectl.planner.explain.usercap import capped
from queuectl.planner.order.order import barred
from queuectl.planner.plan_cycle import begin, turns
from queuectl.planner.problem.partial import smallest
from queuectl.planner.problem.problem import survey
from queuectl.planner.solver.solver import StopSignal

# In the order of what they cost people: nothing, a change of the job, of the queues, of the nodes, of others' work.
_FINDERS: Final[tuple[Callable[[Turn], Iterator[Way]], ...]] = (
    those_leaving,
    coarser_level,
    fewer_pods,
    fewer_rules,
    higher_priority,
    more_quota,
    one_more_flavor,
    heal_nodes,
    more_nodes,
    holders_withdraw,
    others_move,
    others_evicted,
    others_end,
)


def diagnose(
    snapshot: Snapshot,
    uid: str,
    stop: StopSignal | None = None,
    plan: Plan | None = None,
    cache: PlannerCache | None = None,
) -> Diagnosis:
    """Why one pending gang does not start now, and what would let it.

    Pure and deterministic unless stopped. Never needed for a plan: it may be asked at any time, on any snapshot.

    Args:
        snapshot: everything a cycle may look at.
        uid: of a gang among the pending; for any other, the diagnosis is empty.
        stop: lets another thread end it early.
        plan: what was planned from this snapshot, if it is at hand: then nothing is decided twice.
        cache: of earlier calls.
    """
    return next(diagnose_those(snapshot, frozenset({uid}), stop, plan, cache), Diagnosis(uid))


def diagnose_those(
    snapshot: Snapshot,
    uids: frozenset[str],
    stop: StopSignal | None = None,
    plan: Plan | None = None,
    cache: PlannerCache | None = None,
) -> Iterator[Diagnosis]:
    """The same for several gangs in one walk, in the order of their turns."""
    prepared = begin(survey(snapshot, cache), stop)
    if plan is not None and not plan.cut:
        know(prepared.cycle, of_plan(plan))
    left = len(uids)
    turn: Turn | None = None
    for pending in turns(prepared):
        uid = pending.workload.uid
        if uid not in uids:
            continue
        least = smallest(pending.workload)
        if barred(snapshot, pending) is not None or any(prepared.cycle.limits.over_quotas(least)):
            yield Diagnosis(uid)  # its reason says it all
        elif (of_user := capped(prepared.cycle, pending)) is not None:
            yield usercap.diagnosis_of(of_user)
        else:
            turn = turn_of(prepared.cycle, pending, turn)
            yield diagnosis_of(turn)
        left -= 1
        if not left:
            return


def diagnosis_of(turn: Turn) -> Diagnosis:
    """Of the gang whose turn it is."""
    conflict = conflict_of(turn)
    obstacles = tuple(obstacle_of(turn, member) for member in conflict.members)
    ways: list[Way] = []
    for finder in _finders(turn) if conflict.members else ():
        if turn.solver.stop.stopped:
            break
        ways.extend(finder(turn))
    cut = turn.solver.ended()
    proof = Proof.OPTIMAL if conflict.proved else Proof.FEASIBLE
    return Diagnosis(turn.uid, obstacles, tuple(ways), proof, cut)


def _finders(turn: Turn) -> tuple[Callable[[Turn], Iterator[Way]], ...]:
    """All of them; where nothing but StrictFIFO is in its way, only what gets it past the head of the line."""
    if turn.head is not None and ask(turn, past_heads(turn)).fits:
        return (higher_priority,)
    return _FINDERS
