"""RayClusters run by KubeRay: the head and groups of workers, whose replicas can have several hosts."""

from __future__ import annotations

import pytest

from queuectl.demo.scenario import PodSetManifest
from tests.support.rays import raycluster, worker_group
from tests.system.actions import until_reason
from tests.system.installation import RACK, Installation

# The first test of an operator on a machine builds it.
pytestmark = [pytest.mark.system, pytest.mark.kinds, pytest.mark.timeout(900)]

WHOLE = PodSetManifest(2, gpus=8)
"""Of a group of workers: each pod takes a node."""
HEAD = PodSetManifest(1)


def rack(node: str | None) -> str:
    return str(node).rsplit("-", 1)[0]


def test_a_replica_of_several_hosts_is_replaced_as_a_whole_in_its_places(
    installation: Installation,
) -> None:
    with installation.workspace(128) as workspace:
        workers = worker_group("slices", PodSetManifest(6, gpus=8, preferred=RACK), hosts=3)
        workspace.submit(raycluster("hosts", workspace.namespace, HEAD, workers))
        workspace.until_state("hosts", "Running")
        placed = [pod for pod in workspace.running("hosts") if pod.podset == "slices"]
        slots = {pod.rank or 0: pod.node for pod in placed}
        assert sorted(slots) == list(range(6)), "replicas one after the other, each by host"
        ranked = [rack(node) for _, node in sorted(slots.items())]
        assert ranked == sorted(ranked)

        lost = next(pod for pod in placed if pod.rank == 4)
        replica = {pod.uid for pod in placed if pod.rank in (3, 4, 5)}
        workspace.client.delete(f"/api/v1/namespaces/{workspace.namespace}/pods/{lost.name}")
        workspace.until_running("hosts", 7, lambda p: p.uid not in replica, "new pods run")
        again = [pod for pod in workspace.running("hosts") if pod.podset == "slices"]
        assert {pod.rank or 0: pod.node for pod in again} == slots
        assert {pod.uid for pod in again} & {pod.uid for pod in placed} == {
            pod.uid for pod in placed if pod.rank in (0, 1, 2)
        }
        assert workspace.workload("hosts")["attempt"] == 1


def test_a_cluster_whose_workers_kuberay_would_add_and_remove_waits_with_the_reason(
    installation: Installation,
) -> None:
    with installation.workspace(32) as workspace:
        document = raycluster("scales", workspace.namespace, HEAD, enableInTreeAutoscaling=True)
        workspace.submit(document)
        until_reason(workspace, "scales", "Pending", "UnsupportedConstraint")
        message = workspace.workload("scales")["reason"]["message"]
        assert "spec.enableInTreeAutoscaling" in message
