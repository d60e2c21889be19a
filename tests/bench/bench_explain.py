"""What an explanation costs beside the plan: ``python -m tests.bench.bench_explain``.

One line per load: :func:`queuectl.planner.why.diagnose` for a gang that waits, in milliseconds; *wall* as the clock saw it,
*cpu* of the thread. Three quarters of the nodes are full. Every way out is checked outside the clock: the planner must start
the gang on the changed snapshot. The target is design §5: at most 300 ms at 5,000 nodes (p95), off the admission path.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from queuectl.domain.changes import apply_all
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import plan
from queuectl.planner.why import diagnose
from tests.bench.bench_planner import Cluster, three
from tests.bench.clusters import SIZES, random_gang

TARGET = {640: "-", 5000: "300", 10000: "-"}


@dataclass
class Line:
    """One row of the table."""

    load: str
    target: str
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    ways: int = 0

    def render(self) -> str:
        return (
            f"| {self.load} | {three(self.wall)} | {three(self.cpu)} | {len(self.wall)} |"
            f" {self.ways} | {self.target} |"
        )


def waiting(cluster: Cluster, width: int) -> Iterator[tuple[Snapshot, str]]:
    """Snapshots of ``width`` random gangs, and the last gang of each that does not start; endless."""
    number = 0
    while True:
        number += 1
        gangs = [random_gang(f"g{number}-{i}", cluster.rng, float(i)) for i in range(width)]
        snapshot = cluster.with_gangs(gangs)
        refused = [r.uid for r in plan(snapshot).pending if r.lease is None]
        if refused:
            yield snapshot, refused[-1]


def measure(line: Line, snapshot: Snapshot, uid: str) -> None:
    """One diagnosis, and the check of its ways."""
    wall, cpu = time.perf_counter(), time.thread_time()
    diagnosis = diagnose(snapshot, uid)
    line.cpu.append((time.thread_time() - cpu) * 1000)
    line.wall.append((time.perf_counter() - wall) * 1000)
    assert diagnosis.conflict
    for way in diagnosis.ways:
        changed = plan(apply_all(way.changes, snapshot))
        assert any(a.uid == uid for a in changed.admitted), way
        line.ways += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer samples, no 10,000 nodes")
    quick = parser.parse_args().quick
    print(
        "| nodes, pending | wall p50 / p95 / max | cpu p50 / p95 / max | gangs | ways | target p95 |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for size in SIZES[:2] if quick else SIZES:
        for width in (1, 50):
            line = Line(f"{size.nodes}, {width}", TARGET[size.nodes])
            source = waiting(Cluster(size), width)
            for _, (snapshot, uid) in zip(range(5 if quick else 20), source, strict=False):
                measure(line, snapshot, uid)
            print(line.render(), flush=True)


if __name__ == "__main__":
    main()
