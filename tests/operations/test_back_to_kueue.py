"""From a real Kueue to queuectl and back, with the commands of docs/how-to/back-to-kueue.md: running gangs keep their pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.api_connection import ApiConnection
from queuectl.demo.controller import KUEUE_KEYS, install
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.quantity import GPU
from queuectl.handover.workloads import WorkloadOwner
from queuectl.localcluster import ApiServerError, ClusterSpec, LocalCluster, NodeSpec
from queuectl.localcluster.client import Client, wait_until
from queuectl.localcluster.operators import TRAINING_OPERATOR
from queuectl.localcluster.progress import LineProgress
from queuectl.objects import keys
from tests.bench.kueue.peer import API, Kueue
from tests.support.controllers import CheckedController
from tests.support.kueue import QUEUE_LABEL
from tests.support.real_kueue import kueue_folder
from tests.system.demo_cluster import tools
from tests.system.installation import BLOCK, QUICK, RACK
from tests.system.transcript import Page, Shell, shell

pytestmark = [pytest.mark.operations, pytest.mark.timeout(1200)]

SPACE = "research"
SECONDS = 60.0
NODES = NodeSpec(blocks=1, racks_per_block=2, hosts_per_rack=5)
QUOTA = 72
FRAMEWORKS = ("batch/job", "kubeflow.org/pytorchjob", "pod")
THERE = {"job-there": 2, "torch-there": 2, "pod-there": 1}
"""The gangs that Kueue starts, with their pods of 8 GPUs."""
OURS = {"job-ours": 2, "torch-ours": 2, "pod-ours": 1}
"""The gangs that queuectl starts. They have only its own label."""
WAITING = ("waits", "torch-waits")
"""The first one was queued by Kueue, the second one by queuectl."""
USED = 80
"""GPUs of both. The pod from before queuectl was outside its queues, so together they use more than the quota."""
IN_POD = "kubectl -n queuectl-system exec deployment/queuectl -- queuectl"
COMMANDS = (
    "get clusterqueues",
    "get workloads --state Starting",
    "get workloads --state Evicting",
    "config export",
)
"""The commands of the page that need the server. Here it runs outside the cluster."""
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"


@dataclass
class Return:
    """The cluster between the two controllers, and what was running before."""

    cluster: LocalCluster
    typing: Shell
    pods: dict[str, set[str]] = field(default_factory=dict)

    @property
    def client(self) -> Client:
        return self.cluster.client


def configuration() -> list[Document]:
    linux = {"kubernetes.io/os": "linux"}  # Kueue asks for a label where there is a topology
    quota: dict[str, int | str] = {GPU: QUOTA, "cpu": 1000, "memory": "1P"}
    documents = [
        m.topology("gpus", BLOCK, RACK),
        m.flavor("gpu", topology="gpus", **linux),
        m.cluster_queue("pool", "gpu", quota),
        m.local_queue(SPACE, "team", "pool"),
    ]
    return [one | {"apiVersion": API} for one in documents]


def gang(name: str, label: str, pods: int) -> Document:
    """A Job, a PyTorchJob or a pod in the queue, by its name."""
    one = PodSetManifest(1, gpus=8)
    if name.startswith("torch"):
        worker = PodSetManifest(pods - 1, gpus=8) if pods > 1 else None
        document = m.pytorchjob(name, SPACE, None, master=one, worker=worker)
    elif name.startswith("pod"):
        template = one.template("main", None, restart="Never")
        document = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": SPACE},
        }
        document["spec"] = template["spec"]
    else:
        document = m.job(name, SPACE, None, PodSetManifest(pods, gpus=8))
    document["metadata"]["labels"] = {label: "team"}
    return document


def submit(client: Client, name: str, label: str, pods: int) -> None:
    document = gang(name, label, pods)
    client.create(client.path_of(document).rsplit("/", 1)[0], document)


def running(client: Client, name: str) -> set[str]:
    """The uids of the running pods of a gang."""
    pods = client.get(f"/api/v1/namespaces/{SPACE}/pods")["items"]
    return {
        pod["metadata"]["uid"]
        for pod in pods
        if (pod["metadata"]["name"] == name or pod["metadata"]["name"].startswith(f"{name}-"))
        and pod["status"]["phase"] == "Running"
        and "deletionTimestamp" not in pod["metadata"]
    }


def until(done: Callable[[], Any], what: str) -> None:
    wait_until(lambda: bool(done()), what, SECONDS)


def until_running(client: Client, gangs: dict[str, int]) -> dict[str, set[str]]:
    for name, pods in gangs.items():
        until(partial(_runs, client, name, pods), f"{name} runs")
    return {name: running(client, name) for name in gangs}


def _runs(client: Client, name: str, pods: int) -> bool:
    return len(running(client, name)) == pods


def _is(rest: ApiConnection, name: str, expected: str) -> bool:
    return state(rest, name) == expected


def state(rest: ApiConnection, name: str) -> str:
    return str(rest.workloads(SPACE).get(f"{SPACE}/{name}", {}).get("state", ""))


def workloads(client: Client) -> dict[str, Document]:
    """Kueue's Workloads by the names of their owners."""
    listed = client.get(f"/apis/{API}/namespaces/{SPACE}/workloads")["items"]
    return {one["metadata"]["ownerReferences"][0]["name"]: one for one in listed}


