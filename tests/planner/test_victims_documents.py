"""From ordinary objects to victims: protections, times of earlier evictions, repairs, and quota in a cohort."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.objects.times import parse_time
from tests.planner.documents import (
    TOPOLOGY,
    Doc,
    Planned,
    cluster_queue,
    cohort,
    flavor,
    nodes,
    planned,
    workload,
)

START = parse_time("2026-01-01T00:00:00Z")  # of all running gangs
HOUR = 3600.0
LOWER = {"withinClusterQueue": "LowerPriority"}
FLEET = [TOPOLOGY, flavor(topology=True), *nodes("a", 3)]


def queue(**policy: Any) -> list[Doc]:
    return cluster_queue("main", 64, preemption=LOWER, policy=policy)


def runs(name: str, node: str, priority: int = 0, **annotations: str) -> Doc:
    body = workload(name, "main", 1, 8, priority=priority, flavor="default", on={node: 1})
    body["metadata"]["annotations"] = {f"queuectl.dev/{k}": v for k, v in annotations.items()}
    return body


FULL = [runs("r0", "a0", 1), runs("r1", "a1", 2), runs("r2", "a2", 3)]
URGENT = workload("urgent", "main", 1, 8, priority=9, at=60)


@pytest.mark.parametrize(
    ("policy", "hours", "victims"),
    [
        pytest.param({}, 0.5, ["r0"], id="Kueue protects no gang, however young"),
        pytest.param({"minRuntimeSeconds": 3600}, 0.5, [], id="all of them started too lately"),
        pytest.param({"minRuntimeSeconds": 3600}, 1.0, ["r0"], id="they ran long enough"),
    ],
)
def test_a_minimum_run_time_protects_a_gang(
    policy: dict[str, int], hours: float, victims: list[str]
) -> None:
    made = planned(FLEET, queue(**policy), FULL, URGENT, now=START + hours * HOUR)
    assert made.victims == victims
    code = "WaitingForPreemptedWorkloads" if victims else "TopologyPlacementFailed"
    assert made.waiting == {"urgent": code}


EARLIER = "2025-12-31T20:00:00Z, 2025-12-31T23:30:00Z"


@pytest.mark.parametrize(
    ("policy", "victims"),
    [
        pytest.param({}, ["r0"], id="no limit"),
        pytest.param({"maxEvictionsPerDay": 3}, ["r0"], id="twice of three times"),
        pytest.param({"maxEvictionsPerDay": 2}, ["r1"], id="twice is enough, the next one goes"),
        pytest.param({"cooldownSeconds": 7200}, ["r1"], id="evicted 90 minutes ago"),
        pytest.param({"cooldownSeconds": 3600}, ["r0"], id="its cool-down is over"),
    ],
)
def test_evictions_so_far_are_read_from_an_annotation(
    policy: dict[str, int], victims: list[str]
) -> None:
    evicted = [runs("r0", "a0", 1, evictions=EARLIER), *FULL[1:]]
    made = planned(FLEET, queue(**policy), evicted, URGENT, now=START + HOUR)
    assert made.victims == victims


def test_kueues_own_preemptions_count() -> None:
    """Kueue keeps the condition on the Workload, as False, when it is admitted again."""
    again = runs("r0", "a0", 1)
    again["status"]["conditions"].append(
        {"type": "Preempted", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    )
    made = planned(FLEET, queue(cooldownSeconds=7200), again, FULL[1:], URGENT, now=START + HOUR)
    assert made.victims == ["r1"]


def test_a_job_that_is_not_preemptible_is_not_evicted() -> None:
    shielded = [runs("r0", "a0", 1, preemptible="false"), *FULL[1:]]
    assert planned(FLEET, queue(), shielded, URGENT, now=START).victims == ["r1"]


def test_two_urgent_gangs_take_two_victims_and_a_third_waits() -> None:
    gangs = [workload(f"u{i}", "main", 1, 8, priority=3, at=60 + i) for i in range(3)]
    made = planned(FLEET, queue(), FULL, gangs, now=START)
    assert made.victims == ["r0", "r1"]
    assert made.waiting == {
        "u0": "WaitingForPreemptedWorkloads",
        "u1": "WaitingForPreemptedWorkloads",
        "u2": "TopologyPlacementFailed",
    }


def accident(**policy: Any) -> Planned:
    """A gang on a0, a1 and a2; the last two are not ready, and a lower gang holds the only other two of the rack."""
    fleet = nodes("a", 5)
    for node in fleet[1:3]:
        node["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    hit = workload(
        "hit", "main", 3, 8, priority=5, rack=True, flavor="default", on={"a0": 1, "a1": 1, "a2": 1}
    )
    low = workload("low", "main", 2, 8, flavor="default", on={"a3": 1, "a4": 1})
    return planned(
        TOPOLOGY,
        flavor(topology=True),
        fleet,
        nodes("b", 5),
        queue(**policy),
        hit,
        low,
        now=START + HOUR,
    )


def test_two_lost_nodes_are_replaced_by_a_lower_gang_leaving() -> None:
    """Kueue evicts the whole gang when two of its nodes fail, and no gang for it when one does."""
    made = accident()
    assert made.victims == ["low"]
    assert made.document["preempted"][0]["for"] == "default/hit"
    (waits,) = made.document["pending"]
    assert waits["workload"] == "default/hit"
    assert waits["podSets"][0]["nodes"] == {"a0": 1, "a3": 1, "a4": 1}
    assert made.waiting == {"hit": "WaitingForPreemptedWorkloads"}


def test_without_a_legal_victim_the_broken_gang_restarts_whole() -> None:
    made = accident(minRuntimeSeconds=7200)
    (evicted,) = made.document["preempted"]
    assert (evicted["workload"], evicted["for"]) == ("default/hit", None)
    assert evicted["reason"] == "NodeFailures"


def test_victims_free_only_the_quota_that_cannot_be_borrowed() -> None:
    """Of the urgent pods' quota three of four GPUs can be borrowed from the cohort: one small gang leaves, not both."""
    made = planned(
        [flavor(), cohort("all")],
        cluster_queue("main", 4, "all", preemption=LOWER),
        cluster_queue("lender", 3, "all"),
        [workload(f"s{i}", "main", 1, 2, flavor="default", at=i) for i in range(2)],
        workload("urgent", "main", 1, 4, priority=9, at=60),
        now=START,
    )
    assert len(made.victims) == 1
    assert made.waiting == {"urgent": "WaitingForPreemptedWorkloads"}
