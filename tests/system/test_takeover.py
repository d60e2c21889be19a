"""Taking over from a Kueue that was stopped: its objects still stand in the API server, and nobody restarts.

The order is that of docs/coming-from-kueue.md: jobs and Kueue's objects are there first, then queuectl's policies, then the
controller, then the configuration as kubectl prints it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from queuectl.cli.main import app
from queuectl.cluster.client import Api, Connection
from queuectl.cluster.takeover import read_admissions
from queuectl.demo import manifests as m
from queuectl.demo.controller import Controller, install
from queuectl.demo.manifests import Document, Pods
from queuectl.demo.recorder import Recorder
from queuectl.demo.rest import Rest
from queuectl.domain.quantity import GPU
from queuectl.domain.records import PriorAdmission
from queuectl.localcluster import ClusterSpec, LocalCluster, NodeSpec, RequestError
from queuectl.localcluster.client import Client, wait_until
from queuectl.localcluster.progress import Lines
from tests.support.kueue import of_kueue, workload
from tests.system.acts import die, kubectl, reason, remove, until_reason
from tests.system.house import BLOCK, QUICK, RACK, House, Room

pytestmark = pytest.mark.system

NAMESPACE = "research"
KUEUE = "kueue.x-k8s.io"
VERSION = f"{KUEUE}/v1beta2"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SCOPES = {
    "ClusterQueue": "Cluster",
    "LocalQueue": "Namespaced",
    "Cohort": "Cluster",
    "ResourceFlavor": "Cluster",
    "Topology": "Cluster",
    "WorkloadPriorityClass": "Cluster",
    "Workload": "Namespaced",
}
CONFIGURATION = [kind for kind in SCOPES if kind != "Workload"]


def plural(kind: str) -> str:
    known = {"Topology": "topologies", "WorkloadPriorityClass": "workloadpriorityclasses"}
    return known.get(kind, f"{kind.lower()}s")


def definition(kind: str) -> Document:
    """Kueue's own says more of the fields; what stands in an object is the same."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "served": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural(kind)}.{KUEUE}",
            "annotations": {"api-approved.kubernetes.io": "https://example.org/test"},
        },
        "spec": {
            "group": KUEUE,
            "scope": SCOPES[kind],
            "names": {"plural": plural(kind), "kind": kind, "listKind": f"{kind}List"},
            "versions": [
                version | {"name": "v1beta1", "storage": False},
                version | {"name": "v1beta2", "storage": True},
            ],
        },
    }


def store(client: Client, document: Document) -> Document:
    """Create an object of Kueue's and then its status, as Kueue does."""
    path = client.path_of(document)
    made = client.create(path.rsplit("/", 1)[0], document)
    if "status" in document:
        made = client.patch(f"{path}/status", {"status": document["status"]})
    return made


def configuration() -> list[Document]:
    """Two flavors of the same nodes: where a gang runs does not tell which of them it was charged to."""
    linux = {"kubernetes.io/os": "linux"}  # Kueue asks for a label where there is a topology
    queue = m.cluster_queue("pool", "gpu", {GPU: 16, "cpu": 1000})
    [group] = queue["spec"]["resourceGroups"]
    spot = m.cluster_queue("pool", "spot", {GPU: 32, "cpu": 1000})
    group["flavors"] += spot["spec"]["resourceGroups"][0]["flavors"]
    queue["spec"]["cohortName"] = "all"
    queue["metadata"]["finalizers"] = [f"{KUEUE}/resource-in-use"]
    queue["status"] = {"pendingWorkloads": 3, "conditions": []}
    cohort: Document = {"kind": "Cohort", "metadata": {"name": "all"}, "spec": {}}
    documents = [
        m.topology("gpus", BLOCK, RACK),
        m.flavor("gpu", topology="gpus", **linux),
        m.flavor("spot", topology="gpus", **linux),
        m.priority_class("urgent", 100),
        cohort,
        queue,
        m.local_queue(NAMESPACE, "team", "pool"),
    ]
    return [document | {"apiVersion": VERSION} for document in documents]