def holds(workload: Document, condition: str) -> bool:
    conditions = workload.get("status", {}).get("conditions", ())
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)


def start_kueue(cluster: LocalCluster) -> Kueue:
    gates = {"VisibilityOnDemand": False}
    return Kueue.start(cluster, kueue_folder(), gates, FRAMEWORKS)


def stop_kueue(cluster: LocalCluster, kueue: Kueue) -> None:
    for kind in ("mutating", "validating"):
        listed = f"{REGISTRATION}/{kind}webhookconfigurations"
        for one in cluster.client.get(listed)["items"]:
            if not one["metadata"]["name"].startswith("queuectl"):
                cluster.client.delete(f"{listed}/{one['metadata']['name']}")
    kueue.stop()
    probe = gang("pod-probe", "probe", 1)

    def forgotten() -> bool:
        """The API server calls the webhooks for a moment longer."""
        try:
            cluster.client.create(f"/api/v1/namespaces/{SPACE}/pods", probe, dryRun="All")
        except ApiServerError:
            return False
        return True

    until(forgotten, "no webhook of Kueue is called")


def deployment() -> Document:
    labels = {"control-plane": "controller-manager"}
    container = {"name": "manager", "image": "registry.invalid/kueue:1"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "kueue-controller-manager", "namespace": "kueue-system"},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }


@pytest.fixture(scope="module")
def way() -> Iterator[Return]:
    """Gangs of Kueue, then taken over by queuectl, which starts others; then queuectl is removed."""
    shape = ClusterSpec(nodes=(NODES,), fsync=False, operators=(TRAINING_OPERATOR,))
    with LocalCluster.start(shape, progress=LineProgress()) as cluster:
        client = cluster.client
        client.apply(*m.namespaces([SPACE]))
        kueue = start_kueue(cluster)
        try:
            client.apply(*configuration())
            for name, pods in THERE.items():
                submit(client, name, QUEUE_LABEL, pods)
            before = until_running(client, THERE)
            submit(client, "waits", QUEUE_LABEL, 6)
            until(lambda: "waits" in workloads(client), "Kueue queues a job")
        finally:
            stop_kueue(cluster, kueue)
        client.apply(deployment())
        with shell(tools(cluster)) as typing:
            returning = Return(cluster, typing, before)
            under_queuectl(returning)
            yield returning


def under_queuectl(returning: Return) -> None:
    cluster, client, typing = returning.cluster, returning.client, returning.typing
    install(cluster, KUEUE_KEYS)
    controller = CheckedController.start(cluster, QUICK)
    try:
        controller.wait_ready()
        typing.type(f"export QUEUECTL_SERVER={controller.api}")
        with ApiConnection(controller.api) as rest:
            rest.apply(configuration())

            for name in ("job-there", "torch-there"):
                until(partial(_is, rest, name, "Running"), f"{name} is adopted")
            Page("coming-from-kueue.md", typing).type("kubectl get pods")
            for name, pods in OURS.items():
                submit(client, name, keys.QUEUE_LABEL, pods)
            returning.pods |= until_running(client, OURS)
            for name in OURS:
                until(partial(_is, rest, name, "Running"), f"{name} runs")
            submit(client, "torch-waits", keys.QUEUE_LABEL, 1)
            for name in WAITING:
                until(partial(_is, rest, name, "Pending"), f"{name} is pending")
        page = Page("back-to-kueue.md", typing)
        for command in COMMANDS:
            page.type(f"{IN_POD} {command}", instead={IN_POD: "queuectl"})
    finally:
        controller.stop()
    assert {name: running(client, name) for name in returning.pods} == returning.pods


