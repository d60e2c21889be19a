"""Advice for people and programs: a table, sentences, JSON, and an HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Any, Final

import yaml

from queuectl.domain.words import counted
from queuectl.simulate.advice.advice import PERCENT, Advice, Interval, Ranked
from queuectl.simulate.advice.objectives import Objective
from queuectl.simulate.report import Table, html_table, page

_SURE: Final = (100 + PERCENT) // 2
"""The part of resamples in which a change that is recommended is better, in percent."""

_FORMS: Final[Mapping[Objective, tuple[str, Callable[[float], str]]]] = {
    Objective.MEAN_WAIT: ("mean wait", lambda v: f"{v:,.0f} s"),
    Objective.P99_WAIT: ("p99 of the wait", lambda v: f"{v:,.0f} s"),
    Objective.MULTI_NODE_WAIT: ("mean wait of multi-node jobs", lambda v: f"{v:,.0f} s"),
    Objective.ALLOCATION: ("allocation", lambda v: f"{100 * v:.1f}%"),
    Objective.FAIRNESS: ("fairness", lambda v: f"{v:.3f}"),
    Objective.LOST_HOURS: ("lost work", lambda v: f"{v:,.1f} GPU-hours"),
}


def ranking(advice: Advice) -> Table:
    """The changes, best first, below the current configuration."""
    columns = ("CHANGE", "SCORE", f"{PERCENT}% OF RESAMPLES", *(_title(o) for o in Objective))
    present = ("as configured", "", "", *(_value(o, advice.present[o]) for o in Objective))
    rows = [present]
    for ranked in advice.ranked:
        name = ranked.change.name + "".join(f" ({note})" for note in _notes(ranked))
        figures = (_value(o, ranked.figures[o]) for o in Objective)
        rows.append((name, _percent(ranked.score.figure), _range(ranked.score, _percent), *figures))
    return ("Changes", columns, rows)


def summary(advice: Advice) -> Iterator[str]:
    """The recommendation in sentences, a line each."""
    weights = ", ".join(f"{o} {100 * weight:.0f}%" for o, weight in advice.weights.items())
    yield f"Objectives: {weights}. A score is the weighted improvement: 100% is the best possible."
    yield (
        f"Intervals: {PERCENT}% of the resamples of {advice.blocks.number} {advice.blocks.name} "
        "of the trace (block bootstrap)."
    )
    best = advice.recommended
    if best is None:
        yield f"Recommended: keep the configuration. No change improves the score in {_SURE}% of the resamples."
    else:
        yield f"Recommended: {best.change.name}"
        yield "Expected effect:"
        for objective in Objective:
            yield f"  {_effect(objective, advice, best)}"
        yield from _worse(advice, best)
    for one in advice.uncertain:
        yield (
            f"Not certain: {one.change.name}: {_percent(one.score.figure)} over the whole trace, "
            f"but {_percent(one.score.low)} in the weakest resamples"
        )
    for name, reason in advice.refused:
        yield f"Not simulated: {name}: {reason}"


def _worse(advice: Advice, best: Ranked) -> Iterator[str]:
    """The figures that get worse although the objectives get better."""
    worse = [_FORMS[o][0] for o in Objective if o not in advice.weights and _is_worse(o, best)]
    if worse:
        yield f"Worse, and not among the objectives: {', '.join(worse)}"


def _is_worse(objective: Objective, best: Ranked) -> bool:
    difference = best.differences[objective]
    if difference.low is None or difference.high is None:
        return False
    return difference.high < 0 if objective.larger_is_better else difference.low > 0


def instructions(best: Ranked) -> str:
    """The objects to apply as YAML, after a comment about what else is to be done."""
    comment = f"# {best.change.instruction}\n" if best.change.instruction else ""
    if not best.objects:
        return comment
    return comment + yaml.safe_dump_all(best.objects, sort_keys=False, allow_unicode=True)


def document(advice: Advice) -> dict[str, Any]:
    """The advice as it is printed with ``-o json``."""
    best = advice.recommended
    return {
        "objectives": {str(o): round(weight, 6) for o, weight in advice.weights.items()},
        "blocks": {
            "number": advice.blocks.number,
            "seconds": round(advice.blocks.length, 3),
            "intervalPercent": PERCENT,
        },
        "present": _figures(advice.present),
        "changes": [_record(ranked) for ranked in advice.ranked],
        "recommended": best.change.name if best is not None else None,
        "notSimulated": [{"change": name, "reason": reason} for name, reason in advice.refused],
    }


def html(advice: Advice) -> str:
    """The page. The same advice gives the same bytes."""
    best = advice.recommended
    lines = "".join(f"<p>{escape(line)}</p>\n" for line in summary(advice))
    apply = f"<h2>Apply it</h2>\n<pre>{escape(instructions(best))}</pre>\n" if best else ""
    return page("Advice", f"{lines}{apply}{html_table(ranking(advice))}{_scores(advice)}")


def _notes(ranked: Ranked) -> Iterator[str]:
    if ranked.lost:
        yield f"{counted(ranked.lost, 'job')} would never fit"
    if ranked.gained:
        yield f"{counted(ranked.gained, 'job')} would fit that never fit now"


_ROW: Final = 24  # pixels
_WIDTH: Final = 900
_MIDDLE: Final = 650  # of the axis; the names are at its left
_HALF: Final = 220


def _scores(advice: Advice) -> str:
    """An SVG picture of the scores with their intervals."""
    height = _ROW * (len(advice.ranked) + 1)
    most = max(
        (abs(v) for r in advice.ranked for v in (r.score.low, r.score.high) if v), default=0.0
    )
    scale = _HALF / (most or 1.0)
    parts = [
        f'<h2>Scores</h2>\n<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="Scores">',
        f'<line class="grid" x1="{_MIDDLE}" x2="{_MIDDLE}" y1="0" y2="{height - _ROW}"/>',
        f'<text x="{_MIDDLE}" y="{height - 6}" text-anchor="middle">0%</text>',
    ]
    for edge in (-most, most) if most else ():
        at = _MIDDLE + edge * scale
        parts.append(
            f'<text x="{at:.1f}" y="{height - 6}" text-anchor="middle">{_percent(edge)}</text>'
        )
    for number, ranked in enumerate(advice.ranked):
        parts += _score_row(ranked, number * _ROW + _ROW / 2, scale)
    return "".join([*parts, "</svg>\n"])


def _score_row(ranked: Ranked, y: float, scale: float) -> Iterator[str]:
    name = ranked.change.name if len(ranked.change.name) <= 60 else ranked.change.name[:59] + "…"
    yield f'<text x="{_MIDDLE - _HALF - 10}" y="{y + 4}" text-anchor="end">{escape(name)}</text>'
    score = ranked.score
    if score.figure is None or score.low is None or score.high is None:
        return
    color = "#15803d" if ranked.better else "#4b5563"
    left, right = (_MIDDLE + edge * scale for edge in (score.low, score.high))
    yield f'<line stroke="{color}" x1="{left:.1f}" x2="{right:.1f}" y1="{y}" y2="{y}"/>'
    yield f'<circle fill="{color}" cx="{_MIDDLE + score.figure * scale:.1f}" cy="{y}" r="4"/>'


def _effect(objective: Objective, advice: Advice, best: Ranked) -> str:
    title, form = _FORMS[objective]
    before, after = advice.present[objective].figure, best.figures[objective].figure
    if before is None or after is None:
        return f"{title}: not known, because no such job finished"
    difference = _range(best.differences[objective], lambda v: ("+" if v >= 0 else "") + form(v))
    return f"{title}: {form(before)} → {form(after)} (difference: {difference})"


def _title(objective: Objective) -> str:
    return objective.value.replace("-", " ").upper()


def _value(objective: Objective, interval: Interval) -> str:
    return "-" if interval.figure is None else _FORMS[objective][1](interval.figure)


def _range(interval: Interval, form: Callable[[float], str]) -> str:
    if interval.low is None or interval.high is None:
        return "-"
    return f"{form(interval.low)} to {form(interval.high)}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:+.1f}%"


def _record(ranked: Ranked) -> dict[str, Any]:
    return {
        "change": ranked.change.name,
        "kinds": [str(kind) for kind in ranked.change.kinds],
        "score": _interval(ranked.score),
        "better": ranked.better,
        "neverFit": ranked.lost,
        "fitOnlyThen": ranked.gained,
        "figures": _figures(ranked.figures),
        "differences": _figures(ranked.differences),
        "objects": list(ranked.objects),
        "instruction": ranked.change.instruction or None,
    }


def _figures(intervals: Mapping[Objective, Interval]) -> dict[str, Any]:
    return {str(objective): _interval(interval) for objective, interval in intervals.items()}


def _interval(interval: Interval) -> dict[str, float | None]:
    values = {"value": interval.figure, "low": interval.low, "high": interval.high}
    return {name: None if value is None else round(value, 6) for name, value in values.items()}
