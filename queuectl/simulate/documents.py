"""Outcomes for programs: JSON, and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from queuectl.simulate.results import Figures, PolicyOutcome, Waits, series
from queuectl.simulate.simulation import Sample
from queuectl.simulate.size_classes import size_name

_HOUR: Final = 3600.0
POINTS: Final = 100

Record = dict[str, Any]


def document(found: PolicyOutcome) -> Record:
    """The outcome as it is printed with ``-o json``."""
    by_queue = {f"{ns}/{name}": _record(one) for (ns, name), one in found.by_queue.items()}
    by_size = {size_name(most): _waits(waits) for most, waits in found.by_size.items()}
    return {
        **_record(found.total),
        **_of_cluster(found),
        "byQueue": by_queue,
        "bySize": by_size,
        "overTime": over_time(found),
    }


def figures_csv(outcomes: Sequence[PolicyOutcome]) -> str:
    """A line for each policy, then for each of its queues and sizes of jobs. Cells without a value are empty."""
    return _csv([line for found in outcomes for line in _lines(found)])


def over_time_csv(outcomes: Sequence[PolicyOutcome]) -> str:
    """A line for each policy and interval of time, with averages."""
    lines: list[Record] = []
    for found in outcomes:
        columns = over_time(found)
        lines += [
            {"policy": found.policy, **dict(zip(columns, values, strict=True))}
            for values in zip(*columns.values(), strict=True)
        ]
    return _csv(lines)


def over_time(found: PolicyOutcome, points: int = POINTS) -> dict[str, list[float]]:
    """Averages over equal intervals of time: a list for each quantity, and the ends of the intervals in seconds.

    Utilization is absent if that of no job is known, and fragmentation if the nodes of a gang are not known.
    """
    quantities: dict[str, Callable[[Sample], float]] = {
        "allocatedGpus": lambda sample: sample.held,
        "usedGpus": lambda sample: sample.used,
        "fragmentedGpus": lambda sample: sample.fragmented,
        "waitingJobs": lambda sample: sample.waiting,
    }
    if found.utilization is None:
        del quantities["usedGpus"]
    if found.fragmentation is None:
        del quantities["fragmentedGpus"]
    curves = {name: series(found.samples, value, points) for name, value in quantities.items()}
    ends = [round(time, 3) for time, _ in curves["allocatedGpus"]]
    return {
        "untilSeconds": ends,
        **{name: [round(value, 3) for _, value in curve] for name, curve in curves.items()},
    }


def _lines(found: PolicyOutcome) -> Iterator[Record]:
    yield _flat({"policy": found.policy, "queue": "", "gpus": "", **_record(found.total)}) | (
        _of_cluster(found)
    )
    for (namespace, name), figures in found.by_queue.items():
        where = {"policy": found.policy, "queue": f"{namespace}/{name}", "gpus": ""}
        yield _flat({**where, **_record(figures)})
    for most, waits in found.by_size.items():
        yield {"policy": found.policy, "queue": "", "gpus": size_name(most), **_waits(waits)}


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


def _of_cluster(found: PolicyOutcome) -> Record:
    return {
        "utilization": _rounded(found.utilization, 6),
        "fragmentation": _rounded(found.fragmentation, 6),
        "fairness": _rounded(found.fairness, 6),
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


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)
