"""Admission gates and dependencies: their syntax, the status of each, and the reason of a held job."""

from __future__ import annotations

import pytest

from queuectl.domain.dependency_graph import DependencyGraph, JobFound
from queuectl.domain.gates import (
    INVALID,
    Dependency,
    DependencyStatus,
    Ends,
    JobName,
    Standing,
    admission_gates,
    distinct_gates,
    held_by,
    remaining,
    same_gates,
)
from queuectl.domain.jobs import JobOutcome
from queuectl.domain.reasons import Code

ME = JobName.of("Job", "team-a", "train")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Job/prep", Dependency("Job", "prep", Ends.OK)),
        ("job/prep:ok", Dependency("job", "prep", Ends.OK)),
        ("PyTorchJob/a.b-1:any", Dependency("PyTorchJob", "a.b-1", Ends.ANY)),
        ("Job/prep:failed", Dependency("Job", "prep", Ends.FAILED)),
    ],
)
def test_a_dependency_is_a_kind_a_name_and_how_it_ends(text: str, read: Dependency) -> None:
    assert Dependency.parse(text) == read
    assert Dependency.of_gate(read.gate) == read
    assert Dependency.parse(str(read)) == read


@pytest.mark.parametrize(
    "text", ["prep", "Job/", "/prep", "Job/Prep", "Job/prep:", "Job/prep:soon", "a/b/c", "Job/-a", "Job/a b"]
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not KIND/NAME|is not ok, any or failed"):
        Dependency.parse(text)


def test_an_admission_gate_is_not_a_dependency() -> None:
    for gate in ("example.com/data", "after", "Job/prep:ok"):
        assert Dependency.of_gate(gate) is None


# how it is to end: the statuses that satisfy it, and those that never will
ENDINGS = {
    Ends.OK: ({DependencyStatus.SUCCEEDED}, {DependencyStatus.FAILED, DependencyStatus.CYCLE}),
    Ends.ANY: ({DependencyStatus.SUCCEEDED, DependencyStatus.FAILED}, {DependencyStatus.CYCLE}),
    Ends.FAILED: ({DependencyStatus.FAILED}, {DependencyStatus.SUCCEEDED, DependencyStatus.CYCLE}),
}


@pytest.mark.parametrize("ends", Ends)
@pytest.mark.parametrize("status", DependencyStatus)
def test_a_dependency_is_satisfied_open_or_never_satisfied(
    ends: Ends, status: DependencyStatus
) -> None:
    one = Dependency("Job", "prep", ends)
    satisfied, never = ENDINGS[ends]
    assert one.satisfied(status) == (status in satisfied)
    assert one.never_satisfied(status) == (status in never)
    kept = () if status in satisfied else (one.gate,)
    assert remaining((one.gate,), {one.gate: Standing(status)}) == kept


def found(**jobs: JobFound) -> dict[JobName, JobFound]:
    return {JobName.of("Job", "team-a", name): job for name, job in jobs.items()}


def statuses_of(gates: tuple[str, ...], jobs: dict[JobName, JobFound]) -> dict[str, Standing]:
    return DependencyGraph({**jobs, ME: JobFound(None, gates)}).statuses(ME, gates)


def after(*names: str) -> tuple[str, ...]:
    return tuple(Dependency("Job", name).gate for name in names)


OPEN = JobFound(None, ())
STATUSES: list[tuple[str, dict[JobName, JobFound], DependencyStatus]] = [
    ("a job that is not there", {}, DependencyStatus.MISSING),
    ("one that runs", found(prep=OPEN), DependencyStatus.UNFINISHED),
    ("one that succeeded", found(prep=JobFound(JobOutcome.SUCCEEDED, ())), DependencyStatus.SUCCEEDED),
    ("one that failed", found(prep=JobFound(JobOutcome.FAILED, ())), DependencyStatus.FAILED),
    ("one that waits for another job", found(prep=JobFound(None, after("data")), data=OPEN), DependencyStatus.UNFINISHED),
    ("one that waits for a job that is not there", found(prep=JobFound(None, after("data"))), DependencyStatus.UNFINISHED),
    ("one that waits for this job", found(prep=JobFound(None, after("train")), train=OPEN), DependencyStatus.CYCLE),
    ("one that waits for it through another",
     found(prep=JobFound(None, after("data")), data=JobFound(None, ("example.com/x", *after("train"))), train=OPEN), DependencyStatus.CYCLE),
    ("one that waited for it, and ended", found(prep=JobFound(JobOutcome.SUCCEEDED, after("train"))), DependencyStatus.SUCCEEDED),
    ("one in a cycle without this job",
     found(prep=JobFound(None, after("data")), data=JobFound(None, after("prep"))), DependencyStatus.UNFINISHED),
]  # fmt: skip


@pytest.mark.parametrize(("jobs", "status"), [row[1:] for row in STATUSES], ids=[row[0] for row in STATUSES])  # fmt: skip
def test_a_dependency_has_the_status_of_the_job(
    jobs: dict[JobName, JobFound], status: DependencyStatus
) -> None:
    gates = ("example.com/data", *after("prep"))
    statuses = {gate: one.status for gate, one in statuses_of(gates, jobs).items()}
    assert statuses == {after("prep")[0]: status}


WAYS = [
    ("itself", found(train=JobFound(None, after("train"))), "train",
     "held until Job/train succeeds (a cycle: Job/train waits for Job/train)"),
    ("one that waits for this job", found(prep=JobFound(None, after("train")), train=OPEN), "prep",
     "held until Job/prep succeeds (a cycle: Job/train waits for Job/prep, which waits for Job/train)"),
    ("two more jobs, by the shortest way",
     found(prep=JobFound(None, after("x", "data")), data=JobFound(None, after("train")), x=JobFound(None, after("y")),
           y=JobFound(None, after("data", "train")), train=OPEN), "prep",
     "held until Job/prep succeeds (a cycle: Job/train waits for Job/prep, which waits for Job/data, which waits for Job/train)"),
]  # fmt: skip


@pytest.mark.parametrize(("jobs", "name", "message"), [row[1:] for row in WAYS], ids=[row[0] for row in WAYS])  # fmt: skip
def test_the_reason_names_the_jobs_of_a_cycle_in_their_order(
    jobs: dict[JobName, JobFound], name: str, message: str
) -> None:
    reason = held_by(after(name), statuses_of(after(name), jobs))
    assert (reason.code, reason.message) == (Code.DEPENDENCY_NEVER_SATISFIED, message)


def test_a_job_of_another_namespace_or_kind_is_not_meant() -> None:
    others = {
        JobName.of("Job", "team-b", "prep"): OPEN,
        JobName.of("PyTorchJob", "team-a", "prep"): OPEN,
    }
    assert statuses_of(after("prep"), others) == {
        after("prep")[0]: Standing(DependencyStatus.MISSING)
    }


MESSAGES = [
    (("example.com/data",), None, Code.ADMISSION_GATED, "held until these admission gates are removed: example.com/data"),
    (after("prep"), DependencyStatus.UNFINISHED, Code.DEPENDENCY, "held until Job/prep succeeds"),
    (after("prep"), DependencyStatus.MISSING, Code.DEPENDENCY, "held until Job/prep succeeds (no such job with a queue is in its namespace)"),
    (after("prep"), DependencyStatus.FAILED, Code.DEPENDENCY_NEVER_SATISFIED, "held until Job/prep succeeds (it failed)"),
    ((Dependency("Job", "prep", Ends.FAILED).gate,), DependencyStatus.SUCCEEDED, Code.DEPENDENCY_NEVER_SATISFIED,
     "held until Job/prep fails (it succeeded)"),
    ((Dependency("Job", "prep", Ends.ANY).gate,), DependencyStatus.UNFINISHED, Code.DEPENDENCY, "held until Job/prep ends"),
    (("a.com/x", *after("prep")), DependencyStatus.UNFINISHED, Code.ADMISSION_GATED,
     "held until these admission gates are removed: a.com/x, and until Job/prep succeeds"),
]  # fmt: skip


@pytest.mark.parametrize(("gates", "status", "code", "message"), MESSAGES)
def test_the_reason_of_a_held_job_states_what_is_missing(
    gates: tuple[str, ...], status: DependencyStatus | None, code: Code, message: str
) -> None:
    statuses = {gates[-1]: Standing(status)} if status is not None else {}
    reason = held_by(gates, statuses)
    assert (reason.code, reason.message) == (code, message)


def test_the_reason_names_ten_of_many_jobs_and_first_those_that_never_end_as_required() -> None:
    gates = after(*(f"step-{n:02}" for n in range(20)))
    failed = {gates[15]: Standing(DependencyStatus.FAILED)}
    reason = held_by(gates, failed)
    first = (
        "held until Job/step-15 succeeds (it failed), and until Job/step-00 succeeds, and until "
    )
    assert reason.message.startswith(first)
    assert reason.message.endswith(
        ", and until Job/step-08 succeeds, and until 10 other jobs end as it requires"
    )
    assert len(reason.details["after"]) == 10
    assert reason.details["moreAfter"] == 10
    eleven = held_by(gates[:11], {})
    assert eleven.message.endswith(", and until 1 other job ends as it requires")


def test_the_reason_of_a_held_job_has_its_error() -> None:
    reason = held_by(after("prep"), error="spec: is wrong")
    assert (
        reason.message
        == "held until Job/prep succeeds; it cannot start then either: spec: is wrong"
    )


def test_gates_are_equal_without_regard_to_the_case_of_kinds() -> None:
    written = (
        "Example.com/x",
        "after Job/a:ok",
        "after jOb/a:ok",
        "after job/a:any",
        "example.com/x",
    )
    kept = distinct_gates(written)
    assert kept == ("Example.com/x", "after Job/a:ok", "after job/a:any", "example.com/x")
    assert same_gates(kept, ("after JOB/a:any", "example.com/x")) == kept[2:]


def test_a_job_with_an_invalid_list_of_gates_is_misconfigured() -> None:
    reason = held_by(("data", INVALID), error="'x' is not KIND/NAME")
    assert reason.code is Code.MISCONFIGURED
    assert reason.message == "'x' is not KIND/NAME"
    assert admission_gates(("data", INVALID)) == ["data"]
