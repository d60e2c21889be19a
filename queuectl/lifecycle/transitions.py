"""The steps of transitions: leave a state, evict, queue again. They are pure functions."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from queuectl.domain.backoff import doubling
from queuectl.domain.durations import DAY
from queuectl.domain.gates import held_by
from queuectl.domain.ledger import Entry, EntryChange, Intent, Note, State, idle_wait, parked_state
from queuectl.domain.reasons import (
    BY_POLICY,
    COOPERATIVE,
    FAILED_START,
    PLANNED_AGAIN,
    Code,
    Reason,
)
from queuectl.domain.rules import PodsReadyRules, Rules
from queuectl.domain.snapshot import CapacityLease


def next_of(entry: Entry, **changes: Any) -> Entry:
    """The entry with the next version of its row."""
    return replace(entry, version=entry.version + 1, **changes)


def move(entry: Entry, state: State, now: float, reason: Reason, **changes: Any) -> EntryChange:
    """Enter a state, with a line in the history. A planned start is one of a pending gang, and checks are those of a placement."""
    if state is not State.PENDING:
        changes["planned_start"] = None
    if state.waiting and state is not State.RESERVED:
        changes.setdefault("checks", entry.checks.reset())
    after = next_of(entry, state=state, since=now, reason=reason, **changes)
    return EntryChange(entry, after, now, Note(str(reason.code), entry.state, state, reason))


def rejoin(entry: Entry, now: float, reason: Reason, **changes: Any) -> EntryChange:
    """Queue with this reason, or stay held, deactivated or gated."""
    parked: Reason | None = changes.get("parked", entry.parked)
    gates: tuple[str, ...] = changes.get("gates", entry.gates)
    if parked is not None:
        return move(entry, parked_state(parked), now, parked, **changes)
    if gates:
        return move(entry, State.HELD, now, held_by(gates), **changes)
    return move(entry, State.PENDING, now, reason, **changes)


def evict(
    entry: Entry,
    now: float,
    reason: Reason,
    rules: Rules,
    *,
    excluded: tuple[str, ...] = (),
    lease: CapacityLease | None = None,
    parked: Reason | None = None,
    behind: bool = False,
) -> EntryChange:
    """Stop the gang: at once, or after a notice if the rules grant time and it has work to save.

    ``behind``: it queues again behind the gangs that are pending now, where time decides the order.
    """
    code = reason.code
    failed = code in FAILED_START
    grace = notice(entry, code, rules)
    behind |= failed and rules.pods_ready.requeue_by_eviction
    return move(
        entry,
        State.EVICTING,
        now,
        reason,
        intent=Intent.STOP,
        lease=lease,
        requeue_at=_borrows_at(reason, now),
        requeued_at=now if behind else entry.requeued_at,
        unready_since=None,
        past_seconds=entry.executed(now),
        stop_at=now + grace if grace > 0 else None,
        evictions=entry.evictions + 1,
        evicted_for=code,
        preempted_at=_preemptions(entry, code, now),
        failures=entry.failures + 1 if failed else entry.failures,
        excluded=tuple(sorted({*entry.excluded, *excluded})),
        parked=parked if parked is not None else entry.parked,
    )


def _borrows_at(reason: Reason, now: float) -> float | None:
    """The time until which an evicted gang does not borrow; None if it can borrow at once."""
    pause = float(reason.details.get("borrowBackoffSeconds", 0.0))
    return now + pause if pause > 0 else None


def notice(entry: Entry, code: Code, rules: Rules) -> float:
    """Seconds between the notice of an eviction for this reason and the suspension."""
    cooperative = code in COOPERATIVE and entry.state is State.RUNNING
    return rules.eviction_grace if cooperative else 0.0


def _preemptions(entry: Entry, code: Code, now: float) -> tuple[float, ...]:
    """The evictions of the last day that protections count, with this one if it counts."""
    times = (*entry.preempted_at, now) if code in BY_POLICY else entry.preempted_at
    return tuple(at for at in times if at > now - DAY)


def drained(entry: Entry, now: float, policy: PodsReadyRules) -> EntryChange:
    """The state after all its pods have terminated. It follows from the reason of the eviction."""
    cleared: dict[str, Any] = {
        "placement": None,
        "planned": None,
        "intent": Intent.MOVE if entry.queue_set is not None else None,
        "started_at": None,
        "ready_at": None,
        "stop_at": None,
    }
    code = entry.reason.code
    if entry.parked is not None:
        return rejoin(entry, now, entry.parked, lease=None, **cleared)
    if code in FAILED_START:
        return _failed(entry, now, policy, cleared)
    if (wait := idle_wait(entry)) > 0:
        why = "its GPUs were idle" if code is Code.IDLE_RECLAIMED else entry.reason.message
        reason = Reason(Code.BACKOFF, f"{why}; it queues again in {wait:.0f} s")
        return move(entry, State.BACKOFF, now, reason, requeue_at=now + wait, lease=None, **cleared)
    if entry.lease is not None and not entry.gates:
        waits = Reason(
            Code.WAITING_FOR_PREEMPTED, "evicted to migrate; its new placement is reserved"
        )
        return move(entry, State.RESERVED, now, waits, **cleared)
    reason = Reason(Code.QUEUED, f"requeued after {code}")
    return rejoin(entry, now, reason, lease=None, **cleared)


def _failed(
    entry: Entry, now: float, policy: PodsReadyRules, cleared: dict[str, Any]
) -> EntryChange:
    explains = entry.reason.code in (Code.START_REFUSED, Code.PODS_LARGER_THAN_ASKED)
    why = f": {entry.reason.message}" if explains else ""
    failed = f"start {entry.attempt} failed ({entry.reason.code}{why})"
    limit = policy.backoff_limit
    if limit is not None and entry.failures > limit:
        text = f"{failed}; {entry.failures} failed starts in a row exceed the limit of {limit}"
        deactivated = Reason(Code.REQUEUING_LIMIT, text)
        return rejoin(entry, now, deactivated, parked=deactivated, lease=None, **cleared)
    if entry.reason.details.get(PLANNED_AGAIN):
        text = f"{failed}; it is planned again with the requests of its pods"
        return rejoin(entry, now, Reason(Code.QUEUED, text), lease=None, **cleared)
    wait = pause(policy, entry)
    reason = Reason(Code.BACKOFF, f"{failed}; the next start is tried in {wait:.0f} s")
    return move(entry, State.BACKOFF, now, reason, requeue_at=now + wait, lease=None, **cleared)


def pause(policy: PodsReadyRules, entry: Entry) -> float:
    """Seconds until a gang is retried after a failed start.

    The jitter depends on uid and attempt. Thus gangs that fail together do not retry together, and the same history gives the
    same times.
    """
    wait = doubling(policy.backoff_base, policy.backoff_ceiling, entry.failures)
    drawn = hashlib.blake2b(f"{entry.uid}/{entry.attempt}".encode(), digest_size=8).digest()
    return wait * (1.0 + policy.backoff_jitter * int.from_bytes(drawn) / 2.0**64)
