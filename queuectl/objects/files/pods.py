"""Pods of a file that are workloads, or parts of one, as the controller assembles them; including those of their owners.

Owners are Deployments, StatefulSets and LeaderWorkerSets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.objects import keys
from queuectl.objects.documents import Document
from queuectl.objects.errors import RequestError
from queuectl.objects.files.records import unseen
from queuectl.objects.kinds import JobKinds, leaderworkerset
from queuectl.objects.kinds.leaderworkerset import WireSet, labels_of, read_set
from queuectl.objects.kinds.pods import MOST_PODS, WireMember, read_member, takes
from queuectl.objects.kubernetes.pods import read_pod
from queuectl.objects.kubernetes.wire import (
    Meta,
    OwnerReference,
    PodMeta,
    PodNotes,
    Template,
    Wire,
    WirePod,
)

DEPLOYMENT: Final = ("apps/v1", "Deployment")
STATEFUL_SET: Final = ("apps/v1", "StatefulSet")
SET: Final = (f"{leaderworkerset.GROUP}/{leaderworkerset.VERSION}", leaderworkerset.KIND)
OWNERS: Final = frozenset({DEPLOYMENT, STATEFUL_SET, SET})
"""API versions and kinds of owners whose pods are the workloads."""

_TEMPLATES: Final = {
    "Deployment": "spec.template",
    "StatefulSet": "spec.template",
    leaderworkerset.KIND: "spec.leaderWorkerTemplate",
}


def field_of_pod(document: Document, field: str) -> str:
    """A field of a pod as a field of its document: that of the pod, or of the owner from whose template the pod was made."""
    template = _TEMPLATES.get(document.address.name.partition("/")[0], "")
    return ".".join(part for part in (template, field) if part)


class _Selector(Wire):
    match_labels: dict[str, str] | None = None


class _OwnerSpec(Wire):
    replicas: int | None = None
    selector: _Selector | None = None
    template: Template | None = None


class WireOwner(Wire):
    """A Deployment or a StatefulSet."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: _OwnerSpec = msgspec.field(default_factory=_OwnerSpec)


@dataclass(frozen=True, slots=True)
class GivenPod:
    """A pod of the input: its record, and further references to its gang."""

    record: PodRecord
    labels: Mapping[str, str]
    owners: tuple[OwnerReference, ...]
    workload: str | None


def read_given_pod(document: Document, index_labels: Sequence[str] = ()) -> GivenPod:
    """Raises DocumentError naming the field."""
    wire = document.convert(WirePod)
    try:
        record = read_pod(wire, index_labels)
    except RequestError as error:
        raise document.error(field_of_pod(document, "spec"), str(error)) from None
    annotations = (document.body.get("metadata") or {}).get("annotations")
    name = (
        annotations.get(keys.KUEUE_PREFIX + "workload") if isinstance(annotations, dict) else None
    )
    return GivenPod(
        record=record,
        labels=wire.metadata.labels or {},
        owners=tuple(wire.metadata.owner_references or ()),
        workload=name if isinstance(name, str) else None,
    )


def has_queue(document: Document) -> bool:
    """Whether the pods of an owner are in a queue, by its label or by that of its template."""
    if (document.api_version, document.kind) == SET:
        return read_set_of(document) is not None
    document.convert(WireOwner)  # refuses other types
    return bool(_queue_labels(_labels_of_pods(document.body)))


def are_of(document: Document) -> Callable[[str, Mapping[str, str]], bool]:
    """Whether a pod of this namespace and these labels is one of an owner that was created."""
    namespace, _, name = document.name.partition("/")
    selected = {leaderworkerset.NAME_LABEL: name}
    if (document.api_version, document.kind) != SET:
        spec = document.body.get("spec") or {}
        selected = (spec.get("selector") or {}).get("matchLabels") or {}
    wanted = selected.items()
    return lambda where, labels: where == namespace and wanted <= labels.items()


def _labels_of_pods(body: Mapping[str, Any]) -> dict[str, str]:
    meta, template = body.get("metadata") or {}, (body.get("spec") or {}).get("template") or {}
    own = (template.get("metadata") or {}).get("labels") or {}
    return {**own, **_queue_labels(meta.get("labels") or {})}


