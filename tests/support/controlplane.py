"""A real control plane with queuectl's manifests applied, and its identities.

A conftest imports the fixture ``control_plane`` from here and ``shared_resource`` from :mod:`tests.support.shared_resource`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from queuectl.cluster.apply import Document, apply, manifests, optional, wait_until_in_force
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.localcluster import ClusterSpec, LocalCluster, NodeSpec
from queuectl.localcluster.client import Client, wait_until
from queuectl.localcluster.progress import LineProgress
from tests.support.shared_resource import SharedResource

SYSTEM_NAMESPACE = "queuectl-system"
NODES = NodeSpec(blocks=2, racks_per_block=2, hosts_per_rack=4)
SPEC = ClusterSpec(nodes=(NODES,), fsync=False)

# Rights of an engineer in the namespaces of their team. The role "edit" of Kubernetes does not include PyTorchJobs.
ENGINEER = [
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "test-engineer"},
        "rules": [
            {
                "apiGroups": ["", "apps", "batch", "kubeflow.org"],
                "resources": ["*"],
                "verbs": ["*"],
            },
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "test-engineer"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "test-engineer",
        },
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "engineers"}
        ],
    },
]


@dataclass(frozen=True)
class ControlPlane:
    """A running cluster that queuectl may manage.

    Attributes:
        cluster: the processes, and a client with all rights.
        kubeconfig: of the identity of queuectl, with exactly the rights of deploy/.
    """

    cluster: LocalCluster
    kubeconfig: Path

    @contextmanager
    def engineer(self, name: str = "alice") -> Iterator[Client]:
        """A client with all rights on jobs and pods that is not queuectl."""
        client = self.cluster.client_for_user(name, ["engineers"])
        try:
            yield client
        finally:
            client.close()


def everything() -> list[Document]:
    """deploy/ without the Deployment, and with the policies for Kueue's labels."""
    return [*manifests(controller=False), *optional("kueue-keys")]


async def set_up(kubeconfig: Path) -> None:
    """Apply the manifests without the Deployment, and wait until the policies are in force."""
    api = await Api.connect(Connection(kubeconfig=kubeconfig))
    try:
        await apply(api, [*everything(), *ENGINEER])
    finally:
        await api.close()
    await in_force(kubeconfig)


async def restore_bindings(admin: Api) -> None:
    """Apply the bindings of the policies again, and wait until all policies are in force."""
    await apply(admin, [one for one in everything() if one["kind"].endswith("PolicyBinding")])
    await wait_until_in_force(admin, kueue=True)


async def in_force(kubeconfig: Path) -> None:
    """Wait until the policies are in force, also after a restart of the API server."""
    api = await Api.connect(Connection(kubeconfig=kubeconfig))
    try:
        await wait_until_in_force(api, kueue=True)
    finally:
        await api.close()


@contextmanager
def with_policies() -> Iterator[LocalCluster]:
    """A control plane with queuectl's manifests applied, for tests with and without a controller. Missing programs are built first."""
    with LocalCluster.start(SPEC, progress=LineProgress()) as cluster:
        asyncio.run(set_up(cluster.kubeconfig))
        yield cluster


@contextmanager
def without_controller(cluster: LocalCluster) -> Iterator[ControlPlane]:
    """A control plane of :func:`with_policies`, for tests that act as the controller."""
    yield ControlPlane(
        cluster, cluster.kubeconfig_for_service_account(SYSTEM_NAMESPACE, "queuectl")
    )


@contextmanager
def client_of_account(cluster: LocalCluster, namespace: str, name: str) -> Iterator[Client]:
    """A client with the rights of a ServiceAccount."""
    kubeconfig = cluster.kubeconfig_for_service_account(namespace, name)
    token = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]
    client = Client(cluster.server, cluster.authority, token)
    try:
        yield client
    finally:
        client.close()


def until_deleted(client: Client) -> None:
    """Wait for the end of the namespaces that tests have deleted, with their jobs and pods."""

    def none_ends() -> bool:
        there = client.get("/api/v1/namespaces")["items"]
        return not any("deletionTimestamp" in one["metadata"] for one in there)

    wait_until(none_ends, "the end of deleted namespaces", 60.0)


@pytest.fixture(scope="module")
def control_plane(shared_resource: SharedResource) -> ControlPlane:
    """16 nodes of 8 GPUs: 2 blocks of 2 racks of 4."""
    return shared_resource.get(with_policies, without_controller)
