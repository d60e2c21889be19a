"""Gangs that Kueue started: which pods are theirs, and that the JobSet of a TrainJob is not a gang alongside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import pytest

from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.domain.records import Deleted, Delta, Upserted
from queuectl.objects import keys
from queuectl.objects.kinds import KINDS
from queuectl.objects.kubernetes.pods import read_pod
from queuectl.objects.kubernetes.wire import (
    OwnerReference,
    PodMeta,
    PodNotes,
    WirePod,
)
from queuectl.objects.kueue_names import workload_name
from queuectl.state.mirror import Mirror

JOBSET = JobRecord("JobSet", "a", "train", "s1", 7, 1.0, "q")
TRAINJOB = JobRecord("TrainJob", "a", "train", "t1", 6, 1.0, "q")
NAME = workload_name("JobSet", "jobset.x-k8s.io", "train", "s1")


def pod(workload: str = NAME, owner_kind: str = "Job", namespace: str = "a") -> PodRecord:
    """A pod of a Job of a JobSet."""
    return PodRecord(
        namespace, "p", "p1", 8, owner="j1", owner_kind=owner_kind, kueue_workload=workload
    )


def mirror(*deltas: Delta) -> Mirror:
    made = Mirror.of(KINDS)
    for delta in deltas:
        made.apply([delta])
    return made


def owned(*deltas: Delta) -> list[str]:
    return [one.uid for one in mirror(*deltas).pods_of(JOBSET)]


def test_a_pod_belongs_to_the_job_of_its_workload_in_each_order_of_events() -> None:
    job, own = Upserted(JOBSET), Upserted(pod())
    assert owned(job, own) == owned(own, job) == ["p1"]
    later = Upserted(replace(pod(), version=9, ready=True))
    assert owned(own, job, later) == owned(job, own, Upserted(JOBSET), later) == ["p1"]
    assert owned(own, job, Deleted("pods", "p1", 9)) == []
    gone = mirror(job, own, Deleted("jobsets", "s1", 9))
    assert [one.owner for one in gone.pods_of(JOBSET)] == ["s1"], "it leaves as a pod of the gang"


@pytest.mark.parametrize(
    "other",
    [
        pod(workload_name("JobSet", "jobset.x-k8s.io", "train", "another")),
        pod(namespace="b"),
        pod(owner_kind="ReplicaSet"),
        pod(owner_kind=""),
        pod(""),
    ],
)
def test_a_pod_of_another_uid_namespace_or_maker_does_not(other: PodRecord) -> None:
    assert owned(Upserted(JOBSET), Upserted(other)) == []


def read(labels: dict[str, str], workload: str = NAME) -> PodRecord:
    owner = OwnerReference(kind="Job", uid="j1", controller=True)
    notes = PodNotes(kueue_workload=workload)
    meta = PodMeta(name="p", uid="p1", labels=labels, annotations=notes, owner_references=[owner])
    return read_pod(WirePod(metadata=meta))


def test_the_podset_that_kueue_states_counts_until_queuectl_starts_the_pod() -> None:
    of_kueue = {keys.KUEUE_PODSET_LABEL: "workers", keys.JOB_NAME_LABEL: "train-workers-0"}
    first = read(of_kueue)
    assert (first.podset, first.kueue_workload) == ("workers", NAME)
    again = read(of_kueue | {keys.PODSET_LABEL: "w", keys.ATTEMPT_LABEL: "1"})
    assert (again.podset, again.kueue_workload) == ("w", "")
    assert read({keys.JOB_NAME_LABEL: "train"}).podset == keys.JOB_PODSET
    assert read({keys.JOB_NAME_LABEL: "train"}).kueue_workload == ""


def test_the_rank_of_a_pod_of_a_group_is_not_known_before_queuectl_starts_it() -> None:
    """Each Job of a JobSet has an index 0."""
    index, job = keys.RANK_LABELS[0], keys.GROUP_LABELS[0]
    of_kueue = {keys.KUEUE_PODSET_LABEL: "workers", index: "1"}
    assert read(of_kueue).rank == 1
    assert read(of_kueue | {job: "2"}).rank is None
    ours = {keys.ATTEMPT_LABEL: "1", keys.RANKS_LABEL: "4"}
    assert read(of_kueue | {job: "2"} | ours).rank == 9


def jobs_after(deltas: Sequence[Delta]) -> set[str]:
    return set(mirror(*deltas).jobs)


def test_the_jobset_of_a_queued_trainjob_is_not_a_gang_even_with_a_queue_label() -> None:
    """Kueue gives the label to both."""
    child = replace(JOBSET, parent="t1")
    for deltas in permutations([Upserted(child), Upserted(TRAINJOB)]):
        assert jobs_after(deltas) == {"t1"}
    unqueued = replace(TRAINJOB, queue=None)
    for deltas in permutations([Upserted(child), Upserted(unqueued)]):
        assert "s1" in jobs_after(deltas), "its own queue is the only one"
    assert jobs_after([Upserted(child), Upserted(TRAINJOB), Deleted("jobsets", "s1", 9)]) == {"t1"}
