"""A tenant who forges: a ServiceAccount that may edit one namespace, what it writes, and the gang of another tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from queuectl.cli.main import app
from queuectl.cluster.writes import REPORTER
from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.localcluster import ApiServerError
from queuectl.localcluster.client import Client, get_plain
from tests.support.controlplane import client_of_account
from tests.support.people import account, binding, role, token_of
from tests.system.installation import Workspace

KIB: Final = 1024
PYTORCHJOBS: Final = [{"apiGroups": ["kubeflow.org"], "resources": ["*"], "verbs": ["*"]}]
"""As Kubeflow adds them to the role ``edit``."""
_numbers = count(1)


@dataclass
class Tenant:
    """The client and namespace of a tenant who forges objects, and the gang of the victim."""

    client: Client
    workspace: Workspace
    victim: Workspace
    job: Document
    """The victim's gang, which runs."""

    @property
    def pod(self) -> Document:
        """One of its pods."""
        named = self.victim.pods("mine")[0].name
        return self.victim.client.get(f"/api/v1/namespaces/{self.victim.namespace}/pods/{named}")

    def create(self, document: Document, namespace: str | None = None) -> Document:
        where = {"namespace": namespace or self.workspace.namespace}
        document = {**document, "metadata": {**document["metadata"], **where}}
        path = self.client.path_of(document)
        made = self.client.create(path.rsplit("/", 1)[0], document)
        self.workspace.made.append(path)
        return made


@contextmanager
def tenant_of(workspace: Workspace) -> Iterator[Client]:
    """A ServiceAccount that may edit this namespace."""
    who = account(workspace.namespace, "tenant")
    operator = role("training-edit", PYTORCHJOBS)
    bindings = [
        binding(f"tenant-{one}", one, who, workspace.namespace) for one in ("edit", "training-edit")
    ]
    workspace.client.apply(who, operator, *bindings)
    cluster = workspace.installation.cluster
    client = Client(
        cluster.server, cluster.authority, asyncio.run(token_of(workspace.installation, who))
    )
    try:
        yield client
    finally:
        client.close()


@contextmanager
def account_of_queuectl(workspace: Workspace) -> Iterator[Client]:
    """A client with the rights of queuectl."""
    cluster = workspace.installation.cluster
    with client_of_account(cluster, "queuectl-system", "queuectl") as client:
        yield client


def still_runs(victim: Workspace) -> None:
    """The gang is where it was, in its first attempt, and another one starts alongside it."""
    beside = f"beside-{next(_numbers)}"
    victim.job(beside, PodSetManifest(1, gpus=8), seconds=0)
    victim.until_state(beside, "Finished")
    assert victim.state("mine") == "Running"
    assert {pod.attempt for pod in victim.running("mine")} == {1}
    assert len(victim.running("mine")) == 2
    assert "Evicting" not in [line.get("toState") for line in victim.history("mine")]


def job(name: str, seconds: float | None = 0, **metadata: Any) -> Document:
    """Of one pod with a GPU. ``seconds``: that it runs, None = until it is deleted."""
    document = m.job(name, "-", "main", PodSetManifest(1, gpus=1), seconds=seconds)
    document["metadata"] |= metadata
    return document


def selecting(name: str) -> Document:
    """A Job that selects pods without a label: it releases a pod that gets the label, and adopts other pods without it."""
    document = m.job(name, "-", "main", PodSetManifest(1, gpus=8))
    without = {"key": "example.com/left", "operator": "DoesNotExist"}
    document["spec"] |= {"manualSelector": True, "selector": {"matchExpressions": [without]}}
    return document


def pytorchjob(name: str) -> Document:
    """Of two pods with a GPU each, which run until they are deleted."""
    return m.pytorchjob(
        name, "-", "main", master=PodSetManifest(1, gpus=1), worker=PodSetManifest(1, gpus=1)
    )


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


def event(about: Document, where: str, name: str = "forged") -> Document:
    meta = about["metadata"]
    regarding = {"kind": about["kind"], "apiVersion": about["apiVersion"]}
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": where},
        "regarding": regarding | {key: meta[key] for key in ("name", "namespace", "uid")},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": REPORTER,
        "reportingInstance": "queuectl",
        "action": "Evict",
        "reason": "Evicted",
        "note": "forged",
        "type": "Warning",
    }


def config_map(name: str) -> Document:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}}


