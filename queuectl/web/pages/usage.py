"""Usage: GPU-hours allocated, used and wasted, and their cost, in a period, grouped by namespace, queue, user or others.

The sums match the REST API's reports. docs/reference/usage-figures.md defines the figures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.api.problems import wrong_parameter
from queuectl.api.reports import total_of, waste_report
from queuectl.api.routes.usage import period_of
from queuectl.domain.accounting import Accounting
from queuectl.domain.errors import BadInput
from queuectl.domain.identity import Right
from queuectl.domain.usage_reports import By, Grouping, Period, Report, ReportRow
from queuectl.web.site import PREFIX, AccessScope, Site, text
from queuectl.web.words import moment

SHOWN: Final = 100  # groups, by what they hold; the others are one row
SPANS: Final = {
    "24h": "last 24 hours",
    "168h": "last 7 days",
    "720h": "last 30 days",
    "2160h": "last 90 days",
    "days": "days from … to …",
}
_DAYS: Final = "days"
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_BY: Final = {
    By.NAMESPACE: "namespace",
    By.QUEUE: "LocalQueue",
    By.USER: "user",
    By.CLUSTER_QUEUE: "ClusterQueue",
    By.COHORT: "cohort",
    By.FLAVOR: "flavor",
    By.PRICE: "price",
    By.WORKLOAD: "workload",
}
_NO_NAME: Final = "(none)"


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A row of the table. ``address``: of a page about it; empty without one."""

    name: str
    address: str
    sums: ReportRow

    @property
    def unused(self) -> int:
        """Units with samples that busy gangs left unused: neither used, nor idle or stuck."""
        held = self.sums.amounts
        return max(0, held.allocated - held.used - held.idle - held.stuck - held.unknown)


def routes(site: Site) -> list[Route]:
    """Offer the page."""

    async def usage(request: Request) -> Response:
        config = await site.config()
        access = await site.access(request)
        asked = {name: text(request, name) for name in ("by", "span", "from", "to")}
        asked["by"] = asked["by"] or str(By.NAMESPACE)
        asked["span"] = asked["span"] if asked["span"] in SPANS else next(iter(SPANS))
        report = await _report(site, request, asked)
        accounting = config.rules.accounting
        return site.page(
            request,
            "usage.html",
            access,
            asked=asked,
            spans=SPANS,
            groupings=_groupings(accounting),
            accounting=accounting,
            report=report,
            **await _context(site, access, report),
        )

    return [Route("/usage", usage)]


async def _report(site: Site, request: Request, query: dict[str, str]) -> Report:
    """Raises ApiProblem when a parameter is wrong, or the caller may get no report."""
    seen = await site.guard.visible(request, "get", "reports", site.store.namespaces)
    if seen is not None and not seen:
        await site.guard.require(request, Right("get", "reports"))
    try:
        grouping = Grouping.parse(query["by"])
    except BadInput as error:
        raise wrong_parameter("by", str(error)) from error
    period = _period(query, site.clock())
    try:
        return await site.store.usage.report(period, grouping, seen)
    except BadInput as error:
        raise wrong_parameter("span", str(error)) from error


def _period(query: dict[str, str], now: float) -> Period:
    """Raises ApiProblem."""
    if query["span"] != _DAYS:
        return period_of(query["span"], None, now)
    for name in ("from", "to"):
        if not _DAY.fullmatch(query[name]):
            raise wrong_parameter(
                name, f"{name}: {query[name]!r} is not a day in the form 2026-11-20"
            )
    return period_of(f"{query['from']}T00:00:00Z", f"{query['to']}T23:59:59Z", now)


def _groupings(accounting: Accounting) -> dict[str, str]:
    """The groupings: value of the parameter and title."""
    labels = {str(Grouping(By.LABEL, key)): f"label {key}" for key in accounting.labels}
    return {str(by): name for by, name in _BY.items()} | labels


async def _context(site: Site, access: AccessScope, report: Report) -> dict[str, Any]:
    total = total_of(report)
    rows = sorted(report.rows, key=lambda row: -row.amounts.allocated)
    shown, others = rows[:SHOWN], rows[SHOWN:]
    addresses = await _addresses(site, access, report.grouping.by, shown)
    groups = [
        UsageRow(_name(row), address, row) for row, address in zip(shown, addresses, strict=True)
    ]
    if others:
        rest = total_of(replace(report, rows=tuple(others)))
        groups.append(UsageRow(f"{len(others)} others", "", rest))
    waste = waste_report(replace(report, rows=(total,)))
    return {
        "total": total,
        "groups": groups,
        "largest": max((group.sums.amounts.allocated for group in groups), default=0),
        "wasted_gpus": waste.total.wasted_gpus,
        "fleet": waste.fleet,
    }


def _name(row: ReportRow) -> str:
    names = row.names
    match names:
        case {"uid": _}:
            return f"{names['namespace']}/{names['name']}"
        case {"queue": queue}:
            return f"{names['namespace']}/{queue or _NO_NAME}"
        case {"hour": hour, **rest}:
            return ", ".join([*rest.values(), moment(float(hour))])
        case _:
            (name,) = names.values()
            return name or _NO_NAME


async def _addresses(
    site: Site, access: AccessScope, by: By, rows: Sequence[ReportRow]
) -> list[str]:
    """The pages of these groups; empty without one that the caller may see."""
    if by is By.WORKLOAD:
        uids = [row.names["uid"] for row in rows]
        known = await site.store.workload_names(uids)
        seen = {uid for uid, ref in known.items() if access.sees(ref.partition("/")[0])}
        return [f"{PREFIX}/workloads/{quote(u, safe='')}" if u in seen else "" for u in uids]
    return [_address(access, by, row) for row in rows]


def _address(access: AccessScope, by: By, row: ReportRow) -> str:
    names = row.names
    if by is By.NAMESPACE and access.sees(names["namespace"]):
        return f"{PREFIX}/workloads?namespace={quote(names['namespace'])}"
    if by is By.CLUSTER_QUEUE and access.queues and names["cluster_queue"]:
        return f"{PREFIX}/queues/{quote(names['cluster_queue'], safe='')}"
    return ""
