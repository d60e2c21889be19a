"""A RuntimeClass in the input changes the pods of a template as the API server does."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.domain.limits import Allowance
from queuectl.domain.snapshot import Pending
from queuectl.objects.documents import as_document
from queuectl.objects.errors import DocumentError
from queuectl.offline.inputs import read_snapshot
from tests.planner.documents import TOPOLOGY, Doc, cluster_queue, flavor, nodes, planned, workload
from tests.support.jobs import batch_job, pytorch_job

OVERHEAD: Doc = {"overhead": {"podFixed": {"cpu": "2", "memory": "1Gi"}}}
SELECTS: Doc = {"scheduling": {"nodeSelector": {"kata": "yes"}}}
TOLERATES: Doc = {"scheduling": {"tolerations": [{"key": "kata", "operator": "Exists"}]}}


def runtime_class(name: str = "kata", **fields: Any) -> Doc:
    meta = {"name": name}
    return {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": meta, **fields}


def in_a_vm(job: Doc | None = None, **spec: Any) -> Doc:
    """A job whose pods have the RuntimeClass."""
    job = job or batch_job("train", pods=1, gpus=1)
    parts = job["spec"]
    for part in parts.get("pytorchReplicaSpecs", {"": parts}).values():
        part["template"]["spec"] |= {"runtimeClassName": "kata", **spec}
    return job


def gang_in_a_vm(**spec: Any) -> Doc:
    """A Workload that requests only GPUs."""
    gang = workload("train", "main", 1, 8)
    gang["spec"]["podSets"][0]["template"]["spec"] |= {"runtimeClassName": "kata", **spec}
    return gang


def pending(job: Doc, *others: Doc) -> Pending:
    """A job as the planner receives it."""
    given = read_snapshot([as_document(one) for one in (*others, job)])
    assert given.account.ignored == ()
    (found,) = given.snapshot.pending
    return found


def test_each_podset_of_a_job_has_the_overhead() -> None:
    job = pytorch_job("train")
    before = [podset.shape.requests["cpu"] for podset in pending(job).workload.podsets]
    job = in_a_vm(pytorch_job("train"))
    after = [
        podset.shape.requests["cpu"]
        for podset in pending(job, runtime_class(**OVERHEAD)).workload.podsets
    ]
    assert after == [cpu + 2000 for cpu in before]


def test_the_same_overhead_in_the_template_counts_once() -> None:
    job = in_a_vm(overhead={"cpu": "2000m", "memory": "1Gi"})
    found = pending(job, runtime_class(**OVERHEAD))
    bare = pending(batch_job("train", pods=1, gpus=1))
    (podset,), (without,) = found.workload.podsets, bare.workload.podsets
    assert podset.shape.requests["cpu"] == without.shape.requests["cpu"] + 2000


def fleet() -> list[Doc]:
    """One node for pods of the class, and one for others."""
    kata, other = nodes("r", 2)
    kata["metadata"]["labels"]["kata"] = "yes"
    kata["spec"] = {"taints": [{"key": "kata", "effect": "NoSchedule"}]}
    return [kata, other]


@pytest.mark.parametrize(
    ("fields", "spec", "place"),
    [
        pytest.param({}, {}, 1, id="nothing is added"),
        pytest.param(SELECTS, {}, None, id="it selects a node with a taint"),
        pytest.param(
            {"scheduling": {**SELECTS["scheduling"], **TOLERATES["scheduling"]}}, {}, 0,
            id="it selects the node, and tolerates the taint",
        ),
        pytest.param(TOLERATES, {"nodeSelector": {"kata": "yes"}}, 0, id="the template selects, the class tolerates"),
        pytest.param(SELECTS, {"nodeSelector": {"kata": "yes"}, **TOLERATES["scheduling"]}, 0, id="both select it"),
    ],
)  # fmt: skip
def test_pods_are_placed_by_their_template_and_their_runtime_class(
    fields: Doc, spec: Doc, place: int | None
) -> None:
    found = fleet()
    racks = [TOPOLOGY, flavor(topology=True), *found]
    parts = [*cluster_queue("main", 8), *racks, runtime_class(**fields)]
    done = planned(parts, gang_in_a_vm(**spec))
    if place is None:
        assert done.waiting == {"train": "ShapeNeverFits"}
        return
    assert list(done.podset("train")["nodes"]) == [found[place]["metadata"]["name"]]


@pytest.mark.parametrize(
    ("classes", "spec", "said"),
    [
        pytest.param([], {}, "runtimeClassName: RuntimeClass kata does not exist", id="no such class"),
        pytest.param([runtime_class("other")], {}, "runtimeClassName: RuntimeClass kata does not exist", id="another class"),
        pytest.param(
            [runtime_class(**SELECTS)], {"nodeSelector": {"kata": "no"}},
            "nodeSelector[kata]: 'no' conflicts with 'yes' of RuntimeClass kata", id="another node label",
        ),
        pytest.param(
            [runtime_class(**OVERHEAD)], {"overhead": {"cpu": "1"}}, "overhead: differs from RuntimeClass kata", id="another overhead",
        ),
        pytest.param(
            [runtime_class()], {"overhead": {"cpu": "1"}}, "overhead: no RuntimeClass of the pod has an overhead", id="no overhead",
        ),
        pytest.param(
            [], {"overhead": {"cpu": "1"}, "runtimeClassName": None}, "overhead: no RuntimeClass of the pod", id="no class at all",
        ),
    ],
)  # fmt: skip
def test_a_gang_whose_pods_would_be_refused_is_not_planned(
    classes: list[Doc], spec: Doc, said: str
) -> None:
    blocked = pending(in_a_vm(**spec), *classes).blocked
    assert blocked is not None
    assert blocked.code == "Misconfigured"
    assert blocked.message.startswith(f"spec.template.spec.{said}")


def test_a_queue_need_not_cover_a_resource_that_only_the_overhead_has() -> None:
    job = gang_in_a_vm()
    found = nodes("r", 1)
    found[0]["status"]["allocatable"] |= {"memory": "64Gi", "cpu": "64"}
    parts: list[Any] = [*cluster_queue("main", 8), TOPOLOGY, flavor(topology=True), *found]
    small = runtime_class(overhead={"podFixed": {"memory": "1Gi"}})
    assert planned(parts, job, small).started == ["train"]
    large = runtime_class(overhead={"podFixed": {"memory": "65Gi"}})
    assert planned(parts, job, large).waiting == {"train": "ShapeNeverFits"}


def test_a_running_gang_without_its_runtime_class_has_a_warning() -> None:
    job = in_a_vm()
    job["metadata"]["uid"] = "u1"
    job["spec"]["suspend"] = False
    given = read_snapshot([as_document(job)])
    assert any("RuntimeClass kata is not in the input" in text for text in given.warnings)


def test_a_runtime_class_that_no_api_server_stores_is_reported() -> None:
    wrong = runtime_class(overhead={"podFixed": {"cpu": "much"}})
    with pytest.raises(DocumentError, match=r"RuntimeClass/kata: overhead.podFixed: cpu: 'much'"):
        pending(in_a_vm(), wrong)


@pytest.mark.parametrize("stated", [{}, {"overhead": {"cpu": "2", "memory": "1Gi"}}])
@pytest.mark.parametrize(
    ("resources", "best_effort"),
    [
        ({}, True),
        ({"requests": {"cpu": "1m"}}, False),
        ({"limits": {"memory": "1Ki"}}, False),
        ({"requests": {"cpu": "0"}, "limits": {"cpu": "1"}}, False),
    ],
)
def test_the_overhead_does_not_change_the_scope_of_a_resource_quota(
    stated: Doc, resources: dict[str, Doc], best_effort: bool
) -> None:
    """As ``ComputePodQOS`` of Kubernetes, which reads the containers."""
    gang = gang_in_a_vm(**stated)
    container = gang["spec"]["podSets"][0]["template"]["spec"]["containers"][0]
    for field, amounts in resources.items():
        container["resources"].setdefault(field, {}).update(amounts)
    (podset,) = pending(gang, runtime_class(**OVERHEAD)).workload.podsets
    assert podset.shape.requests["cpu"] >= 2000
    for scope in (True, False):
        quota = Allowance("team", (), best_effort=scope)
        assert quota.covers(podset) is (scope is best_effort)
