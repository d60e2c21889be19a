"""Limits of the execution time: of the job, by default of its ClusterQueue, and at most that of its ClusterQueue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, State
from queuectl.domain.queues import (
    NO_LIMITS,
    ClusterQueue,
    ExecutionLimits,
    LabelSelector,
    QueueConfig,
)
from queuectl.domain.reasons import Code
from queuectl.domain.workload import Duration
from queuectl.lifecycle.outstanding_writes import planned_of
from queuectl.lifecycle.transitions import alarm_of
from tests.unit.test_objects_snapshots import admission, job, load, pod, workload
from tests.unit.test_state import CONFIG, ENTRY, JOB, LIVE, RESUMED, World, on

RUNNING = replace(LIVE, state=State.RUNNING, intent=None, ready_at=11.0)


def config(**limits: float) -> QueueConfig:
    queue = ClusterQueue(
        "cq", namespace_selector=LabelSelector(), execution=ExecutionLimits(**limits)
    )
    return replace(CONFIG, cluster_queues={"cq": queue})


@pytest.mark.parametrize(
    ("limits", "stated", "limit", "refused"),
    [
        (NO_LIMITS, None, None, False),
        (NO_LIMITS, 60, 60, False),
        (ExecutionLimits(default=90), None, 90, False),
        (ExecutionLimits(default=90), 600, 600, False),  # the default is not a maximum
        (ExecutionLimits(most=300), None, 300, False),
        (ExecutionLimits(most=300), 300, 300, False),
        (ExecutionLimits(most=300), 301, 300, True),
        (ExecutionLimits(90, 300), None, 90, False),
        (ExecutionLimits(90, 300), 200, 200, False),
    ],
)
def test_the_job_states_a_limit_else_the_cluster_queue_up_to_its_maximum(
    limits: ExecutionLimits, stated: float | None, limit: float | None, refused: bool
) -> None:
    assert limits.limit(stated) == limit
    assert limits.refuses(stated) == refused


def started(limit: float | None) -> Entry:
    return replace(RUNNING, planned=planned_of(JOB, limit))


@pytest.mark.parametrize(
    ("entry", "stated", "ends"),
    [
        (started(60.0), None, 70.0),
        (started(60.0), 90.0, 70.0),  # a label that is changed after the start lengthens nothing
        (started(60.0), 30.0, 40.0),  # but it shortens
        (started(None), 30.0, 40.0),
        (started(None), None, None),
        (replace(started(60.0), past_seconds=50.0), None, 20.0),
        (RUNNING, None, None),  # it ran before queuectl: no start has kept the limits
        (RUNNING, 60.0, 70.0),
    ],
)
def test_a_gang_is_stopped_at_the_limit_of_its_start(
    entry: Entry, stated: float | None, ends: float | None
) -> None:
    job = replace(RESUMED, max_execution=stated)
    assert alarm_of(entry, job, CONFIG.rules.pods_ready, now=10.0) == ends
    if ends is None:
        return
    for now, state in ((ends - 1.0, State.RUNNING), (ends, State.EVICTING)):
        world = World(entry, records=[job, on("p1", "n1"), on("p2", "n2")])
        world.look(now, config(default=5.0, most=5.0))
        after = world.ledger.get("u1")
        assert after is not None
        assert after.state is state, "the limits of the queue now do not count"


@pytest.mark.parametrize(
    ("limit", "stated", "says"),
    [
        (60.0, None, "of 60 s, which ClusterQueue cq or the job set before its start"),
        (60.0, 90.0, "of 60 s, which ClusterQueue cq or the job set before its start"),
        (60.0, 60.0, "of 60 s"),
        (None, 60.0, "of 60 s"),
    ],
)
def test_the_reason_names_the_source_of_a_limit_that_the_job_does_not_state(
    limit: float | None, stated: float | None, says: str
) -> None:
    job = replace(RESUMED, max_execution=stated)
    world = World(started(limit), records=[job, on("p1", "n1"), on("p2", "n2")])
    world.look(70.0)
    after = world.ledger.get("u1")
    assert after is not None
    assert after.reason.code is Code.MAX_EXECUTION_TIME
    assert after.reason.message.endswith(f"the maximum execution time {says}")


def waiting(job: JobRecord, limits: QueueConfig, **fields: Any) -> Any:
    world = World(replace(ENTRY, **fields), records=[job])
    (pending,) = world.freeze(config=limits).pending
    return pending


@pytest.mark.parametrize(
    ("limits", "stated", "past", "duration"),
    [
        ({}, None, 0.0, None),
        ({}, 600.0, 0.0, Duration(600.0, enforced=True)),
        ({"default": 90.0}, None, 0.0, Duration(90.0, enforced=True)),
        ({"default": 90.0}, None, 50.0, Duration(40.0, enforced=True)),
    ],
)
def test_a_plan_knows_how_long_a_pending_gang_can_run(
    limits: dict[str, float], stated: float | None, past: float, duration: Duration | None
) -> None:
    job = replace(JOB, max_execution=stated)
    assert waiting(job, config(**limits), past_seconds=past).workload.duration == duration


def test_a_gang_that_states_more_than_the_maximum_does_not_start() -> None:
    why = waiting(replace(JOB, max_execution=7200.0), config(most=3600.0)).blocked
    text = "max-exec-time-seconds: 7200 s is more than the 3600 s that ClusterQueue cq permits"
    assert (why.code, why.message) == (Code.MISCONFIGURED, text)
    assert waiting(replace(JOB, max_execution=3600.0), config(most=3600.0)).blocked is None


MOST = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "ClusterQueue",
    "metadata": {"name": "limited"},
    "spec": {
        "namespaceSelector": {},
        "policy": {"defaultMaxExecTimeSeconds": 60, "maxExecTimeSeconds": 3600},
    },
}
LOCAL = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "LocalQueue",
    "metadata": {"name": "short", "namespace": "team-a"},
    "spec": {"clusterQueue": "limited"},
}


def labeled(**labels: str) -> dict[str, Any]:
    known = {"queuectl.dev/queue-name": "short"}
    return job(labels=known | {f"queuectl.dev/{k.replace('_', '-')}": v for k, v in labels.items()})


@pytest.mark.parametrize(
    ("given", "duration"),
    [
        (labeled(), Duration(60.0, enforced=True)),
        (labeled(max_exec_time_seconds="600"), Duration(600.0, enforced=True)),
        (job(labels={"queuectl.dev/queue-name": "main", "queuectl.dev/expected-duration-seconds": "90"}), Duration(90.0)),
        (job(), None),
        (workload(spec={"maximumExecutionTimeSeconds": 60}), Duration(60.0, enforced=True)),
        (workload(spec={"maximumExecutionTimeSeconds": 60}, status={"accumulatedPastExecutionTimeSeconds": 20}),
         Duration(40.0, enforced=True)),
    ],
)  # fmt: skip
def test_files_state_limits_and_expectations(
    given: dict[str, Any], duration: Duration | None
) -> None:
    (pending,) = load(given, MOST, LOCAL).snapshot.pending
    assert pending.workload.duration == duration
    assert pending.blocked is None


def test_a_file_with_more_than_the_maximum_is_refused() -> None:
    (pending,) = load(labeled(max_exec_time_seconds="3601"), MOST, LOCAL).snapshot.pending
    assert pending.blocked is not None
    assert (
        "3601 s is more than the 3600 s that ClusterQueue limited permits"
        in pending.blocked.message
    )


def test_a_running_gang_of_a_file_ends_at_its_limit() -> None:
    given = workload(spec={"maximumExecutionTimeSeconds": 60}, status=admission())
    (gang,) = load(given).snapshot.admitted
    assert gang.ends_at == gang.started_at + 60.0
    assert gang.end_enforced


def test_a_running_job_of_a_file_overruns_what_is_expected_and_is_estimated_again() -> None:
    given = job(suspend=False, uid="u")
    given["metadata"]["creationTimestamp"] = "2026-08-22T09:00:00Z"
    given["metadata"]["annotations"] = {"queuectl.dev/expected-duration-seconds": "60"}
    pods = [pod(f"p{n}", f"r1-{n}", owner="u") for n in "ab"]
    first = load(given, *pods).snapshot.admitted[0]
    assert first.ends_at == first.started_at + 60.0
    assert not first.end_enforced
    (later,) = load(given, *pods, now=first.started_at + 100.0).snapshot.admitted
    assert later.ends_at == first.started_at + 120.0
