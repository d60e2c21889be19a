"""Arrays: what the reader refuses, the records of indexes in the mirror, and plans of files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.arrays import LARGEST, index_of, index_uid, numbers, object_of, parted
from queuectl.domain.jobs import ArrayStatus, JobOutcome, JobRecord, PodPhase, PodRecord
from queuectl.domain.ledger import Document, Entry, State
from queuectl.domain.quantity import Resources
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import Deleted, ListCompleted, Record, Upserted
from queuectl.domain.redaction import Redactor
from queuectl.domain.snapshot import CapacityLease, Pending
from queuectl.domain.workload import Placement
from queuectl.state import arrays
from queuectl.state.arrays import opened_by_one
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from tests.planner.build import gang, podset
from tests.support.file_plans import planned, pod_of_index
from tests.support.jobs import read_job

ARRAY = "queuectl.dev/array"
IGNORED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


def array(
    indexes: int = 4, at_once: int = 2, value: str = "true", annotations: Mapping[str, str] = {}, **spec: Any
) -> Document:  # fmt: skip
    document = m.job(
        "sweep",
        "default",
        "main",
        PodSetManifest(indexes, gpus=1),
        annotations={ARRAY: value, **annotations},
    )
    more = {"parallelism": at_once, "podFailurePolicy": {"rules": [IGNORED]}, **spec}
    return {
        **document,
        "metadata": {**document["metadata"], "uid": "u", "resourceVersion": "1"},
        "spec": {"suspend": True, **document["spec"], **more},
    }


def test_an_array_has_one_pod_for_each_index_and_the_ends_of_its_status() -> None:
    status = {"completedIndexes": "0,2-3", "failedIndexes": "1"}
    record = read_job({**array(6, 2), "status": status})
    assert record.error is None
    assert record.array is not None
    assert (record.pods, record.array.at_once) == (1, 2)
    assert (record.array.succeeded, record.array.failed) == (frozenset({0, 2, 3}), frozenset({1}))
    assert list(numbers(record)) == [4, 5]


def test_a_job_that_is_not_an_array_has_all_its_pods() -> None:
    record = read_job(array(value="false"))
    assert (record.error, record.array, record.pods) == (None, None, 2)


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (array(value="yes"), "'yes' is neither \"true\" nor \"false\""),
        (array(completionMode="NonIndexed"), "spec.completionMode must be Indexed"),
        (array(1001), "spec.completions: 1001 is more than 1000 indexes"),
        (array(annotations={"queuectl.dev/job-min-parallelism": "1"}), "remove job-min-parallelism"),
        (array(podFailurePolicy={"rules": []}), "no rule with action Ignore"),
        (array(podFailurePolicy={"rules": [{**IGNORED, "action": "Count"}]}), "no rule with action"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_an_array_cannot_keep_is_refused(document: Document, sentence: str) -> None:
    error = read_job(document).error
    assert error is not None
    assert ARRAY in error
    assert sentence in error


def test_a_kind_without_its_own_indexes_is_not_an_array() -> None:
    document = m.pytorchjob(
        "train", "default", "main", worker=PodSetManifest(2, gpus=1), annotations={ARRAY: "true"}
    )
    record = read_job(document)
    assert record.unsupported
    assert "only a Job can be an array, not a PyTorchJob" in (record.error or "")


# ---- the mirror


def pod(name: str, rank: int, version: int = 1, **changes: Any) -> PodRecord:
    given: dict[str, Any] = {"owner": "u", "owner_kind": "Job", "podset": "main", "gated": True}
    return PodRecord("default", name, name, version, rank=rank, **{**given, **changes})


def mirror(*records: Record) -> Mirror:
    seen = Mirror({"jobs": "Job"})
    see(seen, *records)
    return seen


def see(seen: Mirror, *records: Record) -> set[str]:
    return seen.apply([Upserted(record) for record in records])


SUSPENDED = read_job(array())
RESUMED = replace(SUSPENDED, suspended=False, version=2)
FIRST, SECOND, THIRD = (index_uid("u", number) for number in range(3))


def test_the_indexes_of_an_array_are_jobs_and_the_array_is_not() -> None:
    seen = mirror(SUSPENDED)
    assert {uid: job.name for uid, job in seen.jobs.items()} == {
        FIRST: "sweep_0",
        SECOND: "sweep_1",
    }
    waits = {uid: bool(job.awaits) for uid, job in seen.jobs.items()}
    assert waits == {FIRST: False, SECOND: False}, "each of them can resume the Job"
    assert object_of(seen.jobs[SECOND]).uid == "u"


@pytest.mark.parametrize("ledger_first", [False, True])
def test_a_new_process_keeps_the_indexes_of_the_ledger_above_the_parallelism(
    ledger_first: bool,
) -> None:
    held = Entry(index_uid("u", 3), "Job", "default", "sweep_3", State.HELD)
    seen = Mirror({"jobs": "Job"})
    if not ledger_first:
        see(seen, RESUMED)
        assert held.uid not in seen.jobs
    seen.recognize([held], read=True, all_of_them=True)
    if ledger_first:
        see(seen, RESUMED)
    assert seen.jobs[held.uid].awaits == "its controller has not created the pod of index 3"


def test_an_index_that_has_ended_runs_again_only_with_another_pod() -> None:
    seen = mirror(RESUMED, pod("p", 0, attempt=1, gated=False, phase=PodPhase.SUCCEEDED))
    assert seen.jobs[FIRST].outcome is JobOutcome.SUCCEEDED
    seen.apply([Deleted("pods", "p", 1)])
    assert seen.jobs[FIRST].outcome is JobOutcome.SUCCEEDED, "the status of the Job is not newer"
    see(seen, pod("p", 0, 2, attempt=1, gated=False, phase=PodPhase.SUCCEEDED), pod("q", 0))
    again = seen.jobs[FIRST]
    assert (again.outcome, again.suspended, again.attempt, again.awaits) == (None, True, 1, "")


def test_an_array_that_runs_no_tasks_at_once_has_no_error() -> None:
    record = read_job(array(4, 0))
    assert (record.error, list(numbers(record))) == (None, [])
    assert read_job(array(4, 0, value="false")).error is not None


def test_an_index_that_has_ended_is_known_no_more() -> None:
    done = Entry(index_uid("u", 3), "Job", "default", "sweep_3", State.FINISHED)
    seen = Mirror({"jobs": "Job"})
    seen.recognize([replace(done, state=State.HELD)])
    seen.recognize([done])
    see(seen, RESUMED)
    assert done.uid not in seen.jobs


@pytest.mark.parametrize("pods_first", [False, True])
def test_a_pod_belongs_to_its_index_in_either_order_of_arrival(pods_first: bool) -> None:
    records: list[Record] = [RESUMED, pod("a", 0, gated=False, attempt=3), pod("b", 1)]
    seen = mirror(*(reversed(records) if pods_first else records))
    assert [one.name for one in seen.pods_of(seen.jobs[FIRST])] == ["a"]
    assert (seen.jobs[FIRST].suspended, seen.jobs[FIRST].attempt) == (False, 3)
    assert (seen.jobs[SECOND].suspended, seen.jobs[SECOND].attempt) == (True, 0)
    assert not any(job.awaits for job in seen.jobs.values())


def test_a_pod_of_another_namespace_or_kind_that_names_the_uid_belongs_to_no_index() -> None:
    seen = mirror(RESUMED, pod("a", 0, owner_kind="PyTorchJob"), pod("b", 1, owner="x"))
    assert not list(seen.pods_of(seen.jobs[FIRST]))
    assert not list(seen.pods_of(seen.jobs[SECOND]))


def test_an_index_ends_with_its_pod_or_by_the_status_and_the_next_one_follows() -> None:
    seen = mirror(RESUMED, pod("a", 0, gated=False), pod("b", 1))
    see(seen, pod("a", 0, 2, gated=False, phase=PodPhase.SUCCEEDED))
    assert seen.jobs[FIRST].outcome is JobOutcome.SUCCEEDED
    assert RESUMED.array is not None
    ended = replace(RESUMED.array, succeeded=frozenset({0}), failed=frozenset({1}))
    touched = see(seen, replace(RESUMED, array=ended, version=3))
    assert seen.jobs[SECOND].outcome is JobOutcome.FAILED
    assert seen.jobs[THIRD].outcome is None
    assert touched == {"u", SECOND, THIRD, index_uid("u", 3)}


def test_a_status_that_changes_no_index_touches_none_of_them() -> None:
    seen = mirror(RESUMED, pod("a", 0), pod("b", 1))
    assert see(seen, replace(RESUMED, version=9)) == {"u"}
    index = seen.job(FIRST)
    assert index is not None
    assert index.version == 9, "a write of its Job is conditioned on it"


@pytest.fixture
def records_made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the indexes whose records are made."""
    made: list[int] = []

    def recorded(job: JobRecord, number: int, pods: Iterable[PodRecord]) -> JobRecord:
        made.append(number)
        return index_of(job, number, pods)

    monkeypatch.setattr(arrays, "index_of", recorded)
    return made


