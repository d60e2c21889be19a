"""The history of the recorded measurements: ``history.jsonl``, one line for each run.

    make bench RECORD=1                   # append what the benchmarks measure
    python -m tests.bench.history         # the newest run of each measurement, against the runs before it

A measurement has its name and unit in ``recorded.json``. A line also states the commit, the machine and its load, because the
speed of a machine varies: compare runs of machines with the same fields.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

HERE: Final = Path(__file__).parent
HISTORY: Final = HERE / "history.jsonl"
VARIABLE: Final = "QUEUECTL_BENCH_HISTORY"
"""The environment variable with the file to append to; without it, nothing is recorded."""


def measurements() -> dict[str, str]:
    """The unit of each measurement, by its name."""
    listed = json.loads((HERE / "recorded.json").read_text())
    return {entry["measurement"]: entry["unit"] for entry in listed}


@dataclass(frozen=True)
class Run:
    """One line of the history.

    Attributes:
        at: time of the end, UTC, ISO 8601.
        commit: the measured commit, with ``+`` if files were changed.
        load: load average of the last minute.
        memory: of the machine, GiB.
    """

    measurement: str
    value: float
    unit: str
    at: str
    commit: str
    python: str
    cores: int
    memory: int
    load: float

    @classmethod
    def now(cls, measurement: str, value: float) -> Self:
        """A run that ends now. Raises KeyError if ``recorded.json`` does not list the measurement."""
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return cls(
            measurement=measurement,
            value=float(f"{value:.4g}"),
            unit=measurements()[measurement],
            at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            commit=_commit(),
            python=platform.python_version(),
            cores=len(os.sched_getaffinity(0)),
            memory=round(pages / 2**30),
            load=round(os.getloadavg()[0], 1),
        )


def record(measurement: str, value: float) -> None:
    """Append a run to the file of the environment variable, if it is set."""
    run = Run.now(measurement, value)
    if file := os.environ.get(VARIABLE):
        with Path(file).open("a") as history:
            history.write(json.dumps(asdict(run), ensure_ascii=False) + "\n")


def runs(file: Path = HISTORY) -> list[Run]:
    """All lines, oldest first."""
    return [Run(**json.loads(line)) for line in file.read_text().splitlines()]


def table(history: Iterable[Run]) -> list[str]:
    """A line for each measurement: the newest run, the median of the runs before it, their ratio."""
    grouped: dict[str, list[Run]] = defaultdict(list)
    for run in history:
        grouped[run.measurement].append(run)
    return [f"{name}: {_comparison(group)}" for name, group in grouped.items()]


def _comparison(group: list[Run]) -> str:
    *before, newest = group
    text = f"{newest.value:g} {newest.unit}".strip() + f" at {newest.commit}"
    if not before:
        return f"{text}, the first run"
    median = statistics.median(run.value for run in before)
    return f"{text}, {newest.value / median:.2f} × the median of {len(before)} runs ({median:g})"


def _commit() -> str:
    described = ["git", "describe", "--always", "--exclude=*", "--abbrev=9", "--dirty=+"]
    return subprocess.check_output(described, cwd=HERE, text=True).strip()


def main() -> int:
    """Print the table."""
    print("\n".join(table(runs())) or "no run is recorded")
    return 0


if __name__ == "__main__":
    sys.exit(main())
