"""Arrays on a real control plane: the job controller makes the pods, and each index is a separate gang."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.ledger import Document
from tests.system.actions import run_command
from tests.system.installation import Installation, Workspace

pytestmark = pytest.mark.system


def array(workspace: Workspace, name: str, indexes: int, at_once: int, **options: Any) -> Document:
    """Submit an array of indexes with one 8-GPU pod each."""
    marked = {"queuectl.dev/array": "true"}
    document = m.job(
        name,
        workspace.namespace,
        "main",
        PodSetManifest(indexes, gpus=8),
        annotations=marked,
        **options,
    )
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    more = {"parallelism": at_once, "podFailurePolicy": {"rules": [ignored]}}
    return workspace.submit({**document, "spec": {**document["spec"], **more}})


def test_an_array_starts_as_far_as_there_is_quota_and_ends_index_by_index(
    installation: Installation,
) -> None:
    with installation.workspace(16) as workspace:
        array(workspace, "sweep", 5, 3, seconds=2)
        for number in range(5):
            done = workspace.until_state(f"sweep_{number}", "Finished")
            assert done["reason"]["code"] == "Succeeded"
            assert done["attempt"] == 1
        path = f"/apis/batch/v1/namespaces/{workspace.namespace}/jobs/sweep"
        workspace.until(
            lambda: workspace.client.get(path)["status"].get("completionTime"),
            "the Job is complete",
        )
        assert workspace.client.get(path)["status"].get("failed", 0) == 0


def test_a_preempted_index_returns_and_its_eviction_is_not_a_failure(
    installation: Installation,
) -> None:
    with installation.workspace(16, strategy="StrictFIFO") as workspace:
        array(workspace, "sweep", 2, 2, priority_class="low")
        workspace.until_state("sweep_0", "Running")
        workspace.until_state("sweep_1", "Running")
        workspace.job("high", PodSetManifest(1, gpus=8), priority_class="high", seconds=2)
        workspace.until_state("high", "Finished")
        both = [workspace.until_state(f"sweep_{number}", "Running") for number in range(2)]
        assert sorted(one["evictions"] for one in both) == [0, 1]
        path = f"/apis/batch/v1/namespaces/{workspace.namespace}/jobs/sweep"
        assert workspace.client.get(path)["status"].get("failed", 0) == 0
        run_command(workspace, "sweep_0", "hold")
        workspace.until_state("sweep_0", "Held")
        assert workspace.state("sweep_1") == "Running"
        assert len(workspace.running("sweep")) == 1
