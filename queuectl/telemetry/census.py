"""Head counts of the ledger, kept up change by change: 50,000 pending gangs are never counted again for one that moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from queuectl.domain.ledger import Change, Entry, State
from queuectl.domain.reasons import Code

Head = tuple[str, ...]  # label values of one gauge

# Kueue's two kinds of pending: still in line to be looked at, or looked at and refused until something changes.
_IN_LINE: Final = frozenset(
    {Code.QUEUED, Code.PENDING_EVALUATION, Code.UNDECIDED, Code.WAITING_FOR_PREEMPTED}
)


def pending_status(code: Code) -> str:
    """``active`` while the gang is in line to be looked at, ``inadmissible`` once it was refused."""
    return "active" if code in _IN_LINE else "inadmissible"


class Census:
    """How many workloads stand where. A head that empties stays with 0, so that its gauge says 0 and not nothing."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._pending: Counter[Head] = Counter()
        self._states: Counter[Head] = Counter()
        self._owed: Counter[Head] = Counter()
        for entry in entries:
            self._count(entry, 1)

    @property
    def pending(self) -> Mapping[Head, int]:
        """By (cluster queue, status, reason): everything that waits for a start."""
        return self._pending

    @property
    def states(self) -> Mapping[Head, int]:
        """By (cluster queue, state): everything that is not finished."""
        return self._states

    @property
    def owed(self) -> Mapping[Head, int]:
        """By (intent,): cluster writes the watch has not confirmed, i.e. rows of the outbox."""
        return self._owed

    def apply(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if change.before is not None:
                self._count(change.before, -1)
            self._count(change.after, 1)

    def _count(self, entry: Entry, by: int) -> None:
        if entry.state is State.FINISHED:
            return
        self._states[entry.cluster_queue, str(entry.state)] += by
        if entry.state.waiting:
            code = entry.reason.code
            self._pending[entry.cluster_queue, pending_status(code), str(code)] += by
        if entry.intent is not None:
            self._owed[(str(entry.intent),)] += by
