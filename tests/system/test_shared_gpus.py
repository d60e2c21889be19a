"""Gangs on nodes whose device plugin offers each GPU several times, on a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Final

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.localcluster import NodeSpec
from tests.support.shared_resource import SharedResource
from tests.system.actions import apply, until_refused
from tests.system.installation import Installation, Workspace, installed

pytestmark = [pytest.mark.system, pytest.mark.gpus]

SHARED: Final = (
    ("nvidia.com/gpu.replicas", "4"),
    ("nvidia.com/gpu.sharing-strategy", "time-slicing"),
)
NODES: Final = NodeSpec(racks_per_block=1, hosts_per_rack=4, gpus=8, labels=SHARED)


def _installed() -> AbstractContextManager[Installation]:
    return installed(NODES, operators=())


@pytest.fixture
def workspace(shared_resource: SharedResource) -> Iterator[Workspace]:
    with shared_resource.get(_installed).workspace(32) as one:
        yield one


def test_the_pods_of_a_gang_are_on_different_nodes_and_gangs_share_them(
    workspace: Workspace,
) -> None:
    for name in ("first", "second"):
        workspace.job(name, PodSetManifest(4, gpus=1))
    for name in ("first", "second"):
        workspace.until_state(name, "Running")
        assert len({pod.node for pod in workspace.running(name)}) == 4


@pytest.mark.parametrize("pods", [PodSetManifest(5, gpus=1), PodSetManifest(1, gpus=2)])
def test_a_gang_that_would_have_two_replicas_on_a_node_waits(
    workspace: Workspace, pods: PodSetManifest
) -> None:
    workspace.job("gang", pods)
    until_refused(workspace, "gang")


@pytest.mark.parametrize(("rule", "state"), [("Never", "Pending"), ("Any", "Running")])
def test_the_rule_of_the_queue_holds(workspace: Workspace, rule: str, state: str) -> None:
    queue = m.cluster_queue(workspace.namespace, "gpu", {"nvidia.com/gpu": 32, "cpu": "1M"})
    queue["spec"]["policy"] = {"sharedGpus": rule}
    apply(workspace, queue)
    workspace.job("gang", PodSetManifest(8, gpus=1))
    if state == "Running":
        workspace.until_state("gang", state)
    else:
        until_refused(workspace, "gang")
