"""The report of shadow mode. Each process answers from the database, also one that does not run in shadow mode."""

# No postponed annotations here: see routes/config.py.

import asyncio
import time
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Final

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from queuectl.api.access import Guard
from queuectl.api.openapi import Responses, responses
from queuectl.api.routes.usage import Since, Until, period_of
from queuectl.api.schemas import View, maybe
from queuectl.db.ports import ApiStore
from queuectl.domain.shadow import GangRecord, GangState, ShadowHistory, ShadowSums
from queuectl.domain.shadow_trace import FigureInterval, QueueWaits, SimulatedReport
from queuectl.domain.usage_reports import Period
from queuectl.domain.words import utc
from queuectl.objects.configuration.config_kinds import PREFIX
from queuectl.shadow.report import (
    HOUR,
    LIMITS,
    MOST_GANGS,
    SIMULATED_LIMITS,
    ComparedFigure,
    SimulatedDifference,
    compared_queues,
    html,
)

PATH: Final = f"{PREFIX}/reports/shadow"
_TAGS: Final[list[str | Enum]] = ["Reports"]
_PAGE: Final[Responses] = {200: {"content": {"text/html": {"schema": {"type": "string"}}}}}


class ShadowReasonView(View):
    """A reason that queuectl would have given."""

    code: str
    waiting_hours: float = Field(description="Hours of waiting, summed over gangs.")


class ShadowSumsView(View):
    """Sums between observations that follow each other."""

    observed_hours: float = Field(description="Hours between observations that follow each other.")
    gpus: float = Field(description="GPUs of all nodes, mean.")
    free_gpus: float = Field(description="Free GPUs on nodes that take pods, mean.")
    fitting_hours: float = Field(description="Hours in which at least one waiting gang fitted.")
    free_while_fitting_gpu_hours: float = Field(
        description="GPU-hours free while a waiting gang fitted."
    )
    startable_gpu_hours: float = Field(
        description="The part of them that the waiting gangs that fitted together request."
    )
    waiting_hours: float = Field(description="Hours of waiting, summed over gangs.")
    waiting_gpu_hours: float = Field(description="GPU-hours requested by waiting gangs.")
    unbound_hours: float = Field(
        description="Hours in which admitted gangs had pods without a node, summed over gangs."
    )
    unbound_gpu_hours: float = Field(description="GPU-hours of these pods.")
    reasons: list[ShadowReasonView] = Field(
        description="Of gangs that did not fit, the most frequent first."
    )


class ShadowHourView(View):
    hour: datetime = Field(description="Begin of the hour.")
    sums: ShadowSumsView


class ShadowGangView(View):
    """A gang that waited, or whose pods had no node after its admission, over all observations that show it so."""

    uid: str
    namespace: str
    name: str
    kind: str
    queue: str
    cluster_queue: str
    gpus: float
    pods: int
    state: GangState = Field(description="At the last observation.")
    first_seen: datetime
    last_seen: datetime
    waited_hours: float
    fitted_hours: float = Field(description="Hours for which it waited although it fitted.")
    fits_since: datetime | None = Field(
        description="First observation since which it fits; null = it does not fit now."
    )
    startable_gpu_hours: float = Field(description="GPU-hours of its pods while it fitted.")
    unbound_hours: float
    unbound_gpu_hours: float
    admitted_at: datetime | None = Field(
        description="Its admission by the other controller, while pods of it have no node; null = not now."
    )
    reasons: list[ShadowReasonView]
    message: str = Field(description="The last reason, as a sentence.")


class ShadowObservedView(View):
    """The state of the cluster at all observations."""

    total: ShadowSumsView
    hours: list[ShadowHourView]
    gangs: list[ShadowGangView] = Field(
        description="Gangs seen in the period, those with the most startable GPU-hours first; at most 100."
    )
    gang_count: int = Field(description="All gangs seen in the period.")
    left_out: list[str] = Field(
        description="Objects that could not be read at the last observation, with the reasons."
    )


class ShadowIntervalView(View):
    """A figure, as well as it is known."""

    least: float | None = Field(description="null = the figure is not known.")
    most: float | None = Field(description="null = no bound is known.")


