"""LocalQueue ``default`` on a real control plane: jobs that name no queue are taken in while, and where, there is one."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from queuectl.demo import manifests as m
from queuectl.demo.manifests import Pods
from queuectl.objects import keys
from tests.system.acts import die, kubectl, put, until_reason
from tests.system.house import House, Room

pytestmark = pytest.mark.system


def default_queue(room: Room) -> None:
    """Give the room's namespace one, and wait until the API server acts on it."""
    put(room, m.local_queue(room.namespace, "default", room.namespace))
    room.until(lambda: takes_in(room), "jobs without a queue are taken in")


def takes_in(room: Room) -> bool:
    """Whether the API server would put a Job without a queue label into the queue; a dry run."""
    probe = json.dumps(m.job("probe", room.namespace, None, Pods(1)))
    create = ("create", "--dry-run=server", "-o", "json", "-f", "-")
    return managed(json.loads(kubectl(room.house, *create, given=probe)))


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


def running_pods(room: Room) -> set[str]:
    """Names of all running pods of the namespace, managed or not."""
    listed = room.client.get(f"/api/v1/namespaces/{room.namespace}/pods")["items"]
    return {pod["metadata"]["name"] for pod in listed if pod["status"].get("phase") == "Running"}


def unmanaged(room: Room) -> list[tuple[int, float]]:
    """Pods outside the queues in the namespace, and their GPUs, as the report has them."""
    address = room.house.controller.api + "/api/v1/reports/unmanaged"
    answer = httpx2.get(address, params={"namespace": room.namespace}, trust_env=False)
    return [(one["pods"], one["gpus"]) for one in answer.raise_for_status().json()["namespaces"]]


@pytest.mark.parametrize("kind", ["Job", "PyTorchJob"])
def test_a_job_without_a_queue_is_managed_there_and_left_alone_elsewhere(
    home: House, kind: str
) -> None:
    with home.room(16) as room, home.room(16) as other:
        default_queue(room)
        taken = room.gang(kind, "plain", 2, queue=None)
        assert (managed(taken), suspended(taken)) == (True, True)
        assert taken["metadata"]["labels"][keys.QUEUE_LABEL] == "default"
        assert {tuple(one) for one in gates(taken)} == {(keys.GATE,)}
        room.until_state("plain", "Running")
        assert {pod.attempt for pod in room.running("plain")} == {1}

        # Only now: kube-scheduler can place unmanaged pods on the nodes of a planned gang.
        left = other.gang(kind, "plain", 2, queue=None)
        assert (managed(left), suspended(left), any(gates(left))) == (False, False, False)
        other.until(lambda: len(running_pods(other)) == 2, "kube-scheduler starts it")
        # There is quota for one only; the other namespace has none to ask for.
        for each in (room, other):
            each.gang(kind, "next", 2, queue=None)
        until_reason(room, "next", "Pending", "WaitingForQuota")
        other.until(lambda: len(running_pods(other)) == 4, "its pods run without admission")
        assert (len(running_pods(room)), other.workloads()) == (2, {})
        other.until(lambda: unmanaged(other) == [(4, 32.0)], "the report has its pods")
        assert unmanaged(room) == []


def test_it_begins_with_the_queue_and_ends_with_it(home: House) -> None:
    with home.room(16) as room:
        room.job("before", Pods(1, gpus=8), queue=None)
        room.until(lambda: running_pods(room), "nothing holds it back")
        (before,) = running_pods(room)
        default_queue(room)
        die(room)
        room.job("during", Pods(1, gpus=8), queue=None)
        room.until_state("during", "Running")
        assert before in running_pods(room), "what was there is left alone"
        assert set(room.workloads()) == {"during"}

        path = f"/api/v1/namespaces/{room.namespace}/localqueues/default"
        answer = httpx2.delete(home.controller.api + path, trust_env=False)
        assert answer.status_code == 204, answer.text
        die(room)
        room.until(lambda: not takes_in(room), "jobs without a queue are left alone again")
        room.job("after", Pods(1, gpus=8), queue=None)
        room.until(lambda: len(running_pods(room)) == 3, "nothing holds it back")
        assert [managed(room.client.get(path)) for path in room.made] == [False, True, False]
        assert set(room.workloads()) == {"during"}
        assert room.workload("during")["attempt"] == 1, "what was taken in runs on"
