"""When the leader works: the wake-up of its loop, the order and the repetition of writes, and periodic tasks.

ClusterQueues take turns, so that the writes of one of them do not hold back those of another one. A failed write has one time per
object at which it is sent again, however many events its workload has. A periodic task continues after an unexpected error: the run is
reported, and the task starts again after a back-off.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Container, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from queuectl.domain.containment import Boundary, Containment
from queuectl.domain.errors import ClusterError, ClusterUnavailable
from queuectl.domain.ledger import Purpose
from queuectl.domain.pacing import doubling
from queuectl.lifecycle.outstanding_writes import Write
from queuectl.lifecycle.refusals import WriteOutcome

# ---- The loop


class Wakeup:
    """Wakes the loop of one leadership.

    Attributes:
        plan_due: the next cycle plans, even without an observation.
        rest_due: it plans at least the gangs that the last plan left out.
    """

    def __init__(self) -> None:
        self.plan_due = True
        self.rest_due = False
        self._requested = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None

    def trigger(self) -> None:
        """Begin a cycle."""
        self._requested.set()

    def plan(self) -> None:
        """Begin a cycle that plans."""
        self.plan_due = True
        self.trigger()

    def plan_by(self, seconds: float) -> None:
        """Plan in the next cycle, and begin one after so many seconds at the latest."""
        self.plan_due = True
        asyncio.get_running_loop().call_later(seconds, self.trigger)

    def plan_rest_in(self, seconds: float) -> None:
        """Plan the gangs that the last plan left out, in so many seconds at the latest."""
        self.rest_due = True
        asyncio.get_running_loop().call_later(seconds, self.trigger)

    def plan_in(self, seconds: float) -> None:
        """Plan again in so many seconds, even if nothing changes until then. It replaces the time of the last call."""
        if self._later is not None:
            self._later.cancel()
        self._later = asyncio.get_running_loop().call_later(seconds, self.plan)

    async def wait(self) -> None:
        """Return when a cycle must begin."""
        await self._requested.wait()

    def clear(self) -> None:
        """Record that a cycle begins: later wake-ups are for the next one."""
        self._requested.clear()


# ---- The order of writes

TURN_WRITES: Final = 32
"""This many writes of a workload are sent before those of the next one in its ClusterQueue.

