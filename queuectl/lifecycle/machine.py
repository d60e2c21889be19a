"""The state machine of a workload: ``handle(entry, event, now) -> EntryChange``. No other code changes a state.

The function is pure. Events are facts: an observation of the watch, a decision of the planner, the passing of time. Changes are
values that the store commits. The writes to the cluster follow from the entry alone (lifecycle/outstanding_writes.py), thus a crash
between two steps loses nothing.

    Pending ──Admit──▶ Starting ──PodsReady──▶ Running ──Ended──▶ Finished
       │  ▲               │ Evict                 │ Evict
    Reserve│ (lease lost) ▼                       ▼
       ▼  │            Evicting ──Drained──▶ Pending; Backoff after a failed start; Held or Deactivated if it is kept so
    Reserved ──Admit──▶ Starting

A user's command (:class:`~queuectl.domain.events.CommandReceived`) holds, releases, requeues, preempts, deactivates or activates
from any state. A held or deactivated gang, or a gang with admission gates, stays in Held or Deactivated until that ends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, assert_never

from queuectl.domain.checks import NO_CHECKS
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
    FlavorsDue,
    GatesChanged,
    LabelsChanged,
    MoveRefused,
    NoteAdded,
    NoticeOver,
    NotifyChanged,
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
from queuectl.domain.gates import held_by, remaining, still_listed
from queuectl.domain.jobs import JobOutcome
from queuectl.domain.ledger import REFUSED_WRITE, Entry, EntryChange, Intent, Note, State
from queuectl.domain.plan import SLIPS, SlipCause
from queuectl.domain.queues import PRICES
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.rules import Rules
from queuectl.domain.snapshot import PlannedStart
from queuectl.domain.words import format_time
from queuectl.domain.workload_notifications import announced_start
from queuectl.lifecycle.provisioning import checked, waiting_for
from queuectl.lifecycle.transitions import drained, evict, move, next_of, rejoin
from queuectl.lifecycle.user_commands import carry_out

DEFAULT_RULES: Final = Rules()
MAX_BUDGET: Final = 8  # a larger budget after another Undecided changes nothing


class IllegalTransition(AssertionError):
    """A defect: the event cannot happen in this state."""


def handle(  # noqa: C901 - one dispatch over all events, checked for completeness
    entry: Entry | None, event: Event, now: float, rules: Rules = DEFAULT_RULES
) -> EntryChange | None:
    """Apply one event. ``rules``: for back-off and notice.

    Returns:
        The change, or None if the event changes nothing.

    Raises:
        IllegalTransition: when the event cannot happen in the entry's state.
    """
    if isinstance(event, Submitted):
        return _submitted(entry, event, now)
    if entry is None:
        raise IllegalTransition(f"{type(event).__name__} for an unknown workload")
    if entry.state is State.FINISHED:
        return None
    match event:
        case ObjectChanged():
            return _described(entry, event, now)
        case LabelsChanged():
            same = entry.labels == event.labels
            return None if same else EntryChange(entry, next_of(entry, labels=event.labels), now)
        case NotifyChanged():
            return _notified(entry, event, now)
        case Admit():
            return _admit(entry, event, now)
        case Adopt():
            return _adopt(entry, event, now)
        case AttemptFound():
            higher = event.attempt > entry.attempt
            return (
                EntryChange(entry, next_of(entry, attempt=event.attempt), now) if higher else None
            )
        case Reserve() | Refuse():
            return _stay(entry, event, now)
        case Evict():
            return _evict(entry, event, now, rules)
        case NoteAdded():
            return _remarked(entry, event, now)
        case NoticeOver():
            return EntryChange(entry, next_of(entry, stop_at=None), now) if entry.stop_at else None
        case Repair():
            return _repair(entry, event, now)
        case StartConfirmed():
            started = entry.intent is Intent.START  # it owes a stop until it has drained
            return EntryChange(entry, next_of(entry, intent=None), now) if started else None
        case MoveRefused():
            return _not_moved(entry, event, now)
        case RequiredWriteRefused():
            return _refused(entry, event, now)
        case WriteAccepted():
            return _accepted(entry, now)
        case PodsReady():
            return _ready(entry, now)
        case PodsLost():
            return _lost(entry, event, now)
        case PodsElsewhere():
            return _elsewhere(entry, event, now)
        case PodsDone():
            return _done(entry, event, now)
        case GatesChanged():
            return _gated(entry, event, now)
        case ChecksReported():
            return checked(entry, event.reports, event.by, now, rules)
        case CommandReceived():
            return carry_out(entry, event.command, now, rules)
        case PriorityOver():
            return _priority_over(entry, event, now)
        case QueueMoved():
            moves = entry.intent is Intent.MOVE
            return (
                EntryChange(entry, next_of(entry, queue_set=None, intent=None), now)
                if moves
                else None
            )
        case Drained():
            _need(entry, event, State.EVICTING)
            return drained(entry, now, rules.pods_ready)
        case RetryDue():
            _need(entry, event, State.BACKOFF)
            reason = Reason(Code.QUEUED, "requeued after back-off")
            return rejoin(entry, now, reason, requeue_at=None)
        case FlavorsDue():
            return EntryChange(entry, next_of(entry, checks=entry.checks.asking(now)), now)
        case Ended():
            code = Code.SUCCEEDED if event.outcome is JobOutcome.SUCCEEDED else Code.FAILED
            return _finish(entry, Reason(code), now)
        case ObjectDeleted():
            return _finish(entry, Reason(Code.DELETED, "the job was deleted"), now)
        case _:
            assert_never(event)


def _need(entry: Entry, event: Event, *states: State) -> None:
    if entry.state not in states:
        raise IllegalTransition(f"{type(event).__name__} in state {entry.state} of {entry.ref}")


def _submitted(entry: Entry | None, event: Submitted, now: float) -> EntryChange | None:
    if entry is not None:
        return None
    job = event.job
    gates = remaining(job.gates, event.statuses)
    reason = (
        held_by(gates, event.statuses, job.error)
        if gates
        else Reason(Code.QUEUED, f"queued in LocalQueue {job.queue}")
    )
    after = Entry(
        uid=job.uid,
        kind=job.kind,
        namespace=job.namespace,
        name=job.name,
        state=State.HELD if gates else State.PENDING,
        queue=job.queue or "",
        cluster_queue=event.cluster_queue,
        priority=event.priority,
        gpus=job.gpus,
        pods=job.pods,
        attempt=job.attempt,  # a higher attempt on the object is adopted
        queued_at=_arrival(job.created_at, now),
        since=now,
        reason=reason,
        version=1,
        gates=gates,
        user=event.user,
        labels=job.listed_labels,
        notify=job.notify if job.notify is None or not job.notify.error else None,
    )
    return EntryChange(None, after, now, Note("Queued", None, after.state, reason))


def _arrival(created_at: float, now: float) -> float:
    """Its creation time. The API server has whole seconds; the time of the observation can be more exact."""
    return min(max(created_at, now), created_at + 0.999)


def _described(entry: Entry, event: ObjectChanged, now: float) -> EntryChange | None:
    priority = event.priority if entry.priority_set is None else entry.priority_set
    if event.max_priority is not None:
        priority = min(priority, event.max_priority)
    stated: dict[str, Any] = {
        "queue": event.queue,
        "cluster_queue": event.cluster_queue,
        "priority": priority,
        "gpus": event.gpus,
        "pods": event.pods,
        "user": event.user,
    }
    as_stated = all(getattr(entry, name) == value for name, value in stated.items())
    if as_stated and not event.edited:
        return None
    asks = (event.queue, event.cluster_queue, event.gpus, event.pods)
    as_known = (entry.queue, entry.cluster_queue, entry.gpus, entry.pods)
    if entry.lease is None or (asks == as_known and not event.edited):
        return EntryChange(entry, next_of(entry, **stated), now)
    if entry.state is State.EVICTING:  # it was moving; the eviction continues, and it queues again
        return EntryChange(entry, next_of(entry, lease=None, **stated), now)
    text = "its request changed; its reservation is released"
    return move(entry, State.PENDING, now, Reason(Code.QUEUED, text), lease=None, **stated)


def _notified(entry: Entry, event: NotifyChanged, now: float) -> EntryChange | None:
    """A wrong value is stated once, in the history and by an Event on the job."""
    if event.notify == entry.notify:
        return None
    error = event.notify.error if event.notify is not None else ""
    note = None
    if error and (entry.notify is None or entry.notify.error != error):
        reason = Reason(Code.INVALID_NOTIFY, error)
        note = Note(str(reason.code), entry.state, entry.state, reason)
    return EntryChange(entry, next_of(entry, notify=event.notify), now, note)


def _admit(entry: Entry, event: Admit, now: float) -> EntryChange | None:
    _need(entry, event, State.PENDING, State.RESERVED)
    if entry.queue_set is not None:
        return None  # the decision is for a gang that is moving to another queue
    reason = Reason(Code.ADMITTED, _admitted(entry.attempt + 1), event.details)
    return move(
        entry,
        State.STARTING,
        now,
        reason,
        attempt=entry.attempt + 1,
        placement=event.placement,
        planned=event.planned,
        lease=None,
        intent=Intent.START,
        started_at=now,
        ready_at=None,
        requeue_at=None,
        requeued_at=None,
        evicted_for=None,
        budget=0,
        checks=entry.checks.without_retries(),
    )


def _adopt(entry: Entry, event: Adopt, now: float) -> EntryChange:
    if not entry.state.waiting and event.attempt <= entry.attempt:
        raise IllegalTransition(f"Adopt in state {entry.state} of {entry.ref}")
    return move(
        entry,
        State.RUNNING,
        now,
        Reason(Code.ADOPTED, f"already running as attempt {event.attempt}"),
        attempt=event.attempt,
        placement=event.placement,
        planned=None,
        lease=None,
        intent=None,
        queue_set=None,
        stop_at=None,
        unready_since=None,
        past_seconds=entry.executed(now),
        started_at=now if event.started_at is None else min(now, event.started_at),
        ready_at=now,
        requeue_at=None,
        requeued_at=None,
        evicted_for=None,
        parked=None,
        gates=(),
        checks=NO_CHECKS,
    )


def _next_budget(entry: Entry, code: Code) -> int:
    """The budget of the next search for a gang that waits. A gang that was not searched for keeps it."""
    if code is Code.UNDECIDED:
        return min(entry.budget + 1, MAX_BUDGET)
    return entry.budget if code is Code.PENDING_EVALUATION else 0


def _stay(entry: Entry, event: Reserve | Refuse, now: float) -> EntryChange | None:
    _need(entry, event, State.PENDING, State.RESERVED)
    lease = event.lease if isinstance(event, Reserve) else None
    if lease is not None and entry.queue_set is not None:
        return None
    if isinstance(event, Reserve) and event.checks:
        return waiting_for(entry, event, now)
    state = State.RESERVED if lease is not None else State.PENDING
    budget = _next_budget(entry, event.reason.code)
    start = event.planned_start if isinstance(event, Refuse) else None
    announced = entry.announced_start
    if start is not None and start.promised is not None:
        announced = announced_start(entry, start.at)
    starts = {"planned_start": start, "announced_start": announced}
    if state is not entry.state:
        return move(entry, state, now, event.reason, lease=lease, budget=budget, **starts)
    if entry.checks.statuses and lease != entry.lease:
        # Its reservation was for admission checks and is for victims now.
        return move(entry, state, now, event.reason, lease=lease, checks=entry.checks.reset())
    known = (entry.reason, entry.lease, entry.budget, entry.planned_start)
    if (event.reason, lease, budget, start) == known:
        return None
    after = next_of(entry, reason=event.reason, lease=lease, budget=budget, **starts)
    planned = _first_planned(entry.planned_start, start)
    note = None
    if planned or event.reason.code is not entry.reason.code:
        reason = replace(event.reason, message=event.reason.message + planned)
        note = Note(str(event.reason.code), entry.state, state, reason)
    if isinstance(event, Refuse) and event.slip is not None and start is not None:
        moved = _moved(event.slip, entry.planned_start, start)
        note = Note(str(moved.code), entry.state, state, moved)
    return EntryChange(entry, after, now, note)


def _first_planned(before: PlannedStart | None, after: PlannedStart | None) -> str:
    """The end of the sentence in the history for a gang that gets a planned start; empty for others."""
    if after is None or after.promised is None:
        return ""
    if before is not None and before.promised is not None:
        return ""
    return f"; its planned start is {format_time(after.at)}"


def _moved(slip: SlipCause, before: PlannedStart | None, after: PlannedStart) -> Reason:
    """The line of the history for a planned start that is later than before."""
    promised = before.promised if before is not None else None
    if after.promised is None:
        text = f"it has no planned start now: {SLIPS[slip]}"
    else:
        was = f" from {format_time(promised)}" if promised is not None else ""
        text = f"its planned start moved{was} to {format_time(after.at)}: {SLIPS[slip]}"
    return Reason(Code.PLANNED_START_MOVED, text, {"cause": slip.value, "overruns": after.overruns})


def _evict(entry: Entry, event: Evict, now: float, rules: Rules) -> EntryChange | None:
    if entry.state is State.EVICTING:
        return None
    if entry.awaits_checks and event.reason.code is not Code.RESUMED_OUTSIDE:
        # It has no pods: its capacity is free at once.
        return move(entry, State.PENDING, now, event.reason, lease=None)
    return evict(
        entry,
        now,
        event.reason,
        rules,
        excluded=event.excluded,
        lease=event.lease,
        parked=event.parked,
        behind=event.behind,
    )


def _remarked(entry: Entry, event: NoteAdded, now: float) -> EntryChange | None:
    if entry.state is not State.RUNNING:
        return None
    note = Note(str(event.reason.code), entry.state, entry.state, event.reason)
    return EntryChange(entry, next_of(entry), now, note)


def _repair(entry: Entry, event: Repair, now: float) -> EntryChange:
    _need(entry, event, State.STARTING, State.RUNNING)
    after = next_of(entry, placement=event.placement)
    reason = Reason(Code.REPAIRED, "pods of lost nodes are placed on other nodes")
    return EntryChange(entry, after, now, Note("Repaired", entry.state, entry.state, reason))


def _elsewhere(entry: Entry, event: PodsElsewhere, now: float) -> EntryChange:
    _need(entry, event, State.STARTING, State.RUNNING)
    after = next_of(entry, placement=event.placement)
    reason = Reason(Code.ADOPTED, "its pods run on other nodes than were recorded")
    return EntryChange(entry, after, now, Note("Adopted", entry.state, entry.state, reason))


def _ready(entry: Entry, now: float) -> EntryChange | None:
    if entry.state is not State.STARTING and entry.unready_since is None:
        return None
    pods = entry.started_pods
    text = "its pod is ready" if pods == 1 else f"all {pods} pods are ready"
    if pods < entry.pods:
        text += f"; it requested {entry.pods} pods and started with fewer"
    kept = {key: value for key, value in entry.reason.details.items() if key == PRICES}
    reason = Reason(Code.PODS_READY, text, kept)
    if entry.unready_since is not None:
        # Programs that were restarted in place load their data again: the warm-up counts from now.
        return EntryChange(
            entry, next_of(entry, unready_since=None, ready_at=now, reason=reason), now
        )
    return move(entry, State.RUNNING, now, reason, ready_at=now, failures=0, excluded=())


def _lost(entry: Entry, event: PodsLost, now: float) -> EntryChange | None:
    reason, since = entry.reason, entry.unready_since
    if entry.state is State.RUNNING:
        since = now if since is None else since
        reason = Reason(Code.WAIT_FOR_RECOVERY, event.why, reason.details)
    elif entry.state is State.STARTING and reason.code is Code.ADMITTED:
        held = f"; its pods wait for others: {event.held_by}" if event.held_by else ""
        reason = Reason(reason.code, _admitted(entry.attempt) + held, reason.details)
    if entry.refused_write is not None:
        reason = entry.reason  # it names the refused write until that is accepted
    if (since, reason) == (entry.unready_since, entry.reason):
        return None
    return EntryChange(entry, next_of(entry, unready_since=since, reason=reason), now)


def _admitted(attempt: int) -> str:
    return f"admitted as attempt {attempt}"


def _not_moved(entry: Entry, event: MoveRefused, now: float) -> EntryChange | None:
    if entry.intent is not Intent.MOVE:
        return None
    text = f"it stays in LocalQueue {entry.queue}: the API server refused the move to {entry.queue_set}: {event.why}"
    note = Note(str(Code.WRITE_REFUSED), entry.state, entry.state, Reason(Code.WRITE_REFUSED, text))
    return EntryChange(entry, next_of(entry, queue_set=None, intent=None), now, note)


def _refused(entry: Entry, event: RequiredWriteRefused, now: float) -> EntryChange | None:
    """Show this in addition to the reason for its state. The reason continues to decide the next state."""
    if entry.refused_write is not None:
        return None
    message_before = entry.reason.message
    details = {
        **entry.reason.details,
        REFUSED_WRITE: {"write": event.purpose.value, "before": message_before},
    }
    message = f"{message_before}; {event.text}" if message_before else event.text
    after = next_of(entry, reason=Reason(entry.reason.code, message, details))
    reason = Reason(Code.WRITE_REFUSED, event.text, {"write": event.purpose.value})
    return EntryChange(entry, after, now, Note(str(reason.code), entry.state, entry.state, reason))


def _accepted(entry: Entry, now: float) -> EntryChange | None:
    if entry.refused_write is None:
        return None
    details = dict(entry.reason.details)
    message_before = details.pop(REFUSED_WRITE)["before"]
    return EntryChange(
        entry, next_of(entry, reason=Reason(entry.reason.code, message_before, details)), now
    )


def _done(entry: Entry, event: PodsDone, now: float) -> EntryChange | None:
    _need(entry, event, State.STARTING, State.RUNNING)
    if event.placement == entry.placement:
        return None
    return EntryChange(entry, next_of(entry, placement=event.placement), now)


def _gated(entry: Entry, event: GatesChanged, now: float) -> EntryChange | None:
    listed = still_listed(entry.gates, event.gates)
    gates = remaining(listed, event.statuses)
    if entry.state is not State.HELD or entry.parked is not None:
        same = gates == entry.gates
        return None if same else EntryChange(entry, next_of(entry, gates=gates), now)
    if not gates:
        satisfied = gates != listed
        text = "the jobs that it depends on have ended" if satisfied else "its gates were removed"
        return rejoin(entry, now, Reason(Code.QUEUED, text), gates=gates)
    reason = held_by(gates, event.statuses, event.error)
    if gates == entry.gates and reason == entry.reason:
        return None
    changed = next_of(entry, gates=gates, reason=reason)
    note = Note(str(reason.code), entry.state, entry.state, reason)
    return EntryChange(entry, changed, now, note)


def _priority_over(entry: Entry, event: PriorityOver, now: float) -> EntryChange | None:
    if entry.priority_until is None or now < entry.priority_until:
        return None
    text = f"priority {entry.priority_set} expired; reset to that of its priority class"
    reason = Reason(Code.PRIORITY_SET, text)
    after = next_of(entry, priority=event.priority, priority_set=None, priority_until=None)
    return EntryChange(entry, after, now, Note(str(reason.code), entry.state, entry.state, reason))


def _finish(entry: Entry, reason: Reason, now: float) -> EntryChange:
    return move(
        entry,
        State.FINISHED,
        now,
        reason,
        placement=None,
        planned=None,
        lease=None,
        intent=None,
        queue_set=None,
        requeue_at=None,
        unready_since=None,
        stop_at=None,
        past_seconds=entry.executed(now),
        finished_at=now,
    )
