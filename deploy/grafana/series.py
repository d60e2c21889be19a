"""What a Prometheus answers, and how it is put into words: for pictures of dashboards (preview.py)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan
from typing import Final, Protocol

HIDDEN: Final = {"__name__", "instance", "job"}  # labels that tables leave out


@dataclass(frozen=True)
class Series:
    """``points``: unix seconds and value."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]

    @property
    def last(self) -> float:
        return self.points[-1][1]

    @property
    def most(self) -> float:
        return max(value for _, value in self.points)


class Source(Protocol):
    """Answers PromQL about the time from ``since`` to ``until``, in unix seconds."""

    @property
    def since(self) -> float: ...

    @property
    def until(self) -> float: ...

    def now(self, expr: str) -> list[Series]:
        """At the end: one point for each series."""

    def over_time(self, expr: str) -> list[Series]:
        """All points of that time."""


def in_unit(value: float, unit: str) -> str:
    """As Grafana would write it, or nearly; ``unit`` is Grafana's name of it."""
    match unit:
        case "percentunit":
            return f"{100 * value:.3g} %"
        case "s":
            return seconds(value)
        case "bytes":
            return f"{value / 2**20:.0f} MiB"
        case "ops":
            return f"{value:.3g} /s"
        case _:
            return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def row_key(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What makes a row of a table."""
    return tuple(sorted((k, v) for k, v in labels.items() if k not in HIDDEN))


def legend(template: str, labels: Mapping[str, str]) -> str:
    """Of a series: ``{{label}}`` stands for its value."""
    if template:
        return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), template)
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))


def plain(template: str) -> str:
    """Of a table's column: where the legend is a label, that stands in a column of its own."""
    return "value" if "{{" in template else template


def short(name: str, most: int = 30) -> str:
    """No longer than that."""
    return name if len(name) <= most else name[: most - 1] + "…"


def broken(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """With no value wherever points are missing, so that no line is drawn over a gap."""
    pairs = list(pairwise(points))
    step = min((after - before for (before, _), (after, _) in pairs), default=0.0)
    gaps = {before[0] for before, after in pairs if after[0] - before[0] > 1.5 * step}
    return [one for t, v in points for one in [(t, v), (t, nan)][: 1 + (t in gaps)]]


def aligned(several: Sequence[Series]) -> tuple[list[float], list[list[float]]]:
    """All times that any of them has a value for, and the values of each; 0 where it has none."""
    times = sorted({t for one in several for t, _ in one.points})
    known = [dict(one.points) for one in several]
    return times, [[values.get(t, 0.0) for t in times] for values in known]


def seconds(value: float) -> str:
    """In the largest unit of which there is one."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if abs(value) >= size and value != float("inf"):
            return f"{value / size:.3g} {unit}"
    return "∞" if value == float("inf") else f"{1000 * value:.3g} ms" if value else "0 s"
