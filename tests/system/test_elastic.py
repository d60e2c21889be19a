"""Elastic Jobs on a real control plane: they start with their least number of pods, grow, shrink, and change their size."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.demo import manifests as m
from queuectl.demo.manifests import Pods
from queuectl.domain.ledger import Document
from tests.system.installation import Installation, Workspace

pytestmark = pytest.mark.system


def elastic(
    workspace: Workspace, name: str, least: int, most: int, mark: str, **options: Any
) -> Document:
    """Submit an elastic Job of 8-GPU pods, whose success is that of its first pod."""
    marked = {mark: "true", "queuectl.dev/job-min-parallelism": str(least)}
    document = m.job(
        name, workspace.namespace, "main", Pods(most, gpus=8), annotations=marked, **options
    )
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    more = {
        "podFailurePolicy": {"rules": [ignored]},
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
    }
    return workspace.submit({**document, "spec": {**document["spec"], **more}})


@pytest.mark.parametrize("mark", ["queuectl.dev/elastic-job", "kueue.x-k8s.io/elastic-job"])
def test_an_elastic_job_grows_loses_its_highest_rank_and_follows_its_user(
    installation: Installation, mark: str
) -> None:
    with installation.workspace(24, strategy="StrictFIFO") as workspace:
        elastic(workspace, "train", 1, 4, mark, priority_class="low")
        for name in ("train", "train_1", "train_2"):
            workspace.until_state(name, "Running")
        assert workspace.state("train_3") == "Pending"
        workspace.job("high", Pods(1, gpus=8), priority_class="high", seconds=2)
        workspace.until_state("high", "Finished")
        again = workspace.until_state("train_2", "Running")
        assert again["evictions"] == 1
        assert [workspace.until_state(n, "Running")["evictions"] for n in ("train", "train_1")] == [
            0,
            0,
        ]
        path = f"/apis/batch/v1/namespaces/{workspace.namespace}/jobs/train"
        smaller = {"spec": {"parallelism": 2, "completions": 2}}
        workspace.client.patch(path, smaller)
        workspace.job("next", Pods(1, gpus=8), priority_class="low", seconds=2)
        workspace.until_state("next", "Finished")
        assert len(workspace.running("train")) == 2
        job = workspace.client.get(path)
        assert job["status"].get("failed", 0) == 0
        assert job["metadata"]["annotations"]["queuectl.dev/base-count"] == "1"
