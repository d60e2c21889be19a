"""Several sources as one: a cluster with GPUs of several vendors has metrics of each."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from queuectl.domain.node_health import GpuClock, GpuFault, NodeHealthRules
from queuectl.domain.utilization import PodKey, UtilizationSample
from queuectl.telemetry.signal.prometheus import PrometheusSource


class SeveralVendors:
    """The samples of all sources. A pod that two of them name has GPUs of two vendors: its use is unknown."""

    def __init__(self, sources: Sequence[PrometheusSource]) -> None:
        """``sources``: one for each vendor."""
        self._sources = sources
        self.trusts = "; ".join(dict.fromkeys(source.trusts for source in sources))

    async def close(self) -> None:
        """Close the connections of all sources."""
        for source in self._sources:
            await source.close()

    async def sample(self, window: float, at: float, pods: Collection[PodKey]) -> UtilizationSample:
        """The samples of the ``window`` seconds before ``at`` (unix seconds).

        Raises:
            SourceUnavailable: one of them does not answer, or not what was asked.
        """
        samples = await asyncio.gather(*(s.sample(window, at, pods) for s in self._sources))
        return UtilizationSample(
            at=at,
            window=window,
            reach=max(sample.reach for sample in samples),
            gpus=sum(sample.gpus for sample in samples),
            pods=tuple(pod for sample in samples for pod in sample.pods),
            untrusted=tuple(sorted({job for sample in samples for job in sample.untrusted})),
        )

    async def faults(self, rules: NodeHealthRules, at: float) -> Sequence[GpuFault]:
        """The faults of GPUs of all vendors, as of ``at`` (unix seconds).

        Raises:
            SourceUnavailable: one of them does not answer, or not what was asked.
        """
        found = await asyncio.gather(*(source.faults(rules, at) for source in self._sources))
        return [fault for faults in found for fault in faults]

    async def clocks(self, window: float, at: float) -> Sequence[GpuClock]:
        """The clocks of GPUs of pods over the ``window`` seconds before ``at`` (unix seconds), of vendors that export them.

        Raises:
            SourceUnavailable: one of them does not answer, or not what was asked.
        """
        found = await asyncio.gather(*(source.clocks(window, at) for source in self._sources))
        return [clock for clocks in found for clock in clocks]
