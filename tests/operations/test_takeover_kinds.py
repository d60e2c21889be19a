"""Taking over jobs of the other kinds from a stopped Kueue, with the operator of each kind: docs/how-to/coming-from-kueue.md."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.audit import checks
from queuectl.demo.controller import KUEUE_KEYS, install
from queuectl.demo.recorder import Recorder
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.localcluster import LocalCluster, NodeSpec
from queuectl.localcluster.client import Client, wait_until
from queuectl.objects import keys
from queuectl.objects.kinds import KINDS
from queuectl.objects.kinds.description import merged, nested
from tests.kinds.entries import ENTRIES, OPERATORS, RAYSERVICE
from tests.kinds.entry import Entry
from tests.support.kueue import GPU, QUEUE_LABEL
from tests.support.simulated_ray import simulated_ray
from tests.support.spark_drivers import simulated_drivers
from tests.system.demo_cluster import tools
from tests.system.installation import BLOCK, RACK, Installation, Workspace, installed
from tests.system.transcript import Page, shell

pytestmark = [pytest.mark.operations, pytest.mark.timeout(600)]

NAMESPACE = "research"
FINALIZER = "kueue.x-k8s.io/managed"
NODES = NodeSpec(racks_per_block=2, hosts_per_rack=8)
OTHERS = tuple(
    one for one in ENTRIES if one.kind in KINDS and one.kind not in ("Job", "PyTorchJob")
)
ALL = (*OTHERS, RAYSERVICE)
ADOPTED = ("TFJob", "XGBoostJob", "PaddleJob", "JAXJob")
"""The labels of their operator name the podset of each pod. Pods of the other kinds do not name their gang before queuectl starts it."""


def runs(entry: Entry) -> str:
    return f"runs-{entry.kind.lower()}"


def waits(entry: Entry) -> str:
    return f"waits-{entry.kind.lower()}"


def of_kueue(entry: Entry, name: str, *, running: bool) -> list[Document]:
    """A job in a queue of Kueue, with its runtime if it has one."""
    documents = entry.documents(name, NAMESPACE, PodSetManifest(4, gpus=1), None)
    *others, job = documents
    if entry.kind in KINDS:
        path = KINDS[entry.kind].description.suspend  # type: ignore[attr-defined]
        job = merged([job, nested(path, not running)])
    del job["metadata"]["labels"][keys.QUEUE_LABEL]
    job["metadata"]["labels"][QUEUE_LABEL] = "main"
    return [*others, job]


def pods_of_kueue() -> list[Document]:
    """A pod that runs, a pod that waits, and a Deployment, as Kueue leaves them: its webhook copies the label of the queue."""
    template = PodSetManifest(1, gpus=1).template("main", None, restart="Always")
    template["metadata"]["labels"] = {"app": "web", QUEUE_LABEL: "main"}
    meta = {"namespace": NAMESPACE, "labels": {QUEUE_LABEL: "main"}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    pod = {"apiVersion": "v1", "kind": "Pod"}
    waiting = template["spec"] | {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    owned = meta | {"finalizers": [FINALIZER]}
    return [
        pod | {"metadata": owned | {"name": "pod-runs"}, "spec": template["spec"]},
        pod | {"metadata": owned | {"name": "pod-waits"}, "spec": waiting},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta | {"name": "web"},
            "spec": spec,
        },
    ]


def all_run(client: Client, entry: Entry) -> bool:
    return len(uids(client, runs(entry))) == 4


def uids(client: Client, name: str) -> set[str]:
    """Of the running pods of a job."""
    pods = client.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    return {
        pod["metadata"]["uid"]
        for pod in pods
        if pod["metadata"]["name"].startswith(f"{name}-") and pod["status"]["phase"] == "Running"
    }


@contextmanager
def left(cluster: LocalCluster) -> Iterator[None]:
    """Two jobs of each kind from before queuectl: one runs, one is suspended. And pods, and a RayService, which has no field to suspend it."""
    client = cluster.client
    client.apply(*m.namespaces([NAMESPACE]))
    documents = [*pods_of_kueue(), *of_kueue(RAYSERVICE, runs(RAYSERVICE), running=True)]
    for one in OTHERS:
        documents += of_kueue(one, runs(one), running=True)
        documents += of_kueue(one, waits(one), running=False)
    for document in documents:
        client.create(client.path_of(document).rsplit("/", 1)[0], document)
    with simulated_drivers(cluster):
        for one in ALL:
            wait_until(partial(all_run, client, one), f"{runs(one)} runs", 120.0)
        install(cluster, KUEUE_KEYS)
        yield


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    spec: dict[str, Any] = {"operators": OPERATORS}
    with simulated_ray() as ray, installed(NODES, None, left, proxy=ray.address, **spec) as one:
        ray.client = one.cluster.client
        yield one


@pytest.fixture(scope="module")
def left_pods(installation: Installation) -> dict[str, set[str]]:
    """The running pods of each kind while queuectl has no queue."""
    return {one.kind: uids(installation.cluster.client, runs(one)) for one in ALL}


@pytest.fixture(scope="module")
def workspace(installation: Installation, left_pods: dict[str, set[str]]) -> Iterator[Workspace]:
    """The namespace, with its queue. The recording begins before queuectl knows the queue, and so before it changes a job."""
    assert all(left_pods.values())
    client = installation.cluster.client
    with Recorder(installation.cluster.kubeconfig) as recorder:
        made = Workspace(installation, NAMESPACE, recorder)
        for one in OTHERS:
            for name in (runs(one), waits(one)):
                made.made += map(client.path_of, of_kueue(one, name, running=True))
        made.made += map(client.path_of, of_kueue(RAYSERVICE, runs(RAYSERVICE), running=True))
        made.made += map(client.path_of, pods_of_kueue())
        installation.rest.apply(
            [
                m.topology("gpus", BLOCK, RACK),
                m.flavor("gpu", topology="gpus"),
                m.cluster_queue("pool", "gpu", {GPU: 128, "cpu": "1M", "memory": "1P"}),
                m.local_queue(NAMESPACE, "main", "pool"),
            ]
        )
        try:
            yield made
            audit(recorder)
        finally:
            made.empty()


def audit(recorder: Recorder) -> None:
    """Replay everything and check it. The pods that Kueue started, of attempt 0, never had a gate."""
    recorder.settle()
    found = [problem for one in checks(recorder.recording()) for problem in one.problems]
    problems = [one for one in found if "a pod of attempt 0 lost its gates" not in one]
    assert not problems, "\n".join(problems)


def test_jobs_of_each_kind_are_adopted_or_queued_again(
    left_pods: dict[str, set[str]], workspace: Workspace
) -> None:
    client = workspace.client
    for one in OTHERS:
        workspace.until_state(waits(one), "Running")
    for one in ALL:
        workspace.until(partial(is_running, workspace, one), f"{runs(one)} runs")
        workspace.until(partial(all_run, client, one), f"all pods of {runs(one)} run")
        started_again(workspace, one, left_pods[one.kind])


def test_new_pods_of_a_deployment_are_queued_after_the_steps_of_the_page(
    installation: Installation, workspace: Workspace
) -> None:
    client = workspace.client
    assert not [name for name in workspace.workloads() if name.startswith(("pod-", "web-"))]
    with shell(tools(installation.cluster)) as started:
        page = Page("coming-from-kueue.md", started)
        page.type("kubectl get pods")
        page.type("kubectl get pods")
    pods = client.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    assert not [pod for pod in pods if FINALIZER in pod["metadata"].get("finalizers", ())]
    names = {pod["metadata"]["name"] for pod in pods}
    assert "pod-runs" in names
    assert "pod-waits" not in names
    [web] = [name for name in names if name.startswith("web-")]
    client.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{web}")

    def queued() -> bool:
        found = [one for name, one in workspace.workloads().items() if name.startswith("web-")]
        return [one["state"] for one in found] == ["Running"]

    workspace.until(queued, "the next pod of the Deployment is a gang")


def is_running(workspace: Workspace, entry: Entry) -> bool:
    return workspace.state(gang_of(workspace, entry)) == "Running"


def gang_of(workspace: Workspace, entry: Entry) -> str:
    """The name of its gang; "" while queuectl has none."""
    if entry is not RAYSERVICE:
        return runs(entry)
    return next((name for name in workspace.workloads() if name.startswith(runs(entry))), "")


def started_again(workspace: Workspace, entry: Entry, before: set[str]) -> None:
    """Whether its pods are those from before, and nothing else was started."""
    now = uids(workspace.client, runs(entry))
    name = gang_of(workspace, entry)
    attempt = workspace.workload(name)["attempt"]
    codes = [line["reason"]["code"] for line in workspace.history(name)]
    if entry.kind in ADOPTED:
        assert (now, attempt) == (before, 0), entry.kind
        assert "Adopted" in codes
    else:
        assert not now & before, entry.kind
        assert attempt == 1
        assert "Adopted" not in codes