class ShadowComparedView(View):
    """A figure as observed and as simulated."""

    observed: ShadowIntervalView
    simulated: ShadowIntervalView
    difference: SimulatedDifference = Field(
        description="The simulated figure compared with the observed one; None = their intervals meet."
    )


class ShadowWaitsView(View):
    """Waiting times of gangs, from their arrival or the begin until they ran or left, without the time in which they ran."""

    p50_hours: ShadowComparedView
    p95_hours: ShadowComparedView
    waiting: ShadowComparedView = Field(description="Gangs that wait at the end.")


class ShadowQueueView(ShadowWaitsView):
    queue: str = Field(description="Namespace and name of a LocalQueue.")
    gangs: int = Field(description="Gangs that arrived in the time of the simulation.")


class ShadowSimulatedView(View):
    """One continued simulation of queuectl from the first observation, with run times as observed, and the same figures as observed."""

    began: datetime
    until: datetime
    made_at: datetime
    whole: bool = Field(
        description="It reaches the last observation; otherwise the rest takes too long."
    )
    gangs: int
    running_at_begin: int = Field(description="Gangs that are in no waiting time.")
    unfinished: int = Field(description="Gangs that ran or waited at the end.")
    left_out: int = Field(description="Gangs whose queues no longer exist.")
    resized: int = Field(description="Gangs whose size changed while they ran.")
    gap_hours: float = Field(description="Hours without observations.")
    utilization: ShadowComparedView = Field(
        description="GPU-hours of running gangs, as a part of those and of the free ones."
    )
    idle_gpu_hours: ShadowComparedView = Field(
        description="GPU-hours that were free while a gang waited that requests GPUs."
    )
    evictions: ShadowComparedView
    total: ShadowWaitsView
    queues: list[ShadowQueueView]
    limits: list[str] = Field(description="Facts that the figures do not show.")


class ShadowReportView(View):
    """The two reports of shadow mode."""

    since: datetime
    until: datetime
    last_observation: datetime | None = Field(description="The last observation; null = none yet.")
    observed: ShadowObservedView
    limits: list[str] = Field(description="Facts that the observed figures do not show.")
    simulated: ShadowSimulatedView | None = Field(
        description="Always from the first observation, whatever the period; null = none yet."
    )


def add_routes(routes: APIRouter, guard: Guard, store: ApiStore) -> None:
    """Offer the paths."""
    needs = [guard.needs("get", "reports")]

    @routes.get(
        PATH,
        tags=_TAGS,
        operation_id="reportShadow",
        summary="Shadow mode: free GPUs while gangs waited that fitted, reasons, and a simulation of queuectl",
        description="For callers that are allowed to get reports in all namespaces.",
        responses=responses(),
        dependencies=needs,
    )
    async def report_shadow(since: Since = "168h", until: Until = None) -> ShadowReportView:
        period = period_of(since, until, time.time())
        history = await store.shadow.history(period, MOST_GANGS)
        return shadow_view(history, period, await store.shadow.simulated())

    @routes.get(
        f"{PATH}/page",
        tags=_TAGS,
        operation_id="reportShadowPage",
        summary="The same as an HTML page that loads nothing from other hosts",
        responses=_PAGE | responses(),
        response_class=Response,
        dependencies=needs,
    )
    async def report_shadow_page(since: Since = "168h", until: Until = None) -> Response:
        period = period_of(since, until, time.time())
        history = await store.shadow.history(period, MOST_GANGS)
        made = await asyncio.to_thread(html, history, period, await store.shadow.simulated())
        return Response(made, media_type="text/html; charset=utf-8")


def shadow_view(
    history: ShadowHistory, period: Period, simulated: SimulatedReport | None
) -> ShadowReportView:
    """The reports as the API answers them. ``simulated``: None = it does not exist yet."""
    last = history.last
    return ShadowReportView(
        since=utc(period.since),
        until=utc(period.until),
        last_observation=maybe(last.at if last is not None else None),
        observed=ShadowObservedView(
            total=_sums(history.total),
            hours=[
                ShadowHourView(hour=utc(hour), sums=_sums(sums))
                for hour, sums in history.hours.items()
            ],
            gangs=[_gang(one) for one in history.gangs],
            gang_count=history.gang_count,
            left_out=list(last.left_out) if last is not None else [],
        ),
        limits=list(LIMITS),
        simulated=_simulated(simulated) if simulated is not None else None,
    )


