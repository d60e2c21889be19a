"""Elastic Jobs on a real control plane: they start with their minimum number of pods, grow, shrink, and change their size."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.ledger import Document
from tests.support.elastic import elastic_of
from tests.system.actions import finish
from tests.system.installation import Installation, Workspace

pytestmark = pytest.mark.system


def elastic(
    workspace: Workspace, name: str, least: int, most: int, mark: str, **options: Any
) -> Document:
    """Submit an elastic Job of 8-GPU pods, whose success is that of its first pod."""
    marked = {mark: "true", "queuectl.dev/job-min-parallelism": str(least)}
    document = m.job(
        name,
        workspace.namespace,
        "main",
        PodSetManifest(most, gpus=8),
        annotations=marked,
        **options,
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
        workspace.job("high", PodSetManifest(1, gpus=8), priority_class="high", seconds=2)
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
        workspace.job("next", PodSetManifest(1, gpus=8), priority_class="low", seconds=2)
        workspace.until_state("next", "Finished")
        assert len(workspace.running("train")) == 2
        job = workspace.client.get(path)
        assert job["status"].get("failed", 0) == 0
        assert job["metadata"]["annotations"]["queuectl.dev/base-count"] == "1"


def test_an_elastic_pytorchjob_survives_an_eviction_and_ends_while_a_worker_waits(
    installation: Installation,
) -> None:
    """The training operator creates an evicted worker again, and needs no other worker for the success of the first one."""
    with installation.workspace(24) as workspace:
        document = m.pytorchjob(
            "train",
            workspace.namespace,
            "main",
            worker=PodSetManifest(4, gpus=8),
            priority_class="low",
        )
        workspace.submit(elastic_of("PyTorchJob", document, 1))
        for name in ("train", "train_1", "train_2"):
            workspace.until_state(name, "Running")
        path = f"/apis/kubeflow.org/v1/namespaces/{workspace.namespace}/pytorchjobs/train"
        workspace.job("high", PodSetManifest(1, gpus=8), priority_class="high")
        workspace.until_state("high", "Running")
        waiting = workspace.until_state("train_2", "Pending")
        assert waiting["evictions"] == 1
        workspace.until(lambda: len(workspace.pods("train")) == 4, "the worker exists again")

        def active() -> int:
            replicas = workspace.client.get(path)["status"]["replicaStatuses"]
            return int(replicas["Worker"].get("active", 0))

        workspace.until(lambda: active() == 2, "the operator counts two workers")
        first = min(workspace.running("train"), key=lambda pod: pod.rank or 0)
        finish(workspace, first.name)
        for name in ("train", "train_1", "train_2", "train_3"):
            workspace.until_state(name, "Finished")
        status = workspace.client.get(path)["status"]
        assert "Succeeded" in {c["type"] for c in status["conditions"] if c["status"] == "True"}
