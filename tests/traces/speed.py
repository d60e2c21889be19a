"""The speed of a simulation of a large cluster: ``python -m tests.traces.speed FOLDER [--strategy Backfill] [--cohort] [--jobs NUMBER]``.

The trace is Philly's, twice, at twelve times its speed, on 1,000 nodes that are divided like those of Philly: 105,682 jobs, of which at most about
1,050 wait at a time.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from queuectl.objects.documents import read_documents
from queuectl.offline.inputs import read_snapshot
from queuectl.simulate.report import simulate
from queuectl.simulate.setting import Setting, make_setting
from queuectl.simulate.simulation import Durations, Order, PlacementRule, Policy, World
from queuectl.simulate.trace import TraceJob, read_trace
from tests.traces.clusters import virtual_clusters
from tests.traces.scenarios import PHILLY, PHILLY_NODES

NODES: Final = 1000
FASTER: Final = 12


def busy_cluster(folder: Path, count: int | None, *, cohort: bool) -> Setting:
    """The trace on its nodes. ``count``: of jobs; None = all. ``cohort``: all queues are in one."""
    with (folder / PHILLY_NODES).open() as lines:
        sizes = {row["queue"]: int(row["nodes"]) for row in csv.DictReader(lines)}
    nodes = {name: round(n * NODES / sum(sizes.values())) for name, n in sizes.items()}
    items = virtual_clusters(nodes, "all" if cohort else None)
    listed = {"apiVersion": "v1", "kind": "List", "items": items}
    given = read_snapshot(read_documents(json.dumps(listed).encode(), "cluster.json"))
    jobs = read_trace((folder / PHILLY).read_bytes(), PHILLY)
    once = [replace(job, submit=job.submit / FASTER) for job in jobs]
    again = [_later(job, once[-1].submit, len(once)) for job in once]
    return make_setting(given.snapshot, PHILLY, [*once, *again][:count])


def _later(job: TraceJob, seconds: float, places: int) -> TraceJob:
    return replace(job, submit=job.submit + seconds, rank=job.rank + places, job_id="")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cohort", action="store_true", help="all queues are in one cohort")
    parser.add_argument("--jobs", type=int, default=None, help="number of jobs")
    parser.add_argument("--strategy", type=Order, default=Order.BACKFILL)
    parser.add_argument("--durations", type=Durations, default=Durations.DECLARED)
    given = parser.parse_args()
    setting = busy_cluster(given.folder, given.jobs, cohort=given.cohort)
    most, held = 0, 0

    def progress(world: World) -> None:
        nonlocal most, held
        most, held = max(most, world.waiting), max(held, world.held)

    began = time.process_time()
    found = simulate(
        setting, Policy(PlacementRule.PLANNER, given.strategy, given.durations), progress
    )
    took = time.process_time() - began
    each = 1000 * took / max(1, found.total.waits.finished)
    print(f"{found.total.waits.finished:,} jobs, at most {most:,} waiting and {held:,} GPUs held:")
    print(f"{took:,.0f} s of CPU time, {each:.2f} ms for each job")
    print(f"mean wait {found.total.waits.mean or 0:,.0f} s")


if __name__ == "__main__":
    main()