def test_running_gangs_keep_their_pods(way: Return) -> None:
    client, typing = way.client, way.typing
    page, uninstall = Page("back-to-kueue.md", typing), Page("uninstall.md", typing)
    assert "admission policies of queuectl" in refused(typing, 4)
    uninstall.type("kubectl delete mutatingadmission")
    uninstall.type("kubectl -n queuectl-system delete deployments")
    uninstall.type("kubectl delete validatingadmission")
    uninstall.type("kubectl delete clusterroles")
    page.type("kubectl get localqueues")
    refused_without_rights(way)
    refused_for_a_workload_of_another(way)
    listed = page.type("queuectl kueue hand-over --dry-run")
    assert "Job research/waits: queued" in listed
    before = workloads(client)
    written = page.type("queuectl kueue hand-over")
    assert "6 adopted, 2 queued, 0 stopped by Kueue" in written, written
    after = workloads(client)
    # The name of the command's Workload is the name that the real Kueue gave it.
    for name in THERE:
        assert before[name]["metadata"]["name"] == after[name]["metadata"]["name"]
    assert after.keys() == THERE.keys() | OURS.keys()
    assert before["job-there"]["metadata"]["uid"] != after["job-there"]["metadata"]["uid"]
    page.type("kubectl -n kueue-system scale")
    page.end(
        "kubectl get workloads.kueue", "helm uninstall", *(f"{IN_POD} {one}" for one in COMMANDS)
    )
    assert "Kueue runs: scale Deployment" in refused(typing, 4)
    kueue = start_kueue(way.cluster)
    try:
        kueue_adopts(way, after)
        page.type("kubectl get workloads.kueue")
        pending_jobs_start(way)
    finally:
        stop_kueue(way.cluster, kueue)


def refused(typing: Shell, status: int, line: str = "queuectl kueue hand-over") -> str:
    """The last line of the errors of a command that writes nothing."""
    ended, _ = typing.type(line)
    assert ended == status, typing.errors
    return typing.errors.splitlines()[-1]


def refused_without_rights(way: Return) -> None:
    account = {"kind": "ServiceAccount", "metadata": {"name": "guest", "namespace": SPACE}}
    way.client.apply({"apiVersion": "v1", **account})
    guest = way.cluster.kubeconfig_for_service_account(SPACE, "guest")
    message = refused(way.typing, 5, f"KUBECONFIG={guest} queuectl kueue hand-over")
    assert "you lack these rights: list nodes, list pods" in message
    assert "create workloads.kueue.x-k8s.io" in message


def refused_for_a_workload_of_another(way: Return) -> None:
    """A Workload with the name of the gang's stays as it is, and nothing else is written."""
    client, before = way.client, workloads(way.client)
    job = client.get(f"/apis/batch/v1/namespaces/{SPACE}/jobs/job-ours")
    uid = job["metadata"]["uid"]
    name = WorkloadOwner("batch", "v1", "Job", SPACE, "job-ours", uid).workload_name
    strange = {k: before["job-there"][k] for k in ("apiVersion", "kind", "spec")}
    listed = f"/apis/{API}/namespaces/{SPACE}/workloads"
    strange["metadata"] = {"name": name, "namespace": SPACE}
    client.create(listed, strange)
    assert "nothing is written: Kueue would stop 1 job" in refused(way.typing, 4)
    assert {one["metadata"]["name"] for one in client.get(listed)["items"]} == {
        name,
        *(one["metadata"]["name"] for one in before.values()),
    }
    client.delete(f"{listed}/{name}")


def kueue_adopts(way: Return, written: dict[str, Document]) -> None:
    client = way.client
    until(lambda: set(WAITING) <= workloads(client).keys(), "Kueue queues the suspended jobs")

    def usage() -> int:
        status = client.get(f"/apis/{API}/clusterqueues/pool").get("status", {})
        used = [
            resource["total"]
            for flavor in status.get("flavorsUsage", ())
            for resource in flavor["resources"]
            if resource["name"] == GPU
        ]
        return sum(map(int, used))

    until(lambda: usage() == USED, "Kueue charges the gangs that it adopts")
    for name, uids in way.pods.items():
        assert running(client, name) == uids
        workload = workloads(client)[name]
        assert workload["metadata"]["uid"] == written[name]["metadata"]["uid"]
        assert holds(workload, "Admitted")
        assert not holds(workload, "Evicted")
    for name in WAITING:
        waiting = workloads(client)[name]
        assert not holds(waiting, "QuotaReserved")
        assert waiting["spec"]["priority"] == 0


def pending_jobs_start(way: Return) -> None:
    """A gang that leaves frees its quota in Kueue, and the next one starts without a gate of queuectl."""
    client = way.client
    for name in (*THERE, "job-ours", "pod-ours"):
        document = gang(name, QUEUE_LABEL, 2)
        client.delete(client.path_of(document), propagationPolicy="Background")
    until_running(client, {"waits": 6, "torch-waits": 1})
    assert running(client, "torch-ours") == way.pods["torch-ours"]
