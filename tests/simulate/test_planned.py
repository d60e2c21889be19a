"""The planner decides in simulated time: the order, quota, preemption, topology and repair are those of the controller."""

from __future__ import annotations

import gzip
from dataclasses import replace

import pytest

from queuectl.domain.fleet import Fleet
from queuectl.simulate.outcomes import PolicyOutcome
from queuectl.simulate.report import document
from queuectl.simulate.simulation import Order, PlacementRule
from queuectl.simulate.trace import NodeEvent
from tests.simulate.cases import SLICE, outcome, setting, trace, waits

NOTICE = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "Configuration",
    "metadata": {"name": "default"},
    "queuectl": {"evictionGrace": "30s"},
}


def planned(*args: object, order: Order | None = None, **more: object) -> PolicyOutcome:
    return outcome(setting(*args, **more), PlacementRule.PLANNER, order)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [Order.STRICT_FIFO, Order.BEST_EFFORT_FIFO, Order.SJF])
def test_on_equal_nodes_without_a_cohort_the_planner_gives_the_waits_of_the_reference_rule(
    order: Order,
) -> None:
    lines = gzip.decompress(SLICE.read_bytes()).decode().splitlines(keepends=True)
    given = setting({"cluster03": 8}, "".join(lines[:120]))
    by_planner, by_rule = (outcome(given, placement, order) for placement in PlacementRule)
    assert waits(by_planner) == waits(by_rule)
    assert max(waits(by_planner)) > 1000


def test_a_queue_borrows_in_its_cohort_and_the_owner_takes_its_quota_back() -> None:
    """The borrower has saved 20 of its 25 seconds when the owner evicts it, and continues when the owner has ended."""
    jobs = trace("0,100,1,8,a,10", "0,100,1,8,a,10", "25,30,1,8,b,10", more="checkpoint_s")
    found = planned(
        {"a": 1, "b": 1},
        jobs,
        cohort="all",
        preemption={"reclaimWithinCohort": "Any"},
        policy={"reclaimPatienceSeconds": 0},
    )
    assert (found.total.evictions, found.total.lost) == (1, 5 * 8)
    assert sorted(waits(found)) == [0, 0, 30]


def test_a_gang_waits_to_reclaim_as_long_as_its_queue_allows() -> None:
    jobs = trace("0,1000,1,8,a", "0,1000,1,8,a", "100,30,1,8,b")
    found = planned(
        {"a": 1, "b": 1},
        jobs,
        cohort="all",
        preemption={"reclaimWithinCohort": "Any"},
        policy={"reclaimPatienceSeconds": 20},
    )
    assert waits(found)[2] == 20
    assert found.total.lost == 120 * 8


def test_a_gang_of_higher_priority_evicts_one_of_lower_priority() -> None:
    jobs = trace("0,50,1,8,a,0", "10,5,1,8,a,1", more="priority")
    preemption = {"withinClusterQueue": "LowerPriority"}
    found = planned({"a": 1}, jobs, preemption=preemption)
    assert waits(found) == [5, 0]
    assert (found.total.evictions, found.total.lost, found.total.makespan) == (1, 80, 65)


def test_a_gang_that_loses_a_node_continues_from_its_checkpoint_on_another_one() -> None:
    jobs = trace("0,20,1,8,a,4", more="checkpoint_s")
    found = planned({"a": 2}, jobs, events="10,a-000,down\n")
    assert (found.total.evictions, found.total.lost) == (0, 2 * 8)
    assert (waits(found), found.total.makespan) == ([0], 22)


def test_a_gang_without_a_node_to_move_to_is_evicted_and_waits_for_the_node() -> None:
    jobs = trace("0,20,1,8,a,4", more="checkpoint_s")
    found = planned({"a": 1}, jobs, events="10,a-000,down\n15,a-000,up\n")
    assert (found.total.evictions, found.total.lost) == (1, 2 * 8)
    assert (waits(found), found.total.makespan) == ([5], 27)


