"""What-if questions: a snapshot after jobs are submitted, objects are configured, and nodes are drained or added. Nothing is written.

Documents are parsed as in a write, so the answer is what would happen. :func:`changed` makes the snapshot, and the planner the
plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from queuectl.domain.devices import DeviceInventory
from queuectl.domain.diagnosis import AddNodes
from queuectl.domain.errors import BadInput, TookTooLong, UnreadableConfiguration
from queuectl.domain.fleet import Fleet
from queuectl.domain.ignored import Ignored
from queuectl.domain.jobs import JobRecord
from queuectl.domain.node_quota import quota_from_nodes
from queuectl.domain.plan import Eviction
from queuectl.domain.queries import ConfigChanges
from queuectl.domain.queues import DEFAULT_NAME, QueueConfig, in_force
from queuectl.domain.reasons import Reason
from queuectl.domain.records import NamespaceRecord, NodeRecord, Record
from queuectl.domain.reservations import occurrences, states_of
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.what_if import WhatIf
from queuectl.objects.configuration.catalog import Catalog
from queuectl.objects.configuration.links import dangling
from queuectl.objects.configuration.queue_config import (
    inadmissible_reason,
    is_config,
    refused_job,
    validate,
)
from queuectl.objects.documents import Document, as_document, with_names
from queuectl.objects.errors import DocumentError
from queuectl.objects.files.children import Children
from queuectl.objects.files.pods import OWNERS, has_queue
from queuectl.objects.files.records import has_record, is_job
from queuectl.objects.files.unread import names_queue, without_queue
from queuectl.objects.files.workloads import is_workload
from queuectl.objects.keys import QUEUE_LABEL
from queuectl.objects.kinds import KINDS, JobKinds
from queuectl.objects.kinds.pods import POD
from queuectl.offline.account import accounted
from queuectl.offline.assembly import Assembly, Parts
from queuectl.offline.fates import drained, leaving
from queuectl.offline.gangs import defaulted, read_job
from queuectl.offline.inputs import add_pods, refuse_twice

_SERVERS: Final = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "ownerReferences",
    "managedFields",
)


@dataclass(frozen=True, slots=True)
class ReadingContext:
    """State that jobs need and a snapshot does not contain.

    Attributes:
        records: the objects from which the requests of jobs follow: see :meth:`queuectl.state.mirror.Mirror.requests`.
        jobs: of the pending gangs, by uid.
        kinds: of jobs.
    """

    records: tuple[Record, ...] = ()
    jobs: Mapping[str, JobRecord] = field(default_factory=dict)
    kinds: JobKinds = field(default_factory=lambda: KINDS)


@dataclass(frozen=True, slots=True)
class ChangedSnapshot:
    """The snapshot after the changes.

    Attributes:
        submitted: uids of the submitted jobs.
        evicted: gangs that are evicted because their queue is drained.
        ignored: submitted documents without effect.
    """

    snapshot: Snapshot
    submitted: tuple[str, ...]
    evicted: tuple[Eviction, ...]
    warnings: tuple[str, ...]
    ignored: tuple[Ignored, ...] = ()


def changed(
    snapshot: Snapshot,
    documents: Iterable[Mapping[str, Any]],
    question: WhatIf,
    around: ReadingContext,
    stopped: Callable[[], bool] = lambda: False,
) -> ChangedSnapshot:
    """The snapshot after the changes of a question.

    Args:
        snapshot: the current one.
        documents: its configuration.
        question: the changes.
        around: further state of the cluster.
        stopped: whether the answer is no longer needed.

    Raises:
        BadInput: with the change that is impossible.
        TookTooLong: it is stopped.
        UnreadableConfiguration: a stored document is invalid.
    """
    warnings: list[str] = []
    fleet, devices = _fleet(snapshot, question)
    config = _config(snapshot, fleet, documents, question, warnings)
    pending = tuple(_stands(each, snapshot, config, around.jobs) for each in snapshot.pending)
    admitted = tuple(
        _without_pods_on(each, frozenset(question.drain)) for each in snapshot.admitted
    )
    after = replace(
        snapshot,
        fleet=fleet,
        devices=devices,
        config=config,
        pending=pending,
        admitted=admitted,
        reservations=occurrences(
            config.reservations.values(), states_of(snapshot.reservations), snapshot.now
        ),
    )
    new, ignored = _submitted(after, question, around, warnings, stopped)
    after = replace(after, pending=(*after.pending, *new))
    evicted = tuple(drained(after))
    after = leaving(after, {eviction.uid for eviction in evicted})
    submitted = tuple(p.workload.uid for p in new)
    return ChangedSnapshot(after, submitted, evicted, tuple(warnings), ignored)


def _fleet(snapshot: Snapshot, question: WhatIf) -> tuple[Fleet, DeviceInventory]:
    """The nodes, and their devices."""
    fleet, devices = snapshot.fleet, snapshot.devices
    by_name = fleet.by_name
    for field_, names in (("drain", question.drain), ("add", [like for like, _ in question.add])):
        for name in names:
            if name not in by_name:
                raise BadInput(f"{field_}: node {name} does not exist")
    if not (question.drain or question.add):
        return fleet, devices
    out = frozenset(question.drain)
    nodes = [
        replace(node, ready=False, unschedulable=True) if node.name in out else node
        for node in fleet.nodes
    ]
    taken = set(by_name)
    for like, count in question.add:
        more = AddNodes(like, count, {}).nodes(by_name[like], taken)
        taken |= {node.name for node in more}
        nodes += more
        devices = devices.with_nodes_like(like, [node.name for node in more])
    return Fleet(tuple(sorted(nodes, key=lambda node: node.name))), devices


def _config(
    snapshot: Snapshot,
    fleet: Fleet,
    documents: Iterable[Mapping[str, Any]],
    question: WhatIf,
    warnings: list[str],
) -> QueueConfig:
    """The configuration with the quota of the changed nodes."""
    if not (question.config or question.delete) and fleet is snapshot.fleet:
        return snapshot.config
    catalog = Catalog()
    catalog.replace(documents)
    revision = snapshot.config.revision
    try:
        before = set(dangling(catalog.config(revision)))
    except DocumentError as error:
        raise UnreadableConfiguration(str(error)) from error
    known = catalog.keys
    for key in question.delete:
        if key not in known:
            raise BadInput(f"delete: {key} does not exist")
        known.remove(key)
    written = [_written(given, warnings) for given in question.config]
    catalog.follow(ConfigChanges(revision, tuple(written), frozenset(question.delete)))
    config = catalog.config(revision)
    warnings.extend(sentence for sentence in dangling(config) if sentence not in before)
    return quota_from_nodes(in_force(config, snapshot.now), fleet)


def _written(body: Mapping[str, Any], warnings: list[str]) -> Mapping[str, Any]:
    """A configuration object in stored form."""
    document, warned = validate(body)
    warnings.extend(warned)
    if document["kind"] == "WorkloadPriorityClass":
        name = document["metadata"]["name"]
        text = "counts for what is submitted here; gangs that are there keep their priority"
        warnings.append(f"WorkloadPriorityClass {name}: {text}")
    return document


def _stands(
    pending: Pending, snapshot: Snapshot, config: QueueConfig, jobs: Mapping[str, JobRecord]
) -> Pending:
    """The gang with the reason of its queue after the change. Other reasons against planning remain."""
    if config is snapshot.config:
        return pending
    workload = pending.workload
    labels = snapshot.namespaces.get(workload.namespace, {})
    queue, job = workload.queue or "", jobs.get(workload.uid)

    def refused(queues: QueueConfig) -> Reason | None:
        why = inadmissible_reason(workload.namespace, queue, queues, labels)
        return why or (refused_job(job, queue, queues) if job is not None else None)

    if pending.blocked != refused(snapshot.config):
        return pending
    blocked = refused(config)
    return pending if blocked == pending.blocked else replace(pending, blocked=blocked)


def _without_pods_on(gang: Admitted, nodes: frozenset[str]) -> Admitted:
    """The gang without its pods on these nodes, which are placed again as after a node failure."""
    if gang.leaving or not nodes:
        return gang
    lost = [
        (placed.podset, node, count)
        for placed in gang.placement.podsets
        for node, count in placed.by_node.items()
        if node in nodes
    ]
    elsewhere = tuple(slot for slot in gang.lost if slot[1] not in nodes)
    return replace(gang, lost=(*elsewhere, *lost)) if lost else gang


def _submitted(
    snapshot: Snapshot,
    question: WhatIf,
    around: ReadingContext,
    warnings: list[str],
    stopped: Callable[[], bool],
) -> tuple[tuple[Pending, ...], tuple[Ignored, ...]]:
    """The gangs in queue order, behind all gangs of the same priority, and the ignored documents."""
    documents = with_names(as_document(_as_written(body), "submit") for body in question.submit)
    if not documents:
        return (), ()
    refuse_twice(documents, around.kinds)
    nodes = (NodeRecord(node, 1) for node in snapshot.fleet.nodes)
    known = {one.name for one in around.records if isinstance(one, NamespaceRecord)}
    spaces = (
        NamespaceRecord(name, 1, tuple(own.items()))
        for name, own in snapshot.namespaces.items()
        if name not in known
    )
    records = [*around.records, *nodes, *spaces]
    parts = Parts(records=records, warnings=warnings, kinds=around.kinds)
    children = Children.of(documents)
    for position, document in enumerate(documents):
        if stopped():
            raise TookTooLong("the jobs were not read in time")
        _read(document, position, children, snapshot.config, parts)
    assembly = Assembly(parts, snapshot.config, snapshot.config, snapshot.now)
    after = assembly.snapshot()
    account = accounted(documents, assembly.fates(after), parts.pods, around.kinds)
    return after.pending, account.ignored


def _read(
    document: Document, position: int, children: Children, config: QueueConfig, parts: Parts
) -> None:
    """Add what is submitted. A job or a pod that names no queue is a mistake."""
    if is_config(document) or is_workload(document) or has_record(document):
        what = f"{document.api_version} {document.kind}"
        raise document.error("kind", f"{what} is not a kind of job that queuectl runs")
    if (document.api_version, document.kind) in OWNERS and not has_queue(document):
        raise _without_queue(document)
    pods = len(parts.pods)
    if add_pods(document, parts):
        if document.kind == POD and not names_queue(parts.pods[pods][0]):
            raise _without_queue(document)
    elif is_job(document, parts.kinds):
        read = read_job(document, position, parts.kinds, children)
        job = defaulted(read, config) if read is not None else None
        if job is not None and job.record.queue is None:
            more = f", and its namespace has no LocalQueue {DEFAULT_NAME}"
            raise _without_queue(document, more)
        parts.jobs += [job] if job is not None else []


def _without_queue(document: Document, more: str = "") -> DocumentError:
    return document.error(f"metadata.labels.{QUEUE_LABEL}", without_queue(document) + more)


def _as_written(body: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a job, without fields of a server."""
    meta = body.get("metadata")
    written = {key: value for key, value in body.items() if key != "status"}
    if isinstance(meta, Mapping):
        written["metadata"] = {key: value for key, value in meta.items() if key not in _SERVERS}
    return written
