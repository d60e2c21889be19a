"""The reports of shadow mode as texts and as an HTML page that loads nothing, and sentences about facts that no report shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from typing import Final

from queuectl.domain.shadow import GangRecord, ShadowHistory
from queuectl.domain.shadow_trace import FigureInterval, QueueWaits, SimulatedReport
from queuectl.domain.usage_reports import Period
from queuectl.domain.words import utc
from queuectl.simulate.report import Row, Table, html_table, page

MOST_GANGS: Final = 100
"""Gangs in one report."""
HOUR: Final = 3600.0
LIMITS: Final = (
    "These are observations, and no forecast of a gain: if the gang had started, the cluster would be in another state since then.",
    "A gang counts only between two observations that both show it. A change between two observations is not seen.",
    "Gangs that fit could still fail to start: image pulls, volumes and admission webhooks are not tried.",
    "Users react to a queue: they submit other jobs, or at other times. No report knows that.",
)
"""Facts that the observed figures do not show."""
SIMULATED_LIMITS: Final = (
    "The arrivals, the sizes and the run times come from the cluster. Users would react to other waiting times: they submit other jobs, or at other times.",
    "Each gang starts at once and starts well: image pulls, volumes, webhooks and admission checks take no time and never fail.",
    "The run time of a gang does not depend on its nodes, although it can: a gang in one rack can be faster.",
    "An interval is what the records permit. It has the shortest and the longest run times of gangs whose end no observation shows.",
    "Queues, quotas and priorities count as in the last observation, for the whole time.",
    "A node that was removed while it was empty is removed in the simulation too, although a gang can run on it there.",
    "Gangs that were created and ended between two observations are not known. Devices of resource claims are not simulated.",
)
"""Facts that the simulated figures do not show."""

_COLUMNS: Final[tuple[tuple[str, Callable[[GangRecord], str]], ...]] = (
    ("GANG", lambda one: f"{one.gang.namespace}/{one.gang.name}"),
    ("QUEUE", lambda one: one.gang.queue),
    ("GPUS", lambda one: f"{one.gang.gpus:,.10g}"),
    ("STATE", lambda one: one.state.value),
    ("WAITED H", lambda one: _hours(one.waited)),
    ("FITTED H", lambda one: _hours(one.fitted)),
    ("FITS SINCE", lambda one: _minute(one.fits_since)),
    ("STARTABLE GPU-H", lambda one: _hours(one.startable)),
    ("UNBOUND H", lambda one: _hours(one.unbound)),
    ("UNBOUND GPU-H", lambda one: _hours(one.unbound_gpus)),
    ("ADMITTED AT", lambda one: _minute(one.unbound_since)),
    ("REASON", lambda one: longest_reason(one) or "-"),
)


def longest_reason(record: GangRecord) -> str:
    """The code of the reason for which a gang waited longest; empty without one."""
    return max(sorted(record.reasons), key=lambda code: record.reasons[code], default="")


# ---- The simulated report


class SimulatedDifference(StrEnum):
    """The simulated figure compared with the observed one."""

    LOWER = "Lower"
    HIGHER = "Higher"
    NONE = "None"  # the intervals meet, so the records show no difference


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A figure of both sides. Times are in seconds, GPU-hours in GPU-seconds."""

    observed: FigureInterval
    simulated: FigureInterval

    @property
    def difference(self) -> SimulatedDifference:
        """Whether the simulated figure is certainly another one."""
        if self.observed.meets(self.simulated):
            return SimulatedDifference.NONE
        most = self.simulated.most
        lower = most is not None and self.observed.least is not None and most < self.observed.least
        return SimulatedDifference.LOWER if lower else SimulatedDifference.HIGHER


def compared_queues(report: SimulatedReport) -> Iterator[tuple[str, int, QueueWaits, QueueWaits]]:
    """Name of each LocalQueue, gangs that arrived, and the waiting times as observed and simulated."""
    for name, gangs in report.arrived.items():
        observed, mine = report.observed.queues.get(name), report.simulated.queues.get(name)
        if observed is not None and mine is not None:
            yield name, gangs, observed, mine


def compared_rows(report: SimulatedReport) -> list[Row]:
    """Name of each figure, observed, simulated, and the difference."""
    observed, mine = report.observed, report.simulated
    rows = [
        _compared("Utilization of the GPUs", observed.utilization, mine.utilization, _percent),
        _compared("GPU-hours free while gangs waited", observed.idle, mine.idle, _hours),
        _compared("Evictions", observed.evictions, mine.evictions, _number),
        *_compared_waits("all queues", observed.total, mine.total),
    ]
    for name, _, of_queue, under_queuectl in compared_queues(report):
        rows += _compared_waits(name, of_queue, under_queuectl)
    return rows


def _compared_waits(name: str, observed: QueueWaits, mine: QueueWaits) -> Iterator[Row]:
    yield _compared(f"Hours waited, p50, {name}", observed.p50, mine.p50, _hours)
    yield _compared(f"Hours waited, p95, {name}", observed.p95, mine.p95, _hours)
    yield _compared(f"Gangs that still wait, {name}", observed.waiting, mine.waiting, _number)


