"""The user of a workload and its pods over REST, on a real control plane: admission records the user, the watch shows the pods."""

from __future__ import annotations

import pytest

from queuectl.demo.manifests import Pods
from tests.system.forger import told
from tests.system.house import House

pytestmark = pytest.mark.system


@pytest.mark.parametrize("kind", ["Job", "PyTorchJob"])
def test_a_running_gang_has_its_user_and_its_pods(home: House, kind: str) -> None:
    with home.room(128) as room:
        room.gang(kind, "train", 4)
        running = room.until_state("train", "Running")
        assert running["user"], "the admission policy records the user"
        path = f"namespaces/{room.namespace}/workloads/train/pods"
        pods = told(room, path)["items"]
        assert [pod["name"] for pod in pods] == sorted(pod.name for pod in room.running("train"))
        assert {(pod["phase"], pod["ready"], pod["attempt"]) for pod in pods} == {
            ("Running", True, 1)
        }
        assert {pod["node"] for pod in pods} == {pod.node for pod in room.running("train")}
        assert [pod["reason"] for pod in pods] == [None] * len(pods)
        own = told(room, f"workloads?user={running['user']}&namespace={room.namespace}")["items"]
        assert [one["name"] for one in own] == ["train"]


def test_the_pods_of_a_pending_gang_are_none(home: House) -> None:
    with home.room(8) as room:
        room.job("large", Pods(2, gpus=8))
        room.until_state("large", "Pending")
        assert told(room, f"namespaces/{room.namespace}/workloads/large/pods")["items"] == []
