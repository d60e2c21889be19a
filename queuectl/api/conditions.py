"""Kueue's Workload conditions, derived from the one state: tools that wait for ``Admitted=True`` keep working."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from queuectl.api.schemas import ConditionView, moment
from queuectl.domain.ledger import Entry, State
from queuectl.domain.reasons import Code

_HOLDS_QUOTA: Final = (State.STARTING, State.RUNNING, State.EVICTING)
_HOLDS: Final = {
    "QuotaReserved": (*_HOLDS_QUOTA, State.RESERVED),
    "Admitted": _HOLDS_QUOTA,
    "PodsReady": (State.RUNNING,),
}


def conditions(entry: Entry) -> list[ConditionView]:
    """The conditions in the order in which a workload passes them."""
    return list(_conditions(entry))


def _conditions(entry: Entry) -> Iterator[ConditionView]:
    if entry.state is State.FINISHED:
        yield _condition(entry, "Finished", holds=True)
        return
    for name, states in _HOLDS.items():
        yield _condition(entry, name, holds=entry.state in states)
    if entry.state is State.EVICTING:
        yield _condition(entry, "Evicted", holds=True)
        if entry.reason.code is Code.PREEMPTED:
            yield _condition(entry, "Preempted", holds=True)
    elif entry.evictions:
        yield _condition(entry, "Requeued", holds=entry.state is not State.BACKOFF)


def _condition(entry: Entry, name: str, *, holds: bool) -> ConditionView:
    return ConditionView(
        type=name,
        status="True" if holds else "False",
        reason=str(entry.reason.code),
        message=entry.reason.message,
        last_transition_time=moment(entry.since),
    )
