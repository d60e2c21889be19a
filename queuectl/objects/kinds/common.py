"""What all job kinds share: labels and annotations of the job object, conditions, and the frame of a patch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from sys import intern
from types import MappingProxyType
from typing import Any, Final

from queuectl.domain.records import JobRecord, Outcome, Parallelism
from queuectl.domain.workload import PodSet
from queuectl.objects import keys
from queuectl.objects.errors import MalformedError, RequestError
from queuectl.objects.kubernetes.nodes import version_of
from queuectl.objects.kubernetes.pods import NOBODY_OWNS_FIELDS, read_count
from queuectl.objects.kubernetes.wire import Condition, Meta, Template
from queuectl.objects.times import parse_time, time_or_none

LONGEST_WARMUP: Final = 86_400
"""Seconds: a job may ask for so much time in which it leaves its GPUs idle, and no more."""

NO_COUNTS: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SpecFields:
    """What a kind read from its spec; fields as in JobRecord."""

    podsets: tuple[PodSet, ...] = ()
    expected: tuple[tuple[str, int], ...] = ()
    parallelism: Parallelism | None = None
    followed: bool = True


def read_job(
    kind: str,
    meta: Meta,
    templates: Sequence[Template | None],
    conditions: Sequence[Condition],
    *,
    suspended: bool,
    outcome: Outcome | None,
    own_priority_class: str | None,
    ask: Callable[[], SpecFields],
    kueue: bool,
    strict: bool,
) -> JobRecord:
    """Assemble the record of any kind; mistakes found on the way become its ``error``.

    Args:
        kind: of the job.
        meta: its metadata.
        templates: its pod templates, in podset order.
        conditions: its status conditions.
        suspended: as its spec says.
        outcome: as its status says.
        own_priority_class: pod priority class set outside the templates, if the kind has such a field.
        ask: reads the podsets; may raise RequestError.
        kueue: whether Kueue's keys count.
        strict: raise what the API server itself would refuse instead of telling it.

    Raises:
        MalformedError: only when ``strict``.
    """
    error: RequestError | None = None
    asked = SpecFields()
    try:
        asked = ask()
        _check_labels(meta, kueue)
    except RequestError as found:
        if strict and isinstance(found, MalformedError):
            raise
        error = found
    return JobRecord(
        kind=kind,
        namespace=meta.namespace or "default",
        name=meta.name,
        uid=meta.uid,
        version=version_of(meta.resource_version),
        created_at=time_or_none(meta.creation_timestamp) or 0.0,
        queue=lenient(meta.labels, keys.QUEUE_NAME, kueue),
        podsets=asked.podsets,
        priority_class=lenient(meta.labels, keys.PRIORITY_CLASS, kueue),
        pod_priority_class=_pod_priority_class(meta, templates, own_priority_class),
        error=str(error) if error else None,
        unsupported=error is not None and error.unsupported,
        preemptible=_says_yes(meta, keys.PREEMPTIBLE),
        suspended=suspended,
        drained=holds(conditions, "Suspended"),
        attempt=max((_attempt(template) for template in templates), default=0),
        outcome=outcome,
        utilization=read_utilization(meta.annotations),
        checkpoint_at=read_checkpoint(meta.annotations),
        status=(meta.annotations or {}).get(keys.STATUS_ANNOTATION, ""),
        deleting=meta.deletion_timestamp is not None,
        expected=asked.expected,
        parallelism=asked.parallelism,
        gates=_gates(meta, kueue),
        max_execution=_max_execution(meta, kueue),
        followed=asked.followed,
        preempt_requested=(meta.annotations or {}).get(keys.PREEMPT_REQUESTED, ""),
        preempt_ready=(meta.annotations or {}).get(keys.PREEMPT_READY) == "true",
        ungated=tuple(_ungated(asked.podsets, templates)),
        idle_reclaim=_says_yes(meta, keys.IDLE_RECLAIM),
        warmup=_warmup(meta),
        labels=user_labels(meta.labels),
        submitter=intern((meta.annotations or {}).get(keys.SUBMITTED_BY, "")),
        queue_keys=_queue_keys(meta, kueue),
        applied=any(owner.operation == "Apply" for owner in meta.managed_fields or ()),
    )


def user_labels(labels: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Labels that only people give a meaning to: one of them may name the user (``queuectl.userLabel``)."""
    own = (keys.PREFIX, keys.KUEUE_PREFIX)
    kept = ((key, value) for key, value in (labels or {}).items() if not key.startswith(own))
    return tuple(sorted((intern(key), value) for key, value in kept))


