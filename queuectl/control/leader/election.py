"""Leader election: a Kubernetes Lease elects, and the epoch in the database fences.

The Lease also has the epoch, so that a restored database cannot issue an old epoch again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeVar

import structlog

from queuectl.control.ports import Election
from queuectl.control.progress import SteadyClock
from queuectl.control.settings import Settings
from queuectl.db.ports import LeaderStore
from queuectl.domain.errors import (
    ClusterError,
    ClusterUnavailable,
    LeadershipLost,
    ObjectGone,
    StoreUnavailable,
    WriteConflict,
)
from queuectl.domain.records import LeaderRecord

T = TypeVar("T")
log = structlog.get_logger()
POLL_SECONDS: Final = 1.0
"""Between two reads of the Lease of another process. For this process, that Lease lasts from the read that first shows it."""
_SHORTEST_PAUSE: Final = 0.05  # seconds


class Leadership:
    """Acquires and renews the Lease of one holder."""

    def __init__(
        self,
        cluster: Election,
        store: LeaderStore,
        clock: SteadyClock,
        *,
        holder: str,
        duration: float,
        renew: float,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._clock = clock
        self._holder = holder
        self._duration = duration
        self._renew = renew
        self._held: LeaderRecord | None = None
        self._accounted: Callable[[], float] = float
        self._deadline = 0.0  # on the event loop's clock: the end of the lease
        self.failure = ""  # why the last read or write of the lease failed
        # A lease of another process has expired only if this process saw it unchanged for its duration: clocks differ.
        self._seen: tuple[str, float] = ("", 0.0)
        self.follows = False  # another process holds the Lease, as last read
        # Of the lease of another process, on the event loop's clock.
        self._expires: float | None = None

    @classmethod
    def of(
        cls,
        cluster: Election,
        store: LeaderStore,
        clock: SteadyClock,
        settings: Settings,
        role: str = "",
    ) -> Leadership:
        """The leadership of a process with these settings. ``role``: that the name of its holder states."""
        holder = f"{settings.holder} ({role})" if role else settings.holder
        duration, renew = settings.lease_duration, settings.lease_renew
        return cls(cluster, store, clock, holder=holder, duration=duration, renew=renew)

    async def acquire(self) -> int:
        """Wait until this process is the leader, and set the clock to the database's time. Returns the epoch."""
        while True:
            try:
                record = await self._try()
                self.failure = ""
                if record is not None:
                    self.follows = False
                    epoch = await self._taken_over(record)
                    await self._write(record, epoch)
                    log.info("leadership_acquired", holder=self._holder, epoch=epoch)
                    return epoch
            except (ClusterError, StoreUnavailable) as error:
                self._record_failure("leadership_not_acquired", error)
            await asyncio.sleep(self._pause())

    async def _taken_over(self, record: LeaderRecord) -> int:
        """The epoch of this leadership, from the database. If it answers without writing, others get the Lease.

        Raises:
            StoreUnavailable: the database is unavailable.
        """
        self._held = record
        try:
            epoch = await self._store.take_over(self._holder, record.epoch, record.accounted)
            self._clock.set(await self._store.now())
        except StoreUnavailable:
            await self.release()
            raise
        return epoch

    def _pause(self) -> float:
        """Seconds until the next try: until the lease of another process expires, at most the time between two reads."""
        if self._expires is None:
            return self._renew
        left = self._expires - asyncio.get_running_loop().time()
        return min(self._renew, POLL_SECONDS, max(left, _SHORTEST_PAUSE))

    async def _try(self) -> LeaderRecord | None:
        now = self._clock()
        self._expires = None
        current = await self._cluster.read_leader()
        free = LeaderRecord("", 0, now, self._duration, "")
        mine = replace(
            current or free, holder=self._holder, renewed=now, duration=self._duration, version=""
        )
        if current is not None and current.holder not in ("", self._holder):
            if self._seen[0] != current.version:
                self._seen = (current.version, asyncio.get_running_loop().time())
            expires = self._seen[1] + current.duration
            if asyncio.get_running_loop().time() < expires:
                self._expires = expires
                self.follows = True
                return None
            log.warning("lease_expired", holder=current.holder)
        await self._store.now()  # a replica without the database leaves the Lease to the others
        try:
            return await self._cluster.write_leader(mine, current)
        except WriteConflict:
            return None

    async def keep(
        self, stalled: Callable[[], str] = str, accounted: Callable[[], float] = float
    ) -> None:
        """Renew until canceled.

        Args:
            stalled: why the leader makes no progress; empty while it does.
            accounted: unix seconds until which its usage ledger is complete; 0 = not known.

        Raises:
            LeadershipLost: the lease has expired, another process holds it, or the leader makes no progress.
        """
        self._accounted = accounted
        try:
            async with asyncio.timeout_at(self._deadline) as lease:
                while True:
                    await asyncio.sleep(self._renew)
                    if why := stalled():
                        raise LeadershipLost(why)
                    await self._renewed()
                    lease.reschedule(self._deadline)
        except TimeoutError:
            raise LeadershipLost(f"the Lease ran out: {self.failure}") from None

    async def _renewed(self) -> None:
        """Renew once. Failures are retried until the lease expires."""
        assert self._held is not None
        try:
            await self._write(self._held)
        except (
            WriteConflict,
            ObjectGone,
        ):  # an earlier write without response took effect, or another process wrote
            await self._reread()
        except ClusterError as error:
            self._record_failure("lease_not_renewed", error)

    async def _write(self, over: LeaderRecord, epoch: int | None = None) -> None:
        """Write the lease, with another epoch if one is given.

        It lasts from the time at which the write is sent: no standby can see it before.
        """
        sent = asyncio.get_running_loop().time()
        ours = replace(
            over,
            renewed=self._clock(),
            epoch=over.epoch if epoch is None else epoch,
            accounted=max(over.accounted, int(self._accounted())),
        )
        self._held = await self._answered(ours, over)
        self._deadline = sent + self._duration
        self.failure = ""

    async def _answered(self, ours: LeaderRecord, over: LeaderRecord) -> LeaderRecord:
        """Write the lease. The timeout leaves time for another write."""
        return await self._in_time(self._cluster.write_leader(ours, over))

    async def _current(self) -> LeaderRecord | None:
        """Read the lease."""
        return await self._in_time(self._cluster.read_leader())

    async def _in_time(self, request: Awaitable[T]) -> T:
        seconds = (self._duration - self._renew) / 2
        try:
            async with asyncio.timeout(seconds):
                return await request
        except TimeoutError:
            raise ClusterUnavailable(f"no answer in {seconds:g} s") from None

    async def _reread(self) -> None:
        """Write over the current lease after a conflict, if this process holds it."""
        try:
            current = await self._current()
            if current is None or current.holder != self._holder:
                raise LeadershipLost("another process holds the Lease")
            await self._write(current)
        except ClusterError as error:
            self._record_failure("lease_not_renewed", error)

    def _record_failure(self, event: str, error: Exception) -> None:
        if not self.failure:  # logged once; /readyz shows it until it ends
            log.warning(event, error=str(error))
        self.failure = f"leader lease: {error}"

    async def release(self) -> None:
        """Release the lease, so that a standby need not wait for its end. Failures are ignored."""
        held, self._held = self._held, None
        if held is not None:
            try:
                await self._release(held)
            except ClusterError as error:
                log.warning("lease_not_released", error=str(error))

    async def _release(self, held: LeaderRecord) -> None:
        """Release the lease, even if a renewal without an answer has changed it. Raises ClusterError."""
        try:
            await self._answered(replace(held, holder=""), held)
        except WriteConflict:
            current = await self._current()
            if current is not None and current.holder == self._holder:
                await self._answered(replace(current, holder=""), current)
