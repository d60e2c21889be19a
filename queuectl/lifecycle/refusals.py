"""What the API server refuses of the writes that workloads owe, and which starts may still take effect unseen.

Nothing here outlives a leadership: a write that is still owed is sent again, and answered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from queuectl.domain.ledger import Entry, Intent, Purpose
from queuectl.domain.records import JobRecord
from queuectl.lifecycle.owed_writes import Write

LONGEST: Final = 500
"""Characters kept of what the API server says."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server's definite "no" to a write.

    Attributes:
        purpose: of the write.
        attempt: that it was for.
        why: as the API server said it.
        since: unix seconds of the first of these answers in a row.
    """

    purpose: Purpose
    attempt: int
    why: str
    since: float


class Refusals:
    """Of one leadership, by uid of the workload."""

    def __init__(self) -> None:
        self._now: dict[str, Refusal] = {}
        self._sent: dict[str, int] = {}  # version that the start under way is conditioned on
        self._unanswered: dict[str, int] = {}  # likewise, of starts whose answer was lost

    def sending(self, uid: str, write: Write) -> None:
        """This write is on its way from now on."""
        if write.purpose is Purpose.START:
            self._sent[uid] = write.version

    def answered(self, uid: str, write: Write) -> None:
        """Whether this write had its effect is known."""
        if write.purpose is Purpose.START:
            self._sent.pop(uid, None)

    def unanswered(self, uid: str, write: Write) -> None:
        """This write may have had its effect, or have it later."""
        if write.purpose is Purpose.START:
            self._sent.pop(uid, None)
            self._unanswered[uid] = max(write.version, self._unanswered.get(uid, 0))

    def inherit(self, entries: Iterable[Entry], jobs: Mapping[str, JobRecord]) -> None:
        """Another leader owed the starts of these entries, and may have sent them just before it ended."""
        for entry in entries:
            job = jobs.get(entry.uid)
            if job is not None and entry.intent in (Intent.START, Intent.STOP):
                self._unanswered[entry.uid] = job.version

    def refused(self, uid: str, write: Write, why: str, now: float) -> None:
        """The API server refused this write, which had no effect."""
        self.answered(uid, write)
        old = self._now.get(uid)
        again = old is not None and (old.purpose, old.attempt) == (write.purpose, write.attempt)
        since = old.since if old is not None and again else now
        self._now[uid] = Refusal(write.purpose, write.attempt, why[:LONGEST], since)

    def accepted(self, uid: str) -> None:
        """All that the workload owed was accepted, or it owes nothing."""
        self._now.pop(uid, None)

    def of(self, entry: Entry) -> Refusal | None:
        """The refusal of a write that the present attempt owes, if there is one."""
        found = self._now.get(entry.uid)
        return found if found is not None and found.attempt == entry.attempt else None

    def may_start(self, job: JobRecord) -> bool:
        """Whether a start that was sent may still change the object as it is now.

        A write is conditioned on the version of the object that it was made from, so one that was made from an older
        version has no effect any more.
        """
        newest = max(self._sent.get(job.uid, -1), self._unanswered.get(job.uid, -1))
        return newest >= job.version

    def forget(self, uid: str) -> None:
        """A workload left the ledger."""
        for known in (self._now, self._sent, self._unanswered):
            known.pop(uid, None)
