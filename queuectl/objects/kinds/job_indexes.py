"""The fields of a ``batch/v1`` Job that are read, and its indexes: arrays, elastic Jobs, and the indexes that its status lists."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from queuectl.domain.arrays import LARGEST
from queuectl.domain.jobs import ArrayStatus
from queuectl.domain.workload import PodSet, slots_left
from queuectl.objects import keys
from queuectl.objects.errors import RequestError
from queuectl.objects.kinds.common import SpecFields, attempt_of, base_count
from queuectl.objects.kubernetes.pods import read_count
from queuectl.objects.kubernetes.templates import read_podset
from queuectl.objects.kubernetes.wire import Condition, Meta, Template, Wire

# ---- Fields of a Job


class PodCondition(Wire):
    type: str = ""
    status: str | None = None


class ExitCodes(Wire):
    operator: str = ""
    values: list[int] | None = None


class FailureRule(Wire):
    action: str = ""
    on_pod_conditions: list[PodCondition] | None = None
    on_exit_codes: ExitCodes | None = None


class PodFailurePolicy(Wire):
    rules: list[FailureRule] | None = None


class SuccessRule(Wire):
    succeeded_indexes: str | None = None
    succeeded_count: int | None = None


class SuccessPolicy(Wire):
    rules: list[SuccessRule] | None = None


class JobSpec(Wire):
    suspend: bool | None = None
    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str | None = None
    managed_by: str | None = None
    template: Template | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    success_policy: SuccessPolicy | None = None
    active_deadline_seconds: int | None = None
    max_failed_indexes: int | None = None


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


# ---- Indexes

PODSET: Final = keys.JOB_PODSET
_TEMPLATE: Final = "spec.template"
_RANGE: Final = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?")  # indexes have 31 bits


def pods_follow(parallelism: int | None, completions: int | None) -> bool:
    """Whether a Job has more completions than pods at once, so that other pods follow its first ones."""
    return completions is not None and completions > (1 if parallelism is None else parallelism)


def pods_of(spec: JobSpec, count: int, kueue: bool) -> PodSet:
    """The podset of so many pods of the Job."""
    return read_podset(PODSET, count, spec.template, _TEMPLATE, kueue=kueue)


def ended_indexes(spec: JobSpec, status: JobStatus, count: int) -> frozenset[int]:
    """The indexes below ``count`` that do not run again; none of a Job that is not Indexed."""
    if spec.completion_mode != "Indexed":
        return frozenset()
    listed = (status.completed_indexes or "", status.failed_indexes or "")
    return frozenset().union(*(read_indexes(text, count) for text in listed))


def still_asked(podset: PodSet, count: int, left: int, ended: frozenset[int]) -> PodSet:
    """The podset for the next start, without the pods that have ended.

    Args:
        podset: with all its pods.
        count: the number of its pods, or of the first indexes, that start together.
        left: the number of those that have not ended. Of 0, one is requested: the Job is about to complete.
        ended: the indexes that have ended, as far as each pod has its own.
    """
    size = podset.slice_size
    slices = len(slots_left(count, ended, size)) if ended and size > 1 else -(-left // size)
    return podset.reduced(max(1, slices) * size)


def elastic_fields(spec: JobSpec, status: JobStatus, meta: Meta, kueue: bool) -> SpecFields:
    """The gang of an elastic Job, and its indexes.

    Raises:
        RequestError: an elastic Job cannot keep what the Job asks for.
    """
    key = f"metadata.annotations: {keys.ELASTIC_JOB}"
    if spec.completion_mode != "Indexed" or spec.completions is None:
        raise RequestError(f"{key}: spec.completionMode must be Indexed", unsupported=True)
    most = 1 if spec.parallelism is None else spec.parallelism
    if spec.completions != most:
        raise RequestError(
            f"{key}: spec.completions is {spec.completions} and spec.parallelism is {most}: they must be equal, so that "
            "each index is a pod of the gang"
        )
    if most > LARGEST:
        raise RequestError(
            f"{key}: spec.parallelism: {most} is more than {LARGEST} pods", unsupported=True
        )
    check_disruption(spec, key, "each eviction of a pod above the minimum")
    check_stop(spec.pod_failure_policy, "spec.podFailurePolicy")
    stated = least_pods(spec, meta.annotations, most, kueue)
    noted = base_count(meta)
    if noted is not None and noted > LARGEST:
        raise RequestError(
            f"metadata.annotations: {keys.BASE_COUNT}: {noted} is more than {LARGEST} pods"
        )
    base = (None if spec.suspend else noted) or stated or most
    # The gang is smaller than the minimum only if its user has made it so.
    first = max(base, stated or most)
    if first < most and not ends_with(spec, first):
        raise RequestError(
            f"{key}: spec.successPolicy has no rule that the first {first} indexes can fulfill, so the Job could not complete "
            "while it has fewer pods than spec.parallelism"
        )
    podset = pods_of(spec, base, kueue)
    if podset.topology is not None and podset.topology.slices:
        raise RequestError(
            f"{key}: the pods of an elastic Job start one by one above its minimum: remove the topology of slices",
            unsupported=True,
        )
    succeeded = read_indexes(status.completed_indexes or "", spec.completions)
    failed = read_indexes(status.failed_indexes or "", spec.completions)
    ended = succeeded | failed
    of_gang = min(base, most)
    left = of_gang - sum(n < of_gang for n in ended)
    expected = ((PODSET, left),) if left < base and not spec.suspend else ()
    if spec.suspend:
        podset = still_asked(podset, base, left, ended)
    array = ArrayStatus(spec.completions, most, succeeded, failed, base, noted=noted is not None)
    return SpecFields((podset,), expected, array=array, ended=ended)


def _success_rules(spec: JobSpec) -> Sequence[SuccessRule]:
    return (spec.success_policy.rules if spec.success_policy is not None else None) or ()


def _failure_rules(policy: PodFailurePolicy | None) -> Sequence[FailureRule]:
    return (policy.rules if policy is not None else None) or ()


def ends_with(spec: JobSpec, first: int) -> bool:
    """Whether the success of the first indexes can be the success of the Job."""
    for rule in _success_rules(spec):
        named = rule.succeeded_indexes
        among = range(spec.completions or 0) if named is None else read_indexes(named, LARGEST)
        needed = rule.succeeded_count if rule.succeeded_count is not None else len(among)
        if sum(number < first for number in among) >= needed:
            return True
    return False


def least_completions(spec: JobSpec) -> int:
    """The smallest number of completions that the API server accepts with the other fields of an Indexed Job."""
    rules = _success_rules(spec)
    named = (_ranges(rule.succeeded_indexes or "") for rule in rules)
    counts = (rule.succeeded_count or 0 for rule in rules)
    ends = (indexes.stop for ranges in named for indexes in ranges)
    return max([spec.max_failed_indexes or 0, *counts, *ends])


def array_status(
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
    check_disruption(spec, key, "each eviction of an index")
    if spec.active_deadline_seconds is not None:
        raise RequestError(
            f"{key}: spec.activeDeadlineSeconds: counts the time in which indexes wait: state it in the template, for each index"
        )
    at_once = 1 if spec.parallelism is None else spec.parallelism
    return ArrayStatus(
        spec.completions,
        at_once,
        read_indexes(status.completed_indexes or "", spec.completions),
        read_indexes(status.failed_indexes or "", spec.completions),
    )


_STOPPED: Final = (143, 137)
"""Exit codes of containers that end after SIGTERM, or after SIGKILL. A program can have others."""


def check_disruption(spec: JobSpec, key: str, evictions: str, at: str = "") -> None:
    """Raise RequestError if the Job counts the eviction of a pod as its failure. ``at``: the path of the Job, for the message."""
    policy, path = spec.pod_failure_policy, f"{at}spec.podFailurePolicy"
    if not any(rule.action == "Ignore" and _of_disruption(rule) for rule in _failure_rules(policy)):
        raise RequestError(
            f"{key}: {path} has no rule with action Ignore for the pod condition DisruptionTarget, "
            f"so {evictions} would count as its failure"
        )
    for code in _STOPPED:
        number, rule = _first(policy, code, evicted=True)
        if rule.action != "Ignore":
            raise RequestError(
                f"{key}: {path}.rules[{number}] applies to exit code {code} of an evicted pod, with action {rule.action}: put the rule "
                "with action Ignore for the pod condition DisruptionTarget before it"
            )


def check_stop(policy: PodFailurePolicy | None, path: str) -> None:
    """Raise RequestError if the suspension of the Job is its failure: its pods then have no condition DisruptionTarget.

    The Job controller applies the policy to the pods of a suspended Job too.
    """
    for code in _STOPPED:
        number, rule = _first(policy, code, evicted=False)
        if rule.action == "FailJob":
            raise RequestError(
                f"{path}.rules[{number}]: fails the Job for exit code {code}, with which containers end when an eviction suspends it: "
                "put a rule with action Count for the exit codes 137 and 143 before it",
                unsupported=True,
            )


def _first(policy: PodFailurePolicy | None, code: int, *, evicted: bool) -> tuple[int, FailureRule]:
    """The rule that applies to a pod with this exit code, and its number. Without one, a rule without an action."""
    for number, rule in enumerate(_failure_rules(policy)):
        if _has_code(rule, code) or (evicted and _of_disruption(rule)):
            return number, rule
    return 0, FailureRule()


def _has_code(rule: FailureRule, code: int) -> bool:
    codes = rule.on_exit_codes
    return codes is not None and (code in (codes.values or ())) is (codes.operator == "In")


def _of_disruption(rule: FailureRule) -> bool:
    return any(
        one.type == "DisruptionTarget" and one.status in (None, "", "True")
        for one in rule.on_pod_conditions or ()
    )


def least_pods(
    spec: JobSpec, annotations: Mapping[str, str] | None, count: int, kueue: bool
) -> int | None:
    """The smallest number of pods with which the job can start, None = all.

    Its user can make a job that has started smaller than that. It keeps the smaller number when it starts again.
    """
    key = f"metadata.annotations: {keys.MIN_PARALLELISM}"
    text = keys.either(annotations, keys.MIN_PARALLELISM, kueue=kueue)
    meta = spec.template.metadata if spec.template is not None else None
    of_podset = keys.either(meta.annotations if meta else None, keys.MIN_COUNT, kueue=False)
    if text is not None and of_podset not in (None, text):
        raise RequestError(f"{key} is {text!r} but {keys.MIN_COUNT} of its pods is {of_podset!r}")
    if text is None and of_podset is not None:
        key = f"{_TEMPLATE}.metadata.annotations: {keys.PREFIX}{keys.MIN_COUNT}"
        text = of_podset
    if text is None:
        return None
    least = read_count(text)
    started = not spec.suspend or attempt_of(spec.template) > 0
    if not least or (least > count and not started):
        raise RequestError(f"{key}: {text!r} is not a number from 1 to {count}")
    return least if least < count else None


def count_indexes(text: str) -> int:
    """The number of indexes in ``"1,3-5"``. Invalid parts count as 0."""
    return sum(map(len, _ranges(text)))


def read_indexes(text: str, completions: int) -> frozenset[int]:
    """The indexes in ``"1,3-5"`` below ``completions``. Invalid parts are left out."""
    return frozenset(
        number for one in _ranges(text) for number in range(one.start, min(one.stop, completions))
    )


def _ranges(text: str) -> Iterator[range]:
    """The ranges in rising order, as the Job controller writes them, so that no index occurs twice."""
    least = 0
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            continue
        one = range(int(found[1]), int(found[2] or found[1]) + 1)
        if one.start >= least:
            least = max(least, one.stop)
            yield one
