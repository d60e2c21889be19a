"""Pods with their own queue label: a single pod is a gang of one, and the pods of a group are one gang.

No object of the API describes a group. :mod:`queuectl.state.pod_groups` assembles it from its pods.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final

import msgspec

from queuectl.domain.jobs import JobOutcome, JobRecord, PodFace, PodGroupMember, PodRecord
from queuectl.domain.workload import PodSet
from queuectl.objects import keys
from queuectl.objects.errors import RequestError
from queuectl.objects.kinds.common import SpecFields, StatedKeys, bounded, lenient, read_job
from queuectl.objects.kinds.leaderworkerset import GROUP_LABEL, NAME_LABEL, group_name
from queuectl.objects.kubernetes.node_affinity import pin_in, unpinned
from queuectl.objects.kubernetes.pods import NO_FIELD_OWNERS, read_count, read_pod
from queuectl.objects.kubernetes.templates import read_podset
from queuectl.objects.kubernetes.wire import (
    Meta,
    PodMeta,
    PodStatus,
    Template,
    TemplateMeta,
    TemplateSpec,
    Wire,
    WirePod,
)

POD: Final = "Pod"
POD_GROUP: Final = "PodGroup"
MOST_PODS: Final = 10_000
"""Pods that a group can have."""

Bytes = bytes | msgspec.Raw
"""An object in JSON."""

_OUTCOMES: Final = {"Succeeded": JobOutcome.SUCCEEDED, "Failed": JobOutcome.FAILED}


class WireMember(Wire):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: TemplateSpec | None = None
    status: PodStatus | None = None


def takes(meta: PodMeta, kinds: Container[str], *, kueue: bool = True) -> bool:
    """Whether a pod is a workload, or a part of one: it has a queue label, admission took it in, and it is not a pod of a job.

    Admission takes in no pods of the jobs that queuectl runs, and none from before its policies. The keys alone do not show that: a pod
    of a job has those that the user wrote into its template.

    Args:
        meta: of the pod.
        kinds: names of the job kinds.
        kueue: whether Kueue's keys count too.
    """
    labels = meta.labels
    if not labels or lenient(labels, keys.QUEUE_NAME, kueue) is None or keys.KIND_LABEL in labels:
        return False
    if meta.annotations is None or meta.annotations.submitted_by is None:
        return False
    return not any(one.controller and one.kind in kinds for one in meta.owner_references or ())


def pod_reader(
    labels: Sequence[str], kinds: Container[str], *, kueue: bool = True
) -> Callable[[Bytes], PodRecord]:
    """A function that reads a pod, with its request if it is a workload or a part of one.

    Args:
        labels: see :func:`read_pod`.
        kinds: names of the job kinds.
        kueue: whether Kueue's keys count too.
    """
    decode = msgspec.json.Decoder(WirePod).decode
    decode_member = msgspec.json.Decoder(WireMember).decode

    def read(raw: Bytes) -> PodRecord:
        wire = decode(raw)
        record = read_pod(wire, labels)
        if not takes(wire.metadata, kinds, kueue=kueue):
            return record
        member = read_member(decode_member(raw), kueue=kueue)
        podset = next((each.name for each in member.job.podsets), record.podset)
        return replace(record, member=member, podset=podset)

    return read


def read_member(
    document: WireMember, *, kueue: bool = True, strict: bool = False
) -> PodGroupMember:
    """The request of a pod. The record has an error of the user, which is not raised.

    Args:
        document: the decoded pod.
        kueue: whether Kueue's keys count too.
        strict: for files: raise errors that the API server would refuse.

    Raises:
        MalformedError: only when ``strict``.
    """
    meta, spec = document.metadata, document.spec or TemplateSpec()
    gated = any(gate.name == keys.GATE for gate in spec.scheduling_gates or ())
    labels, annotations = meta.labels or {}, meta.annotations
    parent = labels.get(NAME_LABEL, "")
    group = lenient(labels, keys.POD_GROUP, kueue) or ""
    if parent:
        group = group_name(parent, labels.get(GROUP_LABEL, ""))
    total = read_count(lenient(annotations, keys.POD_GROUP_TOTAL, kueue) or "") or None
    # The pods of a set have the annotations of its templates, whose number of pods its record has.
    own = annotations if not parent else None
    # kube-scheduler selected the node of a pod that is released.
    own_spec = spec if gated else msgspec.structs.replace(spec, node_name=None)
    template = Template(TemplateMeta(labels, own), own_spec)

    def ask(_: StatedKeys) -> SpecFields:
        if not parent:
            _check(meta, kueue)
        podset = read_podset("main", total or 1, template, meta.name or "pod", kueue=kueue)
        podset = podset if gated else _unpinned(podset, spec)
        name = labels.get(keys.PODSET_LABEL) or (
            podset.name if parent or not group else role_of(podset)
        )
        return bounded(SpecFields((replace(podset, name=name, count=1),), followed=False))

    status = document.status or PodStatus()
    job = read_job(
        POD,
        meta,
        [template],
        suspended=gated,
        drained=True,
        outcome=_OUTCOMES.get(status.phase or ""),
        own_priority_class=None,
        ask=ask,
        kueue=kueue,
        strict=strict,
    )
    face = PodFace(job.name, job.uid, job.version)
    succeeds = spec.restart_policy in ("Never", "OnFailure")
    return PodGroupMember(
        replace(job, of_pods=True, ungated=(), face=face),
        group,
        parent,
        total,
        fast=lenient(annotations, keys.POD_GROUP_FAST, kueue) == "true",
        retriable=bool(group) and lenient(annotations, keys.RETRIABLE, kueue) != "false",
        workload=labels.get(keys.WORKLOAD_LABEL, ""),
        succeeds=succeeds,
        gone=_is_gone(meta, status.phase or "", succeeds=succeeds),
    )


def _is_gone(meta: Meta, phase: str, *, succeeds: bool) -> bool:
    """Whether the pod ended because it is being deleted.

    The kubelet gives a deleted pod a final phase before it removes the pod: ``Succeeded`` if all containers exit with 0, whatever the
    restart policy. A pod that has ended is deleted without a grace period. If a finalizer keeps it, it can have succeeded before.
    """
    if meta.deletion_timestamp is None or phase not in _OUTCOMES:
        return False
    return phase == "Failed" or not succeeds or bool(meta.deletion_grace_period_seconds)


def role_of(podset: PodSet) -> str:
    """The name of the podset of pods with this request in a group: equal for equal requests."""
    request = (
        sorted(podset.shape.requests.items()),
        podset.shape.rules,
        sorted(podset.shape.incidental),
        sorted(podset.limits.items()),
        podset.topology,
        podset.group,
        podset.claims,
        podset.shared_gpus,
        podset.gpu_fraction,
        podset.one_numa_node,
    )
    return f"pods-{blake2b(repr(request).encode(), digest_size=4).hexdigest()}"


def _unpinned(podset: PodSet, spec: TemplateSpec) -> PodSet:
    """The request before queuectl, if it released the pod to a node."""
    pin = pin_in(spec.affinity.node_affinity if spec.affinity else None)
    rules = podset.shape.rules
    if pin is None:
        return podset
    rules = replace(rules, affinity=unpinned(rules.affinity, pin))
    return replace(podset, shape=replace(podset.shape, rules=rules), rules=rules)


def _check(meta: Meta, kueue: bool) -> None:
    """Raise RequestError if the keys of a group are wrong."""
    group = keys.either(meta.labels, keys.POD_GROUP, kueue=kueue)
    total = keys.either(meta.annotations, keys.POD_GROUP_TOTAL, kueue=kueue)
    if group is None:
        return
    if group == "":
        raise RequestError(f"metadata.labels: {keys.POD_GROUP} is empty")
    if total is None:
        raise RequestError(
            f"metadata.annotations: {keys.POD_GROUP_TOTAL} is required for a pod of a group"
        )
    if not read_count(total):
        raise RequestError(
            f"metadata.annotations: {keys.POD_GROUP_TOTAL}: {total!r} is not a number of pods from 1"
        )
    if (read_count(total) or 0) > MOST_PODS:
        raise RequestError(
            f"metadata.annotations: {keys.POD_GROUP_TOTAL}: {total}: a group has at most {MOST_PODS} pods"
        )
    for suffix in (keys.POD_GROUP_FAST, keys.RETRIABLE):
        value = keys.either(meta.annotations, suffix, kueue=kueue)
        if value not in (None, "true", "false"):
            raise RequestError(
                f'metadata.annotations: {suffix}: {value!r} is neither "true" nor "false"'
            )


# ---- patches


def _frame(pod: PodRecord | PodFace) -> dict[str, Any]:
    return {"uid": pod.uid, "resourceVersion": str(pod.version)}


def status_patch(face: PodFace, status: str) -> dict[str, Any]:
    """Write only the status annotation."""
    return {"metadata": {**_frame(face), "annotations": {keys.STATUS_ANNOTATION: status}}}


def notice_patch(pod: PodRecord, deadline: str) -> dict[str, Any]:
    """Give notice that the pod is deleted at ``deadline``."""
    return {"metadata": {**_frame(pod), "annotations": {keys.PREEMPT_REQUESTED: deadline}}}


def queue_patch(pod: PodRecord, queue: str) -> dict[str, Any]:
    """Write another LocalQueue under each key with the current one."""
    assert pod.member is not None
    return {"metadata": {**_frame(pod), "labels": dict.fromkeys(pod.member.job.queue_keys, queue)}}


def withdraw_patch(pod: PodRecord, workload: str, attempt: int) -> dict[str, Any]:
    """From now on, let no write of ``attempt`` release this gated pod."""
    return {"metadata": {**_frame(pod), "labels": _labels(workload, attempt, pod.podset)}}


def released(
    patch: Mapping[str, Any], pod: PodRecord, job: JobRecord, attempt: int
) -> Mapping[str, Any]:
    """The patch that releases a pod to its node, with the labels that the pods of other kinds get from their templates."""
    labels = {**patch["metadata"].get("labels", {}), **_labels(job.uid, attempt, pod.podset)}
    return {
        **patch,
        "metadata": {**patch["metadata"], "labels": labels, "managedFields": NO_FIELD_OWNERS},
    }


def _labels(workload: str, attempt: int, podset: str) -> dict[str, str]:
    return {
        keys.ATTEMPT_LABEL: str(attempt),
        keys.WORKLOAD_LABEL: workload,
        keys.PODSET_LABEL: podset,
    }
