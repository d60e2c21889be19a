"""Evaluates the health of nodes periodically, beside the cycles. No plan waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import structlog

from queuectl.control.ports import Clock, HealthSource
from queuectl.domain.errors import SourceUnavailable
from queuectl.domain.node_health import GpuFault, HealthMode, NodeHealthRules, Straggler
from queuectl.domain.queues import QueueConfig
from queuectl.state.gpu_holders import HeldGang, held_gangs
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.node_health import Judgement, NodeHealthTracker
from queuectl.state.stragglers import WINDOW, find_stragglers
from queuectl.telemetry.node_health import NodeHealthMetrics

log = structlog.get_logger()


class NodeHealthWatch:
    """The evaluations of one leader. It begins with the nodes that are out of placement in the mirror, and evaluates at once."""

    def __init__(
        self,
        source: HealthSource | None,
        mirror: Mirror,
        metrics: NodeHealthMetrics,
        clock: Clock,
        *,
        evaluation_seconds: float,
        timeout: float,
    ) -> None:
        """Start without an evaluation.

        Args:
            source: of faults of GPUs; None = only conditions of nodes count.
            mirror: the copy of the cluster.
            metrics: of evaluations.
            clock: of the leader.
            evaluation_seconds: between evaluations.
            timeout: seconds after which a query times out.
        """
        self._source = source
        self._mirror = mirror
        self._metrics = metrics
        self._clock = clock
        self._every = evaluation_seconds
        self._timeout = timeout
        self._tracker = NodeHealthTracker(mirror.nodes.closed)
        self._known: Mapping[str, str] = {}

    async def run(
        self,
        config: Callable[[], QueueConfig],
        ledger: Callable[[], Ledger],
        put: Callable[[Mapping[str, str]], None],
        put_stragglers: Callable[[Sequence[Straggler]], None],
    ) -> None:
        """Evaluate until cancelled.

        Args:
            config: in use.
            ledger: the workloads.
            put: receives the evidence against nodes to take out, by name.
            put_stragglers: receives the stragglers of an evaluation with an answer.
        """
        try:
            while True:
                rules = config().rules.node_health
                put((await self.evaluate(rules)).out)
                stragglers = await self.compare(held_gangs(self._mirror, ledger(), config()), rules)
                if stragglers is not None:
                    put_stragglers(stragglers)
                await asyncio.sleep(self._every)
        finally:
            self._metrics.forget()

    async def evaluate(self, rules: NodeHealthRules) -> Judgement:
        """Judge all nodes now."""
        faults = await self._ask(rules)
        judged = self._tracker.judge(self._mirror.nodes, faults, rules, self._clock())
        self._metrics.evaluated(judged.signals)
        self._log(judged)
        return judged

    async def compare(
        self, gangs: Sequence[HeldGang], rules: NodeHealthRules, window: float = WINDOW
    ) -> Sequence[Straggler] | None:
        """The stragglers of these gangs; None without an answer of the source."""
        if self._source is None or not rules.straggler_below or rules.mode is HealthMode.OFF:
            return None
        now = self._clock()
        try:
            async with asyncio.timeout(self._timeout):
                clocks = await self._source.clocks(window, now)
        except (SourceUnavailable, TimeoutError):
            return None  # logged with the faults
        found = find_stragglers(gangs, clocks, self._mirror, rules, now, window)
        self._metrics.compared(found)
        return found

    async def _ask(self, rules: NodeHealthRules) -> Sequence[GpuFault] | None:
        if self._source is None:
            return None
        try:
            async with asyncio.timeout(self._timeout):
                return await self._source.faults(rules, self._clock())
        except (SourceUnavailable, TimeoutError) as error:
            why = str(error) or f"no answer within {self._timeout:.0f} s"
            log.warning("node_health_not_measured", reason=why)
            return None

    def _log(self, judged: Judgement) -> None:
        """Log each change once."""
        found = {**judged.kept, **judged.out}
        for node, evidence in found.items():
            if self._known.get(node) != evidence:
                log.warning("node_unhealthy", node=node, reason=evidence, out=node in judged.out)
        for node in self._known.keys() - found.keys():
            log.info("node_recovered", node=node)
        self._known = found
