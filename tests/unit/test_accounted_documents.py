"""``queuectl plan -f`` accounts for each document: planned, running, state, or ignored with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml
from typer.testing import CliRunner

from queuectl.cli.plan import plan_command

ROOT = Path(__file__).parent.parent.parent
SCHEMA = json.loads((ROOT / "docs" / "reference" / "plan-schema.json").read_text())
QUEUE = {"queuectl.dev/queue-name": "q"}
TAKEN = {"queuectl.dev/submitted-by": "ann"}
GATE = {"schedulingGates": [{"name": "queuectl.dev/placement"}]}
Body = dict[str, Any]

app = typer.Typer()
app.command()(plan_command)

CLUSTER = list(
    yaml.safe_load_all("""
apiVersion: queuectl.dev/v1
kind: ResourceFlavor
metadata: {name: f}
---
apiVersion: queuectl.dev/v1
kind: ClusterQueue
metadata: {name: cq}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{name: f, resources: [{name: nvidia.com/gpu, nominalQuota: 16}]}]
---
apiVersion: queuectl.dev/v1
kind: LocalQueue
metadata: {name: q, namespace: ns}
spec: {clusterQueue: cq}
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {kubernetes.io/hostname: n1}}
status:
  allocatable: {cpu: 96, memory: 1Ti, nvidia.com/gpu: 8, pods: 110}
  conditions: [{type: Ready, status: "True"}]
