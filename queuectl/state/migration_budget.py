"""The cost of moved gangs in the last 24 hours for each ClusterQueue. It counts against the budgets of defragmentation.

The source is the history in the database. This is the leader's copy: it is read when the leader starts, and updated by its commits.
"""

from __future__ import annotations

from collections.abc import Iterable

from queuectl.domain.durations import DAY
from queuectl.domain.ledger import EntryChange, MigrationCost


class MigrationBudget:
    """The moves of the last day."""

    def __init__(self, known: Iterable[MigrationCost] = ()) -> None:
        self._known = list(known)

    def note(self, changes: Iterable[EntryChange]) -> None:
        """Add the moves of committed changes."""
        for change in changes:
            if change.note is not None:
                spent = MigrationCost.from_reason(change.at, change.note.reason)
                if spent is not None:
                    self._known.append(spent)

    def by_queue(self, now: float) -> dict[str, int]:
        """ClusterQueue to GPU-seconds of lost work within the day before ``now`` (unix seconds)."""
        self._known = [spent for spent in self._known if spent.at > now - DAY]
        totals: dict[str, int] = {}
        for spent in self._known:
            name = spent.cluster_queue
            totals[name] = totals.get(name, 0) + spent.lost_work
        return totals
