"""Workloads that a Kueue left, and the assignment of pods without queuectl's labels."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from queuectl.domain.jobs import PriorAdmission, PriorPodSet
from queuectl.objects.errors import RequestError
from queuectl.objects.files.workloads import WireLeftWorkload, read_prior_admission
from queuectl.objects.kubernetes.pods import read_pod
from queuectl.objects.kubernetes.wire import WirePod
from queuectl.objects.times import parse_time
from tests.support.kueue import ADMITTED, CREATED, workload

JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train", "namespace": "team-a", "uid": "u1"},
}
HOSTS = {"main": [("h1", 3), ("h0", 1)]}


def read(document: Any) -> PriorAdmission | None:
    return read_prior_admission(msgspec.convert(document, WireLeftWorkload))


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_an_admission_is_read_in_either_version(version: str) -> None:
    found = read(workload(JOB, {"main": 4}, admitted="spot", hosts=HOSTS, version=version))
    assert found == PriorAdmission(
        uid="u1",
        kind="Job",
        namespace="team-a",
        name="train",
        queued_at=parse_time(CREATED),
        cluster_queue="pool",
        admitted_at=parse_time(ADMITTED),
        podsets={"main": PriorPodSet({"nvidia.com/gpu": "spot"}, (("h1", 3), ("h0", 1)))},
    )


def test_a_pending_workload_has_a_queue_position_and_no_admission() -> None:
    found = read(workload(JOB, {"main": 4}))
    assert found is not None
    assert (found.queued_at, found.admitted_at, found.podsets) == (parse_time(CREATED), None, {})
    assert found.active


def test_an_inactive_workload_is_reported() -> None:
    found = read(workload(JOB, {"main": 4}, active=False))
    assert found is not None
    assert not found.active


def test_finished_workloads_and_those_without_an_owner_do_not_count() -> None:
    assert read(workload(JOB, {"main": 4}, admitted="spot", finished=True)) is None
    alone = workload(JOB, {"main": 4}, admitted="spot")
    alone["metadata"]["ownerReferences"] = []
    assert read(alone) is None


def test_fields_of_a_newer_kueue_do_not_matter() -> None:
    newer = workload(JOB, {"main": 4}, admitted="spot")
    newer["spec"]["somethingNew"] = {"x": 1}
    newer["status"]["admission"]["somethingNew"] = True
    assert read(newer) is not None


def test_a_contradiction_is_reported() -> None:
    torn = workload(JOB, {"main": 4}, admitted="spot")
    torn["status"]["admission"]["podSetAssignments"] *= 2
    with pytest.raises(RequestError, match="twice"):
        read(torn)


@pytest.mark.parametrize(
    ("labels", "podset"),
    [
        ({"batch.kubernetes.io/job-name": "train"}, "main"),
        ({"training.kubeflow.org/replica-type": "worker"}, "worker"),
        ({"queuectl.dev/podset": "master", "training.kubeflow.org/replica-type": "x"}, "master"),
        ({"app": "x"}, ""),
    ],
)
def test_a_pod_belongs_to_the_podset_that_its_controller_names(
    labels: dict[str, str], podset: str
) -> None:
    document = {"metadata": {"name": "p", "uid": "p", "labels": labels}, "spec": {}}
    assert read_pod(msgspec.convert(document, WirePod)).podset == podset
