"""Code for all job kinds: labels and annotations of the job object, conditions, the frame of a patch, and what controllers add."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from sys import intern
from types import MappingProxyType
from typing import Any, Final

from queuectl.domain.gates import MOST_DEPENDENCIES, Dependency, distinct_gates
from queuectl.domain.jobs import ArrayStatus, JobOutcome, JobRecord, Parallelism
from queuectl.domain.request_rules import ContainerNeeds, PodNeeds, incidental, limited, requested
from queuectl.domain.words import shortened
from queuectl.domain.workload import PodSet
from queuectl.objects import keys
from queuectl.objects.errors import MalformedError, RequestError
from queuectl.objects.kubernetes.nodes import version_of
from queuectl.objects.kubernetes.pods import NO_FIELD_OWNERS, read_count
from queuectl.objects.kubernetes.templates import too_much
from queuectl.objects.kubernetes.wire import Condition, Meta, Template
from queuectl.objects.names import is_gate
from queuectl.objects.times import parse_time, time_or_none

# ---- Labels, annotations and conditions of a job

LONGEST_WARMUP: Final = 86_400
"""The longest warm-up, in seconds, that a job can request."""

MOST_GATES: Final = 100
"""The most names of admission gates in the annotations of a job."""

LONGEST_ERROR: Final = 1_000
"""Characters of an error that are kept: it can quote a value of 256 KiB, and becomes an annotation."""

NO_COUNTS: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SpecFields:
    """The part of a JobRecord that a kind parses from its spec."""

    podsets: tuple[PodSet, ...] = ()
    expected: tuple[tuple[str, int], ...] = ()
    parallelism: Parallelism | None = None
    followed: bool = True
    restarts: bool = False
    final: bool = False
    ranks: tuple[tuple[str, int], ...] = ()
    first_ranks: tuple[tuple[str, int], ...] = ()
    kept_podsets: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    unborn: tuple[str, ...] = ()
    list_indexes: tuple[tuple[str, int], ...] = ()
    missing: tuple[str, ...] = ()
    array: ArrayStatus | None = None
    ended: frozenset[int] = frozenset()


def read_job(
    kind: str,
    meta: Meta,
    templates: Sequence[Template | None],
    *,
    suspended: bool,
    drained: bool,
    outcome: JobOutcome | None,
    own_priority_class: str | None,
    ask: Callable[[], SpecFields],
    kueue: bool,
    strict: bool,
) -> JobRecord:
    """Assemble the record of any kind. Errors of the user become its ``error``.

    Args:
        kind: of the job.
        meta: its metadata.
        templates: its pod templates, in podset order.
        suspended: from its spec.
        drained: from its status: its controller stops its pods, or has stopped them.
        outcome: from its status.
        own_priority_class: pod priority class set outside the templates, if the kind has such a field.
        ask: parses the podsets; can raise RequestError.
        kueue: whether Kueue's keys count.
        strict: raise errors that the API server would refuse, instead of recording them.

    Raises:
        MalformedError: only when ``strict``.
    """
    error: RequestError | None = None
    fields = SpecFields()
    try:
        fields = _bounded(ask())
        _check_labels(kind, meta, kueue)
        _check_elastic(kind, meta, fields, kueue)
    except RequestError as raised:
        if strict and isinstance(raised, MalformedError):
            raise
        error = raised
    return JobRecord(
        kind=kind,
        namespace=meta.namespace or "default",
        name=meta.name,
        uid=meta.uid,
        version=version_of(meta.resource_version),
        created_at=time_or_none(meta.creation_timestamp) or 0.0,
        queue=None if _is_child(kind, templates) else lenient(meta.labels, keys.QUEUE_NAME, kueue),
        podsets=fields.podsets,
        priority_class=lenient(meta.labels, keys.PRIORITY_CLASS, kueue),
        pod_priority_class=_pod_priority_class(meta, templates, own_priority_class),
        error=shortened(str(error), LONGEST_ERROR) if error else None,
        unsupported=error is not None and error.unsupported,
        preemptible=_is_true(meta, keys.PREEMPTIBLE),
        suspended=suspended,
        drained=drained,
        attempt=max((attempt_of(template) for template in templates), default=0),
        outcome=outcome,
        utilization=read_utilization(meta.annotations),
        checkpoint_at=read_checkpoint(meta.annotations),
        status=(meta.annotations or {}).get(keys.STATUS_ANNOTATION, ""),
        deleting=meta.deletion_timestamp is not None,
        expected=fields.expected,
        parallelism=fields.parallelism,
        array=fields.array,
        ended=fields.ended,
        gates=_gates(meta, kueue),
        max_execution=_max_execution(meta, kueue),
        expected_duration=read_expected_duration(meta),
        followed=fields.followed,
        restarts=fields.restarts,
        final=fields.final,
        preempt_requested=(meta.annotations or {}).get(keys.PREEMPT_REQUESTED, ""),
        preempt_ready=(meta.annotations or {}).get(keys.PREEMPT_READY) == "true",
        ungated=tuple(_ungated(fields.podsets, templates)),
        idle_reclaim=_is_true(meta, keys.IDLE_RECLAIM),
        warmup=_warmup(meta),
        labels=user_labels(meta.labels),
        submitter=intern((meta.annotations or {}).get(keys.SUBMITTED_BY, "")),
        queue_keys=_queue_keys(meta, kueue),
        ranks=fields.ranks,
        first_ranks=fields.first_ranks,
        kept_podsets=fields.kept_podsets,
        late=fields.late,
        unborn=fields.unborn,
        list_indexes=fields.list_indexes,
        missing=fields.missing,
        parent=controller_of(meta, keys.PARENT_KINDS),
        applied=any(owner.operation == "Apply" for owner in meta.managed_fields or ()),
    )


def _bounded(fields: SpecFields) -> SpecFields:
    if excess := too_much(fields.podsets):
        raise RequestError(excess)
    return fields


def controller_of(meta: Meta, kinds: Collection[str]) -> str:
    """The uid of the object of one of these kinds whose controller made it; empty without one."""
    owners = (one for one in meta.owner_references or () if one.controller)
    return next((one.uid for one in owners if one.kind in kinds), "")


def user_labels(labels: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Labels without a meaning for queuectl. One of them can name the user (``queuectl.userLabel``)."""
    own = (keys.PREFIX, keys.KUEUE_PREFIX)
    kept = ((key, value) for key, value in (labels or {}).items() if not key.startswith(own))
    return tuple(sorted((intern(key), value) for key, value in kept))


