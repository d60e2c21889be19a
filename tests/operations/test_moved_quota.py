"""Quota that moves between two queues in two edits of objects evicts no running gang, in either order of the edits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.recorder import Recorder
from queuectl.demo.scenario import PodSetManifest
from queuectl.localcluster import LocalCluster, NodeSpec
from tests.operations.custom import defined
from tests.system.installation import Workspace, installed, policies

pytestmark = pytest.mark.operations

NAMESPACE = "team"
QUEUES = "/apis/queuectl.dev/v1/clusterqueues"
OWNED = {
    "QUEUECTL_CONFIGURATION_OWNER": "kubernetes",
    "QUEUECTL_CONFIGURATION_SETTLE_SECONDS": "8",
}


def queue(name: str, gpus: int) -> m.Document:
    """A ClusterQueue that takes back what others have borrowed from it."""
    quotas: dict[str, int | str] = {"nvidia.com/gpu": gpus, "cpu": "1M", "memory": "1P"}
    made = m.cluster_queue(name, "gpu", quotas)
    made["spec"] |= {"cohortName": "all", "preemption": {"reclaimWithinCohort": "Any"}}
    return made


@contextmanager
def with_definitions(cluster: LocalCluster) -> Iterator[None]:
    defined(cluster)
    with policies(cluster):
        yield


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    """Four nodes of 8 GPUs, and the quota of three of them: 16 GPUs in ``a``, none in ``b``, 8 in ``d``."""
    nodes = NodeSpec(blocks=1, racks_per_block=1, hosts_per_rack=4)
    with installed(nodes, OWNED, with_definitions, operators=()) as built:
        built.cluster.client.apply(
            *m.namespaces([NAMESPACE]),
            m.flavor("gpu"),
            queue("a", 16),
            queue("b", 0),
            queue("d", 8),
            m.local_queue(NAMESPACE, "a", "a"),
            m.local_queue(NAMESPACE, "d", "d"),
        )
        with Recorder(built.cluster.kubeconfig) as recorder:
            made = Workspace(built, NAMESPACE, recorder)
            yield made
            made.empty()


def edit(workspace: Workspace, name: str, gpus: int) -> None:
    workspace.client.apply(queue(name, gpus))


def ready(workspace: Workspace, name: str) -> str:
    """The condition Ready of the newest generation; empty = it is about an older one."""
    body = workspace.client.get(f"{QUEUES}/{name}")
    status = body.get("status", {})
    if status.get("observedGeneration") != body["metadata"]["generation"]:
        return ""
    return next(str(one["status"]) for one in status["conditions"] if one["type"] == "Ready")


def until_acts(workspace: Workspace, *names: str) -> None:
    def act() -> bool:
        return all(ready(workspace, name) == "True" for name in names)

    workspace.until(act, f"{names} act")


def start(workspace: Workspace, name: str, queue: str) -> None:
    workspace.job(name, PodSetManifest(1, gpus=8), queue=queue)
    workspace.until_state(name, "Running")


def end(workspace: Workspace, name: str) -> None:
    path = workspace.made.pop()
    assert path.endswith(f"/{name}")
    workspace.client.delete(path, propagationPolicy="Background")
    workspace.until(lambda: workspace.state(name) in ("", "Finished"), f"{name} ends")


def evictions(workspace: Workspace) -> dict[str, int]:
    return {name: one["evictions"] for name, one in workspace.workloads().items()}


def test_moving_quota_between_two_queues_in_either_order_evicts_nothing(
    workspace: Workspace,
) -> None:
    until_acts(workspace, "a", "b", "d")
    start(workspace, "a1", "a")
    start(workspace, "a2", "a")

    edit(workspace, "a", 8)  # first take, then give
    start(workspace, "d1", "d")  # if the edit acted alone, `d` would take its quota back from `a`
    workspace.until(lambda: ready(workspace, "a") == "Unknown", "the edit waits")
    edit(workspace, "b", 8)
    until_acts(workspace, "a", "b")
    assert evictions(workspace) == {"a1": 0, "a2": 0, "d1": 0}

    end(workspace, "d1")
    edit(workspace, "a", 16)  # back: first give, then take
    until_acts(workspace, "a")
    start(workspace, "d2", "d")
    edit(workspace, "b", 0)
    until_acts(workspace, "b")
    assert not any(evictions(workspace).values())

    end(workspace, "d2")
    edit(workspace, "a", 8)  # the same first edit, and no second one
    until_acts(workspace, "a")
    start(workspace, "d3", "d")
    evicted = {name for name, times in evictions(workspace).items() if times}
    assert len(evicted & {"a1", "a2"}) == 1