""")
)


def template(labels: Body | None = None, **spec: Any) -> Body:
    container = {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "metadata": {"labels": {"app": "w", **(labels or {})}},
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }


def body(version: str, kind: str, spec: Body | None = None, **meta: Any) -> Body:
    metadata = {"name": "w", "namespace": "ns", **meta}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec or {}}


def job(labels: Body | None = None, inside: Body | None = None, **more: Any) -> Body:
    made = body("batch/v1", "Job", {"template": template(inside)}, labels=labels or {})
    made["metadata"] |= more.pop("metadata", {})
    made["spec"] |= more.pop("spec", {})
    return {**made, **more}


def owner(kind: str, labels: Body | None = None, inside: Body | None = None, **meta: Any) -> Body:
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "w"}}, "template": template(inside)}
    return body("apps/v1", kind, spec, labels=labels or {}, **meta)


def leader_worker_set(labels: Body | None, **meta: Any) -> Body:
    templates = {"size": 1, "workerTemplate": template()}
    spec = {"replicas": 1, "leaderWorkerTemplate": templates}
    return body("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec, labels=labels or {}, **meta)


def pod(name: str = "p", labels: Body | None = None, **more: Any) -> Body:
    own = template(labels, **more.pop("spec", {}))
    metadata = {**own["metadata"], "name": name, "namespace": "ns", **more.pop("metadata", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": own["spec"], **more}


def controlled(kind: str, name: str) -> list[Body]:
    return [
        {"apiVersion": "x/v1", "kind": kind, "name": name, "uid": f"u-{name}", "controller": True}
    ]


UID = {"uid": "u-w"}
COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}
BOUND = {"nodeName": "n1"}

NOT_ADMITTED = (
    "it has a queue label, but queuectl did not admit it: it was created without the annotation "
    "queuectl.dev/submitted-by and the scheduling gate queuectl.dev/placement"
)

IGNORED: dict[str, tuple[Body, str]] = {
    "label on the pod template of a Job": (
        job(inside=QUEUE),
        "it has no queue label; only its pod template has one",
    ),
    "queue as an annotation": (
        job(metadata={"annotations": QUEUE}),
        "it has no queue label; an annotation names the queue, and only a label counts",
    ),
    "Kueue's queue name as an annotation": (
        job(metadata={"annotations": {"kueue.x-k8s.io/queue-name": "q"}}),
        "it has no queue label; an annotation names the queue, and only a label counts",
    ),
    "suspended Job with the label on its template": (
        job(inside=QUEUE, spec={"suspend": True}),
        "it has no queue label; only its pod template has one",
    ),
    "suspended Job without a queue": (job(spec={"suspend": True}), "it has no queue label"),
    "Job without a queue": (job(metadata=UID), "it has no queue label"),
    "finished Job": (job(QUEUE, metadata=UID, status=COMPLETE), "it has finished"),
    "suspended Job that is being deleted": (
        job(
            QUEUE,
            metadata={**UID, "deletionTimestamp": "2026-01-01T00:00:00Z"},
            spec={"suspend": True},
        ),
        "it is being deleted",
    ),
    "running Job without its pods": (
        job(QUEUE, metadata=UID),
        "it is not suspended, but neither its pods nor its admission are in the input",
    ),
    "Deployment without a queue": (owner("Deployment"), "it has no queue label"),
    "StatefulSet with the queue as an annotation": (
        owner("StatefulSet", annotations=QUEUE),
        "it has no queue label; an annotation names the queue, and only a label counts",
    ),
    "Deployment that exists without its pods": (
        owner("Deployment", QUEUE, uid="u"),
        "it exists, and its pods are not in the input",
    ),
    "StatefulSet that exists without its pods, label on its template": (
        owner("StatefulSet", inside=QUEUE, uid="u"),
        "it exists, and its pods are not in the input",
    ),
    "LeaderWorkerSet that exists without its pods": (
        leader_worker_set(QUEUE, uid="u"),
        "it exists, and its pods are not in the input",
    ),
    "LeaderWorkerSet without a queue": (leader_worker_set(None), "it has no queue label"),
    "pod that waits without a queue": (pod(metadata=UID), "it has no queue label"),
    "pod with a queue label and without the gate": (pod(labels=QUEUE, metadata=UID), NOT_ADMITTED),
    "running pod with a queue label that queuectl did not admit": (
        pod(labels=QUEUE, metadata=UID, spec=BOUND),
        f"{NOT_ADMITTED}; it counts on its node as a pod without a queue",
    ),
    "pod with Kueue's gate": (
        pod(
            labels={"kueue.x-k8s.io/queue-name": "q"},
            metadata=UID,
            spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]},
        ),
        "it has Kueue's scheduling gate kueue.x-k8s.io/admission, so Kueue starts it",
    ),
    "pod that has ended": (pod(metadata=UID, status={"phase": "Succeeded"}), "it has ended"),
    "pod on an unknown node": (
        pod(metadata=UID, spec={"nodeName": "n9"}),
        "its node n9 is not in the input",
    ),
    "Job of a JobSet that is not in the input": (
        job(QUEUE, metadata={**UID, "ownerReferences": controlled("JobSet", "js")}),
        "it is a part of JobSet ns/js, which is not in the input",
    ),
    "RayService that exists without its clusters": (
        body("ray.io/v1", "RayService", uid="u", labels=QUEUE),
        "it exists, and what its controller created is not in the input",
    ),
    "unknown kind": (body("v1", "Service"), "objects of kind Service are not read"),
    "unknown kind with a queue": (
        body("example.com/v1", "Train", labels=QUEUE),
        "objects of kind Train are not read; a kind of job of your own is declared in jobKinds",
    ),
    "other version of a Job": (
        job(QUEUE, apiVersion="batch/v1beta1"),
        "apiVersion batch/v1beta1 of Job is not read, but batch/v1",
    ),
    "Workload without a queue": (
        body("kueue.x-k8s.io/v1beta1", "Workload", {"podSets": [{"template": template()}]}),
        "it has no spec.queueName",
    ),
    "Deployment of an old version": (
        {**owner("Deployment", QUEUE), "apiVersion": "extensions/v1beta1"},
        "apiVersion extensions/v1beta1 of Deployment is not read, but apps/v1",
    ),
}


def planned_of(*bodies: Body) -> Body:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*CLUSTER, *bodies]})
    result = CliRunner().invoke(app, ["-f", "-", "-o", "json"], input=text)
    assert result.exit_code == 0, result.output
    document: Body = json.loads(result.stdout)
    jsonschema.validate(document, SCHEMA)
    return document


@pytest.mark.parametrize(("given_body", "reason"), IGNORED.values(), ids=IGNORED)
def test_a_document_without_effect_is_ignored_with_its_reason(
    given_body: Body, reason: str
) -> None:
    document = planned_of(given_body)
    shown = f"{given_body['kind']}/{given_body['metadata']['name']}"
    address = f"{given_body['apiVersion']} stdin: document 1, item 5 ({shown})"
    assert document["ignored"] == [{"object": address, "reason": reason}]
    assert document["documents"] == {"planned": 0, "running": 0, "state": 4, "ignored": 1}


PLANNED: dict[str, Body] = {
    "Job": job(QUEUE),
    "Job with Kueue's queue label": job({"kueue.x-k8s.io/queue-name": "q"}),
    "Deployment that was not created yet": owner("Deployment", QUEUE),
    "Deployment with the label on its template": owner("Deployment", inside=QUEUE),
    "StatefulSet that was not created yet": owner("StatefulSet", QUEUE),
    "LeaderWorkerSet that was not created yet": leader_worker_set(QUEUE),
    "pod that was not created yet": pod(labels=QUEUE),
    "pod with the gate": pod(labels=QUEUE, metadata={**UID, "annotations": TAKEN}, spec=GATE),
}


@pytest.mark.parametrize("given_body", PLANNED.values(), ids=PLANNED)
def test_a_submission_is_planned(given_body: Body) -> None:
    document = planned_of(given_body)
    assert document["documents"] == {"planned": 1, "running": 0, "state": 4, "ignored": 0}
    assert len(document["admitted"]) == 1