@pytest.mark.parametrize("base", [0, 2], ids=["array", "elastic Job"])
def test_an_event_of_an_array_makes_the_records_of_the_indexes_that_differ(
    records_made: list[int], base: int
) -> None:
    job = replace(RESUMED, array=ArrayStatus(100, 100 if base else 50, base=base))
    seen = mirror(job)
    records_made.clear()
    see(seen, replace(job, version=3, status="Array: its status annotation"))
    assert not records_made
    assert job.array is not None
    one_ended = replace(job.array, succeeded=frozenset({7}))
    ended = replace(job, array=one_ended, ended=one_ended.succeeded, version=4)
    see(seen, ended)
    assert records_made == ([7] if base else [7, 50]), "the next index of an array follows"
    see(seen, replace(ended, queue="other", version=5))
    assert {index.queue for index in seen.jobs.values() if index.outcome is None} == {"other"}


def test_all_indexes_are_planned_with_the_size_of_the_first_larger_pod() -> None:
    """Each is a new start, and its pod has the same template."""
    seen = mirror(SUSPENDED)
    asked = seen.jobs[FIRST].podsets[0].shape.requests
    larger = Resources({**dict(asked.items()), "cpu": asked["cpu"] + 500})
    see(seen, RESUMED, pod("a", 0, requests=larger))
    sizes = {uid: job.podsets[0].shape.requests for uid, job in seen.jobs.items()}
    assert sizes == {FIRST: larger, SECOND: larger}
    see(seen, pod("a", 0, 2, requests=larger, attempt=1, gated=False), pod("b", 1, requests=larger))
    assert seen.jobs[SECOND].podsets[0].shape.requests == larger


