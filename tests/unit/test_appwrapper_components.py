"""Components of an AppWrapper whose pods would run outside its gang."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from queuectl.domain.jobs import JobRecord
from queuectl.objects.kinds import DESCRIPTIONS, KINDS
from queuectl.objects.kinds.makers import MAKERS

Document = dict[str, Any]
POD: Document = {"containers": [{"name": "main", "image": "none"}]}
JOB: Document = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "job"},
    "spec": {"template": {"spec": {**POD, "restartPolicy": "Never"}}},
}
SUPPORTED = {"JobSet", "PyTorchJob", "RayCluster"}
OTHERS = [
    *(one for one in DESCRIPTIONS if one.kind not in SUPPORTED),
    *MAKERS,
]


def read(*templates: Document) -> JobRecord:
    """The record of an AppWrapper with these components."""
    kind = KINDS["AppWrapper"]
    document = {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {
            "name": "wrapped",
            "namespace": "team-a",
            "uid": "u",
            "labels": {"queuectl.dev/queue-name": "main"},
        },
        "spec": {"suspend": True, "components": [{"template": one} for one in templates]},
    }
    return kind.read(msgspec.json.decode(msgspec.json.encode(document), type=kind.wire))


def of(kind: str, api: str, **spec: Any) -> Document:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "other"}, "spec": spec}


@pytest.mark.parametrize("one", OTHERS, ids=lambda one: one.kind)
def test_the_pods_of_each_other_kind_are_refused_in_an_appwrapper(one: Any) -> None:
    api = f"{one.group}/{one.version}" if one.group else one.version
    record = read(JOB, of(one.kind, api))
    assert record.error is not None
    assert f"the pods of a {one.kind} are not supported" in record.error
    assert record.unsupported


def test_a_kind_that_queuectl_does_not_know_is_refused_if_it_has_containers() -> None:
    nested = of("Trial", "example.com/v1", parts=[{"template": {"spec": POD}}])
    assert "the pods of a Trial are not supported" in str(read(JOB, nested).error)


@pytest.mark.parametrize(
    "other",
    [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"containers": "x"}},
        of("Service", "v1", ports=[{"port": 80}]),
        of("Trial", "example.com/v1", size=2),
    ],
    ids=lambda one: one["kind"],
)  # fmt: skip
def test_a_component_without_pods_is_not_a_part_of_the_gang(other: Document) -> None:
    record = read(JOB, other)
    assert record.error is None
    assert record.pods == 1


def test_a_component_that_is_nested_deeply_is_read() -> None:
    deep: Any = POD
    for _ in range(400):
        deep = [deep]
    assert "the pods of a Trial are not supported" in str(
        read(JOB, of("Trial", "example.com/v1", parts=deep)).error
    )


JOBSET: Document = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "set"},
    "spec": {"replicatedJobs": [{"name": "w", "template": {"spec": JOB["spec"]}}]},
}


@pytest.mark.parametrize(
    ("numbers", "refused"),
    [
        ({}, False),
        ({"parallelism": 4}, False),
        ({"parallelism": 2, "completions": 2}, False),
        ({"parallelism": 3, "completions": 2}, False),
        ({"parallelism": 1, "completions": 4}, True),
        ({"completions": 2}, True),
    ],
)
@pytest.mark.parametrize("kind", ["Job", "JobSet"])
def test_a_component_whose_pods_follow_others_is_refused(
    kind: str, numbers: dict[str, int], *, refused: bool
) -> None:
    """The AppWrapper succeeds with the first pods, and the later ones would keep their gates."""
    job = {**JOB, "spec": {**JOB["spec"], **numbers}}
    replicated = [{"name": "w", "template": {"spec": job["spec"]}}]
    record = read(job if kind == "Job" else {**JOBSET, "spec": {"replicatedJobs": replicated}})
    assert bool(record.error) is refused
    assert not refused or "more completions than pods at once" in str(record.error)
