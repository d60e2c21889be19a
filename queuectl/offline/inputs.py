"""A stream of ordinary objects to a Snapshot: the same planner, without a cluster.

The input is:

- Nodes and configuration
- pending gangs: suspended jobs, jobs that were not created yet (no uid, creation time, status or pods), Workloads without admission
- running gangs: Workloads with ``status.admission``, and resumed jobs with pods
- all other pods that use a node
- TrainingRuntimes and ClusterTrainingRuntimes, for the pods of TrainJobs
- ResourceQuotas, LimitRanges and RuntimeClasses
- ResourceSlices, DeviceClasses, DeviceTaintRules, ResourceClaims and ResourceClaimTemplates
- NodeResourceTopologies

A gang in several forms counts once. Each object without effect on the Snapshot is listed as ignored, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from queuectl.devices.charges import device_resources
from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.plan import Eviction
from queuectl.domain.queues import QueueConfig, in_force
from queuectl.domain.records import (
    ClaimRecord,
    DeviceClassRecord,
    NodeRecord,
    ResourceQuotaRecord,
    SliceRecord,
)
from queuectl.domain.snapshot import Snapshot
from queuectl.objects.configuration import queue_config
from queuectl.objects.configuration.links import dangling, refuse_reserved_devices
from queuectl.objects.documents import Document, with_names
from queuectl.objects.files.children import NO_CHILDREN, Children
from queuectl.objects.files.pods import (
    DEPLOYMENT,
    SET,
    STATEFUL_SET,
    pods_of_owner,
    pods_of_set,
    read_given_pod,
    read_set_of,
)
from queuectl.objects.files.records import (
    controller_of,
    has_record,
    is_child,
    is_job,
    read_record,
    states_no_slots,
    with_slots,
)
from queuectl.objects.files.workloads import is_workload, read_workload
from queuectl.objects.kinds import KINDS, JobKinds, index_labels
from queuectl.objects.kubernetes.nodes import assumed_slots, lacks_hostname, with_hostnames
from queuectl.objects.kubernetes.past_use import read_used
from queuectl.objects.times import time_or_none
from queuectl.offline.account import DocumentUses, accounted, left_out, strangers
from queuectl.offline.assembly import Assembly, Parts
from queuectl.offline.fates import drained, leaving
from queuectl.offline.gangs import as_uid, defaulted, of_workload, read_job
from queuectl.offline.slots import Binding
from queuectl.state.planning_state import StoredUse

NO_USAGE_LEDGER: Final = (
    "no usage ledger in the input: of each Budget, only the use of running gangs is known"
)


@dataclass(frozen=True, slots=True)
class SnapshotInput:
    """A Snapshot, and the account of all documents.

    Attributes:
        evicted: gangs that run in drained queues. In the snapshot they are already being evicted, as in a cycle.
        bindings: of the gangs that run.
    """

    snapshot: Snapshot
    account: DocumentUses = field(default_factory=DocumentUses)
    warnings: tuple[str, ...] = ()
    evicted: tuple[Eviction, ...] = ()
    bindings: tuple[Binding, ...] = ()


@dataclass
class _Input(Parts):
    """The parts, and the documents that need no assembly."""

    configs: list[Document] = field(default_factory=list)
    children: Children = NO_CHILDREN
    nodes: list[NodeRecord] = field(default_factory=list)
    slotless: list[str] = field(default_factory=list)  # Nodes that state no number of pods


def read_snapshot(
    documents: Iterable[Document], now: float | None = None, kinds: JobKinds = KINDS
) -> SnapshotInput:
    """The whole input of a plan, from files.

    Args:
        documents: of all files, in order.
        kinds: of jobs.
        now: unix seconds; by default the newest time in the input, 0 without one.

    Raises:
        DocumentError: naming file, document and field.
    """
    listed = with_names(map(queue_config.named, documents))
    refuse_twice(listed, kinds)
    parts = _Input(kinds=kinds, children=Children.of(listed))
    for position, document in enumerate(listed):
        _sort(document, position, parts)
    parts.warnings.extend(assumed_slots(parts.slotless))
    clock = newest_time(listed) if now is None else now
    stated = _configuration(parts)
    config = in_force(stated, clock)
    parts.records += parts.nodes
    parts.jobs = [defaulted(job, config) for job in parts.jobs]
    assembly = Assembly(parts, stated, config, clock)
    assembly.state.past_use = StoredUse(read_used(parts.configs, clock), config)
    snapshot = assembly.snapshot()
    account = accounted(listed, assembly.fates(snapshot), parts.pods, kinds)
    parts.warnings.extend(_about(snapshot, parts))
    evicted = tuple(drained(snapshot))
    snapshot = leaving(snapshot, {eviction.uid for eviction in evicted})
    bindings = tuple(assembly.bindings())
    return SnapshotInput(snapshot, account, tuple(parts.warnings), evicted, bindings)


def _configuration(parts: _Input) -> QueueConfig:
    """The queues as their documents state them. The nodes get the labels that their Topologies need."""
    queues = queue_config.build(parts.configs, revision=0, strict=True)
    parts.warnings.extend(dangling(queues))
    nodes = [record.node for record in parts.nodes]
    classes = {one.name: one.content for one in parts.records if isinstance(one, DeviceClassRecord)}
    mapped = queues.rules.device_classes
    refuse_reserved_devices(parts.configs, device_resources(classes, mapped, nodes))
    named = with_hostnames(nodes, queues)
    parts.nodes = [
        replace(record, node=node) for record, node in zip(parts.nodes, named, strict=True)
    ]
    for node in named:
        if (topology := lacks_hostname(node, queues)) is not None:
            text = f"no label {HOSTNAME}: in none of the domains of Topology {topology}"
            parts.warnings.append(f"Node {node.name}: {text}")
    return queues


def refuse_twice(documents: Iterable[Document], kinds: JobKinds) -> None:
    """Refuse objects without a name, and two of the same name. Raises DocumentError."""
    documents_by_name: dict[tuple[str, str, str], Document] = {}
    for document in documents:
        meta = document.body.get("metadata") or {}
        if not meta.get("name"):
            if not _is_read(document, kinds):
                continue
            raise document.error("metadata.name", "is required")
        group = document.api_version.rpartition("/")[0]
        if queue_config.is_config(document):
            group = ""  # the object of Kueue and of queuectl is the same
        key = (group, document.kind, document.name)
        if key in documents_by_name:
            raise document.error("", f"is given twice, first as {documents_by_name[key].address}")
        documents_by_name[key] = document


def _is_read(document: Document, kinds: JobKinds) -> bool:
    """Whether a plan uses objects of its kind."""
    return (
        has_record(document)
        or (document.api_version, document.kind) in _WITH_PODS
        or queue_config.is_config(document)
        or is_workload(document)
        or is_job(document, kinds)
    )


def _sort(document: Document, position: int, parts: _Input) -> None:
    if add_pods(document, parts):
        return
    if has_record(document):
        _keep(document, parts)
    elif queue_config.is_config(document):
        parts.warnings.extend(queue_config.validate(document)[1])
        parts.configs.append(document)
    elif is_workload(document):
        workload, warnings = read_workload(document)
        parts.warnings.extend(warnings)
        parts.workloads.append(of_workload(document, position, workload))
    elif is_child(document, parts.kinds):
        parts.created[document.kind, document.name] = controller_of(document)
    elif is_job(document, parts.kinds):
        job = read_job(document, position, parts.kinds, parts.children)
        parts.jobs += [job] if job is not None else []


def add_pods(document: Document, parts: Parts) -> bool:
    """Add a pod, or the pods of an owner that was not created yet. Returns whether it is one of both."""
    with_pods = _WITH_PODS.get((document.api_version, document.kind))
    if with_pods is not None:
        with_pods(document, parts)
    return with_pods is not None


def _keep(document: Document, parts: _Input) -> None:
    record = read_record(document)
    if isinstance(record, NodeRecord):
        if states_no_slots(record):
            parts.slotless.append(str(document.address))
            record = with_slots(record)
        parts.nodes.append(record)
    elif isinstance(record, ResourceQuotaRecord):
        parts.quotas.append(record)
    else:
        parts.records.append(record)


def _pod(document: Document, parts: Parts) -> None:
    parts.pods.append((document, read_given_pod(document, index_labels(parts.kinds))))


def _owner_of_pods(document: Document, parts: Parts) -> None:
    for pod in pods_of_owner(document):
        _pod(pod, parts)


def _set(document: Document, parts: Parts) -> None:
    record = read_set_of(document)
    if record is None:
        return
    uid = as_uid(record.uid or f"{record.kind}/{record.namespace}/{record.name}")
    parts.records.append(replace(record, uid=uid))
    for pod in pods_of_set(document, record):
        _pod(pod, parts)


_WITH_PODS: Final[Mapping[tuple[str, str], Callable[[Document, Parts], None]]] = {
    ("v1", "Pod"): _pod,
    DEPLOYMENT: _owner_of_pods,
    STATEFUL_SET: _owner_of_pods,
    SET: _set,
}
"""The pods, and the objects for which pods are planned."""


def _about(snapshot: Snapshot, parts: _Input) -> Iterator[str]:
    """Warnings about what the plan does not know."""
    yield from left_out(snapshot.devices)
    if any(isinstance(record, SliceRecord) for record in parts.records):
        claims = (record for record in parts.records if isinstance(record, ClaimRecord))
        yield from strangers(snapshot.devices, claims)
    if snapshot.budgets:
        yield NO_USAGE_LEDGER
    placed = sorted(f.name for f in snapshot.config.flavors.values() if f.topology is not None)
    if placed and snapshot.pending and not snapshot.fleet.nodes:
        names = ", ".join(placed)
        yield f"no Node in the input: quota alone decides, also of ResourceFlavors with a Topology ({names})"


def newest_time(documents: Iterable[Document]) -> float:
    """The newest time that the API server or a controller wrote, in unix seconds; 0 without one. Deadlines do not count.

    These are the times of the metadata and those of the status. Users write any time into annotations and specs.
    """
    newest = 0.0
    visited: set[int] = set()
    stack: list[Any] = []
    for document in documents:
        meta, status = document.body.get("metadata"), document.body.get("status")
        if isinstance(meta, dict):
            written = ("creationTimestamp", "managedFields")
            stack.append({key: meta[key] for key in written if key in meta})
        if isinstance(status, dict):
            stack.append(status)
    while stack:
        part = stack.pop()
        if id(part) in visited:
            continue
        visited.add(id(part))
        for key, value in part.items() if isinstance(part, dict) else enumerate(part):
            if isinstance(value, (dict, list)):
                stack.append(value)
            elif isinstance(value, str) and isinstance(key, str) and _tells_time(key):
                newest = max(newest, time_or_none(value) or 0.0)
    return newest


def _tells_time(key: str) -> bool:
    ends = ("time", "Time", "Timestamp", "At")
    return key.endswith(ends) and key not in ("deletionTimestamp", "requeueAt")
