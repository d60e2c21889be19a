"""The user of a workload and its pods over REST, on a real control plane: admission records the user, the watch shows the pods."""

from __future__ import annotations

import pytest

from queuectl.demo.scenario import PodSetManifest
from tests.system.forger import get_json
from tests.system.installation import Installation

pytestmark = pytest.mark.system


@pytest.mark.parametrize("kind", ["Job", "PyTorchJob"])
def test_a_running_gang_has_its_user_and_its_pods(installation: Installation, kind: str) -> None:
    with installation.workspace(128) as workspace:
        workspace.gang(kind, "train", 4)
        running = workspace.until_state("train", "Running")
        assert running["user"], "the admission policy records the user"
        path = f"namespaces/{workspace.namespace}/workloads/train/pods"
        pods = get_json(workspace, path)["items"]
        assert [pod["name"] for pod in pods] == sorted(
            pod.name for pod in workspace.running("train")
        )
        assert {(pod["phase"], pod["ready"], pod["attempt"]) for pod in pods} == {
            ("Running", True, 1)
        }
        assert {pod["node"] for pod in pods} == {pod.node for pod in workspace.running("train")}
        assert [pod["reason"] for pod in pods] == [None] * len(pods)
        own = get_json(
            workspace, f"workloads?user={running['user']}&namespace={workspace.namespace}"
        )["items"]
        assert [one["name"] for one in own] == ["train"]


def test_the_pods_of_a_pending_gang_are_not_listed(installation: Installation) -> None:
    with installation.workspace(8) as workspace:
        workspace.job("large", PodSetManifest(2, gpus=8))
        workspace.until_state("large", "Pending")
        assert (
            get_json(workspace, f"namespaces/{workspace.namespace}/workloads/large/pods")["items"]
            == []
        )
