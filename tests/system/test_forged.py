"""What a tenant forges in a namespace of their own touches neither another tenant nor the controller.

The tenant is a ServiceAccount bound to Kubernetes' role ``edit`` in one namespace, with its own token. Each row is tried on the real
control plane under the policies of deploy/, while a gang of another tenant runs; it says whether the API server refuses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import pytest

from queuectl.demo import manifests as m
from queuectl.demo.manifests import Document, Pods
from queuectl.localcluster import RequestError
from queuectl.localcluster.client import Client
from tests.support.people import account, binding, token_of
from tests.system.acts import ask
from tests.system.house import House, Room

pytestmark = pytest.mark.system

MANY: Final = 200
KIB: Final = 1024
_numbers = count(1)


@dataclass
class Tenant:
    """Who forges, where, and at whose cost."""

    client: Client
    room: Room
    victim: Room
    job: Document
    """The victim's gang, which runs."""

    @property
    def pod(self) -> Document:
        """One of its pods."""
        named = self.victim.pods("mine")[0].name
        return self.victim.client.get(f"/api/v1/namespaces/{self.victim.namespace}/pods/{named}")

    def create(self, document: Document, namespace: str | None = None) -> Document:
        where = {"namespace": namespace or self.room.namespace}
        document = {**document, "metadata": {**document["metadata"], **where}}
        path = self.client.path_of(document)
        made = self.client.create(path.rsplit("/", 1)[0], document)
        self.room.made.append(path)
        return made


@pytest.fixture(scope="module")
def tenant(home: House) -> Iterator[Tenant]:
    with home.room(32) as victim, home.room(32) as room, tenant_of(room) as client:
        victim.gang("Job", "mine", 2)
        victim.until_state("mine", "Running")
        yield Tenant(client, room, victim, victim.client.get(victim.made[-1]))
        still_runs(victim)


@contextmanager
def tenant_of(room: Room) -> Iterator[Client]:
    """A ServiceAccount that may edit this namespace."""
    who = account(room.namespace, "tenant")
    room.client.apply(who, binding("tenant", "edit", who, room.namespace))
    cluster = room.house.cluster
    client = Client(cluster.server, cluster.authority, asyncio.run(token_of(room.house, who)))
    try:
        yield client
    finally:
        client.close()


def still_runs(victim: Room) -> None:
    """The gang is where it was, in its first attempt, and another one starts beside it."""
    beside = f"beside-{next(_numbers)}"
    victim.job(beside, Pods(1, gpus=8), seconds=0)
    victim.until_state(beside, "Finished")
    assert victim.state("mine") == "Running"
    assert {pod.attempt for pod in victim.running("mine")} == {1}
    assert len(victim.running("mine")) == 2
    assert "Evicting" not in [line.get("toState") for line in victim.history("mine")]


def job(name: str, **metadata: Any) -> Document:
    document = m.job(name, "-", "main", Pods(1, gpus=1), seconds=0)
    document["metadata"] |= metadata
    return document


def pod(name: str, spec: Document | None = None, **metadata: Any) -> Document:
    containers = {"containers": [{"name": "main", "image": "none"}]}
    meta = {"name": name, **metadata}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {**containers, **(spec or {})},
    }


def owner(of: Document, **changes: Any) -> list[Document]:
    named = {"apiVersion": of["apiVersion"], "kind": of["kind"], "name": of["metadata"]["name"]}
    return [{**named, "uid": of["metadata"]["uid"], "controller": True, **changes}]


def large(kib: int) -> dict[str, str]:
    return {f"example.com/{n}": "x" * KIB for n in range(kib)}


def with_environment(name: str, number: int) -> Document:
    document = job(name)
    (container,) = document["spec"]["template"]["spec"]["containers"]
    container["env"] = [{"name": f"KEY_{n}", "value": "x" * 200} for n in range(number)]
    return document


