"""Usage: GPU-hours allocated, used and wasted, and their cost, in a period, from a team to its users and their jobs, also as CSV.

The sums match the REST API's reports. docs/reference/usage-figures.md defines the figures.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.api.problems import wrong_parameter
from queuectl.api.reports import cost_report, usage_report, waits_report, waste_report
from queuectl.api.routes.usage import period_of, selected
from queuectl.domain.accounting import Accounting
from queuectl.domain.budgets import gpu_hours
from queuectl.domain.errors import BadInput
from queuectl.domain.identity import Right
from queuectl.domain.usage_reports import (
    DAY,
    By,
    ComparedReport,
    Grouping,
    Period,
    Report,
    ReportRow,
    UsageScope,
    total_of,
)
from queuectl.domain.words import spreadsheet_text
from queuectl.web.course import course_of, parts_of
from queuectl.web.site import PREFIX, AccessScope, Site, text
from queuectl.web.words import calendar, counted, day

SHOWN: Final = 100  # groups, by what they hold; the others are one row
SPANS: Final = {
    "24h": "24 hours",
    "168h": "7 days",
    "720h": "30 days",
    "2160h": "90 days",
    "month": "This month",
    "lastmonth": "Last month",
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

# ---- The address of the page


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """The report that an address names.

    Attributes:
        span: a key of :data:`SPANS`, or ``days`` with ``since`` and ``until``.
        since, until: days, as in ``2026-11-20``.
        scope: the names that narrow the report, by parameter and from the widest: ``namespace``, ``queue`` (a ClusterQueue), ``user``.
    """

    by: str
    span: str
    since: str
    until: str
    scope: Mapping[str, str]

    @classmethod
    def of(cls, request: Request) -> UsageQuery:
        """The query of a request, with defaults. An empty name is the name of workloads without one."""
        since, until, span = (text(request, name) for name in ("from", "to", "span"))
        known = span if span in SPANS else next(iter(SPANS))
        return cls(
            text(request, "by") or str(By.NAMESPACE),
            _DAYS if since or until else known,
            since,
            until,
            {name: text(request, name) for name in _SCOPES if name in request.query_params},
        )

    def address(self, path: str = "/usage", **changes: str) -> str:
        """The address of the same report with other parameters; a preset replaces the days."""
        days = {"from": self.since, "to": self.until}
        given = {"by": self.by, "span": self.span, **days, **self.scope, **changes}
        if given["span"] != _DAYS:
            given |= {"from": "", "to": ""}
        kept = {name: value for name, value in given.items() if value or name in _SCOPES}
        return f"{PREFIX}{path}?{urlencode(kept)}"

    def widened(self, levels: int) -> UsageQuery:
        """The report on the first names of the scope, by what the next of them narrowed."""
        names = list(self.scope)
        return replace(
            self, by=_LEVELS[names[levels]], scope={n: self.scope[n] for n in names[:levels]}
        )


_SCOPES: Final = ("namespace", "queue", "user")
_LEVELS: Final = {
    "namespace": By.NAMESPACE.value,
    "queue": By.CLUSTER_QUEUE.value,
    "user": By.USER.value,
}
_NARROWS: Final = {
    By.NAMESPACE: ("namespace", By.USER),
    By.CLUSTER_QUEUE: ("queue", By.USER),
    By.USER: ("user", By.WORKLOAD),
}
"""A group to the parameter that narrows the report to it, and what the narrower report is by."""


def _period(query: UsageQuery, now: float) -> Period:
    """Raises ApiProblem."""
    month = datetime.fromtimestamp(now, UTC).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    match query.span:
        case "month":
            return Period.around(month.timestamp(), now + 1)
        case "lastmonth":
            last = datetime.fromtimestamp(month.timestamp() - DAY, UTC).replace(day=1)
            return Period.around(last.timestamp(), month.timestamp())
        case span if span != _DAYS:
            return period_of(span, None, now)
    days = {"from": query.since, "to": query.until or day(now)}
    for name, given in days.items():
        if not _DAY.fullmatch(given):
            raise wrong_parameter(name, f"{name}: {given!r} is not a day in the form 2026-11-20")
    return period_of(f"{days['from']}T00:00:00Z", f"{days['to']}T23:59:59Z", now)


# ---- The report


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A row of the table.

    Attributes:
        address: of the narrower report, or of the workload; empty without one.
        before: allocated units in the period before; None where it is not compared.
    """

    name: str
    address: str
    sums: ReportRow
    before: int | None


