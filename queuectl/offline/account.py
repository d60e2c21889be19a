"""The account of an input: the use of each of its documents, of which none is missing, and warnings about devices that no plan uses."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from queuectl.domain.devices import DeviceInventory
from queuectl.domain.ignored import Ignored
from queuectl.domain.records import ClaimRecord
from queuectl.domain.words import counted
from queuectl.objects.configuration.queue_config import is_config
from queuectl.objects.documents import Document
from queuectl.objects.errors import Address
from queuectl.objects.files.children import is_runtime
from queuectl.objects.files.pods import OWNERS, GivenPod, are_of, has_queue
from queuectl.objects.files.records import controller_of, has_record, is_child, is_job, unseen
from queuectl.objects.files.unread import why_unread, without_queue
from queuectl.objects.kinds import JobKinds


class DocumentUse(StrEnum):
    """The use of a document."""

    PLANNED = "planned"
    RUNNING = "running"
    STATE = "state"
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class Fate:
    """The use of a document. ``reason``: why it is ignored; empty for all others."""

    use: DocumentUse
    reason: str = ""

    @classmethod
    def ignored(cls, reason: str) -> Fate:
        return cls(DocumentUse.IGNORED, reason)


STATE: Final = Fate(DocumentUse.STATE)


@dataclass(frozen=True)
class DocumentUses:
    """The uses of documents.

    Attributes:
        counts: the number of documents of each use. Together they are all documents.
        ignored: those without effect, in their order.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    ignored: tuple[Ignored, ...] = ()


def accounted(
    documents: Iterable[Document],
    assembled: Mapping[Address, Fate],
    pods: Iterable[tuple[Document, GivenPod]],
    kinds: JobKinds,
) -> DocumentUses:
    """The account of documents.

    Args:
        documents: all of the input.
        assembled: the fates of gangs and pods.
        pods: of the input, with their documents.
        kinds: of jobs.
    """
    listed = list(documents)
    rest = _Rest(listed, [pod for _, pod in pods], kinds)
    fates = [(one, assembled.get(one.address) or rest.fate(one)) for one in listed]
    counts: Counter[str] = Counter({use.value: 0 for use in DocumentUse})
    counts.update(fate.use.value for _, fate in fates)
    ignored = tuple(
        Ignored(f"{one.api_version} {one.address}", fate.reason)
        for one, fate in fates
        if fate.use is DocumentUse.IGNORED
    )
    return DocumentUses(dict(counts), ignored)


class _Rest:
    """The fates of documents that are neither gangs nor pods."""

    def __init__(
        self,
        documents: Iterable[Document],
        pods: list[GivenPod],
        kinds: JobKinds,
    ) -> None:
        self._given = {(one.kind, one.name) for one in documents}
        self._made = set(_controllers(documents))
        self._pods = pods
        self._kinds = kinds

    def fate(self, document: Document) -> Fate:
        if has_record(document) or is_config(document) or is_runtime(document):
            return STATE
        if (document.api_version, document.kind) in OWNERS:
            return self._of_owner(document)
        if not is_job(document, self._kinds):
            return Fate.ignored(why_unread(document, self._kinds))
        if is_child(document, self._kinds):
            return self._of_child(document)
        if (document.kind, document.name) in self._made:  # a RayService, by way of its clusters
            return STATE
        return Fate.ignored("it exists, and what its controller created is not in the input")

    def _of_owner(self, document: Document) -> Fate:
        if not has_queue(document):
            return Fate.ignored(without_queue(document))
        if (document.body.get("spec") or {}).get("replicas") == 0:
            return Fate.ignored("it has no replicas")
        if unseen(document):
            return Fate.ignored("it has no pods")
        its = are_of(document)
        if any(its(pod.record.namespace, pod.labels) for pod in self._pods):
            return STATE
        return Fate.ignored("it exists, and its pods are not in the input")

    def _of_child(self, document: Document) -> Fate:
        kind, name = controller_of(document) or ("", "")
        if (kind, name) in self._given:
            return STATE
        return Fate.ignored(f"it is a part of {kind} {name}, which is not in the input")


def _controllers(documents: Iterable[Document]) -> Iterator[tuple[str, str]]:
    for document in documents:
        if (found := controller_of(document)) is not None:
            yield found


def left_out(devices: DeviceInventory) -> Iterator[str]:
    """One warning for each sentence about devices that are left out, with the nodes."""
    nodes: dict[str, list[str]] = defaultdict(list)
    for node, all_ in devices.nodes.items():
        for sentence in all_.unsupported:
            nodes[sentence].append(node)
    for sentence, names in nodes.items():
        first, *others = names
        where = (
            f"Node {first} and {counted(len(others), 'other Node')}" if others else f"Node {first}"
        )
        yield f"{where}: {sentence}"


def strangers(devices: DeviceInventory, claims: Iterable[ClaimRecord]) -> Iterator[str]:
    """One warning for each device of a claim that no node of the input has."""
    known = {device.id for all_ in devices.nodes.values() for device in all_.devices}
    for record in sorted(claims, key=lambda one: (one.namespace, one.content.name)):
        for one in record.content.allocated or ():
            if one.id not in known:
                where = f"ResourceClaim {record.namespace}/{record.content.name}"
                yield f"{where}: device {one.id} is on no node of the input"
