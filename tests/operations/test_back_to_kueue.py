"""From a real Kueue to queuectl and back, with the commands of docs/how-to/back-to-kueue.md: running gangs keep their pods.

The audit log of the API server shows that no request deletes, evicts or creates a pod of theirs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from queuectl.cluster.adapter import SYSTEM_NAMESPACE
from queuectl.demo import scenario as m
from queuectl.demo.api_connection import ApiConnection
from queuectl.demo.controller import KUEUE_KEYS, install
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.errors import ClusterUnavailable
from queuectl.domain.quantity import GPU
from queuectl.handover.podsets import HANDED_OVER
from queuectl.handover.workloads import WorkloadOwner
from queuectl.localcluster import ApiServerError, ClusterSpec, LocalCluster, NodeSpec
from queuectl.localcluster.client import Client, wait_until
from queuectl.localcluster.errors import LocalClusterError
from queuectl.localcluster.layout import AUDIT_LOGS
from queuectl.localcluster.operators import TRAINING_OPERATOR
from queuectl.localcluster.progress import LineProgress
from queuectl.objects import keys
from tests.bench.kueue.peer import API, Kueue, jobs_alone
from tests.kinds.entries import ENTRIES
from tests.kinds.pod_entries import pod_group
from tests.support.controllers import CheckedController
from tests.support.kueue import QUEUE_LABEL
from tests.support.real_kueue import kueue_folder
from tests.system.demo_cluster import tools
from tests.system.installation import BLOCK, QUICK, RACK
from tests.system.transcript import Page, Shell, shell

pytestmark = [pytest.mark.operations, pytest.mark.timeout(1200)]

SPACE = "research"
SECONDS = 150.0
NODES = NodeSpec(blocks=1, racks_per_block=2, hosts_per_rack=10)
FRAMEWORKS = (
    "batch/job",
    "kubeflow.org/pytorchjob",
    "kubeflow.org/tfjob",
    "kubeflow.org/xgboostjob",
    "kubeflow.org/paddlejob",
    "kubeflow.org/jaxjob",
    "kubeflow.org/mpijob",
    "jobset.x-k8s.io/jobset",
    "ray.io/raycluster",
    "trainer.kubeflow.org/trainjob",
    "pod",
)
KINDS = {
    one.kind: one
    for one in ENTRIES
    if one.kind in HANDED_OVER and one.kind not in ("Job", "PyTorchJob")
}
"""The other kinds. Their gangs have 4 pods of one GPU."""
OPERATORS = tuple(
    dict.fromkeys(one.operator for one in ENTRIES if one.kind in HANDED_OVER and one.operator)
)
OUTSIDE = ("pod-there", "group-there")
"""Pods that Kueue starts are outside the queues of queuectl."""
FIRST, LAST = ("job", "torch", "pod", "group"), tuple(kind.lower() for kind in KINDS)
WITH_CHILDREN = ("trainjob", "jobset", "mpijob")
"""The kinds whose operators create other jobs while they are suspended."""
IN_POD = "kubectl -n queuectl-system exec deployment/queuectl -- queuectl"
COMMANDS = (
    "get clusterqueues",
    "get workloads --state Starting",
    "get workloads --state Evicting",
)
"""The commands of the page that need the server. Here it runs outside the cluster."""
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"


@dataclass(frozen=True)
class Gangs:
    """The gangs by name, with their pods.

    Attributes:
        there: those that Kueue starts.
        ours: those that queuectl starts. They have only its own label.
        waiting: those that never start before the return: Kueue queues the first one, and queuectl the others.
    """

    there: dict[str, int]
    ours: dict[str, int]
    waiting: dict[str, int]

    @classmethod
    def of(cls, prefixes: Sequence[str], waiting: dict[str, int]) -> Gangs:
        """A gang of Kueue and one of queuectl for each prefix."""
        there, ours = (
            {f"{one}-{end}": PODS.get(one, 4) for one in prefixes} for end in ("there", "ours")
        )
        return cls(there, ours, waiting)

    @property
    def used(self) -> int:
        """GPUs of both. Those from before queuectl can be outside its queues, so together they use more than the quota."""
        return sum(pods * gpus_of(name) for name, pods in (self.there | self.ours).items())

    @property
    def quota(self) -> int:
        """GPUs that leave none for the Jobs that wait."""
        return self.used - sum(self.there[one] * gpus_of(one) for one in OUTSIDE)


PODS = {"job": 2, "torch": 2, "pod": 1, "group": 2}
OWNERS = {
    "database": Gangs.of(
        (*FIRST, *LAST),
        {"waits": 10, "torch-waits": 1, **{f"{one}-waits": 4 for one in WITH_CHILDREN}},
    ),
    "kueue": Gangs.of(FIRST, {"waits": 6, "torch-waits": 1}),
}
"""The gangs by the owner of the configuration of queuectl. ``waits`` needs more GPUs than the gangs that queuectl starts after it."""


def gpus_of(name: str) -> int:
    """Of each pod of a gang."""
    return 8 if name.startswith(("job-", "torch-", "pod-", "waits")) else 1


@dataclass
class Return:
    """The cluster between the two controllers, and what was running before. ``owner``: of the configuration of queuectl."""

    owner: str
    cluster: LocalCluster
    typing: Shell
    audit: Path
    pods: dict[str, set[str]] = field(default_factory=dict)

    @property
    def client(self) -> Client:
        return self.cluster.client

    @property
    def gangs(self) -> Gangs:
        return OWNERS[self.owner]


def configuration(quota_of_gpus: int) -> list[Document]:
    linux = {"kubernetes.io/os": "linux"}  # Kueue asks for a label where there is a topology
    quota: dict[str, int | str] = {GPU: quota_of_gpus, "cpu": 1000, "memory": "1P"}
    documents = [
        m.topology("gpus", BLOCK, RACK),
        m.flavor("gpu", topology="gpus", **linux),
        m.cluster_queue("pool", "gpu", quota),
        m.local_queue(SPACE, "team", "pool"),
    ]
    return [one | {"apiVersion": API} for one in documents]


def gang(name: str, label: str, pods: int) -> list[Document]:
    """A gang in the queue, by its name: its last object has the label."""
    kind = next((one for one in KINDS if name.startswith(f"{one.lower()}-")), "")
    if kind:
        documents = KINDS[kind].documents(name, SPACE, PodSetManifest(pods, gpus=1), None)
        documents[-1]["metadata"]["labels"] = {label: "team"}
        return list(documents)
    if name.startswith("group-"):
        made = json.dumps(pod_group(name, SPACE, PodSetManifest(pods, gpus=1), None))
        prefix = keys.PREFIX if label == keys.QUEUE_LABEL else keys.KUEUE_PREFIX
        documents = json.loads(made.replace(keys.PREFIX, prefix))
        for document in documents:
            document["metadata"]["labels"][label] = "team"
        return list(documents)
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
    return [document]


def submit(client: Client, name: str, label: str, pods: int) -> None:
    for document in gang(name, label, pods):
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
    """Kueue's Workloads by the names of their owners; that of a group, which each pod owns, by its own name."""
    listed = client.get(f"/apis/{API}/namespaces/{SPACE}/workloads")["items"]
    return {_named_by(one["metadata"]): one for one in listed}


