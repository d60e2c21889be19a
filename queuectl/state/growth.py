"""The pods above the gang of an elastic Job: which of them wait for lower ranks, and their order in the queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from queuectl.domain.arrays import parted
from queuectl.domain.ledger import Entry, State
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Pending
from queuectl.state.ledger import Ledger

_STALLED: Final = (State.EVICTING, State.BACKOFF, State.HELD, State.DEACTIVATED)


def stalled_ranks(ledger: Ledger) -> Mapping[str, Entry]:
    """By uid of an elastic gang, the index of the lowest rank that leaves or is not planned now."""
    found: dict[str, Entry] = {}
    for entry in ledger.entries(*_STALLED):
        index = parted(entry.uid)
        if index is not None and (index[0] not in found or entry.uid < found[index[0]].uid):
            found[index[0]] = entry
    return found


def after_lower_ranks(pending: Pending, stalled: Mapping[str, Entry]) -> Pending:
    """A pod of an elastic gang waits until the ranks below it run or are pending, so that its gang has no gaps."""
    growth = pending.workload.growth
    lower = stalled.get(growth.base) if growth is not None else None
    if lower is None or pending.blocked is not None or lower.uid > pending.workload.uid:
        return pending
    text = f"its gang grows in the order of ranks: {lower.ref} is {lower.state}"
    return replace(pending, blocked=Reason(Code.WAITING_IN_ORDER, text, {"behind": lower.ref}))


def in_rank_order(pending: Iterable[Pending]) -> tuple[Pending, ...]:
    """The same gangs. A pod of an elastic gang is not queued before the pods of lower ranks, which can be newer."""
    gangs = list(pending)
    ranks = sorted(
        (growth.base, growth.rank, place)
        for place, one in enumerate(gangs)
        if (growth := one.workload.growth) is not None
    )
    latest: dict[str, float] = {}
    for base, _, place in ranks:
        workload = gangs[place].workload
        queued_at = max(workload.queued_at, latest.get(base, workload.queued_at))
        if queued_at > workload.queued_at:
            gangs[place] = replace(gangs[place], workload=replace(workload, queued_at=queued_at))
        latest[base] = queued_at
    return tuple(gangs)
