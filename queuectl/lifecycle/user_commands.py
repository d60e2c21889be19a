"""The effect of users' commands on a workload: the part of the state machine for ``CommandReceived``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from queuectl.domain.arrays import LARGEST, index_uid
from queuectl.domain.commands import BY_ADMIN, Action, Command, objection
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, EntryChange, Intent, Note, State
from queuectl.domain.plan import PreemptionReason
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.rules import Rules
from queuectl.domain.words import format_time
from queuectl.lifecycle.provisioning import checked
from queuectl.lifecycle.transitions import evict, next_of, rejoin


def carry_out(entry: Entry, command: Command, now: float, rules: Rules) -> EntryChange | None:
    """The change that a command makes now, or None if it is obsolete or changes nothing.

    Release, activate and requeue also end the exclusion of nodes that kube-scheduler refused, and activate and requeue forget failed starts:
    users send them after they fix the cause. Activate also forgets the retries of admission checks.
    """
    if objection(entry, command.action) is not None:
        return None
    by = command.attribution
    details = {BY_ADMIN: True} if command.admin else {}
    match command.action:
        case Action.HOLD:
            return _park(entry, Reason(Code.HELD, f"held {by}", details), now, rules)
        case Action.DEACTIVATE:
            return _park(entry, Reason(Code.DEACTIVATED, f"deactivated {by}", details), now, rules)
        case Action.RELEASE:
            return _unpark(entry, f"released {by}", now, excluded=())
        case Action.ACTIVATE:
            checks = entry.checks.without_retries()
            forgotten = {"excluded": (), "failures": 0, "past_seconds": 0.0, "checks": checks}
            return _unpark(entry, f"activated {by}", now, **forgotten)
        case Action.REQUEUE if entry.state.live:
            return evict(entry, now, Reason(Code.REQUEUED, f"requeued {by}"), rules)
        case Action.REQUEUE:
            reason = Reason(Code.QUEUED, f"requeued {by}")
            at = _borrows_at(entry)
            return rejoin(entry, now, reason, requeue_at=at, excluded=(), failures=0)
        case Action.PREEMPT:
            why = {"why": PreemptionReason.BY_HAND.value}
            reason = Reason(Code.PREEMPTED, f"preempted {by}", why)
            return evict(entry, now, reason, rules, behind=True)
        case Action.PRIORITY:
            return _prioritize(entry, command, now)
        case Action.MOVE:
            return _send(entry, command, now)
        case Action.CHECK:
            reports = (command.report,) if command.report is not None else ()
            return checked(entry, reports, by, now, rules)


def move_refusal(
    entry: Entry, job: JobRecord | None, entry_of: Callable[[str], Entry | None]
) -> str | None:
    """Why a gang cannot move; None if it can.

    The label of the object of an index names the queue of others, which hold capacity in it. A group of pods with a controller gets new
    pods with the queue of an object to which queuectl writes nothing.

    Args:
        entry: of the gang that is to move.
        job: its record; None if it does not exist.
        entry_of: an entry of the ledger by uid.
    """
    index = job.index if job is not None else None
    if index is None:
        return _made_elsewhere(entry, job)
    owner = f"{entry.namespace}/{index.job}"
    if index.grown:
        return f"{entry.ref} is in the queue of its gang: move {owner}, when it is pending or held"
    others = (entry_of(index_uid(index.job_uid, number)) for number in range(LARGEST))
    stays = next((one for one in others if one is not None and not one.state.waiting), None)
    if stays is None:
        return None
    return f"all indexes of {owner} are in one queue, and {stays.ref} is {stays.state}"


def _made_elsewhere(entry: Entry, job: JobRecord | None) -> str | None:
    if job is None or not job.made_by:
        return None
    return f"a {job.made_by} creates the pods of {entry.ref} with its own queue: change the queue label of that {job.made_by}"


def priority_refusal(entry: Entry, job: JobRecord | None) -> str | None:
    """Why a pod of an elastic job cannot have another priority than its gang; None for other jobs."""
    index = job.index if job is not None else None
    if index is None or not index.grown:
        return None
    owner = f"{entry.namespace}/{index.job}"
    return f"{entry.ref} has the priority of its gang: set that of {owner}"


def _park(entry: Entry, parked: Reason, now: float, rules: Rules) -> EntryChange | None:
    if entry.parked is not None and entry.parked.code is parked.code:
        return None
    if entry.state.live:
        return evict(entry, now, parked, rules, parked=parked)
    if entry.state is State.EVICTING:
        note = Note(str(parked.code), entry.state, entry.state, parked)
        return EntryChange(entry, next_of(entry, parked=parked, lease=None), now, note)
    at = _borrows_at(entry)
    return rejoin(entry, now, parked, parked=parked, lease=None, requeue_at=at)


def _borrows_at(entry: Entry) -> float | None:
    """The time from which it can borrow again. A command ends only the back-off after a failed start."""
    return None if entry.state is State.BACKOFF else entry.requeue_at


def _unpark(entry: Entry, text: str, now: float, **changes: Any) -> EntryChange:
    reason = Reason(Code.QUEUED, text)
    if entry.state is State.EVICTING:
        note = Note(str(reason.code), entry.state, entry.state, reason)
        return EntryChange(entry, next_of(entry, parked=None, **changes), now, note)
    return rejoin(entry, now, reason, parked=None, **changes)


def _prioritize(entry: Entry, command: Command, now: float) -> EntryChange | None:
    value, until = command.priority, command.until
    if (value, until) == (entry.priority_set, entry.priority_until):
        return None
    text = f"priority {entry.priority} changed to {value}"
    if value is None:
        text = f"priority {entry.priority} reset to that of its priority class"
    ends = f" until {format_time(until)}" if until is not None else ""
    reason = Reason(Code.PRIORITY_SET, f"{text}{ends}, {command.attribution}")
    priority = entry.priority if value is None else value
    after = next_of(entry, priority=priority, priority_set=value, priority_until=until)
    return EntryChange(entry, after, now, Note(str(reason.code), entry.state, entry.state, reason))


def _send(entry: Entry, command: Command, now: float) -> EntryChange | None:
    """Move to another queue: the label of its object changes first, and its reservation is released."""
    target = command.queue
    if target == entry.queue:
        return None
    origin = f" from LocalQueue {entry.queue}" if entry.queue else ""
    text = f"moving{origin} to LocalQueue {target}, {command.attribution}"
    reason = Reason(Code.QUEUE_SET, text)
    state = State.PENDING if entry.state is State.RESERVED else entry.state
    after = next_of(
        entry,
        state=state,
        reason=reason if state is State.PENDING else entry.reason,
        since=now if state is not entry.state else entry.since,
        lease=None,
        checks=entry.checks.reset(),
        queue_set=target,
        intent=Intent.MOVE,
    )
    return EntryChange(entry, after, now, Note(str(reason.code), entry.state, state, reason))