Small workloads are completed one after the other, which is the shortest mean wait. A large one does not hold them back.
"""


class Turns:
    """The uids of workloads that have writes to send. ClusterQueues take turns; in each of them, the first added uid is taken first."""

    def __init__(self) -> None:
        self._uids: dict[str, deque[str]] = {}  # by ClusterQueue; the first one is served next
        self._count = asyncio.Semaphore(0)

    def add(self, cluster_queue: str, uid: str, *, first: bool = False) -> None:
        """Add a uid. ``first``: before the others of its ClusterQueue."""
        uids = self._uids.setdefault(cluster_queue, deque())
        if first:
            uids.appendleft(uid)
        else:
            uids.append(uid)
        self._count.release()

    async def take(self) -> str:
        """The next uid, once there is one. It is removed."""
        await self._count.acquire()
        cluster_queue = next(iter(self._uids))
        uids = self._uids.pop(cluster_queue)
        uid = uids.popleft()
        if uids:
            self._uids[cluster_queue] = uids
        return uid

    def __len__(self) -> int:
        return sum(map(len, self._uids.values()))


SLOW_SECONDS: Final = 4.0
"""A write that takes longer waits for a webhook: the API server waits ten seconds for one by default."""


class SlowWrites:
    """Writes to resources of namespaces in which the last write was slow. Together they leave workers for all others.

    Attributes:
        in_progress: the number of these writes that are sent now.
    """

    def __init__(self, most: int) -> None:
        """``most``: of these writes at a time."""
        self._most = most
        self._slow: set[tuple[str, str]] = set()  # namespaces and resources
        self.in_progress = 0
        self._put_off: dict[str, None] = {}  # workloads, in the order of their writes

    def full(self, write: Write) -> bool:
        """Whether this write must wait until another slow one ends."""
        return (write.namespace, write.resource) in self._slow and self.in_progress >= self._most

    def put_off(self, uid: str) -> None:
        """Let a workload wait until a slow write ends."""
        self._put_off[uid] = None

    def released(self) -> list[str]:
        """The workloads that no longer wait."""
        if self.in_progress >= self._most:
            return []
        released = list(self._put_off)
        self._put_off.clear()
        return released

    @contextmanager
    def sending(self, write: Write) -> Iterator[None]:
        """While a write is sent."""
        place, began = (write.namespace, write.resource), time.monotonic()
        slow = place in self._slow
        self.in_progress += slow
        try:
            yield
        finally:
            self.in_progress -= slow
            if time.monotonic() - began > SLOW_SECONDS:
                self._slow.add(place)
            else:
                self._slow.discard(place)


# ---- Failed writes

FIRST_RETRY: Final = 0.2  # seconds; the delay doubles with each failure in a row
LAST_RETRY: Final = 10.0
_REFUSED_RETRY: Final = 1.0


@dataclass(slots=True)
class _Failed:
    """The failures in a row of one kind of write to one object.

    Attributes:
        kind: purpose and attempt of the write.
        version: of the object that the last write expected.
        outcome: of the last write.
        count: of the failures.
        earliest: the time before which no event makes it be sent again.
        due: the time at which it is sent again without an event.
    """

    kind: tuple[Purpose, int]
    version: int
    outcome: WriteOutcome
    count: int
    earliest: float
    due: float


class Retries:
    """The writes that failed, by uid of the workload and of the object. Times are on the clock of the caller, in seconds."""

    def __init__(self) -> None:
        self._failed: dict[str, dict[str, _Failed]] = {}

    def failed(
        self,
        uid: str,
        write: Write,
        outcome: WriteOutcome,
        now: float,
        server_delay: float | None = None,
    ) -> None:
        """Record a failure. ``server_delay``: the delay in seconds that the server asks for."""
        known = self._failed.setdefault(uid, {})
        kind, old = (write.purpose, write.attempt), known.get(write.uid)
        count = old.count + 1 if old is not None and old.kind == kind else 1
        least = _REFUSED_RETRY if outcome is WriteOutcome.REFUSED else FIRST_RETRY
        if server_delay is not None:
            least = server_delay
        delay = max(least, doubling(FIRST_RETRY, LAST_RETRY, count))
        # After an outage, the events of the watch show that the server answers again. A refusal does not end with an event.
        early = now + (delay if outcome is WriteOutcome.REFUSED else least)
        known[write.uid] = _Failed(kind, write.version, outcome, count, early, now + delay)

    def succeeded(self, uid: str, write: Write) -> None:
        """Record that the write took effect."""
        self._failed.get(uid, {}).pop(write.uid, None)

    def ready(self, uid: str, owed: Iterable[Write], now: float) -> list[Write]:
        """The owed writes that can be sent now. Failures of objects to which no write is still owed are forgotten."""
        known = self._failed.pop(uid, {})
        ready, kept = [], {}
        for write in owed:
            failed = known.get(write.uid)
            if failed is not None:
                kept[write.uid] = failed
            if failed is None or _may_be_sent(failed, write, now):
                ready.append(write)
        if kept:
            self._failed[uid] = kept
        return ready

    def next_of(self, uid: str) -> float | None:
        """The time of the next retry of a workload; None if it has none."""
        return min((failed.due for failed in self._failed.get(uid, {}).values()), default=None)

    def forget(self, uid: str) -> None:
        """Forget a workload that has left the ledger."""
        self._failed.pop(uid, None)


def _may_be_sent(failed: _Failed, write: Write, now: float) -> bool:
    if failed.kind != (write.purpose, write.attempt):
        return True  # another write than the one that failed
    if failed.outcome is WriteOutcome.OUTDATED and write.version > failed.version:
        return True  # the watch has caught up
    return now >= failed.earliest


_Key = TypeVar("_Key", bound=Hashable)


class Pauses(Generic[_Key]):
    """The pauses of writes that failed and that no ledger orders, by key. Times are on the clock of the caller, in seconds."""

    def __init__(self, first: float, longest: float) -> None:
        """``first``, ``longest``: seconds of a pause. It doubles with each failure in a row."""
        self._first = first
        self._longest = longest
        self._failed: dict[_Key, tuple[int, float, str]] = {}  # failures, end of the pause, and why

    def failed(self, key: _Key, error: ClusterError, now: float, least: float = 0.0) -> bool:
        """Record a failure. Returns whether the last one in this row had another error, or there was none.

        ``least``: seconds of this pause. It is also as long as the server asks for.
        """
        count, _, why = self._failed.get(key, (0, 0.0, None))
        asked = error.retry_after if isinstance(error, ClusterUnavailable) else None
        pause = max(doubling(self._first, self._longest, count + 1), least, asked or 0.0)
        self._failed[key] = (count + 1, now + pause, str(error))
        return why != str(error)

    def passed(self, key: _Key) -> None:
        """Forget the failures of a write that took effect or is not needed."""
        self._failed.pop(key, None)

    def keep(self, keys: Container[_Key]) -> None:
        """Forget the failures of all other keys."""
        self._failed = {key: one for key, one in self._failed.items() if key in keys}

    def over(self, key: _Key, now: float) -> bool:
        """Whether the write can be sent."""
        return key not in self._failed or self._failed[key][1] <= now


# ---- Periodic tasks

Job = Callable[[], Awaitable[None]]
FIRST_PAUSE: Final = 1.0
"""Seconds before the second start. The pause doubles with each failure, up to ``LONGEST_PAUSE``."""
_LONGEST_PAUSE: Final = 300.0
_STEADY_SECONDS: Final = 600.0
"""A task that has run for this long has recovered: its failures are forgotten."""


async def supervised(name: str, job: Job, containment: Containment) -> None:
    """Run a task until it ends or is canceled, and start it again after each error that concerns only this task.

    Raises:
        Exception: an error that is never contained.
    """
    now, failures = asyncio.get_running_loop().time, 0
    while True:
        began = now()
        try:
            await job()
        except Exception as error:  # noqa: BLE001 - contained
            containment.failed(Boundary.TASK, name, error)
            failures = 1 if now() - began > _STEADY_SECONDS else failures + 1
            await asyncio.sleep(doubling(FIRST_PAUSE, _LONGEST_PAUSE, failures))
        else:
            containment.passed(Boundary.TASK, name)
            return
