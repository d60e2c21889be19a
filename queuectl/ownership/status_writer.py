"""The task of a leader that writes the statuses of the objects, few in a second. An object that cannot be written stops no other.

Each kind has at most one write at a time, so that a kind whose writes are slow, or that the API server does not answer, stops no other.
Kueue writes the statuses of its own objects while it runs. Whether it does is checked before each batch.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from queuectl.domain.containment import Containment
from queuectl.domain.errors import ClusterError, ClusterUnavailable, ObjectGone, bounded
from queuectl.domain.queues import QueueConfig
from queuectl.ownership.source import ObjectSource
from queuectl.ownership.status_form import Decision, QueuesNow, StatusCounts, StatusForm
from queuectl.ownership.statuses import DueStatus, StatusReducer

log = structlog.get_logger()

WRITE_SECONDS: Final = 0.2
"""The time between two writes: at most 5 in a second."""
_BATCH_SECONDS: Final = 1.0
"""The time for which the answer counts that no other controller writes the statuses."""
_OTHER_SECONDS: Final = 10.0
"""The time between two checks while another controller writes them."""
_TICK_SECONDS: Final = 0.2
_SLICE: Final = 256
"""The objects that are examined at once. It keeps the leader from other work for about 3 ms."""
_SLICE_SECONDS: Final = 0.02
"""The shortest time between two slices, so that constant edits take a sixth of a core at most."""
_EXAMINE_SECONDS: Final = 10.0
"""Counts, namespaces and statuses that others write change without a decision."""
_UNAVAILABLE_SECONDS: Final = 1.0
"""The pause of a kind after a write without an answer. It stays short, because the status of an edit is expected within 2 s."""
_LOG_SECONDS: Final = 60.0


class WriteRate:
    """The rate of all writers of a leader together."""

    def __init__(self) -> None:
        self._turns = asyncio.Lock()
        self._earliest = 0.0  # of the monotonic clock

    async def turn(self) -> None:
        """Wait until a status can be written."""
        async with self._turns:
            await asyncio.sleep(self._earliest - time.monotonic())
            self._earliest = time.monotonic() + WRITE_SECONDS


class StatusWriter:
    """Writes statuses until canceled. Each leadership has its own."""

    def __init__(
        self,
        source: ObjectSource,
        form: StatusForm,
        queues: Callable[[], QueuesNow | None],
        clock: Callable[[], float],
        rate: WriteRate,
        containment: Containment,
    ) -> None:
        """Write nothing yet.

        Args:
            source: of the objects.
            form: of the statuses.
            queues: of the leader; None while it has none.
            clock: unix seconds.
            rate: of all writers of the leader.
            containment: of the process.
        """
        self._source = source
        self._form = form
        self._queues = queues
        self._clock = clock
        self._rate = rate
        self._reducer = StatusReducer(form, clock(), containment)
        self._decisions: deque[Decision] = deque()  # that the configuration does not have yet
        self._examined: tuple[QueueConfig, StatusCounts] | None = None
        self._next_round = 0.0  # of the monotonic clock, as are the others
        self._batch_ends = 0.0
        self._writing: set[str] = set()  # kinds with a write that has not ended
        self._unavailable: dict[str, float] = {}  # by kind: until this time
        self._refusals = 0  # since the last line of the log
        self._logged_at = -_LOG_SECONDS

    def decided(self, decision: Decision) -> None:
        """Take in a decision that the catalog has."""
        # The oldest stays: with constant edits, the configuration never has the newest.
        if len(self._decisions) > 1:
            self._decisions.pop()
        self._decisions.append(decision)

    async def run(self) -> None:
        """Write until canceled."""
        async with asyncio.TaskGroup() as writes:
            while True:
                await self._examine()
                if not self._reducer.writable(self._clock(), self._paused()):
                    pause = _SLICE_SECONDS if self._reducer.unexamined else _TICK_SECONDS
                    await asyncio.sleep(pause)
                elif await self._others_rest():
                    await self._rate.turn()
                    await self._examine()  # there can be an edit
                    due = self._reducer.next(self._clock(), self._paused())
                    if due is not None:
                        self._writing.add(due.followed.key.kind)
                        writes.create_task(self._write(due))

    async def _others_rest(self) -> bool:
        """Whether no other controller writes the statuses. If one does, wait until it ends, and forget what was due."""
        began = time.monotonic()
        if began < self._batch_ends:
            return True
        other = await self._other_writer()
        if not other:
            self._batch_ends = began + _BATCH_SECONDS
            return True
        log.warning("statuses_left", reason=bounded(other))
        while other:
            await asyncio.sleep(_OTHER_SECONDS)
            other = await self._other_writer()
        log.info("statuses_written_again")
        self._reducer.forget_due()
        return False

    async def _other_writer(self) -> str:
        """The other controller that writes the statuses, or why that is not known; empty without one."""
        try:
            return await self._source.other_writer()
        except ClusterError as error:
            return str(error)

    def _paused(self) -> set[str]:
        """The kinds of which no status can be written now."""
        now = time.monotonic()
        return self._writing | {kind for kind, end in self._unavailable.items() if now < end}

    async def _examine(self) -> None:
        """Find the due statuses of the objects that were edited, and of some others if they can have changed."""
        queues, now = self._queues(), time.monotonic()
        if queues is None:
            return
        while self._decisions and queues.config.revision >= self._decisions[0].revision:
            self._reducer.decided(self._decisions.popleft())
        config, counts = self._examined or (None, None)
        if counts is None or config is not queues.config or now >= self._next_round:
            counts = await asyncio.to_thread(self._form.counts, queues.use(), queues)
            self._reducer.examine_all()
            self._examined = queues.config, counts
            self._next_round = now + _EXAMINE_SECONDS
        self._reducer.examine(queues, counts, self._clock(), _SLICE)

    async def _write(self, due: DueStatus) -> None:
        """Write one status."""
        key = due.followed.key
        try:
            await self._source.write_status(key, due.status)
        except ObjectGone:
            pass  # the watch shows it
        except ClusterError as error:
            self._reducer.failed(due)
            self._log(due, error)
            if isinstance(error, ClusterUnavailable):  # others of the kind would fail too
                self._unavailable[key.kind] = time.monotonic() + _UNAVAILABLE_SECONDS
        else:
            self._reducer.written(due, self._clock())
        finally:
            self._writing.discard(key.kind)

    def _log(self, due: DueStatus, error: ClusterError) -> None:
        """One line in a while, because a missing right refuses thousands of objects."""
        self._refusals += 1
        if time.monotonic() - self._logged_at < _LOG_SECONDS:
            return
        log.warning(
            "status_not_written",
            object=str(due.followed.key),
            error=str(error),
            count=self._refusals,
        )
        self._refusals, self._logged_at = 0, time.monotonic()
