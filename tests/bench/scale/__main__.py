"""Measure systems on up to 10,000 simulated nodes.

    python -m tests.bench.scale run --system queuectl --nodes 10000 [--rows a,b] [--run 1]
    python -m tests.bench.scale table [--all] [FILE…]
    python -m tests.bench.scale picture [FILE…]

The results are appended to `results.jsonl` in the folder of the snapshots (`SCALE_DIR`), or to `--results`. `RECORD=1` appends them to
`runs.jsonl`, from which tables and pictures are made unless you name files. A table has the figures of the page of benchmarks. With `--all`, it
has all figures, notes and conditions.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.bench import history
from tests.bench.scale import (  # noqa: F401  the modules of rows register theirs
    rows_changes,
    rows_failover,
    rows_queues,
    rows_starts,
    snapshots,
)
from tests.bench.scale.conditions import conditions, show
from tests.bench.scale.fleet import Fleet
from tests.bench.scale.records import FILL, RUNS, RowRecord, append, read_all
from tests.bench.scale.rows import (
    DONE,
    FAILED,
    NOT_OFFERED,
    Figure,
    Row,
    RowResult,
    measure,
    selected,
)
from tests.bench.scale.stage import cluster_spec, running_stage
from tests.bench.scale.systems import SYSTEMS, commit, make_system


class Run:
    """One run of one system at one size."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._fleet = Fleet(options.nodes)
        self._conditions: Mapping[str, str] = {}

    def play(self) -> int:
        """Fill if necessary, then each row. Returns the number of failed rows."""
        options, fleet = self._options, self._fleet
        snapshots.check_space(fleet)
        system = make_system(options.system)
        spec = cluster_spec(fleet, fsync=options.fsync)
        self._conditions = conditions(system, fleet, spec)
        print(f"{options.system}, run {options.run}, commit {commit()}", flush=True)
        show(self._conditions)
        failed = 0
        for row in selected(options.rows):
            result = self._row(row)
            self._record(result)
            failed += result.status == FAILED
        return failed

    def _row(self, row: Row) -> RowResult:
        system = make_system(self._options.system)
        print(f"  ({row.letter}) {row.title}", flush=True)
        if (reason := system.not_offered(row.letter)) is not None:
            return RowResult(row.letter, NOT_OFFERED, notes=(reason,))
        try:
            folder = self._snapshot(row.fill)
            began = time.monotonic()
            with running_stage(
                system, self._fleet, fsync=self._options.fsync, saved=folder
            ) as stage:
                restored = time.monotonic() - began
                result = measure(row, stage)
        except Exception as error:  # noqa: BLE001  the next row is measured anyway
            return RowResult(row.letter, FAILED, notes=(f"{type(error).__name__}: {error}",))
        figures = (*result.figures, Figure("restored after", restored, "s"))
        return RowResult(row.letter, result.status, figures, result.notes)

    def _snapshot(self, fill: str) -> Path:
        options = self._options
        system = make_system(options.system)
        if not options.refill:
            folder = snapshots.saved(system, self._fleet, fill, stale=options.accept_stale)
            if folder is not None:
                return folder
        options.refill = False  # once
        made = snapshots.make(
            lambda: make_system(options.system), self._fleet, fill, fsync=options.fsync
        )
        usage = made.usage
        figures = [
            Figure("nodes and system ready after", made.start, "s"),
            Figure("filled after", made.fill, "s"),
            Figure("stopped and copied after", made.save, "s"),
            Figure("size on the disk", snapshots.size_of(made.folder) / 2**20, "MiB"),
            *(Figure(f"peak memory: {name}", peak, "MiB") for name, peak in usage.peak.items()),
            *(Figure(f"CPU: {name}", cpu, "s") for name, cpu in usage.cpu.items()),
            *(Figure(f"restarts: {name}", times) for name, times in usage.restarts.items()),
        ]
        self._record(RowResult(f"{FILL} {fill}", DONE, tuple(figures), tuple(made.remarks)))
        return made.folder

    def _record(self, result: RowResult) -> None:
        for figure in result.figures:
            print(f"    {figure.name}: {figure.value:,.4g} {figure.unit}", flush=True)
        for note in result.notes:
            print(f"    {note}", flush=True)
        print(f"    {result.status}, load {os.getloadavg()[0]:.1f}", flush=True)
        options = self._options
        record = RowRecord.now(
            options.system, self._fleet.nodes, options.run, result, commit(), self._conditions
        )
        append(options.results or _results(), record)
        if (options.system, self._fleet.nodes) == ("queuectl", 10_000) and result.status == DONE:
            _record_in_history(result)


def _results() -> Path:
    return RUNS if os.environ.get("RECORD") else snapshots.directory() / "results.jsonl"


_README: Final = {
    ("a", "submitted to all pods bound, mean"): (
        "1,000 gangs of 8 to 16 pods, one rack each, 10,000 nodes: until all are bound, mean"
    ),
    ("b", "submitted to all pods bound"): (
        "one gang of 4,096 pods on 10,000 nodes: until all are bound"
    ),
    ("c", "submitted to a reason, median"): (
        "a gang that has no room in any block of 10,000 nodes: until its first reason, median"
    ),
}
"""Figures of the README: the row and the figure, and the measurement in the history."""


def _record_in_history(result: RowResult) -> None:
    for figure in result.figures:
        if (measurement := _README.get((result.letter, figure.name))) is not None:
            history.record(measurement, figure.value)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure one system at one size")
    run.add_argument("--system", required=True, choices=sorted(SYSTEMS))
    run.add_argument("--nodes", type=int, required=True)
    run.add_argument("--rows", default="", help="letters, such as a,b; default all")
    run.add_argument("--run", type=int, default=1, help="number of the run in the tables")
    run.add_argument("--results", type=Path, help="file to append to")
    run.add_argument("--refill", action="store_true", help="replace the snapshot")
    run.add_argument(
        "--accept-stale", action="store_true", help="restore a fill of another commit (development)"
    )
    run.add_argument("--fsync", action="store_true", help="etcd syncs to the disk")
    for name, text in (("table", "print the tables"), ("picture", "draw the pictures")):
        command = commands.add_parser(name, help=text)
        command.add_argument("files", type=Path, nargs="*", default=[RUNS])
        if name == "table":
            command.add_argument("--all", action="store_true", help="all figures of all runs")
    options = parser.parse_args(arguments)
    if options.command == "run":
        # A run that is ended stops its programs, and deletes its files.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            return 1 if Run(options).play() else 0
        except KeyboardInterrupt:
            return 130
    records = read_all(options.files)
    from tests.bench.scale import pictures, tables

    if options.command == "table":
        print(tables.tables(records) if options.all else tables.page(records))
    else:
        pictures.draw_all(records)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