def lenient(mapping: Mapping[str, str] | None, suffix: str, kueue: bool) -> str | None:
    """Our key before Kueue's; that they differ is told by the record's error."""
    ours = keys.either(mapping, suffix, kueue=False)
    if ours is None and kueue and mapping:
        ours = mapping.get(keys.KUEUE_PREFIX + suffix)
    return ours or None


def _queue_keys(meta: Meta, kueue: bool) -> tuple[str, ...]:
    """Labels that name its queue."""
    known = (keys.QUEUE_LABEL, keys.KUEUE_PREFIX + keys.QUEUE_NAME)
    return tuple(key for key in known[: 1 + kueue] if key in (meta.labels or {}))


def _check_labels(meta: Meta, kueue: bool) -> None:
    for suffix in (keys.QUEUE_NAME, keys.PRIORITY_CLASS):
        if keys.either(meta.labels, suffix, kueue=kueue) == "":
            raise RequestError(f"metadata.labels: {suffix} is empty")
    for suffix in (keys.PREEMPTIBLE, keys.IDLE_RECLAIM):
        said = keys.either(meta.annotations, suffix, kueue=False)
        if said not in (None, "true", "false"):
            raise RequestError(
                f'metadata.annotations: {keys.PREFIX}{suffix}: {said!r} is neither "true" nor "false"'
            )
    warmup = keys.either(meta.annotations, keys.WARMUP, kueue=False)
    if warmup is not None and _warmup(meta) is None:
        raise RequestError(
            f"metadata.annotations: {keys.PREFIX}{keys.WARMUP}: {warmup!r} is not a number of seconds up to "
            f"{LONGEST_WARMUP}"
        )
    keys.either(meta.annotations, keys.ADMISSION_GATED_BY, kueue=kueue)
    limit = keys.either(meta.labels, keys.MAX_EXECUTION, kueue=kueue)
    if limit is not None and not read_count(limit):
        raise RequestError(
            f"metadata.labels: {keys.MAX_EXECUTION}: {limit!r} is not a number of seconds from 1"
        )
    if keys.either(meta.annotations, keys.ELASTIC_JOB, kueue=kueue) == "true":
        raise RequestError(
            f"metadata.annotations: {keys.ELASTIC_JOB}: elastic jobs are not supported yet",
            unsupported=True,
        )


def _says_yes(meta: Meta, suffix: str) -> bool:
    """Unless it says no; what is neither is told by the record's error."""
    return lenient(meta.annotations, suffix, kueue=False) != "false"


def _warmup(meta: Meta) -> float | None:
    """Seconds; what cannot be read is told by the record's error and changes nothing."""
    seconds = read_count(lenient(meta.annotations, keys.WARMUP, kueue=False) or "")
    return float(seconds) if seconds is not None and seconds <= LONGEST_WARMUP else None