@dataclass(frozen=True, slots=True)
class UsageTable:
    """The content of the page and of the CSV file."""

    query: UsageQuery
    compared: ComparedReport
    rows: tuple[UsageRow, ...]
    title: str

    @property
    def report(self) -> Report:
        """The report of the period."""
        return self.compared.report

    @property
    def total(self) -> UsageRow:
        """The sum of all rows."""
        before = self.compared.before
        return UsageRow(
            "Total", "", total_of(self.report), before.total if before is not None else None
        )

    @property
    def compares_rows(self) -> bool:
        """Whether rows are compared with the period before."""
        return self.compared.before is not None and self.report.grouping.recurs


def routes(site: Site) -> list[Route]:
    """Offer the page and its CSV file."""

    async def usage(request: Request) -> Response:
        config, access = await site.config(), await site.access(request)
        accounting = config.rules.accounting
        table = await _table(site, request, access, accounting)
        total = table.total.sums
        waste = waste_report(replace(table.report, rows=(total,), unlisted=None))
        return site.page(
            request,
            "usage.html",
            access,
            table=table,
            asked=table.query,
            spans=SPANS,
            groupings=_groupings(accounting),
            accounting=accounting,
            crumbs=list(_crumbs(table.query)),
            course=course_of(table.compared),
            parts_of=parts_of,
            no_comparison=_no_comparison(table, accounting, site.clock()),
            largest=max((row.sums.amounts.allocated for row in table.rows), default=0),
            wasted_gpus=waste.total.wasted_gpus,
            fleet=waste.fleet if access.nodes else (),
            sets_prices=await site.guard.may(request, Right("update", "configurations")),
        )

    async def download(request: Request) -> Response:
        config, access = await site.config(), await site.access(request)
        accounting = config.rules.accounting
        table = await _table(site, request, access, accounting)
        period = table.report.period
        name = re.sub(
            "[^a-z0-9-]+",
            "-",
            f"usage-by-{table.query.by}-{day(period.since)}-{day(period.until - 1)}".lower(),
        )
        headers = {
            "Content-Disposition": f'attachment; filename="{name}.csv"',
            "Cache-Control": "no-store",
        }
        return Response(_csv(table, accounting), media_type="text/csv", headers=headers)

    return [Route("/usage", usage), Route("/usage/csv", download)]


async def _table(
    site: Site, request: Request, access: AccessScope, accounting: Accounting
) -> UsageTable:
    """Raises ApiProblem when a parameter is wrong, or the caller may get no report."""
    seen = await site.guard.visible(request, "get", "reports", site.store.namespaces)
    if seen is not None and not seen:
        await site.guard.require(request, Right("get", "reports"))
    query = UsageQuery.of(request)
    try:
        grouping = Grouping.parse(query.by)
    except BadInput as error:
        raise wrong_parameter("by", str(error)) from error
    scope = UsageScope(
        selected(seen, query.scope.get("namespace")),
        query.scope.get("queue"),
        query.scope.get("user"),
    )
    period = _period(query, site.clock())
    try:
        compared = await site.store.usage.compared(period, grouping, scope, SHOWN)
    except BadInput as error:  # too many workloads
        raise wrong_parameter("since", str(error)) from error
    rows = await _rows(site, access, query, compared)
    return UsageTable(query, compared, rows, _groupings(accounting).get(query.by, query.by))


def _groupings(accounting: Accounting) -> dict[str, str]:
    """The groupings: value of the parameter and title."""
    labels = {str(Grouping(By.LABEL, key)): f"label {key}" for key in accounting.labels}
    return {str(by): name for by, name in _BY.items()} | labels


def _crumbs(query: UsageQuery) -> Iterator[tuple[str, str]]:
    """The wider reports, from the widest: text and address. The last one is the report itself, without an address."""
    for level, name in enumerate(("All", *query.scope.values())):
        address = query.widened(level).address() if level < len(query.scope) else ""
        yield name or _NO_NAME, address