@pytest.mark.parametrize(
    "deleted", [Deleted("jobs", "u", 5), ListCompleted("jobs", frozenset(), 5)], ids=str
)
def test_a_deleted_array_has_no_indexes(deleted: Any) -> None:
    seen = mirror(RESUMED, pod("a", 0))
    seen.touched.clear()
    assert seen.apply([deleted]) >= {FIRST, SECOND}
    assert not seen.jobs
    assert not seen.arrays


def test_a_complete_list_with_the_array_keeps_its_indexes() -> None:
    seen = mirror(RESUMED)
    seen.apply([ListCompleted("jobs", frozenset({"u"}), 5)])
    assert set(seen.jobs) == {FIRST, SECOND}


def test_a_waiting_job_can_become_an_array_and_a_gang_again() -> None:
    whole = replace(SUSPENDED, array=None)
    seen = mirror(whole)
    assert set(seen.jobs) == {"u"}
    see(seen, replace(SUSPENDED, version=2))
    assert set(seen.jobs) == {FIRST, SECOND}
    see(seen, replace(whole, version=3))
    assert set(seen.jobs) == {"u"}


WHOLE = read_job(array(value="false"))
ELASTIC = read_job(
    array(2, value="false", annotations={"queuectl.dev/elastic-job": "true"}, completions=2)
)
WRONG = read_job(
    array(2, value="false", annotations={"queuectl.dev/elastic-job": "true"}, completions=3)
)


@pytest.mark.parametrize("end", ["deleted", "succeeded"])
@pytest.mark.parametrize(
    ("before", "after"),
    [(SUSPENDED, WHOLE), (WHOLE, SUSPENDED), (ELASTIC, WRONG)],
    ids=[
        "an array that is one no longer",
        "a gang that is an array",
        "an elastic Job with an error",
    ],
)
def test_a_job_becomes_another_workload_when_its_pods_have_ended(
    before: JobRecord, after: JobRecord, end: str
) -> None:
    pods = [pod(f"p{rank}", rank, attempt=1, gated=False, node="n") for rank in range(2)]
    seen = mirror(replace(before, version=2, suspended=False), *pods)
    owners = {name: record.owner for name, record in seen.pods.items()}
    gangs = set(seen.jobs)
    see(seen, replace(after, version=3))
    see(seen, *(replace(one, version=4, terminating=True) for one in pods))
    assert set(seen.jobs) == gangs
    assert {name: record.owner for name, record in seen.pods.items()} == owners
    assert all(seen.jobs[uid].podsets for uid in gangs)
    if end == "deleted":
        seen.apply([Deleted("pods", one.uid, 5) for one in pods])
    else:
        see(seen, *(replace(one, version=5, phase=PodPhase.SUCCEEDED) for one in pods))
    fresh = mirror(replace(after, version=3))
    assert set(seen.jobs) == set(fresh.jobs)
    assert [seen.jobs[uid].error for uid in fresh.jobs] == [after.error] * len(fresh.jobs)