def _named_by(metadata: Document) -> str:
    owner, *others = metadata["ownerReferences"]
    return str(metadata["name"] if others else owner["name"])


def holds(workload: Document, condition: str) -> bool:
    conditions = workload.get("status", {}).get("conditions", ())
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)


def start_kueue(cluster: LocalCluster) -> Kueue:
    gates = {"VisibilityOnDemand": False}
    return Kueue.start(cluster, kueue_folder(), jobs_alone(gates, FRAMEWORKS))


def stop_kueue(cluster: LocalCluster, kueue: Kueue) -> None:
    for kind in ("mutating", "validating"):
        listed = f"{REGISTRATION}/{kind}webhookconfigurations"
        for one in cluster.client.get(listed)["items"]:
            if not one["metadata"]["name"].startswith(("queuectl", *OPERATORS)):
                cluster.client.delete(f"{listed}/{one['metadata']['name']}")
    kueue.stop()
    [probe] = gang("pod-probe", "probe", 1)

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


@pytest.fixture(scope="module", params=OWNERS)
def way(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Return]:
    """Gangs of Kueue, then taken over by queuectl, which starts others; then queuectl is removed."""
    owner: str = request.param
    gangs = OWNERS[owner]
    operators = OPERATORS if owner == "database" else (TRAINING_OPERATOR,)
    shape = ClusterSpec(nodes=(NODES,), fsync=False, operators=operators)
    logs = tmp_path_factory.mktemp("audit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(AUDIT_LOGS, str(logs))
        started = LocalCluster.start(shape, progress=LineProgress())
    with started as cluster:
        [audit] = logs.iterdir()
        client = cluster.client
        client.apply(*m.namespaces([SPACE]))
        kueue = start_kueue(cluster)
        try:
            client.apply(*configuration(gangs.quota))
            for name, pods in gangs.there.items():
                submit(client, name, QUEUE_LABEL, pods)
            before = until_running(client, gangs.there)
            submit(client, "waits", QUEUE_LABEL, gangs.waiting["waits"])
            until(lambda: "waits" in workloads(client), "Kueue queues a job")
        finally:
            stop_kueue(cluster, kueue)
        client.apply(deployment())
        with shell(tools(cluster)) as typing:
            returning = Return(owner, cluster, typing, audit, before)
            under_queuectl(returning)
            yield returning


def installed(cluster: LocalCluster) -> bool:
    """Install queuectl. An API server of a busy machine does not answer each request in time."""
    try:
        install(cluster, KUEUE_KEYS)
    except ClusterUnavailable:
        return False
    return True


def rights_to_follow() -> list[Document]:
    """The rights that the chart adds for the owner ``kueue``."""
    group, name = "rbac.authorization.k8s.io", "queuectl-configuration-owner"
    meta = {"name": name, "labels": {"app.kubernetes.io/name": "queuectl"}}
    definitions = "customresourcedefinitions"
    rules = [
        {"apiGroups": ["kueue.x-k8s.io"], "resources": ["*"], "verbs": ["list", "watch"]},
        {
            "apiGroups": ["apiextensions.k8s.io"],
            "resources": [definitions],
            "verbs": ["get"],
        },
    ]
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": meta, "rules": rules}
    account = {"kind": "ServiceAccount", "name": "queuectl", "namespace": SYSTEM_NAMESPACE}
    binding = role | {"kind": "ClusterRoleBinding", "subjects": [account]}
    del binding["rules"]
    binding["roleRef"] = {"apiGroup": group, "kind": "ClusterRole", "name": name}
    return [role, binding]


def under_queuectl(returning: Return) -> None:
    cluster, client, typing = returning.cluster, returning.client, returning.typing
    gangs, follows = returning.gangs, returning.owner == "kueue"
    until(partial(installed, cluster), "queuectl is installed")
    # The first answer takes the API server longer than kubectl waits, on a busy machine.
    until(lambda: client.get("/openapi/v2"), "the API server describes its kinds")
    if follows:
        client.apply(*rights_to_follow())
    settings = {**QUICK, "QUEUECTL_CONFIGURATION_OWNER": returning.owner}
    controller = CheckedController.start(cluster, settings)
    try:
        controller.wait_ready()
        typing.type(f"export QUEUECTL_SERVER={controller.api}")
        with ApiConnection(controller.api) as rest:
            if not follows:
                rest.apply(configuration(gangs.quota))
            for name in gangs.there.keys() - set(OUTSIDE):
                until(partial(_is, rest, name, "Running"), f"{name} is adopted")
            Page("coming-from-kueue.md", typing).type("kubectl get pods")
            for name, pods in gangs.ours.items():
                submit(client, name, keys.QUEUE_LABEL, pods)
            try:
                returning.pods |= until_running(client, gangs.ours)
            except LocalClusterError as error:
                seen = {
                    name: (one["state"], one["reason"])
                    for name, one in rest.workloads(SPACE).items()
                }
                raise AssertionError(
                    f"{error}\n{json.dumps(seen, indent=1, default=str)}"
                ) from error
            for name in gangs.ours:
                until(partial(_is, rest, name, "Running"), f"{name} runs")
            for name in gangs.waiting.keys() - {"waits"}:
                submit(client, name, keys.QUEUE_LABEL, gangs.waiting[name])
            for name in gangs.waiting:
                until(partial(_is, rest, name, "Pending"), f"{name} is pending")
        page = Page("back-to-kueue.md", typing)
        for command in COMMANDS + (() if follows else ("config export",)):
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
    queued = len(way.gangs.waiting)
    assert f"{len(way.pods)} adopted, {queued} queued, 0 stopped by Kueue" in written, written
    after = workloads(client)
    # The name of the command's Workload is the name that the real Kueue gave it.
    for name in way.gangs.there:
        assert before[name]["metadata"]["name"] == after[name]["metadata"]["name"]
    assert after.keys() == way.pods.keys()
    assert before["job-there"]["metadata"]["uid"] != after["job-there"]["metadata"]["uid"]
    page.type("kubectl -n kueue-system scale")
    typed = (*COMMANDS, "config export")
    page.end("kubectl get workloads.kueue", "helm uninstall", *(f"{IN_POD} {one}" for one in typed))
    assert "Kueue runs: kueue-controller-manager has replicas" in refused(typing, 4)
    kueue = start_kueue(way.cluster)
    try:
        kueue_adopts(way, after)
        assert not changed_pods(way)
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


def usage(client: Client) -> int:
    """GPUs that Kueue charges."""
    status = client.get(f"/apis/{API}/clusterqueues/pool").get("status", {})
    used = [
        resource["total"]
        for flavor in status.get("flavorsUsage", ())
        for resource in flavor["resources"]
        if resource["name"] == GPU
    ]
    return sum(map(int, used))


def kueue_adopts(way: Return, written: dict[str, Document]) -> None:
    client = way.client
    waiting = way.gangs.waiting.keys()
    until(lambda: waiting <= workloads(client).keys(), "Kueue queues the suspended jobs")

    until(lambda: usage(client) == way.gangs.used, "Kueue charges the gangs that it adopts")
    stopped = [name for name, uids in way.pods.items() if running(client, name) != uids]
    assert stopped == []
    for name in way.pods:
        workload = workloads(client)[name]
        assert workload["metadata"]["uid"] == written[name]["metadata"]["uid"]
        assert holds(workload, "Admitted")
        assert not holds(workload, "Evicted")
    for name in waiting:
        workload = workloads(client)[name]
        assert not holds(workload, "QuotaReserved")
        assert workload["spec"]["priority"] == 0


def changed_pods(way: Return) -> list[str]:
    """The requests that deleted, evicted or created a pod of a gang after that gang ran, by the audit log of the API server."""
    bound: dict[str, set[str]] = {one: set() for one in way.pods}
    changes = []
    lines = [json.loads(line) for line in way.audit.read_text().splitlines()]
    for line in sorted(lines, key=lambda one: str(one["requestReceivedTimestamp"])):
        target = line.get("objectRef", {})
        if target.get("resource") != "pods" or line["responseStatus"]["code"] >= 300:
            continue
        name = target.get("name", "")
        of = next((one for one in way.pods if f"{name}-".startswith(f"{one}-")), "")
        text = f"{line['user']['username']} {line['verb']} {name} {target.get('subresource', '')}"
        if line["verb"] == "deletecollection":
            changes.append(text)
        elif of and target.get("subresource") == "binding":
            bound[of].add(name)
        # A controller creates the last pods of a gang when the first ones are bound already.
        elif of and len(bound[of]) >= len(way.pods[of]) and line["verb"] in ("create", "delete"):
            changes.append(f"{text} after {sorted(bound[of])}")
    assert {of: len(names) for of, names in bound.items()} == {
        of: len(uids) for of, uids in way.pods.items()
    }
    return changes


def pending_jobs_start(way: Return) -> None:
    """A gang that leaves frees its quota in Kueue, and the next one starts without a gate of queuectl."""
    client = way.client
    for name in way.pods.keys() - {"torch-ours"}:
        if name.startswith("group-"):
            # Kueue charges a group until its Workload is deleted, and deletes its pods then. Otherwise it waits for replacements.
            client.delete(f"/apis/{API}/namespaces/{SPACE}/workloads/{name}")
            continue
        for document in gang(name, QUEUE_LABEL, (way.gangs.there | way.gangs.ours)[name]):
            if document["metadata"]["name"].startswith(name):  # and not what several jobs share
                client.delete(client.path_of(document), propagationPolicy="Background")
    until_running(client, way.gangs.waiting)
    assert running(client, "torch-ours") == way.pods["torch-ours"]
    staying = way.gangs.waiting | {"torch-ours": way.gangs.ours["torch-ours"]}
    left = sum(pods * gpus_of(name) for name, pods in staying.items())
    until(lambda: usage(client) == left, "Kueue charges none of the gangs that left")
