"""What if: a snapshot as it would be after something was submitted, configured, drained or bought. Nothing is written.

Documents are read as everywhere else, so what is tried out is what would happen: :func:`changed` makes the snapshot, and the
planner says the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from queuectl.domain.changes import AddNodes
from queuectl.domain.errors import BadInput
from queuectl.domain.fleet import Fleet
from queuectl.domain.limitrange import LimitRange
from queuectl.domain.overrides import in_force
from queuectl.domain.plan import Eviction
from queuectl.domain.queries import ConfigChanges, DocumentKey
from queuectl.domain.queues import QueueConfig
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.objects.configuration.admissibility import standing
from queuectl.objects.configuration.catalog import Catalog
from queuectl.objects.configuration.links import dangling
from queuectl.objects.configuration.node_quota import quota_from_nodes
from queuectl.objects.configuration.queue_config import validate
from queuectl.objects.documents import as_document, with_names
from queuectl.objects.files.assembly import Assembly, Parts
from queuectl.objects.files.gangs import is_job, read_job_gang
from queuectl.objects.files.snapshots import defaulted, drained, leaving, limited

_SERVERS: Final = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "ownerReferences",
    "managedFields",
)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What is tried out, all of it together.

    Attributes:
        submit: jobs, as their users write them; what a server added is dropped.
        config: configuration objects to apply.
        delete: those to delete.
        drain: names of nodes that are cordoned and lose their pods.
        add: (name of a node, how many more like it).
    """

    submit: Sequence[Mapping[str, Any]] = ()
    config: Sequence[Mapping[str, Any]] = ()
    delete: Sequence[DocumentKey] = ()
    drain: Sequence[str] = ()
    add: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True, slots=True)
