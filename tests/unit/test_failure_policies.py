"""Rules of a Job for failed pods: an eviction must not be the failure of the Job.

Kubernetes applies the first rule that matches a pod (pkg/controller/job/pod_failure_policy.go), also to the pods of a suspended Job. Only
evicted pods have the condition DisruptionTarget: the pods of a suspended Job do not.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from queuectl.objects import keys
from tests.support.jobs import batch_job
from tests.unit.test_objects_kinds import read

IGNORE: Final = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}  # fmt: skip
OTHER: Final = {"action": "FailJob", "onPodConditions": [{"type": "ConfigIssue", "status": "True"}]}


def rule(action: str, operator: str, *codes: int) -> dict[str, Any]:
    return {"action": action, "onExitCodes": {"operator": operator, "values": list(codes)}}


FAIL_42: Final = rule("FailJob", "In", 42)
FAIL_143: Final = rule("FailJob", "In", 1, 143)
FAIL_OTHERS: Final = rule("FailJob", "NotIn", 42)
COUNT: Final = rule("Count", "In", 137, 143)

GANGS: Final[list[tuple[list[dict[str, Any]], str]]] = [
    ([], ""),
    ([FAIL_42], ""),
    ([IGNORE, FAIL_42], ""),
    ([IGNORE, FAIL_143], "rules[1]: fails the Job for exit code 143"),
    ([FAIL_OTHERS], "rules[0]: fails the Job for exit code 143"),
    ([rule("FailJob", "In", 137)], "rules[0]: fails the Job for exit code 137"),
    ([COUNT, FAIL_OTHERS], ""),
    ([rule("Ignore", "In", 143), FAIL_OTHERS], "rules[1]: fails the Job for exit code 137"),
    ([rule("FailIndex", "In", 143)], ""),
    ([OTHER], ""),
]

ARRAYS: Final[list[tuple[list[dict[str, Any]], str]]] = [
    ([], "no rule with action Ignore"),
    ([IGNORE], ""),
    ([FAIL_42, OTHER, IGNORE], ""),
    ([IGNORE, FAIL_OTHERS], ""),
    ([FAIL_143, IGNORE], "rules[0] applies to exit code 143 of an evicted pod, with action FailJob"),
    ([FAIL_OTHERS, IGNORE], "rules[0] applies to exit code 143"),
    ([COUNT, IGNORE], "with action Count: put the rule"),
    ([rule("FailIndex", "In", 137), IGNORE], "rules[0] applies to exit code 137"),
    ([{**IGNORE, "action": "FailJob"}, IGNORE], "rules[0] applies to exit code 143"),
    ([rule("Ignore", "In", 143, 137), IGNORE], ""),
]  # fmt: skip


def job(rules: list[dict[str, Any]], *annotations: str, **spec: Any) -> dict[str, Any]:
    document = batch_job("train", namespace="n")
    document["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    document["metadata"].setdefault("annotations", {}).update(
        {keys.PREFIX + name: "true" for name in annotations}
    )
    document["spec"] |= {"parallelism": 3, "completions": 3, "completionMode": "Indexed"}
    document["spec"] |= {"podFailurePolicy": {"rules": rules}, **spec}
    return document


def jobset(rules: list[dict[str, Any]]) -> dict[str, Any]:
    one = {"name": "workers", "template": {"spec": job(rules)["spec"]}}
    metadata = job(rules)["metadata"]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {"replicatedJobs": [one]},
    }


@pytest.mark.parametrize(("rules", "sentence"), GANGS)
def test_the_suspension_of_a_gang_is_not_its_failure(
    rules: list[dict[str, Any]], sentence: str
) -> None:
    for document in (job(rules), jobset(rules)):
        error = read(document).error or ""
        assert sentence in error
        assert bool(error) is bool(sentence)


@pytest.mark.parametrize(("rules", "sentence"), ARRAYS)
def test_the_eviction_of_an_index_is_not_the_failure_of_the_array(
    rules: list[dict[str, Any]], sentence: str
) -> None:
    error = read(job(rules, keys.ARRAY)).error or ""
    assert sentence in error
    assert bool(error) is bool(sentence)


def test_an_elastic_job_bears_both() -> None:
    assert read(job([IGNORE], keys.ELASTIC_JOB)).error is None
    assert "fails the Job" in (read(job([IGNORE, FAIL_OTHERS], keys.ELASTIC_JOB)).error or "")
    assert "put the rule" in (read(job([FAIL_143, IGNORE], keys.ELASTIC_JOB)).error or "")


def test_a_deadline_of_an_array_would_count_the_time_in_the_queue() -> None:
    error = read(job([IGNORE], keys.ARRAY, activeDeadlineSeconds=60)).error or ""
    assert "state it in the template" in error
    assert read(job([], activeDeadlineSeconds=60)).error is None


@pytest.mark.parametrize(
    ("spec", "least"),
    [
        ({}, 1),
        ({"maxFailedIndexes": 2, "backoffLimitPerIndex": 1}, 2),
        ({"maxFailedIndexes": 3, "backoffLimitPerIndex": 1}, None),
        ({"successPolicy": {"rules": [{"succeededIndexes": "0-1"}]}}, 2),
        ({"successPolicy": {"rules": [{"succeededCount": 2}, {"succeededIndexes": "0"}]}}, 2),
        ({"successPolicy": {"rules": [{"succeededIndexes": "2"}]}}, None),
    ],
)
def test_a_start_with_fewer_pods_keeps_the_completions_that_other_fields_need(
    spec: dict[str, Any], least: int | None
) -> None:
    document = job([], **spec)
    own = {keys.MIN_PARALLELISM: "1", keys.COMPLETIONS_FOLLOW: "true"}
    document["metadata"]["annotations"].update({keys.PREFIX + k: v for k, v in own.items()})
    record = read(document)
    assert record.error is None
    assert record.podsets[0].min_count == least
