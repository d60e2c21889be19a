"""Code for all job kinds: labels and annotations of the job object, conditions, the frame of a patch, and what controllers add."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from sys import intern, maxsize
from types import MappingProxyType
from typing import Any, Final

from queuectl.domain.gates import INVALID, MOST_DEPENDENCIES, Dependency, distinct_gates
from queuectl.domain.jobs import ArrayStatus, JobOutcome, JobRecord, Parallelism
from queuectl.domain.request_rules import ContainerNeeds, PodNeeds, incidental, limited, requested
from queuectl.domain.words import comma_separated, shortened
from queuectl.domain.workload import PodSet
from queuectl.objects import keys
from queuectl.objects.errors import MalformedError, RequestError
from queuectl.objects.kinds.description import JOB_SET
from queuectl.objects.kinds.notify import read_notify
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

_FROM_ONE: Final = range(1, maxsize)

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
    counts_old_pods: bool = False
    late: tuple[str, ...] = ()
    unborn: tuple[str, ...] = ()
    list_indexes: tuple[tuple[str, int], ...] = ()
    missing: tuple[str, ...] = ()
    elastic: bool = False
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
    ask: Callable[[StatedKeys], SpecFields],
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
        ask: parses the podsets, as far as they are :func:`bounded`; can raise RequestError.
        kueue: whether Kueue's keys count.
        strict: raise errors that the API server would refuse, instead of recording them.

    Raises:
        MalformedError: only when ``strict``.
    """
    fields, stated = SpecFields(), StatedKeys(kind, meta, kueue)
    try:
        fields = ask(stated)
        error = stated.error
        if error is None and stated.elastic and fields.array is None:
            text = f"{keys.ELASTIC_JOB}: a {kind} cannot be elastic"
            error = RequestError(f"metadata.annotations: {text}", unsupported=True)
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
        queue=None if _is_child(kind, templates) else stated.queue,
        podsets=fields.podsets,
        priority_class=stated.priority_class,
        pod_priority_class=_pod_priority_class(meta, templates, own_priority_class),
        error=shortened(str(error), LONGEST_ERROR) if error else None,
        unsupported=error is not None and error.unsupported,
        preemptible=stated.preemptible,
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
        gates=stated.gates,
        max_execution=stated.max_execution,
        expected_duration=stated.expected_duration,
        followed=fields.followed,
        restarts=fields.restarts,
        final=fields.final,
        preempt_requested=(meta.annotations or {}).get(keys.PREEMPT_REQUESTED, ""),
        preempt_ready=(meta.annotations or {}).get(keys.PREEMPT_READY) == "true",
        ungated=tuple(_ungated(fields.podsets, templates)),
        idle_reclaim=stated.idle_reclaim,
        warmup=stated.warmup,
        labels=user_labels(meta.labels),
        notify=read_notify(meta.annotations),
        submitter=intern((meta.annotations or {}).get(keys.SUBMITTED_BY, "")),
        queue_keys=_queue_keys(meta, kueue),
        ranks=fields.ranks,
        first_ranks=fields.first_ranks,
        kept_podsets=fields.kept_podsets,
        counts_old_pods=fields.counts_old_pods,
        late=fields.late,
        unborn=fields.unborn,
        list_indexes=fields.list_indexes,
        missing=fields.missing,
        parent=controller_of(meta, keys.PARENT_KINDS) if kind == JOB_SET.kind else "",
        applied=any(owner.operation == "Apply" for owner in meta.managed_fields or ()),
    )


def bounded(fields: SpecFields) -> SpecFields:
    """The request. Raises RequestError if its pods ask for more than amounts can state."""
    if excess := too_much(fields.podsets):
        raise RequestError(excess)
    return fields


def controller_of(meta: Meta, kinds: Collection[str]) -> str:
    """The uid of the object whose controller made it, if that has one of these kinds; otherwise empty."""
    owners = (one for one in meta.owner_references or () if one.controller)
    return next((one.uid for one in owners if one.kind in kinds), "")


