"""The changes of workloads that a replica has seen last, from which each watch reads at its own speed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from queuectl.domain.ledger import Entry

WINDOW: Final = 20_000
"""Changes that are kept at least; twice as many at most."""
MARGIN_MILLISECONDS: Final = 500
"""A watch begins so much earlier than its version: two replicas can read the same commit at slightly different times."""
_version_of: Final = attrgetter("version")


@dataclass(frozen=True, slots=True)
class JobChange:
    """One workload before and after a read. None = it was not there, or is Finished. ``version``: of the read, in milliseconds."""

    version: int
    before: Entry | None
    after: Entry | None

    @property
    def last(self) -> Entry:
        """The workload as it was seen last."""
        entry = self.after if self.after is not None else self.before
        assert entry is not None
        return entry


def changes_between(
    before: Mapping[str, Entry], after: Mapping[str, Entry], version: int
) -> Iterator[JobChange]:
    """The changes between two reads, by uid. A job that was created again has the name of the one that ended, whose end is first."""
    for uid, entry in before.items():
        if uid not in after:
            yield JobChange(version, entry, None)
    for uid, entry in after.items():
        if before.get(uid) is not entry:
            yield JobChange(version, before.get(uid), entry)


class ChangeLog:
    """The changes in the order of their versions. Each has a number that rises by one."""

    def __init__(self, floor: int, window: int = WINDOW) -> None:
        """``floor``: the version of the first read: changes after it are known."""
        self._floor = floor
        self._window = window
        self._changes: list[JobChange] = []
        self._first = 0

    @property
    def end(self) -> int:
        """The number of the next change."""
        return self._first + len(self._changes)

    def add(self, changes: Sequence[JobChange]) -> None:
        """Append changes, and forget the oldest."""
        self._changes += changes
        if len(self._changes) > 2 * self._window:
            gone = len(self._changes) - self._window
            self._floor = self._changes[gone - 1].version
            self._first += gone
            self._changes = self._changes[gone:]

    def begin(self, version: int) -> int | None:
        """The number of the first change after a version; None if changes after it are forgotten."""
        if version < self._floor:
            return None
        since = version - MARGIN_MILLISECONDS
        return self._first + bisect_right(self._changes, since, key=_version_of)

    def after(self, version: int) -> int:
        """The number of the first change after a version of this replica."""
        return self._first + bisect_right(self._changes, version, key=_version_of)

    def read(self, number: int, most: int) -> Sequence[JobChange] | None:
        """Some changes from a number on; None if they are forgotten."""
        if number < self._first:
            return None
        start = number - self._first
        return self._changes[start : start + most]
