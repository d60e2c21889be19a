"""Estimates starts every now and then, beside the cycles: no plan waits for it, and nothing follows from it."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.ports import Clock, UsageStore
from queuectl.domain.errors import StoreUnavailable
from queuectl.telemetry.estimates import EstimateMetrics

log = structlog.get_logger()

EVERY_SECONDS: Final = 30.0
PAST_RUNS: Final = 5000  # that a new leader reads; more would say no more of today


class Estimator:
    """Of one leadership."""

    def __init__(
        self, leader_state: LeaderState, store: UsageStore, metrics: EstimateMetrics, clock: Clock
    ) -> None:
        self._leader_state = leader_state
        self._store = store
        self._metrics = metrics
        self._clock = clock

    async def run(self) -> None:
        """Estimate until cancelled."""
        try:
            self._leader_state.estimates.learn(await self._store.past_runs(PAST_RUNS))
        except StoreUnavailable as error:  # then from what ends from now on
            log.info("past_runs_not_read", why=str(error))
        while True:
            await self.estimate()
            await asyncio.sleep(EVERY_SECONDS)

    async def estimate(self) -> None:
        """Once, for everybody in line."""
        leader_state, estimates = self._leader_state, self._leader_state.estimates
        picture = estimates.picture(leader_state.ledger, leader_state.holdings, self._clock())
        starts = await asyncio.to_thread(estimates.make, picture)
        new = estimates.tell(starts, leader_state.ledger)
        self._metrics.observe((queue, start - picture.now) for queue, start in new)
