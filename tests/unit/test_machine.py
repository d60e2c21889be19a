"""The workload state machine: which event leads where, and what every reachable entry keeps to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.ledger import Change, Entry, Intent, State
from queuectl.domain.machine import (
    Admit,
    Adopt,
    Described,
    Drained,
    Echoed,
    Ended,
    Event,
    Evict,
    Gone,
    IllegalTransition,
    PodsReady,
    Refuse,
    Repair,
    Reserve,
    RetryDue,
    StartPolicy,
    Submitted,
    handle,
    violations,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import JobRecord, Outcome
from queuectl.domain.snapshot import CapacityLease
from queuectl.domain.workload import Placement, PodSetPlacement

JOB = JobRecord("Job", "team-a", "train", "u1", 7, 100.0, "research")
PLACEMENT = Placement((PodSetPlacement("main", (("n1", 2), ("n2", 2))),))
MOVED = Placement((PodSetPlacement("main", (("n1", 2), ("n3", 2))),))
LEASE = CapacityLease(PLACEMENT, ("v1",), 110.0, 710.0)
QUOTA = Reason(Code.WAITING_FOR_QUOTA, "needs 8, has 4")
WAITS = Reason(Code.WAITING_FOR_PREEMPTED, "one victim is leaving")
UNDECIDED = Reason(Code.UNDECIDED, "budget ended")


def run(*events: Event, entry: Entry | None = None, now: float = 200.0) -> Entry:
    """Apply events one after the other; those that say nothing new are allowed."""
    for event in events:
        change = handle(entry, event, now)
        entry = change.after if change is not None else entry
    assert entry is not None
    return entry


SUBMITTED = Submitted(JOB, priority=10, cluster_queue="gpus")
EVICTED = Evict(Reason(Code.PREEMPTED, "for team-b/big"))
MOVED_AWAY = Evict(Reason(Code.DEFRAGMENTED, "so that team-b/big fits"), lease=LEASE)
FAILED_START = Evict(Reason(Code.PODS_READY_TIMEOUT, "late"), excluded=("n2",))

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
    ("a failed start backs off", (SUBMITTED, Admit(PLACEMENT), FAILED_START, Drained()), State.BACKOFF),
    (
        "and is retried",
        (SUBMITTED, Admit(PLACEMENT), FAILED_START, Drained(), RetryDue()),
        State.PENDING,
    ),
    ("a job resumed by others is taken down", (SUBMITTED, EVICTED), State.EVICTING),
    ("a deleted job is finished", (SUBMITTED, Gone()), State.FINISHED),
    ("success ends it", (SUBMITTED, Admit(PLACEMENT), Ended(Outcome.SUCCEEDED)), State.FINISHED),
    ("an eviction does not outlive the job", (SUBMITTED, Admit(PLACEMENT), EVICTED, Gone()), State.FINISHED),
    ("nothing follows the end", (SUBMITTED, Gone(), PodsReady()), State.FINISHED),
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
    assert run(Echoed(), entry=second).intent is None


def test_an_attempt_found_on_the_object_is_adopted() -> None:
    entry = run(Submitted(replace(JOB, attempt=4), 0, "gpus"), Admit(PLACEMENT))
    assert entry.attempt == 5


def test_a_preempted_gang_keeps_its_place_in_the_queue() -> None:
    entry = run(SUBMITTED, Admit(PLACEMENT), PodsReady(), EVICTED, Drained(), now=900.0)
    assert entry.queued_at == run(SUBMITTED).queued_at
    assert entry.evictions == 1


def test_the_preemptions_of_the_last_day_are_remembered_and_no_other_evictions() -> None:
    """What a queue's cool-down and daily limit count: making room for others, not failures of its own."""
    entry = run(SUBMITTED, Admit(PLACEMENT), EVICTED, Drained(), now=200.0)
    entry = run(Admit(PLACEMENT), FAILED_START, Drained(), RetryDue(), entry=entry, now=9_000.0)
    entry = run(Admit(PLACEMENT), EVICTED, Drained(), entry=entry, now=50_000.0)
    assert (entry.preempted_at, entry.evictions) == ((200.0, 50_000.0), 3)
    entry = run(Admit(PLACEMENT), EVICTED, entry=entry, now=86_600.0)
    assert entry.preempted_at == (50_000.0, 86_600.0)


