"""The task of a leader that writes the statuses of the objects, few in a second. An object that cannot be written stops no other.

Kueue writes the statuses of its own objects while it runs. Whether it does is checked before each batch.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from queuectl.domain.errors import ClusterError, ClusterUnavailable, ObjectGone, bounded
from queuectl.domain.pacing import doubling
from queuectl.domain.queues import QueueConfig
from queuectl.ownership.source import ObjectSource
from queuectl.ownership.status_form import Decision, QueuesNow, StatusForm
from queuectl.ownership.statuses import DueStatus, StatusReducer

log = structlog.get_logger()

WRITE_SECONDS: Final = 0.2
"""The time between two writes: at most 5 in a second."""
_BATCH_SECONDS: Final = 1.0
"""The time for which the answer counts that no other controller writes the statuses."""
_OTHER_SECONDS: Final = 10.0
"""The time between two checks while another controller writes them."""
_TICK_SECONDS: Final = 0.2
_RECKON_SECONDS: Final = 10.0
"""Counts, namespaces and statuses that others write change without a decision."""
_SHARE: Final = 5
"""The time between two reckonings, as a multiple of the last one."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
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
    ) -> None:
        """Write nothing yet.

        Args:
            source: of the objects.
            form: of the statuses.
            queues: of the leader; None while it has none.
            clock: unix seconds.
            rate: of all writers of the leader.
        """
        self._source = source
        self._queues = queues
        self._clock = clock
        self._rate = rate
        self._reducer = StatusReducer(form, clock())
        self._decision: Decision | None = None
        self._reckoned: tuple[Decision, QueueConfig] | None = None
        self._next_reckoning = 0.0  # of the monotonic clock
        self._earliest_reckoning = 0.0
        self._due: deque[DueStatus] = deque()
        self._batch_ends = 0.0
        self._outages = 0
        self._refusals = 0  # since the last line of the log
        self._logged_at = -_LOG_SECONDS

    def decided(self, decision: Decision) -> None:
        """Take in a decision that the catalog has."""
        self._decision = decision

    async def run(self) -> None:
        """Write until canceled."""
        while True:
            await self._reckon()
            if not self._due:
                await asyncio.sleep(_TICK_SECONDS)
            elif await self._others_rest():
                await self._rate.turn()
                await asyncio.sleep(await self._write(self._due.popleft()))

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
        self._due.clear()
        self._reckoned, self._next_reckoning = None, 0.0
        return False

    async def _other_writer(self) -> str:
        """The other controller that writes the statuses, or why that is not known; empty without one."""
        try:
            return await self._source.other_writer()
        except ClusterError as error:
            return str(error)

    async def _reckon(self) -> None:
        """Find the statuses that are due, if they can have changed."""
        decision, queues, began = self._decision, self._queues(), time.monotonic()
        if decision is None or queues is None or queues.config.revision < decision.revision:
            return
        state = decision, queues.config
        changed = self._reckoned is None or any(
            now is not before for now, before in zip(state, self._reckoned, strict=True)
        )
        if began < (self._earliest_reckoning if changed else self._next_reckoning):
            return
        self._due = deque(
            await asyncio.to_thread(
                self._reducer.due, decision, queues, queues.use(), self._clock()
            )
        )
        self._reckoned = state
        ended = time.monotonic()
        self._earliest_reckoning = ended + _SHARE * (ended - began)
        self._next_reckoning = max(self._earliest_reckoning, ended + _RECKON_SECONDS)

    async def _write(self, due: DueStatus) -> float:
        """Write one status. Returns seconds in which no write can succeed."""
        try:
            await self._source.write_status(due.followed.key, due.status)
        except ObjectGone:
            return 0.0  # the watch shows it
        except ClusterError as error:
            self._reducer.failed(due, self._clock())
            self._log(due, error)
            if isinstance(error, ClusterUnavailable):  # others would fail too
                self._outages += 1
                return doubling(_FIRST_PAUSE, _LONGEST_PAUSE, self._outages)
        else:
            self._reducer.written(due, self._clock())
        self._outages = 0
        return 0.0

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
