"""``batch/v1`` Job, Indexed or not: one podset ``main`` of min(parallelism, completions) pods at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from msgspec.structs import replace as replace_fields

from queuectl.domain.jobs import JobOutcome, JobRecord, Parallelism
from queuectl.objects import keys
from queuectl.objects.errors import MalformedError, RequestError
from queuectl.objects.kinds.common import (
    NO_COUNTS,
    SpecFields,
    attempt_frame,
    controller_of,
    holds,
    notice,
    patch_frame,
    read_job,
    relabeled,
    start_frame,
    starting_template,
    template_patch,
    withdraws,
)
from queuectl.objects.kinds.description import JOB_SET
from queuectl.objects.kinds.job_indexes import (
    PODSET,
    JobSpec,
    JobStatus,
    WireJob,
    array_status,
    check_stop,
    count_indexes,
    elastic_fields,
    ended_indexes,
    least_completions,
    least_pods,
    pods_of,
    still_asked,
)
from queuectl.objects.kinds.requests import CachedRequests, StatedModes
from queuectl.objects.kubernetes.pods import read_count
from queuectl.objects.kubernetes.templates import check_count
from queuectl.objects.kubernetes.wire import Condition

_CONTROLLER = "kubernetes.io/job-controller"


class BatchJob:
    """See :class:`queuectl.objects.kinds.JobKind`."""

    kind = "Job"
    group = "batch"
    version = "v1"
    plural = "jobs"
    container = "main"
    refers = False
    wire = WireJob

    def minimal_spec(self, template: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"template": template}

    def is_suspended(self, document: Mapping[str, Any]) -> bool:
        return bool(document["spec"].get("suspend"))

    def templates(self, document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [document["spec"]["template"]]

    def read(self, document: WireJob, *, kueue: bool = True, strict: bool = False) -> JobRecord:
        record = self._read(document, kueue=kueue, strict=strict)
        return record if record.queue is not None else self._of_jobset(document, record)

    def _of_jobset(self, document: WireJob, record: JobRecord) -> JobRecord:
        """A Job of a JobSet with the pods that it expects even while it is suspended, if some have ended; otherwise the same record."""
        status = document.status or JobStatus()
        jobset = controller_of(document.metadata, [JOB_SET.kind])
        some = status.succeeded or status.failed_indexes
        if not (jobset and some and document.spec) or record.outcome or record.deleting:
            return record
        resumed = replace_fields(document.spec, suspend=False)
        return replace(self._read(replace_fields(document, spec=resumed)), parent=jobset)

    def _read(self, document: WireJob, *, kueue: bool = True, strict: bool = False) -> JobRecord:
        spec = document.spec or JobSpec()
        status = document.status or JobStatus()
        conditions = status.conditions or []
        templates = [(PODSET, spec.template)] if spec.template is not None else []
        return read_job(
            self.kind,
            document.metadata,
            [spec.template],
            suspended=bool(spec.suspend),
            drained=holds(conditions, "Suspended"),
            outcome=_outcome(conditions),
            own_priority_class=None,
            ask=lambda stated: _REQUESTS.read(document, templates, stated),
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
        # The PriorityClass of a Job's template can no longer be changed: one from before the policies keeps its own.
        gates = dict(record.ungated).get(PODSET)
        spec = {"suspend": False, "template": starting_template(record, attempt, PODSET, gates)}
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
        patch = {**attempt_frame(record, status), "spec": spec}
        return _as_asked(record.parallelism, patch)

    def status_patch(self, record: JobRecord, status: str) -> dict[str, Any]:
        return patch_frame(record, status)

    def queue_patch(self, record: JobRecord, status: str, queue: str) -> dict[str, Any]:
        return relabeled(record, status, queue)

    def notice_patch(self, record: JobRecord, status: str, deadline: str) -> dict[str, Any]:
        return notice(record, status, deadline)


def array_patch(record: JobRecord, status: str) -> dict[str, Any]:
    """Resume an array. Its indexes start one by one afterwards, so no attempt starts now."""
    return BatchJob().start_patch(record, 0, status)


def base_patch(record: JobRecord, status: str, base: int) -> dict[str, Any]:
    """Write only the number of pods in the gang of an elastic Job."""
    patch = patch_frame(record, status)
    patch["metadata"]["annotations"][keys.BASE_COUNT] = str(base)
    return patch


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


def _outcome(conditions: list[Condition]) -> JobOutcome | None:
    if holds(conditions, "Complete"):
        return JobOutcome.SUCCEEDED
    return JobOutcome.FAILED if holds(conditions, "Failed") else None


def _ask(document: WireJob, stated: StatedModes) -> SpecFields:
    """The request. While the Job is suspended, that is the request of its next start."""
    spec, status = document.spec or JobSpec(), document.status or JobStatus()
    meta, kueue = document.metadata, stated.kueue
    annotations = meta.annotations
    running = 1 if spec.parallelism is None else spec.parallelism
    if running or not stated.array:  # an array without pods waits
        check_count(running, "spec.parallelism")
    parallelism = _asked_parallelism(annotations, running)
    follow = _completions_follow(spec, annotations, kueue)
    completions = parallelism if follow else spec.completions
    if completions is None and spec.parallelism is None:
        completions = 1  # default of the API server
    if completions is not None:
        check_count(completions, "spec.completions")
    _check_mode(spec, completions)
    count = parallelism if completions is None else min(parallelism, completions)
    if stated.elastic:
        if stated.array:
            raise RequestError(
                f"metadata.annotations: {keys.PREFIX}{keys.ARRAY}: an elastic Job cannot be an array: remove {keys.ARRAY} or "
                f"{keys.ELASTIC_JOB}"
            )
        return elastic_fields(spec, status, meta, kueue)
    if stated.array:
        array = array_status(spec, status, annotations, kueue)
        return SpecFields((pods_of(spec, 1, kueue),), array=array)
    check_stop(spec.pod_failure_policy, "spec.podFailurePolicy")
    podset = pods_of(spec, count, kueue)
    least = least_pods(spec, annotations, count, kueue)
    if follow and least is not None:
        least = max(least, least_completions(spec))
        least = least if least < count else None
    ended = ended_indexes(spec, status, count) if completions == count else frozenset[int]()
    if follow and ended:
        least = None  # fewer completions would drop indexes that have succeeded
    podset = replace(podset, min_count=least)
    started = completions if spec.completions is None else spec.completions
    left = min(_left(started, count, status), running)
    expected = ((PODSET, left),) if left < count and not spec.suspend else ()
    if spec.suspend:
        podset = still_asked(podset, count, _left(completions, count, status), ended)
    kept = None
    if least is not None or parallelism > running:
        kept = Parallelism(parallelism, parallelism > running, follow)
    # A work queue: Kubernetes completes it when one pod has succeeded and none is active.
    final = completions is None and (status.succeeded or 0) > 0
    return SpecFields((podset,), expected, kept, ended=ended, final=final)


_REQUESTS: Final = CachedRequests(_ask)


def _check_mode(spec: JobSpec, completions: int | None) -> None:
    """Raise RequestError if the API server would refuse the Job, or another controller runs it."""
    if spec.completion_mode not in (None, "NonIndexed", "Indexed"):
        raise MalformedError(
            f"spec.completionMode: {spec.completion_mode!r} is neither NonIndexed nor Indexed"
        )
    if spec.completion_mode == "Indexed" and completions is None:
        raise MalformedError("spec.completions: is required when completionMode is Indexed")
    if spec.template and spec.template.spec and spec.template.spec.restart_policy == "Always":
        raise MalformedError(
            "spec.template.spec.restartPolicy: must be OnFailure or Never in a Job"
        )
    if spec.managed_by not in (None, _CONTROLLER):
        raise RequestError(
            f"spec.managedBy: {spec.managed_by!r} runs this job elsewhere", unsupported=True
        )


def _completions_follow(spec: JobSpec, annotations: Mapping[str, str] | None, kueue: bool) -> bool:
    """Whether completions change with parallelism. After a start with fewer pods, both are still equal.

    Raises:
        RequestError: other completions would drop tasks or add some, or the API server would refuse to change them.
    """
    stated = keys.either(annotations, keys.COMPLETIONS_FOLLOW, kueue=kueue)
    at = f"metadata.annotations: {keys.COMPLETIONS_FOLLOW}"
    if stated not in (None, "true", "false"):
        raise RequestError(f'{at}: {stated!r} is neither "true" nor "false"')
    if stated != "true":
        return False
    if spec.completion_mode != "Indexed":
        raise RequestError(f"{at}: spec.completionMode must be Indexed")
    parallelism = 1 if spec.parallelism is None else spec.parallelism
    if spec.completions != parallelism:
        raise RequestError(
            f"{at}: spec.completions is {spec.completions} and spec.parallelism is {parallelism}: they must be equal"
        )
    return True


def _asked_parallelism(annotations: Mapping[str, str] | None, running: int) -> int:
    """The parallelism from before a start with fewer pods. Invalid values of other writers are ignored."""
    before = read_count((annotations or {}).get(keys.ORIGINAL_PARALLELISM, ""))
    return max(running, before or 0)


def _left(completions: int | None, count: int, status: JobStatus) -> int:
    """The number of pods that the job controller still runs at once, after some completions."""
    done = (status.succeeded or 0) + count_indexes(status.failed_indexes or "")
    if completions is not None:
        return max(0, min(count, completions - done))
    # A work queue: after the first success no new pod is started.
    return min(count, status.active or 0) if done else count
