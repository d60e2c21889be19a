"""``queuectl report``: usage, cost, waste and waiting times from the usage ledger, and the efficiency of the cluster now.

The output is a table, CSV or JSON. For shadow mode, it can also be an HTML page.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from queuectl.cli import complete, terminal
from queuectl.cli.client import DEFAULT_SERVER, Server, connect
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.options import OUTPUT
from queuectl.cli.render import Column, cell_text, emit_json, natural_width
from queuectl.domain.usage_reports import By, Grouping, ReportKind
from queuectl.domain.words import percent, spreadsheet_text
from queuectl.objects.configuration.config_kinds import PREFIX

Json = dict[str, Any]

_NONE: Final = "(none)"


class ReportFormat(StrEnum):
    """Formats of a report."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    HTML = "html"


def report_command(
    kind: Annotated[ReportKind, typer.Argument(metavar="REPORT", help="The report.")],
    by: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="Rows: queue, clusterqueue, cohort, namespace, user, flavor, price, hour, workload or label:KEY. Add ,hour for rows by hour. Default: queue. For efficiency: the key of a node label. Default: one row for all nodes.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Start: a duration before now (7d, 24h, 90m) or an RFC 3339 time. Default: 24h.",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="WHEN", help="End, in the same form. Default: now.")
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            help="Only workloads of this namespace, for usage, cost, waste and waits. Default: all namespaces.",
            autocompletion=complete.namespaces,
        ),
    ] = None,
    output: Annotated[ReportFormat, OUTPUT] = ReportFormat.TABLE,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Report sums over full hours, the efficiency of the cluster now, the Budgets in the current month, or what shadow mode observed.

    CSV and JSON have all fields of a row; the table has the main fields. Only shadow has -o html.
    """
    _refuse_options(kind, by, since or until, namespace, output)
    since, until = _period(since, "--since"), _period(until, "--until")
    if output is ReportFormat.HTML:
        with connect(server) as client:
            page = client.text(
                f"{PREFIX}/reports/{kind}/page",
                since=since,
                until=until,
            )
        typer.echo(page, nl=False)
        return
    grouping = Grouping.parse(by or "queue") if kind.summed else None
    with connect(server) as client:
        body = client.get(
            f"{PREFIX}/reports/{kind}",
            by=by,
            since=since,
            until=until,
            namespace=namespace,
        )
    match output:
        case ReportFormat.JSON:
            emit_json(body)
        case ReportFormat.CSV:
            _emit_csv(_lines(kind, body), _titles(kind, grouping, body))
        case ReportFormat.TABLE if kind is ReportKind.BUDGETS:
            _emit_budgets(body)
        case ReportFormat.TABLE if kind is ReportKind.SHADOW:
            _emit_shadow(body)
        case ReportFormat.TABLE if grouping is None:
            _emit_efficiency(body)
        case ReportFormat.TABLE:
            _emit_tables(kind, grouping, body)


def _period(when: str | None, option: str) -> str | None:
    """An end of the period as the REST API reads it, with hours instead of days.

    Raises:
        CommandFailed: it is neither a time nor a duration; the message names ``option``.
    """
    if when is None:
        return None
    from queuectl.cli.times import ago, hours  # its decoder is slow to import

    ago(when, option)
    return hours(when)


def _refuse_options(
    kind: ReportKind,
    by: str | None,
    span: str | None,
    namespace: str | None,
    output: ReportFormat,
) -> None:
    """Refuse options that a report does not have. Raises CommandFailed."""
    message = ""
    if kind in (ReportKind.EFFICIENCY, ReportKind.BUDGETS) and span:
        message = f"{kind} show the current state: --since and --until do not apply"
    elif kind is ReportKind.BUDGETS and by:
        message = "budgets: one row for each; --by does not apply"
    elif kind is ReportKind.SHADOW and by:
        message = "shadow: one row for each gang; --by does not apply"
    elif namespace is not None and not kind.summed:
        message = f"{kind}: --namespace does not apply"
    elif kind is not ReportKind.SHADOW and output is ReportFormat.HTML:
        message = f"-o html: {kind} is a table, CSV or JSON"
    if message:
        raise CommandFailed(message, Exit.BAD_INPUT)


# -- tables -----------------------------------------------------------------------------------------------------------


def _number(name: str, digits: int = 1) -> Callable[[Json], str]:
    return lambda item: "-" if item[name] is None else f"{item[name]:,.{digits}f}"


def _percent(row: Json) -> str:
    found = row["efficiency"]
    return "-" if found is None else percent(found)


def _count(row: Json) -> str:
    return "-" if row["workloads"] is None else str(row["workloads"])


_WORKLOADS: Final = Column("WORKLOADS", _count)
_ALLOCATED: Final = Column("ALLOCATED", _number("allocatedGpuHours"))
_UNKNOWN: Final = Column("UNKNOWN", _number("unknownGpuHours"))
_EFFICIENCY: Final = Column("EFFICIENCY", _percent)

_FIGURES: Final = {
    ReportKind.USAGE: (
        _WORKLOADS,
        _ALLOCATED,
        Column("USED", _number("usedGpuHours")),
        Column("IDLE", _number("idleGpuHours")),
        Column("STUCK", _number("stuckGpuHours")),
        _UNKNOWN,
        _EFFICIENCY,
    ),
    ReportKind.COST: (
        _WORKLOADS,
        _ALLOCATED,
        Column("COST", _number("cost", 2)),
        Column("WASTED COST", _number("wastedCost", 2)),
        Column("UNPRICED", _number("unpricedGpuHours")),
    ),
    ReportKind.WASTE: (
        _ALLOCATED,
        Column("WASTED", _number("wastedGpuHours")),
        Column("AS GPUS", _number("wastedGpus")),
        _UNKNOWN,
        _EFFICIENCY,
        Column("PREEMPTED", _number("lostToOthersGpuHours")),
        Column("STARTS", _number("lostInStartsGpuHours")),
        Column("OTHER", _number("lostOtherwiseGpuHours")),
    ),
    ReportKind.WAITS: (
        _WORKLOADS,
        Column("GPU-HOURS WAITED", _number("waitedGpuHours")),
        Column("HOURS EACH", _number("waitingHoursPerWorkload", 2)),
    ),
}

_UNITS: Final = {
    ReportKind.COST: "cost in {currency}, the rest in GPU-hours",
    ReportKind.WASTE: "in GPU-hours; as GPUs: wasted on average; lost work by cause: preemption or migration, failed starts, other",
    ReportKind.WAITS: "GPU-hours waited: requested GPUs × waiting time; hours each: the average of a workload",
}

_FLEET: Final = (
    Column("FLAVOR", lambda item: item["flavor"]),
    Column("GPUS", _number("gpus")),
    Column("FREE", _number("freeGpus")),
    Column("FRAGMENTED", _number("fragmentedGpus")),
    Column("INSIDE NODES", _number("fragmentedInsideNodesGpus")),
    Column("STRANDED", _number("strandedGpus")),
)

_CLUSTER: Final = (
    Column("PHYSICAL", _number("physicalGpuHours")),
    Column("ALLOCATED", _number("allocatedGpuHours")),
    Column("UNALLOCATED", _number("unallocatedGpuHours")),
    Column("UNMANAGED", _number("unmanagedGpuHours")),
    Column("UNHEALTHY", _number("unhealthyGpuHours")),
)

_NAMES: Final = {
    By.QUEUE: ("namespace", "queue"),
    By.CLUSTER_QUEUE: ("clusterQueue",),
    By.WORKLOAD: ("namespace", "name", "kind", "clusterQueue"),
}


def _names(grouping: Grouping) -> Iterator[Column]:
    if grouping.hourly:
        yield Column("HOUR", lambda item: _minute(item["group"]["hour"]))
    for name in _NAMES.get(grouping.by, (grouping.by.value,)):
        title = grouping.label if grouping.by is By.LABEL else name
        yield Column(title.upper() if title is name else title, _name(name))


def _name(name: str) -> Callable[[Json], str]:
    return lambda item: item["group"][name] or _NONE


def _emit_tables(kind: ReportKind, grouping: Grouping, body: Json) -> None:
    typer.echo(_headline(kind, body))
    items: list[Json] = body["items"]
    if not items:
        typer.echo("no usage and no pending workload in these hours", err=True)
    else:
        names = list(_names(grouping))
        _emit(names, _FIGURES[kind], items, body["total"])
    if body.get("fleet"):
        typer.echo(
            "\nAverage GPUs of the nodes; fragmented and stranded GPUs are free but not usable"
        )
        _emit(_FLEET[:1], _FLEET[1:], body["fleet"], None)
    if (body.get("cluster") or {}).get("physicalGpuHours"):
        typer.echo("\nGPU-hours of all nodes; the other columns add up to the first")
        _emit((), _CLUSTER, [body["cluster"]], None)


def _range(row: Json) -> str:
    """The efficiency, and the highest one that the unknown GPUs leave open."""
    if row["efficiency"] is None:
        return "-"
    least, most = (percent(row[name]) for name in ("efficiency", "highestEfficiency"))
    return least if least == most else f"{least} to {most}"


_PARTS: Final = (
    Column("TOTAL", _number("totalGpus")),
    Column("EFFECTIVE", _number("effectiveGpus")),
    Column("WASTED", _number("wastedGpus")),
    Column("IDLE", _number("idleGpus")),
    Column("FRAGMENTED", _number("fragmentedGpus")),
    Column("UNHEALTHY", _number("unhealthyGpus")),
    Column("UNALLOCATED", _number("unallocatedGpus")),
    Column("UNKNOWN", _number("unknownGpus")),
    Column("EFFICIENCY", _range),
)


def _emit_efficiency(body: Json) -> None:
    by = f" by {body['by']}" if body["by"] else ""
    typer.echo(f"efficiency{by}, {_minute(body['at'])} UTC")
    typer.echo("in GPUs; wasted = idle + fragmented + unhealthy + unallocated")
    names = [Column(body["by"] or "NODES", lambda item: item["value"] or _NONE)]
    _emit(names, _PARTS, body["items"] if body["by"] else (), body["total"])


_BUDGETS: Final = (
    Column("GRANTED", _number("grantedGpuHours")),
    Column("SPENT", _number("spentGpuHours")),
    Column("COMMITTED", _number("committedGpuHours")),
    Column("LEFT", _number("leftGpuHours")),
    Column("SPENT AT", lambda item: _minute(item["spentAt"]) if item["spentAt"] else "-"),
    Column("PENDING", _number("pendingGpuHours")),
)


def _emit_budgets(body: Json) -> None:
    typer.echo(f"budgets, {_minute(body['at'])} UTC")
    typer.echo("in GPU-hours; committed: what running gangs use until their ends")
    names = [
        Column("NAME", lambda item: item["name"]),
        Column("FOR", lambda item: f"{item['scope']} {item['holder']}"),
        Column("MONTH", lambda item: item["month"]),
    ]
    _emit(names, _BUDGETS, body["items"], None)


_GANGS: Final = (
    Column("GPUS", lambda item: f"{item['gpus']:,.10g}"),
    Column("STATE", lambda item: item["state"]),
    Column("WAITED", _number("waitedHours")),
    Column("FITTED", _number("fittedHours")),
    Column("STARTABLE", _number("startableGpuHours")),
    Column("UNBOUND", _number("unboundHours")),
    Column("REASON", lambda item: item["reasons"][0]["code"] if item["reasons"] else "-"),
)


def _emit_shadow(body: Json) -> None:
    observed = body["observed"]
    total = observed["total"]
    since, until = (_minute(body[name]) for name in ("since", "until"))
    typer.echo(f"shadow, {since} to {until} UTC; {total['observedHours']:,.1f} hours observed")
    typer.echo(
        f"GPU-hours free while a waiting gang fitted: {total['freeWhileFittingGpuHours']:,.1f}; "
        f"requested by the gangs that fitted: {total['startableGpuHours']:,.1f}"
    )
    typer.echo(
        f"GPU-hours of pods without a node after their admission: {total['unboundGpuHours']:,.1f}"
    )
    if observed["leftOut"]:
        typer.echo(f"objects that are left out: {len(observed['leftOut'])} (-o json names them)")
    typer.echo(
        f"\n{len(observed['gangs'])} of {observed['gangCount']} gangs; STARTABLE in GPU-hours, the others in hours"
    )
    names = [Column("GANG", lambda item: f"{item['namespace']}/{item['name']}")]
    _emit(names, _GANGS, observed["gangs"], None)
    for sentence in body["limits"]:
        typer.echo(f"note: {sentence}")
    if body["simulated"] is None:
        typer.echo("\nno simulation yet")
    else:
        _emit_simulated(body["simulated"])


def _emit_simulated(body: Json) -> None:
    since, until = (_minute(body[name]) for name in ("began", "until"))
    typer.echo(f"\nsimulated: the same arrivals under queuectl, {since} to {until} UTC")
    extent = f"{body['gangs']:,} gangs; {body['runningAtBegin']:,} ran at the start, {body['unfinished']:,} had not finished at the end"
    typer.echo(f"{extent}; {body['gapHours']:,.1f} hours without observations")
    if not body["whole"]:
        typer.echo("it ends before the last observation, because the rest takes too long")
    rows: list[Json] = [
        {"figure": "utilization, %", "scale": 100.0, **body["utilization"]},
        {"figure": "GPU-hours free while gangs waited", **body["idleGpuHours"]},
        {"figure": "evictions", **body["evictions"]},
    ]
    for waits in ({**body["total"], "queue": "all queues"}, *body["queues"]):
        for quantile in ("p50", "p95"):
            title = f"hours waited, {quantile}, {waits['queue']}"
            rows.append({"figure": title, **waits[f"{quantile}Hours"]})
        rows.append({"figure": f"gangs that still wait, {waits['queue']}", **waits["waiting"]})
    names = [Column("FIGURE", lambda item: item["figure"])]
    _emit(names, _COMPARED, rows, None)
    for sentence in body["limits"]:
        typer.echo(f"note: {sentence}")


def _interval(side: str) -> Callable[[Json], str]:
    def text(row: Json) -> str:
        scale = row.get("scale", 1.0)
        least, most = (
            f"{end * scale:,.1f}" if end is not None else None
            for end in (row[side]["least"], row[side]["most"])
        )
        if least is None:
            return _NONE
        if most is None:
            return f"at least {least}"
        return least if least == most else f"{least} to {most}"

    return text


_COMPARED: Final = (
    Column("OBSERVED", _interval("observed")),
    Column("SIMULATED", _interval("simulated")),
    Column("DIFFERENCE", lambda item: item["difference"].lower()),
)


def _headline(kind: ReportKind, body: Json) -> str:
    if body["asOf"] is None:
        return f"{kind} by {body['by']}: no data yet"
    since, until, as_of = (_minute(body[name]) for name in ("since", "until", "asOf"))
    upto = f", complete until {as_of}" if as_of < until else ""
    unit = _UNITS.get(kind, "in GPU-hours").format(currency=body.get("currency"))
    if _WORKLOADS in _FIGURES[kind] and body["total"]["workloads"] is None:
        unit += "\nno total of workloads: one can be in several rows"
    return f"{kind} by {body['by']}, {since} to {until} UTC{upto}\n{unit}"


def _minute(moment: str) -> str:
    return moment[:16].replace("T", " ")


def _emit(
    names: Sequence[Column], figures: Sequence[Column], rows: Iterable[Json], total: Json | None
) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_footer=total is not None)
    for number, column in enumerate(names):
        footer = "total" if number == 0 else ""
        table.add_column(column.title, footer=footer, no_wrap=True)
    for column in figures:
        footer = str(column.cell(total)) if total is not None else ""
        table.add_column(column.title, footer=footer, justify="right", no_wrap=True)
    for item in rows:
        table.add_row(*(cell_text(column.cell(item)) for column in (*names, *figures)))
    terminal.console(width=natural_width(table)).print(table)


# -- CSV --------------------------------------------------------------------------------------------------------------


_OF_WORKLOAD: Final = (
    "namespace",
    "kind",
    "name",
    "uid",
    "queue",
    "clusterQueue",
    "cohort",
    "user",
)


def _titles(kind: ReportKind, grouping: Grouping | None, body: Json) -> Sequence[str]:
    """The titles of a file without rows: a total has all figures."""
    from queuectl.client.types import BudgetStatusJson, ShadowGangJson

    if kind is ReportKind.BUDGETS:
        return [*BudgetStatusJson.__annotations__]
    if kind is ReportKind.SHADOW:
        return [*ShadowGangJson.__annotations__]
    names: set[str] = set()
    if grouping is not None:
        known = {**_NAMES, By.WORKLOAD: _OF_WORKLOAD}
        names = {*known.get(grouping.by, (grouping.by.value,))}
        names |= {By.HOUR.value} if grouping.hourly else set()
    of_group = [name for name in body["total"].get("group", ()) if name in names]
    return [*of_group, *_flat(body["total"])]


def _emit_csv(rows: Iterable[Json], titles: Sequence[str]) -> None:
    """Print a line for each row: names, labels as ``label_KEY``, figures, without a total. ``titles``: of a file without rows."""
    lines = [_flat(row) for row in rows]
    titles = list(dict.fromkeys(title for line in lines for title in line)) or titles
    writer = csv.DictWriter(sys.stdout, titles, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {
            title: spreadsheet_text(cell) if isinstance(cell, str) else cell
            for title, cell in line.items()
        }
        for line in lines
    )


def _lines(kind: ReportKind, body: Json) -> Iterable[Json]:
    """The rows of a report. The reasons of a gang and the top-ups of a Budget are in one cell each."""
    match kind:
        case ReportKind.SHADOW:
            for gang in body["observed"]["gangs"]:
                reasons = (f"{one['code']} {one['waitingHours']}" for one in gang["reasons"])
                yield {**gang, "reasons": ", ".join(reasons)}
        case ReportKind.BUDGETS:
            for budget in body["items"]:
                top_ups = (f"{one['name']} {one['gpuHours']}" for one in budget["topUps"])
                yield {**budget, "topUps": ", ".join(top_ups)}
        case _:
            yield from body["items"]


def _flat(row: Json) -> Json:
    group = dict(row.get("group") or {})
    labels = group.pop("labels", None) or {}
    line = {name: value for name, value in group.items() if value is not None}
    line |= {f"label_{key}": value for key, value in sorted(labels.items())}
    for name, value in row.items():
        if isinstance(value, dict):
            if name != "group":
                line |= {f"{name}_{key}": inner for key, inner in sorted(value.items())}
        else:
            line[name] = value
    return line
