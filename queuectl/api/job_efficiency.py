"""The efficiency of one workload as the API answers it: measured use against what it held or requested, GPU-hours, cost and nodes."""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import datetime
from typing import Final, NamedTuple

from pydantic import Field

from queuectl.api.ports import Diagnoser
from queuectl.api.reading import CurrentConfiguration
from queuectl.api.schemas import View, maybe
from queuectl.db.ports import ApiStore
from queuectl.domain.accounting import HOUR, UNITS, Amounts
from queuectl.domain.gpus import rounded
from queuectl.domain.job_usage import ContainerSums, JobUsage, UsageSources
from queuectl.domain.ledger import Entry, State
from queuectl.domain.use_curve import UseCurve
from queuectl.domain.utilization import GangUse
from queuectl.domain.words import utc

_DIGITS: Final = 6
_LINES: Final = 100  # of the history, in which the last attempt is


class GpuEfficiencyView(View):
    efficiency: float | None = Field(
        description="GPU time that was used / GPU time that was measured, 0 to 1; null = unknown."
    )
    measured: float = Field(description="The part of the allocated GPU time that was measured.")
    unknown: str | None = Field(description="Why the efficiency is unknown; null = it is known.")


class CpuEfficiencyView(View):
    efficiency: float | None = Field(
        description="CPU time that was used / CPU time that the same pods requested; above 1 for pods that use more. null = unknown."
    )
    measured: float = Field(description="The part of the run time of all pods that was measured.")
    unknown: str | None = Field(description="Why the efficiency is unknown; null = it is known.")
    used_cores_per_pod: float | None = Field(description="On average over the measured time.")
    requested_cores_per_pod: float | None = Field(description="The same average of the requests.")


class MemoryEfficiencyView(View):
    efficiency: float | None = Field(
        description="Mean working set / memory that the same pods requested; null = unknown."
    )
    measured: float = Field(description="The part of the run time of all pods that was measured.")
    unknown: str | None = Field(description="Why the efficiency is unknown; null = it is known.")
    used_bytes_per_pod: float | None = Field(
        description="Working set, on average over the measured time."
    )
    requested_bytes_per_pod: float | None = Field(description="The same average of the requests.")
    peak_bytes: float | None = Field(
        description="The largest sample of one pod. Shorter peaks between two samples are not seen."
    )


class GpuHoursView(View):
    allocated: float = Field(description="GPUs held × time. The other parts are parts of it.")
    productive: float = Field(description="allocated - lost")
    lost: float = Field(description="Work that evictions lost, restarts included.")
    used: float = Field(description="Allocated time × measured utilization.")
    unused: float = Field(description="Measured, and not used.")
    unknown: float = Field(description="Allocated without a measurement.")


class JobCostView(View):
    amount: float = Field(description="Of the allocated GPU-hours, at the prices of that time.")
    currency: str
    unpriced_gpu_hours: float = Field(description="GPU-hours without a price.")


class UtilizationPointView(View):
    since: datetime
    until: datetime
    gpus: float = Field(description="GPUs that it held, on average; 0 while it waited.")
    utilization: float | None = Field(
        description="GPU time that was used / GPU time that was measured; null = nothing was measured."
    )
    measured: float = Field(description="The part of the allocated GPU time that was measured.")


class JobEfficiencyView(View):
    """The resources that one workload used. All attempts count, except for ``nodes``."""

    workload: str = Field(description="namespace/name")
    uid: str
    kind: str
    state: State
    user: str = Field(description="Its user; empty = not known.")
    cluster_queue: str = Field(description="Empty = none.")
    pods: int
    gpus: float = Field(description="GPUs that it requests.")
    flavors: list[str] = Field(description="The ResourceFlavors of the GPUs that it held.")
    nodes: list[str] = Field(description="Nodes of the last attempt, by name.")
    attempts: int = Field(description="How often it was started.")
    evictions: int
    queued_at: datetime
    finished_at: datetime | None
    elapsed_seconds: float = Field(description="Time in which it held its nodes.")
    as_of: datetime | None = Field(
        description="GPU-hours and cost up to this time are included; null = none yet."
    )
    gpu: GpuEfficiencyView
    cpu: CpuEfficiencyView
    memory: MemoryEfficiencyView
    gpu_hours: GpuHoursView | None = Field(
        description="null = nothing is accounted for, or the hours are deleted already."
    )
    cost: JobCostView | None = Field(description="null = no price applied.")
    utilization: list[UtilizationPointView] = Field(
        description="Of its GPUs over time, oldest first, at most 96 points of equal length. They grow with its run time: a minute at first. The end can be one point late."
    )


