"""What the leader finds out beside the ledger (GPU use, estimated starts) told by replicas that stand by as well.

The leader keeps it in the database whenever there is something new; a process that stands by reads it every now and then.
No plan waits for it, and nothing follows from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.ports import Clock, Store
from queuectl.domain.broadcast import LeaderFindings
from queuectl.domain.errors import StoreUnavailable

log = structlog.get_logger()

EVERY_SECONDS: Final = 2.0


async def share(leader_state: LeaderState, store: Store, clock: Clock, epoch: int) -> None:
    """Keep what one leadership finds out, until cancelled.

    Raises:
        Fenced: another leader has taken over.
    """
    uses = starts = None
    while True:
        if leader_state.gang_uses is not uses or leader_state.estimates.starts is not starts:
            uses, starts = leader_state.gang_uses, leader_state.estimates.starts
            try:
                await store.keep_findings(LeaderFindings(clock(), uses, starts), epoch=epoch)
            except StoreUnavailable as error:
                uses = None  # tried again
                log.info("findings_not_kept", why=str(error))
        await asyncio.sleep(EVERY_SECONDS)


class Broadcast:
    """What a process knows of the leader's findings while it stands by."""

    def __init__(self, store: Store, clock: Clock, fresh_seconds: float) -> None:
        """``fresh_seconds``: what is older is not told any more: nobody leads, or nobody can write."""
        self._store = store
        self._clock = clock
        self._fresh = fresh_seconds
        self._last = LeaderFindings()

    async def follow(self, standing_by: Callable[[], bool]) -> None:
        """Read what is new until cancelled, while ``standing_by``."""
        while True:
            if standing_by():
                await self.read()
            await asyncio.sleep(EVERY_SECONDS)

    async def read(self) -> None:
        """Once, if there is something new; what is known stays while the database is away."""
        try:
            self._last = await self._store.findings(self._last.at) or self._last
        except StoreUnavailable as error:
            log.info("findings_not_read", why=str(error))

    @property
    def now(self) -> LeaderFindings:
        """The last that were read; empty once they are too old."""
        fresh = self._clock() - self._last.at <= self._fresh
        return self._last if fresh else LeaderFindings()
