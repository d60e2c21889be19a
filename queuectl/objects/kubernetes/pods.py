"""Live pods to records, and the one patch that pins a pod and drops its gate.

Each relist parses all pods of the cluster here, so this code is optimized for speed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from sys import intern
from typing import Any, Final

from queuectl.domain.arrays import parted
from queuectl.domain.checks import PodSetUpdate
from queuectl.domain.fleet import HOSTNAME, Effect, Toleration
from queuectl.domain.jobs import PodPhase, PodRecord
from queuectl.objects import keys
from queuectl.objects.errors import RequestError
from queuectl.objects.kubernetes.node_affinity import (
    own_pin,
    pin_in,
    pinned,
    unchecked_terms,
    write_required,
)
from queuectl.objects.kubernetes.nodes import version_of
from queuectl.objects.kubernetes.requests import held_requests, read_needs, repeated_overhead
from queuectl.objects.kubernetes.wire import (
    ContainerStatus,
    PodMeta,
    PodSpec,
    PodStatus,
    WirePod,
    WireToleration,
)
from queuectl.objects.times import time_or_none

_EFFECTS: Final = {effect.value: effect for effect in Effect}
_PHASES: Final = {phase.value: phase for phase in PodPhase}
_NO_SPEC: Final = PodSpec()
_NO_STATUS: Final = PodStatus()
_LONGEST_REASON: Final = 80  # characters

NO_FIELD_OWNERS: Final[list[dict[str, Any]]] = [{}]
"""As ``managedFields`` of a patch: the API server stops tracking the owner of each field of this object, until a server-side
apply. The tracking is a third of the cost of each later write (of a pod: binding, status, finalizer), and of the size
in etcd and in each watch. Pods of jobs are never applied."""

_DEFAULT_SCHEDULER: Final = "default-scheduler"

_LONGEST_SHARED: Final = 128  # characters; the uid in an owner reference can have 1 MiB
_recent: Final = lru_cache(maxsize=1 << 16)(str)


def _share(text: str) -> str:
    """The same object for equal texts. Uids repeat only in the pods of a gang, so the table of them is bounded."""
    return _recent(text) if len(text) <= _LONGEST_SHARED else text


def read_pod(wire: WirePod, index_labels: Sequence[str] = ()) -> PodRecord:
    """Project a Pod.

    Args:
        wire: the Pod.
        index_labels: labels with the index of a pod, in addition to those that queuectl knows for all kinds.

    Raises:
        RequestError: a quantity is malformed, which the API server refuses; or the affinity of a gated pod is too large for a pin.
    """
    meta = wire.metadata
    spec = wire.spec or _NO_SPEC
    status = wire.status or _NO_STATUS
    gates = tuple([gate.name for gate in spec.scheduling_gates]) if spec.scheduling_gates else ()
    gated = keys.GATE in gates
    owner = owner_kind = ""
    for reference in meta.owner_references or ():
        if reference.controller:
            owner, owner_kind = _share(reference.uid), intern(reference.kind)
    maker = ""
    kind = (meta.labels or {}).get(keys.KIND_LABEL)
    if kind and (
        owner_kind in keys.CHILD_KINDS or (kind in keys.POD_MAKERS and owner_kind in ("Pod", ""))
    ):
        maker = owner if owner_kind == "Pod" else ""
        owner, owner_kind = _workload(meta.labels or {})
    attempt, podset, rank = _membership(meta.labels, index_labels)
    ready, unschedulable = _conditions(status)
    required = spec.affinity.node_affinity if spec.affinity else None
    pin = pin_in(required) if required is not None else None
    host = spec.node_selector.get(HOSTNAME) if spec.node_selector else None
    return PodRecord(
        namespace=intern(meta.namespace or "default"),
        name=meta.name,
        uid=meta.uid,
        version=version_of(meta.resource_version),
        requests=held_requests(spec, status),
        overhead=repeated_overhead(spec, status),
        owner=owner,
        owner_kind=owner_kind,
        maker=maker,
        pin=intern(pin) if pin is not None else None,
        host=intern(host) if host is not None else None,
        node=intern(spec.node_name) if spec.node_name else None,
        gated=gated,
        attempt=attempt,
        podset=podset,
        rank=rank,
        phase=_PHASES.get(status.phase or "Pending", PodPhase.UNKNOWN),
        ready=ready,
        terminating=meta.deletion_timestamp is not None,
        unschedulable=unschedulable,
        gates=tuple([name for name in gates if name != keys.GATE]),
        scheduler="" if spec.node_name else _other_scheduler(spec.scheduler_name),
        affinity=unchecked_terms(required) if gated and required is not None else None,
        tolerations=read_tolerations(spec.tolerations, default="") if gated else (),
        needs=read_needs(spec) if gated else None,
        started_at=time_or_none(status.start_time),
        checkpoint_at=time_or_none(meta.annotations.checkpoint) if meta.annotations else None,
        preempt_requested=meta.annotations.preempt_requested if meta.annotations else "",
        preempt_ready=meta.annotations is not None and meta.annotations.preempt_ready == "true",
        restarts=sum([one.restart_count for one in status.container_statuses or ()]),
        status_reason=""
        if ready
        else _share(_status_reason(status, gates, unschedulable=unschedulable)),
        guaranteed=status.qos_class == "Guaranteed",
        workload=_share((meta.labels or {}).get(keys.WORKLOAD_LABEL, ""))
        if rank is not None and owner
        else "",
        kueue_workload=_kueue_workload(meta),
    )


def _kueue_workload(meta: PodMeta) -> str:
    """The name of the Workload with which a Kueue started the pod; "" if queuectl started or took in the pod."""
    labels = meta.labels or {}
    if meta.annotations is None or keys.KUEUE_PODSET_LABEL not in labels:
        return ""
    ours = keys.ATTEMPT_LABEL in labels or keys.KIND_LABEL in labels
    return "" if ours else _share(meta.annotations.kueue_workload)


def _other_scheduler(name: str | None) -> str:
    return "" if name in (None, "", _DEFAULT_SCHEDULER) else intern(name)


def _status_reason(status: PodStatus, gates: Collection[str], *, unschedulable: bool) -> str:
    """The reason for which a pod is not ready: the first one of its status."""
    if status.reason:
        return status.reason[:_LONGEST_REASON]
    if gates:
        return "SchedulingGated"
    if unschedulable:
        return "Unschedulable"
    initial = (f"Init:{reason}" for reason in _reasons(status.init_container_statuses))
    found = next(initial, None) or next(_reasons(status.container_statuses), "")
    return found[:_LONGEST_REASON]


def _reasons(containers: Iterable[ContainerStatus] | None) -> Iterator[str]:
    """The reasons of containers that do not run, except those that completed."""
    for container in containers or ():
        state = container.state
        if state is None:
            continue
        if state.waiting is not None and state.waiting.reason:
            yield state.waiting.reason
        ended = state.terminated
        if ended is not None and ended.exit_code:
            yield f"{ended.reason or 'Error'} (exit code {ended.exit_code})"


def _membership(
    labels: Mapping[str, str] | None, index_labels: Sequence[str]
) -> tuple[int, str, int | None]:
    if not labels:
        return 0, "", None
    rank = None
    for label in chain(keys.RANK_LABELS, index_labels):
        if label in labels:
            rank = read_count(labels[label])
            break
    if rank is not None and keys.RANKS_LABEL in labels and label not in keys.GROUP_LABELS:
        groups = (labels[label] for label in keys.GROUP_LABELS if label in labels)
        size, group = read_count(labels[keys.RANKS_LABEL]), read_count(next(groups, ""))
        rank += (size or 0) * (group or 0)
    elif rank is not None and keys.ATTEMPT_LABEL not in labels and label not in keys.GROUP_LABELS:
        # The rank of a pod that Kueue started is not known from its index inside its group alone.
        rank = None if any(group in labels for group in keys.GROUP_LABELS) else rank
    if rank is not None and keys.FIRST_RANK_LABEL in labels:
        rank -= read_count(labels[keys.FIRST_RANK_LABEL]) or 0
        rank = rank if rank >= 0 else None
    attempt = read_count(labels.get(keys.ATTEMPT_LABEL, "")) or 0
    return attempt, intern(labels.get(keys.PODSET_LABEL) or _unlabeled(labels)), rank


def _workload(labels: Mapping[str, str]) -> tuple[str, str]:
    """The uid and kind of the workload that its labels name, if another object controls the pod."""
    uid = labels.get(keys.WORKLOAD_LABEL, "")
    index = parted(uid)
    return _share(index[0] if index is not None else uid), intern(labels[keys.KIND_LABEL])


def _unlabeled(labels: Mapping[str, str]) -> str:
    """The podset of a pod that is older than queuectl, by the labels of Kueue and of its controller."""
    if keys.REPLICA_TYPE_LABEL in labels:
        return labels[keys.REPLICA_TYPE_LABEL]
    if keys.KUEUE_PODSET_LABEL in labels:
        return labels[keys.KUEUE_PODSET_LABEL]
    return keys.JOB_PODSET if keys.JOB_NAME_LABEL in labels else ""


def read_count(text: str) -> int | None:
    """The non-negative number in a label, or None."""
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else None


def _conditions(status: PodStatus) -> tuple[bool, bool]:
    ready = unschedulable = False
    for condition in status.conditions or ():
        if condition.type == "Ready":
            ready = condition.status == "True"
        elif condition.reason == "Unschedulable" and condition.type == "PodScheduled":
            unschedulable = True
    return ready, unschedulable


def read_tolerations(
    tolerations: Iterable[WireToleration] | None, *, default: str = "Equal"
) -> tuple[Toleration, ...]:
    """Tolerations from a document, with ``tolerationSeconds``.

    ``default``: the operator of those without one. It is empty for a pod: a pin repeats its tolerations, and the API server compares them with
    the pod's as they are stated.
    """
    return tuple(
        Toleration(
            key=intern(t.key or ""),
            operator=intern(t.operator or default),
            value=intern(t.value or ""),
            effect=_EFFECTS.get(t.effect) if t.effect else None,
            seconds=t.toleration_seconds,
        )
        for t in tolerations or ()
    )


def write_toleration(toleration: Toleration) -> dict[str, Any]:
    """A toleration in the form of the API: without defaults, except an operator that is stated."""
    written: dict[str, Any] = {}
    if toleration.operator:
        written["operator"] = toleration.operator
    if toleration.key:
        written["key"] = toleration.key
    if toleration.value:
        written["value"] = toleration.value
    if toleration.effect is not None:
        written["effect"] = toleration.effect.value
    if toleration.seconds is not None:
        written["tolerationSeconds"] = toleration.seconds
    return written


def pin_patch(
    pod: PodRecord,
    node: str | None,
    node_labels: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    tolerations: Iterable[Toleration] = (),
    updates: Iterable[PodSetUpdate] = (),
) -> dict[str, Any]:
    """One JSON merge patch that pins a gated pod to a node and removes queuectl's gate. Other gates remain.

    Args:
        pod: the gated pod. The patch applies only to its uid and resourceVersion.
        node: name of the node; None where only quota was decided and kube-scheduler picks the node, from those that the pod itself allows.
        node_labels: of the flavor, added to the pod's node selector.
        tolerations: of the flavor, added to the pod's own.
        updates: of admission checks, for its podset.

    Raises:
        RequestError: the pod does not have queuectl's gate, so its placement cannot be changed.
    """
    if not pod.gated:
        raise RequestError(f"pod {pod.namespace}/{pod.name} has no gate {keys.GATE}")
    spec: dict[str, Any] = {"schedulingGates": [{"name": name} for name in pod.gates]}
    adds = tuple(updates)
    chosen = {key: value for update in adds for key, value in update.node_selector}
    if selector := {**dict(node_labels), **chosen}:
        spec["nodeSelector"] = selector
    pin = node or own_pin(pod.affinity)
    if pin is not None:
        spec["affinity"] = write_required(pinned(pod.affinity, pin))
    wanted = (*tolerations, *(t for update in adds for t in update.tolerations))
    added = [t for t in dict.fromkeys(wanted) if t not in pod.tolerations]
    if added:
        # A merge patch replaces the list, and the API server refuses a patch that removes a toleration of the pod.
        spec["tolerations"] = [write_toleration(t) for t in (*pod.tolerations, *added)]
    metadata: dict[str, Any] = {
        "uid": pod.uid,
        "resourceVersion": str(pod.version),
        "managedFields": NO_FIELD_OWNERS,
    }
    if labels := {key: value for update in adds for key, value in update.labels}:
        metadata["labels"] = labels
    if annotations := {key: value for update in adds for key, value in update.annotations}:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": spec}
