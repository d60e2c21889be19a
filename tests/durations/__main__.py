"""How good learned run times are on traces of jobs: error and calibration, alongside a moving average.

    python -m tests.durations FILE.csv.gz...

Each job starts when it was submitted. Its expectation uses only the jobs that finished before. A file has the columns
``submit_s``, ``duration_s``, ``queue``, ``gpus`` and ``nodes_or_pods``; users and names are not known.
"""

from __future__ import annotations

import csv
import gzip
import heapq
import sys
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Final

from queuectl.domain.past_jobs import FinishedRun, GangProfile
from queuectl.durations.expectations import RunTimeEstimator

ELAPSED: Final = (0, 3600, 21_600, 86_400)
PARTS: Final = (0.5, 0.8, 0.9)
_AVERAGED: Final = 50  # last jobs of the queue
_END: Final = -1


@dataclass
class Share:
    """Of jobs that had run for a time, those that ended within a quantile."""

    within: int = 0
    jobs: int = 0

    def __str__(self) -> str:
        return f"{100 * self.within / self.jobs:.0f}%" if self.jobs else "-"


@dataclass
class Result:
    """Absolute errors in seconds at the start, and shares by elapsed time and quantile."""

    learned: list[float] = field(default_factory=list)
    average: list[float] = field(default_factory=list)
    unknown: int = 0
    shares: dict[tuple[int, float], Share] = field(default_factory=lambda: defaultdict(Share))


def jobs(file: Path) -> list[tuple[float, FinishedRun]]:
    """Submission and run of each job."""
    with gzip.open(file, "rt") as lines:
        return [
            (float(row["submit_s"]), FinishedRun(_work(row), float(row["duration_s"])))
            for row in csv.DictReader(lines)
        ]


def _work(row: dict[str, str]) -> GangProfile:
    queue, shape = row["queue"], (int(row["nodes_or_pods"]), int(row["gpus"]))
    return GangProfile(queue, "default", queue, "", "", *shape)


def evaluate(trace: list[tuple[float, FinishedRun]]) -> Result:
    """Learn from the jobs of a trace in the order in which they end."""
    result, estimator = Result(), RunTimeEstimator()
    last: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_AVERAGED))
    for number, elapsed in _moments(trace):
        _, run = trace[number]
        if elapsed == _END:
            estimator.add(run)
            last[run.work.queue].append(run.seconds)
            continue
        for part in PARTS:
            total = estimator.total(run.work, part, float(elapsed))
            if total is not None:
                share = result.shares[elapsed, part]
                share.jobs += 1
                share.within += run.seconds <= total
        if elapsed == 0:
            middle, before = estimator.total(run.work, 0.5), last[run.work.queue]
            if middle is None or not before:
                result.unknown += 1
            else:
                result.learned.append(abs(middle - run.seconds))
                result.average.append(abs(fmean(before) - run.seconds))
    return result


def _moments(trace: list[tuple[float, FinishedRun]]) -> Iterator[tuple[int, int]]:
    """(job, seconds for which it has run, or its end), in the order of time; ends are before starts."""
    moments = []
    for number, (start, run) in enumerate(trace):
        moments.append((start + run.seconds, _END, number))
        moments.extend((start + t, t, number) for t in ELAPSED if t < run.seconds or t == 0)
    heapq.heapify(moments)
    while moments:
        _, elapsed, number = heapq.heappop(moments)
        yield number, elapsed


def lines(name: str, result: Result) -> Iterator[str]:
    """The figures of one trace, as a page prints them."""
    yield f"{name}: {len(result.learned)} jobs, {result.unknown} without an expectation"
    for what, errors in (("learned median", result.learned), ("moving average", result.average)):
        yield f"  {what + ':':<16} median error {median(errors):>7,.0f} s, mean {fmean(errors):>7,.0f} s"
    for elapsed in ELAPSED:
        shares = [result.shares[elapsed, part] for part in PARTS]
        shown = "  ".join(
            f"{part}: {share!s:>5}" for part, share in zip(PARTS, shares, strict=True)
        )
        yield f"  within the quantile after {elapsed:>6} s: {shown}  of {shares[0].jobs} jobs"


def main() -> int:
    """Print the figures of each file."""
    for name in sys.argv[1:]:
        file = Path(name)
        print("\n".join(lines(file.name, evaluate(jobs(file)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
