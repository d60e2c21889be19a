"""A PriorityClass with ``preemptionPolicy: Never``: its gangs are ordered by their priority, and evict no gang."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planner.documents import TOPOLOGY, Doc, cluster_queue, flavor, nodes, planned, workload
from tests.support.jobs import batch_job

PREEMPTS = {"preemption": {"withinClusterQueue": "LowerPriority"}}


def priority_class(policy: str | None, **fields: Any) -> Doc:
    meta = {"name": "urgent"}
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": meta}
    return {**kind, "value": 1000, "preemptionPolicy": policy, **fields}


def gang(name: str, pod_class: str | None = "urgent", **labels: str) -> Doc:
    """A Job of one pod of 8 GPUs."""
    job = batch_job(name, gpus=8)
    job["metadata"]["labels"] |= labels
    spec = job["spec"]["template"]["spec"]
    spec["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
    if pod_class is not None:
        spec["priorityClassName"] = pod_class
    return job


def in_use() -> list[Doc]:
    """One node, which a gang of priority 0 uses."""
    queue, local = cluster_queue("main", 8)
    queue["spec"] |= PREEMPTS
    low = workload("low", "main", 1, 8, flavor="default", on={"r0": 1})
    return [queue, local, TOPOLOGY, flavor(topology=True), *nodes("r", 1), low]


LABELED = {"queuectl.dev/priority-class": "high"}
HIGH: Doc = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "WorkloadPriorityClass",
    "metadata": {"name": "high"},
    "value": 500,
}


@pytest.mark.parametrize(
    ("classes", "job", "victims"),
    [
        pytest.param([priority_class("PreemptLowerPriority")], gang("new"), ["low"], id="another policy"),
        pytest.param([priority_class(None)], gang("new"), ["low"], id="no policy"),
        pytest.param([priority_class("Never")], gang("new"), [], id="never"),
        pytest.param([priority_class("Never", globalDefault=True)], gang("new", None), [], id="the default class"),
        pytest.param([priority_class("Never"), HIGH], gang("new", **LABELED), ["low"], id="it has a WorkloadPriorityClass"),
    ],
)  # fmt: skip
def test_a_gang_of_a_class_that_never_preempts_evicts_none(
    classes: list[Doc], job: Doc, victims: list[str]
) -> None:
    done = planned(in_use(), classes, job)
    assert done.victims == victims
    assert done.waiting == {"new": "WaitingForPreemptedWorkloads" if victims else "WaitingForQuota"}


def test_it_starts_before_gangs_of_a_lower_priority() -> None:
    parts = [*cluster_queue("main", 8), TOPOLOGY, flavor(topology=True), *nodes("r", 1)]
    older = workload("older", "main", 1, 8)
    assert planned(parts, older, priority_class("Never"), gang("new")).started == ["new"]
