"""Gangs for which an autoscaler makes nodes, on a real control plane without nodes. The autoscaler is simulated (tests/support/autoscaler.py)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from queuectl.demo.manifests import Pods
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.client import Client
from queuectl.localcluster.errors import RequestError
from tests.support.autoscaler import SimulatedAutoscaler
from tests.support.shared_resource import SharedResource
from tests.system.autoscaled import OnServer, autoscaled, make_nodes
from tests.system.installation import RACK, Installation, Workspace

pytestmark = pytest.mark.system

ADDED = list(NodeSpec(racks_per_block=2, hosts_per_rack=4, prefix="made-").documents())


@pytest.fixture(scope="module")
def installation(shared_resource: SharedResource) -> Installation:
    """No nodes."""
    return shared_resource.get(autoscaled)


@pytest.fixture
def workspace(installation: Installation) -> Iterator[Workspace]:
    """A queue of 64 GPUs with a check that makes nodes."""
    with installation.workspace(64) as one:
        make_nodes(one, 64)
        yield one


def test_a_gang_starts_on_nodes_that_are_made_for_it(workspace: Workspace) -> None:
    autoscaler = SimulatedAutoscaler(OnServer(workspace.client), lambda number: ADDED[number])

    def runs(name: str) -> bool:
        autoscaler.step()
        return workspace.state(name) == "Running"

    began = time.monotonic()
    workspace.job("train", Pods(4, gpus=8, required=RACK))
    workspace.until(lambda: runs("train"), "train runs on nodes that are made for it")
    took = time.monotonic() - began
    print(
        f"{took:.1f} s from submission to running without a node; {len(autoscaler.added)} nodes were made for 4"
    )
    assert len(autoscaler.added) == 4
    assert {pod.node for pod in workspace.running("train")} == set(autoscaler.added)
    (request,) = OnServer(workspace.client).requests()
    pods = workspace.client.get(f"/api/v1/namespaces/{workspace.namespace}/pods")["items"]
    consumes = "autoscaling.x-k8s.io/consume-provisioning-request"
    assert {p["metadata"]["annotations"][consumes] for p in pods} == {request["metadata"]["name"]}

    workspace.clear()
    templates = f"/api/v1/namespaces/{workspace.namespace}/podtemplates"
    workspace.until(
        lambda: (
            not [*OnServer(workspace.client).requests(), *workspace.client.get(templates)["items"]]
        ),
        "the request and its templates are deleted",
    )
    workspace.job("again", Pods(4, gpus=8, required=RACK))
    workspace.until(lambda: runs("again"), "again runs on the nodes that exist now")
    assert len(autoscaler.added) == 4
    assert len(autoscaler.asked) == 1


def own_client(installation: Installation) -> Client:
    """A client with the rights of queuectl."""
    cluster = installation.cluster
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = "/api/v1/namespaces/queuectl-system/serviceaccounts/queuectl/token"
    token = cluster.client.create(path, request)["status"]["token"]
    return Client(cluster.server, cluster.authority, str(token))


def test_queuectl_deletes_only_its_own_requests(installation: Installation) -> None:
    client = installation.cluster.client
    own = own_client(installation)
    path = "/api/v1/namespaces/default/podtemplates"
    template = {"spec": {"containers": [{"name": "pod", "image": "pause"}]}}
    for name, marks in (("theirs", {}), ("ours", {"queuectl.dev/workload-uid": "u1"})):
        meta = {"name": name, "annotations": marks}
        client.create(
            path,
            {"apiVersion": "v1", "kind": "PodTemplate", "metadata": meta, "template": template},
        )
    with pytest.raises(RequestError, match="queuectl creates and deletes only requests"):
        own.delete(f"{path}/theirs")
    own.delete(f"{path}/ours")
    own.close()
    assert not client.exists(f"{path}/ours")
    client.delete(f"{path}/theirs")
