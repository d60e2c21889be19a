"""The report of shadow mode as an HTML page that loads nothing, and sentences about facts that no report shows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from html import escape
from typing import Final

from queuectl.domain.shadow import GangRecord, ShadowHistory
from queuectl.domain.usage_reports import Period
from queuectl.simulate.report import Row, Table, html_table, page

MOST_GANGS: Final = 100
"""Gangs in one report."""
HOUR: Final = 3600.0
LIMITS: Final = (
    "These are observations, and no forecast of a gain: if the gang had started, the cluster would be in another state since then.",
    "A gang counts only between two moments that both show it. A change between two moments is not seen.",
    "Gangs that fit could still fail to start: image pulls, volumes and admission webhooks are not tried.",
    "Users react to a queue: they submit other jobs, or at other times. No report knows that.",
)
"""Facts that the figures do not show."""

_COLUMNS: Final[tuple[tuple[str, Callable[[GangRecord], str]], ...]] = (
    ("GANG", lambda one: f"{one.gang.namespace}/{one.gang.name}"),
    ("QUEUE", lambda one: one.gang.queue),
    ("GPUS", lambda one: f"{one.gang.gpus:,.10g}"),
    ("STATE", lambda one: one.state.value),
    ("WAITED H", lambda one: _hours(one.waited)),
    ("FITTED H", lambda one: _hours(one.fitted)),
    ("FITS SINCE", lambda one: _moment(one.fits_since)),
    ("STARTABLE GPU-H", lambda one: _hours(one.startable)),
    ("UNBOUND H", lambda one: _hours(one.unbound)),
    ("UNBOUND GPU-H", lambda one: _hours(one.unbound_gpus)),
    ("ADMITTED AT", lambda one: _moment(one.unbound_since)),
    ("REASON", lambda one: longest_reason(one) or "-"),
)


def longest_reason(record: GangRecord) -> str:
    """The code of the reason for which a gang waited longest; empty without one."""
    return max(sorted(record.reasons), key=lambda code: record.reasons[code], default="")


def html(history: ShadowHistory, period: Period) -> str:
    """The page. The same history gives the same bytes."""
    span = f"{_moment(period.since)} to {_moment(period.until)} UTC"
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
    listed = "".join(f"<li>{escape(text)}</li>" for text in LIMITS)
    return page("Shadow mode: observed", "".join([*parts, f"<ul>{listed}</ul>"]))


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


def _hours(seconds: float) -> str:
    return f"{seconds / HOUR:,.2f}"


def _moment(at: float | None) -> str:
    return "-" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
