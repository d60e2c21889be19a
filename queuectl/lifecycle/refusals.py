"""Writes of workloads that the API server denies, and starts that can still take effect without an observation.

All of this is for one leader: its successor sends each owed write again, and gets a new response.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from queuectl.domain.job_records import JobRecord
from queuectl.domain.ledger import Entry, Intent, Purpose
from queuectl.lifecycle.outstanding_writes import Write

LONGEST: Final = 500
"""Characters that are kept of a message of the API server."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The final denial of a write by the API server.

    Attributes:
        purpose: of the write.
        attempt: of the workload.
        why: the message of the API server.
        since: the time of the first of these responses in a row, in unix seconds.
    """

    purpose: Purpose
    attempt: int
    why: str
    since: float


class Refusals:
    """The denied and unanswered writes of one leader, by uid of the workload."""

    def __init__(self) -> None:
        self._now: dict[str, Refusal] = {}
        self._sent: dict[
            str, int
        ] = {}  # version of the object that the sent start is conditioned on
        self._unanswered: dict[str, int] = {}  # the same for starts without a response

    def sending(self, uid: str, write: Write) -> None:
        """Record that this write is sent now."""
        if write.purpose is Purpose.START:
            self._sent[uid] = write.version

    def answered(self, uid: str, write: Write) -> None:
        """Record that the outcome of this write is known."""
        if write.purpose is Purpose.START:
            self._sent.pop(uid, None)

    def unanswered(self, uid: str, write: Write) -> None:
        """Record that this write has no response: it can have taken effect, or can do so later."""
        if write.purpose is Purpose.START:
            self._sent.pop(uid, None)
            self._unanswered[uid] = max(write.version, self._unanswered.get(uid, 0))

    def inherit(self, entries: Iterable[Entry], jobs: Mapping[str, JobRecord]) -> None:
        """Record starts that an earlier leader owed, and has possibly sent before it stopped."""
        for entry in entries:
            job = jobs.get(entry.uid)
            if job is not None and entry.intent in (Intent.START, Intent.STOP):
                self._unanswered[entry.uid] = job.version

    def refused(self, uid: str, write: Write, why: str, now: float) -> None:
        """Record that the API server denied this write, so that it has no effect."""
        self.answered(uid, write)
        old = self._now.get(uid)
        again = old is not None and (old.purpose, old.attempt) == (write.purpose, write.attempt)
        since = old.since if old is not None and again else now
        self._now[uid] = Refusal(write.purpose, write.attempt, why[:LONGEST], since)

    def accepted(self, uid: str) -> None:
        """Record that all writes of the workload were accepted, or that it owes none."""
        self._now.pop(uid, None)

    def of(self, entry: Entry) -> Refusal | None:
        """The denial of a write that the current attempt owes, if there is one."""
        found = self._now.get(entry.uid)
        return found if found is not None and found.attempt == entry.attempt else None

    def may_start(self, job: JobRecord) -> bool:
        """Whether a start that was sent can still change the current object.

        A write is conditioned on the version of the object from which it was made. A write for an older version has no
        effect.
        """
        newest = max(self._sent.get(job.uid, -1), self._unanswered.get(job.uid, -1))
        return newest >= job.version

    def forget(self, uid: str) -> None:
        """Forget a workload that has left the ledger."""
        for known in (self._now, self._sent, self._unanswered):
            known.pop(uid, None)
