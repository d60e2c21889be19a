"""Reads how long earlier gangs ran, and estimates starts periodically, beside the cycles. Planning does not use these estimates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.ports import Clock, UsageStore
from queuectl.domain.errors import StoreUnavailable
from queuectl.telemetry.estimates import EstimateMetrics

log = structlog.get_logger()

EVERY_SECONDS: Final = 30.0
PAST_RUNS: Final = (
    5000  # finished runs that a new leader reads; older ones do not improve estimates
)
_AT_ONCE: Final = 100  # runs between two pauses: learning blocks the event loop


class Estimator:
    """Of one leadership."""

    def __init__(
        self, leader_state: LeaderState, store: UsageStore, metrics: EstimateMetrics, clock: Clock
    ) -> None:
        self._leader_state = leader_state
        self._store = store
        self._metrics = metrics
        self._clock = clock

    async def run(self, learnt: Callable[[], None]) -> None:
        """Estimate until cancelled. ``learnt``: called when the run times of earlier gangs are known."""
        try:
            runs = await self._store.past_runs(PAST_RUNS)
        except StoreUnavailable as error:  # then it uses runs that finish from now on
            log.info("past_runs_not_read", error=str(error))
            runs = ()
        for first in range(0, len(runs), _AT_ONCE):
            self._leader_state.durations.learn(runs[first : first + _AT_ONCE])
            await asyncio.sleep(0)
        learnt()
        while True:
            await self.estimate()
            await asyncio.sleep(EVERY_SECONDS)

    async def estimate(self) -> None:
        """Estimate once, for all pending gangs."""
        leader_state, estimates = self._leader_state, self._leader_state.estimates
        current = estimates.current(leader_state.ledger, leader_state.holdings, self._clock())
        starts = await asyncio.to_thread(estimates.make, current)
        new = estimates.replace(starts, leader_state.ledger)
        self._metrics.observe((queue, start - current.now) for queue, start in new)