class JobEfficiencies:
    """Reads the efficiency of workloads."""

    def __init__(
        self,
        store: ApiStore,
        stated: CurrentConfiguration,
        diagnoser: Diagnoser | None,
        sources: UsageSources,
    ) -> None:
        """``diagnoser``: None where no controller runs. ``sources``: of measurements that the controller has."""
        self._store = store
        self._stated = stated
        self._diagnoser = diagnoser
        self._sources = sources

    async def of(self, entry: Entry) -> JobEfficiencyView:
        """The efficiency of one workload, running or finished.

        Can raise StoreUnavailable.
        """
        usage = await self._store.usage.job(entry.uid)
        currency = (await self._stated.config()).rules.accounting.currency
        use = self._diagnoser.gang_use(entry.uid) if self._diagnoser is not None else None
        nodes = await self._nodes(entry)
        return job_efficiency(entry, usage, nodes, use, self._sources, currency, time.time())

    async def _nodes(self, entry: Entry) -> frozenset[str]:
        """The nodes of the last attempt: of its placement, and of those in the last lines of its history."""
        lines = await self._store.newest_lines(entry.uid, _LINES)
        placements = [entry.placement]
        placements += [line.placement for line in lines if line.attempt == entry.attempt]
        podsets = (podset for each in placements if each is not None for podset in each.podsets)
        return frozenset(node for podset in podsets for node, _ in podset.nodes)


def job_efficiency(
    entry: Entry,
    usage: JobUsage,
    nodes: Collection[str],
    use: GangUse | None,
    sources: UsageSources,
    currency: str,
    now: float,
) -> JobEfficiencyView:
    """The answer.

    Args:
        entry: the workload.
        usage: what the ledger has of it.
        nodes: of its last attempt.
        use: the last evaluation of its GPUs, while it runs.
        sources: of measurements that the controller has.
        currency: of the prices.
        now: unix seconds.
    """
    total, elapsed, sums = usage.amounts, entry.executed(now), usage.containers
    if sums is None:
        cpu = memory = _unmeasured(entry, sources)
    else:
        cpu = _pod_use(entry, sums, elapsed, "CPU", sums.cpu_seconds, sums.cpu_requested)
        memory = _pod_use(
            entry, sums, elapsed, "memory", sums.memory_seconds, sums.memory_requested
        )
    return JobEfficiencyView(
        workload=entry.ref,
        uid=entry.uid,
        kind=entry.kind,
        state=entry.state,
        user=entry.user,
        cluster_queue=entry.cluster_queue,
        pods=entry.pods,
        gpus=rounded(entry.gpus),
        flavors=list(usage.flavors),
        nodes=sorted(nodes),
        attempts=entry.attempt,
        evictions=entry.evictions,
        queued_at=utc(entry.queued_at),
        finished_at=maybe(entry.finished_at),
        elapsed_seconds=round(elapsed, 3),
        as_of=maybe(usage.as_of),
        gpu=_gpu(entry, total, use, sources),
        cpu=_cpu(cpu),
        memory=_memory(memory, sums.memory_peak if sums is not None else None),
        gpu_hours=_gpu_hours(total, usage.lost) if total.allocated else None,
        cost=_cost(total, currency) if total.unpriced < total.allocated else None,
        utilization=_points(usage.curve) if usage.curve is not None else [],
    )


