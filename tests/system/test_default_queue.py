"""LocalQueue ``default`` on a real control plane: jobs that name no queue are taken in while, and where, there is one."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.objects import keys
from tests.system.actions import (
    apply,
    restart_in_test_faults,
    until_reason,
)
from tests.system.installation import Installation, Workspace

pytestmark = [pytest.mark.system, pytest.mark.kills]


def default_queue(workspace: Workspace) -> None:
    """Give the workspace's namespace one, and wait until the API server acts on it."""
    apply(workspace, m.local_queue(workspace.namespace, "default", workspace.namespace))
    workspace.until(lambda: takes_in(workspace), "jobs without a queue are taken in")


def takes_in(workspace: Workspace) -> bool:
    """Whether the API server would put a Job without a queue label into the queue; a dry run."""
    probe = m.job("probe", workspace.namespace, None, PodSetManifest(1))
    collection = workspace.client.path_of(probe).rsplit("/", 1)[0]
    return managed(workspace.client.create(collection, probe, dryRun="All"))


def managed(job: dict[str, Any]) -> bool:
    return keys.QUEUE_LABEL in job["metadata"].get("labels", {})


def suspended(job: dict[str, Any]) -> bool:
    return bool(job["spec"].get("suspend") or job["spec"].get("runPolicy", {}).get("suspend"))


def gates(job: dict[str, Any]) -> list[list[str]]:
    """Of every pod template."""
    spec = job["spec"]
    replicas = spec["pytorchReplicaSpecs"].values() if "pytorchReplicaSpecs" in spec else [spec]
    templates = [one["template"]["spec"] for one in replicas]
    return [[gate["name"] for gate in t.get("schedulingGates", ())] for t in templates]


def running_pods(workspace: Workspace) -> set[str]:
    """Names of all running pods of the namespace, managed or not."""
    listed = workspace.client.get(f"/api/v1/namespaces/{workspace.namespace}/pods")["items"]
    return {pod["metadata"]["name"] for pod in listed if pod["status"].get("phase") == "Running"}


def unmanaged(workspace: Workspace) -> list[tuple[int, float]]:
    """PodSetManifest outside the queues in the namespace, and their GPUs, as the report has them."""
    address = workspace.installation.controller.api + "/api/v1/reports/unmanaged"
    answer = httpx2.get(address, params={"namespace": workspace.namespace}, trust_env=False)
    return [(one["pods"], one["gpus"]) for one in answer.raise_for_status().json()["namespaces"]]


@pytest.mark.parametrize("kind", ["Job", "PyTorchJob"])
def test_a_job_without_a_queue_is_managed_there_and_left_alone_elsewhere(
    installation: Installation, kind: str
) -> None:
    with installation.workspace(16) as workspace, installation.workspace(16) as other:
        default_queue(workspace)
        taken = workspace.gang(kind, "plain", 2, queue=None)
        assert (managed(taken), suspended(taken)) == (True, True)
        assert taken["metadata"]["labels"][keys.QUEUE_LABEL] == "default"
        assert {tuple(one) for one in gates(taken)} == {(keys.GATE,)}
        workspace.until_state("plain", "Running")
        assert {pod.attempt for pod in workspace.running("plain")} == {1}

        # Only now: kube-scheduler can place unmanaged pods on the nodes of a planned gang.
        left = other.gang(kind, "plain", 2, queue=None)
        assert (managed(left), suspended(left), any(gates(left))) == (False, False, False)
        other.until(lambda: len(running_pods(other)) == 2, "kube-scheduler starts it")
        # There is quota for one only; the other namespace has none to ask for.
        for each in (workspace, other):
            each.gang(kind, "next", 2, queue=None)
        until_reason(workspace, "next", "Pending", "WaitingForQuota")
        other.until(lambda: len(running_pods(other)) == 4, "its pods run without admission")
        assert (len(running_pods(workspace)), other.workloads()) == (2, {})
        other.until(lambda: unmanaged(other) == [(4, 32.0)], "the report has its pods")
        assert unmanaged(workspace) == []


def test_it_begins_with_the_queue_and_ends_with_it(installation: Installation) -> None:
    with installation.workspace(16) as workspace:
        workspace.job("before", PodSetManifest(1, gpus=8), queue=None)
        workspace.until(lambda: running_pods(workspace), "nothing holds it back")
        (before,) = running_pods(workspace)
        default_queue(workspace)
        restart_in_test_faults(workspace)
        workspace.job("during", PodSetManifest(1, gpus=8), queue=None)
        workspace.until_state("during", "Running")
        assert before in running_pods(workspace), "what was there is left alone"
        assert set(workspace.workloads()) == {"during"}

        path = f"/api/v1/namespaces/{workspace.namespace}/localqueues/default"
        answer = httpx2.delete(installation.controller.api + path, trust_env=False)
        assert answer.status_code == 204, answer.text
        restart_in_test_faults(workspace)
        workspace.until(
            lambda: not takes_in(workspace), "jobs without a queue are left alone again"
        )
        workspace.job("after", PodSetManifest(1, gpus=8), queue=None)
        workspace.until(lambda: len(running_pods(workspace)) == 3, "nothing holds it back")
        assert [managed(workspace.client.get(path)) for path in workspace.made] == [
            False,
            True,
            False,
        ]
        assert set(workspace.workloads()) == {"during"}
        assert workspace.workload("during")["attempt"] == 1, "what was taken in runs on"
