"""Gangs whose pods request one NUMA node, on a real control plane. NodeResourceTopology objects are published by hand.

The kubelets are simulated: which pods a kubelet would reject follows from the nodes of the pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.client import Client, wait_until
from queuectl.localcluster.errors import LocalClusterError
from tests.support.definitions import definition
from tests.support.shared_resource import SharedResource
from tests.system.installation import SECONDS, Installation, Workspace, installed

pytestmark = [pytest.mark.system, pytest.mark.gpus]

GROUP, PLURAL = "topology.node.k8s.io", "noderesourcetopologies"
ALIGNED = ("b0-r0-h0", "b0-r0-h1")
ONE_NUMA_NODE = {"queuectl.dev/podset-numa-policy": "single-numa-node"}
UNTIL_WATCHED = SECONDS + 60  # the watch of an absent kind is tried again every 30 seconds


def _installed() -> AbstractContextManager[Installation]:
    return installed(NodeSpec(hosts_per_rack=4, cpu="32", memory="128Gi"), operators=())


@pytest.fixture(scope="module")
def installation(shared_resource: SharedResource) -> Installation:
    """Four nodes of 32 CPUs and 8 GPUs."""
    return shared_resource.get(_installed)


@pytest.fixture
def workspace(installation: Installation) -> Iterator[Workspace]:
    with installation.workspace(32) as one:
        covered: dict[str, int | str] = {"nvidia.com/gpu": 32, "cpu": "1M", "memory": "10Ti"}
        one.rest.apply([m.cluster_queue(one.namespace, "gpu", covered)])
        yield one


def topology(node: str, policy: str = "single-numa-node") -> Document:
    """Two NUMA nodes of 16 CPUs, 64 GiB and 4 GPUs."""
    amounts = {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "4"}
    resources = [
        {"name": name, "capacity": value, "allocatable": value, "available": value}
        for name, value in amounts.items()
    ]
    attributes = {"topologyManagerPolicy": policy, "topologyManagerScope": "pod"}
    return {
        "apiVersion": f"{GROUP}/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": node},
        "attributes": [{"name": name, "value": value} for name, value in attributes.items()],
        "zones": [
            {"name": f"node-{number}", "type": "Node", "resources": resources}
            for number in range(2)
        ],
    }


def publishes(client: Client) -> bool:
    """Publish the objects, if the API server already serves their kind."""
    try:
        client.apply(*map(topology, ALIGNED))
    except LocalClusterError:
        return False
    return True


def pods(count: int, cpu: int, gpus: int = 0, *, aligned: bool = True) -> PodSetManifest:
    annotations = ONE_NUMA_NODE if aligned else {}
    return PodSetManifest(count, gpus, str(cpu), f"{cpu}Gi", annotations=annotations)


def until_waits(workspace: Workspace, name: str, code: str, why: str) -> None:
    """Wait until a gang has this reason."""

    def waits() -> bool:
        found: dict[str, Any] = workspace.workload(name).get("reason", {})
        return found.get("code") == code and why in found["message"]

    workspace.until(waits, f"{name} waits: {code}: {why}")


def on_nodes(workspace: Workspace, name: str) -> Counter[str | None]:
    return Counter(pod.node for pod in workspace.running(name))


def test_pods_that_request_one_numa_node_start_where_it_is_sure(workspace: Workspace) -> None:
    workspace.job("early", pods(4, 10, 3))
    no_object = "no node has a NodeResourceTopology object"
    until_waits(workspace, "early", "UnsupportedConstraint", no_object)

    client = workspace.client
    kind = "NodeResourceTopology"
    client.apply(definition(GROUP, kind, PLURAL, "v1alpha2", scope="Cluster", status=False))
    wait_until(lambda: publishes(client), "the objects are published", SECONDS)
    workspace.until(
        lambda: workspace.state("early") == "Running", "early runs", seconds=UNTIL_WATCHED
    )
    assert on_nodes(workspace, "early") == dict.fromkeys(ALIGNED, 2)

    workspace.job("beside", pods(1, 4))
    workspace.until_state("beside", "Running")
    assert on_nodes(workspace, "beside").keys() <= set(ALIGNED)
    workspace.job("plain", pods(4, 16, aligned=False))
    workspace.until_state("plain", "Running")
    assert not on_nodes(workspace, "plain").keys() & set(ALIGNED)

    workspace.job("late", pods(1, 14))
    until_waits(workspace, "late", "TopologyPlacementFailed", "the kubelet can choose NUMA nodes")
    path = f"/apis/batch/v1/namespaces/{workspace.namespace}/jobs/early"
    client.delete(path, propagationPolicy="Background")
    workspace.until_state("late", "Running")


def test_a_kubelet_with_another_policy_gets_no_such_pods(workspace: Workspace) -> None:
    for node in ALIGNED:
        workspace.client.apply(topology(node, policy="best-effort"))
    workspace.job("gang", pods(1, 4))
    until_waits(workspace, "gang", "UnsupportedConstraint", "topologyManagerPolicy is best-effort")
    workspace.client.apply(topology(ALIGNED[1]))
    workspace.until_state("gang", "Running")
    assert on_nodes(workspace, "gang").keys() == {ALIGNED[1]}
