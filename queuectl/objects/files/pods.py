"""Pods of a file that are workloads, or parts of one, as the controller assembles them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgspec

from queuectl.domain.records import PodRecord
from queuectl.objects.documents import Document
from queuectl.objects.errors import RequestError
from queuectl.objects.files.gangs import Gang, gang_of, unseen
from queuectl.objects.files.slots import GivenPod
from queuectl.objects.kinds import KINDS
from queuectl.objects.kinds.groups import Group, key_of
from queuectl.objects.kinds.pods import WireMember, read_member, takes
from queuectl.objects.kubernetes.wire import PodMeta, PodNotes, WirePod


def pod_gangs(pods: Iterable[tuple[Document, GivenPod]]) -> Iterator[Gang]:
    """The gangs of all pods with a queue label of their own.

    Raises:
        DocumentError: an error that the API server would refuse.
    """
    groups: dict[object, Group] = {}
    documents: dict[str, Document] = {}
    for document, given in pods:
        pod = _taken(document, given.record)
        if pod is not None:
            documents.setdefault(pod.uid, document)
            key = key_of(pod)
            groups.setdefault(key, Group(key)).pods[pod.uid] = pod
    for group in groups.values():
        record = group.assemble(known=False)
        if record is not None and record.face is not None:
            document = documents[record.face.uid or record.uid]
            yield gang_of(document, record)


def _taken(document: Document, record: PodRecord) -> PodRecord | None:
    """The pod as a part of a workload; None for all others. A pod that was not created yet becomes what admission makes of it."""
    meta: PodMeta = document.convert(WirePod).metadata
    wire = document.convert(WireMember)
    draft = unseen(document, record.uid)
    if draft:
        if record.owner_kind in KINDS or not takes(_admitted(meta)):
            return None
    elif not takes(meta):
        return None
    try:
        member = read_member(wire, strict=True)
    except RequestError as error:
        raise document.error("", str(error)) from None
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