def event(about: Document, where: str) -> Document:
    meta = about["metadata"]
    regarding = {"kind": about["kind"], "apiVersion": about["apiVersion"]}
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "forged", "namespace": where},
        "regarding": regarding | {key: meta[key] for key in ("name", "namespace", "uid")},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "queuectl.dev/controller",
        "reportingInstance": "queuectl",
        "action": "Evict",
        "reason": "Evicted",
        "note": "forged",
        "type": "Warning",
    }


def config_map(name: str) -> Document:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}}


Row = tuple[Callable[[Tenant], object], str | None]
SYSTEM: Final = "queuectl-system"
FORBIDDEN: Final = "403"
ROWS: dict[str, Row] = {
    # what is tried, and what its refusal says; None = it is taken, without an effect on others
    "a Job with 1 MiB of annotations": (lambda t: t.create(job("annotated", annotations=large(1024))), "Too long"),
    "a Job with as many annotations as may be": (lambda t: t.create(job("full", annotations=large(250))), None),
    "a Job with thousands of variables": (lambda t: t.create(with_environment("variables", 4000)), None),
    "a pod with thousands of labels": (lambda t: t.create(pod("labelled", labels={f"l-{n}": "x" for n in range(5000)})), None),
    "a Job that another's Job owns": (lambda t: t.create(job("owned", ownerReferences=owner(t.job))), None),
    "a pod that another's Job controls": (lambda t: t.create(pod("claims", ownerReferences=owner(t.job))), None),
    "a pod with the labels of another's pod": (
        lambda t: t.create(pod("labels", labels=t.pod["metadata"]["labels"], ownerReferences=owner(t.job))), "only the controllers of Jobs"),
    "a pod with the annotations of another's pod": (
        lambda t: t.create(pod("notes", annotations=t.pod["metadata"].get("annotations") or {"queuectl.dev/workload": "x"})), None),
    "a pod with the gate": (lambda t: t.create(pod("gated", {"schedulingGates": [{"name": "queuectl.dev/placement"}]})), "only the controllers of Jobs"),
    "a pod put on a node": (
        lambda t: t.create(pod("bound", {"nodeName": free_node(t)})), None),
    "an Event about another's gang, in the tenant's namespace": (lambda t: t.create(event(t.job, t.room.namespace)), None),
    "an Event about another's gang, in its namespace": (lambda t: t.create(event(t.job, t.victim.namespace), t.victim.namespace), FORBIDDEN),
    "a ConfigMap where queuectl runs": (lambda t: t.create(config_map("queuectl"), SYSTEM), FORBIDDEN),
    "a ConfigMap called as queuectl's": (lambda t: t.create(config_map("queuectl")), None),
    "the lease of the leader": (lambda t: t.client.patch(
        f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/queuectl", {"spec": {"holderIdentity": "tenant"}}), FORBIDDEN),
    "a Job in another's namespace": (lambda t: t.create(job("elsewhere"), t.victim.namespace), FORBIDDEN),
    "a Job of the longest name": (lambda t: t.create(job("n" * 61)), None),
    "a Job whose name differs in the last character": (lambda t: t.create(job("n" * 60 + "o")), None),
    "a Job of a longer name": (lambda t: t.create(job("n" * 253)), "63"),
    "a Job called as another's": (lambda t: t.create(job("mine")), None),
}  # fmt: skip


def free_node(tenant: Tenant) -> str:
    taken = {one.node for one in tenant.victim.recorder.now()[1]}
    nodes = tenant.room.client.get("/api/v1/nodes")["items"]
    return str(next(n["metadata"]["name"] for n in nodes if n["metadata"]["name"] not in taken))


def test_what_a_tenant_forges_is_refused_or_has_no_effect_on_others(tenant: Tenant) -> None:
    found: dict[str, str | None] = {}
    for what, (tries, says) in ROWS.items():
        try:
            tries(tenant)
        except RequestError as error:
            text = f"{error.status} {error}"
            found[what] = says if says is not None and says in text else text[:300]
        else:
            found[what] = None
    assert found == {what: says for what, (_, says) in ROWS.items()}
    for name in ("full", "variables", "n" * 61, "n" * 60 + "o", "mine"):
        tenant.room.until_state(name, "Finished")
    still_runs(tenant.victim)


def gang(tenant: Tenant, name: str, **metadata: Any) -> str:
    """A gang of the tenant's that runs; its path."""
    document = m.job(name, "-", "main", Pods(2, gpus=8))
    document["metadata"] |= metadata
    document["spec"]["template"]["metadata"] |= metadata
    tenant.create(document)
    tenant.room.until_state(name, "Running")
    return tenant.room.made[-1]


def refused(says: str, tries: Callable[..., object], *arguments: Any, **options: Any) -> None:
    with pytest.raises(RequestError, match=says):
        tries(*arguments, **options)


def test_a_gang_keeps_no_gpus_outside_its_queue(tenant: Tenant) -> None:
    """Neither by a deletion that leaves its pods, nor by a finalizer, nor by letting its pods go."""
    room, client = tenant.room, tenant.client
    path = gang(tenant, "keeps", finalizers=["example.com/keep"])
    without_pods: tuple[Document, ...] = (
        {},
        {"propagationPolicy": "Orphan"},
        {"orphanDependents": True},
    )
    for options in without_pods:
        refused("together with its pods", client.delete, path, **options)
    for with_pods in ("Background", "Foreground"):
        refused("example.com/keep, or hold", client.delete, path, propagationPolicy=with_pods)
    for one in room.pods("keeps"):
        target = f"/api/v1/namespaces/{room.namespace}/pods/{one.name}"
        stays = "stay as they are"
        refused(stays, client.patch, target, {"metadata": {"ownerReferences": None}})
        other = {"batch.kubernetes.io/controller-uid": "x", "controller-uid": None}
        refused(stays, client.patch, target, {"metadata": {"labels": other}})
        client.patch(target, {"metadata": {"labels": {"example.com/more": "x"}}})
    ask(room, "keeps", "hold")
    room.until_state("keeps", "Held")  # the pods are there still, and use nothing
    assert {pod.terminal for pod in room.pods("keeps")} == {True}
    client.delete(path, propagationPolicy="Background")
    gang(tenant, "next")
    no_finalizers = {"metadata": {"finalizers": None}}
    for one in room.pods("keeps"):
        client.patch(f"/api/v1/namespaces/{room.namespace}/pods/{one.name}", no_finalizers)
    client.patch(path, no_finalizers)
    room.until_state("keeps", "Finished")
    client.delete(room.made[-1], propagationPolicy="Background")
    room.until_state("next", "Finished")


def test_hundreds_of_jobs_of_one_tenant_hold_up_no_other(tenant: Tenant) -> None:
    """They wait in their own queue; a gang of another starts, and a ResourceQuota bounds how many there are."""
    large = [
        m.job(f"many-{n}", "-", "main", Pods(5, gpus=8)) for n in range(MANY)
    ]  # over its quota
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(tenant.create, large))
    still_runs(tenant.victim)
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "jobs"}}
    tenant.room.client.create(
        f"/api/v1/namespaces/{tenant.room.namespace}/resourcequotas",
        quota | {"spec": {"hard": {"count/jobs.batch": str(MANY)}}},
    )
    tenant.room.until(lambda: is_full(tenant), "the ResourceQuota counts")
    refused("exceeded quota", tenant.create, job("one-more"))


def is_full(tenant: Tenant) -> bool:
    quota = f"/api/v1/namespaces/{tenant.room.namespace}/resourcequotas/jobs"
    used = tenant.room.client.get(quota).get("status", {}).get("used", {})
    return int(used.get("count/jobs.batch", 0)) >= MANY
