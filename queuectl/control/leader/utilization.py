"""Evaluates the GPU utilization of gangs periodically, beside the cycles. No plan waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Container, Mapping, Sequence

import structlog

from queuectl.control.ports import Clock, UseSource
from queuectl.domain.containment import Boundary
from queuectl.domain.errors import SourceUnavailable
from queuectl.domain.queues import QueueConfig
from queuectl.domain.utilization import GangUse, PodKey, Sample, SourceFault, UseState
from queuectl.state.gpu_holders import HeldGang, held_gangs
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.utilization import UseTracker, source_faults
from queuectl.telemetry.utilization import UseGauges, UseMetrics

log = structlog.get_logger()

_SCRAPES = 4  # in the window of recent use, so that one of them can fail
_LOGGED = (UseState.IDLE, UseState.STUCK)


class UseWatch:
    """The evaluations of one leader. A new leader evaluates again, from the samples that the source still has."""

    def __init__(
        self,
        source: UseSource,
        mirror: Mirror,
        metrics: UseMetrics,
        clock: Clock,
        *,
        evaluation_seconds: float,
        scrape_seconds: float,
        timeout: float,
    ) -> None:
        """Start without an evaluation.

        Args:
            source: of samples of pods.
            mirror: the copy of the cluster.
            metrics: of evaluations.
            clock: of the leader.
            evaluation_seconds: between evaluations.
            scrape_seconds: between samples of a GPU.
            timeout: seconds after which an evaluation times out.
        """
        self._source = source
        self._mirror = mirror
        self._metrics = metrics
        self._clock = clock
        self._every = evaluation_seconds
        self._scrape = scrape_seconds
        self._timeout = timeout
        self._window = max(evaluation_seconds, _SCRAPES * scrape_seconds)
        self._tracker = UseTracker(scrape_seconds)
        self._states: dict[str, UseState] = {}
        self._untrusted: tuple[str, ...] = ()

    async def run(
        self,
        ledger: Callable[[], Ledger],
        config: Callable[[], QueueConfig],
        borrowing: Callable[[], Container[str]],
        put: Callable[[Mapping[str, GangUse]], None],
    ) -> None:
        """Evaluate until cancelled. ``put`` receives the results, by uid, after each evaluation.

        ``borrowing``: ClusterQueues that use more than their nominal quota.
        """
        log.info("utilization_source_selected", trusts=self._source.trusts)
        self._metrics.trust(self._source.trusts)
        try:
            while True:
                put(await self.sample(held_gangs(self._mirror, ledger(), config(), borrowing())))
                await asyncio.sleep(self._every)
        finally:
            self._metrics.forget()

    async def sample(self, gangs: Sequence[HeldGang]) -> dict[str, GangUse]:
        """The current utilization of each gang, by uid."""
        began, at = time.perf_counter(), self._clock()
        known = {pod.key for gang in gangs for pod in gang.pods}
        faults: Mapping[SourceFault, int]
        try:
            async with asyncio.timeout(self._timeout):
                recent, longer = await self._ask(gangs, at, known)
        except (SourceUnavailable, TimeoutError) as error:
            why = str(error) or f"no answer within {self._timeout:.0f} s"
            log.warning("utilization_not_measured", reason=why)
            uses = self._tracker.nothing(gangs, at, why)
            faults = {SourceFault.UNREACHABLE: max(1, len(known))}
        else:
            uses = await asyncio.to_thread(self._tracker.judge, gangs, recent, longer)
            self._set_aside(gangs)
            faults = source_faults(gangs, recent, self._scrape)
            self._log_untrusted(recent.untrusted)
        seen = [
            UseGauges(gang.cluster_queue, use.state, gang.gpus, use.utilization)
            for gang in gangs
            if (use := uses.get(gang.uid)) is not None
        ]
        self._metrics.evaluated(faults, seen, time.perf_counter() - began)
        self._log_changes(uses)
        return uses

    def _set_aside(self, gangs: Sequence[HeldGang]) -> None:
        """Report the gangs whose samples cannot be judged."""
        containment = self._mirror.containment
        failed, self._tracker.failed = self._tracker.failed, []
        if not containment.empty:
            bad = {gang.uid for gang, _ in failed}
            for gang in gangs:
                if gang.uid not in bad:
                    containment.passed(Boundary.SERIES, gang.uid)
        for gang, error in failed:
            containment.failed(Boundary.SERIES, gang.uid, error)

    async def _ask(
        self, gangs: Sequence[HeldGang], at: float, known: Collection[PodKey]
    ) -> tuple[Sample, dict[float, Sample]]:
        """The recent samples; over longer windows only if a gang can be idle or stuck."""
        recent = await self._source.sample(self._window, at, known)
        windows = self._tracker.windows(gangs, recent)
        return recent, {window: await self._source.sample(window, at, known) for window in windows}

    def _log_untrusted(self, jobs: tuple[str, ...]) -> None:
        """Log once: an incomplete set-up, or a tenant that reports pods of others."""
        if jobs and jobs != self._untrusted:
            log.warning("utilization_untrusted_jobs", jobs=jobs, trusts=self._source.trusts)
        self._untrusted = jobs

    def _log_changes(self, uses: Mapping[str, GangUse]) -> None:
        states = {uid: use.state for uid, use in uses.items()}
        for uid, state in states.items():
            if state is not self._states.get(uid) and state in _LOGGED:
                log.info("utilization_changed", uid=uid, state=state, reason=uses[uid].text)
        self._states = states