# ---- uids

UUIDS = st.uuids().map(str)


@given(UUIDS, st.integers(0, LARGEST - 1))
def test_the_uid_of_an_index_has_that_of_its_job_and_its_number(job: str, number: int) -> None:
    assert parted(index_uid(job, number)) == (job, number)
    assert parted(job) is None


@given(UUIDS, st.integers(0, 10_000), st.text("0123456789abcdef", min_size=8, max_size=8))
def test_the_uid_of_a_group_of_a_set_is_not_that_of_an_index(
    job: str, group: int, pod: str
) -> None:
    assert parted(f"{job}.{group:03d}.{pod}") is None


@pytest.mark.parametrize(
    "uid", ["u.1", "u.0001", "u.-01", "u.\u0660\u0660\u0661", "u.000.001", ".", ""]
)
def test_other_texts_are_not_the_uid_of_an_index(uid: str) -> None:
    assert parted(uid) is None


# ---- snapshots


def pending(uid: str, **changes: Any) -> Pending:
    workload = replace(gang(uid, podset()), priority=changes.pop("priority", 0))
    return Pending(workload, **changes)


HELD = Reason(Code.HELD)
LEASE = CapacityLease(Placement(()), (), 1.0, 9.0)


@pytest.mark.parametrize(
    ("gangs", "opens"),
    [
        ((pending(FIRST), pending(SECOND)), FIRST),
        ((pending(SECOND), pending(FIRST)), FIRST),
        ((pending(FIRST, blocked=HELD), pending(SECOND)), SECOND),
        ((pending(FIRST, priority=-1), pending(SECOND)), SECOND),
        ((pending(FIRST, excluded=frozenset({"n1"})), pending(SECOND)), SECOND),
        ((pending(FIRST), pending(SECOND, lease=LEASE)), SECOND),
        ((pending(FIRST, borrows_at=9.0), pending(SECOND)), SECOND),
    ],
)
def test_one_index_that_can_start_resumes_its_array(gangs: tuple[Pending, ...], opens: str) -> None:
    jobs, other = mirror(SUSPENDED).jobs, pending("other")
    found = opened_by_one([*gangs, other], jobs, Ledger(()))
    assert [one.workload for one in found] == [one.workload for one in (*gangs, other)]
    assert [one.workload.uid for one in found if one.blocked is None] == [opens, "other"]


def test_no_other_index_is_planned_while_one_resumes_the_array() -> None:
    jobs = mirror(SUSPENDED).jobs
    entries = [Entry(SECOND, "Job", "default", "sweep_1", State.PENDING, attempt=1, since=10.0)]
    starts = Entry(FIRST, "Job", "default", "sweep_0", State.STARTING)
    (found,) = opened_by_one([pending(SECOND)], jobs, Ledger((*entries, starts)))
    assert found.blocked == Reason(
        Code.WAITING_FOR_PODS, "its controller has not created the pod of index 1"
    )
    assert found.returns_by == 70.0, "it has started before"
    (resumed,) = opened_by_one([pending(SECOND)], mirror(RESUMED).jobs, Ledger((starts,)))
    assert resumed.blocked is None


# ---- files, and what others see


def test_a_plan_of_files_starts_the_indexes_that_fit() -> None:
    assert planned(2, array(4, 3)) == (["sweep_0", "sweep_1"], ["sweep_2"], [])


def test_a_plan_of_files_knows_the_indexes_that_run_by_their_pods() -> None:
    gate = {"schedulingGates": [{"name": "queuectl.dev/placement"}]}
    runs = pod_of_index("sweep", 0, {"nodeName": "n1"})
    waits = pod_of_index("sweep", 1, gate)
    assert planned(2, array(4, 2, suspend=False), runs, waits) == (["sweep_1"], [], ["sweep_0"])


def test_the_name_of_an_index_of_another_team_is_covered_whole() -> None:
    redactor = Redactor(frozenset({"secret"}), drawn=True)
    shown = redactor.redacted(Reason(Code.PREEMPTED, "preempted for secret/sweep_3; it lost 1 s"))
    assert shown.message == "preempted for another team; it lost 1 s"