@pytest.mark.parametrize(
    ("seen", "queued"),
    [
        pytest.param(100.4, 100.4, id="seen within the second the API server tells"),
        pytest.param(250.0, 100.999, id="seen late"),
        pytest.param(99.5, 100.0, id="our clock is behind"),
    ],
)
def test_the_place_in_line_is_as_fine_as_we_know(seen: float, queued: float) -> None:
    assert run(SUBMITTED, now=seen).queued_at == pytest.approx(queued)


def test_back_off_doubles_with_each_failed_start_and_is_forgotten_by_a_good_one() -> None:
    policy = StartPolicy(base=60, ceiling=200)
    entry, waits = run(SUBMITTED), []
    for _ in range(4):
        entry = run(Admit(PLACEMENT), FAILED_START, entry=entry, now=1000.0)
        change = handle(entry, Drained(), 1000.0, policy)
        assert change is not None
        assert change.after.requeue_at is not None
        waits.append(change.after.requeue_at - 1000.0)
        entry = run(RetryDue(), entry=change.after, now=2000.0)
    assert waits == [60, 120, 200, 200]
    assert entry.excluded == ("n2",)
    ready = run(Admit(PLACEMENT), PodsReady(), entry=entry)
    assert (ready.failures, ready.excluded) == (0, ())


def test_undecided_raises_the_budget_and_any_answer_resets_it() -> None:
    entry = run(SUBMITTED, Refuse(UNDECIDED), Refuse(UNDECIDED))
    assert entry.budget == 2
    assert run(Refuse(QUOTA), entry=entry).budget == 0


def test_the_same_refusal_again_is_not_a_change() -> None:
    entry = run(SUBMITTED, Refuse(QUOTA))
    assert handle(entry, Refuse(QUOTA), 300.0) is None


def test_new_numbers_of_the_same_reason_are_no_new_line_in_the_history() -> None:
    entry = run(SUBMITTED, Refuse(QUOTA))
    change = handle(entry, Refuse(Reason(Code.WAITING_FOR_QUOTA, "needs 8, has 6")), 300.0)
    assert change is not None
    assert change.note is None


def test_a_description_that_says_nothing_new_is_not_a_change() -> None:
    described = Described("research", "gpus", 10, 0, 0)
    entry = run(SUBMITTED)
    assert handle(entry, described, 300.0) is None
    assert run(replace(described, priority=50), entry=entry).priority == 50


EVENTS = st.sampled_from(
    [
        Admit(PLACEMENT), Adopt(MOVED, 9), Reserve(LEASE, WAITS), Refuse(QUOTA), Refuse(UNDECIDED), EVICTED, FAILED_START, Repair(MOVED),
        Echoed(), PodsReady(), Drained(), RetryDue(), Ended(Outcome.FAILED), Gone(),
    ]
)  # fmt: skip


@given(st.lists(EVENTS, max_size=25))
def test_whatever_happens_entries_stay_consistent_and_versions_rise(events: list[Event]) -> None:
    entry = run(SUBMITTED)
    for now, event in enumerate(events, start=300):
        try:
            change: Change | None = handle(entry, event, float(now))
        except IllegalTransition:
            continue
        if change is None:
            continue
        assert change.before == entry
        assert change.after.version == entry.version + 1
        assert change.after.attempt in (entry.attempt, entry.attempt + 1, 9)
        assert violations(change.after) == []
        assert change.after.queued_at == entry.queued_at
        entry = change.after
