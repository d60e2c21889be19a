"""The workload state machine: which event leads where, and what every reachable entry keeps to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.checks import CheckReport, CheckState, CheckStatus
from queuectl.domain.commands import Action, Command, objection
from queuectl.domain.events import (
    Admit,
    Adopt,
    AttemptFound,
    ChecksReported,
    CommandReceived,
    Drained,
    Ended,
    Event,
    Evict,
    GatesChanged,
    MoveRefused,
    NoteAdded,
    NoticeOver,
    ObjectChanged,
    ObjectDeleted,
    PodsDone,
    PodsElsewhere,
    PodsLost,
    PodsReady,
    PriorityOver,
    QueueMoved,
    Refuse,
    Repair,
    RequiredWriteRefused,
    Reserve,
    RetryDue,
    StartConfirmed,
    Submitted,
    WriteAccepted,
)
from queuectl.domain.gates import INVALID, Dependency, DependencyStatus, Standing
from queuectl.domain.jobs import JobOutcome, JobRecord
from queuectl.domain.ledger import Entry, EntryChange, Intent, Purpose, State, violations
from queuectl.domain.plan import SlipCause
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.rules import PodsReadyRules, Rules
from queuectl.domain.snapshot import CapacityLease, PlannedStart
from queuectl.domain.workload import Placement, PodSetPlacement
from queuectl.lifecycle.machine import DEFAULT_RULES, IllegalTransition, handle
from queuectl.lifecycle.provisioning import unanswered

JOB = JobRecord("Job", "team-a", "train", "u1", 7, 100.0, "research")
PLACEMENT = Placement((PodSetPlacement("main", (("n1", 2), ("n2", 2))),))
MOVED = Placement((PodSetPlacement("main", (("n1", 2), ("n3", 2))),))
LEASE = CapacityLease(PLACEMENT, ("v1",), 110.0, 710.0)
QUOTA = Reason(Code.WAITING_FOR_QUOTA, "needs 8, has 4")
WAITS = Reason(Code.WAITING_FOR_PREEMPTED, "one victim is leaving")
UNDECIDED = Reason(Code.UNDECIDED, "budget ended")


def run(
    *events: Event, entry: Entry | None = None, now: float = 200.0, rules: Rules = DEFAULT_RULES
) -> Entry:
    """Apply events one after the other; those that say nothing new are allowed."""
    for event in events:
        change = handle(entry, event, now, rules)
        entry = change.after if change is not None else entry
    assert entry is not None
    return entry


SUBMITTED = Submitted(JOB, priority=10, cluster_queue="gpus")
EVICTED = Evict(Reason(Code.PREEMPTED, "for team-b/big"))
MOVED_AWAY = Evict(Reason(Code.DEFRAGMENTED, "so that team-b/big fits"), lease=LEASE)
IDLE_FOR_LONG = Evict(Reason(Code.IDLE_RECLAIMED, "warned twice", {"restSeconds": 3600}))
IDLE_NO_REST = Evict(Reason(Code.IDLE_RECLAIMED, "warned twice", {"restSeconds": 0}))
IDLES = NoteAdded(Reason(Code.IDLE_GPUS, "does nothing"))
FAILED_START = Evict(Reason(Code.PODS_READY_TIMEOUT, "late"), excluded=("n2",))


ASKS_ELSEWHERE = ObjectChanged("other", "gpus", 3, 8, 1)


def ask(action: Action, priority: int | None = None, **more: Any) -> CommandReceived:
    return CommandReceived(Command(1, "u1", action, "alice", "r1", 200.0, priority, **more))


HOLD, RELEASE, REQUEUE, DEACTIVATE, ACTIVATE = (
    ask(action)
    for action in (Action.HOLD, Action.RELEASE, Action.REQUEUE, Action.DEACTIVATE, Action.ACTIVATE)
)
PREEMPT, MOVE = ask(Action.PREEMPT), ask(Action.MOVE, queue="other")
RUNS: tuple[Event, ...] = (SUBMITTED, Admit(PLACEMENT), PodsReady())
GATED = Submitted(replace(JOB, gates=("budget", "data")), priority=10, cluster_queue="gpus")
PREP = Dependency("Job", "prep").gate
NO_LIST = Submitted(replace(JOB, gates=(INVALID,)), priority=10, cluster_queue="gpus")
AFTER = Submitted(replace(JOB, gates=(PREP,)), priority=10, cluster_queue="gpus")
PREPARED = GatesChanged((PREP,), {PREP: Standing(DependencyStatus.SUCCEEDED)})
UNPREPARED = GatesChanged((PREP,), {PREP: Standing(DependencyStatus.FAILED)})
TOO_LONG = Reason(Code.MAX_EXECUTION_TIME, "60 s")
OVER_TIME = Evict(TOO_LONG, parked=TOO_LONG)

# (what happened so far, the event, the state it leads to)
TRANSITIONS: list[tuple[str, tuple[Event, ...], State]] = [
    ("a submitted job queues", (SUBMITTED,), State.PENDING),
    ("a refused gang stays pending", (SUBMITTED, Refuse(QUOTA)), State.PENDING),
    ("an admitted gang starts", (SUBMITTED, Admit(PLACEMENT)), State.STARTING),
    ("a gang with victims waits on its lease", (SUBMITTED, Reserve(LEASE, WAITS)), State.RESERVED),
    ("a lost lease puts it back", (SUBMITTED, Reserve(LEASE, WAITS), Refuse(QUOTA)), State.PENDING),
    ("a leased gang starts", (SUBMITTED, Reserve(LEASE, WAITS), Admit(PLACEMENT)), State.STARTING),
    ("ready pods make it running", (SUBMITTED, Admit(PLACEMENT), PodsReady()), State.RUNNING),
    ("a running gang can be evicted", (SUBMITTED, Admit(PLACEMENT), PodsReady(), EVICTED), State.EVICTING),
    ("so can a starting one", (SUBMITTED, Admit(PLACEMENT), EVICTED), State.EVICTING),
    ("a drained gang queues again", (SUBMITTED, Admit(PLACEMENT), EVICTED, Drained()), State.PENDING),
    ("a moved gang leaves", (SUBMITTED, Admit(PLACEMENT), MOVED_AWAY), State.EVICTING),
    ("and waits for its new place", (SUBMITTED, Admit(PLACEMENT), MOVED_AWAY, Drained()), State.RESERVED),
    ("where it starts again", (SUBMITTED, Admit(PLACEMENT), MOVED_AWAY, Drained(), Admit(MOVED)), State.STARTING),
    ("a gang that is to be moved and asks for something else still leaves",
     (SUBMITTED, Admit(PLACEMENT), MOVED_AWAY, ASKS_ELSEWHERE), State.EVICTING),
    ("and queues again when it has left", (SUBMITTED, Admit(PLACEMENT), MOVED_AWAY, ASKS_ELSEWHERE, Drained()), State.PENDING),
    ("a failed start backs off", (SUBMITTED, Admit(PLACEMENT), FAILED_START, Drained()), State.BACKOFF),
    (
        "and is retried",
        (SUBMITTED, Admit(PLACEMENT), FAILED_START, Drained(), RetryDue()),
        State.PENDING,
    ),
    ("a gang that was taken for idleness rests", (*RUNS, IDLE_FOR_LONG, Drained()), State.BACKOFF),
    ("before it queues again", (*RUNS, IDLE_FOR_LONG, Drained(), RetryDue()), State.PENDING),
    ("unless an administrator requeues it", (*RUNS, IDLE_FOR_LONG, Drained(), REQUEUE), State.PENDING),
    ("a gang in back-off can be held", (*RUNS, IDLE_FOR_LONG, Drained(), HOLD), State.HELD),
    ("or while it leaves", (*RUNS, IDLE_FOR_LONG, HOLD, Drained()), State.HELD),
    ("without a cooldown it queues at once", (*RUNS, IDLE_NO_REST, Drained()), State.PENDING),
    ("that it is idle changes nothing by itself", (*RUNS, IDLES), State.RUNNING),
    ("and is not recorded for a gang that is being evicted", (*RUNS, EVICTED, IDLES), State.EVICTING),
    ("a job resumed by others is taken down", (SUBMITTED, EVICTED), State.EVICTING),
    ("a deleted job is finished", (SUBMITTED, ObjectDeleted()), State.FINISHED),
    ("success ends it", (SUBMITTED, Admit(PLACEMENT), Ended(JobOutcome.SUCCEEDED)), State.FINISHED),
    ("an eviction does not outlive the job", (SUBMITTED, Admit(PLACEMENT), EVICTED, ObjectDeleted()), State.FINISHED),
    ("a held gang does not queue", (SUBMITTED, HOLD), State.HELD),
    ("until it is released", (SUBMITTED, HOLD, RELEASE), State.PENDING),
    ("a hold drops its reservation", (SUBMITTED, Reserve(LEASE, WAITS), HOLD), State.HELD),
    ("a running gang is evicted to be held", (*RUNS, HOLD), State.EVICTING),
    ("and is held when its pods are deleted", (*RUNS, HOLD, Drained()), State.HELD),
    ("unless it is released before that", (*RUNS, HOLD, RELEASE, Drained()), State.PENDING),
    ("one that leaves anyway can be held", (*RUNS, EVICTED, HOLD, Drained()), State.HELD),
    ("even one that was only moved", (*RUNS, MOVED_AWAY, HOLD, Drained()), State.HELD),
    ("or that failed to start", (SUBMITTED, Admit(PLACEMENT), FAILED_START, HOLD, Drained()), State.HELD),
    ("a running gang is preempted by hand", (*RUNS, PREEMPT), State.EVICTING),
    ("and queues again", (*RUNS, PREEMPT, Drained()), State.PENDING),
    ("a gang on its way to another queue waits", (SUBMITTED, MOVE), State.PENDING),
    ("and its reservation is dropped", (SUBMITTED, Reserve(LEASE, WAITS), MOVE), State.PENDING),
    ("nor is it started in the meantime", (SUBMITTED, MOVE, Admit(PLACEMENT)), State.PENDING),
    ("nor is a gang evicted for it", (SUBMITTED, MOVE, Reserve(LEASE, WAITS)), State.PENDING),
    ("but once it is there", (SUBMITTED, MOVE, QueueMoved(), Admit(PLACEMENT)), State.STARTING),
    ("a held gang can be moved", (SUBMITTED, HOLD, MOVE, QueueMoved()), State.HELD),
    ("a back-off ends by a hold and a release",
     (SUBMITTED, Admit(PLACEMENT), FAILED_START, Drained(), HOLD, RELEASE), State.PENDING),
    ("or by a requeue", (SUBMITTED, Admit(PLACEMENT), FAILED_START, Drained(), REQUEUE), State.PENDING),
    ("a running gang is evicted to queue again", (*RUNS, REQUEUE), State.EVICTING),
    ("which it does", (*RUNS, REQUEUE, Drained()), State.PENDING),
    ("a deactivated gang does not queue", (SUBMITTED, DEACTIVATE), State.DEACTIVATED),
    ("a hold can become a deactivation", (SUBMITTED, HOLD, DEACTIVATE), State.DEACTIVATED),
    ("it is not released", (SUBMITTED, DEACTIVATE, RELEASE), State.DEACTIVATED),
    ("but activated", (SUBMITTED, DEACTIVATE, ACTIVATE), State.PENDING),
    ("a running gang is evicted for it", (*RUNS, DEACTIVATE, Drained()), State.DEACTIVATED),
    ("one that ran too long is evicted", (*RUNS, OVER_TIME), State.EVICTING),
    ("and deactivated", (*RUNS, OVER_TIME, Drained()), State.DEACTIVATED),
    ("a gated job is held", (GATED,), State.HELD),
    ("while a gate is left", (GATED, GatesChanged(("data",))), State.HELD),
    ("and queues when none is", (GATED, GatesChanged(("data",)), GatesChanged(())), State.PENDING),
    ("a gate that was removed and comes again does not count", (GATED, GatesChanged(("data",)), GatesChanged(("budget",))), State.PENDING),
    ("a job with an invalid list of gates is held", (NO_LIST,), State.HELD),
    ("by each gate of the corrected list", (NO_LIST, GatesChanged(("budget", "data")), GatesChanged(("data",))), State.HELD),
    ("until none is left", (NO_LIST, GatesChanged(("data",)), GatesChanged(())), State.PENDING),
    ("also by a job that it depends on", (NO_LIST, UNPREPARED), State.HELD),
    ("unless that has ended", (NO_LIST, PREPARED), State.PENDING),
    ("a list that becomes invalid removes no gate", (GATED, GatesChanged((INVALID,)), GatesChanged(("data",))), State.HELD),
    ("a release does not open gates", (GATED, HOLD, RELEASE), State.HELD),
    ("nor do gates end a hold", (GATED, HOLD, GatesChanged(())), State.HELD),
    ("both do", (GATED, HOLD, GatesChanged(()), RELEASE), State.PENDING),
    ("a job that depends on another is held", (AFTER,), State.HELD),
    ("while the other runs", (AFTER, GatesChanged((PREP,))), State.HELD),
    ("and queues when it succeeded", (AFTER, PREPARED), State.PENDING),
    ("not when it failed", (AFTER, UNPREPARED), State.HELD),
    ("unless it is run again", (AFTER, UNPREPARED, PREPARED), State.PENDING),
    ("or the dependency is removed", (AFTER, UNPREPARED, GatesChanged(())), State.PENDING),
    ("a satisfied dependency does not end a hold", (AFTER, HOLD, PREPARED), State.HELD),
    ("and is not needed a second time", (AFTER, HOLD, PREPARED, UNPREPARED, RELEASE), State.PENDING),
    ("a gated job that was resumed is gated again", (GATED, EVICTED, Drained()), State.HELD),
    ("a held job can be deleted", (SUBMITTED, HOLD, ObjectDeleted()), State.FINISHED),
    ("what ended cannot be held", (SUBMITTED, ObjectDeleted(), HOLD), State.FINISHED),
    ("nothing follows the end", (SUBMITTED, ObjectDeleted(), PodsReady()), State.FINISHED),
]  # fmt: skip


@pytest.mark.parametrize(
    ("events", "state"),
    [pytest.param(events, state, id=text) for text, events, state in TRANSITIONS],
)
def test_event_leads_to_state(events: tuple[Event, ...], state: State) -> None:
    entry = run(*events)
    assert entry.state is state
    assert violations(entry) == []


def test_a_moved_gang_holds_its_new_place_until_it_starts_there() -> None:
    leaving = run(SUBMITTED, Admit(PLACEMENT), MOVED_AWAY)
    drained = run(Drained(), entry=leaving)
    started = run(Admit(MOVED), entry=drained)
    assert [e.lease for e in (leaving, drained, started)] == [LEASE, LEASE, None]
    assert leaving.preempted_at == (200.0,), "its queue's protections count it"
    assert (drained.placement, drained.failures) == (None, 0)


@pytest.mark.parametrize(
    ("events", "event"),
    [
        pytest.param((SUBMITTED, Admit(PLACEMENT)), Admit(PLACEMENT), id="started twice"),
        pytest.param((SUBMITTED, Admit(PLACEMENT)), Refuse(QUOTA), id="refused while starting"),
        pytest.param((SUBMITTED,), Drained(), id="drained while pending"),
        pytest.param((SUBMITTED,), RetryDue(), id="retried while pending"),
        pytest.param((SUBMITTED,), Repair(MOVED), id="repaired while pending"),
    ],
)
def test_an_event_that_cannot_happen_is_a_defect(events: tuple[Event, ...], event: Event) -> None:
    with pytest.raises(IllegalTransition):
        handle(run(*events), event, 300.0)


def test_each_start_is_a_new_attempt_and_owes_the_cluster_a_write() -> None:
    first = run(SUBMITTED, Admit(PLACEMENT))
    second = run(PodsReady(), EVICTED, Drained(), Admit(MOVED), entry=first)
    assert (first.attempt, first.intent) == (1, Intent.START)
    assert (second.attempt, second.intent, second.placement) == (2, Intent.START, MOVED)
    assert run(StartConfirmed(), entry=second).intent is None


def test_the_reason_of_a_running_gang_names_the_pods_that_it_started_with() -> None:
    fewer = Placement((PodSetPlacement("main", (("n1", 2), ("n2", 2)), pods=4),))
    partial = "all 4 pods are ready; it requested 8 pods and started with fewer"
    for placement, pods, text in ((PLACEMENT, 8, "all 8 pods are ready"), (fewer, 4, partial)):
        entry = run(SUBMITTED, Admit(placement), entry=None)
        entry = run(PodsReady(), entry=replace(entry, pods=8))
        assert (entry.started_pods, entry.reason.message) == (pods, text)


def test_an_attempt_found_on_the_object_is_adopted() -> None:
    entry = run(Submitted(replace(JOB, attempt=4), 0, "gpus"), Admit(PLACEMENT))
    assert entry.attempt == 5


def test_a_gang_evicted_for_idleness_backs_off_from_the_deletion_of_its_pods_and_keeps_its_position() -> (
    None
):
    leaving = run(*RUNS, IDLE_FOR_LONG, now=500.0)
    rests = run(Drained(), entry=leaving, now=700.0)
    assert (rests.requeue_at, rests.failures) == (700.0 + 3600.0, 0)
    assert rests.preempted_at == (500.0,), "its queue's protections count it"
    again = run(RetryDue(), entry=rests, now=4300.0)
    assert again.queue_order_time == leaving.queued_at


@pytest.mark.parametrize(
    ("events", "at"),
    [
        pytest.param((), 590.0, id="counted from the eviction"),
        pytest.param((Drained(),), 590.0, id="it queues, and does not borrow"),
        pytest.param((Drained(), HOLD, RELEASE), 590.0, id="a hold does not end it"),
        pytest.param((HOLD, Drained(), RELEASE), 590.0, id="nor one while its pods leave"),
        pytest.param((Drained(), REQUEUE), 590.0, id="nor does a requeue"),
        pytest.param((Drained(), Admit(PLACEMENT)), None, id="a start does"),
        pytest.param((Drained(), Admit(PLACEMENT), EVICTED), None, id="each eviction counts alone"),
        pytest.param((Drained(), ObjectDeleted()), None, id="so does the end"),
    ],
)
def test_a_gang_that_was_evicted_for_others_does_not_borrow_for_a_while(
    events: tuple[Event, ...], at: float | None
) -> None:
    pause = {"borrowBackoffSeconds": 90.0}
    leaving = run(*RUNS, Evict(Reason(Code.PREEMPTED, "for big", pause)), now=500.0)
    entry = run(*events, entry=leaving, now=510.0)
    assert entry.requeue_at == at
    assert violations(entry) == []


def test_a_remark_is_a_line_of_the_history_and_leaves_the_reason_as_it_was() -> None:
    entry = run(*RUNS)
    change = handle(entry, IDLES, 500.0)
    assert change is not None
    assert change.note is not None
    assert (change.note.event, change.note.reason) == ("IdleGPUs", IDLES.reason)
    assert replace(change.after, version=entry.version) == entry


def test_a_preempted_gang_keeps_its_place_in_the_queue() -> None:
    entry = run(SUBMITTED, Admit(PLACEMENT), PodsReady(), EVICTED, Drained(), now=900.0)
    assert entry.queued_at == run(SUBMITTED).queued_at
    assert entry.evictions == 1


def test_the_preemptions_of_the_last_day_are_remembered_and_no_other_evictions() -> None:
    """The evictions that a queue's cool-down and daily limit count: those for other gangs, not the gang's own failures."""
    entry = run(SUBMITTED, Admit(PLACEMENT), EVICTED, Drained(), now=200.0)
    entry = run(Admit(PLACEMENT), FAILED_START, Drained(), RetryDue(), entry=entry, now=9_000.0)
    entry = run(Admit(PLACEMENT), EVICTED, Drained(), entry=entry, now=50_000.0)
    assert (entry.preempted_at, entry.evictions) == ((200.0, 50_000.0), 3)
    entry = run(Admit(PLACEMENT), EVICTED, entry=entry, now=86_600.0)
    assert entry.preempted_at == (50_000.0, 86_600.0)
    entry = run(Drained(), Admit(PLACEMENT), FAILED_START, entry=entry, now=300_000.0)
    assert entry.preempted_at == (86_600.0,), "a cool-down can be longer than a day"


@pytest.mark.parametrize(
    "events",
    [(REQUEUE,), (HOLD, RELEASE), (DEACTIVATE, ACTIVATE)],
    ids=["requeued", "released", "activated"],
)
def test_a_user_who_lets_a_gang_start_again_ends_the_exclusion_of_nodes(
    events: tuple[Event, ...],
) -> None:
    """Kube-scheduler refused them for a claim that did not exist, for example."""
    waits = run(SUBMITTED, Admit(PLACEMENT), FAILED_START, Drained())
    pending = run(RetryDue(), entry=waits)
    starting = run(Admit(MOVED), entry=pending)
    assert (waits.state, pending.state, starting.state) == (
        State.BACKOFF,
        State.PENDING,
        State.STARTING,
    )
    for entry in (waits, pending, starting):
        assert entry.excluded == ("n2",)
        assert run(*events, entry=entry).excluded == ()


@pytest.mark.parametrize(
    ("seen", "queued"),
    [
        pytest.param(100.4, 100.4, id="seen within the second that the API server states"),
        pytest.param(250.0, 100.999, id="seen late"),
        pytest.param(99.5, 100.0, id="our clock is behind"),
    ],
)
def test_the_queue_position_is_as_precise_as_the_known_time(seen: float, queued: float) -> None:
    assert run(SUBMITTED, now=seen).queued_at == pytest.approx(queued)


def rules(grace: float = 0.0, **pods_ready: Any) -> Rules:
    return Rules(
        pods_ready=replace(PodsReadyRules(backoff_jitter=0.0), **pods_ready), eviction_grace=grace
    )


def failed_starts(count: int, policy: Rules, uid: str = "u1") -> tuple[Entry, list[float]]:
    """An entry after so many failed starts in a row, and the pauses after them in seconds."""
    entry, waits = run(Submitted(replace(JOB, uid=uid), 0, "gpus")), []
    for _ in range(count):
        entry = run(
            Admit(PLACEMENT), FAILED_START, Drained(), entry=entry, now=1000.0, rules=policy
        )
        if entry.requeue_at is None:
            break
        waits.append(entry.requeue_at - 1000.0)
        entry = run(RetryDue(), entry=entry, now=9000.0)
    return entry, waits


def test_back_off_doubles_with_each_failed_start_and_is_forgotten_by_a_good_one() -> None:
    entry, waits = failed_starts(4, rules(backoff_base=60.0, backoff_ceiling=200.0))
    assert waits == [60, 120, 200, 200]
    assert entry.excluded == ("n2",)
    ready = run(Admit(PLACEMENT), PodsReady(), entry=entry)
    assert (ready.failures, ready.excluded) == (0, ())


def test_gangs_that_fail_together_do_not_come_back_together_and_a_replay_gives_the_same_times() -> (
    None
):
    policy = rules(backoff_base=60.0, backoff_jitter=0.1)
    pauses = {uid: failed_starts(3, policy, uid)[1] for uid in ("u1", "u2", "u3")}
    assert len({tuple(waits) for waits in pauses.values()}) == 3
    for waits in pauses.values():
        for wait, base in zip(waits, (60, 120, 240), strict=True):
            assert base <= wait < base * 1.1
    assert failed_starts(3, policy, "u1")[1] == pauses["u1"]


@pytest.mark.parametrize(("limit", "retried"), [(0, 0), (1, 1), (3, 3), (None, 5)])
def test_after_so_many_retries_a_gang_is_deactivated(limit: int | None, retried: int) -> None:
    entry, waits = failed_starts(5, rules(backoff_limit=limit))
    assert len(waits) == retried
    assert (entry.state is State.DEACTIVATED) == (limit is not None)
    if limit is not None:
        assert entry.reason.code is Code.REQUEUING_LIMIT
        again = run(ACTIVATE, entry=entry)
        assert (again.state, again.failures) == (State.PENDING, 0)


@pytest.mark.parametrize(("by_eviction", "place"), [(True, 900.0), (False, 200.0)])
def test_a_failed_start_queues_by_its_eviction_where_the_rules_say_so(
    by_eviction: bool, place: float
) -> None:
    policy = rules(requeue_by_eviction=by_eviction)
    started = run(SUBMITTED, Admit(PLACEMENT))
    submitted = started.queued_at
    waits = run(FAILED_START, Drained(), RetryDue(), entry=started, now=900.0, rules=policy)
    assert waits.queue_order_time == (place if by_eviction else submitted)
    assert waits.queued_at == submitted
    again = run(
        Admit(PLACEMENT), PodsReady(), EVICTED, Drained(), entry=waits, now=2000.0, rules=policy
    )
    assert again.queue_order_time == submitted, (
        "a preemption after a good start counts from its submission"
    )


def test_a_gang_that_lost_a_pod_runs_on_and_one_that_is_not_whole_again_in_time_backs_off() -> None:
    lost = run(*RUNS, PodsLost("a pod is missing"), now=300.0)
    assert (lost.state, lost.unready_since) == (State.RUNNING, 300.0)
    assert run(PodsLost("a pod is missing"), entry=lost, now=350.0).unready_since == 300.0
    assert (lost.reason.code, lost.reason.message) == (Code.WAIT_FOR_RECOVERY, "a pod is missing")
    again = run(PodsReady(), entry=lost, now=350.0)
    assert (again.unready_since, again.reason.code) == (None, Code.PODS_READY)
    late = run(FAILED_START, Drained(), entry=lost, now=400.0)
    assert (late.state, late.unready_since, late.failures) == (State.BACKOFF, None, 1)


def test_execution_time_adds_up_over_attempts_until_the_gang_is_activated_again() -> None:
    entry = run(SUBMITTED, now=0.0)
    entry = run(Admit(PLACEMENT), entry=entry, now=100.0)
    assert entry.executed(130.0) == 30.0
    entry = run(EVICTED, entry=entry, now=150.0)
    assert (entry.past_seconds, entry.executed(500.0)) == (50.0, 50.0)
    entry = run(Drained(), Admit(PLACEMENT), entry=entry, now=600.0)
    assert entry.executed(610.0) == 60.0
    entry = run(OVER_TIME, Drained(), entry=entry, now=610.0)
    assert entry.past_seconds == 60.0
    assert run(ACTIVATE, entry=entry).past_seconds == 0.0


@pytest.mark.parametrize(
    ("events", "last", "notified"),
    [
        pytest.param(RUNS, EVICTED, True, id="a preemption"),
        pytest.param(RUNS, MOVED_AWAY, True, id="a move"),
        pytest.param(RUNS, IDLE_FOR_LONG, True, id="idleness"),
        pytest.param(RUNS, HOLD, True, id="a hold"),
        pytest.param(RUNS, REQUEUE, True, id="a person's requeue"),
        pytest.param(RUNS, OVER_TIME, True, id="its time is over"),
        pytest.param(RUNS, FAILED_START, False, id="it is broken already"),
        pytest.param(RUNS[:2], EVICTED, False, id="it did not come up yet"),
        pytest.param(RUNS[:1], EVICTED, False, id="it does not run"),
    ],
)
def test_a_gang_with_work_to_save_gets_notice_before_it_is_stopped(
    events: tuple[Event, ...], last: Event, notified: bool
) -> None:
    leaving = run(*events, last, now=300.0, rules=rules(grace=60.0))
    assert leaving.state is State.EVICTING
    assert leaving.stop_at == (360.0 if notified else None)
    assert leaving.intent is Intent.STOP
    stopped = run(NoticeOver(), entry=leaving, now=360.0)
    assert (stopped.state, stopped.stop_at) == (State.EVICTING, None)
    assert violations(stopped) == []
    at_once = run(*events, last, now=300.0)
    assert at_once.stop_at is None


@pytest.mark.parametrize(
    "since",
    [
        pytest.param((), id="in back-off"),
        pytest.param((RetryDue(),), id="it queues again"),
        pytest.param((RetryDue(), Admit(PLACEMENT)), id="it starts again"),
    ],
)
def test_a_requeue_forgets_failed_starts_in_any_state(since: tuple[Event, ...]) -> None:
    fails = (Admit(PLACEMENT), FAILED_START, Drained())
    entry = run(SUBMITTED, *fails, RetryDue(), *fails, *since)
    assert (entry.failures, entry.excluded) == (2, ("n2",))
    entry = run(REQUEUE, entry=entry)
    assert (entry.failures, entry.excluded) == (0, ())


def test_a_priority_set_by_a_command_overrides_the_object_until_it_is_reset() -> None:
    described = ObjectChanged("research", "gpus", 10, 0, 0)
    entry = run(SUBMITTED, ask(Action.PRIORITY, 70), replace(described, priority=20))
    assert entry.priority == 70
    entry = run(Admit(PLACEMENT), PodsReady(), ask(Action.PRIORITY, 5), entry=entry)
    assert (entry.state, entry.priority) == (State.RUNNING, 5)
    entry = run(EVICTED, Drained(), ask(Action.PRIORITY), described, entry=entry)
    assert (entry.priority, entry.priority_set) == (10, None)


@pytest.mark.parametrize(
    ("priority", "until", "now", "ends"),
    [
        pytest.param(70, 500.0, 499.0, False, id="before its end it holds"),
        pytest.param(70, 500.0, 500.0, True, id="at its end it is over"),
        pytest.param(70, None, 9e9, False, id="without an end it holds until it is taken back"),
        pytest.param(None, None, 9e9, False, id="none was set"),
    ],
)
def test_a_priority_set_for_a_time_ends_with_it_whether_the_gang_waits_or_runs(
    priority: int | None, until: float | None, now: float, ends: bool
) -> None:
    for events in ((SUBMITTED,), RUNS, (*RUNS, EVICTED)):
        entry = run(*events, ask(Action.PRIORITY, priority, until=until))
        change = handle(entry, PriorityOver(10), now)
        assert (change is not None) == ends
        if change is not None:
            after = change.after
            assert (after.priority, after.priority_set, after.priority_until) == (10, None, None)
            assert (after.state, after.queued_at) == (entry.state, entry.queued_at)
            assert change.note is not None
            assert change.note.reason.code is Code.PRIORITY_SET


def test_the_end_of_a_priority_can_be_changed_and_is_reset_with_it() -> None:
    boosted = run(*RUNS, ask(Action.PRIORITY, 70, until=500.0))
    longer = run(ask(Action.PRIORITY, 70, until=900.0), entry=boosted)
    assert (longer.priority, longer.priority_until) == (70, 900.0)
    assert run(ask(Action.PRIORITY, 70), entry=boosted).priority_until is None
    assert run(ask(Action.PRIORITY), entry=boosted).priority_until is None
    assert handle(boosted, ask(Action.PRIORITY, 70, until=500.0), 300.0) is None, "it is so already"


def test_one_preempted_by_hand_queues_behind_those_of_its_priority_and_counts_as_a_victim() -> None:
    entry = run(*RUNS, PREEMPT, Drained(), now=300.0)
    assert (entry.queued_at, entry.queue_order_time) == (run(*RUNS).queued_at, 300.0)
    assert (entry.evictions, entry.preempted_at, entry.evicted_for) == (1, (300.0,), Code.PREEMPTED)
    assert run(Admit(PLACEMENT), entry=entry).requeued_at is None, "only until its next start"
    change = handle(run(*RUNS), PREEMPT, 300.0, rules(grace=30.0))
    assert change is not None
    assert change.after.stop_at == 330.0, "with the notice that any victim has"
    assert change.after.reason.details["why"] == "ByHand"


def test_a_move_ends_when_the_object_names_the_queue_and_the_place_in_time_stays() -> None:
    moving = run(SUBMITTED, MOVE)
    assert (moving.queue, moving.queue_set, moving.intent) == ("research", "other", Intent.MOVE)
    there = run(QueueMoved(), ObjectChanged("other", "cpus", 10, 0, 0), entry=moving)
    assert (there.queue, there.cluster_queue) == ("other", "cpus")
    assert (there.queue_set, there.intent) == (None, None)
    assert there.queue_order_time == moving.queue_order_time
    assert handle(there, QueueMoved(), 300.0) is None
    assert handle(there, ask(Action.MOVE, queue="other"), 300.0) is None, "it is there already"


def test_a_move_outlasts_a_take_down_of_a_job_that_others_resumed() -> None:
    leaving = run(SUBMITTED, MOVE, EVICTED)
    assert (leaving.intent, leaving.queue_set) == (Intent.STOP, "other")
    back = run(Drained(), entry=leaving)
    assert (back.state, back.intent) == (State.PENDING, Intent.MOVE)
    assert run(MOVE, ObjectDeleted(), entry=run(SUBMITTED)).queue_set is None


def test_the_history_has_the_caller_and_the_reason_of_a_command() -> None:
    waits = run(SUBMITTED)
    for asked in (HOLD, REQUEUE, PREEMPT, DEACTIVATE, ask(Action.PRIORITY, 3), MOVE):
        command = replace(asked.command, why="the demo is at noon")
        entry = waits if asked is MOVE else run(*RUNS)
        change = handle(entry, CommandReceived(command), 300.0)
        assert change is not None
        assert change.note is not None
        assert "by alice: the demo is at noon" in change.note.reason.message


def test_slots_of_pods_that_are_done_are_given_back_and_nothing_else_changes() -> None:
    entry = run(*RUNS)
    half = Placement((PodSetPlacement("main", (("n1", 2),)),))
    done = run(PodsDone(half), entry=entry)
    assert replace(done, placement=PLACEMENT, version=entry.version) == entry
    assert handle(done, PodsDone(half), 300.0) is None


@pytest.mark.parametrize(
    ("events", "action"),
    [
        pytest.param((SUBMITTED,), Action.RELEASE, id="it is not held"),
        pytest.param((GATED,), Action.RELEASE, id="only a gate does"),
        pytest.param((SUBMITTED,), Action.REQUEUE, id="it queues already"),
        pytest.param((SUBMITTED,), Action.ACTIVATE, id="it is active"),
        pytest.param((SUBMITTED, HOLD), Action.ACTIVATE, id="it is only held"),
        pytest.param((SUBMITTED, DEACTIVATE), Action.HOLD, id="it is deactivated"),
        pytest.param((SUBMITTED, ObjectDeleted()), Action.PRIORITY, id="it has ended"),
        pytest.param((SUBMITTED,), Action.PREEMPT, id="only what runs is preempted"),
        pytest.param((*RUNS, EVICTED), Action.PREEMPT, id="it leaves already"),
        pytest.param(RUNS, Action.MOVE, id="what runs is held first"),
        pytest.param((*RUNS, EVICTED), Action.MOVE, id="what leaves has to leave first"),
        pytest.param((SUBMITTED, MOVE), Action.MOVE, id="it moves already"),
    ],
)
def test_a_command_that_does_not_apply_is_reported_and_changes_nothing(
    events: tuple[Event, ...], action: Action
) -> None:
    entry = run(*events)
    assert objection(entry, action) is not None
    assert handle(entry, ask(action, 1, queue="third"), 300.0) is None


def test_undecided_raises_the_budget_and_any_answer_resets_it() -> None:
    entry = run(SUBMITTED, Refuse(UNDECIDED), Refuse(UNDECIDED))
    assert entry.budget == 2
    not_searched = Reason(Code.PENDING_EVALUATION, "later")
    assert run(Refuse(not_searched), entry=entry).budget == 2
    assert run(Refuse(QUOTA), entry=entry).budget == 0


START = PlannedStart(500.0, PLACEMENT, 500.0, (("v1", 480.0),), revision=3, made_at=200.0)
LATER = replace(START, at=900.0, promised=900.0, overruns=1)


def test_a_pending_gang_keeps_its_planned_start_until_the_next_plan() -> None:
    entry = run(SUBMITTED, Refuse(QUOTA, START))
    assert entry.planned_start == START
    assert handle(entry, Refuse(QUOTA, START), 300.0) is None
    assert run(Refuse(QUOTA), entry=entry).planned_start is None


def test_a_check_that_is_pending_again_has_its_whole_time_to_answer() -> None:
    checks = (CheckStatus("budget", since=10.0, due=3610.0), CheckStatus("data", since=10.0))
    held = run(SUBMITTED, Reserve(LEASE, WAITS, checks), now=10.0)
    ready = run(of_budget(CheckState.READY), entry=held, now=20.0)
    again = run(of_budget(CheckState.PENDING), entry=ready, now=4000.0)
    again = run(of_budget(CheckState.PENDING, "a new message"), entry=again, now=4100.0)
    assert unanswered(again.checks, (), 7599.0) == ()
    (late,) = unanswered(again.checks, (), 7600.0)
    assert late.message == "no answer within 3600 s"


def of_budget(state: CheckState, message: str = "") -> ChecksReported:
    return ChecksReported((CheckReport("budget", state, message),))


@pytest.mark.parametrize("event", [Admit(PLACEMENT), Reserve(LEASE, WAITS)])
def test_a_gang_that_starts_or_gets_a_reservation_has_no_planned_start(event: Event) -> None:
    assert run(SUBMITTED, Refuse(QUOTA, START), event).planned_start is None


def test_the_history_names_the_cause_of_a_later_planned_start() -> None:
    entry = run(SUBMITTED, Refuse(QUOTA, START))
    change = handle(entry, Refuse(QUOTA, LATER, SlipCause.OVERRUN), 300.0)
    assert change is not None
    assert change.note is not None
    assert change.note.reason.code is Code.PLANNED_START_MOVED
    assert change.note.reason.details["cause"] == "Overrun"
    assert change.after.reason == QUOTA


def test_the_same_refusal_again_is_not_a_change() -> None:
    entry = run(SUBMITTED, Refuse(QUOTA))
    assert handle(entry, Refuse(QUOTA), 300.0) is None


def test_new_numbers_of_the_same_reason_are_not_a_new_line_in_the_history() -> None:
    entry = run(SUBMITTED, Refuse(QUOTA))
    change = handle(entry, Refuse(Reason(Code.WAITING_FOR_QUOTA, "needs 8, has 6")), 300.0)
    assert change is not None
    assert change.note is None


def test_a_description_without_a_new_value_is_not_a_change() -> None:
    described = ObjectChanged("research", "gpus", 10, 0, 0)
    entry = run(SUBMITTED)
    assert handle(entry, described, 300.0) is None
    assert run(replace(described, priority=50), entry=entry).priority == 50


EVENTS = st.sampled_from(
    [
        Admit(PLACEMENT), Adopt(MOVED, 9), AttemptFound(9), Reserve(LEASE, WAITS), Refuse(QUOTA), Refuse(UNDECIDED), EVICTED, FAILED_START, Repair(MOVED),
        StartConfirmed(), PodsReady(), PodsLost("a pod is missing"), PodsDone(MOVED), PodsElsewhere(MOVED), Drained(), RetryDue(), Ended(JobOutcome.FAILED), ObjectDeleted(),
        MOVED_AWAY, OVER_TIME, NoticeOver(), GatesChanged(("data",)), GatesChanged(()), HOLD, RELEASE, REQUEUE, DEACTIVATE, ACTIVATE,
        ask(Action.PRIORITY, 7), ask(Action.PRIORITY, 8, until=310.0), ask(Action.PRIORITY), PriorityOver(10),
        PREEMPT, MOVE, QueueMoved(), ASKS_ELSEWHERE, MoveRefused("no"), RequiredWriteRefused(Purpose.STOP, "no"), WriteAccepted(),
    ]
)  # fmt: skip


POLICIES = st.sampled_from(
    [rules(), rules(grace=30.0, backoff_limit=1), rules(requeue_by_eviction=False)]
)


@given(st.sampled_from([SUBMITTED, GATED]), st.lists(EVENTS, max_size=25), POLICIES)
def test_whatever_happens_entries_stay_consistent_and_versions_rise(
    first: Submitted, events: list[Event], policy: Rules
) -> None:
    entry = run(first)
    for now, event in enumerate(events, start=300):
        try:
            change: EntryChange | None = handle(entry, event, float(now), policy)
        except IllegalTransition:
            continue
        if change is None:
            continue
        assert change.before == entry
        assert change.after.version == entry.version + 1
        assert change.after.attempt in (entry.attempt, entry.attempt + 1, 9)
        assert violations(change.after) == []
        assert change.after.queued_at == entry.queued_at
        assert set(change.after.gates) <= set(entry.gates), "gates are only ever removed"
        entry = change.after