class ReadingContext:
    """What a snapshot does not hold and the reading of jobs needs.

    Attributes:
        pod_classes: priorities of the cluster's own PriorityClasses.
        ranges: LimitRanges by namespace.
    """

    pod_classes: Mapping[str, int] = field(default_factory=dict)
    ranges: Mapping[str, Sequence[LimitRange]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChangedSnapshot:
    """The snapshot afterwards.

    Attributes:
        submitted: uids of the jobs that were submitted.
        evicted: gangs that leave because their queue drains.
    """

    snapshot: Snapshot
    submitted: tuple[str, ...]
    evicted: tuple[Eviction, ...]
    warnings: tuple[str, ...]


def changed(
    snapshot: Snapshot,
    documents: Iterable[Mapping[str, Any]],
    asked: WhatIf,
    around: ReadingContext,
) -> ChangedSnapshot:
    """The snapshot after what is asked.

    Args:
        snapshot: of now.
        documents: the configuration it was made under.
        asked: what is tried out.
        around: what else is known of the cluster.

    Raises:
        BadInput: naming what cannot be done as asked.
    """
    warnings: list[str] = []
    fleet = _fleet(snapshot.fleet, asked)
    config = _config(snapshot, fleet, documents, asked, warnings)
    pending = tuple(_stands(each, snapshot, config) for each in snapshot.pending)
    admitted = tuple(_bereft(each, frozenset(asked.drain)) for each in snapshot.admitted)
    after = replace(snapshot, fleet=fleet, config=config, pending=pending, admitted=admitted)
    new = _submitted(after, asked, around, warnings)
    after = replace(after, pending=(*after.pending, *new))
    evicted = tuple(drained(after))
    after = leaving(after, {eviction.uid for eviction in evicted})
    return ChangedSnapshot(after, tuple(p.workload.uid for p in new), evicted, tuple(warnings))


def _fleet(fleet: Fleet, asked: WhatIf) -> Fleet:
    known = fleet.by_name
    for field_, names in (("drain", asked.drain), ("add", [like for like, _ in asked.add])):
        for name in names:
            if name not in known:
                raise BadInput(f"{field_}: there is no node {name}")
    if not (asked.drain or asked.add):
        return fleet
    out = frozenset(asked.drain)
    nodes = [
        replace(node, ready=False, unschedulable=True) if node.name in out else node
        for node in fleet.nodes
    ]
    taken = set(known)
    for like, count in asked.add:
        more = AddNodes(like, count, {}).nodes(known[like], taken)
        taken |= {node.name for node in more}
        nodes += more
    return Fleet(tuple(sorted(nodes, key=lambda node: node.name)))


def _config(
    snapshot: Snapshot,
    fleet: Fleet,
    documents: Iterable[Mapping[str, Any]],
    asked: WhatIf,
    warnings: list[str],
) -> QueueConfig:
    """The configuration as planning sees it over the nodes there would be."""
    if not (asked.config or asked.delete) and fleet is snapshot.fleet:
        return snapshot.config
    catalog = Catalog()
    catalog.replace(documents)
    revision = snapshot.config.revision
    before = set(dangling(catalog.config(revision)))
    known = catalog.keys
    for key in asked.delete:
        if key not in known:
            raise BadInput(f"delete: {key} does not exist")
        known.remove(key)
    written = [_written(given, warnings) for given in asked.config]
    catalog.follow(ConfigChanges(revision, tuple(written), frozenset(asked.delete)))
    config = catalog.config(revision)
    warnings.extend(sentence for sentence in dangling(config) if sentence not in before)
    return quota_from_nodes(in_force(config, snapshot.now), fleet)


def _written(given: Mapping[str, Any], warnings: list[str]) -> Mapping[str, Any]:
    """A configuration object as it would be kept."""
    document, warned = validate(given)
    warnings.extend(warned)
    if document["kind"] == "WorkloadPriorityClass":
        name = document["metadata"]["name"]
        text = "counts for what is submitted here; gangs that are there keep their priority"
        warnings.append(f"WorkloadPriorityClass {name}: {text}")
    return document


def _stands(pending: Pending, snapshot: Snapshot, config: QueueConfig) -> Pending:
    """What its queue says of it now; what else keeps it out of the plan keeps it out still."""
    if config is snapshot.config:
        return pending
    workload = pending.workload
    labels = snapshot.namespaces.get(workload.namespace, {})
    place = (workload.namespace, workload.queue or "")
    if pending.blocked != standing(*place, snapshot.config, labels):
        return pending
    blocked = standing(*place, config, labels)
    return pending if blocked == pending.blocked else replace(pending, blocked=blocked)


def _bereft(gang: Admitted, nodes: frozenset[str]) -> Admitted:
    """Without its pods on these nodes: they are to be placed anew, as when a node is lost."""
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
    snapshot: Snapshot, asked: WhatIf, around: ReadingContext, warnings: list[str]
) -> tuple[Pending, ...]:
    """The jobs as they would stand in line, behind all that have the same priority."""
    gangs = []
    seen: set[tuple[str, str, str]] = set()
    for document in with_names(as_document(_as_written(body), "submit") for body in asked.submit):
        if not is_job(document):
            what = f"{document.api_version} {document.kind}".strip()
            raise document.error(
                "kind", f"{what or 'nothing'} is no kind of job that queuectl runs"
            )
        gang = limited(defaulted(read_job_gang(document), snapshot.config), around.ranges)
        if gang.key in seen:
            raise document.error("metadata.name", f"{gang.namespace}/{gang.name} is given twice")
        seen.add(gang.key)
        if gang.queue is None:
            raise document.error(
                "metadata.labels", "names no LocalQueue, and its namespace has none named default"
            )
        gangs.append(replace(gang, running=False, draft=False))
    if not gangs:
        return ()
    parts = Parts(
        nodes=list(snapshot.fleet.nodes),
        gangs=gangs,
        namespaces=dict(snapshot.namespaces),
        warnings=warnings,
    )
    parts.pod_classes |= around.pod_classes
    return Assembly(parts, snapshot.config, snapshot.now).snapshot().pending


def _as_written(body: Mapping[str, Any]) -> dict[str, Any]:
    """A job as its user writes it, though it was copied from a server."""
    meta = body.get("metadata")
    written = {key: value for key, value in body.items() if key != "status"}
    if isinstance(meta, Mapping):
        written["metadata"] = {key: value for key, value in meta.items() if key not in _SERVERS}
    return written
