"""The in-house kind of docs/examples/own-kind, with a simulated controller: a small one that keeps the contract of such a kind.

It creates the pods of a GangRun that is not suspended, deletes those of a suspended one, and writes its phase.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import yaml

from queuectl.cluster.adapter import SYSTEM_NAMESPACE
from queuectl.demo.scenario import PodSetManifest
from queuectl.localcluster import ApiServerError, LocalCluster
from queuectl.localcluster.client import Client, wait_until
from queuectl.objects import keys
from queuectl.objects.kinds import with_declared
from queuectl.objects.kinds.declared import read_kinds
from tests.support import chart
from tests.support.people import account, binding, namespace, role

Document = dict[str, Any]
FOLDER: Final = Path(__file__).parents[2] / "docs" / "examples" / "own-kind"
KINDS_FILE: Final = FOLDER / "job-kinds.yaml"
JOB_KINDS: Final[list[Document]] = yaml.safe_load(KINDS_FILE.read_text())["jobKinds"]
OWN_KINDS: Final = with_declared(read_kinds(KINDS_FILE.read_text(), KINDS_FILE.name))
GROUP: Final = "research.example.com"
GANGRUNS: Final = f"/apis/{GROUP}/v1/gangruns"
INDEX: Final = f"{GROUP}/index"
ACCOUNT: Final = account("research", "gangrun-controller")
USER: Final = "system:serviceaccount:research:gangrun-controller"
_RULES: Final = [
    {
        "apiGroups": [GROUP],
        "resources": ["gangruns", "gangruns/status"],
        "verbs": ["list", "patch"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete", "list"]},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "delete", "list"]},
    {"apiGroups": ["teams.example.com"], "resources": ["*"], "verbs": ["list", "patch"]},
]
_PAUSE: Final = 0.1
_APPLIED: Final = {"ConfigMap", "Namespace", "PriorityClass", "ServiceAccount"}


def gangrun(name: str, where: str, template: Document, workers: int, **labels: str) -> Document:
    """A GangRun as its user writes it. ``labels``: by their names without prefix, with ``_`` for ``-``."""
    named = {f"queuectl.dev/{key.replace('_', '-')}": value for key, value in labels.items()}
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "GangRun",
        "metadata": {"name": name, "namespace": where, "labels": named},
        "spec": {"workers": workers, "script": "train.py", "template": template},
    }


def define(client: Client) -> None:
    """Create the CustomResourceDefinition, and the account of the controller."""
    client.apply_file(FOLDER / "crd.yaml")
    create_account(client)


def create_account(client: Client) -> None:
    """Create the account of the controller, with its rights."""
    name = "gangrun-controller"
    client.apply(namespace("research"), ACCOUNT, role(name, _RULES), binding(name, name, ACCOUNT))


@contextmanager
def simulated_controller(
    cluster: LocalCluster, also: Callable[[Client], None] = lambda _: None
) -> Iterator[None]:
    """Run the simulated controller in a thread, under its account. ``also``: a round of another controller."""
    client, stop = cluster.client_for_user(USER), threading.Event()
    thread = threading.Thread(target=_run, args=(client, stop, also), name="gangruns", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        client.close()


def _run(client: Client, stop: threading.Event, also: Callable[[Client], None]) -> None:
    while not stop.wait(_PAUSE):
        with suppress(
            ApiServerError
        ):  # an object has changed in the meantime: the next round repeats it
            also(client)
            pods = client.get("/api/v1/pods")["items"]
            for job in client.get(GANGRUNS)["items"]:
                _reconcile(client, job, [pod for pod in pods if _owns(job, pod)])


def _owns(job: Document, pod: Document) -> bool:
    owners = pod["metadata"].get("ownerReferences", ())
    return any(owner["uid"] == job["metadata"]["uid"] for owner in owners)


def _reconcile(client: Client, job: Document, pods: list[Document]) -> None:
    spec, phase = job["spec"], job.get("status", {}).get("phase", "")
    if phase in ("Done", "Broken") or "deletionTimestamp" in job["metadata"]:
        return
    if spec.get("suspend", False):
        _delete(client, pods)
        _report(client, job, "Running" if pods else "Stopped")
        return
    failed = [pod for pod in pods if pod["status"]["phase"] == "Failed"]
    _delete(client, failed)
    there = {pod["metadata"]["labels"][INDEX] for pod in pods}
    missing = [index for index in range(spec.get("workers", 1)) if str(index) not in there]
    for index in missing:
        client.create(f"/api/v1/namespaces/{job['metadata']['namespace']}/pods", _pod(job, index))
    ended = not missing and all(pod["status"]["phase"] == "Succeeded" for pod in pods)
    _report(client, job, "Done" if ended else "Running")


def _delete(client: Client, pods: list[Document]) -> None:
    for pod in pods:
        meta = pod["metadata"]
        if "deletionTimestamp" not in meta:
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            client.delete(path, missing_ok=True)


def _report(client: Client, job: Document, phase: str) -> None:
    meta = job["metadata"]
    if job.get("status", {}).get("phase") != phase:
        path = f"/apis/{GROUP}/v1/namespaces/{meta['namespace']}/gangruns/{meta['name']}/status"
        client.patch(path, {"status": {"phase": phase}})


def _pod(job: Document, index: int) -> Document:
    template, meta = job["spec"]["template"], job["metadata"]
    own = template.get("metadata", {})
    owner = {"apiVersion": f"{GROUP}/v1", "kind": "GangRun", "name": meta["name"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{meta['name']}-{index}",
            "labels": {**own.get("labels", {}), INDEX: str(index)},
            "annotations": own.get("annotations", {}),
            "ownerReferences": [{**owner, "uid": meta["uid"], "controller": True}],
        },
        "spec": template["spec"],
    }


@contextmanager
def admission(
    cluster: LocalCluster,
    job_kinds: Sequence[Document],
    also: Callable[[Client], None],
) -> Iterator[None]:
    """The admission of the chart with declared kinds, and their controllers. ``also``: a round of another controller."""
    define(cluster.client)
    rendered = [
        one
        for one in chart.documents({**chart.BASE_VALUES, "jobKinds": list(job_kinds)})
        if one["kind"] in _APPLIED or "Role" in one["kind"] or "Admission" in one["kind"]
    ]
    first = [one for one in rendered if one["kind"] in ("Namespace", "ServiceAccount")]
    cluster.client.apply(*first)
    cluster.client.apply(*[one for one in rendered if one not in first])
    until_gated(cluster.client)
    with simulated_controller(cluster, also):
        yield


def until_gated(client: Client) -> None:
    """Wait until the policies have effect on GangRuns."""
    template = PodSetManifest(1).template("main", None, restart="Never")
    probe = gangrun("probe", SYSTEM_NAMESPACE, template, 1, queue_name="x")

    def gated() -> bool:
        try:
            path = client.path_of(probe).rsplit("/", 1)[0]
            return keys.GATE in str(client.create(path, probe, dryRun="All"))
        except ApiServerError:
            return False

    wait_until(gated, "the policies have effect on GangRuns", 60.0)
