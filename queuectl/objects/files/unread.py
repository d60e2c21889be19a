"""Why a document is in no queue, or is not read at all. All commands that read files use these reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from queuectl.objects import keys
from queuectl.objects.configuration.config_kinds import API_VERSION, CONFIG_KINDS, KUEUE_VERSIONS
from queuectl.objects.documents import Document
from queuectl.objects.files.pods import OWNERS
from queuectl.objects.files.records import RECORDS
from queuectl.objects.files.workloads import KIND as WORKLOAD
from queuectl.objects.kinds import KINDS, JobKinds, trainjob
from queuectl.objects.kinds.ray import SERVICE

_OTHERS: Final = (
    *RECORDS,
    *OWNERS,
    SERVICE,
    ("v1", "Pod"),
    *((version, WORKLOAD) for version in (API_VERSION, *KUEUE_VERSIONS)),
    *((trainjob.GROUP_VERSION, kind) for kind in trainjob.KINDS),
)
"""API versions and kinds that are read in addition to configuration and jobs."""


def why_unread(document: Document, kinds: JobKinds = KINDS) -> str:
    """Why objects of this API version and kind are not read. ``kinds``: of jobs."""
    kind = document.kind
    read = [*_OTHERS]
    read += [(version, one.kind) for one in CONFIG_KINDS for version in one.versions]
    read += [(f"{one.group}/{one.version}", name) for name, one in kinds.items()]
    known = [version for version, other in read if other == kind]
    if known:
        return f"apiVersion {document.api_version} of {kind} is not read; use {' or '.join(known)}"
    text = f"objects of kind {kind} are not read"
    meant = next((other for _, other in read if other.lower() == kind.lower()), None)
    if meant is not None:
        return f"{text}; the kind is {meant}"
    if names_queue(document):
        return f"{text}; declare a custom job kind in jobKinds"
    return text


def without_queue(document: Document) -> str:
    """Why an object of a kind that queuectl runs is in no queue. The name of the queue is often in another place."""
    text = "it has no queue label" if document.kind != WORKLOAD else "it has no spec.queueName"
    if _has_key(_metadata(document).get("annotations")):
        return f"{text}; an annotation names the queue, and only a label counts"
    if names_queue(document):
        return f"{text}; only its pod template has one"
    return text


def names_queue(document: Document) -> bool:
    """Whether the object or one of its pod templates names a queue, in a label or in an annotation."""
    found = (_metadata(document), *_metadata_below(document.body.get("spec")))
    return any(_has_key(meta.get(field)) for meta in found for field in ("labels", "annotations"))


def of_no_gang(document: Document) -> str:
    """Why a pod that was created is in no queue."""
    if not _has_key(_metadata(document).get("labels")):
        return without_queue(document)
    spec = document.body.get("spec") or {}
    for gate in spec.get("schedulingGates") or ():
        if (name := str(gate.get("name"))).startswith(keys.KUEUE_PREFIX):
            return f"it has Kueue's scheduling gate {name}, so Kueue starts it"
    return (
        "it has a queue label, but queuectl did not admit it: it was created without the annotation "
        f"{keys.SUBMITTED_BY} and the scheduling gate {keys.GATE}"
    )


def _metadata(document: Document) -> Mapping[str, Any]:
    return document.body.get("metadata") or {}


def _has_key(annotations: Any) -> bool:
    return isinstance(annotations, Mapping) and any(key in annotations for key in keys.QUEUE_KEYS)


def _metadata_below(spec: Any) -> Iterator[Mapping[str, Any]]:
    """The metadata of all templates in a spec, however deep."""
    stack = [spec]
    while stack:
        part = stack.pop()
        if isinstance(part, Mapping):
            metadata = part.get("metadata")
            if isinstance(metadata, Mapping):
                yield metadata
            stack.extend(part.values())
        elif isinstance(part, list):
            stack.extend(part)
