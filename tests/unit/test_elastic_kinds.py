"""Elastic jobs of described kinds: what the reader refuses, the podset that grows, the patches, and plans of files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from queuectl.domain.arrays import gang_uid, index_uid
from queuectl.domain.jobs import PodPhase, PodRecord
from queuectl.domain.ledger import Document
from queuectl.domain.records import Upserted
from queuectl.domain.workload import Growth
from queuectl.objects.documents import as_document
from queuectl.objects.kinds import DESCRIPTIONS, KINDS
from queuectl.objects.kinds.described import encoded
from queuectl.offline.inputs import read_snapshot
from queuectl.state.mirror import Mirror
from tests.support.elastic import GROWING, elastic_of
from tests.support.jobs import job_of, read_job

OURS, KUEUES = "queuectl.dev/elastic-job", "kueue.x-k8s.io/elastic-job"
BASE = "queuectl.dev/base-count"
MIN = "queuectl.dev/min-count"


def elastic(kind: str, pods: int = 5, least: int = 2, mark: str = OURS, **options: Any) -> Document:
    document = elastic_of(kind, job_of(kind, "train", pods=pods, gpus=1, **options), least, mark)
    meta = {**document["metadata"], "uid": "u", "resourceVersion": "1"}
    return {**document, "metadata": meta}


def changed(document: Document, path: str, value: Any) -> Document:
    """The object with another value of a field; None removes it."""
    first, _, rest = path.partition("/")
    kept = dict(document)
    if rest:
        kept[first] = changed(kept.get(first) or {}, rest, value)
    elif value is None:
        kept.pop(first, None)
    else:
        kept[first] = value
    return kept


def running(document: Document, base: int) -> Document:
    """The object after its start with so many pods of the podset that grows."""
    noted = changed(document, f"metadata/annotations/{BASE.replace('/', '~')}", str(base))
    marks = {key.replace("~", "/"): v for key, v in noted["metadata"]["annotations"].items()}
    path = KINDS[document["kind"]].description.suspend.replace(".", "/")  # type: ignore[attr-defined]
    return changed(changed(noted, "metadata/annotations", marks), path, False)


def suspended(document: Document) -> Document:
    path = KINDS[document["kind"]].description.suspend.replace(".", "/")  # type: ignore[attr-defined]
    return changed(document, path, True)


ALL = pytest.mark.parametrize("kind", GROWING)


@ALL
@pytest.mark.parametrize("mark", [OURS, KUEUES])
def test_its_gang_has_the_minimum_number_of_pods_of_one_podset(kind: str, mark: str) -> None:
    record = read_job(suspended(elastic(kind, mark=mark)))
    assert record.error is None
    assert record.array is not None
    assert (record.array.podset, record.array.base, record.array.at_once) == (GROWING[kind], 2, 4)
    assert {podset.name: podset.count for podset in record.podsets}[GROWING[kind]] == 2
    assert record.pods == 3
    assert not record.resizable


@ALL
def test_it_keeps_the_number_of_pods_with_which_it_started(kind: str) -> None:
    assert read_job(running(elastic(kind), 3)).pods == 4
    again = suspended(running(elastic(kind), 3))
    assert read_job(again).pods == 3, "of an attempt that has ended"


@ALL
def test_a_start_states_the_number_of_pods_and_a_stop_removes_it(kind: str) -> None:
    start = KINDS[kind].start_patch(read_job(suspended(elastic(kind))), 1, "s")
    assert start["metadata"]["annotations"][BASE] == "2"
    stop = KINDS[kind].stop_patch(read_job(running(elastic(kind), 2)), 1, "s")
    assert stop["metadata"]["annotations"][BASE] is None
    other = KINDS[kind].stop_patch(read_job(suspended(elastic(kind))), 1, "s")
    assert BASE not in other["metadata"]["annotations"], "a JSON patch cannot remove it"
    assert encoded(stop)


@ALL
def test_a_pod_above_its_minimum_is_a_workload_of_its_podset(kind: str) -> None:
    seen, podset = Mirror({KINDS[kind].plural: kind}), GROWING[kind]
    job = replace(read_job(running(elastic(kind), 2)), attempt=1)
    pods = [
        PodRecord("default", f"{name}-{rank}", f"{name}-{rank}", 1, owner="u", owner_kind=kind, podset=name, rank=rank,
                  gated=True, attempt=1, workload="u")
        for name in (podset, "other") for rank in range(4)
    ]  # fmt: skip
    seen.apply([Upserted(job), *map(Upserted, pods)])
    assert {uid: one.name for uid, one in seen.jobs.items()} == {
        "u": "train",
        "u.002": "train_2",
        "u.003": "train_3",
    }
    third = seen.jobs["u.002"]
    [asked] = third.podsets
    assert (asked.name, asked.count, third.of_pods, third.awaits) == (podset, 1, True, "")
    [own] = seen.pods_of(third)
    assert (own.name, own.attempt) == (f"{podset}-2", 0)
    assert gang_uid(job, pods[-1]) == "u", "a rank of another podset is of the gang"
    told = replace(pods[2], version=2, gated=False, workload="u.002", preempt_requested="soon")
    seen.apply([Upserted(told)])
    asked_to_stop = seen.jobs["u.002"]
    assert (asked_to_stop.preempt_requested, asked_to_stop.preempt_ready) == ("soon", False)
    seen.apply([Upserted(replace(told, version=3, preempt_ready=True))])
    assert seen.jobs["u.002"].preempt_ready
    assert (seen.jobs["u"].preempt_requested, seen.jobs["u"].preempt_ready) == ("", False)
    ended = replace(pods[2], version=4, phase=PodPhase.SUCCEEDED, gated=False, workload="u.002")
    seen.apply([Upserted(ended)])
    assert seen.jobs["u.002"].outcome is None, "its controller can create it again"
    seen.apply([Upserted(replace(job, version=9, suspended=True))])
    assert "the gang of the first 2 pods does not run" in seen.jobs["u.003"].awaits


WORKER = "spec/pytorchReplicaSpecs/Worker"
LEAST = f"{WORKER}/template/metadata/annotations"


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("spec/elasticPolicy/minReplicas", None, f"set {MIN} in spec.pytorchReplicaSpecs.Worker.template.metadata.annotations"),
        (f"{WORKER}/restartPolicy", "Never", "each eviction of a worker would be the failure of the job"),
        (f"{WORKER}/restartPolicy", None, "Worker.restartPolicy must be OnFailure"),
        (f"{WORKER}/replicas", 1001, "1001 is more than 1000 pods"),
        ("spec/runPolicy/backoffLimit", 0, "spec.runPolicy.backoffLimit: with 0"),
        ("metadata/annotations", {OURS: "yes"}, "'yes' is neither \"true\" nor \"false\""),
        (LEAST, {MIN: "5"}, "'5' is not a number from 1 to 4"),
        (LEAST, {MIN: "x"}, "Worker.template.metadata.annotations: queuectl.dev/min-count: 'x' is not"),
        (LEAST, {MIN: "1"}, "'1' is less than 2"),
        (LEAST, {"queuectl.dev/podset-slice-required-topology": "rack", "queuectl.dev/podset-slice-size": "2"}, "remove the topology of slices"),
    ],
)  # fmt: skip
def test_what_an_elastic_pytorchjob_cannot_keep_is_refused(
    path: str, value: Any, sentence: str
) -> None:
    assert sentence in (read_job(changed(elastic("PyTorchJob"), path, value)).error or "")


def test_an_elastic_pytorchjob_needs_an_elastic_policy() -> None:
    document = changed(
        changed(elastic("PyTorchJob"), LEAST, {MIN: "2"}), "spec/elasticPolicy", None
    )
    assert "spec.elasticPolicy is required" in (read_job(document).error or "")


def group(**changes: Any) -> Document:
    [own] = elastic("RayCluster")["spec"]["workerGroupSpecs"]
    return {**own, **changes}


NO_LEAST = "no podset that can grow has a minimum number of pods"


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        ([group(minReplicas=0)], f"{NO_LEAST}: set {MIN} in spec.workerGroupSpecs[0].template.metadata.annotations"),
        ([group(numOfHosts=2)], NO_LEAST),
        ([group(), group(groupName="more")], "only one podset can grow, not spec.workerGroupSpecs[0] and spec.workerGroupSpecs[1]"),
        ([group(replicas=1001, maxReplicas=2000)], "spec.workerGroupSpecs[0]: 1001 is more than 1000 pods"),
        ([group(), group(groupName="more", minReplicas=4)], None),
        ([group(), group(groupName="more", numOfHosts=2)], None),
    ],
)  # fmt: skip
def test_one_group_of_workers_of_a_raycluster_grows(
    groups: list[Document], sentence: str | None
) -> None:
    record = read_job(changed(elastic("RayCluster"), "spec/workerGroupSpecs", groups))
    if sentence is not None:
        assert sentence in (record.error or "")
    else:
        assert record.error is None
        assert record.array is not None
        assert (record.array.podset, record.array.base) == ("workers", 2)


def of_workers(document: Document, **changes: Any) -> Document:
    [leader, workers] = document["spec"]["replicatedJobs"]
    workers = {**workers, "replicas": changes.pop("replicas", 1)}
    workers = changed(workers, "template/spec", {**workers["template"]["spec"], **changes})
    return changed(document, "spec/replicatedJobs", [leader, workers])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"replicas": 2}, NO_LEAST),
        ({"completions": 8}, "completions is 8 and template.spec.parallelism is 4: they must be equal"),
        ({"completionMode": "NonIndexed"}, "spec.replicatedJobs[1].template.spec.completionMode must be Indexed"),
        ({"podFailurePolicy": None}, "spec.replicatedJobs[1].template.spec.podFailurePolicy has no rule with action Ignore"),
        ({"successPolicy": None}, "successPolicy has no rule that the first 2 indexes can fulfill"),
        ({"successPolicy": {"rules": [{"succeededIndexes": "3"}]}}, "no rule that the first 2 indexes"),
    ],
)  # fmt: skip
def test_what_an_elastic_jobset_cannot_keep_is_refused(
    changes: dict[str, Any], sentence: str
) -> None:
    assert sentence in (read_job(of_workers(elastic("JobSet"), **changes)).error or "")


def test_other_jobs_of_a_jobset_do_not_wait_for_pods_that_are_added_later() -> None:
    document = elastic("JobSet")
    in_order = changed(document, "spec/startupPolicy", {"startupPolicyOrder": "InOrder"})
    [leader, workers] = document["spec"]["replicatedJobs"]

    def after(status: str) -> Document:
        leading = {**leader, "dependsOn": [{"name": "workers", "status": status}]}
        return changed(document, "spec/replicatedJobs", [leading, workers])

    for refused in (in_order, after("Ready")):
        text = "other Jobs only when all pods of spec.replicatedJobs[1] are ready"
        assert text in (read_job(refused).error or "")
    assert read_job(after("Complete")).error is None


def test_a_condition_without_a_status_is_that_of_the_webhook_of_jobsets() -> None:
    conditions = [{"type": "DisruptionTarget", "status": ""}]
    policy = {"rules": [{"action": "Ignore", "onPodConditions": conditions}]}
    assert read_job(of_workers(elastic("JobSet"), podFailurePolicy=policy)).error is None


def test_a_job_of_a_jobset_that_does_not_decide_on_its_success_needs_no_success_policy() -> None:
    target = {"operator": "All", "targetReplicatedJobs": ["leader"]}
    document = changed(of_workers(elastic("JobSet"), successPolicy=None), "spec/successPolicy", target)  # fmt: skip
    assert read_job(document).error is None


@pytest.mark.parametrize(("text", "least"), [("3", 3), ("4", 4)])
def test_the_annotation_of_its_pods_is_before_the_field_of_the_kind(text: str, least: int) -> None:
    record = read_job(changed(elastic("PyTorchJob"), LEAST, {MIN: text}))
    assert record.error is None
    assert record.array is not None
    assert record.array.base == least


@pytest.mark.parametrize(
    "kind", [one.kind for one in DESCRIPTIONS if one.podsets and one.kind not in GROWING]
)
def test_other_kinds_are_not_elastic(kind: str) -> None:
    document = job_of(kind, "train", pods=4)
    record = read_job(changed(document, "metadata/annotations", {OURS: "true"}))
    assert record.unsupported
    assert f"a {kind} cannot be elastic" in (record.error or "")


# ---- files


def pod_of(kind: str, rank: int) -> Document:
    """A gated pod of the podset that grows, as its controller creates it."""
    labels = {
        "queuectl.dev/podset": GROWING[kind],
        "training.kubeflow.org/replica-index": str(rank),
    }
    owner = {
        "kind": kind,
        "name": "train",
        "uid": "u",
        "controller": True,
        "apiVersion": "kubeflow.org/v1",
    }
    gate = {"schedulingGates": [{"name": "queuectl.dev/placement"}]}
    containers = [{"name": "main", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]
    meta: Mapping[str, Any] = {
        "name": f"p{rank}",
        "namespace": "default",
        "labels": labels,
        "ownerReferences": [owner],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": containers, **gate}, "status": {"phase": "Pending"}}  # fmt: skip


@ALL
def test_a_plan_of_files_has_the_pods_above_the_minimum(kind: str) -> None:
    given = [running(elastic(kind), 2), *(pod_of(kind, rank) for rank in range(4))]
    snapshot = read_snapshot([as_document(dict(one)) for one in given], now=1.8e9).snapshot
    found = {one.workload.name: one.workload.growth for one in snapshot.pending}
    assert {name: found[name] for name in ("train_2", "train_3")} == {
        "train_2": Growth("u", 2),
        "train_3": Growth("u", 3),
    }
    assert index_uid("u", 2) in {one.workload.uid for one in snapshot.pending}
