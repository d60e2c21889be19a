"""JobSets of ``jobset.x-k8s.io``, run by the JobSet operator. Each replicated job is a podset.

The operator creates a Job for each replica, and the Job controller creates the pods. The rank of a pod follows from the index of its
Job, and from its index inside the Job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final

from queuectl.domain.jobs import JobRecord
from queuectl.domain.workload import PodSet
from queuectl.objects.errors import RequestError
from queuectl.objects.kinds.common import SpecFields
from queuectl.objects.kinds.described import KEY, DescribedKind
from queuectl.objects.kinds.description import (
    BATCH_JOB,
    Conditions,
    Description,
    Manager,
    PodSets,
    Unsupported,
)
from queuectl.objects.kinds.job_indexes import (
    JobSpec,
    PodFailurePolicy,
    SuccessPolicy,
    check_disruption,
    check_stop,
    ends_with,
    pods_follow,
)
from queuectl.objects.kinds.places import PodSetPlace, entries, field
from queuectl.objects.kubernetes.wire import Wire

_PARALLELISM, _COMPLETIONS = "template.spec.parallelism", "template.spec.completions"
_MODE: Final = "template.spec.completionMode"
_AT_ONCE: Final = (_PARALLELISM, _COMPLETIONS)
_EXCLUSIVE: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_NO_AFFINITY: Final = (
    "the affinity of exclusive placement is not supported: use podset-required-topology"
)
_STATUSES: Final = "status.replicatedJobsStatus"
_ORDER: Final = "spec.startupPolicy.startupPolicyOrder"
_DEPENDS: Final = "dependsOn"
_TARGETS: Final = "spec.successPolicy.targetReplicatedJobs"
_FAILURE_POLICY: Final = "spec.failurePolicy"
_REPLICATED_JOB: Final = "jobset.sigs.k8s.io/replicatedjob-name"
_FAILURE: Final = "template.spec.podFailurePolicy"
_SUCCESS: Final = "template.spec.successPolicy"


class _Status(Wire):
    """The pods of the Jobs of an entry, by their state."""

    name: str = ""
    ready: int | None = None
    active: int | None = None
    succeeded: int | None = None
    failed: int | None = None

    @property
    def has_started(self) -> bool:
        return any((self.ready, self.active, self.succeeded, self.failed))


class _DependsOn(Wire):
    name: str = ""
    status: str = ""


class JobSet(DescribedKind):
    """Adds which pods replace finished pods, which pods come only after the end of others, and elastic JobSets."""

    more: ClassVar[Mapping[str, object]] = {
        _STATUSES: list[_Status] | None,
        _ORDER: str | None,
        _TARGETS: list[str] | None,
    }
    more_of_entries: ClassVar[Mapping[str, object]] = {
        _DEPENDS: list[_DependsOn] | None,
        _FAILURE: PodFailurePolicy | None,
        _SUCCESS: SuccessPolicy | None,
        _MODE: str | None,
    }

    def can_grow(self, document: Any, entry: PodSetPlace) -> bool:  # noqa: ARG002 - of Growing
        return bool(field(entry.content, "replicas") in (None, 1))

    def check_growth(self, document: Any, entry: PodSetPlace, base: int) -> None:
        # The default of the operator is Indexed.
        if field(entry.content, _MODE) not in (None, "Indexed"):
            raise RequestError(f"{KEY}: {entry.path}.{_MODE} must be Indexed", unsupported=True)
        parallelism, completions = (field(entry.content, path) for path in _AT_ONCE)
        parallelism = 1 if parallelism is None else parallelism
        if completions is not None and completions != parallelism:
            raise RequestError(
                f"{KEY}: {entry.path}.{_COMPLETIONS} is {completions} and {_PARALLELISM} is {parallelism}: they must be equal, so "
                "that each index is a pod of the gang"
            )
        spec = JobSpec(
            completions=parallelism,
            pod_failure_policy=field(entry.content, _FAILURE),
            success_policy=field(entry.content, _SUCCESS),
        )
        if self._is_awaited(document, entry):
            raise RequestError(
                f"{KEY}: the operator creates other Jobs only when all pods of {entry.path} are ready: remove "
                f"{_ORDER} and {_DEPENDS}",
                unsupported=True,
            )
        at = f"{entry.path}.template."
        check_disruption(spec, KEY, "each eviction of a pod above the minimum", at)
        targets = field(document, _TARGETS)
        decides = not targets or entry.content.name in targets
        if decides and base < parallelism and not ends_with(spec, base):
            raise RequestError(
                f"{KEY}: {at}spec.successPolicy has no rule that the first {base} indexes can fulfill, so the JobSet could not "
                "complete while it has fewer pods"
            )

    def _is_awaited(self, document: Any, entry: PodSetPlace) -> bool:
        """Whether other Jobs come only when all pods of this entry are ready."""
        found = entries(self.description.podsets, document)
        awaited = (one for other in found for one in field(other.content, _DEPENDS) or ())
        named = _DependsOn(entry.content.name, "Ready")
        return field(document, _ORDER) == "InOrder" or named in awaited

    def read_fields(self, document: Any, fields: SpecFields) -> SpecFields:
        places = list(entries(self.description.podsets, document))
        for one in places:
            check_stop(field(one.content, _FAILURE), f"{one.path}.{_FAILURE}")
        followed = fields.followed or any(map(queues_pods, places))
        late = [one.podset for one in places if field(one.content, _DEPENDS)]
        started = {one.name for one in field(document, _STATUSES) or () if one.has_started}
        unborn = tuple(name for name in late if name not in started)
        if field(document, _ORDER) == "InOrder":
            # The next Job starts as soon as the pods of the last one are ready, so the gang is ready when all are.
            late, unborn = [one.podset for one in places[1:]], ()
        fields = replace(fields, followed=followed, late=tuple(late), unborn=unborn)
        fields = replace(fields, restarts=field(document, _FAILURE_POLICY) is not None)
        # The podset that grows is one Job, and its gang only a part of that.
        return fields if fields.elastic else _without_ended(document, places, fields)


def _without_ended(document: Any, places: Iterable[PodSetPlace], fields: SpecFields) -> SpecFields:
    """The request without the pods of Jobs that have succeeded: the operator keeps these Jobs."""
    succeeded = {one.name.lower(): one.succeeded or 0 for one in field(document, _STATUSES) or ()}
    jobs = {one.podset: max(1, field(one.content, "replicas") or 1) for one in places}
    counts = {one.name: one.count for one in fields.podsets}
    left = {
        name: count // jobs[name] * max(0, jobs[name] - max(0, succeeded.get(name, 0)))
        for name, count in counts.items()
    }
    podsets, expected = _left(
        fields.podsets, left, bool(field(document, JOBSET.description.suspend))
    )
    return replace(fields, podsets=podsets, expected=expected)


def ended_in(job: JobRecord) -> Counter[str]:
    """The ended pods of a Job of a JobSet that has not ended, by podset."""
    name = (job.label(_REPLICATED_JOB) or "").lower()
    requested = sum(podset.count for podset in job.podsets)
    return Counter({name: requested - sum(job.pods_at_once.values())})


def without_ended(jobset: JobRecord, ended: Mapping[str, int]) -> JobRecord:
    """The record of a JobSet without the pods that have ended in Jobs that have not: see :func:`ended_in`."""
    if jobset.array is not None or not ended:
        return jobset
    at_once = jobset.pods_at_once.items()
    left = {podset: max(0, pods - ended.get(podset, 0)) for podset, pods in at_once}
    podsets, expected = _left(jobset.podsets, left, jobset.suspended)
    return replace(jobset, podsets=podsets, expected=expected or jobset.expected)


def _left(
    podsets: tuple[PodSet, ...], left: Mapping[str, int], suspended: bool
) -> tuple[tuple[PodSet, ...], tuple[tuple[str, int], ...]]:
    """The podsets, and the pods of each that are expected, if only some are left. ``suspended``: for the next start."""
    counts = {one.name: one.count for one in podsets}
    if left == counts or not any(left.values()):  # a JobSet without pods is about to complete
        return podsets, ()
    if not suspended:
        return podsets, tuple(left.items())
    reduced = (
        one.reduced(-(-left[one.name] // one.slice_size) * one.slice_size) for one in podsets
    )
    return tuple(one for one in reduced if one.count), ()


def queues_pods(entry: PodSetPlace) -> bool:
    """Whether its Jobs have more completions than pods at once."""
    return pods_follow(*(field(entry.content, path) for path in _AT_ONCE))


JOBSET: Final = JobSet(
    Description(
        kind="JobSet",
        group="jobset.x-k8s.io",
        version="v1alpha2",
        plural="jobsets",
        suspend="spec.suspend",
        podsets=(
            PodSets(
                path="spec.replicatedJobs",
                key="name",
                template="template.spec.template",
                count=(("replicas",), _AT_ONCE),
                ranks=(_COMPLETIONS, _PARALLELISM),
                unsupported=(
                    Unsupported(
                        path="template.metadata.annotations",
                        annotation=_EXCLUSIVE,
                        reason=_NO_AFFINITY,
                    ),
                ),
            ),
        ),
        conditions=Conditions(succeeded="Completed"),
        manager=Manager(path="spec.managedBy", name="jobset.sigs.k8s.io/jobset-controller"),
        unsupported=(
            Unsupported(path="metadata.annotations", annotation=_EXCLUSIVE, reason=_NO_AFFINITY),
        ),
        # A restart of all Jobs also creates the pods again that have succeeded.
        replaces_finished=_FAILURE_POLICY,
        operator="jobSetOperator",
        children=(BATCH_JOB,),
        keeps_priority_class=True,
    )
)
