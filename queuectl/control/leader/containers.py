"""Measures the CPU and the memory of the pods of running gangs, and adds them to the usage ledger.

It runs in parallel with the cycles, and nothing waits for it. An evaluation that fails leaves its time out of the sums: it is not measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import structlog

from queuectl.control.leader.turns import in_turns
from queuectl.control.ports import Clock, ContainerSource
from queuectl.db.ports import UsageStore
from queuectl.domain.errors import SourceUnavailable, StoreUnavailable
from queuectl.domain.job_usage import ContainerSums, ContainerUse
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import LIVE, Entry
from queuectl.domain.quantity import CPU, MEMORY
from queuectl.domain.utilization import PodKey
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror

log = structlog.get_logger()

SCRAPES: Final = 4  # in a window, so that one of them can fail
_MILLICORES: Final = 1000


class ContainerWatch:
    """The evaluations of one leader. They keep nothing in memory: the rows have the time up to which they are measured."""

    def __init__(
        self,
        source: ContainerSource,
        mirror: Mirror,
        clock: Clock,
        *,
        evaluation_seconds: float,
        scrape_seconds: float,
        timeout: float,
    ) -> None:
        """``timeout``: seconds after which an evaluation times out; the rest as for :class:`UseWatch`."""
        self._source = source
        self._mirror = mirror
        self._clock = clock
        self._every = evaluation_seconds
        self._timeout = timeout
        self._window = max(evaluation_seconds, SCRAPES * scrape_seconds)

    async def run(self, usage: UsageStore, ledger: Callable[[], Ledger], epoch: int) -> None:
        """Evaluate until canceled.

        Raises:
            Fenced: another leader has taken over.
        """
        while True:
            try:
                sums = await self.sample(ledger())
                if sums:
                    await usage.measured(sums, self._window, epoch=epoch)
            except (SourceUnavailable, StoreUnavailable, TimeoutError) as error:
                why = str(error) or f"no answer within {self._timeout:.0f} s"
                log.warning("containers_not_measured", reason=why)
            await asyncio.sleep(self._every)

    async def sample(self, ledger: Ledger) -> dict[str, ContainerSums]:
        """The sums of each gang that runs over the last window, by uid.

        Raises:
            SourceUnavailable, TimeoutError: no answer.
        """
        at = self._clock()
        entries = list(ledger.entries(*LIVE))
        if not entries:
            return {}
        async with asyncio.timeout(self._timeout):
            uses = await self._source.containers(self._window, at)
        sums = {}
        async for entry in in_turns(entries):
            pods = tuple(_running(entry, self._mirror.pods_of(entry)))
            measured = gang_sums(pods, uses, self._window, at)
            if measured is not None:
                sums[entry.uid] = measured
        return sums


def _running(entry: Entry, pods: Iterable[PodRecord]) -> Iterable[PodRecord]:
    return (p for p in pods if p.attempt == entry.attempt and not p.terminal and p.node is not None)


def gang_sums(
    pods: Sequence[PodRecord], uses: Mapping[PodKey, ContainerUse], window: float, at: float
) -> ContainerSums | None:
    """The sums of a gang's pods over the ``window`` seconds before ``at``; None = none of them is measured.

    A pod counts as soon as the whole window is in its life: an earlier pod can have had its name.
    """
    measured = [
        (pod, use)
        for pod in pods
        if pod.started_at is not None and pod.started_at <= at - window
        if (use := uses.get((pod.namespace, pod.name))) is not None
    ]
    if not measured:
        return None
    return ContainerSums(
        until=at,
        pod_seconds=window * len(measured),
        cpu_seconds=window * sum(use.cores for _, use in measured),
        cpu_requested=window * sum(pod.requests.get(CPU, 0) for pod, _ in measured) / _MILLICORES,
        memory_seconds=window * sum(use.memory for _, use in measured),
        memory_requested=window * sum(pod.requests.get(MEMORY, 0) for pod, _ in measured),
        memory_peak=max(use.memory for _, use in measured),
    )
