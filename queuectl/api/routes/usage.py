"""Reports of the usage ledger: usage, cost, waste and waits.

A caller who may get reports in some namespaces only gets the sums of these namespaces, and nothing about the nodes.
"""

# No postponed annotations here: see routes/config.py.

import time
from dataclasses import replace
from datetime import datetime
from enum import Enum
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request

from queuectl.api.access import Guard
from queuectl.api.openapi import responses
from queuectl.api.params import OfClusterQueue, OfNamespace, OfQueue
from queuectl.api.problems import ProblemType, wrong_parameter
from queuectl.api.reading import CurrentConfiguration
from queuectl.api.reports import (
    CostReport,
    UsageReport,
    WaitsReport,
    WasteReport,
    cost_report,
    usage_report,
    waits_report,
    waste_report,
)
from queuectl.api.usage_history import (
    LONGEST,
    UsageHistory,
    UsageHistoryView,
    history_view,
)
from queuectl.db.ports import ApiStore
from queuectl.domain.errors import BadInput
from queuectl.domain.identity import Right
from queuectl.domain.usage_reports import Grouping, Period, QueueHour, Report, UsageScope
from queuectl.objects.configuration.config_kinds import PREFIX
from queuectl.objects.errors import RequestError
from queuectl.objects.times import read_duration

PATH: Final = f"{PREFIX}/reports"
_TAGS: Final[list[str | Enum]] = ["Reports"]
_SEE_NODES: Final = Right("list", "nodes")
_LONGEST: Final = 366 * 86400.0  # seconds
_LAST: Final = 4_102_444_800.0  # the year 2100
_WHEN: Final = "A time (RFC 3339) or how long ago (24h, 90m); full hours are reported."

OfGroup = Annotated[
    str,
    Query(
        alias="by",
        max_length=330,
        description="queue, clusterqueue, cohort, namespace, user, flavor, price, hour, workload or label:KEY."
        " Append `,hour` (as in workload,hour) for a row for each hour.",
    ),
]
Hours = Annotated[
    int, Query(ge=1, le=LONGEST, description="Number of hours, with the current one.")
]
Since = Annotated[str, Query(max_length=40, description=_WHEN)]
Until = Annotated[str | None, Query(max_length=40, description=f"{_WHEN} Default: now.")]


def add_routes(
    routes: APIRouter,
    guard: Guard,
    store: ApiStore,
    stated: CurrentConfiguration,
    history: UsageHistory,
) -> None:
    """Offer the paths."""
    _add_history(routes, guard, store, history)

    async def made(
        request: Request,
        by: OfGroup = "queue",
        since: Since = "24h",
        until: Until = None,
        namespace: OfNamespace = None,
    ) -> Report:
        try:
            grouping = Grouping.parse(by)
        except BadInput as error:
            raise wrong_parameter("by", str(error)) from error
        period = period_of(since, until, time.time())
        visible = await guard.visible(request, "get", "reports", store.namespaces)
        scope = UsageScope(selected(visible, namespace))
        try:
            return await store.usage.report(period, grouping, scope)
        except BadInput as error:
            raise wrong_parameter("since", str(error)) from error

    RequestedReport = Annotated[Report, Depends(made)]  # noqa: N806 - a type

    @routes.get(
        f"{PATH}/usage",
        tags=_TAGS,
        operation_id="reportUsage",
        summary="GPU-hours allocated, used, idle, stuck and unknown",
        responses=responses(),
    )
    async def report_usage(report: RequestedReport) -> UsageReport:
        return usage_report(report)

    @routes.get(
        f"{PATH}/cost",
        tags=_TAGS,
        operation_id="reportCost",
        summary="Cost of the allocated GPU-hours",
        responses=responses(ProblemType.NOT_KNOWN_YET),
    )
    async def report_cost(report: RequestedReport) -> CostReport:
        return cost_report(report, (await stated.config()).rules.accounting.currency)

    @routes.get(
        f"{PATH}/waste",
        tags=_TAGS,
        operation_id="reportWaste",
        summary="GPU-hours that were not used, lost work, and free GPUs that no gang can use",
        responses=responses(),
    )
    async def report_waste(request: Request, report: RequestedReport) -> WasteReport:
        if not await guard.may(request, _SEE_NODES):
            report = replace(report, fleet=(), cluster=None)
        return waste_report(report)

    @routes.get(
        f"{PATH}/waits",
        tags=_TAGS,
        operation_id="reportWaits",
        summary="How long gangs waited, and for how many GPUs",
        responses=responses(),
    )
    async def report_waits(report: RequestedReport) -> WaitsReport:
        return waits_report(report)


def _add_history(routes: APIRouter, guard: Guard, store: ApiStore, history: UsageHistory) -> None:
    @routes.get(
        f"{PATH}/history",
        tags=_TAGS,
        operation_id="reportHistory",
        summary="GPUs allocated, used and pending, on average in each of the last hours",
        description="Includes the namespaces in which you are allowed to get reports.",
        responses=responses(),
    )
    async def report_history(
        request: Request,
        hours: Hours = 24,
        namespace: OfNamespace = None,
        queue: OfQueue = None,
        cluster_queue: OfClusterQueue = None,
    ) -> UsageHistoryView:
        visible = await guard.visible(request, "get", "reports", store.namespaces)
        if visible is not None and not visible:
            return history_view(())

        def wanted(row: QueueHour) -> bool:
            return (
                (visible is None or row.namespace in visible)
                and namespace in (None, row.namespace)
                and queue in (None, row.queue)
                and cluster_queue in (None, row.cluster_queue)
            )

        everything = (
            visible is None
            and namespace is queue is cluster_queue is None
            and await guard.may(request, _SEE_NODES)
        )
        return history_view(await history.points(time.time(), hours, wanted, capacity=everything))


def selected(visible: frozenset[str] | None, namespace: str | None) -> frozenset[str] | None:
    """The namespaces of a report: of the visible ones (None = all), only the one that the caller selects."""
    if namespace is None:
        return visible
    return frozenset({namespace}) if visible is None or namespace in visible else frozenset()


def period_of(since: str, until: str | None, now: float) -> Period:
    """The full hours of a span as it is asked for: times (RFC 3339), or how long before ``now`` (unix seconds).

    Raises:
        Problem: a text is neither, or the span is empty or too long.
    """
    start = _time("since", since, now)
    end = now if until is None else _time("until", until, now)
    if end <= start:
        raise wrong_parameter("until", "until: must be later than since")
    if end - start > _LONGEST:
        raise wrong_parameter("since", "since: a report is of at most 366 days")
    return Period.around(start, end)


def _time(field: str, text: str, now: float) -> float:
    at = _moment(field, text, now)
    if at is None or not 0 <= at < _LAST:
        reason = (
            f"{field}: {text!r} is neither a time like 2026-11-20T00:00:00Z nor a duration like 24h"
        )
        raise wrong_parameter(field, reason)
    return at


def _moment(field: str, text: str, now: float) -> float | None:
    try:
        return now - read_duration(text, field)
    except RequestError:
        pass
    try:
        at = datetime.fromisoformat(text.replace(" ", "+"))  # a plus sign that was not escaped
        return at.timestamp() if at.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
