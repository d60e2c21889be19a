"""The blocking constraints of a gang: infeasible together, feasible without any one of them."""

from __future__ import annotations

from hypothesis import HealthCheck, assume, given, settings

from queuectl.domain.diagnosis import Limit
from queuectl.domain.plan import Proof
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.planner import StopSignal, plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.explain import diagnose
from queuectl.planner.explain.context import HOLDERS, GangContext, context_of
from queuectl.planner.explain.diagnosis import conflict_of
from queuectl.planner.explain.fix_checks import FixChecks, of_plan
from queuectl.planner.explain.left_out import status_with
from queuectl.planner.explain.relaxation import as_it_is, ask
from queuectl.planner.plan_cycle import Prepared, begin, one_by_one
from queuectl.planner.problem.problem import survey
from queuectl.planner.solver import Status
from tests.planner.generate import contested, snapshots
from tests.planner.relaxed import fits_without, starts

_SLOW = settings(deadline=None, suppress_health_check=list(HealthCheck))
_ALL = frozenset(Limit) - {Limit.FLEET}


def _single_flavor(snapshot: Snapshot) -> bool:
    return len(snapshot.config.flavors) == 1


@_SLOW
@given(snapshots(gangs=1) | contested())
def test_blocking_constraints_are_minimal_and_sufficient_by_the_planner_on_relaxed_snapshots(
    snapshot: Snapshot,
) -> None:
    assume(_single_flavor(snapshot))
    diagnosis = diagnose(snapshot, "w0")
    members = [o.limit for o in diagnosis.conflict]
    assert diagnosis.proof is Proof.OPTIMAL
    assert bool(members) != starts(snapshot, "w0")
    if not members:
        return
    if members == [Limit.FLEET]:
        assert not fits_without(snapshot, _ALL)
        return
    others = _ALL - set(members)
    assert not fits_without(snapshot, others)
    if members.count(Limit.QUOTA) < 2:  # several rows are dropped one by one, here only together
        for member in members:
            assert fits_without(snapshot, {*others, member}), member


def _turn(prepared: Prepared, pending: Pending) -> GangContext:
    snapshot = prepared.cycle.problem.snapshot
    uid = pending.workload.uid
    known = of_plan(plan(snapshot)).of_others(uid)
    checks = FixChecks(snapshot, uid, StopSignal(), PlannerCache(), known)
    return context_of(prepared.cycle, pending, checks)


@_SLOW
@given(snapshots(gangs=3))
def test_blocking_constraints_behind_other_gangs_are_minimal_too(snapshot: Snapshot) -> None:
    prepared = begin(survey(snapshot))
    for pending in one_by_one(prepared):
        turn = _turn(prepared, pending)
        members, proved = conflict_of(turn)
        assert proved
        assert bool(members) != ask(turn, as_it_is(turn)).fits
        if not members or members[0].limit is Limit.FLEET:
            continue
        assert status_with(turn, members) is Status.REFUTED
        for member in members:
            rest = tuple(m for m in members if m != member)
            assert status_with(turn, rest) is Status.SOLVED, member


@_SLOW
@given(snapshots(gangs=3))
def test_the_use_of_all_gangs_adds_up_to_the_free_capacity_of_the_walk(snapshot: Snapshot) -> None:
    prepared = begin(survey(snapshot))
    for pending in one_by_one(prepared):
        turn = _turn(prepared, pending)
        relaxed = turn.state(HOLDERS, snapshot.config)
        assert (relaxed.free() == prepared.cycle.state.free()).all()
        if turn.queue is not None:
            assert relaxed.quota.left(turn.queue.name) == prepared.cycle.state.quota.left(
                turn.queue.name
            )


@_SLOW
@given(snapshots(gangs=2))
def test_a_diagnosis_is_the_same_every_time(snapshot: Snapshot) -> None:
    assert diagnose(snapshot, "w1") == diagnose(snapshot, "w1")