def lenient(mapping: Mapping[str, str] | None, suffix: str, kueue: bool) -> str | None:
    """The value of queuectl's key, else of Kueue's. If they differ, the record has an error."""
    ours = keys.either(mapping, suffix, kueue=False)
    if ours is None and kueue and mapping:
        ours = mapping.get(keys.KUEUE_PREFIX + suffix)
    return ours or None


def _queue_keys(meta: Meta, kueue: bool) -> tuple[str, ...]:
    """The labels with its queue."""
    return tuple(key for key in keys.QUEUE_KEYS[: 1 + kueue] if key in (meta.labels or {}))


def _check_labels(kind: str, meta: Meta, kueue: bool) -> None:
    for suffix in (keys.QUEUE_NAME, keys.PRIORITY_CLASS):
        if keys.either(meta.labels, suffix, kueue=kueue) == "":
            raise RequestError(f"metadata.labels: {suffix} is empty")
    for suffix in (keys.PREEMPTIBLE, keys.IDLE_RECLAIM, keys.ARRAY):
        value = keys.either(meta.annotations, suffix, kueue=False)
        if value not in (None, "true", "false"):
            raise RequestError(
                f'metadata.annotations: {keys.PREFIX}{suffix}: {value!r} is neither "true" nor "false"'
            )
    if keys.either(meta.annotations, keys.ARRAY, kueue=False) == "true" and kind != "Job":
        raise RequestError(
            f"metadata.annotations: {keys.PREFIX}{keys.ARRAY}: only a Job can be an array, not a {kind}",
            unsupported=True,
        )
    warmup = keys.either(meta.annotations, keys.WARMUP, kueue=False)
    if warmup is not None and _warmup(meta) is None:
        raise RequestError(
            f"metadata.annotations: {keys.PREFIX}{keys.WARMUP}: {warmup!r} is not a number of seconds up to "
            f"{LONGEST_WARMUP}"
        )
    _check_gates(meta, kueue)
    if wrong := [one for one in _after(meta) if isinstance(one, RequestError)]:
        raise wrong[0]
    limit = keys.either(meta.labels, keys.MAX_EXECUTION, kueue=kueue)
    if limit is not None and not read_count(limit):
        raise RequestError(
            f"metadata.labels: {keys.MAX_EXECUTION}: {limit!r} is not a number of seconds from 1"
        )
    _check_expected_duration(meta)