def _no_comparison(table: UsageTable, accounting: Accounting, now: float) -> str:
    """Why the report is not compared with the period before; empty if it is, or if the ledger is empty."""
    since = table.compared.recorded_since
    before = table.report.period.before(table.report.as_of)
    if table.compared.before is not None or since is None:
        return ""
    if before.since < now - accounting.keep_days * DAY:
        return f"Usage is kept for {counted(accounting.keep_days, 'day')}, so it is not compared with the period before."
    return (
        f"Usage is recorded since {calendar(since)}, so it is not compared with the period before."
    )


async def _rows(
    site: Site, access: AccessScope, query: UsageQuery, compared: ComparedReport
) -> tuple[UsageRow, ...]:
    report, before = compared.report, compared.before
    addresses = await _addresses(site, access, query, report)
    rows = []
    for row, address in zip(report.rows, addresses, strict=True):
        known = before.groups.get(tuple(row.names.values()), 0) if before is not None else None
        rows.append(UsageRow(_name(row), address, row, known))
    if report.unlisted is not None:
        others = counted(report.groups - len(report.rows), "other")
        rows.append(UsageRow(others, "", report.unlisted, None))
    return tuple(rows)


def _name(row: ReportRow) -> str:
    names = row.names
    match names:
        case {"uid": _}:
            return f"{names['namespace']}/{names['name']}"
        case {"queue": queue}:
            return f"{names['namespace']}/{queue or _NO_NAME}"
        case {"hour": hour, **rest}:
            return ", ".join([*rest.values(), calendar(float(hour))])
        case _:
            (name,) = names.values()
            return name or _NO_NAME


async def _addresses(
    site: Site, access: AccessScope, query: UsageQuery, report: Report
) -> Sequence[str]:
    """The narrower reports of these groups, or the pages of workloads that the caller may see; empty without one."""
    by = report.grouping.by
    if by is By.WORKLOAD:
        uids = [row.names["uid"] for row in report.rows]
        known = await site.store.workload_names(uids)
        seen = {uid for uid, ref in known.items() if access.sees(ref.partition("/")[0])}
        return [f"{PREFIX}/workloads/{quote(u, safe='')}" if u in seen else "" for u in uids]
    if by not in _NARROWS or report.grouping.hourly:
        return [""] * len(report.rows)
    parameter, narrower = _NARROWS[by]
    return [
        query.address(**{"by": narrower.value, parameter: next(iter(row.names.values()))})
        for row in report.rows
    ]


# ---- The CSV file


def _csv(table: UsageTable, accounting: Accounting) -> str:
    """The rows of the page and their total, with the figures of the REST API."""
    rows = (*table.rows, table.total)
    report = replace(table.report, rows=tuple(row.sums for row in rows), unlisted=None)
    used, wasted = usage_report(report).items, waste_report(report).items
    waits, cost = waits_report(report).items, cost_report(report, accounting.currency).items
    file = io.StringIO()
    writer = csv.writer(file)
    columns = [
        *(table.title, "workloads", "GPU-hours allocated", "used", "idle", "stuck"),
        *("without samples", "efficiency", "wasted", "lost work", "waiting"),
    ]
    prices = [f"cost {accounting.currency}", f"wasted cost {accounting.currency}"]
    columns += prices if accounting.prices else []
    columns += ["allocated in the period before"] if table.compares_rows else []
    writer.writerow(map(spreadsheet_text, columns))
    for row, use, waste, wait, price in zip(rows, used, wasted, waits, cost, strict=True):
        cells: list[object] = [
            *(spreadsheet_text(row.name), use.workloads, use.allocated_gpu_hours),
            *(use.used_gpu_hours, use.idle_gpu_hours, use.stuck_gpu_hours),
            *(use.unknown_gpu_hours, use.efficiency, waste.wasted_gpu_hours),
            sum(waste.lost_gpu_hours_by_reason.values()),
            wait.waited_gpu_hours,
        ]
        cells += [price.cost, price.wasted_cost] if accounting.prices else []
        if table.compares_rows:
            cells.append("" if row.before is None else gpu_hours(row.before))
        writer.writerow(cells)
    return file.getvalue()
