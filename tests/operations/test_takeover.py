"""Taking over from a stopped Kueue: its objects are still in the API server, and no gang restarts.

The order is that of docs/how-to/coming-from-kueue.md, whose commands are typed: jobs and Kueue's objects are there first, then
queuectl's policies, then the controller, then the configuration as kubectl prints it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import yaml

from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.takeover import read_admissions
from queuectl.demo.api_connection import ApiConnection
from queuectl.demo.controller import install
from queuectl.demo.recorder import Recorder
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.jobs import PriorAdmission
from queuectl.localcluster import ApiServerError, ClusterSpec, LocalCluster, NodeSpec
from queuectl.localcluster.client import Client, wait_until
from queuectl.localcluster.progress import LineProgress
from tests.support.controllers import CheckedController
from tests.support.kueue import workload
from tests.system.actions import reason, remove, restart_controller, until_reason
from tests.system.demo_cluster import create_secret, tools
from tests.system.installation import QUICK, Installation, Workspace
from tests.system.leftovers import (
    CRDS,
    KUEUE,
    NAMESPACE,
    RUNNING,
    SCOPES,
    VERSION,
    gangs,
    leave,
    pods_of,
    uids,
)
from tests.system.transcript import Page, shell

pytestmark = [pytest.mark.operations, pytest.mark.timeout(900)]

INSTALLED = ("queuectl", "sed")
"""The commands of the page that do not need a Kueue: tests/system/docs/test_operate.py types them."""
PODS = ("kubectl get pods",)
"""The commands that tests/operations/test_takeover_kinds.py types."""
ON_NODES = (
    "helm upgrade",
    "kubectl -n queuectl-system rollout",
    "(cat kueue.yaml",
    "kubectl -n queuectl-system exec",
)
"""The commands that need pods of queuectl: tests/adoption types them."""
WITH_HELM = (
    "cat > values.yaml",
    "helm",
    "kubectl create -f",
    "kubectl -n queuectl-system rollout",
    "kubectl -n queuectl-system exec",
)
"""The commands of docs/how-to/install.md that tests/operations/test_install.py types."""


@dataclass(frozen=True)
class Taken:
    """The namespace, and a shell where the configuration is saved."""

    workspace: Workspace
    page: Page


@pytest.fixture(scope="module")
def taken() -> Iterator[Taken]:
    """The namespace of a removed Kueue, with queuectl installed and without configuration."""
    nodes = NodeSpec(blocks=2, racks_per_block=2, hosts_per_rack=4)
    shape = ClusterSpec(nodes=(nodes,), fsync=False)
    with LocalCluster.start(shape, progress=LineProgress()) as cluster:
        leave(cluster.client)
        with shell(tools(cluster)) as started:
            page = Page("coming-from-kueue.md", started)
            page.type("kubectl get clusterqueues,")
            page.type("kubectl -n kueue-system get configmap")
            for begins in ("-n kueue-system scale", "delete mutating"):
                page.type(f"kubectl {begins}")
            install_with_kustomize(Page("install.md", started))
            page.type("kubectl apply -k")
            page.type("kubectl -n queuectl-system scale")
            page.type("kubectl apply -f")
            install(cluster, "kueue-keys")
            controller = CheckedController.start(cluster, QUICK)
            try:
                controller.wait_ready()
                started.type(f"export QUEUECTL_SERVER={controller.api}")
                with (
                    ApiConnection(controller.api) as rest,
                    Recorder(cluster.kubeconfig) as recorder,
                ):
                    workspace = Workspace(
                        Installation(cluster, controller, rest), NAMESPACE, recorder
                    )
                    workspace.made += map(cluster.client.path_of, gangs())
                    yield Taken(workspace, page)
                    workspace.audit()
                    workspace.empty()
            finally:
                controller.stop()


def install_with_kustomize(page: Page) -> None:
    """Install queuectl with the commands of the page."""
    create_secret(page)
    page.write("kustomization.yaml")
    page.type("kubectl apply -k")
    page.end(*WITH_HELM)


def test_no_gang_restarts_and_each_keeps_its_position(taken: Taken) -> None:
    workspace, client, page = taken.workspace, taken.workspace.client, taken.page
    before = {name: uids(pods_of(client, name)) for name in RUNNING}
    stored = {path: client.get(path)["metadata"]["generation"] for path in workspace.made}
    assert not RUNNING.keys() & workspace.workloads(), (
        "a running gang without a queue is not managed"
    )

    saved = yaml.safe_load((page.shell.folder / "kueue.yaml").read_text())
    assert {one["kind"] for one in saved["items"]} == SCOPES.keys() - {"Workload"}
    status, printed = page.shell.type("queuectl apply -f kueue.yaml -f kueue-manager.yaml")
    assert status == 0, page.shell.errors
    assert "clusterqueue/pool created" in printed
    page.end(*INSTALLED, *PODS, *ON_NODES)

    for name in RUNNING:
        adopted = workspace.until_state(name, "Running")
        assert adopted["clusterQueue"] == "pool"
        assert "Adopted" in [line["reason"]["code"] for line in workspace.history(name)]
        placed = workspace.rest.explain(NAMESPACE, name)["placement"]["podSets"]
        assert {flavor for one in placed for flavor in one["flavors"].values()} == {"spot"}
    # `spot` is full with the two; `gpu` has room for one, for the gang that queued first.
    workspace.until_state("first", "Running")
    for name in ("second", "third"):
        until_reason(workspace, name, "Pending", "WaitingForQuota")
    restart_controller(workspace)
    workspace.until(workspace.workloads, "the controller answers")
    assert reason(workspace, "second") == ("Pending", "WaitingForQuota")
    assert {name: uids(pods_of(client, name)) for name in RUNNING} == before
    for path, generation in stored.items():
        if path.rsplit("/", 1)[1] in RUNNING:
            assert client.get(path)["metadata"]["generation"] == generation, "nothing was written"

    # A new gang queues behind the earlier ones, and before them only by priority.
    workspace.job("new", PodSetManifest(2, gpus=8), queue="team")
    workspace.job("vip", PodSetManifest(2, gpus=8), queue="team", priority_class="urgent")
    workspace.until(
        lambda: workspace.state("vip") in ("Reserved", "Running"), "the class is taken over as well"
    )
    workspace.until_state("vip", "Running")
    evicted = {name for name, one in workspace.workloads().items() if one["evictions"]}
    assert len(evicted) == 1
    remove(workspace, "vip")
    (again,) = evicted
    workspace.until_state(again, "Running")
    follow = [name for name in ("second", "third", "new") if name != again]
    for leaves, follows in zip(RUNNING, follow, strict=False):
        remove(workspace, leaves)
        workspace.until_state(follows, "Running")
        behind = follow[follow.index(follows) + 1 :]
        assert {workspace.state(name) for name in behind} == {"Pending"}


def test_workloads_are_read_without_their_conversion_webhook(taken: Taken) -> None:
    """Older Kueues store ``v1beta1`` and convert to ``v1beta2`` by a webhook, which no longer runs."""
    workspace, client = taken.workspace, taken.workspace.client
    listed = f"/apis/{VERSION}/namespaces/{NAMESPACE}/workloads"
    for name in [one["metadata"]["name"] for one in client.get(listed)["items"]]:
        client.patch(f"{listed}/{name}", {"metadata": {"finalizers": None}})
        client.delete(f"{listed}/{name}", missing_ok=True)
    path = f"{CRDS}/workloads.{KUEUE}"
    older = client.get(path)
    for version in older["spec"]["versions"]:
        version["storage"] = version["name"] == "v1beta1"
    gone = {"url": "https://127.0.0.1:9/convert"}
    older["spec"]["conversion"] = {
        "strategy": "Webhook",
        "webhook": {"clientConfig": gone, "conversionReviewVersions": ["v1"]},
    }
    client.patch(path, {"spec": older["spec"]})
    collection = listed.replace("v1beta2", "v1beta1")
    job = client.get(next(path for path in workspace.made if path.endswith("/third")))
    document = workload(
        job | {"apiVersion": "batch/v1", "kind": "Job"}, {"main": 2}, version="v1beta1"
    )
    del document["metadata"]["finalizers"]

    def stored() -> bool:
        """Whether the server uses the new definition: then it cannot return it as ``v1beta2``."""
        client.create(collection, document)
        if not converts(client, listed):
            return True
        client.delete(f"{collection}/{document['metadata']['name']}")
        return False

    wait_until(stored, "a Workload without conversion", 20.0)
    found = asyncio.run(admissions(workspace))
    assert [one.uid for one in found] == [job["metadata"]["uid"]]


def converts(client: Client, listed: str) -> bool:
    try:
        client.get(listed)
    except ApiServerError:
        return False
    return True


async def admissions(workspace: Workspace) -> list[PriorAdmission]:
    api = await Api.connect(Connection(kubeconfig=workspace.installation.cluster.kubeconfig))
    try:
        return await read_admissions(api)
    finally:
        await api.close()
