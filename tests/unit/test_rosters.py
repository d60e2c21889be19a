"""The pods of a group: what is counted of them follows each change, at a cost that does not grow with their number."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.cluster.resources import watched
from queuectl.domain.gates import INVALID
from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.domain.records import Deleted, Upserted
from queuectl.objects.kinds import KINDS
from queuectl.objects.kinds.pods import MOST_PODS
from queuectl.objects.kinds.roster import Fact, Roster, member_of
from queuectl.state.mirror import Mirror
from tests.support.work import lines_run

READ: Any = {resource.name: resource.read for resource in watched()}["pods"]
GATE = "queuectl.dev/placement"


def pod(number: int, total: int, version: int, **more: Any) -> PodRecord:
    """A pod of the group ``g``. ``more``: other labels and annotations, phase, gated, cpu and finalizers."""
    labels = {
        "queuectl.dev/queue-name": more.get("queue", "main"),
        "queuectl.dev/pod-group-name": "g",
    }
    annotations = {
        "queuectl.dev/submitted-by": "a",
        "queuectl.dev/pod-group-total-count": str(total),
    }
    meta = {
        "metadata": {
            "name": f"p{number:05}", "namespace": "t", "uid": f"u{number:05}", "resourceVersion": str(version),
            "creationTimestamp": f"2026-01-01T00:00:{number % 3:02}Z",
            "labels": {**labels, **more.get("labels", {})}, "annotations": {**annotations, **more.get("annotations", {})},
            **({"deletionTimestamp": "2026-01-02T00:00:00Z"} if more.get("deleting") else {}),
        },
        "spec": {
            "schedulingGates": [{"name": GATE}] if more.get("gated", True) else [],
            "containers": [{"name": "m", "resources": {"requests": {"cpu": more.get("cpu", "1")}}}],
        },
        "status": {"phase": more.get("phase", "Pending")},
    }  # fmt: skip
    read: PodRecord = READ(json.dumps(meta).encode())
    return read


CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "gated": st.booleans(),
        "phase": st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
        "cpu": st.sampled_from(["1", "2"]),
        "queue": st.sampled_from(["main", "other"]),
        "deleting": st.booleans(),
        "labels": st.sampled_from([{}, {"queuectl.dev/workload": "u1", "queuectl.dev/attempt": "1"}]),
        "annotations": st.sampled_from([{}, {"queuectl.dev/after": "Job/a"}, {"queuectl.dev/pod-group-total-count": "0"}]),
    },
)  # fmt: skip
STEPS = st.lists(st.tuples(st.integers(0, 5), st.none() | CHANGES), max_size=30)


@given(STEPS)
def test_after_any_changes_a_roster_is_that_of_its_pods(
    steps: list[tuple[int, dict[str, Any] | None]],
) -> None:
    roster, pods = Roster(), dict[str, PodRecord]()
    for version, (number, change) in enumerate(steps, start=1):
        one = pod(number, 6, version, **(change or {}))
        if change is not None:
            roster.put(one)
            pods[one.uid] = one
        elif pods.pop(one.uid, None) is not None:
            roster.pop(one.uid)
        fresh = Roster(pods.values())
        in_order = sorted(pods.values(), key=lambda p: (member_of(p).job.created_at, p.name))
        assert list(roster) == list(fresh) == in_order
        for fact in Fact:
            assert roster.counts(fact) == fresh.counts(fact)
            for value in fresh.counts(fact):
                assert roster.first(fact, value) == fresh.first(fact, value)


@given(STEPS)
def test_a_group_that_follows_changes_is_one_that_is_assembled_of_its_pods(
    steps: list[tuple[int, dict[str, Any] | None]],
) -> None:
    """Podsets of a gang that has started are those of its start, and those of a gang that ends are the last ones: they are not compared."""
    mirror, pods = Mirror.of(KINDS), dict[str, PodRecord]()
    for version, (number, change) in enumerate(steps, start=1):
        waits = {**(change or {}), "gated": True, "phase": "Pending", "labels": {}}
        waits["annotations"] = {"queuectl.dev/after": f"Job/{waits.get('cpu')}"}
        one = pod(number, 3, version, **waits)
        if change is not None:
            mirror.apply([Upserted(one)])
            pods[one.uid] = one
        elif pods.pop(one.uid, None) is not None:
            mirror.apply([Deleted("pods", one.uid, version)])
    fresh = Mirror.of(KINDS)
    fresh.apply([Upserted(each) for each in pods.values()])
    got = [described(job) for job in mirror.jobs.values() if not job.absent]
    assert got == [described(job) for job in fresh.jobs.values()]


def described(job: JobRecord) -> tuple[object, ...]:
    podsets = () if job.deleting else job.podsets
    return podsets, job.awaits, job.error, job.gates, job.deleting, job.queue, job.attempt


EVENTS: dict[str, Callable[[int, int], PodRecord]] = {
    "a label": lambda number, n: pod(number, n, n + number + 1, labels={"x": "y"}),
    "a release": lambda number, n: pod(number, n, n + number + 1, gated=False),
    "an end": lambda number, n: pod(number, n, n + number + 1, gated=False, phase="Failed"),
    "another request": lambda number, n: pod(number, n, n + number + 1, cpu=str(number % 3 + 1)),
    "a deletion": lambda number, n: pod(number, n, n + number + 1, deleting=True),
}


EARLIER = {"queuectl.dev/workload": "w0", "queuectl.dev/attempt": "1"}


@pytest.mark.parametrize("what", EVENTS)
@pytest.mark.parametrize("earlier", [0, 1], ids=["alone", "after another group of its name"])
def test_an_event_of_a_pod_costs_the_same_however_many_pods_its_group_has(
    what: str, earlier: int
) -> None:
    def events(number: int) -> int:
        mirror = Mirror.of(KINDS)
        mirror.apply([Upserted(pod(k, number, k + 1)) for k in range(number)])
        ended = {"gated": False, "phase": "Succeeded", "labels": EARLIER}
        mirror.apply([Upserted(pod(number + k, number, 1, **ended)) for k in range(earlier)])
        mirror.apply([Upserted(EVENTS[what](0, number))])
        later = [Upserted(EVENTS[what](k, number)) for k in range(1, 30)]
        return lines_run(lambda: [mirror.apply([one]) for one in later])

    assert events(400) < 1.2 * events(100)


def test_a_group_of_more_pods_than_are_possible_has_an_error() -> None:
    mirror = Mirror.of(KINDS)
    mirror.apply([Upserted(pod(0, MOST_PODS + 1, 1))])
    (job,) = mirror.jobs.values()
    assert job.error is not None
    assert f"{MOST_PODS + 1}: a group has at most {MOST_PODS} pods" in job.error


def test_a_group_whose_pods_name_too_many_jobs_is_held_until_the_lists_are_valid() -> None:
    mirror = Mirror.of(KINDS)
    names = [f"Job/j{number}" for number in range(150)]
    lists = [",".join(names[:80]), ",".join(names[70:])]
    mirror.apply(
        [Upserted(pod(k, 2, k + 1, annotations={"queuectl.dev/after": one})) for k, one in enumerate(lists)]
    )  # fmt: skip
    (job,) = mirror.jobs.values()
    assert job.error is not None
    assert "have 150 different gates" in job.error
    assert job.gates == (INVALID,), "it waits for all gates of the corrected lists"
