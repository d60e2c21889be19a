"""Figures of an outcome as texts, for tables and for the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from queuectl.simulate.documents import over_time
from queuectl.simulate.results import Figures, PolicyOutcome, Waits
from queuectl.simulate.size_classes import size_name

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
    made: list[Table] = [("Policies", ("POLICY", *figures, *of_cluster), rows)]
    if len(outcomes) == 1:
        queues = [(_name(queue), *_texts(f)) for queue, f in outcomes[0].by_queue.items()]
        made.append(("By queue", ("QUEUE", *figures), queues))
    else:
        of_queues = [
            (_name(queue), *(_seconds(o.by_queue[queue].waits.mean) for o in outcomes))
            for queue in outcomes[0].by_queue
        ]
        made.append(("Mean wait by queue", ("QUEUE", *names), of_queues))
    sizes = [
        (size_name(size), *(_seconds(_mean(o.by_size.get(size))) for o in outcomes))
        for size in outcomes[0].by_size
    ]
    made.append(("Mean wait by size", ("GPUS", *names), sizes))
    return made


def over_time_table(found: PolicyOutcome) -> Table:
    """Averages over intervals of time."""
    columns = over_time(found, _INTERVALS)
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


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} s"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _index(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
