"""When the controller plans again because an expected end passes: only an end on which a planned start depends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuectl.domain.plan import Plan
from queuectl.domain.reservations import ReservationState
from queuectl.domain.snapshot import Admitted, CapacityLease
from queuectl.planner import plan
from queuectl.planner.backfill.timeline import next_expected_end
from queuectl.planner.preempt.protections import next_plan_due
from tests.planner.backfill_clock import job, line
from tests.planner.build import NOW, gang, holding, node, placed, podset, world

NODES = tuple(node(f"n{number}", gpu=1) for number in range(3))


def on(name: str, ends: float | None, *, enforced: bool = False, leaving: bool = False) -> Admitted:
    held = holding(job(f"on-{name}", 1, None), {name: 1}, leaving=leaving)
    return replace(held, ends_at=None if ends is None else NOW + ends, end_enforced=enforced)


@pytest.mark.parametrize(
    ("running", "at"),
    [
        pytest.param([on("n0", 100), on("n1", 200)], 100, id="the next one"),
        pytest.param([on("n0", 100, enforced=True), on("n1", 200)], 200, id="not a limit"),
        pytest.param([on("n0", 100, leaving=True), on("n1", 200)], 200, id="not a gang that stops"),
        pytest.param([on("n0", 100, enforced=True)], None, id="limits alone"),
        pytest.param([on("n0", None)], None, id="no planned start"),
    ],
)
def test_the_next_expected_end_is_that_of_a_gang_before_a_planned_start(
    running: list[Admitted], at: float | None
) -> None:
    snapshot = world(NODES, [job("large", 3, 60)], running, line())
    due = next_expected_end(snapshot, plan(snapshot))
    assert due == (None if at is None else NOW + at)


def test_an_end_after_the_last_planned_start_does_not_count() -> None:
    running = [on("n0", 100, enforced=True), on("n1", 900)]
    snapshot = world(NODES, [job("two", 2, 60)], running, line())
    made = plan(snapshot)
    assert [planned.start.at for planned in made.planned] == [NOW + 100]
    assert next_expected_end(snapshot, made) is None


@pytest.mark.parametrize(("begins", "at"), [(1000, 100), (50, None)])
def test_an_end_before_a_reservation_begins_counts(begins: float, at: float | None) -> None:
    """If the gang continues, the Reservation gets other nodes before it begins."""
    snapshot = world(NODES, (), [on("n0", 100)])
    coming = ReservationState("talk", NOW + begins, NOW + 5000, (("n0", 1),))
    due = next_expected_end(snapshot, Plan(reserved=(coming,)))
    assert due == (None if at is None else NOW + at)


def test_a_gang_that_moves_loses_its_new_place_when_its_lease_ends() -> None:
    mover = gang("mover", podset(gpu=1))
    lease = CapacityLease(placed(mover, {"n1": 1}), (), NOW, NOW + 600)
    moving = replace(holding(mover, {"n0": 1}, leaving=True), returns=True, lease=lease)
    snapshot = world(NODES[:2], [gang("waits", podset(gpu=1), priority=-1)], [moving])
    made = plan(snapshot)
    assert not made.admitted
    assert next_plan_due(snapshot, made) == NOW + 600
