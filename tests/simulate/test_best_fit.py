"""The reference rule gives the means that an independent implementation of it has published for the same traces."""

from __future__ import annotations

import pytest

from queuectl.domain.errors import BadInput
from queuectl.simulate.outcomes import PolicyOutcome
from queuectl.simulate.simulation import Order, PlacementRule
from tests.simulate.cases import SLICE, outcome, setting, trace, waits


def reference(
    jobs: bytes | str, nodes: dict[str, int], order: Order, events: str = ""
) -> PolicyOutcome:
    return outcome(setting(nodes, jobs, events=events), PlacementRule.BEST_FIT, order)


@pytest.mark.parametrize(
    ("order", "seconds"),
    [(Order.STRICT_FIFO, 269_554), (Order.SJF, 46_905), (Order.BEST_EFFORT_FIFO, 212_568)],
)
def test_the_mean_wait_of_a_published_trace_is_that_of_the_reference(
    order: Order, seconds: int
) -> None:
    found = reference(SLICE.read_bytes(), {"cluster03": 20}, order)
    assert found.total.waits.finished == 3011
    assert found.total.waits.mean == pytest.approx(seconds, rel=1e-5)


# It runs, does not fit, is small and short, is small and long.
FOUR = trace("0,10,1,8,a", "1,10,2,8,a", "2,2,1,1,a", "3,30,1,1,a")


@pytest.mark.parametrize("placement", list(PlacementRule))
@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (Order.STRICT_FIFO, [0, 9, 18, 17]),
        (Order.BEST_EFFORT_FIFO, [0, 32, 0, 0]),
        (Order.SJF, [0, 9, 0, 17]),
    ],
)
def test_jobs_behind_one_that_does_not_fit_start_by_the_strategy(
    order: Order, expected: list[float], placement: PlacementRule
) -> None:
    assert waits(outcome(setting({"a": 2}, FOUR), placement, order)) == expected


def test_a_job_of_higher_priority_is_first() -> None:
    jobs = trace("0,10,1,8,a,0", "1,10,1,8,a,0", "2,10,1,8,a,5", more="priority")
    assert waits(reference(jobs, {"a": 1}, Order.STRICT_FIFO)) == [0, 19, 8]


def test_a_job_gets_the_node_with_the_fewest_free_gpus() -> None:
    """The two small jobs share a node, so that a completely free one is left."""
    jobs = trace("0,50,1,4,a", "0,50,1,4,a", "1,5,1,8,a")
    assert waits(reference(jobs, {"a": 2}, Order.STRICT_FIFO)) == [0, 0, 0]


def test_a_job_of_several_pods_gets_completely_free_nodes() -> None:
    jobs = trace("0,10,1,2,a", "1,5,2,6,a")
    assert waits(reference(jobs, {"a": 2}, Order.BEST_EFFORT_FIFO)) == [0, 9]


def test_ends_are_before_submissions_at_one_instant() -> None:
    jobs = trace("0,10,1,8,a", "10,3,1,8,a")
    assert waits(reference(jobs, {"a": 1}, Order.STRICT_FIFO)) == [0, 0]


def test_a_failed_node_evicts_its_jobs_and_they_wait_at_their_place() -> None:
    """The job runs 10 s, of which 8 are saved, waits 5 s, and needs 12 s more."""
    jobs = trace("0,20,1,8,a,4", more="checkpoint_s")
    found = reference(jobs, {"a": 1}, Order.STRICT_FIFO, "10,a-000,down\n15,a-000,up\n")
    total = found.total
    assert (total.evictions, total.lost) == (1, 16)
    assert (total.waits.mean, total.completion, total.makespan) == (5, 27, 27)
    assert total.held == 8 * 22


def test_all_changes_of_a_node_at_one_instant_count_in_their_order() -> None:
    events = "10,a-000,down\n10,a-000,up\n10,a-000,down\n20,a-000,up\n"
    found = reference(trace("12,5,1,8,a"), {"a": 1}, Order.STRICT_FIFO, events)
    assert waits(found) == [8]


def test_queues_with_the_same_nodes_share_them_each_within_its_quota() -> None:
    jobs = trace("0,10,1,8,a", "0,10,1,8,a", "0,10,1,8,b")
    given = setting({"a": 1, "b": 1}, jobs, everywhere="ab")
    assert waits(outcome(given, PlacementRule.BEST_FIT)) == [0, 10, 0]


def test_queues_with_some_common_nodes_are_refused() -> None:
    given = setting({"a": 1, "b": 1}, trace("0,1,1,8,a"), everywhere="b")
    with pytest.raises(BadInput, match="ClusterQueues a and b share Node a-000"):
        outcome(given, PlacementRule.BEST_FIT)
