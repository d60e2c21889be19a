"""Who leads: a Kubernetes Lease elects, the database's epoch fences.

The Lease also advertises the epoch, so that a database restored from the past cannot hand out an old one again.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import structlog

from queuectl.control.ports import Clock, Cluster, Store
from queuectl.domain.errors import ClusterError, ClusterUnavailable, StoreUnavailable, WriteConflict
from queuectl.domain.records import LeaderRecord

log = structlog.get_logger()


class LeadershipLost(Exception):
    """The LeaderLease could not be renewed in time, or somebody else holds it."""


class Leadership:
    """Acquires and renews the LeaderLease of one holder."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        clock: Clock,
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
        self.trouble = ""  # why the lease could not be read or written the last time
        # A foreign lease counts as expired only after we ourselves saw it unchanged for its whole duration: clocks differ.
        self._seen: tuple[str, float] = ("", 0.0)

    async def acquire(self) -> int:
        """Wait until we lead; returns our epoch."""
        while True:
            try:
                record = await self._try()
                self.trouble = ""
                if record is not None:
                    epoch = await self._store.take_over(self._holder, record.epoch)
                    self._held = await self._cluster.write_leader(
                        replace(record, epoch=epoch, renewed=self._clock()), record
                    )
                    log.info("leading", holder=self._holder, epoch=epoch)
                    return epoch
            except (ClusterError, StoreUnavailable) as error:
                self._worry("cannot_lead_yet", error)
            await asyncio.sleep(self._renew)

    async def _try(self) -> LeaderRecord | None:
        now = self._clock()
        current = await self._cluster.read_leader()
        mine = LeaderRecord(self._holder, current.epoch if current else 0, now, self._duration, "")
        if current is not None and current.holder not in ("", self._holder):
            if self._seen[0] != current.version:
                self._seen = (current.version, asyncio.get_running_loop().time())
            if asyncio.get_running_loop().time() - self._seen[1] < current.duration:
                return None
            log.warning("lease_expired", of=current.holder)
        try:
            return await self._cluster.write_leader(mine, current)
        except WriteConflict:
            return None

    async def keep(self) -> None:
        """Renew until cancelled.

        Raises:
            LeadershipLost: when the lease ran out unrenewed or is somebody else's.
        """
        assert self._held is not None
        deadline = asyncio.get_running_loop().time() + self._duration
        while True:
            await asyncio.sleep(self._renew)
            now = asyncio.get_running_loop().time()
            try:
                self._held = await self._cluster.write_leader(
                    replace(self._held, renewed=self._clock()), self._held
                )
                deadline = now + self._duration
                self.trouble = ""
            except ClusterUnavailable as error:
                self._worry("lease_not_renewed", error)
                if now >= deadline:
                    raise LeadershipLost("the LeaderLease ran out") from error
            except ClusterError as error:
                await self._reread(error)

    async def _reread(self, error: ClusterError) -> None:
        """The write conflicted: ours landed unanswered, or somebody else took over."""
        try:
            current = await self._cluster.read_leader()
        except ClusterUnavailable:
            return
        if current is None or current.holder != self._holder:
            raise LeadershipLost("somebody else holds the LeaderLease") from error
        self._held = current

    def _worry(self, event: str, error: Exception) -> None:
        if not self.trouble:  # once is enough for the log; /readyz tells it all the while
            log.warning(event, why=str(error))
        self.trouble = f"leader lease: {error}"

    async def release(self) -> None:
        """Give the lease up so that a standby need not wait for it to run out. Best effort."""
        held, self._held = self._held, None
        if held is not None:
            try:
                await self._cluster.write_leader(replace(held, holder=""), held)
            except ClusterError as error:
                log.warning("lease_not_released", why=str(error))
