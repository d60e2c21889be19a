"""A LimitRange in the input fills in the requests of containers as the API server does for pods."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.domain.quantity import GPU
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import PodSet
from queuectl.objects.documents import as_document
from queuectl.objects.errors import DocumentError
from queuectl.offline.inputs import read_snapshot
from tests.planner.documents import Doc, cluster_queue, flavor, nodes, planned, workload
from tests.support.jobs import batch_job, pytorch_job


def limit_range(*items: Doc, name: str = "usual", namespace: str = "default") -> Doc:
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"limits": [{"type": "Container", **item} for item in items]},
    }


def seen(job: Doc, *ranges: Doc) -> Pending:
    """A job as the planner receives it."""
    given = read_snapshot([as_document(one) for one in (*ranges, job)])
    assert (given.account.ignored, given.warnings) == ((), ())
    (pending,) = given.snapshot.pending
    return pending


def asked(job: Doc, *ranges: Doc) -> list[PodSet]:
    """The podsets of a job as they are planned."""
    pending = seen(job, *ranges)
    assert pending.blocked is None or "does not exist" in pending.blocked.message
    return list(pending.workload.podsets)


def job_of(*needs: Doc, init: tuple[Doc, ...] = ()) -> Doc:
    """A Job of one pod whose containers have these resources."""
    job = batch_job("train")
    spec = job["spec"]["template"]["spec"]
    spec["containers"] = [{"name": f"c{i}", "resources": one} for i, one in enumerate(needs)]
    spec["initContainers"] = [{"name": f"i{i}", "resources": one} for i, one in enumerate(init)]
    return job


@pytest.mark.parametrize(
    ("ranges", "needs", "requests", "limits"),
    [
        pytest.param([], {}, 0, 0, id="none"),
        pytest.param([{"defaultRequest": {"cpu": "2"}}], {}, 2000, 0, id="a request"),
        pytest.param([{"default": {"cpu": "4"}}], {}, 4000, 4000, id="a limit is the request"),
        pytest.param(
            [{"default": {"cpu": "4"}, "defaultRequest": {"cpu": "2"}}], {}, 2000, 4000, id="both"
        ),
        pytest.param([{"max": {"cpu": "8"}}], {}, 8000, 8000, id="the most is the default limit"),
        pytest.param([{"min": {"cpu": "1"}}], {}, 1000, 0, id="the least is the default request"),
        pytest.param(
            [{"min": {"cpu": "1"}, "default": {"cpu": "4"}}], {}, 4000, 4000, id="limit before least"
        ),
        pytest.param(
            [{"default": {"cpu": "4"}}], {"requests": {"cpu": "1"}}, 1000, 4000, id="asked for"
        ),
        pytest.param(
            [{"defaultRequest": {"cpu": "2"}}], {"limits": {"cpu": "3"}}, 3000, 3000,
            id="its own limit has precedence",
        ),
        pytest.param(
            [{"defaultRequest": {"cpu": "2"}}, {"defaultRequest": {"cpu": "5"}}], {}, 5000, 0,
            id="the later item of one",
        ),
    ],
)  # fmt: skip
def test_missing_requests_are_filled_in(
    ranges: list[Doc], needs: Doc, requests: int, limits: int
) -> None:
    (podset,) = asked(job_of(needs), limit_range(*ranges))
    assert (podset.shape.requests["cpu"], podset.limits["cpu"]) == (requests, limits)


def test_each_container_is_filled_in() -> None:
    job = job_of({}, {"requests": {"cpu": "5"}}, {}, init=({},))
    (podset,) = asked(job, limit_range({"defaultRequest": {"cpu": "2"}}))
    assert podset.shape.requests["cpu"] == 9000
    (podset,) = asked(job_of({}, init=({},)), limit_range({"defaultRequest": {"cpu": "2"}}))
    assert podset.shape.requests["cpu"] == 2000, "one after the other"


def test_the_first_of_several_limit_ranges_by_name_fills_in() -> None:
    ranges = [limit_range({"defaultRequest": {"cpu": cpu}}, name=cpu) for cpu in ("3", "1")]
    (podset,) = asked(job_of({}), *ranges)
    assert podset.shape.requests["cpu"] == 1000


def test_a_limit_range_of_another_namespace_or_for_pods_does_not_count() -> None:
    other = limit_range({"defaultRequest": {"cpu": "2"}}, namespace="other")
    pods = limit_range({"type": "Pod", "max": {"cpu": "2"}})
    (podset,) = asked(job_of({"requests": {"cpu": "0"}, "limits": {"cpu": "1"}}), other, pods)
    assert (podset.shape.requests["cpu"], podset.limits["cpu"]) == (0, 1000)


def test_every_template_of_a_job_is_filled_in() -> None:
    podsets = asked(pytorch_job("train"), limit_range({"defaultRequest": {"memory": "1Gi"}}))
    assert [podset.shape.requests["memory"] for podset in podsets] == [2**30, 2**30]


def test_a_limit_range_can_make_a_gang_too_large_for_its_queue() -> None:
    queue = cluster_queue("main", 8)
    (group,) = queue[0]["spec"]["resourceGroups"]
    group["coveredResources"].append("cpu")
    group["flavors"][0]["resources"].append({"name": "cpu", "nominalQuota": "7"})
    fleet = nodes("r", 1)
    fleet[0]["status"]["allocatable"]["cpu"] = "64"
    parts = [*queue, flavor(), *fleet, workload("train", "main", 4, 2)]
    assert planned(parts).started == ["train"]
    done = planned(parts, limit_range({"defaultRequest": {"cpu": "2"}}))
    assert done.waiting == {"train": "ExceedsMaxQuota"}


def test_a_quota_of_limits_counts_the_filled_in_limits() -> None:
    quota: Doc = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "team", "namespace": "default"},
        "spec": {"hard": {"limits.memory": "7Gi"}},
    }
    parts: list[Any] = [*cluster_queue("main", 8), flavor(), *nodes("r", 1), quota]
    train = workload("train", "main", 4, 2)
    needs = train["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["resources"]
    needs["requests"][GPU] = "2"
    for one in parts:
        if one["kind"] == "Node":
            one["status"]["allocatable"]["memory"] = "64Gi"
    assert planned(parts, train).started == ["train"]
    usual = limit_range({"default": {"memory": "2Gi"}, "defaultRequest": {"memory": "0"}})
    assert planned(parts, train, usual).waiting == {"train": "ResourceQuotaExceeded"}


SMALL = {"requests": {"cpu": "2"}, "limits": {"cpu": "4"}}


@pytest.mark.parametrize(
    ("item", "needs", "said"),
    [
        pytest.param({"max": {"cpu": "4"}}, SMALL, None, id="as much as is allowed"),
        pytest.param(
            {"max": {"cpu": "3"}}, SMALL,
            "containers[0]: the limit of 4 is more than the max of cpu (3)", id="a limit above it",
        ),
        pytest.param(
            {"max": {"cpu": "1"}}, {"requests": {"cpu": "1500m"}},
            "containers[0]: the request of 1500m is more than the max of cpu (1)", id="a request above it",
        ),
        pytest.param({"min": {"cpu": "2"}}, SMALL, None, id="as little as is allowed"),
        pytest.param(
            {"min": {"cpu": "3"}}, SMALL,
            "containers[0]: the request of 2 is less than the min of cpu (3)", id="a request below it",
        ),
        pytest.param(
            {"min": {"memory": "1Gi"}}, {"limits": {"memory": "1Mi"}},
            "containers[0]: the request of 1Mi is less than the min of memory (1Gi)",
            id="a limit below it is the request",
        ),
        pytest.param({"maxLimitRequestRatio": {"cpu": "2"}}, SMALL, None, id="the ratio allowed"),
        pytest.param(
            {"maxLimitRequestRatio": {"cpu": "1.5"}}, SMALL,
            "containers[0]: limit 4 over request 2 is more than the maxLimitRequestRatio of cpu (1.5)",
            id="more than the ratio",
        ),
        pytest.param(
            {"maxLimitRequestRatio": {"cpu": "2"}}, {"requests": {"cpu": "1"}},
            "containers[0] must set a request and a limit for cpu, because maxLimitRequestRatio is set",
            id="a ratio without a request",
        ),
        pytest.param(
            {"type": "Pod", "max": {"cpu": "7"}}, SMALL,
            "all containers together: the limit of 8 is more than the max of cpu (7)", id="all its containers",
        ),
        pytest.param(
            {"type": "Pod", "min": {"cpu": "5"}}, SMALL,
            "all containers together: the request of 4 is less than the min of cpu (5)", id="too little of all",
        ),
        pytest.param(
            {"type": "Pod", "max": {"memory": "1Gi"}}, SMALL,
            "all containers together must set a limit for memory: the max of memory is 1Gi",
            id="a missing limit",
        ),
        pytest.param(
            {"default": {"cpu": "1"}}, {"requests": {"cpu": "2"}},
            "containers[0]: the request of 2 cpu is above the default limit of 1",
            id="a request above the limit it fills in",
        ),
        pytest.param({"type": "PersistentVolumeClaim", "max": {"storage": "1"}}, SMALL, None, id="claims"),
    ],
)  # fmt: skip
def test_a_gang_whose_pods_would_be_rejected_stays_pending_with_the_reason(
    item: Doc, needs: Doc, said: str | None
) -> None:
    blocked = seen(job_of(needs, needs), limit_range(item)).blocked
    assert blocked is not None
    if said is None:
        assert "LocalQueue main does not exist" in blocked.message
        return
    assert blocked.code == "LimitRangeViolated"
    names, _, why = blocked.message.partition(" of namespace default: podset main: ")
    assert names in ("LimitRange usual", "LimitRanges")
    assert why == said
    assert blocked.details["resource"] in said


def test_an_init_container_can_violate_the_limit_range_too() -> None:
    job = job_of(SMALL, init=(SMALL, {"limits": {"cpu": "9"}}))
    blocked = seen(job, limit_range({"max": {"cpu": "8"}})).blocked
    assert blocked is not None
    assert "initContainers[1]: the request of 9 is more than the max of cpu (8)" in blocked.message


def test_the_init_container_that_an_operator_adds_can_violate_it() -> None:
    job = pytorch_job("train")
    blocked = seen(
        job, limit_range({"min": {"cpu": "200m"}, "defaultRequest": {"cpu": "1"}})
    ).blocked
    assert blocked is not None
    assert blocked.details["podSet"] == "worker"
    assert (
        "initContainers[0]: the request of 50m is less than the min of cpu (200m)"
        in blocked.message
    )


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"default": {"cpu": "much"}}, r"LimitRange/usual: spec.limits\[0\].default: cpu: 'much'"),
        ({"defaultRequest": {"cpu": "-1"}}, r"spec.limits\[0\].defaultRequest: cpu: '-1' is negative"),
        ({"max": ["cpu"]}, r"spec.limits\[0\].max: expected"),
    ],
)  # fmt: skip
def test_a_limit_range_that_no_api_server_stores_is_reported(item: Doc, said: str) -> None:
    with pytest.raises(DocumentError, match=said):
        asked(job_of({}), limit_range(item))


@pytest.mark.parametrize("needs", [{"limits": ["cpu"]}, [], {"requests": "cpu"}])
def test_a_malformed_container_gets_the_same_error_as_without_a_limit_range(needs: Any) -> None:
    errors = []
    for ranges in ((), (limit_range({"defaultRequest": {"cpu": "2"}}),)):
        with pytest.raises(DocumentError) as refused:
            asked(job_of(needs), *ranges)
        errors.append((refused.value.field, refused.value.reason))
    assert errors[0] == errors[1]
