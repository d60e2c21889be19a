"""The pods above the gang of an elastic Job: which of them wait for lower ranks."""

from __future__ import annotations

from collections.abc import Mapping
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