def _gpu(
    entry: Entry, total: Amounts, use: GangUse | None, sources: UsageSources
) -> GpuEfficiencyView:
    measured = total.allocated - total.unknown
    if measured > 0:
        part = _ratio(measured, total.allocated)
        return GpuEfficiencyView(
            efficiency=_ratio(total.used, measured), measured=part, unknown=None
        )
    if not entry.gpus:
        why = "it requests no GPU"
    elif not entry.attempt:
        why = "it has not started"
    elif not sources.gpus:
        why = "no source of GPU utilization is configured"
    elif use is not None and use.utilization is None:
        why = use.text
    elif not total.allocated:
        why = "the usage ledger has no hours of it"
    else:
        why = "no valid sample of its GPUs"
    return GpuEfficiencyView(efficiency=None, measured=0.0, unknown=why)


def _cpu(use: _PodUse) -> CpuEfficiencyView:
    return CpuEfficiencyView(
        efficiency=use.efficiency,
        measured=use.measured,
        unknown=use.unknown,
        used_cores_per_pod=use.used,
        requested_cores_per_pod=use.requested,
    )


def _memory(use: _PodUse, peak: float | None) -> MemoryEfficiencyView:
    return MemoryEfficiencyView(
        efficiency=use.efficiency,
        measured=use.measured,
        unknown=use.unknown,
        used_bytes_per_pod=use.used,
        requested_bytes_per_pod=use.requested,
        peak_bytes=peak,
    )


class _PodUse(NamedTuple):
    """The use of one resource by all pods. ``used``, ``requested``: the means of a pod; None = not measured."""

    efficiency: float | None
    measured: float
    unknown: str | None
    used: float | None
    requested: float | None


def _unmeasured(entry: Entry, sources: UsageSources) -> _PodUse:
    return _PodUse(None, 0.0, _why_unmeasured(entry, sources), None, None)


def _pod_use(
    entry: Entry, sums: ContainerSums, elapsed: float, name: str, used: float, requested: float
) -> _PodUse:
    """``used``, ``requested``: over the measured time of all pods."""
    return _PodUse(
        efficiency=_ratio(used, requested) if requested else None,
        measured=min(_ratio(sums.pod_seconds, elapsed * entry.pods), 1.0),
        unknown=None if requested else f"its pods request no {name}",
        used=_mean(used, sums),
        requested=_mean(requested, sums),
    )


def _why_unmeasured(entry: Entry, sources: UsageSources) -> str:
    if not entry.attempt:
        return "it has not started"
    if not sources.containers:
        return "no Prometheus is configured"
    return "Prometheus has no sample of its pods"


def _mean(total: float, sums: ContainerSums) -> float:
    return round(total / sums.pod_seconds, _DIGITS) if sums.pod_seconds else 0.0


def _ratio(part: float, whole: float) -> float:
    return round(part / whole, _DIGITS) if whole else 0.0


def _gpu_hours(total: Amounts, lost: float) -> GpuHoursView:
    allocated = _hours(total.allocated)
    gone = round(min(lost / HOUR, allocated), _DIGITS)
    return GpuHoursView(
        allocated=allocated,
        productive=round(allocated - gone, _DIGITS),
        lost=gone,
        used=_hours(total.used),
        unused=_hours(total.allocated - total.unknown - total.used),
        unknown=_hours(total.unknown),
    )


def _points(curve: UseCurve) -> list[UtilizationPointView]:
    return [
        UtilizationPointView(
            since=utc(point.start),
            until=utc(point.end),
            gpus=round(point.held, 2),
            utilization=round(point.utilization, 4) if point.utilization is not None else None,
            measured=round(point.measured, 4),
        )
        for point in curve.points()
    ]


def _hours(units: int) -> float:
    return round(units / (HOUR * UNITS), _DIGITS)


def _cost(total: Amounts, currency: str) -> JobCostView:
    return JobCostView(
        amount=round(total.cost, _DIGITS),
        currency=currency,
        unpriced_gpu_hours=_hours(total.unpriced),
    )