def _compared(
    title: str, observed: FigureInterval, mine: FigureInterval, text: Callable[[float], str]
) -> Row:
    difference = ComparedFigure(observed, mine).difference
    return title, _interval(observed, text), _interval(mine, text), _DIFFERENCES[difference]


_DIFFERENCES: Final = {
    SimulatedDifference.LOWER: "lower",
    SimulatedDifference.HIGHER: "higher",
    SimulatedDifference.NONE: "none that the records show",
}


def _interval(interval: FigureInterval, text: Callable[[float], str]) -> str:
    if interval.least is None:
        return "-"
    if interval.most is None:
        return f"at least {text(interval.least)}"
    least, most = text(interval.least), text(interval.most)
    return least if least == most else f"{least} to {most}"


def about_simulated(report: SimulatedReport) -> list[str]:
    """Sentences about the extent of the simulation."""
    span = f"{_minute(report.began)} to {_minute(report.until)} UTC"
    extent = f"One simulation from {span}, with {report.gangs:,} gangs"
    begin, end = f"{report.running_at_begin:,}", f"{report.unfinished:,}"
    sentences = [f"{extent}: {begin} ran at its start, and {end} had not finished at its end."]
    if not report.whole:
        sentences.append("It ends before the last observation, because the rest takes too long.")
    if report.gaps:
        sentences.append(f"Nothing was observed in {_hours(report.gaps)} hours of this time.")
    if report.left_out:
        sentences.append(f"{report.left_out:,} gangs are left out: their queues no longer exist.")
    if report.resized:
        sentences.append(
            f"{report.resized:,} gangs changed their size while they ran. They count with the size at their start."
        )
    return sentences


# ---- The page


def html(history: ShadowHistory, period: Period, simulated: SimulatedReport | None) -> str:
    """The page. The same records give the same bytes. ``simulated``: None = it does not exist yet."""
    span = f"{_minute(period.since)} to {_minute(period.until)} UTC"
    parts = [
        f"<p>{escape(span)}</p>\n",
        html_table(_totals(history)),
        html_table(_reasons(history)),
    ]
    rows = [tuple(cell(one) for _, cell in _COLUMNS) for one in history.gangs]
    titles = tuple(title for title, _ in _COLUMNS)
    title = f"Gangs ({len(rows):,} of {history.gang_count:,})"
    parts.append(html_table((title, titles, rows)))
    if history.last is not None and history.last.left_out:
        refused: list[Row] = [(text,) for text in history.last.left_out]
        parts.append(html_table(("Objects that are left out", ("OBJECT",), refused)))
    parts.append(_list(LIMITS))
    if simulated is not None:
        columns = ("", "OBSERVED", "SIMULATED", "DIFFERENCE")
        parts.append(html_table(("Simulated", columns, compared_rows(simulated))))
        parts.append(_list((*about_simulated(simulated), *SIMULATED_LIMITS)))
    return page("Shadow mode", "".join(parts))


def _list(sentences: Sequence[str]) -> str:
    listed = "".join(f"<li>{escape(text)}</li>" for text in sentences)
    return f"<ul>{listed}</ul>\n"


def _totals(history: ShadowHistory) -> Table:
    sums = history.total
    observed = sums.observed or 1.0
    rows: list[Row] = [
        ("Hours observed", _hours(sums.observed)),
        ("GPUs, mean", f"{sums.gpus / observed:,.1f}"),
        ("Free GPUs, mean", f"{sums.free / observed:,.1f}"),
        ("Hours in which a waiting gang fitted", _hours(sums.fitting)),
        ("GPU-hours free while a waiting gang fitted", _hours(sums.free_while_fitting)),
        ("of these, GPU-hours that the gangs that fitted request", _hours(sums.startable)),
        ("Hours of waiting, all gangs", _hours(sums.waiting)),
        ("GPU-hours requested by waiting gangs", _hours(sums.waiting_gpus)),
        ("Hours without a node after admission, all gangs", _hours(sums.unbound)),
        ("GPU-hours of pods without a node after admission", _hours(sums.unbound_gpus)),
    ]
    return ("Observed", ("", "SUM"), rows)


def _reasons(history: ShadowHistory) -> Table:
    reasons = history.total.reasons
    rows: list[Row] = [
        (code, _hours(reasons[code])) for code in sorted(reasons, key=lambda c: (-reasons[c], c))
    ]
    return ("Reasons that queuectl would have given", ("REASON", "HOURS OF WAITING"), rows)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _number(number: float) -> str:
    return f"{number:,.0f}"


def _hours(seconds: float) -> str:
    return f"{seconds / HOUR:,.2f}"


def _minute(at: float | None) -> str:
    return "-" if at is None else utc(at).strftime("%Y-%m-%d %H:%M:%S")
