"""Kueue's Workload conditions, derived from the state, for tools that wait for ``Admitted=True``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from queuectl.api.schemas import ConditionView, moment
from queuectl.domain.ledger import Entry, State
from queuectl.domain.reasons import MADE_ROOM, Code

_HOLDS_QUOTA: Final = (State.STARTING, State.RUNNING, State.EVICTING)
# As in Kueue, the reason of the eviction shows the cause of a deactivation.
_EVICTED: Final = {
    Code.HELD: "Deactivated",
    Code.DEACTIVATED: "Deactivated",
    Code.MAX_EXECUTION_TIME: "DeactivatedDueToMaximumExecutionTimeExceeded",
    Code.DEFRAGMENTED: "Preempted",
    Code.PIN_UNSCHEDULABLE: "PodsReadyTimeout",
    Code.PODS_LARGER_THAN_ASKED: "PodsReadyTimeout",
    Code.START_REFUSED: "PodsReadyTimeout",
}
_REQUEUED: Final = {
    Code.QUEUE_STOPPED: "ClusterQueueRestarted",
    Code.LOCAL_QUEUE_STOPPED: "LocalQueueRestarted",
}


def conditions(entry: Entry) -> list[ConditionView]:
    """The conditions in the order in which a workload passes them."""
    return list(_conditions(entry))


def _conditions(entry: Entry) -> Iterator[ConditionView]:
    reason = str(entry.reason.code)
    if entry.state is State.FINISHED:
        yield _condition(entry, "Finished", reason, holds=True)
        return
    reserved = entry.state in (*_HOLDS_QUOTA, State.RESERVED)
    yield _condition(
        entry, "QuotaReserved", "QuotaReserved" if reserved else reason, holds=reserved
    )
    admitted = entry.state in _HOLDS_QUOTA
    yield _condition(entry, "Admitted", "Admitted" if admitted else reason, holds=admitted)
    yield _pods_ready(entry)
    if entry.evicted_for is not None:
        yield from _evicted(entry, entry.evicted_for)


def _pods_ready(entry: Entry) -> ConditionView:
    if entry.state is State.RUNNING and entry.unready_since is None:
        return _condition(entry, "PodsReady", "Started", holds=True)
    if entry.unready_since is not None:
        return _condition(
            entry, "PodsReady", "WaitForRecovery", holds=False, at=entry.unready_since
        )
    return _condition(entry, "PodsReady", "WaitForStart", holds=False)


def _evicted(entry: Entry, code: Code) -> Iterator[ConditionView]:
    """The conditions from the eviction until the next start."""
    cause = _EVICTED.get(code, str(code))
    yield _condition(entry, "Evicted", cause, holds=True)
    if code in MADE_ROOM:
        yield _condition(entry, "Preempted", str(code), holds=True)
    if entry.state is not State.EVICTING:
        queues = entry.state in (State.PENDING, State.RESERVED)
        back = _REQUEUED.get(code, "BackoffFinished" if entry.requeued_at is not None else cause)
        yield _condition(entry, "Requeued", back if queues else cause, holds=queues)


def _condition(
    entry: Entry, name: str, reason: str, *, holds: bool, at: float | None = None
) -> ConditionView:
    return ConditionView(
        type=name,
        status="True" if holds else "False",
        reason=reason,
        message=entry.reason.message,
        last_transition_time=moment(entry.since if at is None else at),
    )
