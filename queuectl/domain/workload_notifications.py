"""The events for receivers that follow from a change of a workload.

Receivers in a namespace do not always have access to other namespaces, so events name no gang of another namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from queuectl.domain.accounting import HOUR
from queuectl.domain.gpus import as_number
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.notifications import Event, EventType, JobNotifications
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.redaction import redacted_for
from queuectl.domain.words import format_time, gpu_hours_of, shortened

LONGEST_MESSAGE: Final = 1_000
"""Characters of the message of an event: the reason of a gang can quote a long value."""
LEAST_DELAY: Final = 15 * 60.0
"""Seconds by which a planned start must be later than the one that was announced before."""
LEAST_PART: Final = 0.25
"""The same as a part of the whole wait that was announced before."""
_NOTHING_REQUESTED: Final = JobNotifications()
_ENDS: Final = {Code.SUCCEEDED: EventType.FINISHED, Code.FAILED: EventType.FAILED}
_WORDS: Final = {
    EventType.STARTED: "runs",
    EventType.EVICTED: "was evicted",
    EventType.EVICTION_NOTICE: "will be evicted",
    EventType.IDLE: "leaves its GPUs idle",
    EventType.FINISHED: "has finished",
    EventType.FAILED: "has failed",
    EventType.HELD: "is held",
    EventType.DELAYED: "starts later than planned",
}


def announced_start(entry: Entry, at: float) -> float:
    """The planned start that is announced to the user of a pending gang, after a plan has moved it to ``at``.

    It is later than before only if it is later by :data:`LEAST_DELAY` and by :data:`LEAST_PART` of the wait. Thus small steps add up
    until they are worth an event.
    """
    before = entry.announced_start
    if before is None:
        return at
    least = max(LEAST_DELAY, LEAST_PART * (before - entry.queued_at))
    return at if at > before + least else before


def events_of(changes: Iterable[EntryChange]) -> list[Event]:
    """The events of these changes, in their order."""
    return [event for change in changes for event in _events(change)]


def types_of(change: EntryChange) -> Iterator[EventType]:
    """The types of the events of one change.

    A change beyond the number of lines that a workload can add to the history has none.
    """
    before, after = change.before, change.after
    was = before.state if before is not None else None
    if change.note is not None and not change.listed:
        return
    if after.state is State.FINISHED:
        yield from _end(was, after)
        return
    if was is State.EVICTING and before is not None:
        if before.stop_at is not None and after.stop_at is None:
            yield EventType.EVICTED
    elif after.state is State.EVICTING and before is not None:
        yield EventType.EVICTED if after.stop_at is None else EventType.EVICTION_NOTICE
    if was is State.STARTING and after.state is State.RUNNING:
        yield EventType.STARTED
    if _warns(change):
        yield EventType.IDLE
    if after.state in (State.HELD, State.DEACTIVATED):
        yield from _kept_out(before, after)
    if before is not None and _is_later(before.announced_start, after.announced_start):
        yield EventType.DELAYED


def _end(was: State | None, after: Entry) -> Iterator[EventType]:
    """A job that its user deletes while it waits has no event."""
    if was is State.FINISHED:
        return
    had_pods = was is not None and (was.live or was is State.EVICTING)
    if after.reason.code in _ENDS:
        yield _ENDS[after.reason.code]
    elif had_pods:
        yield EventType.FINISHED


def _warns(change: EntryChange) -> bool:
    """Whether it warns of idle GPUs. The second warning is one only if an eviction can follow."""
    note = change.note
    if note is None or note.reason.code is not Code.IDLE_GPUS:
        return False
    return note.reason.details.get("warning") == 1 or note.reason.details.get("mode") != "DryRun"


def _kept_out(before: Entry | None, after: Entry) -> Iterator[EventType]:
    """A gang that stays out of the queue. The user knows the gates in the manifest of a new job."""
    never = after.reason.code is Code.DEPENDENCY_NEVER_SATISFIED
    if before is not None and before.state is after.state:
        if never and before.reason.code is not after.reason.code:
            yield EventType.HELD
    elif after.state is State.DEACTIVATED and after.reason.code is not Code.DEACTIVATED:
        yield EventType.FAILED
    elif before is not None or never:
        yield EventType.HELD


def _is_later(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and after > before


def _events(change: EntryChange) -> Iterator[Event]:
    entry = change.after
    for event_type in types_of(change):
        message, details = _content(change, event_type)
        requested = entry.notify or _NOTHING_REQUESTED
        yield Event(
            at=change.at,
            type=event_type,
            kind=entry.kind,
            namespace=entry.namespace,
            name=entry.name,
            uid=entry.uid,
            cluster_queue=entry.cluster_queue,
            user=entry.user,
            receivers=requested.receivers_of(event_type),
            message=message,
            details=details,
        )


def _content(
    change: EntryChange, event_type: EventType
) -> tuple[str, Mapping[str, str | int | float]]:
    """The message and the details. Without a reason and details if these cannot be written, such as a time that is not a number.

    The events are in the transaction of all changes of a cycle: an error in one of them would undo the others.
    """
    try:
        reason = redacted_for(change.after.namespace, _reason(change, event_type))
        message = shortened(_message(change, event_type, reason), LONGEST_MESSAGE)
        return message, _details(change, event_type, reason)
    except Exception:  # noqa: BLE001 - of one workload
        entry = change.after
        return f"{entry.kind} {entry.ref} {_WORDS[event_type]}", {}


def _reason(change: EntryChange, event_type: EventType) -> Reason:
    """The reason of an eviction is that of its begin. That of a warning or a delay is in its line of history."""
    before, after, note = change.before, change.after, change.note
    if event_type is EventType.EVICTED and before is not None and before.state is State.EVICTING:
        return before.reason
    noted = note is not None and note.reason.code in (Code.IDLE_GPUS, Code.PLANNED_START_MOVED)
    return note.reason if note is not None and noted else after.reason


def _message(change: EntryChange, event_type: EventType, reason: Reason) -> str:
    entry = change.after
    text = f"{entry.kind} {entry.ref} {_WORDS[event_type]}"
    if event_type is EventType.EVICTION_NOTICE and entry.stop_at is not None:
        text += f" at {format_time(entry.stop_at)}"
    if event_type is EventType.DELAYED and entry.announced_start is not None:
        text += f", at {format_time(entry.announced_start)}"
    if event_type is EventType.EVICTED and (lost := _lost(change, reason)):
        text += f", and loses {gpu_hours_of(lost)} of work"
    why = reason.message or (str(reason.code) if event_type not in _ENDS.values() else "")
    return f"{text}: {why}" if why else text


def _details(
    change: EntryChange, event_type: EventType, reason: Reason
) -> dict[str, str | int | float]:
    before, entry = change.before, change.after
    details: dict[str, str | int | float] = {
        "reason": reason.code.value,
        "queue": entry.queue,
        "attempt": entry.attempt,
        "pods": entry.pods,
        "gpus": as_number(entry.gpus),
    }
    lost = _lost(change, reason)
    if event_type in (EventType.EVICTED, EventType.EVICTION_NOTICE) and lost is not None:
        details["lostGpuHours"] = _rounded(lost / HOUR)
    if event_type is EventType.EVICTION_NOTICE and entry.stop_at is not None:
        details["stopsAt"] = format_time(entry.stop_at)
    if event_type is EventType.IDLE:
        details |= _texts(reason, "idleSince", "graceEnds")
    if event_type is EventType.DELAYED and before is not None:
        starts = {"plannedStart": entry.announced_start, "plannedBefore": before.announced_start}
        details |= {name: format_time(at) for name, at in starts.items() if at is not None}
    return details


def _texts(reason: Reason, *names: str) -> dict[str, str]:
    return {name: str(reason.details[name]) for name in names if name in reason.details}


def _lost(change: EntryChange, reason: Reason) -> float | None:
    """GPU-seconds of work that an eviction loses; with a notice, less if the gang saves its work."""
    losses = (mark.loss.gpu_seconds for mark in change.marks if mark.loss is not None)
    recorded: Any = reason.details.get("lostGpuSeconds")
    return next(losses, float(recorded) if isinstance(recorded, int | float) else None)


def _rounded(gpu_hours: float) -> float:
    return round(gpu_hours, 3)
