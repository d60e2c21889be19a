"""The page on uninstalling: jobs continue to run, and nothing of queuectl is left that blocks an object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from queuectl.db.embedded import EmbeddedServer
from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.localcluster import ApiServerError, LocalCluster, NodeSpec
from queuectl.localcluster.client import Client, wait_until
from queuectl.localcluster.versions import KUBERNETES, SUPPORTED
from queuectl.objects.kinds import KINDS as JOB_KINDS
from tests.kinds.entries import ENTRIES, OPERATORS, RAYSERVICE
from tests.kinds.entry import Entry
from tests.operations.servers import postgres_server, programs_first
from tests.support.chart import helm_program
from tests.support.jobs import batch_job
from tests.support.spark_drivers import simulated_drivers
from tests.system.actions import run_command
from tests.system.demo_cluster import tools
from tests.system.installation import SECONDS, Installation, Workspace, installed
from tests.system.test_default_queue import default_queue
from tests.system.transcript import Page, Shell, shell
from tests.versions.webhook import REPLICAS, in_force, serve, server_of

# The first run builds the oldest supported Kubernetes.
pytestmark = [pytest.mark.operations, pytest.mark.timeout(2400)]

NODES = NodeSpec(racks_per_block=2, hosts_per_rack=12)


OTHERS = (
    *(one for one in ENTRIES if one.kind not in ("Job", "PyTorchJob")),
    RAYSERVICE,
)
"""Every kind but the two of :func:`gangs`, with their operators on the newest version only."""
KINDS = (
    "clusterroles,clusterrolebindings,priorityclasses,mutatingwebhookconfigurations,validatingwebhookconfigurations,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings"
)
NOT_IN_FORCE = "the MutatingAdmissionPolicy or the webhook queuectl-jobs sets these fields, so it is missing or not in force"
HELM = "helm install queuectl deploy/chart --namespace queuectl-system --create-namespace --set image.repository=queuectl"
OPT_INS = "--set kueueKeys.enabled=true --set queuedGpus.enabled=true --set forceDelete.enabled=true --set migReconfiguration.enabled=true --set provisioning.enabled=true"


@dataclass(frozen=True)
class Way:
    """A way to install queuectl on a version of Kubernetes."""

    name: str
    release: str
    lines: tuple[str, ...]

    @contextmanager
    def admission(self, cluster: LocalCluster) -> Iterator[None]:
        """Install the manifests. The pods of the Deployments are simulated, and processes do the work."""
        with shell(environment_of(cluster)) as typing:
            for line in self.lines:
                status, printed = typing.type(line)
                assert status == 0, f"{line}\n{printed}\n{typing.errors}"
        if not server_of(cluster).has_mutating_policies:
            serve(cluster)
        in_force(cluster)
        yield


WAYS = (
    Way("helm", KUBERNETES, (f"{HELM} {OPT_INS}",)),
    Way(
        "kustomize",
        KUBERNETES,
        ("kubectl apply -k deploy/base", "kubectl apply -f deploy/optional"),
    ),
    Way("helm", SUPPORTED[0], (f"{HELM} {OPT_INS} --set mutation=webhook",)),
)


def environment_of(cluster: LocalCluster) -> dict[str, str]:
    environment = tools(cluster)
    path = f"{helm_program().parent}:{environment['PATH']}"
    return environment | {"PATH": programs_first(path)}


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with postgres_server() as started:
        yield started


@pytest.fixture(params=WAYS, ids=lambda way: f"{way.name}-{way.release}")
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


@pytest.fixture
def installation(server: EmbeddedServer, way: Way) -> Iterator[Installation]:
    settings = {"QUEUECTL_DATABASE_URL": server.url()}
    spec: dict[str, Any] = {"kubernetes": way.release}
    spec |= {"operators": OPERATORS} if way.release == KUBERNETES else {}
    with (
        installed(NODES, settings, way.admission, **spec) as built,
        simulated_drivers(built.cluster),
    ):
        yield built


@pytest.fixture
def typing(installation: Installation, server: EmbeddedServer) -> Iterator[Shell]:
    environment = environment_of(installation.cluster) | {
        "QUEUECTL_SERVER": installation.controller.api,
        "ADMIN_URL": server.url("postgres"),
    }
    with shell(environment) as started:
        yield started


def test_jobs_outlive_queuectl(
    installation: Installation, way: Way, typing: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, page = installation.cluster.client, Page("uninstall.md", typing)
    with installation.workspace(16) as workspace:
        pods = gangs(workspace)
        others = OTHERS if way.release == KUBERNETES else ()
        for one in others:
            name = name_of(one)
            documents = one.documents(name, workspace.namespace, PodSetManifest(4, gpus=1), None)
            one.create(workspace, name, 4, documents).until("Pending")
        stop_starts(page)
        workspace.audit()
        monkeypatch.setattr(Workspace, "audit", lambda _: None)  # jobs are not gangs from here on
        delete_controller(installation, page, way)
        assert {name: running(client, workspace.namespace, name) for name in pods} == pods
        typing.type("sleep 10")

        pending_gangs_start(client, workspace, page, others)
        lost_pods_are_replaced(client, workspace, page, pods["train"])
        all_run(client, workspace, [one for one in others if not suspends(one)])
        new_jobs_are_like_others(client, workspace)
        assert running(client, workspace.namespace, "torch") == pods["torch"]
        refused_without_the_class(client, workspace, page)
        assert running(client, workspace.namespace, "torch") == pods["torch"]
        workspace.empty()
    delete_the_rest(client, page)
    page.end(*not_for(way))


def not_for(way: Way) -> tuple[str, ...]:
    """The commands for other installations."""
    others = {
        "helm": ("kubectl delete mutatingadmission", "kubectl -n queuectl-system delete", "kubectl delete validating", "kubectl delete clusterroles"),
        "kustomize": ("helm",),
    }[way.name]  # fmt: skip
    if way.release == KUBERNETES:
        return (*others, "kubectl delete mutatingwebhook")
    return (*others, "kubectl get trainjobs")


def gangs(workspace: Workspace) -> dict[str, set[str]]:
    """Running gangs with their pods, a gang that ran before and is held, and two that never ran."""
    default_queue(workspace)
    workspace.gang("Job", "ran", 2, gpus=4)
    workspace.until_state("ran", "Running")
    run_command(workspace, "ran", "hold")
    workspace.until_state("ran", "Held")
    workspace.gang("Job", "train", 2, gpus=4, retries=6)
    workspace.gang("PyTorchJob", "torch", 2, gpus=4)
    for name in ("train", "torch"):
        workspace.until_state(name, "Running")
    for kind, name in (("Job", "waits"), ("PyTorchJob", "waits-too")):
        workspace.gang(kind, name, 2, gpus=4)
        workspace.until_state(name, "Pending")
    client, namespace = workspace.client, workspace.namespace
    return {name: running(client, namespace, name) for name in ("train", "torch")}


def running(client: Client, namespace: str, name: str) -> set[str]:
    """The uids of the running pods of a job."""
    pods = client.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {
        pod["metadata"]["uid"]
        for pod in pods
        if name in [owner["name"] for owner in pod["metadata"].get("ownerReferences", ())]
        and pod["status"]["phase"] == "Running"
    }


def until(done: Callable[[], bool], what: str) -> None:
    wait_until(done, what, SECONDS)


def stop_starts(page: Page) -> None:
    page.type("queuectl get clusterqueues")
    for state in ("Starting", "Evicting"):
        page.type(f"queuectl get workloads --state {state}")
    page.type("queuectl config export")
    page.type("queuectl get workloads --state Pending")
    page.type("kubectl get clusterrole queuectl")


def delete_controller(installation: Installation, page: Page, way: Way) -> None:
    cluster = installation.cluster
    if way.release != KUBERNETES:
        page.type("kubectl delete mutatingwebhookconfiguration")
        for replica in REPLICAS:
            cluster.kill(replica)
        until(lambda: NOT_IN_FORCE in str(dry_run(cluster.client)), "no webhook is called")
    page.type("kubectl delete apiservice")
    if way.name == "helm":
        page.type("helm uninstall")
    else:
        page.type("kubectl delete mutatingadmission")
        page.type("kubectl -n queuectl-system delete deployments")
        page.type("kubectl delete validatingadmission")
        page.type("kubectl delete clusterroles")
    installation.controller.stop()


def dry_run(client: Client) -> str | None:
    """The reason why a new job with a queue label is refused, or None."""
    try:
        client.create("/apis/batch/v1/namespaces/default/jobs", batch_job("new"), dryRun="All")
    except ApiServerError as error:
        return str(error)
    return None


def pending_gangs_start(
    client: Client, workspace: Workspace, page: Page, others: Sequence[Entry]
) -> None:
    """The Jobs that operators created stay suspended until their JobSet, TrainJob or MPIJob is resumed."""
    page.type("kubectl get jobs -A")
    page.type("jq -r")
    page.type("jq '.items")
    jobs = client.get(f"/apis/batch/v1/namespaces/{workspace.namespace}/jobs")["items"]
    suspended = {job["metadata"]["name"] for job in jobs if job["spec"]["suspend"]}
    children = {job["metadata"]["name"] for job in jobs if "ownerReferences" in job["metadata"]}
    assert suspended == children
    assert bool(children) == bool(others)
    page.type("for kind in")
    if others:
        page.type("kubectl get trainjobs")
    for name in ("ran", "waits", "waits-too"):
        until(partial(complete, client, workspace.namespace, name), f"{name} runs")
    all_run(client, workspace, [one for one in others if suspends(one)])


def suspends(entry: Entry) -> bool:
    """Whether step 3 of the page starts it. The pods of the others wait with the gate until step 4."""
    return entry.kind in JOB_KINDS or entry.kind in ("array", "RayService")


def name_of(entry: Entry) -> str:
    return f"other-{entry.kind.lower()}"


def all_run(client: Client, workspace: Workspace, entries: Sequence[Entry]) -> None:
    for one in entries:
        until(partial(starts, client, workspace.namespace, one), f"the {one.kind} runs")


def complete(client: Client, namespace: str, name: str) -> bool:
    return len(running(client, namespace, name)) == 2


def starts(client: Client, namespace: str, entry: Entry) -> bool:
    """Whether all pods of another kind run. The submitter of a RayJob comes after an answer of its cluster."""
    pods = client.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    own = [p for p in pods if p["metadata"]["name"].startswith(f"{name_of(entry)}-")]
    expected = 3 if entry.kind == "RayJob" else 4
    return len([p for p in own if p["status"]["phase"] == "Running"]) >= expected


def lost_pods_are_replaced(
    client: Client, workspace: Workspace, page: Page, pods: set[str]
) -> None:
    """The new pod has the gate of the template until an administrator removes it."""
    base = f"/api/v1/namespaces/{workspace.namespace}/pods"
    lost = next(p for p in client.get(base)["items"] if p["metadata"]["uid"] in pods)
    client.delete(f"{base}/{lost['metadata']['name']}", gracePeriodSeconds=0)

    def gated() -> bool:
        replaced = [
            p for p in client.get(base)["items"] if p["metadata"]["name"].startswith("train-")
        ]
        return any(p["spec"].get("schedulingGates") for p in replaced)

    until(gated, "a gated replacement")
    page.type("kubectl get pods -A")
    until(partial(complete, client, workspace.namespace, "train"), "train is complete")


def new_jobs_are_like_others(client: Client, workspace: Workspace) -> None:
    created = workspace.submit(
        m.job("plain", workspace.namespace, "main", PodSetManifest(1, gpus=1))
    )
    assert not created["spec"].get("suspend")
    assert "schedulingGates" not in created["spec"]["template"]["spec"]
    until(lambda: bool(running(client, workspace.namespace, "plain")), "plain runs")


def refused_without_the_class(client: Client, workspace: Workspace, page: Page) -> None:
    """Running pods continue without the PriorityClass, and new pods of their job are refused."""
    assert f"{workspace.namespace} train-" in page.type("kubectl get pods -A")
    page.type("kubectl delete priorityclass")
    base = f"/api/v1/namespaces/{workspace.namespace}/pods"
    lost = next(p for p in client.get(base)["items"] if p["metadata"]["name"].startswith("train-"))
    client.delete(f"{base}/{lost['metadata']['name']}", gracePeriodSeconds=0)
    events = f"/api/v1/namespaces/{workspace.namespace}/events"

    def refused() -> bool:
        found = client.get(events)["items"]
        return any("no PriorityClass with name queuectl-managed was found" in e["message"] for e in found)  # fmt: skip

    until(refused, "an Event of the job controller")


def delete_the_rest(client: Client, page: Page) -> None:
    page.type("kubectl label namespaces")
    page.type("kubectl delete namespace")
    assert page.type("kubectl get clusterroles").split() == []
    page.type("psql")
    page.type("psql")
    for kind in ("namespaces", "pods", "nodes"):
        for one in client.get(f"/api/v1/{kind}")["items"]:
            assert "queuectl" not in str(one["metadata"].get("finalizers"))
    for one in client.get("/api/v1/namespaces")["items"]:
        assert not [key for key in one["metadata"].get("labels", {}) if "queuectl.dev" in key]
