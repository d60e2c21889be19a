"""Planned starts when the solver has no time for an answer: they are kept where they still fit, and else kept in mind."""

from __future__ import annotations

from dataclasses import replace

from queuectl.domain.plan import ScheduledGang
from queuectl.domain.snapshot import Admitted, Pending, Snapshot, SolverLimits
from queuectl.domain.workload import Duration, Workload
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner.backfill_clock import line
from tests.planner.build import NOW, gang, holding, node, podset, world

NO_TIME = SolverLimits(deterministic_time=0.0)
NODES = (node("n0", "r", gpu=3, cpu=2), node("n1", "r", gpu=2, cpu=3))


def pair() -> Workload:
    """Two sorts of pods: placed one after the other, the first takes what the second needs."""
    made = gang(
        "pair",
        podset("a", 2, gpu=1, cpu=1),
        podset("b", 1, gpu=1, cpu=2),
        podset("c", 1, gpu=2, cpu=1),
    )
    return replace(made, duration=Duration(100.0, enforced=True))


def cluster(ends: float) -> Snapshot:
    one = gang("busy", podset(count=1, gpu=1, cpu=1))
    busy: Admitted = replace(holding(one, {"n0": 1}), ends_at=NOW + ends, end_enforced=True)
    return world(NODES, [pair()], [busy], line())


def next_plan(ends: float) -> tuple[ScheduledGang, ScheduledGang]:
    """The planned start of a plan, and that of the next one, which has no time for a search; the end of the gang before it moves."""
    snapshot = cluster(100)
    (first,) = plan(snapshot).planned
    waits = Pending(pair(), planned_start=first.start)
    later = replace(cluster(ends), pending=(waits,), limits=NO_TIME)
    made = plan(later)
    assert verify(later, made) == ()
    (second,) = made.planned
    return first, second


def test_a_planned_start_stays_where_it_still_fits() -> None:
    first, second = next_plan(ends=100)
    assert second == first


def test_a_planned_start_that_fits_no_longer_keeps_its_latest_time_until_a_search_has_an_answer() -> (
    None
):
    first, second = next_plan(ends=500)
    assert (second.is_current, second.slip, second.start) == (False, None, first.start)


def test_without_a_planned_start_before_none_is_made() -> None:
    assert plan(replace(cluster(100), limits=NO_TIME)).planned == ()
