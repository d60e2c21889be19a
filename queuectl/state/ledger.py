"""The leader's working copy of the ledger: each unfinished workload, by uid and by state.

It holds committed changes only: a change is applied after its commit has returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from queuectl.domain.ledger import Entry, EntryChange, State


class Ledger:
    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries: dict[str, Entry] = {}
        self._by_state: dict[State, dict[str, None]] = {state: {} for state in State}
        for entry in entries:
            self._put(entry)
        self.get: Final = self._entries.get  # called for each gang in each cycle
        """The entry of a uid, None if there is none."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def uids(self, *states: State) -> list[str]:
        """Uids in any of these states, in a stable order."""
        return [uid for state in states for uid in self._by_state[state]]

    def entries(self, *states: State) -> list[Entry]:
        return [self._entries[uid] for uid in self.uids(*states)]

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
