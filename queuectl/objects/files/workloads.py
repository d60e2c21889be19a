"""Kueue's Workloads, from files and from a server: pending (``spec.podSets``) or running (``status.admission``).

A file of a user is read strictly in ``spec``, as for the configuration kinds; pod templates, metadata and status are read leniently. A
Workload of a Kueue that was shut down is read from the server: an invalid one is not refused, but ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from queuectl.domain.jobs import JobRecord, PriorAdmission, PriorPodSet
from queuectl.domain.workload import PodSet, Slice
from queuectl.objects import keys
from queuectl.objects.configuration.config_kinds import API_VERSION, KUEUE_VERSIONS
from queuectl.objects.configuration.wire import ExecutionSeconds, Priority, Strict
from queuectl.objects.documents import Document
from queuectl.objects.errors import MalformedError, RequestError, under
from queuectl.objects.files.assignments import AdmissionStatus, Assigned, read_admission
from queuectl.objects.kinds.common import (
    StatedKeys,
    holds,
    read_checkpoint,
    read_evictions,
    read_utilization,
    user_labels,
)
from queuectl.objects.kubernetes.slices import SliceConstraint, requested_slices
from queuectl.objects.kubernetes.templates import (
    check_count,
    check_groups,
    read_podset,
    topology_request,
)
from queuectl.objects.kubernetes.wire import Condition, Meta, OwnerReference, Template, Wire
from queuectl.objects.times import time_or_none

# ---- From files

KIND: Final = "Workload"
_UNHONORED: Final = ("workload-slice-replacement-for", "priority-boost")  # annotations of Kueue's


class TopologyRequestSpec(Strict):
    required: str | None = None
    preferred: str | None = None
    unconstrained: bool | None = None
    pod_index_label: str | None = None
    sub_group_index_label: str | None = None
    sub_group_count: int | None = None
    pod_set_group_name: str | None = None
    pod_set_slice_required_topology: str | None = None
    pod_set_slice_size: int | None = None
    podset_slice_required_topology_constraints: list[SliceConstraint] | None = None
    pod_set_slice_required_topology_constraints: list[SliceConstraint] | None = None


class PodSetSpec(Strict):
    name: str = "main"
    count: int = 1
    min_count: int | None = None
    template: Template | None = None
    topology_request: TopologyRequestSpec | None = None


class PriorityClassRef(Strict):
    group: str | None = None
    kind: str | None = None
    name: str | None = None


class WorkloadSpec(Strict):
    pod_sets: list[PodSetSpec] | None = None
    queue_name: str | None = None
    priority: Priority | None = None
    priority_class_ref: PriorityClassRef | None = None
    priority_class_name: str | None = None
    priority_class_source: str | None = None
    active: bool | None = None
    maximum_execution_time_seconds: ExecutionSeconds | None = None
    preemption_gates: list[Any] | None = None


class RequeueState(Wire):
    requeue_at: str | None = None


class Named(Wire):
    name: str = ""
    count: int = 0


class WorkloadStatus(Wire):
    conditions: list[Condition] | None = None
    admission: AdmissionStatus | None = None
    requeue_state: RequeueState | None = None
    reclaimable_pods: list[Named] | None = None
    unhealthy_nodes: list[Named] | None = None
    accumulated_past_execution_time_seconds: int | None = None


class WireWorkload(Wire):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)
    status: WorkloadStatus | None = None


def is_workload(document: Document) -> bool:
    """Whether it is a Workload, of any version."""
    group = document.api_version.partition("/")[0]
    return document.kind == KIND and group in ("queuectl.dev", "kueue.x-k8s.io")


@dataclass(frozen=True, slots=True)
class GivenWorkload:
    """A Workload: its request as the record of a job, and its place in the queue. Times are unix seconds.

    Attributes:
        record: its kind is Workload. It is not suspended while the Workload is admitted.
        created_at: None without a time.
        priority: if it states the number; ``record`` has no class then.
        assigned: flavors and hosts by podset.
        charged_to: the ClusterQueue of its admission.
        started_at: of its admission.
        admitted_at: of its admission, once all its admission checks are ready; None before.
        active: False = ``spec.active`` holds it.
        evicted: the reason of the condition ``Evicted``; None = it is not being evicted.
        finished: it has ended.
        requeue_at: end of its back-off.
        owners: the objects that own it.
        evictions: times of its preemptions and migrations, in any order.
        unhealthy: lost nodes, by name or hostname label.
        past_seconds: for which its earlier attempts ran.
        annotations: its own.
    """

    record: JobRecord
    created_at: float | None = None
    priority: int | None = None
    assigned: Mapping[str, Assigned] = field(default_factory=dict)
    charged_to: str | None = None
    started_at: float | None = None
    admitted_at: float | None = None
    active: bool = True
    evicted: str | None = None
    finished: bool = False
    requeue_at: float | None = None
    owners: tuple[OwnerReference, ...] = ()
    evictions: tuple[float, ...] = ()
    unhealthy: tuple[str, ...] = ()
    past_seconds: float = 0.0
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def admitted(self) -> bool:
        """Whether it has its quota."""
        return not self.record.suspended

    @property
    def leaves(self) -> bool:
        """Whether it is admitted, and is being evicted."""
        return self.admitted and (self.evicted is not None or not self.active)


def read_workload(document: Document) -> tuple[GivenWorkload, tuple[str, ...]]:
    """The Workload, and warnings about what is not supported.

    Raises:
        DocumentError: a field is unknown or malformed. For a contradictory request, the record has an ``error``.
    """
    if document.api_version not in (API_VERSION, *KUEUE_VERSIONS):
        listed = ", ".join((API_VERSION, *KUEUE_VERSIONS))
        raise document.error("apiVersion", f"{document.api_version!r} is not one of {listed}")
    wire = document.convert(WireWorkload)
    if not wire.spec.pod_sets:
        raise document.error("spec.podSets", "is required")
    status = wire.status or WorkloadStatus()
    reclaimed = {one.name: one.count for one in status.reclaimable_pods or ()}
    error: RequestError | None = None
    podsets: tuple[PodSet, ...] = ()
    assigned: dict[str, Assigned] = {}
    try:
        if status.admission is not None:
            assigned = read_admission(status.admission)
            _check_names(assigned, wire.spec.pod_sets)
        # A pending gang requests only the pods that have not ended.
        podsets = _read_podsets(wire.spec.pod_sets, reclaimed if status.admission is None else {})
    except MalformedError as malformed:
        raise document.error("", str(malformed)) from None
    except RequestError as found:
        error = found
    record = replace(
        _record(wire, status),
        podsets=podsets,
        expected=tuple(_left(podsets, assigned, reclaimed)),
        error=str(error) if error else None,
        unsupported=error is not None and error.unsupported,
    )
    warnings = tuple(f"{document.address}: {text}" for text in _warnings(wire))
    return _given(wire, status, record, assigned), warnings


def _record(wire: WireWorkload, status: WorkloadStatus) -> JobRecord:
    meta, spec = wire.metadata, wire.spec
    workload_class, pod_class = _classes(spec)
    stated = StatedKeys(KIND, meta, kueue=False)
    return JobRecord(
        kind=KIND,
        namespace=meta.namespace or "default",
        name=meta.name,
        uid=meta.uid,
        version=0,
        created_at=time_or_none(meta.creation_timestamp) or 0.0,
        queue=spec.queue_name or None,
        priority_class=workload_class if spec.priority is None else None,
        pod_priority_class=pod_class,
        preemptible=stated.preemptible,
        suspended=status.admission is None,
        utilization=read_utilization(meta.annotations),
        checkpoint_at=read_checkpoint(meta.annotations),
        labels=user_labels(meta.labels),
        max_execution=_seconds(spec.maximum_execution_time_seconds),
        expected_duration=stated.expected_duration,
    )


def _given(
    wire: WireWorkload,
    status: WorkloadStatus,
    record: JobRecord,
    assigned: Mapping[str, Assigned],
) -> GivenWorkload:
    meta, conditions = wire.metadata, status.conditions or []
    evicted = [one.reason or "" for one in conditions if holds([one], "Evicted")]
    return GivenWorkload(
        record=record,
        created_at=time_or_none(meta.creation_timestamp),
        priority=wire.spec.priority,
        assigned=assigned,
        charged_to=status.admission.cluster_queue or None if status.admission else None,
        started_at=_since(conditions, "Admitted") or _since(conditions, "QuotaReserved"),
        admitted_at=_since(conditions, "Admitted"),
        active=wire.spec.active is not False,
        evicted=evicted[0] if evicted else None,
        finished=holds(conditions, "Finished"),
        requeue_at=time_or_none(status.requeue_state.requeue_at) if status.requeue_state else None,
        owners=tuple(meta.owner_references or ()),
        evictions=(*read_evictions(meta.annotations), *_preempted(conditions)),
        unhealthy=tuple(node.name for node in status.unhealthy_nodes or ()),
        past_seconds=_seconds(status.accumulated_past_execution_time_seconds) or 0.0,
        annotations=meta.annotations or {},
    )


def _seconds(stated: int | None) -> float | None:
    return float(stated) if stated is not None else None


def _preempted(conditions: list[Condition]) -> Iterator[float]:
    """The time of its last preemption by Kueue. After the next admission, the condition is False with the time of the admission."""
    for condition in conditions:
        evicted = condition.type == "Evicted" and condition.status == "True"
        if condition.type == "Preempted" or (evicted and condition.reason == "Preempted"):
            at = time_or_none(condition.last_transition_time)
            if at is not None:
                yield at


def _since(conditions: list[Condition], kind: str) -> float | None:
    for condition in conditions:
        if condition.type == kind and condition.status == "True":
            return time_or_none(condition.last_transition_time)
    return None


def _classes(spec: WorkloadSpec) -> tuple[str | None, str | None]:
    """Its (WorkloadPriorityClass, pod PriorityClass)."""
    ref = spec.priority_class_ref or PriorityClassRef()
    name = ref.name or spec.priority_class_name or None
    of_pods = ref.kind == "PriorityClass" or (spec.priority_class_source or "").startswith(
        "scheduling."
    )
    if of_pods:
        return None, name
    return (name, None) if name else (None, _template_class(spec))


def _template_class(spec: WorkloadSpec) -> str | None:
    templates = [podset.template for podset in spec.pod_sets or ()]
    named = (t.spec.priority_class_name for t in templates if t is not None and t.spec is not None)
    return next((name for name in named if name and name != keys.POD_PRIORITY_CLASS), None)


def _check_names(assigned: dict[str, Assigned], podsets: list[PodSetSpec]) -> None:
    known = {podset.name for podset in podsets}
    for name in assigned:
        if name not in known:
            raise MalformedError(
                f"status.admission.podSetAssignments: {name!r} is not one of spec.podSets"
            )


def _left(
    podsets: Iterable[PodSet], assigned: Mapping[str, Assigned], reclaimed: Mapping[str, int]
) -> Iterator[tuple[str, int]]:
    """The pods of an admitted Workload that have not ended, for podsets of which some have."""
    for podset in podsets:
        if podset.name in assigned and podset.name in reclaimed:
            admitted = assigned[podset.name].count or podset.count
            yield podset.name, max(0, admitted - reclaimed[podset.name])


def _read_podsets(specs: list[PodSetSpec], reclaimed: Mapping[str, int]) -> tuple[PodSet, ...]:
    podsets: list[PodSet] = []
    for i, spec in enumerate(specs):
        path = f"spec.podSets[{i}]"
        if any(spec.name == podset.name for podset in podsets):
            raise MalformedError(f"{path}.name: {spec.name!r} occurs twice")
        if spec.count == 0:
            continue  # Kueue allows podsets without pods, which request nothing
        check_count(spec.count, f"{path}.count")
        if spec.min_count is not None and not 0 <= spec.min_count <= spec.count:
            raise RequestError(f"{path}.minCount: {spec.min_count} is not 0 to {spec.count}")
        count = spec.count - reclaimed.get(spec.name, 0)
        if count <= 0:
            continue
        podset = read_podset(spec.name, count, spec.template, f"{path}.template")
        if spec.min_count is not None and spec.min_count < count:
            # A gang without pods would do nothing.
            podset = replace(podset, min_count=max(1, spec.min_count))
        if spec.topology_request is not None:
            podset = _with_topology(podset, spec.topology_request, f"{path}.topologyRequest")
        podsets.append(podset)
    if not podsets:
        raise RequestError("spec.podSets: no podset has any pods")
    check_groups(podsets)
    return tuple(podsets)


def _with_topology(podset: PodSet, request: TopologyRequestSpec, path: str) -> PodSet:
    """The request of the Workload replaces the annotations of the template, as in Kueue.

    The even spread remains, because a Workload has no field for it. Podsets can share a group without a domain: they then share
    only their flavors.
    """
    with under(path, "."):
        topology, _ = topology_request(
            required=request.required,
            preferred=request.preferred,
            unconstrained=bool(request.unconstrained),
            group=None,
            names=("required", "preferred", "unconstrained", "podSetGroupName"),
            slices=_slices(request, podset.count),
            balanced=podset.topology is not None and podset.topology.balanced,
        )
    return replace(podset, topology=topology, group=request.pod_set_group_name or None)


def _slices(request: TopologyRequestSpec, count: int) -> tuple[Slice, ...]:
    """Kueue writes the name of the field with a small s. Both spellings are accepted."""
    written = {
        "podsetSliceRequiredTopologyConstraints": request.podset_slice_required_topology_constraints,
        "podSetSliceRequiredTopologyConstraints": request.pod_set_slice_required_topology_constraints,
    }
    given = [(name, layers) for name, layers in written.items() if layers]
    if len(given) > 1:
        raise RequestError(f"{given[0][0]} and {given[1][0]} are the same: keep one of them")
    name, layers = given[0] if given else (next(iter(written)), None)
    level, size = request.pod_set_slice_required_topology, request.pod_set_slice_size
    if level is None and layers is None:
        size = None  # Kueue reads a size only with a level
    elif size is None and request.pod_set_group_name:
        size = count  # a leader's: Kueue slices the workers of the group only
    return requested_slices(
        level,
        size,
        layers,
        count,
        ("podSetSliceRequiredTopology", "podSetSliceSize", name),
    )


def _warnings(wire: WireWorkload) -> list[str]:
    spec = wire.spec
    annotations = wire.metadata.annotations or {}
    unhonored = [keys.KUEUE_PREFIX + name for name in _UNHONORED]
    found = {f"metadata.annotations.{key}": key in annotations for key in unhonored} | {
        "spec.preemptionGates": bool(spec.preemption_gates),
    }
    return [f"{field}: not supported" for field, asked in found.items() if asked]


# ---- From a server


class _Spec(Wire):
    active: bool | None = None


class _Status(Wire):
    conditions: list[Condition] | None = None
    admission: AdmissionStatus | None = None


class WireLeftWorkload(Wire):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: _Spec | None = None
    status: _Status | None = None


def read_prior_admission(wire: WireLeftWorkload) -> PriorAdmission | None:
    """The gang of the job that controls the Workload; None if it is finished or has no controller.

    Raises:
        RequestError: its admission contradicts itself.
    """
    owner = next((o for o in wire.metadata.owner_references or () if o.controller), None)
    status = wire.status or _Status()
    conditions = status.conditions or []
    if owner is None or not owner.uid or holds(conditions, "Finished"):
        return None
    assigned = read_admission(status.admission) if status.admission is not None else {}
    return PriorAdmission(
        uid=owner.uid,
        kind=owner.kind,
        namespace=wire.metadata.namespace or "default",
        name=owner.name,
        queued_at=time_or_none(wire.metadata.creation_timestamp),
        active=wire.spec is None or wire.spec.active is not False,
        cluster_queue=status.admission.cluster_queue if status.admission is not None else "",
        admitted_at=next(
            (
                time_or_none(c.last_transition_time)
                for c in conditions
                if c.type == "Admitted" and c.status == "True"
            ),
            None,
        ),
        podsets={
            name: PriorPodSet(dict(one.flavors), one.hosts or ()) for name, one in assigned.items()
        },
    )
