"""Objects that a stopped Kueue leaves in an API server: its CRDs and configuration, jobs, and Workloads with admissions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import yaml

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.quantity import GPU
from queuectl.localcluster.client import Client, wait_until
from tests.support.definitions import definition
from tests.support.kueue import of_kueue, workload
from tests.system.installation import BLOCK, RACK

NAMESPACE: Final = "research"
SYSTEM: Final = "kueue-system"
KUEUE: Final = "kueue.x-k8s.io"
VERSION: Final = f"{KUEUE}/v1beta2"
CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SCOPES: Final = {
    "ClusterQueue": "Cluster",
    "LocalQueue": "Namespaced",
    "Cohort": "Cluster",
    "ResourceFlavor": "Cluster",
    "Topology": "Cluster",
    "WorkloadPriorityClass": "Cluster",
    "AdmissionCheck": "Cluster",
    "ProvisioningRequestConfig": "Cluster",
    "Workload": "Namespaced",
}
RUNNING: Final = {"fold": "Job", "train": "PyTorchJob"}
WAITING: Final = {"third": "Job", "first": "PyTorchJob", "second": "Job"}


def plural(kind: str) -> str:
    known = {"Topology": "topologies", "WorkloadPriorityClass": "workloadpriorityclasses"}
    return known.get(kind, f"{kind.lower()}s")


def configuration() -> list[Document]:
    """Two flavors of the same nodes: the node of a gang does not determine the flavor that it is charged to."""
    linux = {"kubernetes.io/os": "linux"}  # Kueue asks for a label where there is a topology
    queue = m.cluster_queue("pool", "gpu", {GPU: 16, "cpu": 1000})
    [group] = queue["spec"]["resourceGroups"]
    spot = m.cluster_queue("pool", "spot", {GPU: 32, "cpu": 1000})
    group["flavors"] += spot["spec"]["resourceGroups"][0]["flavors"]
    queue["spec"]["cohortName"] = "all"
    queue["metadata"]["finalizers"] = [f"{KUEUE}/resource-in-use"]
    queue["status"] = {"pendingWorkloads": 3, "conditions": []}
    cohort: Document = {"kind": "Cohort", "metadata": {"name": "all"}, "spec": {}}
    settings: Document = {"kind": "ProvisioningRequestConfig", "metadata": {"name": "atomic"}}
    settings["spec"] = {"provisioningClassName": "best-effort-atomic-scale-up.autoscaling.x-k8s.io"}
    check: Document = {"kind": "AdmissionCheck", "metadata": {"name": "nodes"}}
    check["spec"] = {
        "controllerName": f"{KUEUE}/provisioning-request",
        "parameters": {"apiGroup": KUEUE, "kind": settings["kind"], "name": "atomic"},
    }
    documents = [
        m.topology("gpus", BLOCK, RACK),
        m.flavor("gpu", topology="gpus", **linux),
        m.flavor("spot", topology="gpus", **linux),
        m.priority_class("urgent", 100),
        cohort,
        settings,
        check,
        queue,
        m.local_queue(NAMESPACE, "team", "pool"),
    ]
    return [document | {"apiVersion": VERSION} for document in documents]


def gang(kind: str, name: str, *, running: bool, **options: Any) -> Document:
    """Two pods of 8 GPUs."""
    pods = PodSetManifest(2, gpus=8)
    if kind == "Job":
        document = m.job(name, NAMESPACE, None, pods)
    else:
        one = PodSetManifest(1, gpus=8)
        document = m.pytorchjob(name, NAMESPACE, None, master=one, worker=one)
    return of_kueue(document, "team", running=running, **options)


def gangs() -> list[Document]:
    """Of all that were submitted."""
    return [gang(kind, name, running=False) for name, kind in (RUNNING | WAITING).items()]


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


def uids(pods: Sequence[Document]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def leave(client: Client) -> None:
    """Two admitted gangs, and three pending ones, queued in another order than their jobs were created."""
    for kind in SCOPES:
        made = definition(KUEUE, kind, plural(kind), "v1beta1", "v1beta2", scope=SCOPES[kind])
        client.create(CRDS, made)
    for kind in SCOPES:
        listed = f"/apis/{VERSION}/{plural(kind)}"
        wait_until(partial(client.exists, listed), listed, 20.0)
    client.apply(*m.namespaces([NAMESPACE, SYSTEM]))
    for document in configuration():
        _store(client, document)
    jobs = {}
    for name, kind in (RUNNING | WAITING).items():
        document = gang(kind, name, running=name in RUNNING)
        made = client.create(client.path_of(document).rsplit("/", 1)[0], document)
        jobs[name] = made | {"apiVersion": document["apiVersion"], "kind": kind}
    for name in RUNNING:
        wait_until(partial(_runs, client, name), f"{name} runs", 60.0)
    hosts = [(str(pod["spec"]["nodeName"]), 1) for pod in pods_of(client, "fold")]
    for name in RUNNING:
        placement = {"main": hosts} if name == "fold" else None
        admitted = workload(
            jobs[name], podsets(jobs[name]), admitted="spot", queue="pool", hosts=placement
        )
        _store(client, admitted)
    for name in sorted(WAITING):
        time.sleep(1.1)  # the server counts creation times in whole seconds
        _store(client, workload(jobs[name], podsets(jobs[name])))
    client.apply(*_manager())


def _store(client: Client, document: Document) -> None:
    """Create an object of Kueue's and then its status, as Kueue does."""
    path = client.path_of(document)
    client.create(path.rsplit("/", 1)[0], document)
    if "status" in document:
        client.patch(f"{path}/status", {"status": document["status"]})


def _runs(client: Client, name: str) -> bool:
    return len(pods_of(client, name)) == 2


def _manager() -> list[Document]:
    """The manager's Deployment, its configuration, and its webhooks, which have no endpoint."""
    labels = {"control-plane": "controller-manager"}
    container = {"name": "manager", "image": "registry.invalid/kueue:1"}
    configured = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration"}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "kueue-manager-config", "namespace": SYSTEM},
            "data": {"controller_manager_config.yaml": yaml.safe_dump(configured)},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "kueue-controller-manager", "namespace": SYSTEM},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        },
        *(_webhooks(kind) for kind in ("Mutating", "Validating")),
    ]


def _webhooks(kind: str) -> Document:
    """A webhook without an endpoint: while its configuration exists, no job can be created."""
    rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"]}
    service = {"name": "kueue-webhook-service", "namespace": SYSTEM, "path": "/admit"}
    hook = {
        "name": f"job.{KUEUE}",
        "rules": [rule | {"operations": ["CREATE"]}],
        "clientConfig": {"service": service},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    name = f"kueue-{kind.lower()}-webhook-configuration"
    metadata = {"name": name, "labels": {"app.kubernetes.io/name": "kueue"}}
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": metadata}
    return head | {"kind": f"{kind}WebhookConfiguration", "webhooks": [hook]}