def test_a_gang_on_a_failed_node_does_no_work_until_its_notice_is_over() -> None:
    """Its notice begins at 10 s and ends at 40 s. The node fails at 20 s and recovers at 30 s."""
    jobs = trace("0,50,1,8,a,0", "10,5,1,8,a,1", more="priority")
    preemption = {"withinClusterQueue": "LowerPriority"}
    events = "20,a-000,down\n30,a-000,up\n"
    found = planned({"a": 1}, jobs, preemption=preemption, events=events, more=[NOTICE])
    assert found.total.lost == 20 * 8
    assert (waits(found), found.total.makespan) == ([25, 30], 95)


def test_a_gang_continues_if_its_node_recovers_before_others_have_left_for_its_lost_pods() -> None:
    jobs = trace("0,50,1,8,a,1", "0,90,1,8,a,0", more="priority")
    preemption = {"withinClusterQueue": "LowerPriority"}
    events = "20,a-000,down\n25,a-000,up\n"
    found = planned({"a": 2}, jobs, preemption=preemption, events=events, more=[NOTICE])
    assert found.runs[0].lost == 20 * 8
    assert found.runs[0].finished_at == 75


def test_a_node_takes_gangs_of_a_flavor_once_it_has_its_labels() -> None:
    """The node has no labels of the flavor until 10 s, as before a controller has found its GPUs."""
    given = setting({"a": 2}, trace("0,20,1,8,a", "0,20,1,8,a"))
    first, second = given.snapshot.fleet.nodes
    fleet = Fleet((first, replace(second, labels={})))
    event = NodeEvent(10.0, second.name, up=True, record=second)
    late = replace(given, snapshot=replace(given.snapshot, fleet=fleet), events=(event,))
    found = outcome(late, PlacementRule.PLANNER)
    assert waits(found) == [0, 10]


def test_a_limit_ends_a_job_before_its_work_is_done() -> None:
    assert planned({"a": 1}, trace("0,50,1,8,a,20", more="limit_s")).total.completion == 20


@pytest.mark.parametrize("placement", list(PlacementRule))
def test_jobs_that_never_fit_do_not_delay_others(placement: PlacementRule) -> None:
    jobs = trace("0,5,1,9,a", "0,5,3,8,a", "1,5,1,8,a", "1,5,1,8,unknown")
    found = outcome(setting({"a": 2}, jobs), placement, Order.STRICT_FIFO)
    total = document(found)
    assert [total[key] for key in ("jobs", "finished", "skipped", "neverFit")] == [4, 1, 1, 2]
    assert total["meanWaitSeconds"] == 0


def test_a_required_topology_level_that_no_domain_has_never_fits() -> None:
    jobs = trace(
        "0,5,2,8,a,kubernetes.io/hostname",
        "0,5,2,4,a,kubernetes.io/hostname",
        more="topology_level",
    )
    found = planned({"a": 2}, jobs)
    assert [job.gpus for job in found.never_fit] == [16]
    assert waits(found) == [0]


def test_two_simulations_give_the_same_outcome() -> None:
    lines = gzip.decompress(SLICE.read_bytes()).decode().splitlines(keepends=True)
    given = setting({"cluster03": 10}, "".join(lines[:40]))
    first, second = (document(outcome(given, PlacementRule.PLANNER)) for _ in range(2))
    assert first == second


def _limit(most: int) -> dict[str, object]:
    settings = {"maxPending": most}
    return {"apiVersion": "queuectl.dev/v1", "kind": "Configuration", "queuectl": settings}


@pytest.mark.parametrize("most", [1, 2, 25_000])
def test_the_limit_of_pending_gangs_delays_no_gang_that_fits(most: int) -> None:
    """The others are considered as soon as the oldest ones have started."""
    found = planned({"a": 4}, trace(*["0,10,1,8,a"] * 4), more=[_limit(most)])
    assert waits(found) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("most", "waited"), [(1, [0, 10, 20, 29]), (2, [0, 10, 30, 19]), (3, [0, 20, 30, 9])]
)
def test_a_gang_beyond_the_limit_is_not_considered_whatever_its_priority(
    most: int, waited: list[float]
) -> None:
    """The last one has the highest priority."""
    rows = ["0,10,1,8,a,0"] * 3
    jobs = trace(*rows, "1,10,1,8,a,9", more="priority")
    assert waits(planned({"a": 1}, jobs, more=[_limit(most)])) == waited