def _gates(meta: Meta, kueue: bool) -> tuple[str, ...]:
    """Under either key: while the two differ, both hold it."""
    annotations = meta.annotations or {}
    prefixes = (keys.PREFIX, keys.KUEUE_PREFIX) if kueue else (keys.PREFIX,)
    listed = (annotations.get(prefix + keys.ADMISSION_GATED_BY, "") for prefix in prefixes)
    names = (name.strip() for text in listed for name in text.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def _max_execution(meta: Meta, kueue: bool) -> float | None:
    """Seconds; what cannot be read is told by the record's error and limits nothing."""
    seconds = read_count(lenient(meta.labels, keys.MAX_EXECUTION, kueue) or "")
    return float(seconds) if seconds else None


def _attempt(template: Template | None) -> int:
    labels = template.metadata.labels if template and template.metadata else None
    return read_count((labels or {}).get(keys.ATTEMPT_LABEL, "")) or 0


def _ungated(
    podsets: Sequence[PodSet], templates: Sequence[Template | None]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Podsets whose template lacks our gate, with their other gates. Kueue's are not counted: nobody would lift them."""
    for podset, template in zip(podsets, templates, strict=False):
        spec = template.spec if template is not None else None
        gates = [gate.name for gate in (spec.scheduling_gates if spec is not None else None) or ()]
        if keys.GATE not in gates:
            yield podset.name, tuple(g for g in gates if not g.startswith(keys.KUEUE_PREFIX))


def _pod_priority_class(
    meta: Meta, templates: Iterable[Template | None], own: str | None
) -> str | None:
    """The user's own: the annotation where the admission policy moved it, else the first that is not ours."""
    moved = (meta.annotations or {}).get(keys.ORIGINAL_PRIORITY_CLASS)
    named = [t.spec.priority_class_name for t in templates if t is not None and t.spec is not None]
    for name in (moved, own, *named):
        if name and name != keys.POD_PRIORITY_CLASS:
            return name
    return None


def read_utilization(annotations: Mapping[str, str] | None) -> float | None:
    """0..1 from the annotation. Anything unreadable is unknown, never idle (invariant I5)."""
    text = (annotations or {}).get(keys.PREFIX + keys.UTILIZATION)
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and 0.0 <= value <= 1.0 else None


def read_checkpoint(annotations: Mapping[str, str] | None) -> float | None:
    """Unix seconds of the last declared checkpoint, None if absent or unreadable."""
    text = (annotations or {}).get(keys.PREFIX + keys.CHECKPOINT)
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None


def read_idle_since(annotations: Mapping[str, str] | None) -> float | None:
    """Unix seconds since when it leaves its GPUs idle; None if absent, unreadable, or not to be reclaimed (invariant I5).

    For offline planning alone. In a cluster only what was measured counts, and nothing written on a job.
    """
    said = annotations or {}
    if said.get(keys.PREFIX + keys.IDLE_RECLAIM) == "false":
        return None
    return time_or_none(said.get(keys.PREFIX + keys.IDLE_SINCE))


def read_evictions(annotations: Mapping[str, str] | None) -> tuple[float, ...]:
    """Unix seconds at which it was preempted or moved, as the annotation lists them; unreadable ones are passed over."""
    listed = (annotations or {}).get(keys.PREFIX + keys.EVICTIONS, "").split(",")
    times = (time_or_none(text.strip()) for text in listed)
    return tuple(at for at in times if at is not None)


def holds(conditions: Iterable[Condition], kind: str) -> bool:
    """Whether the condition is True."""
    return any(c.type == kind and c.status == "True" for c in conditions)


# ---- patches


def patch_frame(record: JobRecord, status: str) -> dict[str, Any]:
    """Precondition and status annotation, common to all patches."""
    metadata: dict[str, Any] = {
        "uid": record.uid,
        "resourceVersion": str(record.version),
        "annotations": {keys.STATUS_ANNOTATION: status},
    }
    return {"metadata": metadata}


def relabelled(record: JobRecord, status: str, queue: str) -> dict[str, Any]:
    """Only name another LocalQueue; a job that names none does it by our key."""
    patch = patch_frame(record, status)
    patch["metadata"]["labels"] = dict.fromkeys(record.queue_keys or (keys.QUEUE_LABEL,), queue)
    return patch


def notice(record: JobRecord, status: str, deadline: str) -> dict[str, Any]:
    """Only tell the job that it will be suspended at this time (RFC 3339)."""
    patch = patch_frame(record, status)
    patch["metadata"]["annotations"][keys.PREEMPT_REQUESTED] = deadline
    return patch


def attempt_frame(record: JobRecord, status: str) -> dict[str, Any]:
    """As :func:`patch_frame`, where an attempt begins or ends: a notice given to it, and its answer, are taken back."""
    patch = patch_frame(record, status)
    if record.preempt_requested:
        patch["metadata"]["annotations"][keys.PREEMPT_REQUESTED] = None
    if record.preempt_ready:
        patch["metadata"]["annotations"][keys.PREEMPT_READY] = None
    return patch


def start_frame(record: JobRecord, status: str) -> dict[str, Any]:
    """As :func:`attempt_frame`; and unless the job was server-side applied, nobody owns its fields any more."""
    patch = attempt_frame(record, status)
    if not record.applied:
        patch["metadata"]["managedFields"] = NOBODY_OWNS_FIELDS
    return patch


def template_patch(record: JobRecord, attempt: int, podset: str) -> dict[str, Any]:
    """Labels that make each pod of a template say to which attempt and podset it belongs."""
    labels = {
        keys.ATTEMPT_LABEL: str(attempt),
        keys.WORKLOAD_LABEL: record.uid,
        keys.PODSET_LABEL: podset,
    }
    return {"metadata": {"labels": labels}}


def starting_template(record: JobRecord, attempt: int, podset: str) -> dict[str, Any]:
    """As :func:`template_patch`, with the gate that the admission policy would have put there if it is missing."""
    patch = template_patch(record, attempt, podset)
    gates = dict(record.ungated).get(podset)
    if gates is not None:
        patch["spec"] = {"schedulingGates": [{"name": name} for name in (*gates, keys.GATE)]}
    return patch


def withdraws(record: JobRecord, attempt: int) -> bool:
    """Whether stopping ``attempt`` must mark the templates: the job never left suspension with it.

    A start that may still be on its way then fails on the resourceVersion, and the number is used up. A job that runs
    keeps its templates: they are immutable then, and suspension alone ends the attempt.
    """
    return record.suspended and record.attempt < attempt