def _simulated(report: SimulatedReport) -> ShadowSimulatedView:
    observed, mine = report.observed, report.simulated
    return ShadowSimulatedView(
        began=utc(report.began),
        until=utc(report.until),
        made_at=utc(report.made_at),
        whole=report.whole,
        gangs=report.gangs,
        running_at_begin=report.running_at_begin,
        unfinished=report.unfinished,
        left_out=report.left_out,
        resized=report.resized,
        gap_hours=_hours(report.gaps),
        utilization=_compared(observed.utilization, mine.utilization, 1.0),
        idle_gpu_hours=_compared(observed.idle, mine.idle),
        evictions=_compared(observed.evictions, mine.evictions, 1.0),
        total=ShadowWaitsView(**_waits(observed.total, mine.total)),
        queues=[
            ShadowQueueView(queue=name, gangs=gangs, **_waits(of_queue, under_queuectl))
            for name, gangs, of_queue, under_queuectl in compared_queues(report)
        ],
        limits=list(SIMULATED_LIMITS),
    )


def _waits(observed: QueueWaits, mine: QueueWaits) -> dict[str, ShadowComparedView]:
    return {
        "p50_hours": _compared(observed.p50, mine.p50),
        "p95_hours": _compared(observed.p95, mine.p95),
        "waiting": _compared(observed.waiting, mine.waiting, 1.0),
    }


def _compared(
    observed: FigureInterval, mine: FigureInterval, unit: float = HOUR
) -> ShadowComparedView:
    """``unit``: of the answer, in units of the figures."""
    return ShadowComparedView(
        observed=_interval(observed, unit),
        simulated=_interval(mine, unit),
        difference=ComparedFigure(observed, mine).difference,
    )


def _interval(interval: FigureInterval, unit: float) -> ShadowIntervalView:
    ends = (interval.least, interval.most)
    least, most = (round(end / unit, 6) if end is not None else None for end in ends)
    return ShadowIntervalView(least=least, most=most)


def _sums(sums: ShadowSums) -> ShadowSumsView:
    observed = sums.observed or 1.0
    return ShadowSumsView(
        observed_hours=_hours(sums.observed),
        gpus=round(sums.gpus / observed, 3),
        free_gpus=round(sums.free / observed, 3),
        fitting_hours=_hours(sums.fitting),
        free_while_fitting_gpu_hours=_hours(sums.free_while_fitting),
        startable_gpu_hours=_hours(sums.startable),
        waiting_hours=_hours(sums.waiting),
        waiting_gpu_hours=_hours(sums.waiting_gpus),
        unbound_hours=_hours(sums.unbound),
        unbound_gpu_hours=_hours(sums.unbound_gpus),
        reasons=_reasons(sums.reasons),
    )


def _gang(record: GangRecord) -> ShadowGangView:
    gang = record.gang
    return ShadowGangView(
        uid=gang.uid,
        namespace=gang.namespace,
        name=gang.name,
        kind=gang.kind,
        queue=gang.queue,
        cluster_queue=gang.cluster_queue,
        gpus=gang.gpus,
        pods=gang.pods,
        state=record.state,
        first_seen=utc(record.first_at),
        last_seen=utc(record.last_at),
        waited_hours=_hours(record.waited),
        fitted_hours=_hours(record.fitted),
        fits_since=maybe(record.fits_since),
        startable_gpu_hours=_hours(record.startable),
        unbound_hours=_hours(record.unbound),
        unbound_gpu_hours=_hours(record.unbound_gpus),
        admitted_at=maybe(record.unbound_since),
        reasons=_reasons(record.reasons),
        message=record.message,
    )


def _reasons(reasons: Mapping[str, float]) -> list[ShadowReasonView]:
    ordered = sorted(reasons.items(), key=lambda one: (-one[1], one[0]))
    return [ShadowReasonView(code=code, waiting_hours=_hours(seconds)) for code, seconds in ordered]


def _hours(seconds: float) -> float:
    return round(seconds / HOUR, 6)
