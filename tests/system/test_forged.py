"""Objects that a tenant forges in its namespace affect neither another tenant nor the controller.

The tenant is a ServiceAccount bound to Kubernetes' role ``edit`` in one namespace, with its own token. Each row is tried on the real
control plane under the policies of deploy/, while a gang of another tenant runs; the row states whether the API server refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from queuectl.client.errors import RequestRefused
from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.localcluster import ApiServerError
from queuectl.objects.keys import QUEUE_LABEL
from tests.system.actions import run_command, until_empty
from tests.system.forger import (
    Tenant,
    config_map,
    event,
    events_about,
    figures,
    gang,
    get_json,
    job,
    large,
    named,
    owner,
    pod,
    pytorchjob,
    refused,
    seen_of,
    selecting,
    state,
    still_runs,
    tenant_of,
    typed,
    uid_of,
    until_state,
    with_environment,
)
from tests.system.installation import Installation

pytestmark = pytest.mark.system

MANY: Final = 200
OPERATORS_LABEL: Final = "training.kubeflow.org/job-name"


@pytest.fixture(scope="module")
def tenant(installation: Installation) -> Iterator[Tenant]:
    with (
        installation.workspace(32) as victim,
        installation.workspace(32, "test") as workspace,
        tenant_of(workspace) as client,
    ):
        victim.gang("Job", "mine", 2)
        victim.until_state("mine", "Running")
        yield Tenant(client, workspace, victim, victim.client.get(victim.made[-1]))
        still_runs(victim)


Row = tuple[Callable[[Tenant], object], str | None]
SYSTEM: Final = "queuectl-system"
FORBIDDEN: Final = "403"
ROWS: dict[str, Row] = {
    # the attempt, and the text of its refusal; None = it is accepted, without an effect on others
    "a Job with 1 MiB of annotations": (lambda t: t.create(job("annotated", annotations=large(1024))), "Too long"),
    "a Job with as many annotations as possible": (lambda t: t.create(job("full", annotations=large(250))), None),
    "a Job with thousands of variables": (lambda t: t.create(with_environment("variables", 4000)), None),
    "a pod with thousands of labels": (lambda t: t.create(pod("labeled", labels={f"l-{n}": "x" for n in range(5000)})), None),
    "a Job that another's Job owns": (lambda t: t.create(job("owned", ownerReferences=owner(t.job))), None),
    "a pod that another's Job controls": (lambda t: t.create(pod("claims", ownerReferences=owner(t.job))), None),
    "a pod with the labels of another's pod": (
        lambda t: t.create(pod("labels", labels=t.pod["metadata"]["labels"], ownerReferences=owner(t.job))), "only the controllers of Jobs"),
    "a pod with the annotations of another's pod": (
        lambda t: t.create(pod("notes", annotations=t.pod["metadata"].get("annotations") or {"queuectl.dev/workload": "x"})), None),
    "a pod with the gate": (lambda t: t.create(pod("gated", {"schedulingGates": [{"name": "queuectl.dev/placement"}]})), "only the controllers of Jobs"),
    "a pod put on a node": (
        lambda t: t.create(pod("bound", {"nodeName": free_node(t)})), None),
    "an Event about another's gang, in the tenant's namespace": (lambda t: t.create(event(t.job, t.workspace.namespace)), None),
    "an Event about another's gang, in its namespace": (lambda t: t.create(event(t.job, t.victim.namespace), t.victim.namespace), FORBIDDEN),
    "a ConfigMap where queuectl runs": (lambda t: t.create(config_map("queuectl"), SYSTEM), FORBIDDEN),
    "a ConfigMap called as queuectl's": (lambda t: t.create(config_map("queuectl")), None),
    "the lease of the leader": (lambda t: t.client.patch(
        f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/queuectl", {"spec": {"holderIdentity": "tenant"}}), FORBIDDEN),
    "a Job in another's namespace": (lambda t: t.create(job("elsewhere"), t.victim.namespace), FORBIDDEN),
    "a Job of the longest name": (lambda t: t.create(job("n" * 61)), None),
    "a Job whose name differs in the last character": (lambda t: t.create(job("n" * 60 + "o")), None),
    "a Job of a longer name": (lambda t: t.create(job("n" * 253)), "63"),
    "a Job that selects its pods by labels of its choice": (lambda t: t.create(selecting("selects")), "manualSelector"),
}  # fmt: skip


def free_node(tenant: Tenant) -> str:
    taken = {one.node for one in tenant.victim.recorder.now()[1]}
    nodes = tenant.workspace.client.get("/api/v1/nodes")["items"]
    return str(next(n["metadata"]["name"] for n in nodes if n["metadata"]["name"] not in taken))


def test_what_a_tenant_forges_is_refused_or_has_no_effect_on_others(tenant: Tenant) -> None:
    found: dict[str, str | None] = {}
    for what, (tries, says) in ROWS.items():
        try:
            tries(tenant)
        except ApiServerError as error:
            text = f"{error.status} {error}"
            found[what] = says if says is not None and says in text else text[:300]
        else:
            found[what] = None
    assert found == {what: says for what, (_, says) in ROWS.items()}
    for name in ("full", "variables", "n" * 61, "n" * 60 + "o"):
        tenant.workspace.until_state(name, "Finished")
    still_runs(tenant.victim)


LONG: Final = "n" * 53
COLLIDING: dict[str, Callable[[Tenant], Document]] = {
    # what runs alongside the victim's gang
    "a Job called as another's Job": lambda t: job("mine", None),
    "a PyTorchJob called as another's Job": lambda _: pytorchjob("mine"),
    "a namespace and a name that joined by a dash are another's": lambda t: job(
        f"{t.victim.namespace}-mine".removeprefix(f"{t.workspace.namespace}-"), None),
    "a Job called as a pod of a PyTorchJob": lambda _: job("mine-worker-0", None),
    "a Job whose name is cut in those of its pods": lambda _: job(f"{LONG}-------p", None),
    "one that differs behind the cut": lambda _: job(f"{LONG}-------q", None),
    "a PyTorchJob of the longest name": lambda _: pytorchjob(f"{LONG}p"),
    "one that differs in the last character": lambda _: pytorchjob(f"{LONG}q"),
}  # fmt: skip


def test_gangs_of_colliding_names_are_kept_apart(tenant: Tenant) -> None:
    workspace, victim = tenant.workspace, tenant.victim
    before = seen_of(victim, "Job", "mine")
    gangs = {what: tenant.create(document(tenant)) for what, document in COLLIDING.items()}
    queues = [f"{'q' * 62}{last}" for last in "ab"]
    for queue in queues:
        tenant.create(job(queue[-3:], labels={QUEUE_LABEL: queue}))
    twin = tenant.pod
    labels = {k: v for k, v in twin["metadata"]["labels"].items() if "queuectl.dev" not in k}
    on_its_node = {"nodeName": twin["spec"]["nodeName"]}
    tenant.create(pod(twin["metadata"]["name"], on_its_node, labels=labels))
    for one in events_about(victim, tenant.job["metadata"]["uid"]):
        tenant.create(event(tenant.job, workspace.namespace, one["metadata"]["name"]))
    for what, document in gangs.items():
        kind, name = document["kind"], document["metadata"]["name"]
        until_state(workspace, kind, name, "Running")
        assert uid_of(workspace, kind, name) == document["metadata"]["uid"], what
    with pytest.raises(RequestRefused, match="give kind=Job or kind=PyTorchJob"):
        typed(workspace, "hold", "mine")
    typed(workspace, "hold", "mine", "--kind", "PyTorchJob")
    until_state(workspace, "PyTorchJob", "mine", "Held")
    assert state(workspace, "Job", "mine") == "Running"
    assert seen_of(victim, "Job", "mine") == before
    assert not [series for series in figures(workspace) if "qqq" in series]
    for document in gangs.values():
        path = tenant.client.path_of(document)
        tenant.client.delete(path, propagationPolicy="Background")
    still_runs(victim)


@pytest.mark.parametrize("kind", ["Job", "PyTorchJob"])
def test_a_name_that_is_used_again_is_that_of_another_gang(tenant: Tenant, kind: str) -> None:
    """The pod of the gang before it still terminates; that of a PyTorchJob has the name that the new one needs."""
    workspace, client = tenant.workspace, tenant.client
    before = seen_of(tenant.victim, "Job", "mine")
    slow = PodSetManifest(1, gpus=8, annotations={m.TERMINATE_SECONDS: "30"})
    job = m.job("again", "-", "main", slow)
    document = job if kind == "Job" else m.pytorchjob("again", "-", "main", master=slow)
    first = tenant.create(document)["metadata"]["uid"]
    until_state(workspace, kind, "again", "Running")
    (old,) = workspace.pods("again")
    client.delete(workspace.made[-1], propagationPolicy="Background")
    second = tenant.create(document)["metadata"]["uid"]
    workspace.until(
        lambda: uid_of(workspace, kind, "again") == second, "the name is that of the second"
    )
    workspace.until(
        lambda: named(workspace, kind, "again")["attempt"] == 1, "the second is admitted"
    )
    (placed,) = get_json(workspace, f"workloads/{second}/explain")["placement"]["podSets"]
    assert old.node not in placed["nodes"]
    (left,) = (one for one in workspace.pods("again") if one.uid == old.uid)
    assert left.terminating
    workspace.client.delete(
        f"/api/v1/namespaces/{workspace.namespace}/pods/{old.name}", gracePeriodSeconds=0
    )
    until_state(workspace, kind, "again", "Running")
    assert named(workspace, kind, "again")["attempt"] == 1
    assert get_json(workspace, f"workloads/{first}")["state"] == "Finished"
    assert seen_of(tenant.victim, "Job", "mine") == before
    client.delete(workspace.made[-1], propagationPolicy="Background")
    for one in workspace.pods("again"):
        path = f"/api/v1/namespaces/{workspace.namespace}/pods/{one.name}"
        workspace.client.delete(path, missing_ok=True, gracePeriodSeconds=0)
    until_empty(workspace, "again")


WITHOUT_PODS: Final[dict[str, tuple[Document, ...]]] = {
    # of a Job, the API server leaves the pods where the request does not say what becomes of them
    "Job": ({}, {"propagationPolicy": "Orphan"}, {"orphanDependents": True}),
    "PyTorchJob": ({"propagationPolicy": "Orphan"}, {"orphanDependents": True}),
}


@pytest.mark.parametrize("kind", WITHOUT_PODS)
def test_a_gang_keeps_no_gpus_outside_its_queue(tenant: Tenant, kind: str) -> None:
    """Neither by a deletion that leaves its pods, nor by a finalizer, nor by letting its pods go."""
    workspace, client = tenant.workspace, tenant.client
    path = gang(tenant, kind, "keeps", finalizers=["example.com/keep"])
    for options in WITHOUT_PODS[kind]:
        refused("together with its pods", client.delete, path, **options)
    for with_pods in ("Background", "Foreground"):
        refused("example.com/keep, or hold", client.delete, path, propagationPolicy=with_pods)
    for one in workspace.pods("keeps"):
        target = f"/api/v1/namespaces/{workspace.namespace}/pods/{one.name}"
        stays = r"of a pod.* cannot change"
        refused(stays, client.patch, target, {"metadata": {"ownerReferences": None}})
        selected = "batch.kubernetes.io/controller-uid" if kind == "Job" else OPERATORS_LABEL
        other = {selected: "x"}
        refused(stays, client.patch, target, {"metadata": {"labels": other}})
        client.patch(target, {"metadata": {"labels": {"example.com/more": "x"}}})
    run_command(workspace, "keeps", "hold")
    workspace.until_state("keeps", "Held")  # the pods are there still, and use nothing
    assert {pod.terminal for pod in workspace.pods("keeps")} == {True}
    client.delete(path, propagationPolicy="Background")
    gang(tenant, kind, "next")
    no_finalizers = {"metadata": {"finalizers": None}}
    for one in workspace.pods("keeps"):
        client.patch(f"/api/v1/namespaces/{workspace.namespace}/pods/{one.name}", no_finalizers)
    client.patch(path, no_finalizers)
    workspace.until_state("keeps", "Finished")
    client.delete(workspace.made[-1], propagationPolicy="Background")
    workspace.until_state("next", "Finished")


def test_hundreds_of_jobs_of_one_tenant_hold_up_no_other(tenant: Tenant) -> None:
    """They wait in their own queue; a gang of another starts, and a ResourceQuota bounds how many there are."""
    large = [
        m.job(f"many-{n}", "-", "main", PodSetManifest(5, gpus=8)) for n in range(MANY)
    ]  # over its quota
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(tenant.create, large))
    still_runs(tenant.victim)
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "jobs"}}
    tenant.workspace.client.create(
        f"/api/v1/namespaces/{tenant.workspace.namespace}/resourcequotas",
        quota | {"spec": {"hard": {"count/jobs.batch": str(MANY)}}},
    )
    tenant.workspace.until(lambda: is_full(tenant), "the ResourceQuota counts")
    refused("exceeded quota", tenant.create, job("one-more"))


def is_full(tenant: Tenant) -> bool:
    quota = f"/api/v1/namespaces/{tenant.workspace.namespace}/resourcequotas/jobs"
    used = tenant.workspace.client.get(quota).get("status", {}).get("used", {})
    return int(used.get("count/jobs.batch", 0)) >= MANY