def pods_of_owner(document: Document) -> Iterator[Document]:
    """The pods of a Deployment or a StatefulSet in a queue that was not created yet, as its controller creates them."""
    body = document.body
    meta, spec = body.get("metadata") or {}, body.get("spec") or {}
    if not has_queue(document) or not unseen(document):
        return
    template = spec.get("template") or {}
    name, labels = str(meta.get("name")), _labels_of_pods(body)
    replicas = spec.get("replicas", 1)
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise document.error("spec.replicas", f"{replicas!r} is not a number of pods")
    if replicas > MOST_PODS:
        raise document.error("spec.replicas", f"{replicas}: at most {MOST_PODS} pods are planned")
    annotations: dict[str, str] = {}
    if document.kind == "StatefulSet":
        labels[keys.PREFIX + keys.POD_GROUP] = name
        annotations[keys.PREFIX + keys.POD_GROUP_TOTAL] = str(replicas)
    for number in range(replicas):
        yield _pod(document, f"{name}-{number}", template, labels, annotations)


def read_set_of(document: Document) -> JobRecord | None:
    """The record of a LeaderWorkerSet; None if it is in no queue.

    Raises:
        DocumentError: an error that the API server would refuse.
    """
    try:
        record = read_set(document.convert(WireSet), strict=True)
    except RequestError as error:
        raise document.error("", str(error)) from None
    return record if record.queue is not None else None


def pods_of_set(document: Document, record: JobRecord) -> Iterator[Document]:
    """The pods of a LeaderWorkerSet that was not created yet, as its operator creates them.

    Raises:
        DocumentError: no group of the set can start, or the pods are too many.
    """
    if not unseen(document):
        return
    if record.error is not None:  # then the record has no podsets to count
        raise document.error("", record.error)
    templates = document.body["spec"].get("leaderWorkerTemplate") or {}
    own = _queue_labels(document.body["metadata"].get("labels") or {})
    if (pods := (record.groups or 0) * record.pods) > MOST_PODS:
        raise document.error("spec", f"{pods} pods: at most {MOST_PODS} are planned")
    for group in range(record.groups or 0):
        for index in range(record.pods):
            leads = index == 0 and templates.get("leaderTemplate")
            template = templates["leaderTemplate" if leads else "workerTemplate"]
            place = labels_of(record.name, group, index)
            name = f"{record.name}-{group}" + (f"-{index}" if index else "")
            yield _pod(document, name, template, {**own, **place}, {})


def _pod(
    document: Document,
    name: str,
    template: Mapping[str, Any],
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
) -> Document:
    """A pod of a template. Labels and annotations are in addition to those of the template."""
    own, owner = template.get("metadata") or {}, document.body.get("metadata") or {}
    metadata = {
        "name": name,
        "namespace": owner.get("namespace") or "default",
        "labels": {**(own.get("labels") or {}), **labels},
        "annotations": {**(own.get("annotations") or {}), **annotations},
    }
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": template.get("spec") or {},
    }
    return replace(document, body=body)


def _queue_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that admission copies to the template."""
    copied = [
        prefix + suffix
        for prefix in (keys.PREFIX, keys.KUEUE_PREFIX)
        for suffix in (keys.QUEUE_NAME, keys.PRIORITY_CLASS)
    ]
    return {key: labels[key] for key in copied if key in labels}


def workload_pod(document: Document, record: PodRecord, kinds: JobKinds) -> PodRecord | None:
    """The pod as a part of a workload; None for all others. A pod that was not created yet becomes what admission makes of it."""
    meta: PodMeta = document.convert(WirePod).metadata
    wire = document.convert(WireMember)
    draft = unseen(document)
    if not takes(_admitted(meta) if draft else meta, kinds):
        return None
    try:
        member = read_member(wire, strict=True)
    except RequestError as error:
        field = str(error).removeprefix(f"{wire.metadata.name}.spec.")
        if field != str(error):
            field = field_of_pod(document, f"spec.{field}")
        raise document.error("", field) from None
    uid = record.uid or f"Pod/{record.namespace}/{record.name}"
    if draft:
        job = member.job
        assert job.face is not None
        job = replace(job, uid=uid, suspended=True, face=replace(job.face, uid=uid))
        member = replace(member, job=job)
    podset = next((each.name for each in member.job.podsets), record.podset)
    return replace(record, uid=uid, gated=record.gated or draft, podset=podset, member=member)


def _admitted(meta: PodMeta) -> PodMeta:
    """The metadata after admission."""
    return msgspec.structs.replace(meta, annotations=PodNotes(submitted_by=""))
