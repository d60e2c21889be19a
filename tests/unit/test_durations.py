"""The ends of gangs that planning assumes, as the leader knows them, and how good they were."""

from __future__ import annotations

from dataclasses import replace

from queuectl.domain.estimates import RunTimeSource
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.past_jobs import FinishedRun
from queuectl.domain.records import Upserted
from queuectl.domain.snapshot import Snapshot, SolverLimits
from queuectl.domain.workload import Duration
from queuectl.state.durations import LearnedDurations, RunError, work_of
from queuectl.state.freeze import SnapshotBuilder
from queuectl.state.ledger import Ledger
from tests.unit.test_state import CONFIG, ENTRY, JOB, LIVE, RESUMED, World, on

RUNNING = replace(LIVE, state=State.RUNNING, intent=None, ready_at=11.0)
SECONDS = (100, 200, 300, 400, 500, 600, 700, 800, 900)


class Leader(World):
    """The gang u1, which is pending or has run since 10, and a leader that keeps what it has learned."""

    def __init__(self, entry: Entry) -> None:
        job = JOB if entry.state is State.PENDING else RESUMED
        super().__init__(entry, records=[job, on("p1", "n1"), on("p2", "n2")])
        self.durations = LearnedDurations(self.mirror)
        self.builder = SnapshotBuilder(
            self.mirror, self.ledger, self.usage, durations=self.durations
        )

    def learns(self, *seconds: float) -> None:
        self.durations.learn(FinishedRun(work_of(ENTRY), one) for one in seconds)

    def plans(self, now: float) -> Snapshot:
        return self.builder.freeze(CONFIG, now, SolverLimits())

    def ends(self, now: float) -> float | None:
        (gang,) = self.plans(now).admitted
        assert not gang.end_enforced
        return gang.ends_at


def test_without_history_the_end_of_a_gang_is_unknown() -> None:
    leader = Leader(RUNNING)
    assert leader.ends(20.0) is None
    leader.learns(*SECONDS)
    assert leader.ends(30.0) == 810.0


def test_the_end_of_a_running_gang_is_learned_and_moves_when_it_runs_longer() -> None:
    leader = Leader(RUNNING)
    leader.learns(*SECONDS)
    found = [leader.ends(float(now)) for now in range(10, 1200, 5)]
    assert found[0] == 810.0
    assert all(
        end is not None and end > now for end, now in zip(found, range(10, 1200, 5), strict=True)
    )
    known = [end for end in found if end is not None]
    assert known == sorted(known)
    assert len(set(found)) <= 4, "it moves at steps of the elapsed time, not in each snapshot"


def test_the_end_of_a_running_gang_moves_back_with_a_clock_that_is_set_back() -> None:
    leader = Leader(RUNNING)
    leader.learns(*SECONDS)
    late = leader.ends(900.0)
    assert late is not None
    assert late > 900.0
    assert leader.ends(30.0) == 810.0


def test_a_gang_that_finishes_does_not_move_the_ends_of_others_at_once() -> None:
    leader = Leader(RUNNING)
    leader.learns(*SECONDS)
    assert leader.ends(20.0) == 810.0
    gang = leader.plans(21.0).admitted[0]
    leader.learns(*[5000.0] * 20)
    assert leader.plans(22.0).admitted[0] is gang
    assert leader.ends(300.0) == 5010.0


def test_the_expectation_of_a_pending_gang_is_kept_while_it_changes_little() -> None:
    leader = Leader(ENTRY)
    leader.learns(*SECONDS)
    (pending,) = leader.plans(20.0).pending
    assert pending.workload.duration == Duration(800.0, longest=max(SECONDS))
    assert leader.plans(30.0).pending[0] is pending
    leader.learns(*[810.0] * 9)
    assert leader.plans(700.0).pending[0] is pending
    leader.learns(*[5000.0] * 50)
    assert leader.plans(800.0).pending[0] is pending, "it is not due yet"
    assert leader.plans(1400.0).pending[0].workload.duration == Duration(5000.0, longest=5000.0)


def test_an_annotation_that_changes_counts_at_once() -> None:
    leader = Leader(ENTRY)
    leader.learns(*SECONDS)
    leader.plans(20.0)
    leader.mirror.apply([Upserted(replace(JOB, version=8, expected_duration=60.0))])
    assert leader.plans(21.0).pending[0].workload.duration == Duration(60.0)
    leader.mirror.apply(
        [Upserted(replace(JOB, version=9, max_execution=90.0, expected_duration=60.0))]
    )
    assert leader.plans(22.0).pending[0].workload.duration == Duration(90.0, enforced=True)


def ended(durations: LearnedDurations, seconds: float, *, attempts: int = 1) -> list[RunError]:
    """The gang starts, once or several times, and finishes."""
    starts = replace(ENTRY, state=State.STARTING, attempt=1, started_at=0.0)
    for number in range(attempts):
        again = replace(starts, attempt=number + 1, past_seconds=5.0 * number)
        assert durations.note([EntryChange(ENTRY, again, 0.0)], CONFIG) == []
    over = replace(starts, state=State.FINISHED, past_seconds=seconds, finished_at=seconds)
    return durations.note([EntryChange(starts, over, seconds)], CONFIG)


def test_a_finished_gang_is_compared_with_what_was_expected_at_its_first_start() -> None:
    durations = Leader(ENTRY).durations
    assert ended(durations, 100.0) == [], "nothing was expected"
    durations.learn(FinishedRun(work_of(ENTRY), one) for one in SECONDS)
    assert ended(durations, 550.0, attempts=2) == [
        RunError(RunTimeSource.LEARNED, 50.0, within=True)
    ]
    assert ended(durations, 850.0) == [RunError(RunTimeSource.LEARNED, 350.0, within=False)]


def test_the_error_of_a_limit_is_the_time_that_was_left() -> None:
    leader = Leader(ENTRY)
    leader.mirror.apply([Upserted(replace(JOB, version=8, max_execution=600.0))])
    assert ended(leader.durations, 60.0) == [RunError(RunTimeSource.LIMIT, 540.0, within=True)]


def test_a_job_that_never_started_teaches_nothing() -> None:
    durations = Leader(ENTRY).durations
    over = replace(ENTRY, state=State.FINISHED, finished_at=9.0)
    assert durations.note([EntryChange(ENTRY, over, 9.0)], CONFIG) == []
    assert len(durations.estimator) == 0


def test_after_the_ledger_was_read_again_gangs_that_left_are_forgotten() -> None:
    leader = Leader(ENTRY)
    leader.learns(*SECONDS)
    starts = replace(ENTRY, state=State.STARTING, attempt=1, started_at=0.0)
    leader.durations.note([EntryChange(ENTRY, starts, 0.0)], CONFIG)
    leader.durations.keep_only(Ledger())
    over = replace(starts, state=State.FINISHED, past_seconds=9.0, finished_at=9.0)
    assert leader.durations.note([EntryChange(starts, over, 9.0)], CONFIG) == []