def is_elastic(meta: Meta, kueue: bool) -> bool:
    """Whether its pods above a least number start one by one."""
    return keys.either(meta.annotations, keys.ELASTIC_JOB, kueue=kueue) == "true"


def base_count(meta: Meta) -> int | None:
    """The number of pods with which the gang of an elastic job started; None if the object states none."""
    return read_count((meta.annotations or {}).get(keys.BASE_COUNT, ""))


def _check_elastic(kind: str, meta: Meta, fields: SpecFields, kueue: bool) -> None:
    value = keys.either(meta.annotations, keys.ELASTIC_JOB, kueue=kueue)
    if value not in (None, "true", "false"):
        raise RequestError(
            f'metadata.annotations: {keys.ELASTIC_JOB}: {value!r} is neither "true" nor "false"'
        )
    if value == "true" and fields.array is None:
        raise RequestError(
            f"metadata.annotations: {keys.ELASTIC_JOB}: a {kind} cannot be elastic",
            unsupported=True,
        )


def _is_true(meta: Meta, suffix: str) -> bool:
    """False for "false". For a value that is no Boolean, the record has an error."""
    return lenient(meta.annotations, suffix, kueue=False) != "false"


def _warmup(meta: Meta) -> float | None:
    """Seconds. For an invalid value, the record has an error, and the value has no effect."""
    seconds = read_count(lenient(meta.annotations, keys.WARMUP, kueue=False) or "")
    return float(seconds) if seconds is not None and seconds <= LONGEST_WARMUP else None


def _gates(meta: Meta, kueue: bool) -> tuple[str, ...]:
    """The gates under both keys, and those of its dependencies. While the keys differ, all of them hold the job.

    If an admission gate is wrong, the record has an error, which holds the job, too.
    """
    named = [name for _, name in _admission_gates(meta, kueue)]
    valid = len(named) <= MOST_GATES and all(map(is_gate, named))
    jobs = (one.gate for one in _after(meta) if isinstance(one, Dependency))
    return distinct_gates((*(named if valid else ()), *jobs))


def _admission_gates(meta: Meta, kueue: bool) -> Iterator[tuple[str, str]]:
    """The keys of annotations and the names in their values, as written."""
    for prefix in (keys.PREFIX, keys.KUEUE_PREFIX)[: 1 + kueue]:
        key = prefix + keys.ADMISSION_GATED_BY
        names = map(str.strip, (meta.annotations or {}).get(key, "").split(","))
        yield from ((key, name) for name in names if name)


def _check_gates(meta: Meta, kueue: bool) -> None:
    keys.either(meta.annotations, keys.ADMISSION_GATED_BY, kueue=kueue)
    for number, (key, name) in enumerate(_admission_gates(meta, kueue)):
        if not is_gate(name):
            raise RequestError(
                f"metadata.annotations: {key}: {shortened(repr(name))} is not the name of an admission gate, such as "
                "example.com/data"
            )
        if number == MOST_GATES:
            raise RequestError(
                f"metadata.annotations: {key}: a job can have at most {MOST_GATES} admission gates"
            )


def _after(meta: Meta) -> Iterator[Dependency | RequestError]:
    """The jobs that must end first, as far as their number is allowed. For an invalid part, its error."""
    key = keys.PREFIX + keys.AFTER
    value = (meta.annotations or {}).get(key, "")
    listed = value.count(",") + 1
    if listed > MOST_DEPENDENCIES:
        text = f"{listed} jobs are listed; a job can depend on {MOST_DEPENDENCIES} at most"
        yield RequestError(f"metadata.annotations: {key}: {text}")
    for part in value.split(",", MOST_DEPENDENCIES)[:MOST_DEPENDENCIES]:
        text = part.strip()
        try:
            if text:
                yield Dependency.parse(text)
        except ValueError as error:
            yield RequestError(f"metadata.annotations: {key}: {text!r} {error}")


