"""A stream of ordinary objects to a Snapshot: the same planner, without a cluster.

The input is:

- Nodes and configuration
- pending gangs: suspended jobs, jobs that were not created yet (no uid, creation time, status or pods), Workloads without admission
- running gangs: Workloads with ``status.admission``, and resumed jobs with pods
- all other pods that use a node
- TrainingRuntimes and ClusterTrainingRuntimes, for the pods of TrainJobs
- ResourceQuotas, and LimitRanges for values that templates omit
- ResourceSlices, DeviceClasses, DeviceTaintRules, ResourceClaims and ResourceClaimTemplates
- NodeResourceTopologies

A gang in several forms counts once. Objects of other kinds are listed as ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Final

from queuectl.devices.reserved import device_resources
from queuectl.domain.fleet import HOSTNAME, Fleet
from queuectl.domain.job_records import JobRecord
from queuectl.domain.limitrange import LimitRange, refusal, with_ranges
from queuectl.domain.node_quota import quota_from_nodes
from queuectl.domain.overrides import in_force
from queuectl.domain.pastuse import past_use
from queuectl.domain.plan import Eviction
from queuectl.domain.quantity import PODS, Resources
from queuectl.domain.queues import DEFAULT_NAME, QueueConfig
from queuectl.domain.records import PriorityClassRecord
from queuectl.domain.reservations import occurrences
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.spending import with_budgets
from queuectl.objects.configuration import queue_config
from queuectl.objects.configuration.admissibility import drain
from queuectl.objects.configuration.links import dangling, refuse_reserved_devices
from queuectl.objects.documents import Document, with_names
from queuectl.objects.errors import RequestError
from queuectl.objects.files.assembly import Assembly, Parts
from queuectl.objects.files.children import NO_CHILDREN, Children, is_runtime
from queuectl.objects.files.cycles import refuse_cycles
from queuectl.objects.files.devices import API_VERSION as DEVICES
from queuectl.objects.files.devices import claiming
from queuectl.objects.files.gangs import Gang, is_child, is_job, read_job_gangs, unseen
from queuectl.objects.files.pods import (
    GivenPod,
    has_queue,
    pod_gangs,
    pods_of_owner,
    pods_of_set,
    read_given_pod,
    read_set_of,
)
from queuectl.objects.files.workloads import KIND as WORKLOAD
from queuectl.objects.files.workloads import is_workload, read_workload_gang
from queuectl.objects.kinds import KINDS, JobKinds, index_labels, leaderworkerset
from queuectl.objects.kubernetes import taint_rules
from queuectl.objects.kubernetes.limit_ranges import WireLimitRange, read_limit_range
from queuectl.objects.kubernetes.node_topologies import API_VERSION as TOPOLOGIES
from queuectl.objects.kubernetes.node_topologies import KIND as TOPOLOGY
from queuectl.objects.kubernetes.nodes import (
    DEFAULT_PODS,
    assumed_slots,
    lacks_hostname,
    priority_values,
    read_namespace,
    read_node,
    read_priority_class,
    with_hostnames,
)
from queuectl.objects.kubernetes.past_use import read_used
from queuectl.objects.kubernetes.resource_quotas import read_resource_quota
from queuectl.objects.kubernetes.wire import (
    WireNamespace,
    WireNode,
    WirePriorityClass,
    WireResourceQuota,
)
from queuectl.objects.times import time_or_none

NO_USAGE_LEDGER: Final = (
    "no usage ledger in the input: of each Budget, only the use of running gangs is known"
)


@dataclass(frozen=True, slots=True)
class SnapshotInput:
    """A Snapshot, and the documents that it does not contain.

    Attributes:
        evicted: gangs that run in drained queues. In the snapshot they are already being evicted, as in a cycle.
    """

    snapshot: Snapshot
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    evicted: tuple[Eviction, ...] = ()


@dataclass
class _Input(Parts):
    """The parts, and the documents that need no assembly."""

    configs: list[Document] = field(default_factory=list)
    classes: list[PriorityClassRecord] = field(default_factory=list)
    ranges: dict[str, list[LimitRange]] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    pod_documents: list[tuple[Document, GivenPod]] = field(default_factory=list)
    kinds: JobKinds = field(default_factory=lambda: KINDS)
    sets: list[JobRecord] = field(default_factory=list)
    children: Children = NO_CHILDREN
    slotless: list[str] = field(default_factory=list)  # Nodes that state no number of pods


def read_snapshot(
    documents: Iterable[Document], now: float | None = None, kinds: JobKinds = KINDS
) -> SnapshotInput:
    """The whole input of a plan, from files.

    Args:
        documents: of all files, in order.
        kinds: of jobs.
        now: unix seconds; by default the newest time in the input, 0 if there is none.

    Raises:
        DocumentError: naming file, document and field.
    """
    listed = with_names(map(queue_config.named, documents))
    _refuse_twice(listed, kinds)
    given = _Input(kinds=kinds, children=Children.of(listed))
    for document in listed:
        _sort(document, given)
    given.warnings.extend(assumed_slots(given.slotless))
    given.gangs += pod_gangs(given.pod_documents, kinds, given.sets)
    refuse_cycles(given.gangs)
    given.gangs = [limited(gang, given.ranges) for gang in given.gangs]
    given.gangs = [claiming(gang, given.devices) for gang in given.gangs]
    clock = newest_time(listed) if now is None else now
    queues = queue_config.build(given.configs, revision=0, strict=True)
    given.warnings.extend(dangling(queues))
    classes, mapped = given.devices.classes, queues.rules.device_classes
    refuse_reserved_devices(given.configs, device_resources(classes, mapped, given.nodes))
    given.nodes = with_hostnames(given.nodes, queues)
    for node in given.nodes:
        if (topology := lacks_hostname(node, queues)) is not None:
            text = f"no label {HOSTNAME}: in none of the domains of Topology {topology}"
            given.warnings.append(f"Node {node.name}: {text}")
    queues = quota_from_nodes(in_force(queues, clock), Fleet(tuple(given.nodes)))
    given.gangs = [defaulted(gang, queues) for gang in given.gangs]
    given.pod_classes |= priority_values(given.classes)
    snapshot = Assembly(given, queues, clock).snapshot()
    snapshot = with_budgets(snapshot)
    if snapshot.budgets:
        given.warnings.append(NO_USAGE_LEDGER)
    snapshot = replace(
        snapshot,
        past_use=past_use(read_used(given.configs), queues),
        reservations=occurrences(queues.reservations.values(), (), clock),
    )
    given.warnings.extend(_unplaced(snapshot))
    evicted = tuple(drained(snapshot))
    snapshot = leaving(snapshot, {eviction.uid for eviction in evicted})
    return SnapshotInput(snapshot, tuple(given.ignored), tuple(given.warnings), evicted)


def drained(snapshot: Snapshot) -> Iterator[Eviction]:
    """The gangs that ``stopPolicy: HoldAndDrain`` evicts."""
    for gang in snapshot.admitted:
        workload = gang.workload
        why = drain(workload.namespace, workload.queue or "", snapshot.config)
        if why is not None and not gang.leaving:
            yield Eviction(workload.uid, why.code, why.message)


def leaving(snapshot: Snapshot, out: AbstractSet[str]) -> Snapshot:
    """The snapshot in which these gangs are being evicted. Each keeps its place in the queue."""
    admitted = tuple(
        replace(gang, leaving=True, returns=True, lost=()) if gang.workload.uid in out else gang
        for gang in snapshot.admitted
    )
    return replace(snapshot, admitted=admitted)


def _refuse_twice(documents: Iterable[Document], kinds: JobKinds) -> None:
    seen: dict[tuple[str, str, str], Document] = {}
    for document in documents:
        meta = document.body.get("metadata") or {}
        if not meta.get("name"):
            if not _is_read(document, kinds):
                continue
            raise document.error("metadata.name", "is required")
        group = document.api_version.rpartition("/")[0]
        if queue_config.is_single(document):
            group = ""  # the object of Kueue and of queuectl is the same
        key = (group, document.kind, document.name)
        if key in seen:
            raise document.error("", f"is given twice, first as {seen[key].address}")
        seen[key] = document


def _is_read(document: Document, kinds: JobKinds) -> bool:
    """Whether a plan uses objects of its kind."""
    core = (document.api_version, document.kind) in _CORE
    return (
        core or queue_config.is_config(document) or is_workload(document) or is_job(document, kinds)
    )


def _sort(document: Document, given: _Input) -> None:
    core = _CORE.get((document.api_version, document.kind))
    if core is not None:
        core(document, given)
    elif queue_config.is_config(document):
        given.warnings.extend(queue_config.validate(document)[1])
        given.configs.append(document)
    elif is_workload(document):
        gang, warnings = read_workload_gang(document)
        given.warnings.extend(warnings)
        given.gangs.append(gang)
    elif is_job(document, given.kinds):
        if not is_child(document, given.kinds):
            given.gangs.extend(read_job_gangs(document, given.kinds, given.children))
    elif not is_runtime(document):
        _ignore(document, given)


def _ignore(document: Document, given: _Input) -> None:
    given.ignored.append(f"{document.api_version} {document.address}")


def _node(document: Document, given: _Input) -> None:
    try:
        node = read_node(document.convert(WireNode)).node
    except RequestError as error:
        raise document.error("", str(error)) from None
    if node.allocatable and PODS not in node.allocatable:
        given.slotless.append(str(document.address))
        room = Resources({**node.allocatable, PODS: DEFAULT_PODS})
        node = replace(node, allocatable=room)
    given.nodes.append(node)


def _unplaced(snapshot: Snapshot) -> Iterator[str]:
    """The warning if pending gangs can use flavors with nodes and the input has no node: quota alone then decides."""
    placed = sorted(f.name for f in snapshot.config.flavors.values() if f.topology is not None)
    if placed and snapshot.pending and not snapshot.fleet.nodes:
        names = ", ".join(placed)
        yield f"no Node in the input: quota alone decides, also of ResourceFlavors with a Topology ({names})"


def defaulted(gang: Gang, queues: QueueConfig) -> Gang:
    """In the LocalQueue ``default`` of its namespace, if its job has no queue label and was not created yet.

    A job with an owner is left to its owner.
    """
    takes_in = (gang.namespace, DEFAULT_NAME) in queues.local_queues
    if gang.kind == WORKLOAD or gang.queue is not None or not takes_in:
        return gang
    meta = gang.document.body.get("metadata") or {}
    if meta.get("ownerReferences") or not unseen(
        gang.document, "" if not gang.has_uid else gang.uid
    ):
        return gang
    return replace(gang, queue=DEFAULT_NAME, draft=gang.running)


def _pod(document: Document, given: _Input) -> None:
    pod = read_given_pod(document, index_labels(given.kinds))
    given.pods.append(pod)
    given.pod_documents.append((document, pod))


def _owner_of_pods(document: Document, given: _Input) -> None:
    if not has_queue(document):
        _ignore(document, given)
    for pod in pods_of_owner(document):
        _pod(pod, given)


def _set(document: Document, given: _Input) -> None:
    record = read_set_of(document)
    if record is None:
        _ignore(document, given)
        return
    given.sets.append(record)
    for pod in pods_of_set(document, record):
        _pod(pod, given)


def _namespace(document: Document, given: _Input) -> None:
    record = read_namespace(document.convert(WireNamespace))
    given.namespaces[record.name] = dict(record.labels)


def _resource_quota(document: Document, given: _Input) -> None:
    try:
        record = read_resource_quota(document.convert(WireResourceQuota))
    except RequestError as error:
        raise document.error("", str(error)) from None
    given.allowances.setdefault(record.namespace, []).append(record)


def _limit_range(document: Document, given: _Input) -> None:
    try:
        record = read_limit_range(document.convert(WireLimitRange))
    except RequestError as error:
        raise document.error("", str(error)) from None
    given.ranges.setdefault(record.namespace, []).append(record.limit_range)


def limited(gang: Gang, ranges: Mapping[str, Sequence[LimitRange]]) -> Gang:
    """The gang with the values of LimitRanges, or with their violation."""
    own = sorted(ranges.get(gang.namespace, ()), key=lambda one: one.name)
    podsets = tuple(with_ranges(podset, own) for podset in gang.podsets)
    return replace(gang, podsets=podsets, forbidden=refusal(podsets, gang.namespace, own))


def _devices(document: Document, given: _Input) -> None:
    given.devices.add(document)


def _pod_class(document: Document, given: _Input) -> None:
    given.classes.append(read_priority_class(document.convert(WirePriorityClass)))


_CORE: Final[Mapping[tuple[str, str], Callable[[Document, _Input], None]]] = {
    ("v1", "Node"): _node,
    ("v1", "Pod"): _pod,
    ("apps/v1", "Deployment"): _owner_of_pods,
    ("apps/v1", "StatefulSet"): _owner_of_pods,
    (f"{leaderworkerset.GROUP}/{leaderworkerset.VERSION}", leaderworkerset.KIND): _set,
    ("v1", "Namespace"): _namespace,
    ("v1", "ResourceQuota"): _resource_quota,
    ("v1", "LimitRange"): _limit_range,
    ("scheduling.k8s.io/v1", "PriorityClass"): _pod_class,
    (DEVICES, "ResourceSlice"): _devices,
    (DEVICES, "DeviceClass"): _devices,
    (taint_rules.VERSION, taint_rules.KIND): _devices,
    (taint_rules.OLDER_VERSION, taint_rules.KIND): _devices,
    (DEVICES, "ResourceClaim"): _devices,
    (DEVICES, "ResourceClaimTemplate"): _devices,
    (TOPOLOGIES, TOPOLOGY): _devices,
}


def newest_time(documents: Iterable[Document]) -> float:
    """The newest time in the documents, in unix seconds; 0 if there is none. Deadlines do not count."""
    newest = 0.0
    seen: set[int] = set()
    stack: list[Any] = [document.body for document in documents]
    while stack:
        part = stack.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        for key, value in part.items() if isinstance(part, dict) else enumerate(part):
            if isinstance(value, (dict, list)):
                stack.append(value)
            elif isinstance(value, str) and isinstance(key, str) and _tells_time(key):
                newest = max(newest, time_or_none(value) or 0.0)
    return newest


def _tells_time(key: str) -> bool:
    ends = ("time", "Time", "Timestamp", "At")
    return key.endswith(ends) and key not in ("deletionTimestamp", "requeueAt")
