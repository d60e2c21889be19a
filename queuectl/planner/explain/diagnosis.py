"""The diagnosis of a pending gang: its blocking constraints, and the suggested fixes in order of what they cost people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from queuectl.domain.diagnosis import Diagnosis, Obstacle, Way
from queuectl.domain.plan import Plan, Proof
from queuectl.domain.snapshot import Snapshot
from queuectl.planner.cache import PlannerCache
from queuectl.planner.explain import (
    allow_preemption,
    change_nodes,
    change_queue,
    change_request,
    others_leave,
)
from queuectl.planner.explain.constraints import conflict_of, sentence
from queuectl.planner.explain.context import Context, context_of
from queuectl.planner.explain.relaxation import ask, past_heads
from queuectl.planner.explain.remedy import Known, know, of_plan
from queuectl.planner.order.queue_order import barred
from queuectl.planner.plan_cycle import begin, turns
from queuectl.planner.problem.partial import smallest
from queuectl.planner.problem.problem import survey
from queuectl.planner.solver.solver import StopSignal

_Finder = Callable[[Context], Iterator[Way]]

# In the order of what they cost people: nothing, a change of the job, of the queues, of the nodes, of others' work.
_FINDERS: Final[tuple[_Finder, ...]] = (
    others_leave.those_leaving,
    change_request.coarser_level,
    change_request.fewer_pods,
    change_request.fewer_rules,
    change_request.higher_priority,
    change_queue.more_quota,
    change_queue.one_more_flavor,
    change_nodes.repaired_nodes,
    change_nodes.more_nodes,
    others_leave.holders_withdraw,
    others_leave.others_move,
    allow_preemption.others_evicted,
    others_leave.others_end,
)
_FOR_USER: Final[tuple[_Finder, ...]] = (
    change_queue.own_leaving,
    change_queue.fewer_for_user,
    change_queue.higher_cap,
    change_queue.own_end,
)


def diagnose(
    snapshot: Snapshot,
    uid: str,
    stop: StopSignal | None = None,
    plan: Plan | None = None,
    cache: PlannerCache | None = None,
) -> Diagnosis:
    """Why one pending gang does not start now, and what would let it.

    Pure and deterministic unless stopped. No plan depends on it: call it at any time, on any snapshot.

    Args:
        snapshot: everything that a cycle takes into account.
        uid: of a gang among the pending; for any other, the diagnosis is empty.
        stop: lets another thread end it early.
        plan: what was planned from this snapshot, if it is at hand: then most of it is not decided again.
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
    """The same for several gangs in one cycle, in the order of their turns."""
    prepared = begin(survey(snapshot, cache), stop)
    known = of_plan(plan) if plan is not None and not plan.cut else Known({})
    know(prepared.cycle, known)
    left = len(uids)
    for pending in turns(prepared):
        if pending.workload.uid not in uids:
            continue
        least = smallest(pending.workload)
        if barred(snapshot, pending) is not None or any(prepared.cycle.limits.over_quotas(least)):
            yield Diagnosis(pending.workload.uid)  # the reason of its refusal is complete
        else:
            refused = pending.workload.uid in known.refused
            yield _diagnosis_of(context_of(prepared.cycle, pending, refused=refused))
        left -= 1
        if not left:
            return


def _diagnosis_of(ctx: Context) -> Diagnosis:
    """Of the gang whose turn it is."""
    conflict: tuple[Obstacle, ...]
    proof, finders = Proof.OPTIMAL, _FOR_USER
    if over := change_queue.over_caps(ctx):
        conflict = (change_queue.user_sentence(ctx, over),)
    else:
        found = conflict_of(ctx)
        conflict = tuple(sentence(ctx, constraint) for constraint in found.members)
        proof = Proof.OPTIMAL if found.proved else Proof.FEASIBLE
        finders = _FINDERS if conflict else ()
        if conflict and ctx.head is not None and ask(ctx, past_heads(ctx)).fits:
            finders = (change_request.higher_priority,)  # only StrictFIFO blocks it
    ways: list[Way] = []
    for finder in finders:
        if ctx.solver.stop.stopped:
            break
        ways.extend(finder(ctx))
    return Diagnosis(ctx.uid, conflict, tuple(ways), proof, ctx.solver.ended())