def user_labels(labels: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Labels without a meaning for queuectl. One of them can name the user (``queuectl.userLabel``)."""
    own = (keys.PREFIX, keys.KUEUE_PREFIX)
    kept = ((key, value) for key, value in (labels or {}).items() if not key.startswith(own))
    return tuple(sorted((intern(key), value) for key, value in kept))


def lenient(mapping: Mapping[str, str] | None, suffix: str, kueue: bool) -> str | None:
    """The value of queuectl's key, otherwise of Kueue's. If they differ, the record has an error."""
    ours = keys.either(mapping, suffix, kueue=False)
    if ours is None and kueue and mapping:
        ours = mapping.get(keys.KUEUE_PREFIX + suffix)
    return ours or None


def _queue_keys(meta: Meta, kueue: bool) -> tuple[str, ...]:
    """The labels with its queue."""
    return tuple(key for key in keys.QUEUE_KEYS[: 1 + kueue] if key in (meta.labels or {}))


def base_count(meta: Meta) -> int | None:
    """The number of pods with which the gang of an elastic job started; None if the object states none."""
    return read_count((meta.annotations or {}).get(keys.BASE_COUNT, ""))


class StatedKeys:
    """The labels and annotations of a job. Each is decoded once: to its value, and to an error if the value is invalid.

    An invalid value has no effect, except that an invalid gate, and a gate under either key while the keys differ, hold the job.

    Attributes:
        error: the first one; None = all values are valid.
        kueue: whether Kueue's keys count.
        queue, priority_class: names.
        preemptible, idle_reclaim: True unless the job states otherwise.
        array: its indexes are separate gangs.
        warmup, max_execution, expected_duration: seconds.
        gates: the admission gates, and those of the jobs that must end first.
        elastic: its pods above a minimum start one by one.
    """

    def __init__(self, kind: str, meta: Meta, kueue: bool) -> None:
        self.error: RequestError | None = None
        self.kueue = kueue
        self._labels = meta.labels or {}
        self._annotations = meta.annotations or {}
        self.queue = self._name(keys.QUEUE_NAME)
        self.priority_class = self._name(keys.PRIORITY_CLASS)
        self.preemptible = self._boolean(keys.PREEMPTIBLE, default=True)
        self.idle_reclaim = self._boolean(keys.IDLE_RECLAIM, default=True)
        self.array = self._boolean(keys.ARRAY)
        if self.array and kind != "Job":
            text = f"{keys.PREFIX}{keys.ARRAY}: only a Job can be an array, not a {kind}"
            self._refuse(f"metadata.annotations: {text}", unsupported=True)
        self.warmup = self._warmup()
        self.gates = distinct_gates((*self._admission_gates(), *self._dependencies()))
        limit = self._either(self._labels, keys.MAX_EXECUTION)
        self.max_execution = self._seconds(f"labels: {keys.MAX_EXECUTION}", limit)
        self.expected_duration = self._expected_duration()
        stated = self._either(self._annotations, keys.ELASTIC_JOB)
        self.elastic = self._is_true(keys.ELASTIC_JOB, stated)

    def _name(self, suffix: str) -> str | None:
        name = self._either(self._labels, suffix)
        if name == "":
            self._refuse(f"metadata.labels: {suffix} is empty")
        return name or None

    def _boolean(self, suffix: str, *, default: bool = False) -> bool:
        key = keys.PREFIX + suffix
        return self._is_true(key, self._annotations.get(key), default=default)

    def _is_true(self, key: str, text: str | None, *, default: bool = False) -> bool:
        if text not in (None, "true", "false"):
            self._refuse(f'metadata.annotations: {key}: {text!r} is neither "true" nor "false"')
        return text != "false" if default else text == "true"

    def _warmup(self) -> float | None:
        key = keys.PREFIX + keys.WARMUP
        bounds, text = f"up to {LONGEST_WARMUP}", self._annotations.get(key)
        return self._seconds(f"annotations: {key}", text, range(LONGEST_WARMUP + 1), bounds)

    def _expected_duration(self) -> float | None:
        """From the annotation or else the label."""
        key = keys.PREFIX + keys.EXPECTED_DURATION
        annotation, label = self._annotations.get(key), self._labels.get(key)
        seconds = self._seconds(f"annotations: {key}", annotation)
        of_label = self._seconds(f"labels: {key}", label)
        if annotation is not None and label is not None and annotation != label:
            self._refuse(
                f"{key} is {annotation!r} as an annotation but {label!r} as a label: keep one of them"
            )
        return seconds if annotation else of_label

    def _admission_gates(self) -> list[str]:
        """Those under both keys."""
        self._either(self._annotations, keys.ADMISSION_GATED_BY)
        names: list[str] = []
        for prefix in (keys.PREFIX, keys.KUEUE_PREFIX)[: 1 + self.kueue]:
            key = prefix + keys.ADMISSION_GATED_BY
            for name in comma_separated(self._annotations.get(key, "")):
                wrong = ""
                if not is_gate(name):
                    wrong = f"{shortened(repr(name))} is not the name of an admission gate, such as example.com/data"
                elif len(names) == MOST_GATES:
                    wrong = f"a job can have at most {MOST_GATES} admission gates"
                if wrong:
                    self._refuse(f"metadata.annotations: {key}: {wrong}")
                    return [INVALID]
                names.append(name)
        return names

    def _dependencies(self) -> Iterator[str]:
        """The gates of jobs that must end first."""
        key = keys.PREFIX + keys.AFTER
        listed = self._annotations.get(key, "").split(",")
        if len(listed) > MOST_DEPENDENCIES:
            text = f"{len(listed)} jobs are listed; a job can depend on {MOST_DEPENDENCIES} at most"
            self._refuse(f"metadata.annotations: {key}: {text}")
            yield INVALID
            return
        for text in filter(None, map(str.strip, listed)):
            try:
                yield Dependency.parse(text).gate
            except ValueError as error:
                self._refuse(f"metadata.annotations: {key}: {text!r} {error}")
                yield INVALID

    def _either(self, mapping: Mapping[str, str], suffix: str) -> str | None:
        """The value of queuectl's key, otherwise of Kueue's."""
        try:
            return keys.either(mapping, suffix, kueue=self.kueue)
        except RequestError as error:
            self.error = self.error or error
            return mapping[keys.PREFIX + suffix]

    def _seconds(
        self, key: str, text: str | None, allowed: range = _FROM_ONE, bounds: str = "from 1"
    ) -> float | None:
        seconds = read_count(text) if text is not None else None
        if seconds is not None and seconds in allowed:
            return float(seconds)
        if text is not None:
            self._refuse(f"metadata.{key}: {text!r} is not a number of seconds {bounds}")
        return None

    def _refuse(self, text: str, *, unsupported: bool = False) -> None:
        self.error = self.error or RequestError(text, unsupported=unsupported)


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
    """The PriorityClass of the user: the annotation of the admission policy, otherwise the first class that is not queuectl's."""
    moved = (meta.annotations or {}).get(keys.ORIGINAL_PRIORITY_CLASS)
    named = [t.spec.priority_class_name for t in templates if t is not None and t.spec is not None]
    for name in (moved, own, *named):
        if name and name != keys.POD_PRIORITY_CLASS:
            return name
    return None


def read_utilization(annotations: Mapping[str, str] | None) -> float | None:
    """0..1 from the annotation. An invalid value is unknown, never idle."""
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
    """Unix seconds since when its GPUs are idle; None if absent, invalid, or exempt from reclaim.

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


def starting_template(
    record: JobRecord, attempt: int, podset: str, gates: Iterable[str] | None
) -> dict[str, Any]:
    """As :func:`template_patch`, and with the gate of the admission policy after these other ones; None = the template has it."""
    patch = template_patch(record, attempt, podset)
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