def gang(tenant: Tenant, kind: str, name: str, **metadata: Any) -> str:
    """A gang of the tenant's that runs, as do its pods with this metadata; its path."""
    one = PodSetManifest(1, gpus=8)
    if kind == "Job":
        document = m.job(name, "-", "main", PodSetManifest(2, gpus=8))
        templates = [document["spec"]["template"]]
    else:
        document = m.pytorchjob(name, "-", "main", master=one, worker=one)
        replicas = document["spec"]["pytorchReplicaSpecs"].values()
        templates = [replica["template"] for replica in replicas]
    for each in (document, *templates):
        each["metadata"] |= metadata
    tenant.create(document)
    tenant.workspace.until_state(name, "Running")
    return tenant.workspace.made[-1]


def refused(says: str, tries: Callable[..., object], *arguments: Any, **options: Any) -> None:
    with pytest.raises(ApiServerError, match=says):
        tries(*arguments, **options)


def get_json(workspace: Workspace, path: str) -> Document:
    """The answer of the REST API."""
    answer = get_plain(f"{workspace.installation.controller.api}/api/v1/{path}")
    assert answer.is_success, answer.text
    body: Document = answer.json()
    return body


def named(workspace: Workspace, kind: str, name: str) -> Document:
    """The workload that has this name; empty while it is not known."""
    path = f"namespaces/{workspace.namespace}/workloads/{name}"
    answer = get_plain(f"{workspace.installation.controller.api}/api/v1/{path}?kind={kind}")
    body: Document = answer.json() if answer.is_success else {}
    return body


def state(workspace: Workspace, kind: str, name: str) -> str:
    """Of the workload that has this name."""
    return str(named(workspace, kind, name).get("state", ""))


def until_state(workspace: Workspace, kind: str, name: str, wanted: str) -> None:
    """Wait until the workload that has this name is in this state."""
    workspace.until(lambda: state(workspace, kind, name) == wanted, f"{kind} {name} {wanted}")


def uid_of(workspace: Workspace, kind: str, name: str) -> str:
    """Of the workload that has this name; empty while it is not known."""
    return str(named(workspace, kind, name).get("uid", ""))


def typed(workspace: Workspace, action: str, name: str, *options: str) -> None:
    """``queuectl hold`` and its like; raises RequestRefused."""
    server = workspace.installation.controller.api
    command = [
        action,
        f"{workspace.namespace}/{name}",
        "--by",
        "alice",
        "--server",
        server,
        *options,
    ]
    CliRunner().invoke(app, command, catch_exceptions=False)


def events_about(workspace: Workspace, uid: str) -> list[Document]:
    """queuectl's Events about an object in the namespace of the workspace."""
    listed = workspace.client.get(f"/apis/events.k8s.io/v1/namespaces/{workspace.namespace}/events")
    return [
        one
        for one in listed["items"]
        if one["regarding"]["uid"] == uid and "queuectl" in one.get("reportingController", "")
    ]


def figures(workspace: Workspace) -> dict[str, str]:
    """All metrics about the queues of the workspace, which change only when its gangs do."""
    text = get_plain(f"{workspace.installation.controller.metrics}/metrics").text
    lines = (
        line.rpartition(" ") for line in text.splitlines() if f'"{workspace.namespace}"' in line
    )
    return {series: value for series, _, value in lines if "_created" not in series}


def _without(document: Document, *fields: str) -> Document:
    return {key: value for key, value in document.items() if key not in fields}


def seen_of(workspace: Workspace, kind: str, name: str) -> Document:
    """All that is shown of a gang that runs, apart from the time that has passed; once its Event is written.

    Its expected run time is not compared: it is learned from the gangs of all users that end.
    """
    found = named(workspace, kind, name)
    uid, why = found["uid"], found["reason"]["message"]
    workspace.until(
        lambda: why in {one["note"] for one in events_about(workspace, uid)}, "its Event"
    )
    return {
        "workload": _without(found, "executedSeconds", "runTime"),
        "explained": _without(get_json(workspace, f"workloads/{uid}/explain"), "runTime"),
        "history": get_json(workspace, f"workloads/{uid}/history")["items"],
        "events": [(one["metadata"]["name"], one["note"]) for one in events_about(workspace, uid)],
        "pods": {pod.name: (pod.uid, pod.node, pod.phase) for pod in workspace.pods(name)},
        "figures": figures(workspace),
    }
