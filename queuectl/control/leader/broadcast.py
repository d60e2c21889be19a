"""Results of the leader that are not in the ledger (GPU utilization, expected starts), for standby replicas.

The leader writes each new result to the database, and standbys read it periodically. Planning does not use it.
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
from queuectl.state.mirror import Mirror

log = structlog.get_logger()

EVERY_SECONDS: Final = 2.0


async def share(
    leader_state: LeaderState, mirror: Mirror, store: Store, clock: Clock, epoch: int
) -> None:
    """Write the results of one leader until cancelled.

    Raises:
        Fenced: another leader has taken over.
    """
    written: tuple[object, ...] = ()
    while True:
        uses, starts = leader_state.gang_uses, leader_state.estimates.now
        found = (uses, starts, mirror.nodes.closed)
        if len(written) != len(found) or any(
            a is not b for a, b in zip(found, written, strict=True)
        ):
            written = found
            try:
                await store.keep_findings(LeaderFindings(clock(), *found), epoch=epoch)
            except StoreUnavailable as error:
                written = ()  # write it again
                log.info("findings_not_stored", error=str(error))
        await asyncio.sleep(EVERY_SECONDS)


class Broadcast:
    """The leader's results in a standby."""

    def __init__(self, store: Store, clock: Clock, fresh_seconds: float) -> None:
        """``fresh_seconds``: the age after which results are not shown, because there is no leader or no database."""
        self._store = store
        self._clock = clock
        self._fresh = fresh_seconds
        self._last = LeaderFindings()

    async def follow(self, standing_by: Callable[[], bool], mirror: Mirror) -> None:
        """Read new results until cancelled, while ``standing_by``. The mirror gets the nodes that are out of placement."""
        while True:
            if standing_by():
                await self.hand_over(mirror)
            await asyncio.sleep(EVERY_SECONDS)

    async def hand_over(self, mirror: Mirror) -> None:
        """Read new results. The mirror gets the nodes that the leader, or the last one, took out of placement."""
        await self.read()
        mirror.mark_unhealthy(self._last.unhealthy)

    async def read(self) -> None:
        """Read the results once, if they are new. The last results stay if the database is unavailable."""
        try:
            self._last = await self._store.findings(self._last.at) or self._last
        except StoreUnavailable as error:
            log.info("findings_not_read", error=str(error))

    @property
    def now(self) -> LeaderFindings:
        """The last results; empty if they are too old."""
        fresh = self._clock() - self._last.at <= self._fresh
        return self._last if fresh else LeaderFindings()
