"""Gangs for which an autoscaler makes nodes, on a real control plane without nodes. The autoscaler is simulated (tests/support/autoscaler.py)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.client import Client
from queuectl.localcluster.errors import ApiServerError
from tests.support.autoscaler import GPU, Document, SimulatedAutoscaler
from tests.system.actions import until_reason
from tests.system.autoscaled import OnServer, autoscaled, make_nodes, without_nodes
from tests.system.installation import RACK, Installation, Workspace

pytestmark = pytest.mark.operations

SPOT = {"example.com/capacity": "spot"}

ADDED = list(NodeSpec(racks_per_block=2, hosts_per_rack=4, prefix="made-").documents())


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    """No nodes."""
    with autoscaled() as one:
        yield one


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
    workspace.job("train", PodSetManifest(4, gpus=8, required=RACK))
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
    workspace.job("again", PodSetManifest(4, gpus=8, required=RACK))
    workspace.until(lambda: runs("again"), "again runs on the nodes that exist now")
    assert len(autoscaler.added) == 4
    assert len(autoscaler.asked) == 1


def spot(name: str, nodes: int) -> Document:
    """A flavor of nodes in racks of four."""
    template = {
        "allocatable": {"cpu": "96", "memory": "1Ti", GPU: 8},
        "maximumNodes": nodes,
        "nodesPerDomain": {RACK: 4},
    }
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": "ResourceFlavor",
        "metadata": {"name": name},
        "spec": {
            "topologyName": "gpus",
            "nodeLabels": SPOT,
            "policy": {"nodeTemplate": template},
        },
    }


def test_the_nodes_of_the_next_flavor_are_made_after_the_last_request_of_the_first_failed(
    workspace: Workspace,
) -> None:
    without_nodes(workspace.client)
    name = f"{workspace.namespace}-spot"
    make_nodes(workspace, 64, spot(name, 4), backoffLimitCount=0)
    server = OnServer(workspace.client)
    autoscaler = SimulatedAutoscaler(server, lambda number: ADDED[number])

    workspace.job("train", PodSetManifest(4, gpus=8, required=RACK))
    workspace.until(lambda: list(server.requests()), "a request")
    (request,) = server.requests()
    assert selectors(server, request) == [SPOT]
    autoscaler.set(request, "Failed", "OutOfCapacity", "no spot capacity")

    def runs() -> bool:
        autoscaler.step()
        return workspace.state("train") == "Running"

    workspace.until(runs, "train runs on nodes of the next flavor")
    (second,) = server.requests()
    assert selectors(server, second) == [None]
    texts = [line["reason"]["message"] for line in workspace.history("train")]
    assert any(f"no nodes of flavor {name} are requested" in text for text in texts), texts


def test_no_nodes_are_requested_of_a_flavor_whose_template_a_gang_never_fits(
    workspace: Workspace,
) -> None:
    without_nodes(workspace.client)
    make_nodes(workspace, 64, spot(f"{workspace.namespace}-spot", 3))
    server = OnServer(workspace.client)
    workspace.job("four", PodSetManifest(4, gpus=8))
    workspace.until(
        lambda: [selectors(server, request) for request in server.requests()] == [[None]],
        "a request with the template of its pods",
    )
    workspace.clear()

    workspace.rest.apply([only(workspace, f"{workspace.namespace}-spot")])
    workspace.job("five", PodSetManifest(5, gpus=8))
    found = until_reason(workspace, "five", "Pending", "ShapeNeverFits")
    assert "(at most 3 nodes): room for 2 more pods" in found["reason"]["message"]
    assert not [r for r in server.requests() if "five" in r["metadata"]["name"]]


def only(workspace: Workspace, flavor: str) -> Document:
    """The ClusterQueue with this flavor alone."""
    queue = m.cluster_queue(workspace.namespace, flavor, {GPU: 64, "cpu": "1M"})
    checks = [{"name": workspace.namespace}]
    queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": checks}
    return queue


def selectors(server: OnServer, request: Document) -> list[Any]:
    """The node selectors of the PodSets of a request."""
    names = [podset["podTemplateRef"]["name"] for podset in request["spec"]["podSets"]]
    templates = [server.template(request["metadata"]["namespace"], name) for name in names]
    return [one["template"]["spec"].get("nodeSelector") for one in templates if one is not None]


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
    with pytest.raises(ApiServerError, match="queuectl creates and deletes only requests"):
        own.delete(f"{path}/theirs")
    own.delete(f"{path}/ours")
    own.close()
    assert not client.exists(f"{path}/ours")
    client.delete(f"{path}/theirs")
