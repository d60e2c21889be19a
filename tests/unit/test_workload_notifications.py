"""The events for receivers that follow from changes of workloads."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.accounting import LostWork, Mark, UsagePhase
from queuectl.domain.events import (
    Admit,
    Drained,
    Ended,
    Event,
    Evict,
    NoteAdded,
    NoticeOver,
    NotifyChanged,
    PodsReady,
    Refuse,
    Submitted,
)
from queuectl.domain.gates import DependencyStatus, Standing
from queuectl.domain.jobs import JobOutcome
from queuectl.domain.ledger import Entry, EntryChange, State, violations
from queuectl.domain.notifications import EventType, JobNotifications
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.rules import Rules
from queuectl.domain.snapshot import PlannedStart
from queuectl.domain.workload_notifications import (
    LONGEST_MESSAGE,
    announced_start,
    events_of,
    types_of,
)
from queuectl.lifecycle.machine import DEFAULT_RULES, handle
from queuectl.lifecycle.observations import joined
from tests.unit.test_machine import (
    AFTER,
    EVICTED,
    JOB,
    PLACEMENT,
    PREP,
    QUOTA,
    RUNS,
    SUBMITTED,
    TRANSITIONS,
)

GRACE = Rules(eviction_grace=60.0)
OF_TRANSITIONS = {
    "a submitted job queues": "",
    "a refused gang stays pending": "",
    "an admitted gang starts": "",
    "a gang with victims waits on its lease": "",
    "a lost lease puts it back": "",
    "a leased gang starts": "",
    "ready pods make it running": "started",
    "a running gang can be evicted": "started evicted",
    "so can a starting one": "evicted",
    "a drained gang queues again": "evicted",
    "a moved gang leaves": "evicted",
    "and waits for its new place": "evicted",
    "where it starts again": "evicted",
    "a gang that is to be moved and asks for something else still leaves": "evicted",
    "and queues again when it has left": "evicted",
    "a failed start backs off": "evicted",
    "and is retried": "evicted",
    "a gang that was taken for idleness rests": "started evicted",
    "before it queues again": "started evicted",
    "unless an administrator requeues it": "started evicted",
    "a gang in back-off can be held": "started evicted held",
    "or while it leaves": "started evicted held",
    "without a cooldown it queues at once": "started evicted",
    "that it is idle changes nothing by itself": "started idle",
    "and is not recorded for a gang that is being evicted": "started evicted",
    "a job resumed by others is taken down": "evicted",
    "a deleted job is finished": "",
    "success ends it": "finished",
    "an eviction does not outlive the job": "evicted finished",
    "a held gang does not queue": "held",
    "until it is released": "held",
    "a hold drops its reservation": "held",
    "a running gang is evicted to be held": "started evicted",
    "and is held when its pods are deleted": "started evicted held",
    "unless it is released before that": "started evicted",
    "one that leaves anyway can be held": "started evicted held",
    "even one that was only moved": "started evicted held",
    "or that failed to start": "evicted held",
    "a running gang is preempted by hand": "started evicted",
    "and queues again": "started evicted",
    "a gang on its way to another queue waits": "",
    "and its reservation is dropped": "",
    "nor is it started in the meantime": "",
    "nor is a gang evicted for it": "",
    "but once it is there": "",
    "a held gang can be moved": "held",
    "a back-off ends by a hold and a release": "evicted held",
    "or by a requeue": "evicted",
    "a running gang is evicted to queue again": "started evicted",
    "which it does": "started evicted",
    "a deactivated gang does not queue": "held",
    "a hold can become a deactivation": "held held",
    "it is not released": "held",
    "but activated": "held",
    "a running gang is evicted for it": "started evicted held",
    "one that ran too long is evicted": "started evicted",
    "and deactivated": "started evicted failed",
    "a gated job is held": "",
    "while a gate is left": "",
    "and queues when none is": "",
    "a gate that was removed and comes again does not count": "",
    "a job with an invalid list of gates is held": "",
    "by each gate of the corrected list": "",
    "until none is left": "",
    "also by a job that it depends on": "held",
    "unless that has ended": "",
    "a list that becomes invalid removes no gate": "",
    "a release does not open gates": "",
    "nor do gates end a hold": "",
    "both do": "",
    "a job that depends on another is held": "",
    "while the other runs": "",
    "and queues when it succeeded": "",
    "not when it failed": "held",
    "unless it is run again": "held",
    "or the dependency is removed": "held",
    "a satisfied dependency does not end a hold": "",
    "and is not needed a second time": "",
    "a gated job that was resumed is gated again": "evicted held",
    "a held job can be deleted": "held",
    "what ended cannot be held": "",
    "nothing follows the end": "",
}
"""The events on the way of each row of TRANSITIONS."""


def changes(
    *events: Event, now: float = 200.0, rules: Rules = DEFAULT_RULES, entry: Entry | None = None
) -> list[EntryChange]:
    """The changes by events, one after the other."""
    made = []
    for event in events:
        change = handle(entry, event, now, rules)
        if change is not None:
            made.append(change)
            entry = change.after
    return made


def names(*made: EntryChange) -> str:
    """The types of the events, without their prefix."""
    return " ".join(t.removeprefix("workload.") for change in made for t in types_of(change))


def test_each_transition_has_its_events() -> None:
    found = {text: names(*changes(*events)) for text, events, _ in TRANSITIONS}
    assert found == OF_TRANSITIONS


def test_a_notice_comes_before_the_eviction() -> None:
    cases: dict[str, tuple[Event, ...]] = {
        "started eviction-notice": (*RUNS, EVICTED),
        "started eviction-notice evicted": (*RUNS, EVICTED, NoticeOver()),
        "started eviction-notice finished": (*RUNS, EVICTED, Ended(JobOutcome.SUCCEEDED)),
        "started eviction-notice failed": (*RUNS, EVICTED, Ended(JobOutcome.FAILED)),
        "evicted": (SUBMITTED, Admit(PLACEMENT), EVICTED),
    }
    for expected, events in cases.items():
        assert names(*changes(*events, rules=GRACE)) == expected
    *_, over, drained = changes(*RUNS, EVICTED, NoticeOver(), Drained(), rules=GRACE)
    at_once = joined(over, drained)
    assert at_once is not None
    assert names(at_once) == "evicted", "even as one change"
    notice, evicted = events_of([*changes(*RUNS, EVICTED, rules=GRACE)[-1:], at_once])
    assert notice.message == (
        "Job team-a/train will be evicted at 1970-01-01T00:04:20Z: for another team"
    )
    assert evicted.message == "Job team-a/train was evicted: for another team"
    assert (notice.details["stopsAt"], evicted.details["reason"]) == (
        "1970-01-01T00:04:20Z",
        "Preempted",
    )


def test_a_time_that_cannot_be_written_costs_the_details_of_its_event_only() -> None:
    """An error here would undo the commit of a whole cycle, again and again."""
    notice = changes(*RUNS, EVICTED, rules=GRACE)[-1]
    far = replace(notice, after=replace(notice.after, stop_at=float("nan")))
    first, second = events_of([far, notice])
    assert (first.message, first.details) == ("Job team-a/train will be evicted", {})
    assert (first.type, first.uid) == (second.type, second.uid)
    assert second.details


def test_a_gang_is_warned_of_idle_gpus_and_only_once_of_a_dry_run() -> None:
    for mode, number, expected in (
        ("Always", 1, "idle"),
        ("Always", 2, "idle"),
        ("DryRun", 1, "idle"),
        ("DryRun", 2, ""),
    ):
        details = {"warning": number, "mode": mode, "graceEnds": "then", "idleSince": "before"}
        warning = NoteAdded(Reason(Code.IDLE_GPUS, "idle since", details))
        *_, warned = changes(*RUNS, warning)
        assert names(warned) == expected
        for event in events_of([warned]):
            assert event.message == "Job team-a/train leaves its GPUs idle: idle since"
            assert event.details["graceEnds"] == "then"


def test_little_lost_work_is_not_shown_as_none() -> None:
    *_, evicted = changes(*RUNS, Evict(Reason(Code.IDLE_RECLAIMED, "idle", {"lostGpuSeconds": 1})))
    (event,) = events_of([evicted])
    assert ", and loses less than 0.1 GPU-hours of work: idle" in event.message


def test_lost_work_is_that_of_the_usage_ledger_or_of_the_plan() -> None:
    recorded = Evict(Reason(Code.IDLE_RECLAIMED, "idle", {"lostGpuSeconds": 5400}))
    *_, by_plan = changes(*RUNS, recorded)
    (event,) = events_of([by_plan])
    assert event.details["lostGpuHours"] == 1.5
    assert event.message == ("Job team-a/train was evicted, and loses 1.5 GPU-hours of work: idle")
    mark = Mark("u1", 1.0, 1.0, UsagePhase.HOLDS, 1, JOB.gpus, loss=LostWork("Preempted", 7200.0))
    *_, preempted = changes(*RUNS, EVICTED)
    (event,) = events_of([replace(preempted, marks=(mark,))])
    assert event.details["lostGpuHours"] == 2.0


def test_an_event_names_no_gang_of_another_namespace() -> None:
    secret = Reason(Code.PREEMPTED, "for team-b/secret and team-a/own", {"preemptor": "u9"})
    *_, evicted = changes(*RUNS, Evict(secret))
    (event,) = events_of([evicted])
    assert event.message.endswith("for another team and team-a/own")
    assert "secret" not in repr(event)
    assert "u9" not in repr(event)


def test_the_receivers_are_those_of_the_annotations_for_this_type() -> None:
    wanted = JobNotifications(("ops", "chat"), (EventType.FAILED,))
    for request, receivers in (
        (None, ()),
        (JobNotifications(("ops",)), ("ops",)),
        (wanted, ()),
    ):
        job = replace(JOB, notify=request)
        *_, started = changes(Submitted(job, 1, "gpus"), Admit(PLACEMENT), PodsReady())
        (event,) = events_of([started])
        assert event.receivers == receivers
        assert (event.uid, event.cluster_queue, event.at) == ("u1", "gpus", 200.0)
    *_, failed = changes(*RUNS, NotifyChanged(wanted), Ended(JobOutcome.FAILED))
    assert [event.receivers for event in events_of([failed])] == [("ops", "chat")]


def test_a_change_beyond_the_limit_of_the_history_has_no_event_and_messages_are_bounded() -> None:
    *_, evicted = changes(*RUNS, Evict(Reason(Code.PREEMPTED, "x" * 100_000)))
    assert events_of([replace(evicted, listed=False)]) == []
    (event,) = events_of([evicted])
    assert len(event.message) == LONGEST_MESSAGE


def test_a_job_that_begins_with_a_dependency_that_failed_is_held() -> None:
    failed = replace(AFTER, statuses={PREP: Standing(DependencyStatus.FAILED)})
    assert names(*changes(failed)) == "held"


def test_a_wrong_annotation_is_stated_once() -> None:
    wrong = JobNotifications(("ops",), error="metadata.annotations: no")
    (change,) = changes(SUBMITTED, NotifyChanged(wrong), NotifyChanged(wrong))[1:]
    assert change.note is not None
    assert (change.note.reason.code, change.after.notify) == (Code.INVALID_NOTIFY, wrong)
    fixed = changes(NotifyChanged(None), entry=change.after)
    assert [(one.note, one.after.notify) for one in fixed] == [(None, None)]
    (submitted,) = changes(Submitted(replace(JOB, notify=wrong), 1, "gpus"))
    assert submitted.after.notify is None, "its own line follows"


# ---- Planned starts


def planned(at: float | None) -> Refuse:
    """A plan that gives a gang this start; None = none, for a cause."""
    start = PlannedStart(at or 0.0, PLACEMENT, at)
    return Refuse(QUOTA, planned_start=start)


def announced(*starts: float | None, queued_at: float = 100.0) -> tuple[str, Entry]:
    """The events of plans that give a gang these starts one after the other, and the gang."""
    made = changes(SUBMITTED)
    entry = replace(made[0].after, queued_at=queued_at)
    planning = changes(*map(planned, starts), entry=entry)
    assert [violations(change.after) for change in planning] == [[] for _ in planning]
    return names(*planning), planning[-1].after


def test_a_planned_start_is_announced_again_if_it_is_much_later() -> None:
    hour = 3600.0
    cases: dict[tuple[float | None, ...], str] = {
        (hour,): "",
        (hour, hour + 800.0): "",
        (hour, hour + 901.0): "delayed",
        # Small steps add up.
        (hour, hour + 500.0, hour + 1000.0): "delayed",
        (hour, hour + 1000.0, hour + 1500.0, hour + 2200.0): "delayed delayed",
        # A quarter of a long wait.
        (40 * hour, 45 * hour): "",
        (40 * hour, 51 * hour): "delayed",
        # An earlier start, and back again, does not count as a delay.
        (hour, 1000.0, hour, hour + 800.0): "",
        # A gang without a planned start for a time.
        (hour, None, hour + 800.0): "",
        (hour, None, 2 * hour): "delayed",
    }
    assert {starts: announced(*starts)[0] for starts in cases} == cases
    entry = announced(hour, 2 * hour)[1]
    assert entry.announced_start == 2 * hour
    (late,) = events_of(changes(planned(3 * hour), entry=entry))
    assert late.message.startswith("Job team-a/train starts later than planned, at 1970-01-01T03")
    assert late.details["plannedBefore"] == "1970-01-01T02:00:00Z"
    started = changes(Admit(PLACEMENT), entry=entry)[-1].after
    assert started.announced_start is None


@given(st.lists(st.floats(200.0, 1e7), min_size=1, max_size=30))
def test_many_slips_have_few_events(starts: list[float]) -> None:
    """Each event is for a start that is later than the one announced before by a quarter of the wait, so their number is logarithmic."""
    entry = replace(changes(SUBMITTED)[0].after, queued_at=100.0)
    pairs = []
    for at in starts:
        said = announced_start(entry, at)
        if entry.announced_start is not None and said != entry.announced_start:
            pairs.append((entry.announced_start, said))
        entry = replace(entry, announced_start=said)
    assert all(now - 100.0 >= 1.25 * (before - 100.0) for before, now in pairs)
    assert all(now > before + 900.0 for before, now in pairs)
    assert entry.state is State.PENDING
