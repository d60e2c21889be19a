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
from queuectl.api.problems import ProblemType
from queuectl.api.routes.usage import Since, Until, period_of
from queuectl.api.schemas import View, maybe, moment
from queuectl.db.ports import ApiStore
from queuectl.domain.shadow import GangRecord, GangState, ShadowHistory, ShadowSums
from queuectl.domain.usage_reports import Period
from queuectl.objects.configuration.config_kinds import PREFIX
from queuectl.shadow.report import HOUR, LIMITS, MOST_GANGS, html

PATH: Final = f"{PREFIX}/reports/shadow"
_TAGS: Final[list[str | Enum]] = ["Reports"]
_PAGE: Final[Responses] = {200: {"content": {"text/html": {"schema": {"type": "string"}}}}}


class ShadowReasonView(View):
    """A reason that queuectl would have given."""

    code: str
    waiting_hours: float = Field(description="Hours of waiting, summed over gangs.")


class ShadowSumsView(View):
    """Sums between moments that follow each other."""

    observed_hours: float = Field(description="Hours between moments that follow each other.")
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
    """A gang that waited, or whose pods had no node after its admission, over all moments that show it so."""

    uid: str
    namespace: str
    name: str
    kind: str
    queue: str
    cluster_queue: str
    gpus: float
    pods: int
    state: GangState = Field(description="At the last moment.")
    first_seen: datetime
    last_seen: datetime
    waited_hours: float
    fitted_hours: float = Field(description="Hours for which it waited although it fitted.")
    fits_since: datetime | None = Field(
        description="First moment since which it fits; null = it does not fit now."
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
    """The state of the cluster at all moments."""

    total: ShadowSumsView
    hours: list[ShadowHourView]
    gangs: list[ShadowGangView] = Field(
        description="Gangs seen in the period, those with the most startable GPU-hours first; at most 100."
    )
    gang_count: int = Field(description="All gangs seen in the period.")
    left_out: list[str] = Field(
        description="Objects that could not be read at the last moment, with the reasons."
    )


class ShadowReportView(View):
    """The observations of shadow mode."""

    since: datetime
    until: datetime
    last_moment: datetime | None = Field(description="The last observation; null = none yet.")
    observed: ShadowObservedView
    limits: list[str] = Field(description="Facts that the figures do not show.")


def add_routes(routes: APIRouter, guard: Guard, store: ApiStore) -> None:
    """Offer the paths."""
    needs = [guard.needs("get", "reports")]

    @routes.get(
        PATH,
        tags=_TAGS,
        operation_id="reportShadow",
        summary="Shadow mode: GPU-hours free while a waiting gang fitted, admitted gangs without nodes, and reasons",
        description="For callers that are allowed to get reports in all namespaces.",
        responses=responses(ProblemType.INVALID_PARAMETER),
        dependencies=needs,
    )
    async def report_shadow(since: Since = "168h", until: Until = None) -> ShadowReportView:
        period = period_of(since, until, time.time())
        return shadow_view(await store.shadow.history(period, MOST_GANGS), period)

    @routes.get(
        f"{PATH}/page",
        tags=_TAGS,
        operation_id="reportShadowPage",
        summary="The same as an HTML page that loads nothing from other hosts",
        responses=_PAGE | responses(ProblemType.INVALID_PARAMETER),
        response_class=Response,
        dependencies=needs,
    )
    async def report_shadow_page(since: Since = "168h", until: Until = None) -> Response:
        period = period_of(since, until, time.time())
        history = await store.shadow.history(period, MOST_GANGS)
        made = await asyncio.to_thread(html, history, period)
        return Response(made, media_type="text/html; charset=utf-8")


def shadow_view(history: ShadowHistory, period: Period) -> ShadowReportView:
    """The report as the API answers it."""
    last = history.last
    return ShadowReportView(
        since=moment(period.since),
        until=moment(period.until),
        last_moment=maybe(last.at if last is not None else None),
        observed=ShadowObservedView(
            total=_sums(history.total),
            hours=[
                ShadowHourView(hour=moment(hour), sums=_sums(sums))
                for hour, sums in history.hours.items()
            ],
            gangs=[_gang(one) for one in history.gangs],
            gang_count=history.gang_count,
            left_out=list(last.left_out) if last is not None else [],
        ),
        limits=list(LIMITS),
    )


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
        first_seen=moment(record.first_at),
        last_seen=moment(record.last_at),
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
