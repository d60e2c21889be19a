"""The outcomes of policies as one HTML page with plots. The page loads nothing from other hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from math import floor, log10
from typing import Final

from queuectl.simulate.amounts import Table, tables
from queuectl.simulate.best_fit import BestFit
from queuectl.simulate.planned import Planned
from queuectl.simulate.policy import PlacementRule, Policy
from queuectl.simulate.results import PolicyOutcome, outcome, series
from queuectl.simulate.run import Run
from queuectl.simulate.setting import Setting
from queuectl.simulate.simulation import Sample, Scheduler, World

# ---- The page

_POINTS: Final = 400
_WIDTH: Final = 900
_HEIGHT: Final = 220
_LEFT: Final = 70  # pixels for the labels of the vertical axis
_ABOVE: Final = 10
_BELOW: Final = 30
_TICKS: Final = 4
_STEPS: Final = (1, 2, 5, 10)
_HOUR: Final = 3600.0
_DAY: Final = 24 * _HOUR
_LONG: Final = 3 * _DAY  # a longer axis is in days
_COLORS: Final = ("#0b66c3", "#c2410c", "#15803d", "#7e22ce")

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 96rem; padding: 0 1rem; color: #1f2937; }
table { border-collapse: collapse; margin-bottom: 1.5rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .5rem; text-align: right; border-bottom: 1px solid #e5e7eb; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
svg { width: 100%; height: auto; max-width: 72rem; }
svg text { font-size: 12px; fill: #4b5563; }
svg .grid { stroke: #e5e7eb; }
svg .line { fill: none; stroke-width: 1.5; }
.wide { overflow-x: auto; }
"""

_Curve = list[tuple[float, float]]


def report(outcomes: Sequence[PolicyOutcome]) -> str:
    """The page. The same outcomes give the same bytes."""
    return page("Simulation", "".join([*map(html_table, tables(outcomes)), *_plots(outcomes)]))


def page(title: str, body: str) -> str:
    """A page that loads nothing."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>\n{body}</body></html>\n"
    )


def html_table(table: Table) -> str:
    """A table below its title."""
    title, columns, rows = table
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<h2>{escape(title)}</h2>\n<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>\n'


def _plots(outcomes: Sequence[PolicyOutcome]) -> Iterator[str]:
    plots: tuple[tuple[str, Callable[[Sample], float], Callable[[PolicyOutcome], bool]], ...] = (
        ("Allocated GPUs", lambda sample: sample.held, lambda _: True),
        ("Used GPUs", lambda sample: sample.used, lambda o: o.utilization is not None),
        (
            "Free GPUs that the next pod cannot use",
            lambda sample: sample.fragmented,
            lambda o: o.fragmentation is not None,
        ),
        ("Waiting jobs", lambda sample: sample.waiting, lambda _: True),
    )
    for title, value, known in plots:
        curves = [(o.policy, series(o.samples, value, _POINTS)) for o in outcomes if known(o)]
        if curves:
            yield f"<h2>{title}</h2>\n{plot(title, curves)}\n"


def plot(title: str, curves: Sequence[tuple[str, _Curve]]) -> str:
    """An SVG picture of named curves over time: (seconds, value)."""
    points = [point for _, curve in curves for point in curve]
    until = max((time for time, _ in points), default=0.0) or 1.0
    top, step = _scale(max((value for _, value in points), default=0.0))
    parts = [
        f'<svg viewBox="0 {-_ABOVE} {_WIDTH} {_ABOVE + _HEIGHT + _BELOW}" role="img" aria-label="{escape(title)}">'
    ]
    for n in range(round(top / step) + 1):
        y = _HEIGHT * (1 - n * step / top)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        label = f"{n * step:,.10g}"
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    unit, seconds = ("d", _DAY) if until > _LONG else ("h", _HOUR)
    length, stride = _scale(until / seconds)
    for n in range(1, round(length / stride) + 1):
        x = _LEFT + (_WIDTH - _LEFT) * n * stride * seconds / until
        if x <= _WIDTH - 20:
            label = f"{n * stride:,.10g} {unit}"
            parts.append(
                f'<text x="{x:.1f}" y="{_HEIGHT + 20}" text-anchor="middle">{label}</text>'
            )
    for index, (_, curve) in enumerate(curves):
        color = _COLORS[index % len(_COLORS)]
        parts.append(f'<path class="line" stroke="{color}" d="{_path(curve, until, top)}"/>')
    return "".join([*parts, "</svg>", _legend([name for name, _ in curves])])


def _path(curve: _Curve, until: float, top: float) -> str:
    places = (
        (_LEFT + (_WIDTH - _LEFT) * time / until, _HEIGHT * (1 - value / top))
        for time, value in curve
    )
    return " ".join(f"{'L' if n else 'M'}{x:.1f} {y:.1f}" for n, (x, y) in enumerate(places))


def _legend(names: Sequence[str]) -> str:
    items = (
        f'<span style="color:{_COLORS[n % len(_COLORS)]}">&#9632;</span> {escape(name)} '
        for n, name in enumerate(names)
    )
    return f"<p>{''.join(items)}</p>"


def _scale(most: float) -> tuple[float, float]:
    """The top of an axis and the distance of its ticks."""
    rough = (most or 1.0) / _TICKS
    power = 10.0 ** floor(log10(rough))
    step = next(power * one for one in _STEPS if power * one >= rough)
    return step * max(1, -int(-most // step)), step


# ---- One simulation


def simulate(
    setting: Setting, policy: Policy, progress: Callable[[World], None] = lambda _: None
) -> PolicyOutcome:
    """Run all jobs of the setting under a policy. The same input gives the same outcome.

    ``progress``: is called after each instant.

    Raises:
        BadInput: the policy cannot serve this setting.
    """
    world = World(setting.free_gpus())
    scheduler = _scheduler(setting, policy, world)
    never_fit = [job for job in setting.jobs if scheduler.never_fits(job)]
    larger = {job.rank for job in never_fit}
    runs = [Run(job) for job in setting.jobs if job.rank not in larger]
    world.run(runs, setting.events, scheduler, progress)
    return outcome(policy.name, setting, runs, never_fit, world)


def _scheduler(setting: Setting, policy: Policy, world: World) -> Scheduler:
    if policy.placement is PlacementRule.BEST_FIT:
        return BestFit(setting, policy.order, world)
    return Planned(setting, policy, world)
