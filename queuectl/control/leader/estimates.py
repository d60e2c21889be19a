"""Reads how long earlier gangs ran, and estimates starts periodically, alongside the cycles. Planning does not use these estimates.

An estimate runs in a thread with a small share of one core. It pauses while the planner works, and releases the interpreter often, so
that no cycle waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from queuectl.control.checked_plan import DeviceRows
from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.questions.throttle import PlannerThrottle
from queuectl.db.ports import UsageStore
from queuectl.domain.errors import StoreUnavailable, TookTooLong
from queuectl.domain.estimates import ExpectedStarts
from queuectl.estimates.expected_starts import MOST_GANGS, expected_starts
from queuectl.estimates.scene import scene_of
from queuectl.planner import StopSignal
from queuectl.planner.cache import PlannerCache
from queuectl.state.estimates import EstimateInput
from queuectl.telemetry.metrics import EstimateMetrics

log = structlog.get_logger()

EVERY_SECONDS: Final = 30.0
_SOONER_SECONDS: Final = 5.0
"""Between two estimates if a gang was submitted in the meantime, and waits."""
SHARE: Final = 0.05  # of one core
MOST_SECONDS: Final = 60.0  # of one estimate
# Finished runs that a new leader reads; older ones do not improve estimates.
PAST_RUNS: Final = 5000
_AT_ONCE: Final = 100  # runs between two pauses: learning blocks the event loop
_PLANNING_SECONDS: Final = 1.0  # between two checks whether an estimate is to stop


class StartEstimator:
    """Estimates the starts of pending gangs, for one leadership."""

    def __init__(
        self,
        leader_state: LeaderState,
        store: UsageStore,
        metrics: EstimateMetrics,
        cache: PlannerCache,
        between_plans: threading.Event,
    ) -> None:
        """``cache``: of the planner. ``between_plans``: set while no plan is made."""
        self._leader_state = leader_state
        self._store = store
        self._metrics = metrics
        self._cache = cache
        self._between_plans = between_plans
        self._throttle = PlannerThrottle(SHARE)
        self._has_learned = False

    async def run(self, learned: Callable[[], None]) -> None:
        """Estimate until canceled. ``learned``: called when the run times of earlier gangs are known.

        It can run again after an error.
        """
        while True:
            if not self._has_learned and await self._learn():
                self._has_learned = True
                learned()
            await self.estimate()
            await self._until_due()

    async def _learn(self) -> bool:
        """Read the run times of earlier gangs. False if the database does not answer: until the next try, it uses runs that finish from now on."""
        try:
            runs = await self._store.past_runs(PAST_RUNS)
        except StoreUnavailable as error:
            log.info("past_runs_not_read", error=str(error))
            return False
        for first in range(0, len(runs), _AT_ONCE):
            self._leader_state.durations.learn(runs[first : first + _AT_ONCE])
            await asyncio.sleep(0)
        return True

    async def _until_due(self) -> None:
        """Wait for the next estimate. It is earlier if a gang was submitted and could not start at once."""
        for _ in range(round(EVERY_SECONDS / _SOONER_SECONDS)):
            await asyncio.sleep(_SOONER_SECONDS)
            if self._leader_state.estimates.lack(self._leader_state.ledger):
                return

    async def estimate(self) -> None:
        """Estimate once, for all pending gangs. An estimate that takes too long has no effect."""
        leader_state, estimates = self._leader_state, self._leader_state.estimates
        began, starts = time.perf_counter(), None
        with contextlib.suppress(TookTooLong):
            async with self._throttle.turn():
                snapshot = leader_state.snapshot(seek_room=False)
                given = estimates.current(leader_state.ledger, snapshot)
                work = partial(self._worked_out, given)
                began = time.perf_counter()
                starts = await self._throttle.work_out(work, MOST_SECONDS)
        if starts is None:
            log.warning("estimate_stopped", seconds=round(time.perf_counter() - began, 1))
            return
        new = estimates.replace(starts, leader_state.ledger)
        self._metrics.observe((queue, start - starts.computed_at) for queue, start in new)

    def _worked_out(self, estimate_input: EstimateInput, stop: StopSignal) -> ExpectedStarts | None:
        """The expected starts; None if it was stopped."""

        def check() -> None:
            while not self._between_plans.wait(_PLANNING_SECONDS) and not stop.stopped:
                pass
            if stop.stopped:
                raise _StoppedError
            time.sleep(0)  # other threads go on

        try:
            check()
            running = (gang.workload.uid for gang in estimate_input.snapshot.admitted)
            if not estimate_input.snapshot.pending:
                return ExpectedStarts(
                    estimate_input.snapshot.now, run_times=estimate_input.run_times(running)
                )
            snapshot = DeviceRows.of(self._cache).added(estimate_input.snapshot)
            scene = scene_of(snapshot, self._cache, MOST_GANGS, check)
            check()
            run_times = estimate_input.run_times({*running, *(gang.uid for gang in scene.waiting)})
            check()
            return replace(
                expected_starts(scene, estimate_input.runs(scene.uids), check), run_times=run_times
            )
        except _StoppedError:
            return None


class _StoppedError(Exception):
    """The estimate is to end."""
