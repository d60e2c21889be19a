"""``batch/v1`` Job, Indexed or not: one podset ``main`` of min(parallelism, completions) pods at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from queuectl.domain.arrays import LARGEST
from queuectl.domain.records import ArrayStatus, JobRecord, Outcome, Parallelism
from queuectl.domain.workload import PodSet
from queuectl.objects import keys
from queuectl.objects.errors import RequestError
from queuectl.objects.kinds.common import (
    NO_COUNTS,
    SpecFields,
    attempt_frame,
    holds,
    notice,
    patch_frame,
    read_job,
    relabelled,
    start_frame,
    starting_template,
    template_patch,
    withdraws,
)
from queuectl.objects.kubernetes.pods import read_count
from queuectl.objects.kubernetes.templates import check_count, read_podset
from queuectl.objects.kubernetes.wire import Condition, Meta, Template, Wire

PODSET = keys.JOB_PODSET
_TEMPLATE = "spec.template"
_CONTROLLER = "kubernetes.io/job-controller"


class PodCondition(Wire):
    type: str = ""
    status: str | None = None


class FailureRule(Wire):
    action: str = ""
    on_pod_conditions: list[PodCondition] | None = None


class PodFailurePolicy(Wire):
    rules: list[FailureRule] | None = None


class JobSpec(Wire):
    suspend: bool | None = None
    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str | None = None
    managed_by: str | None = None
    template: Template | None = None
    pod_failure_policy: PodFailurePolicy | None = None


class JobStatus(Wire):
    active: int | None = None
    succeeded: int | None = None
    failed_indexes: str | None = None
    completed_indexes: str | None = None
    conditions: list[Condition] | None = None


class WireJob(Wire):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: JobSpec | None = None
    status: JobStatus | None = None


class BatchJob:
    """See :class:`queuectl.objects.kinds.JobKind`."""

    kind = "Job"
    group = "batch"
    version = "v1"
    plural = "jobs"
    container = "main"
    wire = WireJob

    def minimal_spec(self, template: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"template": template}

    def is_suspended(self, document: Mapping[str, Any]) -> bool:
        return bool(document["spec"].get("suspend"))

    def templates(self, document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [document["spec"]["template"]]

    def read(self, document: WireJob, *, kueue: bool = True, strict: bool = False) -> JobRecord:
        spec = document.spec or JobSpec()
        status = document.status or JobStatus()
        conditions = status.conditions or []
        return read_job(
            self.kind,
            document.metadata,
            [spec.template],
            suspended=bool(spec.suspend),
            drained=holds(conditions, "Suspended"),
            outcome=_outcome(conditions),
            own_priority_class=None,
            ask=lambda: _ask(spec, status, document.metadata.annotations, kueue),
            kueue=kueue,
            strict=strict,
        )

    def start_patch(
        self,
        record: JobRecord,
        attempt: int,
        status: str,
        counts: Mapping[str, int] = NO_COUNTS,
    ) -> dict[str, Any]:
        # The PriorityClass of a Job's template cannot be changed any more: one from before the policies keeps its own.
        spec = {"suspend": False, "template": starting_template(record, attempt, PODSET)}
        patch = {**start_frame(record, status), "spec": spec}
        if record.parallelism is None or PODSET not in counts:
            return _as_asked(record.parallelism, patch)
        patch["metadata"]["annotations"][keys.ORIGINAL_PARALLELISM] = str(
            record.parallelism.requested
        )
        spec.update(_at_once(record.parallelism, counts[PODSET]))
        return patch

    def stop_patch(self, record: JobRecord, attempt: int, status: str) -> dict[str, Any]:
        spec: dict[str, Any] = {"suspend": True}
        if withdraws(record, attempt):
            spec["template"] = template_patch(record, attempt, PODSET)
        return _as_asked(record.parallelism, {**attempt_frame(record, status), "spec": spec})

    def status_patch(self, record: JobRecord, status: str) -> dict[str, Any]:
        return patch_frame(record, status)

    def queue_patch(self, record: JobRecord, status: str, queue: str) -> dict[str, Any]:
        return relabelled(record, status, queue)

    def notice_patch(self, record: JobRecord, status: str, deadline: str) -> dict[str, Any]:
        return notice(record, status, deadline)

    def pod_selector(self, name: str) -> str:
        return f"{keys.JOB_NAME_LABEL}={name}"


def _at_once(parallelism: Parallelism, pods: int) -> dict[str, int]:
    """The patch for this number of pods; completions of an Indexed job change with it if they were equal."""
    spec = {"parallelism": pods}
    return spec | ({"completions": pods} if parallelism.completions_follow else {})


def _as_asked(parallelism: Parallelism | None, patch: dict[str, Any]) -> dict[str, Any]:
    """The patch, with the parallelism from before a start with fewer pods."""
    if parallelism is not None and parallelism.shrunk:
        patch["metadata"]["annotations"][keys.ORIGINAL_PARALLELISM] = None
        patch["spec"].update(_at_once(parallelism, parallelism.requested))
    return patch


def _outcome(conditions: list[Condition]) -> Outcome | None:
    if holds(conditions, "Complete"):
        return Outcome.SUCCEEDED
    return Outcome.FAILED if holds(conditions, "Failed") else None


def _ask(
    spec: JobSpec, status: JobStatus, annotations: Mapping[str, str] | None, kueue: bool
) -> SpecFields:
    running = 1 if spec.parallelism is None else spec.parallelism
    check_count(running, "spec.parallelism")
    parallelism = _asked_parallelism(annotations, running)
    follow = keys.either(annotations, keys.COMPLETIONS_FOLLOW, kueue=kueue) == "true"
    completions = spec.completions
    if follow and completions is not None and parallelism > running:
        completions = parallelism
    if completions is None and spec.parallelism is None:
        completions = 1  # default of the API server
    if completions is not None:
        check_count(completions, "spec.completions")
    if spec.completion_mode not in (None, "NonIndexed", "Indexed"):
        raise RequestError(
            f"spec.completionMode: {spec.completion_mode!r} is neither NonIndexed nor Indexed"
        )
    if spec.completion_mode == "Indexed" and completions is None:
        raise RequestError("spec.completions: is required when completionMode is Indexed")
    if spec.managed_by not in (None, _CONTROLLER):
        raise RequestError(
            f"spec.managedBy: {spec.managed_by!r} runs this job elsewhere", unsupported=True
        )
    count = parallelism if completions is None else min(parallelism, completions)
    if keys.either(annotations, keys.ARRAY, kueue=False) == "true":
        array = _array(spec, status, annotations, kueue)
        return SpecFields((_one_pod(spec, kueue),), array=array)
    podset = read_podset(PODSET, count, spec.template, _TEMPLATE, kueue=kueue)
    podset = replace(podset, min_count=_least(annotations, count, kueue))
    left = min(_left(completions, count, status), running)
    expected = ((PODSET, left),) if left < count else ()
    if podset.min_count is None and parallelism == running:
        return SpecFields((podset,), expected)
    return SpecFields((podset,), expected, Parallelism(parallelism, parallelism > running, follow))


def _one_pod(spec: JobSpec, kueue: bool) -> PodSet:
    return read_podset(PODSET, 1, spec.template, _TEMPLATE, kueue=kueue)


def _array(
    spec: JobSpec, status: JobStatus, annotations: Mapping[str, str] | None, kueue: bool
) -> ArrayStatus:
    """The indexes of an array.

    Raises:
        RequestError: an array cannot keep what the Job asks for.
    """
    key = f"metadata.annotations: {keys.PREFIX}{keys.ARRAY}"
    if spec.completion_mode != "Indexed" or spec.completions is None:
        raise RequestError(f"{key}: spec.completionMode must be Indexed")
    if spec.completions > LARGEST:
        raise RequestError(
            f"{key}: spec.completions: {spec.completions} is more than {LARGEST} indexes",
            unsupported=True,
        )
    if keys.either(annotations, keys.MIN_PARALLELISM, kueue=kueue) is not None:
        raise RequestError(f"{key}: the indexes start one by one: remove {keys.MIN_PARALLELISM}")
    rules = spec.pod_failure_policy.rules if spec.pod_failure_policy is not None else None
    if not any(map(_ignores_disruption, rules or ())):
        raise RequestError(
            f"{key}: spec.podFailurePolicy has no rule with action Ignore for the pod condition DisruptionTarget, "
            "so each eviction of an index would count as its failure"
        )
    at_once = 1 if spec.parallelism is None else spec.parallelism
    return ArrayStatus(
        spec.completions,
        at_once,
        read_indexes(status.completed_indexes or "", spec.completions),
        read_indexes(status.failed_indexes or "", spec.completions),
    )


def _ignores_disruption(rule: FailureRule) -> bool:
    return rule.action == "Ignore" and any(
        one.type == "DisruptionTarget" and one.status in (None, "True")
        for one in rule.on_pod_conditions or ()
    )


def _least(annotations: Mapping[str, str] | None, count: int, kueue: bool) -> int | None:
    """The smallest number of pods with which the job can start, None = all."""
    text = keys.either(annotations, keys.MIN_PARALLELISM, kueue=kueue)
    if text is None:
        return None
    least = read_count(text)
    if least is None or not 1 <= least <= count:
        raise RequestError(
            f"metadata.annotations: {keys.MIN_PARALLELISM}: {text!r} is not a number from 1 to {count}"
        )
    return least if least < count else None


def _asked_parallelism(annotations: Mapping[str, str] | None, running: int) -> int:
    """The parallelism from before a start with fewer pods. Invalid values of other writers are ignored."""
    before = read_count((annotations or {}).get(keys.ORIGINAL_PARALLELISM, ""))
    return max(running, before or 0)


def _left(completions: int | None, count: int, status: JobStatus) -> int:
    """The number of pods that the job controller still runs, after some completions."""
    done = (status.succeeded or 0) + count_indexes(status.failed_indexes or "")
    if completions is not None:
        return max(0, min(count, completions - done))
    # A work queue: after the first success no new pod is started.
    return min(count, status.active or 0) if done else count


def count_indexes(text: str) -> int:
    """The number of indexes in ``"1,3-5"``. Invalid parts count as 0."""
    return sum(map(len, _ranges(text)))


def read_indexes(text: str, completions: int) -> frozenset[int]:
    """The indexes in ``"1,3-5"`` below ``completions``. Invalid parts are left out."""
    return frozenset(
        number for one in _ranges(text) for number in range(one.start, min(one.stop, completions))
    )


def _ranges(text: str) -> Iterator[range]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            yield range(int(first), int(last or first) + 1)
