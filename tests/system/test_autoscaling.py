"""Gangs for which an autoscaler makes nodes, on a real control plane without nodes. The autoscaler is simulated (tests/support/autoscaler.py)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from queuectl.cluster.apply import optional
from queuectl.demo import manifests as m
from queuectl.demo.manifests import Pods
from queuectl.localcluster import LocalCluster, NodeSpec
from queuectl.localcluster.client import Client, wait_until
from queuectl.localcluster.errors import RequestError
from tests.support.autoscaler import CLASS, GPU, Document, SimulatedAutoscaler
from tests.support.definitions import definition
from tests.support.shared_resource import SharedResource
from tests.system.installation import RACK, SECONDS, Installation, Workspace, installed, policies

pytestmark = pytest.mark.system

GROUP, PLURAL = "autoscaling.x-k8s.io", "provisioningrequests"
REQUESTS = f"/apis/{GROUP}/v1/{PLURAL}"
ADDED = list(NodeSpec(racks_per_block=2, hosts_per_rack=4, prefix="made-").documents())


@contextmanager
def with_requests(cluster: LocalCluster) -> Iterator[None]:
    """The admission of deploy/ with the right to request nodes, where ProvisioningRequests are served and there are no nodes."""
    client = cluster.client
    client.apply(definition(GROUP, "ProvisioningRequest", PLURAL, "v1", scope="Namespaced"))
    wait_until(lambda: bool(client.get(REQUESTS)), "ProvisioningRequests are served", SECONDS)
    with policies(cluster):
        client.apply(*optional("provisioning"))
        for node in client.get("/api/v1/nodes")["items"]:
            client.delete(f"/api/v1/nodes/{node['metadata']['name']}")
        yield


def _installed() -> AbstractContextManager[Installation]:
    spec = NodeSpec(racks_per_block=1, hosts_per_rack=1)
    return installed(spec, admission=with_requests, operators=())


@pytest.fixture(scope="module")
def installation(shared_resource: SharedResource) -> Installation:
    """No nodes."""
    return shared_resource.get(_installed)


@dataclass
class OnServer:
    """A real API server, as the simulated autoscaler uses it."""

    client: Client

    def requests(self) -> Iterable[Document]:
        found: list[Document] = self.client.get(REQUESTS)["items"]
        return found

    def template(self, namespace: str, name: str) -> Document | None:
        path = f"/api/v1/namespaces/{namespace}/podtemplates/{name}"
        return self.client.get(path) if self.client.exists(path) else None

    def free(self) -> dict[str, int]:
        free = {
            node["metadata"]["name"]: int(node["status"]["allocatable"].get(GPU, 0))
            for node in self.client.get("/api/v1/nodes")["items"]
        }
        for pod in self.client.get("/api/v1/pods")["items"]:
            node = pod["spec"].get("nodeName")
            if node in free and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                for container in pod["spec"]["containers"]:
                    free[node] -= int(container["resources"].get("requests", {}).get(GPU, 0))
        return free

    def add_node(self, document: Document) -> None:
        self.client.create("/api/v1/nodes", document)

    def set_conditions(self, request: Document, conditions: list[Document]) -> None:
        meta = request["metadata"]
        path = f"/apis/{GROUP}/v1/namespaces/{meta['namespace']}/{PLURAL}/{meta['name']}/status"
        self.client.patch(path, {"status": {"conditions": conditions}})


@pytest.fixture
def workspace(installation: Installation) -> Iterator[Workspace]:
    """A queue of 64 GPUs with a check that makes nodes."""
    with installation.workspace(64) as one:
        name = one.namespace
        queue = m.cluster_queue(name, "gpu", {GPU: 64, "cpu": "1M"})
        queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": name}]}
        named = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": name}
        head: dict[str, Any] = {"apiVersion": "queuectl.dev/v1", "metadata": {"name": name}}
        check = {"controllerName": "kueue.x-k8s.io/provisioning-request", "parameters": named}
        settings = {"provisioningClassName": CLASS, "managedResources": [GPU]}
        one.rest.apply(
            [
                {**head, "kind": "ProvisioningRequestConfig", "spec": settings},
                {**head, "kind": "AdmissionCheck", "spec": check},
                queue,
            ]
        )
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