def _max_execution(meta: Meta, kueue: bool) -> float | None:
    """Seconds. For an invalid value, the record has an error, and there is no limit."""
    seconds = read_count(lenient(meta.labels, keys.MAX_EXECUTION, kueue) or "")
    return float(seconds) if seconds else None


def read_expected_duration(meta: Meta) -> float | None:
    """Seconds, from the annotation or else the label. For an invalid value, the record has an error, and none is expected."""
    stated = (lenient(m, keys.EXPECTED_DURATION, False) for m in (meta.annotations, meta.labels))
    seconds = read_count(next(filter(None, stated), ""))
    return float(seconds) if seconds else None


def _check_expected_duration(meta: Meta) -> None:
    key = keys.PREFIX + keys.EXPECTED_DURATION
    places = {"annotations": meta.annotations or {}, "labels": meta.labels or {}}
    stated = {place: values[key] for place, values in places.items() if key in values}
    for place, text in stated.items():
        if not read_count(text):
            raise RequestError(
                f"metadata.{place}: {key}: {text!r} is not a number of seconds from 1"
            )
    if len(set(stated.values())) > 1:
        raise RequestError(
            f"{key} is {stated['annotations']!r} as an annotation but {stated['labels']!r} as a label: keep one of them"
        )


def attempt_of(template: Template | None) -> int:
    """The number of the last attempt that a template started; 0 before the first one."""
    labels = template.metadata.labels if template and template.metadata else None
    return read_count((labels or {}).get(keys.ATTEMPT_LABEL, "")) or 0


def _is_child(kind: str, templates: Iterable[Template | None]) -> bool:
    """Whether the controller of another job created it. It can have a copy of the label of the queue."""
    found = (t.metadata.labels or {} for t in templates if t is not None and t.metadata)
    return any(labels.get(keys.KIND_LABEL, kind) != kind for labels in found)


