"""A job of the training operator starts again only after the pods of its last start are deleted.

The operator counts a failed pod of an earlier start as a failure of the job, for as long as its own watch shows the pod.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queuectl.domain.jobs import JobRecord, PodPhase, PodRecord
from queuectl.domain.ledger import Entry, Intent, Purpose, State
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.rules import Rules
from queuectl.lifecycle.old_pods import SEEN_WITHIN, OldPods
from queuectl.lifecycle.outstanding_writes import outstanding_writes
from queuectl.lifecycle.workload_events import ObservationRules, observe
from queuectl.objects.kinds import KINDS
from tests.control.rig import gang
from tests.doubles.cluster import FakeCluster

COUNTING = {"PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob"}
STATES: dict[str, dict[str, Any]] = {
    "it has failed and terminates": {"phase": PodPhase.FAILED, "terminating": True},
    "it has failed": {"phase": PodPhase.FAILED},
    "it has succeeded": {"phase": PodPhase.SUCCEEDED},
}


def suspended(kind: str) -> JobRecord:
    cluster = FakeCluster()
    job = cluster.job(cluster.submit(gang(kind, "train", 1)))
    return replace(job, suspended=True, drained=True, attempt=1)


def old_pod(job: JobRecord, **state: Any) -> PodRecord:
    place = (job.namespace, "train-0", "p", 9)
    return PodRecord(*place, owner=job.uid, owner_kind=job.kind, attempt=1, **state)


def starting(job: JobRecord) -> Entry:
    place = (job.uid, job.kind, job.namespace, job.name, State.STARTING, "main", "pool")
    reason = Reason(Code.ADMITTED)
    return Entry(*place, attempt=2, intent=Intent.START, started_at=0.0, reason=reason)


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
@pytest.mark.parametrize("kind", sorted({"Job", "JobSet", *COUNTING} & KINDS.keys()))
def test_a_start_waits_for_the_deletion_of_old_pods(kind: str, state: dict[str, Any]) -> None:
    job = suspended(kind)
    pods, entry = [old_pod(job, **state)], starting(job)
    written = [one.purpose for one in outstanding_writes(entry, job, pods, {}, {})]
    assert written == ([] if kind in COUNTING else [Purpose.START])
    assert [one.purpose for one in outstanding_writes(entry, job, [], {}, {})] == [Purpose.START]


def test_a_start_that_waits_too_long_names_the_pods() -> None:
    job = suspended("PyTorchJob")
    pod, rules = old_pod(job, phase=PodPhase.FAILED), ObservationRules(Rules(), 30.0, {})
    (event,) = observe(starting(job), job, [pod], 1e6, rules)
    assert "count 1 pod of an earlier start as failed until they are deleted" in str(event)


def test_the_operator_has_two_seconds_to_see_the_deletion() -> None:
    old, job = OldPods(), suspended("PyTorchJob")
    pods = [old_pod(job)]
    assert old.start_at(job, [], 5.0) == 0, "nothing is known of it"
    assert old.start_at(job, pods, 10.0) > 1e9
    assert old.start_at(job, [], 20.0) == 20 + SEEN_WITHIN
    assert old.start_at(job, [], 21.0) == 20 + SEEN_WITHIN
    assert old.start_at(job, pods, 21.0) > 1e9, "a late pod"
    assert old.start_at(job, [], 30.0) == 30 + SEEN_WITHIN
    old.forget(job.uid)
    assert old.start_at(job, [], 31.0) == 0


def test_jobs_of_other_kinds_start_at_once() -> None:
    old, job = OldPods(), suspended("Job")
    assert old.start_at(job, [old_pod(job)], 10.0) == 0
    assert old.start_at(job, [], 20.0) == 0
