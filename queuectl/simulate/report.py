"""Outcomes of policies as texts, as an HTML page with plots, and as JSON and CSV.

The page loads nothing from other hosts.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from math import floor, log10
from typing import Any, Final

from queuectl.simulate.best_fit import BestFit
from queuectl.simulate.outcomes import Figures, PolicyOutcome, Waits, outcome_of, series
from queuectl.simulate.planned import Planned
from queuectl.simulate.setting import Setting
from queuectl.simulate.simulation import PlacementRule, Policy, Run, Sample, Scheduler, World
from queuectl.simulate.trace import size_name

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
    return outcome_of(policy.name, setting, runs, never_fit, world)


def _scheduler(setting: Setting, policy: Policy, world: World) -> Scheduler:
    if policy.placement is PlacementRule.BEST_FIT:
        return BestFit(setting, policy.order, world)
    return Planned(setting, policy, world)


# ---- Tables

_HOUR: Final = 3600.0
Row = tuple[str, ...]
Table = tuple[str, Row, list[Row]]
"""Title, names of the columns, and rows. The first column is a name, the others are numbers."""
_FIGURES: Final[tuple[tuple[str, Callable[[Figures], str]], ...]] = (
    ("JOBS", lambda f: f"{f.jobs:,}"),
    ("FINISHED", lambda f: f"{f.waits.finished:,}"),
    ("MEAN WAIT", lambda f: _seconds(f.waits.mean)),
    ("P50", lambda f: _seconds(f.waits.p50)),
    ("P99", lambda f: _seconds(f.waits.p99)),
    ("MULTI-NODE", lambda f: _seconds(f.several.mean)),
    ("COMPLETION", lambda f: _seconds(f.completion)),
    ("ALLOCATION", lambda f: _percent(f.allocation)),
    ("EVICTIONS", lambda f: f"{f.evictions:,}"),
    ("LOST GPU-H", lambda f: f"{f.lost / _HOUR:,.1f}"),
)
_OF_CLUSTER: Final[tuple[tuple[str, Callable[[PolicyOutcome], str]], ...]] = (
    ("USED", lambda o: _percent(o.utilization)),
    ("FRAGMENTED", lambda o: _percent(o.fragmentation)),
    ("MAKESPAN H", lambda o: f"{o.total.makespan / _HOUR:,.1f}"),
    ("FAIRNESS", lambda o: _index(o.fairness)),
)
_OVER_TIME: Final = {
    "allocatedGpus": "ALLOCATED GPUS",
    "usedGpus": "USED GPUS",
    "fragmentedGpus": "FRAGMENTED GPUS",
    "waitingJobs": "WAITING JOBS",
}
_INTERVALS: Final = 10


def tables(outcomes: Sequence[PolicyOutcome]) -> list[Table]:
    """The policies, then the queues and the sizes of jobs, each with all policies side by side."""
    names = tuple(outcome.policy for outcome in outcomes)
    figures = tuple(title for title, _ in _FIGURES)
    rows = [(o.policy, *_texts(o.total), *(text(o) for _, text in _OF_CLUSTER)) for o in outcomes]
    of_cluster = tuple(title for title, _ in _OF_CLUSTER)
    titled: list[Table] = [("Policies", ("POLICY", *figures, *of_cluster), rows)]
    if len(outcomes) == 1:
        queues = [(_name(queue), *_texts(f)) for queue, f in outcomes[0].by_queue.items()]
        titled.append(("By queue", ("QUEUE", *figures), queues))
    else:
        of_queues = [
            (_name(queue), *(_seconds(o.by_queue[queue].waits.mean) for o in outcomes))
            for queue in outcomes[0].by_queue
        ]
        titled.append(("Mean wait by queue", ("QUEUE", *names), of_queues))
    sizes = [
        (size_name(size), *(_seconds(_mean(o.by_size.get(size))) for o in outcomes))
        for size in outcomes[0].by_size
    ]
    titled.append(("Mean wait by size", ("GPUS", *names), sizes))
    return titled


def over_time_table(outcome: PolicyOutcome) -> Table:
    """Averages over intervals of time."""
    columns = _over_time(outcome, _INTERVALS)
    ends = columns.pop("untilSeconds")
    rows = [
        (f"{end / _HOUR:,.1f}", *(f"{values[at]:,.1f}" for values in columns.values()))
        for at, end in enumerate(ends)
    ]
    return ("Over time", ("UNTIL H", *(_OVER_TIME[name] for name in columns)), rows)


def _texts(figures: Figures) -> Row:
    return tuple(text(figures) for _, text in _FIGURES)


def _name(queue: tuple[str, str]) -> str:
    return "/".join(queue)


def _mean(waits: Waits | None) -> float | None:
    return waits.mean if waits is not None else None


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.0f} s"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


def _index(index: float | None) -> str:
    return "-" if index is None else f"{index:.3f}"


# ---- The page

_POINTS: Final = 400
_WIDTH: Final = 900
_HEIGHT: Final = 220
_LEFT: Final = 70  # pixels for the labels of the vertical axis
_ABOVE: Final = 10
_BELOW: Final = 30
_TICKS: Final = 4
_STEPS: Final = (1, 2, 5, 10)
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
    for title, quantity, applies in plots:
        curves = [(o.policy, series(o.samples, quantity, _POINTS)) for o in outcomes if applies(o)]
        if curves:
            yield f"<h2>{title}</h2>\n{_plot(title, curves)}\n"


def _plot(title: str, curves: Sequence[tuple[str, _Curve]]) -> str:
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


# ---- JSON and CSV

_EXPORTED_POINTS: Final = 100
Record = dict[str, Any]


def document(outcome: PolicyOutcome) -> Record:
    """The outcome as it is printed with ``-o json``."""
    by_queue = {
        f"{ns}/{name}": _record(figures) for (ns, name), figures in outcome.by_queue.items()
    }
    by_size = {size_name(most): _waits(waits) for most, waits in outcome.by_size.items()}
    return {
        **_record(outcome.total),
        **_of_cluster(outcome),
        "byQueue": by_queue,
        "bySize": by_size,
        "overTime": _over_time(outcome),
    }


def figures_csv(outcomes: Sequence[PolicyOutcome]) -> str:
    """A line for each policy, then for each of its queues and sizes of jobs. Cells without a value are empty."""
    return _csv([line for outcome in outcomes for line in _lines(outcome)])


def over_time_csv(outcomes: Sequence[PolicyOutcome]) -> str:
    """A line for each policy and interval of time, with averages."""
    lines: list[Record] = []
    for outcome in outcomes:
        columns = _over_time(outcome)
        lines += [
            {"policy": outcome.policy, **dict(zip(columns, values, strict=True))}
            for values in zip(*columns.values(), strict=True)
        ]
    return _csv(lines)


def _over_time(outcome: PolicyOutcome, points: int = _EXPORTED_POINTS) -> dict[str, list[float]]:
    """Averages over equal intervals of time: a list for each quantity, and the ends of the intervals in seconds.

    Utilization is absent if that of no job is known, and fragmentation if the nodes of a gang are not known.
    """
    quantities: dict[str, Callable[[Sample], float]] = {
        "allocatedGpus": lambda sample: sample.held,
        "usedGpus": lambda sample: sample.used,
        "fragmentedGpus": lambda sample: sample.fragmented,
        "waitingJobs": lambda sample: sample.waiting,
    }
    if outcome.utilization is None:
        del quantities["usedGpus"]
    if outcome.fragmentation is None:
        del quantities["fragmentedGpus"]
    curves = {
        name: series(outcome.samples, quantity, points) for name, quantity in quantities.items()
    }
    ends = [round(time, 3) for time, _ in curves["allocatedGpus"]]
    return {
        "untilSeconds": ends,
        **{name: [round(quantity, 3) for _, quantity in curve] for name, curve in curves.items()},
    }


def _lines(outcome: PolicyOutcome) -> Iterator[Record]:
    yield _flat({"policy": outcome.policy, "queue": "", "gpus": "", **_record(outcome.total)}) | (
        _of_cluster(outcome)
    )
    for (namespace, name), figures in outcome.by_queue.items():
        where = {"policy": outcome.policy, "queue": f"{namespace}/{name}", "gpus": ""}
        yield _flat({**where, **_record(figures)})
    for most, waits in outcome.by_size.items():
        yield {"policy": outcome.policy, "queue": "", "gpus": size_name(most), **_waits(waits)}


def _flat(record: Mapping[str, Any]) -> Record:
    line: Record = {}
    for name, value in record.items():
        if isinstance(value, dict):
            line |= {f"{name}_{key}": inner for key, inner in value.items()}
        else:
            line[name] = value
    return line


def _csv(lines: Sequence[Record]) -> str:
    text = io.StringIO()
    titles = list(dict.fromkeys(title for line in lines for title in line))
    writer = csv.DictWriter(text, titles, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _of_cluster(outcome: PolicyOutcome) -> Record:
    return {
        "utilization": _rounded(outcome.utilization, 6),
        "fragmentation": _rounded(outcome.fragmentation, 6),
        "fairness": _rounded(outcome.fairness, 6),
    }


def _waits(waits: Waits) -> Record:
    return {
        "finished": waits.finished,
        "meanWaitSeconds": _rounded(waits.mean),
        "p50WaitSeconds": _rounded(waits.p50),
        "p99WaitSeconds": _rounded(waits.p99),
    }


def _record(figures: Figures) -> dict[str, Any]:
    waits, several = figures.waits, figures.several
    return {
        "jobs": figures.jobs,
        "finished": waits.finished,
        "skipped": figures.skipped,
        "neverFit": figures.never_fit,
        "meanWaitSeconds": _rounded(waits.mean),
        "p50WaitSeconds": _rounded(waits.p50),
        "p99WaitSeconds": _rounded(waits.p99),
        "meanCompletionSeconds": _rounded(figures.completion),
        "makespanSeconds": _rounded(figures.makespan),
        "gpuHours": _rounded(figures.held / _HOUR),
        "allocation": _rounded(figures.allocation, 6),
        "evictions": figures.evictions,
        "lostGpuSeconds": _rounded(figures.lost),
        "multiNode": {
            "jobs": figures.several_jobs,
            "meanWaitSeconds": _rounded(several.mean),
            "p99WaitSeconds": _rounded(several.p99),
        },
    }


def _rounded(number: float | None, digits: int = 3) -> float | None:
    return None if number is None else round(number, digits)