def gang(kind: str, name: str, *, running: bool, **options: Any) -> Document:
    """Two pods of 8 GPUs."""
    pods = Pods(2, gpus=8)
    if kind == "Job":
        document = m.job(name, NAMESPACE, None, pods)
    else:
        one = Pods(1, gpus=8)
        document = m.pytorchjob(name, NAMESPACE, None, master=one, worker=one)
    return of_kueue(document, "team", running=running, **options)


def podsets(job: Mapping[str, Any]) -> dict[str, int]:
    return {"main": 2} if job["kind"] == "Job" else {"master": 1, "worker": 1}


def pods_of(client: Client, name: str) -> list[Document]:
    """Those of a job that run, by rank where they have one."""
    listed = client.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    own = [
        pod
        for pod in listed
        if pod["metadata"]["name"].startswith(f"{name}-") and pod["status"]["phase"] == "Running"
    ]
    index = "batch.kubernetes.io/job-completion-index"
    return sorted(own, key=lambda pod: int(pod["metadata"]["labels"].get(index, 0)))


def runs(client: Client, name: str) -> bool:
    return len(pods_of(client, name)) == 2


def uids(pods: Sequence[Document]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


RUNNING = {"fold": "Job", "train": "PyTorchJob"}
WAITING = {"third": "Job", "first": "PyTorchJob", "second": "Job"}


def left_by_kueue(client: Client) -> None:
    """Two gangs that it let run, and three that it held back: in another order than the jobs were made in."""
    for kind in SCOPES:
        client.create(CRDS, definition(kind))
    for kind in SCOPES:
        listed = f"/apis/{VERSION}/{plural(kind)}"
        wait_until(partial(client.exists, listed), listed, 20.0)
    client.apply(*m.namespaces([NAMESPACE]))
    for document in configuration():
        store(client, document)
    jobs = {}
    for name, kind in (RUNNING | WAITING).items():
        document = gang(kind, name, running=name in RUNNING)
        made = client.create(client.path_of(document).rsplit("/", 1)[0], document)
        jobs[name] = made | {"apiVersion": document["apiVersion"], "kind": kind}
    for name in RUNNING:
        wait_until(partial(runs, client, name), f"{name} runs", 60.0)
    hosts = [(str(pod["spec"]["nodeName"]), 1) for pod in pods_of(client, "fold")]
    for name in RUNNING:
        told = {"main": hosts} if name == "fold" else None
        admitted = workload(
            jobs[name], podsets(jobs[name]), admitted="spot", queue="pool", hosts=told
        )
        store(client, admitted)
    for name in sorted(WAITING):
        time.sleep(1.1)  # the server counts creation times in whole seconds
        store(client, workload(jobs[name], podsets(jobs[name])))


@pytest.fixture(scope="module")
def taken() -> Iterator[Room]:
    """The namespace of a Kueue that is gone, with queuectl in force and without any configuration."""
    nodes = NodeSpec(blocks=2, racks_per_block=2, hosts_per_rack=4)
    shape = ClusterSpec(nodes=(nodes,), fsync=False)
    with LocalCluster.start(shape, progress=Lines()) as cluster:
        left_by_kueue(cluster.client)
        install(cluster)
        controller = Controller.start(cluster, QUICK)
        try:
            controller.wait_ready()
            with Rest(controller.api) as rest, Recorder(cluster.kubeconfig) as recorder:
                room = Room(House(cluster, controller, rest), NAMESPACE, recorder)
                listed = [
                    gang(kind, name, running=False) for name, kind in (RUNNING | WAITING).items()
                ]
                room.made += map(cluster.client.path_of, listed)
                yield room
                room.audit()
                room.empty()
        finally:
            controller.stop()


def test_nobody_restarts_and_everybody_keeps_his_place(taken: Room) -> None:
    room, client = taken, taken.client
    before = {name: uids(pods_of(client, name)) for name in RUNNING}
    stored = {path: client.get(path)["metadata"]["generation"] for path in room.made}
    assert not RUNNING.keys() & room.workloads(), "without a queue what runs is left alone"

    kinds = ",".join(f"{plural(kind)}.{KUEUE}" for kind in CONFIGURATION)
    printed = kubectl(room.house, "get", kinds, "-A", "-o", "yaml")
    assert {one["kind"] for one in yaml.safe_load(printed)["items"]} == set(CONFIGURATION)
    command = ["apply", "-f", "-", "--server", room.house.controller.api]
    applied = CliRunner().invoke(app, command, input=printed)
    assert applied.exit_code == 0, applied.output
    assert "clusterqueue/pool created" in applied.output

    for name in RUNNING:
        adopted = room.until_state(name, "Running")
        assert adopted["clusterQueue"] == "pool"
        assert "Adopted" in [line["reason"]["code"] for line in room.history(name)]
        placed = room.rest.explain(NAMESPACE, name)["placement"]["podSets"]
        assert {flavor for one in placed for flavor in one["flavors"].values()} == {"spot"}
    # `spot` is full with the two; `gpu` has room for one, and that is who queued first.
    room.until_state("first", "Running")
    for name in ("second", "third"):
        until_reason(room, name, "Pending", "WaitingForQuota")
    die(room)
    room.until(room.workloads, "the controller answers")
    assert reason(room, "second") == ("Pending", "WaitingForQuota")
    assert {name: uids(pods_of(client, name)) for name in RUNNING} == before
    for path, generation in stored.items():
        if path.rsplit("/", 1)[1] in RUNNING:
            assert client.get(path)["metadata"]["generation"] == generation, "nothing was written"

    # Who asks anew stands behind those who waited, and goes before them only by his priority.
    room.job("new", Pods(2, gpus=8), queue="team")
    room.job("vip", Pods(2, gpus=8), queue="team", priority_class="urgent")
    room.until(lambda: room.state("vip") in ("Reserved", "Running"), "the class is taken over, too")
    room.until_state("vip", "Running")
    evicted = {name for name, one in room.workloads().items() if one["evictions"]}
    assert len(evicted) == 1
    remove(room, "vip")
    (again,) = evicted
    room.until_state(again, "Running")
    follow = [name for name in ("second", "third", "new") if name != again]
    for leaves, follows in zip(RUNNING, follow, strict=False):
        remove(room, leaves)
        room.until_state(follows, "Running")
        behind = follow[follow.index(follows) + 1 :]
        assert {room.state(name) for name in behind} == {"Pending"}


def test_workloads_are_read_although_nobody_converts_them_any_more(taken: Room) -> None:
    """Older Kueues store ``v1beta1`` and convert to ``v1beta2`` by a webhook, which is gone with them."""
    client = taken.client
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
    job = client.get(next(path for path in taken.made if path.endswith("/third")))
    document = workload(
        job | {"apiVersion": "batch/v1", "kind": "Job"}, {"main": 2}, version="v1beta1"
    )
    del document["metadata"]["finalizers"]

    def stored() -> bool:
        """Whether the server goes by the new definition already: then it cannot show it as ``v1beta2``."""
        client.create(collection, document)
        if not converts(client, listed):
            return True
        client.delete(f"{collection}/{document['metadata']['name']}")
        return False

    wait_until(stored, "a Workload that nobody converts", 20.0)
    found = asyncio.run(admissions(taken))
    assert [one.uid for one in found] == [job["metadata"]["uid"]]


def converts(client: Client, listed: str) -> bool:
    try:
        client.get(listed)
    except RequestError:
        return False
    return True


async def admissions(room: Room) -> list[PriorAdmission]:
    api = await Api.connect(Connection(kubeconfig=room.house.cluster.kubeconfig))
    try:
        return await read_admissions(api)
    finally:
        await api.close()
