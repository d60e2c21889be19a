"""An explanation alongside an existing plan searches for no other gang again, where no gang evicts others; its answers are as good."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from queuectl.domain.diagnosis import Diagnosis, apply_all
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import plan
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.cycle import look_ahead
from queuectl.planner.explain import diagnose, diagnose_those
from queuectl.planner.explain.fix_checks import know, of_plan
from queuectl.planner.placement.feasible import Feasibility, decide
from queuectl.planner.plan_cycle import begin, one_by_one
from queuectl.planner.problem.problem import survey
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.search import flavor_choice
from tests.planner.build import gang, node, podset, without_quota, world
from tests.planner.generate import contested, snapshots
from tests.planner.relaxed import helped

_SLOW = settings(deadline=None, suppress_health_check=list(HealthCheck))
RACKS = [node(f"{rack}-{i}", rack, gpu=8) for rack in ("r1", "r2") for i in range(4)]


def _waiting(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(r.uid for r in plan(snapshot).pending if r.lease is None)


def _window(snapshot: Snapshot) -> list[Diagnosis]:
    return list(diagnose_those(snapshot, _waiting(snapshot), plan=plan(snapshot)))


@_SLOW
@given(snapshots(gangs=3) | contested())
def test_a_walk_that_knows_its_plan_repeats_it(snapshot: Snapshot) -> None:
    planned = plan(snapshot)
    prepared = begin(survey(snapshot))
    know(prepared, of_plan(planned))
    for _ in one_by_one(prepared):
        pass
    assert set(prepared.cycle.starting) == {a.uid for a in planned.admitted if not a.repaired}
    assert {(v.victim, v.preemptor) for v in prepared.cycle.preempted} == {
        (v.victim, v.preemptor) for v in planned.preempted
    }
    held = {r.uid: r.lease is not None for r in planned.pending}
    assert {uid: r.lease is not None for uid, r in prepared.cycle.refused.items()} == held


@_SLOW
@given(snapshots(gangs=3) | contested())
def test_every_suggested_fix_alongside_a_plan_makes_the_planner_start_the_gang_or_evict_others_for_it(
    snapshot: Snapshot,
) -> None:
    for diagnosis in _window(snapshot):
        for way in diagnosis.suggested_fixes:
            assert helped(apply_all(way.changes, snapshot), diagnosis.uid), way


@_SLOW
@given(snapshots(gangs=3))
def test_the_blocking_constraints_do_not_depend_on_an_existing_plan(snapshot: Snapshot) -> None:
    for diagnosis in _window(snapshot):
        alone = diagnose(snapshot, diagnosis.uid)
        assert [o.limit for o in diagnosis.conflict] == [o.limit for o in alone.conflict]


@_SLOW
@given(snapshots(gangs=3))
def test_work_shared_within_a_window_changes_no_answer(snapshot: Snapshot) -> None:
    planned = plan(snapshot)
    for diagnosis in _window(snapshot):
        assert diagnosis == diagnose(snapshot, diagnosis.uid, plan=planned)


def test_no_other_gang_is_searched_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three gangs start, the fourth finds no rack."""
    first = [gang(f"w{i}", podset("w", 1, gpu=8), queued_at=float(i)) for i in range(3)]
    last = gang("w3", podset("w", 4, gpu=8, required="rack"), queued_at=9.0)
    snapshot = world(RACKS[:6], [without_quota(one) for one in (*first, last)])
    planned, searched = plan(snapshot), set[str]()

    def noted(state: CycleState, request: GangRequest, *others: Any, **named: Any) -> Feasibility:
        searched.add(request.pending.workload.uid)
        return decide(state, request, *others, **named)

    for module in (flavor_choice, look_ahead):
        monkeypatch.setattr(module, "decide", noted)
    assert diagnose(snapshot, "w3", plan=planned).conflict
    assert searched == {"w3"}
    list(one_by_one(begin(survey(snapshot))))
    assert searched == {"w0", "w1", "w2", "w3"}
