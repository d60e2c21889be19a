"""The statuses to write, and their order: a pure function of the objects, the decision about them, the queues, and the time.

Conditions of an edited object come first, those of the object first whose status was written the longest time ago. Then come other conditions,
those of the newest object first, then counts, then statuses that were refused before. One turn of :data:`FAIR_TURNS` is for the object that
has waited longest, whatever is due, so that constant edits stop nothing. A status that the object has is not due.

A :class:`queuectl.ownership.status_form.StatusForm` gives the content of a status.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter
from typing import Final

from queuectl.domain.containment import Boundary, Containment
from queuectl.domain.pacing import doubling
from queuectl.domain.queries import DocumentKey
from queuectl.objects.configuration.status_wire import ObjectStatus, QueueStatus
from queuectl.ownership.observed import NO_GENERATION, FollowedObject
from queuectl.ownership.status_form import Decision, QueuesNow, StatusCounts, StatusForm

COUNTS_SECONDS: Final = 30.0
"""The shortest time between two writes of the counts of one object."""
REPEAT_SECONDS: Final = 30.0
"""The shortest time between two writes of the same status of one object: others can write it too."""
SPACING_SECONDS: Final = 1.0
"""The shortest time between two writes of one object: it can be edited all the time."""
FAIR_TURNS: Final = 5
"""Of so many writes, one is for the object that has waited longest."""
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 600.0


class Urgency(IntEnum):
    """The reason why the status of an object is due. The smallest one is written first."""

    EDIT = 0
    CONDITIONS = 1
    COUNTS = 2
    REFUSED = 3


@dataclass(frozen=True, slots=True)
class DueStatus:
    """A status to write, and its object."""

    followed: FollowedObject
    status: ObjectStatus
    urgency: Urgency
    tried_at: float  # time of the last write to the object; 0 = none

    @property
    def priority(self) -> tuple[int, float, int]:
        """The smallest one is written first."""
        newest = self.urgency is Urgency.CONDITIONS
        return self.urgency, 0.0 if newest else self.tried_at, -self.followed.order

    @property
    def turn(self) -> tuple[float, int]:
        """The smallest one has waited longest."""
        return self.tried_at, self.followed.order


@dataclass(slots=True)
class _Writes:
    """The writes of this leader to one object. Times are those of the last one; 0 = none."""

    tried_at: float = 0.0
    status: ObjectStatus | None = None
    written_at: float = 0.0
    counted_at: float = 0.0
    generation: int = NO_GENERATION
    """Of the object at the last refusal."""
    refusals: int = 0
    """Of this generation, in a row."""


class StatusReducer:
    """The statuses that are due, of one leader. Its caller examines the objects, a few at a time, and writes what :meth:`next` returns."""

    def __init__(self, form: StatusForm, began: float, containment: Containment) -> None:
        """Nothing is written yet.

        Args:
            form: of the statuses.
            began: time at which the leader began. Its predecessor can have written counts until then.
            containment: of the process. It sets an object aside whose status cannot be made.
        """
        self._form = form
        self._containment = containment
        self._began = began
        self._decision: Decision | None = None
        self._keys: list[DocumentKey] = []
        self._position = 0  # in them, of the next one to examine
        self._left = 0  # to examine from there
        self._changed: dict[DocumentKey, None] = {}  # to examine first, the newest last
        self._edits: set[DocumentKey] = set()  # whose status is not written yet
        self._due: dict[DocumentKey, DueStatus] = {}
        self._writes: dict[str, _Writes] = {}  # by uid
        self._turns = 0

    # ---- Due statuses

    def decided(self, decision: Decision) -> None:
        """Take in a decision that the configuration has."""
        before, self._decision, self._keys = self._decision, decision, list(decision.objects)
        for key in decision.changes(before):
            self._changed.pop(key, None)
            self._changed[key] = None
            was = before.objects.get(key) if before is not None else None
            waited = before is not None and key in before.waiting
            if was is not None and (waited or was is not decision.objects[key]):
                self._edits.add(key)  # not an object that an edit of another one changes
        if before is None or before.known_kinds != decision.known_kinds:
            self.examine_all()
        uids = {followed.uid for followed in decision.objects.values()}
        for uid in self._writes.keys() - uids:
            del self._writes[uid]
        for key in (self._due.keys() | self._edits) - decision.objects.keys():
            self._due.pop(key, None)
            self._edits.discard(key)

    def examine_all(self) -> None:
        """Examine each object again, because the configuration or the gangs have changed."""
        self._left = len(self._keys)

    @property
    def unexamined(self) -> bool:
        """Whether objects remain to be examined."""
        return bool(self._changed or self._left)

    def examine(self, queues: QueuesNow, counts: StatusCounts, now: float, most: int) -> None:
        """Find the due statuses of some objects, first of those that changed. It takes about 0.01 ms for each.

        Args:
            queues: with a configuration that has the decision.
            counts: of the gangs of all queues.
            now: the time.
            most: the number of objects.
        """
        decision = self._decision
        if decision is None:
            return
        for key in self._next_keys(most):
            self._due.pop(key, None)
            followed = decision.objects.get(key)
            if followed is None:
                continue  # deleted
            unit, version = f"status of {followed.uid}", followed.generation
            if self._containment.waits(Boundary.WRITE, unit, version, key.namespace):
                continue
            with self._containment.unit(
                Boundary.WRITE, unit, str(key), namespace=key.namespace, version=version
            ):
                due = self._due_of(followed, decision, queues, counts, now)
                if due is not None:
                    self._due[key] = due

    def _next_keys(self, most: int) -> Iterator[DocumentKey]:
        for _ in range(most):
            if self._changed:
                yield self._changed.popitem()[0]
            elif self._left and self._keys:
                self._left -= 1
                self._position = (self._position + 1) % len(self._keys)
                yield self._keys[self._position]
            else:
                return

    def _due_of(
        self,
        followed: FollowedObject,
        decision: Decision,
        queues: QueuesNow,
        counts: StatusCounts,
        now: float,
    ) -> DueStatus | None:
        """The status that is due of one object; None = none is."""
        writes = self._writes.get(followed.uid, _NEVER)
        key, generation = followed.key, followed.generation
        if key.kind not in decision.known_kinds or generation == NO_GENERATION:
            return None  # the object cannot be written
        refusals = writes.refusals if writes.generation == generation else 0
        if refusals:
            pause = doubling(_FIRST_PAUSE, _LONGEST_PAUSE, refusals)
            if _within(pause, writes.tried_at, now):
                return None
        had = decision.status(followed)
        status = self._form.status(followed, had, decision, queues, now)
        if status is None:
            return None
        if isinstance(status, QueueStatus):
            recent = _within(COUNTS_SECONDS, writes.counted_at or self._began, now)
            if recent and had is not None and any(one is not None for one in had.counts):
                status.keep_counts(had)
            else:
                counts.fill(status, key)
        same = had is not None and _conditions(status) == _conditions(had)
        if same:
            self._edits.discard(key)
            if not isinstance(status, QueueStatus) or status == had:
                return None
        if _within(REPEAT_SECONDS, writes.written_at, now) and _same(status, writes.status):
            return None
        if key in self._edits and refusals < 2:
            urgency = Urgency.EDIT
        elif refusals:
            urgency = Urgency.REFUSED
        else:
            urgency = Urgency.COUNTS if same else Urgency.CONDITIONS
        return DueStatus(followed, status, urgency, writes.tried_at)

    # ---- Writes

    def writable(self, now: float, paused: Collection[str] = ()) -> bool:
        """Whether a status can be written now. ``paused``: kinds of which none can."""
        return any(True for _ in self._writable(now, paused))

    def next(self, now: float, paused: Collection[str] = ()) -> DueStatus | None:
        """The status to write now; None = none. It is no longer due."""
        self._turns += 1
        order = attrgetter("turn" if self._turns % FAIR_TURNS == 0 else "priority")
        due = min(self._writable(now, paused), key=order, default=None)
        if due is not None:
            del self._due[due.followed.key]
            self._writes.setdefault(due.followed.uid, _Writes()).tried_at = now
        return due

    def _writable(self, now: float, paused: Collection[str]) -> Iterator[DueStatus]:
        for due in self._due.values():
            recent = _within(SPACING_SECONDS, due.tried_at, now)
            if not recent and due.followed.key.kind not in paused:
                yield due

    def written(self, due: DueStatus, now: float) -> None:
        """The API server has the status."""
        writes, key = self._writes.get(due.followed.uid), due.followed.key
        if writes is None:
            return  # the object was deleted during the write
        writes.status, writes.written_at, writes.refusals = due.status, now, 0
        if not _within(COUNTS_SECONDS, writes.counted_at, now):
            writes.counted_at = now
        again = self._due.get(key)  # the object was examined during the write
        if again is not None and _same(again.status, due.status):
            del self._due[key]
            again = None
        if again is None and key not in self._changed:
            self._edits.discard(key)

    def failed(self, due: DueStatus) -> None:
        """The API server has not taken the status: it is due again after a pause, or when the object is edited."""
        writes, generation = self._writes.get(due.followed.uid), due.followed.generation
        if writes is None:
            return  # the object was deleted during the write
        writes.refusals = writes.refusals + 1 if writes.generation == generation else 1
        writes.generation = generation

    def forget_due(self) -> None:
        """Examine each object before the next write: another controller has written statuses."""
        self._due.clear()
        self.examine_all()


_NEVER: Final = _Writes()


def _within(seconds: float, since: float, now: float) -> bool:
    """Whether less time has passed. A clock that was set back does not make a pause longer."""
    return 0.0 <= now - since < seconds


def _conditions(status: ObjectStatus) -> tuple[object, ...]:
    return status.observed_generation, status.conditions


def _same(status: ObjectStatus, last: ObjectStatus | None) -> bool:
    return last is not None and _untimed(status) == _untimed(last)


def _untimed(status: ObjectStatus) -> tuple[object, ...]:
    """A status without the times of its conditions, to compare."""
    conditions = tuple(
        (one.type, one.status, one.reason, one.message) for one in status.conditions or ()
    )
    if not isinstance(status, QueueStatus):
        return status.observed_generation, conditions
    return status.observed_generation, conditions, status.counts
