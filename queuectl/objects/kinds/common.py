"""What all job kinds share: labels and annotations of the job object, conditions, and the frame of a patch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from queuectl.domain.records import JobRecord, Outcome, Parallelism
from queuectl.domain.workload import PodSet
from queuectl.objects import keys
from queuectl.objects.errors import MalformedError, RequestError
from queuectl.objects.nodes import version_of
from queuectl.objects.pods import read_count
from queuectl.objects.times import parse_time, time_or_none
from queuectl.objects.wire import Condition, Meta, Template

NO_COUNTS: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Asked:
    """What a kind read from its spec; fields as in JobRecord."""

    podsets: tuple[PodSet, ...] = ()
    expected: tuple[tuple[str, int], ...] = ()
    parallelism: Parallelism | None = None


def read_job(
    kind: str,
    meta: Meta,
    templates: Sequence[Template | None],
    conditions: Sequence[Condition],
    *,
    suspended: bool,
    outcome: Outcome | None,
    own_priority_class: str | None,
    ask: Callable[[], Asked],
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
    asked = Asked()
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
        preemptible=lenient(meta.annotations, keys.PREEMPTIBLE, kueue=False) != "false",
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
    )


def lenient(mapping: Mapping[str, str] | None, suffix: str, kueue: bool) -> str | None:
    """Our key before Kueue's; that they differ is told by the record's error."""
    ours = keys.either(mapping, suffix, kueue=False)
    if ours is None and kueue and mapping:
        ours = mapping.get(keys.KUEUE_PREFIX + suffix)
    return ours or None


def _check_labels(meta: Meta, kueue: bool) -> None:
    for suffix in (keys.QUEUE_NAME, keys.PRIORITY_CLASS):
        if keys.either(meta.labels, suffix, kueue=kueue) == "":
            raise RequestError(f"metadata.labels: {suffix} is empty")
    preemptible = keys.either(meta.annotations, keys.PREEMPTIBLE, kueue=False)
    if preemptible not in (None, "true", "false"):
        raise RequestError(
            f'metadata.annotations: {keys.PREFIX}{keys.PREEMPTIBLE}: {preemptible!r} is neither "true" nor "false"'
        )
    if gates := keys.either(meta.annotations, keys.ADMISSION_GATED_BY, kueue=kueue):
        raise RequestError(
            f"metadata.annotations: {keys.ADMISSION_GATED_BY}={gates!r}: admission gates are not supported yet",
            unsupported=True,
        )
    if keys.either(meta.annotations, keys.ELASTIC_JOB, kueue=kueue) == "true":
        raise RequestError(
            f"metadata.annotations: {keys.ELASTIC_JOB}: elastic jobs are not supported yet",
            unsupported=True,
        )


def _attempt(template: Template | None) -> int:
    labels = template.metadata.labels if template and template.metadata else None
    return read_count((labels or {}).get(keys.ATTEMPT_LABEL, "")) or 0


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


def template_patch(record: JobRecord, attempt: int, podset: str) -> dict[str, Any]:
    """Labels that make each pod of a template say to which attempt and podset it belongs."""
    labels = {
        keys.ATTEMPT_LABEL: str(attempt),
        keys.WORKLOAD_LABEL: record.uid,
        keys.PODSET_LABEL: podset,
    }
    return {"metadata": {"labels": labels}}


def withdraws(record: JobRecord, attempt: int) -> bool:
    """Whether stopping ``attempt`` must mark the templates: the job never left suspension with it.

    A start that may still be on its way then fails on the resourceVersion, and the number is used up. A job that runs
    keeps its templates: they are immutable then, and suspension alone ends the attempt.
    """
    return record.suspended and record.attempt < attempt
