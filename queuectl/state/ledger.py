"""The leader's working copy of the ledger: each unfinished workload, by uid and by state; and the limit of its history.

The copy holds committed changes only: a change is applied after its commit has returned.

Lines of history are never deleted, so a workload that is started and stopped again and again would fill the database. Each workload can
add :data:`AT_ONCE` lines at any rate, and then one in :data:`SECONDS`. The next line that is written has the number of those that are
left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from queuectl.domain.arrays import growth_of
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.reasons import Code

# ---- Workloads


class Ledger:
    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries: dict[str, Entry] = {}
        self._by_state: dict[State, dict[str, None]] = {state: {} for state in State}
        for entry in entries:
            self._put(entry)
        self.get: Final = self._entries.get  # called for each gang in each cycle
        """The entry of a uid, or None."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def uids(self, *states: State) -> list[str]:
        """Uids in any of these states, in a stable order."""
        return [uid for state in states for uid in self._by_state[state]]

    def entries(self, *states: State) -> list[Entry]:
        return [self._entries[uid] for uid in self.uids(*states)]

    def elastic_gang(self, job: JobRecord) -> Entry | None:
        """The gang of a pod that is added to an elastic job; None for other jobs, and if the gang is not in the ledger."""
        growth = growth_of(job)
        return self._entries.get(growth.base) if growth is not None else None

    def count(self, state: State) -> int:
        return len(self._by_state[state])

    def apply(self, changes: Iterable[EntryChange]) -> None:
        """Apply committed changes. Finished workloads leave the working copy."""
        for change in changes:
            self._put(change.after)

    def replace(self, entries: Iterable[Entry]) -> None:
        """Replace all entries."""
        self._entries.clear()
        for uids in self._by_state.values():
            uids.clear()
        for entry in entries:
            self._put(entry)

    def _put(self, entry: Entry) -> None:
        old = self._entries.get(entry.uid)
        if old is not None:
            self._by_state[old.state].pop(entry.uid, None)
        if entry.state is State.FINISHED:
            self._entries.pop(entry.uid, None)
            return
        self._entries[entry.uid] = entry
        self._by_state[entry.state][entry.uid] = None


# ---- History

AT_ONCE: Final = 1_000
SECONDS: Final = 120.0


class HistoryLimit:
    """The lines of each workload of one leader. A remark does not use up the lines that a change of the state can add."""

    def __init__(self) -> None:
        self._full: dict[
            tuple[str, bool], float
        ] = {}  # unix seconds at which all lines are free again
        self._unlisted: dict[tuple[str, bool], int] = {}

    def limited(self, changes: Iterable[EntryChange]) -> list[EntryChange]:
        """The same changes, those beyond the limit without a line."""
        return [self._limited(change) if change.note is not None else change for change in changes]

    def _limited(self, change: EntryChange) -> EntryChange:
        assert change.note is not None
        uid, note = change.after.uid, change.note
        remark = note.from_state is note.to_state
        if change.after.state is State.FINISHED:
            for of in (False, True):
                self._full.pop((uid, of), None)
            return self._listed(change, (uid, True), (uid, False))
        key = (uid, remark)
        full = max(self._full.get(key, change.at), change.at) + SECONDS
        latest = change.at + AT_ONCE * SECONDS
        # The first line states the job. A line proves what a user did, and the audit log has one for it too. A new leader reads what
        # moves cost, and there is a limit on that.
        kept = change.before is None or change.commanded or note.reason.code is Code.DEFRAGMENTED
        if full > latest and not kept:
            self._unlisted[key] = self._unlisted.get(key, 0) + 1
            return replace(change, listed=False)
        self._full[key] = min(full, latest)
        return self._listed(change, key)

    def _listed(self, change: EntryChange, *keys: tuple[str, bool]) -> EntryChange:
        left_out = sum(self._unlisted.pop(key, 0) for key in keys)
        return replace(change, unlisted=left_out) if left_out else change
