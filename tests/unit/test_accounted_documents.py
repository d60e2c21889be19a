"""``queuectl plan -f`` accounts for each document: planned, running, state, or ignored with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from queuectl.cli.plan import plan_command
from queuectl.cli.targets import ignored_lines
from queuectl.control.checked_plan import checked_plan
from queuectl.devices.gpu_sizes import with_sizes
from queuectl.objects.documents import Document, documents_of
from queuectl.objects.errors import DocumentError
from queuectl.offline.inputs import SnapshotInput, read_snapshot

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
    "pod with Kueue's gate for topologies alone": (
        pod(
            labels=QUEUE,
            metadata=UID,
            spec={"schedulingGates": [{"name": "kueue.x-k8s.io/topology"}]},
        ),
        "it has Kueue's scheduling gate kueue.x-k8s.io/topology, so Kueue starts it",
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
        "objects of kind Train are not read; declare a custom job kind in jobKinds",
    ),
    "other version of a Job": (
        job(QUEUE, apiVersion="batch/v1beta1"),
        "apiVersion batch/v1beta1 of Job is not read; use batch/v1",
    ),
    "kind in lower case": (
        job(QUEUE, kind="job"),
        "objects of kind job are not read; the kind is Job",
    ),
    "kind of configuration in another case": (
        body("queuectl.dev/v1", "Clusterqueue"),
        "objects of kind Clusterqueue are not read; the kind is ClusterQueue",
    ),
    "Workload without a queue": (
        body("kueue.x-k8s.io/v1beta1", "Workload", {"podSets": [{"template": template()}]}),
        "it has no spec.queueName",
    ),
    "Deployment of an old version": (
        {**owner("Deployment", QUEUE), "apiVersion": "extensions/v1beta1"},
        "apiVersion extensions/v1beta1 of Deployment is not read; use apps/v1",
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


FIELDS = st.sampled_from(
    ["labels", "annotations", "ownerReferences", "template", "spec", "metadata", "replicas"]
)
KINDS_OF_JOBS = ("Job", "JobSet", "PyTorchJob", "RayCluster", "RayService", "LeaderWorkerSet")
VERSIONS = ("v1", "batch/v1", "apps/v1", "kubeflow.org/v1", "ray.io/v1", "jobset.x-k8s.io/v1alpha2")
OTHER_KINDS = ("Deployment", "StatefulSet", "Pod", "Workload", "Node", "LocalQueue", "Service", "")
NAMES = st.sampled_from(["w", "x", "y"])
GARBAGE = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.sampled_from(["", "q", "w", "1"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(FIELDS, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def gangs(draw: st.DrawFn) -> Body:
    """An object with a queue label in one of its places, before or after its creation."""
    labels, inside = draw(st.sampled_from([(QUEUE, None), (None, QUEUE), (None, None)]))
    made = draw(
        st.sampled_from(
            [
                job(labels, inside),
                job(labels, inside, spec={"suspend": True}),
                owner("Deployment", labels, inside),
                owner("StatefulSet", labels, inside),
                leader_worker_set(labels),
                pod("w", labels),
                pod("w", labels, spec=GATE, metadata={"annotations": TAKEN}),
                pod("w", labels, spec=BOUND),
                pod("w", labels, status={"phase": "Succeeded"}),
                pod("w", metadata={"ownerReferences": controlled("Job", "w")}, spec=BOUND),
                job(labels, metadata={"ownerReferences": controlled("JobSet", "x")}),
                job(labels, metadata={"annotations": {"queuectl.dev/after": "Job/x"}}),
                job(
                    labels,
                    metadata={"annotations": {"queuectl.dev/array": "true"}},
                    spec={"completions": 2, "completionMode": "Indexed"},
                ),
            ]
        )
    )
    name, uid = draw(NAMES), draw(st.booleans())
    more = {"uid": f"{made['kind']}-{name}"} if uid else {}
    ends = draw(st.sampled_from([{}, {}, {"status": COMPLETE}]))
    return {**made, "metadata": {**made["metadata"], "name": name, **more}, **ends}


@st.composite
def strangers(draw: st.DrawFn) -> Body:
    """An object of any kind with a spec of any form."""
    kind = draw(st.sampled_from([*KINDS_OF_JOBS, *OTHER_KINDS]))
    made = {"apiVersion": draw(st.sampled_from(VERSIONS)), "kind": kind, "spec": draw(GARBAGE)}
    return {**made, "metadata": {"name": draw(NAMES), **draw(st.dictionaries(FIELDS, GARBAGE))}}


def read(bodies: list[Body]) -> tuple[SnapshotInput, int]:
    """The input without the documents that are refused, and their number."""
    left: dict[str, Document] = {}
    errors = 0
    for number, one in enumerate(bodies):
        try:
            (left[f"{number}.yaml"],) = documents_of([one], f"{number}.yaml")
        except DocumentError:
            errors += 1
    while True:
        try:
            return read_snapshot(left.values()), errors
        except DocumentError as error:
            errors += 1
            del left[error.address.source]


@settings(max_examples=150, deadline=None)
@given(
    bodies=st.lists(gangs() | strangers(), max_size=8),
    cluster=st.lists(st.sampled_from(CLUSTER), unique_by=lambda one: one["kind"]),
)
def test_no_document_vanishes(bodies: list[Body], cluster: list[Body]) -> None:
    """Each one is planned, runs, is state, is ignored with a reason, or is refused with its name."""
    given_bodies = [*cluster, *bodies]
    found, errors = read(given_bodies)
    counts = found.account.counts
    assert sum(counts.values()) + errors == len(given_bodies)
    assert counts["ignored"] == len(found.account.ignored)
    assert all(each.reason for each in found.account.ignored)
    plan = checked_plan(with_sizes(found.snapshot)).plan
    assert {a.uid for a in plan.admitted} | {r.uid for r in plan.pending} >= {
        waiting.workload.uid for waiting in found.snapshot.pending
    }


def test_the_text_output_shows_the_ignored_documents_by_reason() -> None:
    many = [body("v1", "Service", name=f"s{number}") for number in range(3000)]
    kinds = [body("v1", f"Kind{number}") for number in range(40)]
    items = [*CLUSTER, job(inside=QUEUE), *many, *kinds]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    lines = CliRunner().invoke(app, ["-f", "-"], input=text).stdout.splitlines()
    shown = [line for line in lines if line.startswith("ignored: ")]
    assert shown[0] == (
        "ignored: v1 stdin: document 1, item 6 (Service/s0) and 2999 more: "
        "objects of kind Service are not read"
    )
    assert shown[1].endswith("(Job/w): it has no queue label; only its pod template has one")
    assert shown[-1] == "ignored: 22 more documents for 22 other reasons; -o json lists all"
    assert len(shown) == 21
    assert "0 admitted, 0 preempted, 0 pending, 3041 ignored" in "\n".join(lines)


def test_one_document_for_one_other_reason_is_singular() -> None:
    ignored = [{"object": f"o{n}", "reason": f"r{n}"} for n in range(21)]
    *_, last = ignored_lines(ignored)
    assert last == "ignored: 1 more document for 1 other reason; -o json lists all"


COUNTED: dict[str, tuple[list[Body], str]] = {
    "a Job and its pod": (
        [
            job(QUEUE, metadata=UID),
            pod(metadata={"ownerReferences": controlled("Job", "w")}, spec=BOUND),
        ],
        "running",
    ),
    "a Deployment and its pod of no gang": (
        [owner("Deployment", QUEUE, uid="u"), pod(metadata=UID, spec=BOUND)],
        "state",
    ),
    "a Job without a queue and its pod": (
        [
            job(metadata=UID),
            pod(metadata={"uid": "u-p", "ownerReferences": controlled("Job", "w")}, spec=BOUND),
        ],
        "state",
    ),
    "an array": (
        [
            job(
                QUEUE,
                metadata={"annotations": {"queuectl.dev/array": "true"}},
                spec={"completions": 2, "completionMode": "Indexed"},
            )
        ],
        "planned",
    ),
}


@pytest.mark.parametrize(("bodies", "use"), COUNTED.values(), ids=COUNTED)
def test_documents_are_counted_by_their_use(bodies: list[Body], use: str) -> None:
    counts = {"planned": 0, "running": 0, "state": len(CLUSTER), "ignored": 0}
    counts[use] += len(bodies)
    assert planned_of(*bodies)["documents"] == counts
