"""Outcomes of writes: those that the API server refuses or does not answer, and releases that can still take effect without an observation.

All of this is for one leader: its successor sends each owed write again, and gets a new response.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from queuectl.domain.errors import (
    ClusterBusy,
    ClusterError,
    ClusterUnavailable,
    ObjectGone,
    WriteConflict,
)
from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.domain.ledger import Entry, Intent, Purpose
from queuectl.lifecycle.outstanding_writes import Write

LONGEST: Final = 500
"""Characters that are kept of a message of the API server."""
UNANSWERED_SECONDS: Final = 30.0
"""A stop without a usable response counts as denied after this time. The Lease is shorter: an outage of the API server ends the leadership."""
MOST_UNANSWERED: Final = 3
"""Workloads whose stop can count as denied without a response at the same time. If more have none, the cause is probably not in the jobs.
When it ends, all these jobs stop, and the jobs that were evicted instead would have stopped without a reason."""

_ANY_VERSION: Final = sys.maxsize
_RELEASES: Final = (Purpose.START, Purpose.PIN)
"""The writes that let pods run: of a job, and of the pods of a workload that consists of pods."""


class WriteOutcome(Enum):
    """The effect of a write that was sent. All purposes have the same outcomes."""

    TOOK_EFFECT = "it took effect"
    OUTDATED = "no effect: the object has changed or is deleted, which the watch shows"
    REFUSED = "no effect, and none as it is: a webhook, a policy, a right or a PodDisruptionBudget denies it"
    UNAVAILABLE = "no effect: the API server did not handle the request"
    UNKNOWN = "no usable response: it has taken effect, or not, or can do so later"


def outcome_of(error: ClusterError) -> WriteOutcome:
    """The outcome of a write that ended with this error."""
    match error:
        case WriteConflict() | ObjectGone():
            return WriteOutcome.OUTDATED
        case ClusterBusy():
            return WriteOutcome.UNAVAILABLE
        case ClusterUnavailable():
            return WriteOutcome.UNKNOWN
        case _:
            return WriteOutcome.REFUSED


@dataclass(frozen=True, slots=True)
class WriteRefusal:
    """The final denial of a write by the API server.

    Attributes:
        purpose: of the write.
        attempt: of the workload.
        why: the message of the API server, or of the request without a usable response.
        since: the time of the first of these responses in a row, in unix seconds.
        answered: False: the outcome of the request is unknown.
    """

    purpose: Purpose
    attempt: int
    why: str
    since: float
    answered: bool = True


class Refusals:
    """The denied writes and the releases with an unknown outcome of one leader, by uid of the workload."""

    def __init__(self) -> None:
        self._now: dict[str, WriteRefusal] = {}
        # Of each object, by its uid: the version on which the release is conditioned that is sent now, or has an unknown outcome.
        self._sent: dict[str, dict[str, int]] = {}
        self._unknown: dict[str, dict[str, int]] = {}
        # Of each object whose stop has no usable response, by its uid and attempt: the unix seconds of the first such request in a row.
        self._unanswered: dict[str, dict[tuple[str, int], float]] = {}

    def sending(self, uid: str, write: Write) -> None:
        """Record that this write is sent now."""
        if write.purpose in _RELEASES:
            # A start can be two writes: the second one is conditioned on the version that the first one makes.
            version = _ANY_VERSION if write.purpose is Purpose.START else write.version
            self._sent.setdefault(uid, {})[write.uid] = version

    def ended(
        self,
        uid: str,
        write: Write,
        outcome: WriteOutcome,
        why: str = "",
        now: float = 0.0,
        version: int | None = None,
    ) -> bool:
        """Record the outcome of this write.

        Args:
            uid: of the workload.
            write: as it was given to :meth:`sending`.
            outcome: of its last request.
            why: the message of a refusal.
            now: unix seconds.
            version: on which its last request was conditioned; None = that of the write.

        Returns:
            Whether the write now counts as denied.
        """
        if write.purpose in _RELEASES:
            self._sent.get(uid, {}).pop(write.uid, None)
            if outcome is WriteOutcome.UNKNOWN:
                self._can_take_effect(uid, write.uid, write.version if version is None else version)
        stop_hangs = write.purpose is Purpose.STOP and self._stop_hangs(uid, write, outcome, now)
        denied = outcome is WriteOutcome.REFUSED or stop_hangs
        if denied:
            old = self._now.get(uid)
            again = old is not None and (old.purpose, old.attempt) == (write.purpose, write.attempt)
            since = old.since if old is not None and again else now
            self._now[uid] = WriteRefusal(
                write.purpose, write.attempt, why[:LONGEST], since, answered=not stop_hangs
            )
        return denied

    def _stop_hangs(self, uid: str, write: Write, outcome: WriteOutcome, now: float) -> bool:
        """Whether this stop, and all before it for a while, have no usable response: for example, a webhook times out."""
        unanswered, stop = self._unanswered.setdefault(uid, {}), (write.uid, write.attempt)
        if outcome is not WriteOutcome.UNKNOWN:
            unanswered.pop(stop, None)
            return False
        since = unanswered.setdefault(stop, now)
        others = sum(not one.answered for other, one in self._now.items() if other != uid)
        return now - since >= UNANSWERED_SECONDS and others < MOST_UNANSWERED

    def _can_take_effect(self, uid: str, object_uid: str, version: int) -> None:
        known = self._unknown.setdefault(uid, {})
        known[object_uid] = max(version, known.get(object_uid, 0))

    def inherit(
        self,
        entries: Iterable[Entry],
        jobs: Mapping[str, JobRecord],
        pods_of: Callable[[JobRecord], Iterable[PodRecord]],
    ) -> None:
        """Record the releases that an earlier leader owed, and has possibly sent before it stopped."""
        for entry in entries:
            job = jobs.get(entry.uid)
            if job is None or entry.intent not in (Intent.START, Intent.STOP):
                continue
            for uid, version in _released_by(job, pods_of(job)):
                self._can_take_effect(entry.uid, uid, version)

    def accepted(self, uid: str) -> None:
        """Record that all writes of the workload were accepted, or that it owes none."""
        self._now.pop(uid, None)
        self._unanswered.pop(uid, None)

    def of(self, entry: Entry) -> WriteRefusal | None:
        """The denial of a write that the current attempt owes, if there is one."""
        found = self._now.get(entry.uid)
        return found if found is not None and found.attempt == entry.attempt else None

    def may_start(self, job: JobRecord, pods: Iterable[PodRecord]) -> bool:
        """Whether a release that was sent can still start the workload, which is suspended, or one of its pods.

        A write is conditioned on the version of the object from which it was made. A write for an older version has no
        effect.
        """
        sent, unknown = self._sent.get(job.uid, {}), self._unknown.get(job.uid, {})
        if not sent and not unknown:
            return False
        return any(
            max(sent.get(uid, -1), unknown.get(uid, -1)) >= version
            for uid, version in _released_by(job, pods)
        )

    def forget(self, uid: str) -> None:
        """Forget a workload that has left the ledger."""
        for known in (self._now, self._sent, self._unknown, self._unanswered):
            known.pop(uid, None)


def _released_by(job: JobRecord, pods: Iterable[PodRecord]) -> Iterable[tuple[str, int]]:
    """The objects whose release starts the workload or a part of it, with their versions: the job, or its gated pods."""
    if not job.of_pods:
        return [(job.uid, job.version)]
    waiting = (pod for pod in pods if pod.waits)
    return [(pod.uid, pod.version) for pod in waiting]
