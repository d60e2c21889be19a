"""A real control plane with queuectl's manifests applied, and its identities.

A conftest imports the fixture ``control_plane`` from here and ``shared_resource`` from :mod:`tests.support.shared_resource`.

Other sizes: ``with running(ClusterSpec(nodes=...)) as plane``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from queuectl.cluster.apply import Document, apply, manifests, optional, wait_until_in_force
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.localcluster import ClusterSpec, LocalCluster, NodeSpec
from queuectl.localcluster.client import Client
from queuectl.localcluster.progress import LineProgress
from tests.support.shared_resource import SharedResource

SYSTEM_NAMESPACE = "queuectl-system"
SMALL = ClusterSpec(nodes=(NodeSpec(racks_per_block=2, hosts_per_rack=2),), fsync=False)

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


async def in_force(kubeconfig: Path) -> None:
    """Wait until the policies are in force, also after a restart of the API server."""
    api = await Api.connect(Connection(kubeconfig=kubeconfig))
    try:
        await wait_until_in_force(api, kueue=True)
    finally:
        await api.close()


@contextmanager
def running(spec: ClusterSpec = SMALL) -> Iterator[ControlPlane]:
    """Start a control plane. Missing programs are built first."""
    with LocalCluster.start(spec, progress=LineProgress()) as cluster:
        asyncio.run(set_up(cluster.kubeconfig))
        account = cluster.kubeconfig_for_service_account(SYSTEM_NAMESPACE, "queuectl")
        yield ControlPlane(cluster, account)


@pytest.fixture(scope="module")
def control_plane(shared_resource: SharedResource) -> ControlPlane:
    """Four nodes of eight GPUs in two racks."""
    return shared_resource.get(running)
