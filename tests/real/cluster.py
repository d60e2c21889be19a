"""A control plane with real nodes, and queuectl on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from queuectl.demo.api_connection import ApiConnection
from queuectl.demo.controller import KUEUE_KEYS, ControllerProcess, install
from queuectl.localcluster import ClusterSpec, LocalCluster
from queuectl.localcluster.build import Assets
from queuectl.localcluster.client import wait_until
from queuectl.localcluster.nodes import BLOCK, GPU, PRODUCT, RACK
from queuectl.localcluster.progress import LineProgress
from tests.real import network, programs, settings
from tests.real.node import Node, Shape
from tests.support.controllers import CheckedController
from tests.support.controlplane import ENGINEER
from tests.system.installation import QUICK, Installation

NODES: Final = tuple(
    Shape(
        name=f"b0-r{rack}-h{host}",
        number=2 * rack + host,
        gpus=2,
        labels={BLOCK: "b0", RACK: f"b0-r{rack}", PRODUCT: "test-device"},
    )
    for rack in range(2)
    for host in range(2)
)
"""Two racks of two nodes of two devices."""

_READY_SECONDS: Final = 120.0


@dataclass
class RealInstallation(Installation):
    """A control plane with queuectl and real nodes. Its workspaces are those of the system tests.

    Attributes:
        nodes: the nodes by name.
    """

    nodes: Mapping[str, Node]


@contextmanager
def real_installation(shapes: Sequence[Shape] = NODES) -> Iterator[RealInstallation]:
    """A control plane, real nodes, and queuectl as a process alongside the control plane."""
    with (
        real_nodes(shapes) as (cluster, nodes),
        leading(cluster) as controller,
        ApiConnection(controller.api) as rest,
    ):
        yield RealInstallation(cluster, controller, rest, nodes)


@contextmanager
def real_nodes(shapes: Sequence[Shape] = NODES) -> Iterator[tuple[LocalCluster, dict[str, Node]]]:
    """A control plane and real nodes, without queuectl. Only one can exist in a sandbox at a time."""
    spec = ClusterSpec(nodes=(), fsync=False, lease_seconds=settings.LEASE_SECONDS)
    assets = programs.ensure()
    with LocalCluster.start(spec, progress=LineProgress()) as cluster:
        nodes = {one.name: Node(cluster, assets, one, len(shapes)) for one in shapes}
        network.create(len(shapes))
        try:
            _publish(cluster)
            _start_dns(cluster, assets)
            with ThreadPoolExecutor(len(nodes)) as threads:
                list(threads.map(Node.power_on, nodes.values()))
            cluster.nodes.wait_ready(nodes, seconds=_READY_SECONDS)
            wait_devices(cluster, shapes)
            yield cluster, nodes
        finally:
            for node in nodes.values():
                node.power_off()
            network.remove()


@contextmanager
def leading(cluster: LocalCluster) -> Iterator[ControllerProcess]:
    """queuectl as a process that leads."""
    install(cluster, KUEUE_KEYS, "pod-logs")
    cluster.client.apply(*ENGINEER)
    controller = CheckedController.start(cluster, {**QUICK, "QUEUECTL_POD_LOGS": "true"})
    try:
        controller.wait_ready()
        yield controller
    finally:
        controller.stop()


def _publish(cluster: LocalCluster) -> None:
    """Give the Service kubernetes an address. The API server itself is on loopback and does not publish one."""
    cluster.client.apply(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "kubernetes",
                "namespace": "default",
                "labels": {"kubernetes.io/service-name": "kubernetes"},
            },
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": int(cluster.server.rpartition(":")[2])}],
            "endpoints": [{"addresses": [network.GATEWAY], "conditions": {"ready": True}}],
        }
    )


def _start_dns(cluster: LocalCluster, assets: Assets) -> None:
    """Start CoreDNS on the address of the bridge, with the right to read Services and their pods."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "coredns"}
    read = ["list", "watch"]
    cluster.client.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "coredns"},
            "rules": [
                {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": read},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "coredns"},
            "roleRef": role,
            "subjects": [
                {"apiGroup": role["apiGroup"], "kind": "User", "name": "coredns"},
            ],
        },
    )
    home = cluster.kubeconfig.parents[1]
    corefile = home / "Corefile"
    corefile.write_text(settings.coredns(cluster.kubeconfig_for_user("coredns")))
    cluster.supervisor.start(
        "coredns",
        [assets.programs["coredns"], "-conf", corefile],
        env={},
        cwd=home,
        log=cluster.log("coredns"),
    )


def wait_devices(cluster: LocalCluster, shapes: Sequence[Shape]) -> None:
    """Wait until the devices of the nodes are allocatable."""
    wanted = {shape.name: shape.gpus for shape in shapes}
    wait_until(
        lambda: wanted.items() <= _allocatable(cluster).items(),
        f"the devices of {len(shapes)} nodes",
        _READY_SECONDS,
    )


def _allocatable(cluster: LocalCluster) -> dict[str, int]:
    listed = cluster.client.get("/api/v1/nodes")["items"]
    return {
        one["metadata"]["name"]: int(one["status"]["allocatable"].get(GPU, "0")) for one in listed
    }
