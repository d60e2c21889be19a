"""The reason for which a gang is not ready, and the placement of a gang whose pods run on other nodes than the ledger has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuectl.domain.jobs import JobRecord, PodPhase, PodRecord
from queuectl.domain.quantity import Resources
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, PodShape
from queuectl.state.readiness import not_ready, on_their_nodes

JOB = JobRecord(
    "Job", "a", "train", "u1", 7, 1.0, "q", podsets=(PodSet("main", 3, PodShape(Resources())),)
)
RECORDED = Placement((PodSetPlacement("main", (("n1", 1), ("n2", 1), ("n1", 1)), {"gpu": "a"}),))


def pods(*nodes: str | None) -> list[PodRecord]:
    return [
        PodRecord("a", f"p{number}", f"p{number}", 1, node=node, podset="main")
        for number, node in enumerate(nodes)
    ]


@pytest.mark.parametrize(
    ("job", "cause"),
    [
        (JOB, "missing (if their creation is refused, an Event of the job names the cause)"),
        (replace(JOB, of_pods=True), "missing"),
    ],
    ids=["a controller creates them", "their user creates them"],
)
def test_the_reason_states_where_the_cause_of_missing_pods_is(job: JobRecord, cause: str) -> None:
    ready = replace(pods("n1")[0], ready=True, phase=PodPhase.RUNNING)
    assert not_ready(job, [ready]) == f"2 of 3 pods are not ready: 2 {cause}"


@pytest.mark.parametrize(
    ("nodes", "slots"),
    [
        (("n3", "n1", "n1"), (("n1", 1), ("n3", 1), ("n1", 1))),
        (("n2", "n3", "n1"), (("n1", 1), ("n2", 1), ("n3", 1))),
        (("n3", "n3", "n3"), (("n3", 3),)),
    ],
)
def test_a_slot_that_a_pod_fills_keeps_its_number(
    nodes: tuple[str, ...], slots: tuple[tuple[str, int], ...]
) -> None:
    found = on_their_nodes(RECORDED, JOB, pods(*nodes))
    assert found == Placement((PodSetPlacement("main", slots, {"gpu": "a"}),))
    assert on_their_nodes(found, JOB, pods(*nodes)) is found


def test_a_placement_is_kept_while_not_all_pods_run_on_a_node() -> None:
    elsewhere = pods("n3", "n1", "n1")
    leaving = replace(elsewhere[0], terminating=True)
    failed = replace(elsewhere[0], phase=PodPhase.FAILED)
    for found in (
        pods("n2", "n1", "n1"),
        pods("n3", "n1", None),
        pods("n3", "n1"),
        pods("n3", "n1", "n1", "n2"),
        [leaving, *elsewhere[1:]],
        [failed, *elsewhere[1:]],
    ):
        assert on_their_nodes(RECORDED, JOB, found) is RECORDED


def test_a_placement_without_nodes_is_kept() -> None:
    anywhere = Placement((PodSetPlacement("main", (), pods=3, awaits_nodes=True),))
    assert on_their_nodes(anywhere, JOB, pods("n3", "n1", "n1")) is anywhere
