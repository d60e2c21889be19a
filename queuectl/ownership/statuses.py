"""The statuses to write: a pure function of the objects, the decision about them, the queues, and the time.

Conditions are due at once, those of the newest edit first. Counts of gangs are due at most once in :data:`COUNTS_SECONDS` for each object.
A status that the object has is not due. A :class:`queuectl.ownership.status_form.StatusForm` gives its content.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from queuectl.domain.pacing import doubling
from queuectl.objects.configuration.status_wire import ObjectStatus, QueueStatus
from queuectl.ownership.observed import NO_GENERATION, FollowedObject
from queuectl.ownership.status_form import Decision, QueuesNow, QueueUse, StatusCounts, StatusForm

COUNTS_SECONDS: Final = 30.0
"""The shortest time between two writes of the counts of one object."""
REPEAT_SECONDS: Final = 30.0
"""The shortest time between two writes of the same status of one object: others can write it too."""
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 600.0


@dataclass(frozen=True, slots=True)
class DueStatus:
    """A status to write, and its object."""

    followed: FollowedObject
    status: ObjectStatus


@dataclass(slots=True)
class _Written:
    """The last write of this leader to one object, and its failures since."""

    generation: int
    status: ObjectStatus | None = None
    at: float = 0.0
    counted_at: float = 0.0
    failures: int = 0
    retry_at: float = 0.0


class StatusReducer:
    """The statuses that are due, of one leader."""

    def __init__(self, form: StatusForm, began: float) -> None:
        """Nothing is written yet.

        Args:
            form: of the statuses.
            began: time at which the leader began. Its predecessor can have written counts until then.
        """
        self._form = form
        self._began = began
        self._written: dict[str, _Written] = {}

    def due(
        self, decision: Decision, queues: QueuesNow, use: QueueUse, now: float
    ) -> list[DueStatus]:
        """The statuses to write, in this order. It takes about 0.03 ms for each object.

        Args:
            decision: about all objects.
            queues: with a configuration that has the decision.
            use: the gangs of all queues.
            now: the time.
        """
        counts = self._form.counts(use, queues)
        uids = {followed.uid for followed in decision.objects.values()}
        self._written = {uid: one for uid, one in self._written.items() if uid in uids}
        conditions: list[DueStatus] = []
        outdated: list[tuple[float, DueStatus]] = []
        for followed in decision.objects.values():
            if followed.key.kind not in decision.known_kinds or self._pauses(followed, now):
                continue
            had = decision.status(followed)
            status = self._form.status(followed, had, decision, queues, now)
            if status is None:
                continue
            if isinstance(status, QueueStatus):
                self._count(status, followed, had, counts, now)
            if self._just_written(followed, status, now):
                continue
            due = DueStatus(followed, status)
            if not _same_conditions(status, had):
                conditions.append(due)
            elif isinstance(status, QueueStatus) and status != had:
                outdated.append((self._counted_at(followed), due))
        conditions.sort(key=lambda due: -due.followed.order)
        outdated.sort(key=lambda pair: pair[0])
        return [*conditions, *(due for _, due in outdated)]

    def _count(
        self,
        status: QueueStatus,
        followed: FollowedObject,
        had: QueueStatus | None,
        counts: StatusCounts,
        now: float,
    ) -> None:
        """Complete a status: with the counts of now, or with those of the object until others are due."""
        recent = now - self._counted_at(followed) < COUNTS_SECONDS
        if recent and had is not None and had.pending_workloads is not None:
            status.keep_counts(had)
        else:
            counts.fill(status, followed.key)

    def written(self, due: DueStatus, now: float) -> None:
        """The API server has the status."""
        known = self._written.get(due.followed.uid)
        counted = now
        if known is not None and now - known.counted_at < COUNTS_SECONDS:
            counted = known.counted_at
        self._written[due.followed.uid] = _Written(
            due.followed.generation, due.status, at=now, counted_at=counted
        )

    def failed(self, due: DueStatus, now: float) -> None:
        """The API server has refused the status: it is due again after a pause, or when the object is edited."""
        known = self._written.setdefault(due.followed.uid, _Written(due.followed.generation))
        failures = known.failures + 1 if known.generation == due.followed.generation else 1
        known.generation, known.failures = due.followed.generation, failures
        known.retry_at = now + doubling(_FIRST_PAUSE, _LONGEST_PAUSE, failures)

    def _pauses(self, followed: FollowedObject, now: float) -> bool:
        known = self._written.get(followed.uid)
        if followed.generation == NO_GENERATION:
            return True  # it cannot be written
        return (
            known is not None and known.generation == followed.generation and now < known.retry_at
        )

    def _counted_at(self, followed: FollowedObject) -> float:
        known = self._written.get(followed.uid)
        return known.counted_at if known is not None and known.counted_at else self._began

    def _just_written(self, followed: FollowedObject, status: ObjectStatus, now: float) -> bool:
        known = self._written.get(followed.uid)
        if known is None or known.status is None or now - known.at >= REPEAT_SECONDS:
            return False
        return _untimed(known.status) == _untimed(status)


def _same_conditions(status: ObjectStatus, had: QueueStatus | None) -> bool:
    return had is not None and (status.observed_generation, status.conditions) == (
        had.observed_generation,
        had.conditions,
    )


def _untimed(status: ObjectStatus) -> tuple[object, ...]:
    """A status without the times of its conditions, to compare."""
    conditions = tuple(
        (one.type, one.status, one.reason, one.message) for one in status.conditions or ()
    )
    if not isinstance(status, QueueStatus):
        return status.observed_generation, conditions
    return status.observed_generation, conditions, status.counts
