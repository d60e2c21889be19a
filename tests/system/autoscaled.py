"""A real control plane without nodes, for which the simulated autoscaler of tests/support/autoscaler.py makes nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from queuectl.cluster.apply import optional
from queuectl.demo import scenario as m
from queuectl.localcluster import LocalCluster, NodeSpec
from queuectl.localcluster.client import Client, wait_until
from tests.support.autoscaler import CLASS, GPU, Document
from tests.support.definitions import definition
from tests.system.installation import SECONDS, Installation, Workspace, installed, policies

GROUP: Final = "autoscaling.x-k8s.io"
PLURAL: Final = "provisioningrequests"
REQUESTS: Final = f"/apis/{GROUP}/v1/{PLURAL}"


@contextmanager
def with_requests(cluster: LocalCluster) -> Iterator[None]:
    """The admission of deploy/ with the right to request nodes, where ProvisioningRequests are served and no nodes exist."""
    client = cluster.client
    client.apply(definition(GROUP, "ProvisioningRequest", PLURAL, "v1", scope="Namespaced"))
    wait_until(lambda: bool(client.get(REQUESTS)), "ProvisioningRequests are served", SECONDS)
    with policies(cluster):
        client.apply(*optional("provisioning"))
        without_nodes(client)
        yield


def without_nodes(client: Client) -> None:
    """Delete all nodes."""
    for node in client.get("/api/v1/nodes")["items"]:
        client.delete(f"/api/v1/nodes/{node['metadata']['name']}")


@contextmanager
def autoscaled() -> Iterator[Installation]:
    """No nodes."""
    spec = NodeSpec(racks_per_block=1, hosts_per_rack=1)
    with installed(spec, admission=with_requests, operators=()) as built:
        yield built


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


def make_nodes(
    workspace: Workspace, gpus: int, first: Document | None = None, **retries: int
) -> None:
    """Give the queue of a workspace so many GPUs, and a check that makes nodes.

    ``first``: a ResourceFlavor with as much quota before the other one. ``retries``: the retryStrategy of the check.
    """
    name = workspace.namespace
    queue = m.cluster_queue(name, "gpu", {GPU: gpus, "cpu": "1M"})
    queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": name}]}
    named = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": name}
    head: dict[str, Any] = {"apiVersion": "queuectl.dev/v1", "metadata": {"name": name}}
    check = {"controllerName": "kueue.x-k8s.io/provisioning-request", "parameters": named}
    settings = {"provisioningClassName": CLASS, "managedResources": [GPU], "retryStrategy": retries}
    if first is not None:
        (group,) = queue["spec"]["resourceGroups"]
        group["flavors"].insert(0, {**group["flavors"][0], "name": first["metadata"]["name"]})
    workspace.rest.apply(
        [
            *([first] if first is not None else []),
            {**head, "kind": "ProvisioningRequestConfig", "spec": settings},
            {**head, "kind": "AdmissionCheck", "spec": check},
            queue,
        ]
    )