def _ungated(
    podsets: Sequence[PodSet], templates: Sequence[Template | None]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Podsets whose template lacks queuectl's gate, with their other gates, except Kueue's: no controller would remove it."""
    for podset, template in zip(podsets, templates, strict=False):
        spec = template.spec if template is not None else None
        gates = [gate.name for gate in (spec.scheduling_gates if spec is not None else None) or ()]
        if keys.GATE not in gates:
            yield podset.name, tuple(g for g in gates if not g.startswith(keys.KUEUE_PREFIX))


def _pod_priority_class(
    meta: Meta, templates: Iterable[Template | None], own: str | None
) -> str | None:
    """The PriorityClass of the user: the annotation of the admission policy, else the first class that is not queuectl's."""
    moved = (meta.annotations or {}).get(keys.ORIGINAL_PRIORITY_CLASS)
    named = [t.spec.priority_class_name for t in templates if t is not None and t.spec is not None]
    for name in (moved, own, *named):
        if name and name != keys.POD_PRIORITY_CLASS:
            return name
    return None


def read_utilization(annotations: Mapping[str, str] | None) -> float | None:
    """0..1 from the annotation. An invalid value is unknown, never idle (invariant I5)."""
    text = (annotations or {}).get(keys.PREFIX + keys.UTILIZATION)
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and 0.0 <= value <= 1.0 else None


def read_checkpoint(annotations: Mapping[str, str] | None) -> float | None:
    """Unix seconds of the last declared checkpoint, None if absent or invalid."""
    text = (annotations or {}).get(keys.PREFIX + keys.CHECKPOINT)
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None


def read_idle_since(annotations: Mapping[str, str] | None) -> float | None:
    """Unix seconds since when its GPUs are idle; None if absent, invalid, or exempt from reclaim (invariant I5).

    Only for planning from files. In a cluster, only measurements count.
    """
    known = annotations or {}
    if known.get(keys.PREFIX + keys.IDLE_RECLAIM) == "false":
        return None
    return time_or_none(known.get(keys.PREFIX + keys.IDLE_SINCE))


def read_evictions(annotations: Mapping[str, str] | None) -> tuple[float, ...]:
    """Unix seconds of its preemptions and migrations, from the annotation. Invalid times are ignored."""
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


def relabeled(record: JobRecord, status: str, queue: str) -> dict[str, Any]:
    """Write only another LocalQueue. For a job without a queue label, use queuectl's key."""
    patch = patch_frame(record, status)
    patch["metadata"]["labels"] = dict.fromkeys(record.queue_keys or (keys.QUEUE_LABEL,), queue)
    return patch


def notice(record: JobRecord, status: str, deadline: str) -> dict[str, Any]:
    """Write only the notice that the job is suspended at this time (RFC 3339)."""
    patch = patch_frame(record, status)
    patch["metadata"]["annotations"][keys.PREEMPT_REQUESTED] = deadline
    return patch


def attempt_frame(record: JobRecord, status: str) -> dict[str, Any]:
    """As :func:`patch_frame`, for the start or end of an attempt: it removes the notice and the answer of the job."""
    patch = patch_frame(record, status)
    if record.preempt_requested:
        patch["metadata"]["annotations"][keys.PREEMPT_REQUESTED] = None
    if record.preempt_ready:
        patch["metadata"]["annotations"][keys.PREEMPT_READY] = None
    if record.array is not None and record.array.noted:
        patch["metadata"]["annotations"][keys.BASE_COUNT] = None
    return patch


def start_frame(record: JobRecord, status: str) -> dict[str, Any]:
    """As :func:`attempt_frame`. If the job was not server-side applied, it also ends the tracking of field owners.

    It states the number of pods in the gang of an elastic job.
    """
    patch = attempt_frame(record, status)
    if record.array is not None and record.array.base:
        patch["metadata"]["annotations"][keys.BASE_COUNT] = str(record.array.base)
    if not record.applied:
        patch["metadata"]["managedFields"] = NO_FIELD_OWNERS
    return patch


def template_patch(record: JobRecord, attempt: int, podset: str) -> dict[str, Any]:
    """Labels with attempt and podset, for each pod of a template."""
    labels = {
        keys.ATTEMPT_LABEL: str(attempt),
        keys.WORKLOAD_LABEL: record.uid,
        keys.PODSET_LABEL: podset,
    }
    return {"metadata": {"labels": labels}}


def starting_template(record: JobRecord, attempt: int, podset: str) -> dict[str, Any]:
    """As :func:`template_patch`, and with the gate of the admission policy if it is missing."""
    patch = template_patch(record, attempt, podset)
    gates = dict(record.ungated).get(podset)
    if gates is not None:
        patch["spec"] = {"schedulingGates": [{"name": name} for name in (*gates, keys.GATE)]}
    return patch


def withdraws(record: JobRecord, attempt: int) -> bool:
    """Whether stopping ``attempt`` must mark the templates: the job never left suspension with it.

    A concurrent start then fails because of the resourceVersion, and the number of the attempt is not used again. A running job
    keeps its templates, which are immutable: its suspension ends the attempt.
    """
    return record.suspended and record.attempt < attempt


# ---- Containers that a controller adds


def with_init(podset: PodSet, container: ContainerNeeds) -> PodSet:
    """The podset with one more init container, after those of its template."""
    assert podset.needs is not None
    return _with(podset, replace(podset.needs, init=(*podset.needs.init, container)))


def with_container(podset: PodSet, container: ContainerNeeds) -> PodSet:
    """The podset with one more container, after those of its template."""
    assert podset.needs is not None
    return _with(podset, replace(podset.needs, containers=(*podset.needs.containers, container)))


def with_default(podset: PodSet, container: ContainerNeeds) -> PodSet:
    """The podset with this container alone if it has no template, or if admission wrote its template; otherwise as it is."""
    assert podset.needs is not None
    given = tuple(replace(one, name="") for one in podset.needs.containers)
    if given not in ((), (replace(container, incidental=False),)):
        return podset
    return _with(podset, replace(podset.needs, containers=(container,)))


def _with(podset: PodSet, needs: PodNeeds) -> PodSet:
    shape = replace(podset.shape, requests=requested(needs), incidental=incidental(needs))
    return replace(podset, shape=shape, limits=limited(needs), needs=needs)
