"""The cost of explanations, alongside the plan: ``python -m tests.bench.bench_explain``.

One line per load, in milliseconds alongside a plan that is at hand; *wall* as the clock saw it, *cpu* of the thread. *last*:
:func:`queuectl.planner.explain.diagnose` for the last gang of the cycle that waits; *all*: every gang of the cycle that waits. Three
quarters of the nodes are full. Each suggested fix is checked outside the clock: on the changed snapshot the planner must start the
gang, or evict others for it. The target is at most 300 ms at 5,000 nodes (p95), off the admission path.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice

from queuectl.domain.diagnosis import apply_all
from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.explain import diagnose_those
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
    gangs: int = 0
    ways: int = 0

    def render(self) -> str:
        return (
            f"| {self.load} | {three(self.wall)} | {three(self.cpu)} | {len(self.wall)} |"
            f" {self.gangs} | {self.ways} | {self.target} |"
        )


@dataclass(frozen=True)
class Cycle:
    """A snapshot, its plan, and who waits in it, in queue order."""

    snapshot: Snapshot
    planned: Plan
    uids: tuple[str, ...]
    cache: PlannerCache


def waiting(cluster: Cluster, width: int) -> Iterator[Cycle]:
    """Cycles of ``width`` random gangs in which some gang does not start; endless."""
    number = 0
    cache = PlannerCache()
    while True:
        number += 1
        gangs = [random_gang(f"g{number}-{i}", cluster.rng, float(i)) for i in range(width)]
        snapshot = cluster.with_gangs(gangs)
        planned = plan(snapshot, cache=cache)
        refused = tuple(r.uid for r in planned.pending if r.lease is None)
        if refused:
            yield Cycle(snapshot, planned, refused, cache)


def measure(line: Line, cycle: Cycle, uids: Collection[str]) -> None:
    """Diagnoses of one cycle, and the check of their ways."""
    wall, cpu = time.perf_counter(), time.thread_time()
    found = list(
        diagnose_those(cycle.snapshot, frozenset(uids), plan=cycle.planned, cache=cycle.cache)
    )
    line.cpu.append((time.thread_time() - cpu) * 1000)
    line.wall.append((time.perf_counter() - wall) * 1000)
    line.gangs += len(found)
    for diagnosis in found:
        assert diagnosis.conflict
        for way in diagnosis.suggested_fixes:
            changed = plan(apply_all(way.changes, cycle.snapshot))
            started = {a.uid for a in changed.admitted} | {p.preemptor for p in changed.preempted}
            assert diagnosis.uid in started, way
            line.ways += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer samples, no 10,000 nodes")
    quick = parser.parse_args().quick
    gc.set_threshold(50_000, 20, 20)  # as the controller does
    print(
        "| nodes, pending, explained | wall p50 / p95 / max | cpu p50 / p95 / max | cycles | gangs | ways | target p95 |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for size in SIZES[:2] if quick else SIZES:
        for width in (1, 50):
            cycles = list(islice(waiting(Cluster(size), width), 5 if quick else 20))
            gc.collect()
            gc.freeze()
            for said, first in (("last", -1), ("all", 0)):
                line = Line(f"{size.nodes}, {width}, {said}", TARGET[size.nodes])
                for cycle in cycles:
                    measure(line, cycle, cycle.uids[first:])
                print(line.render(), flush=True)


if __name__ == "__main__":
    main()
