"""The effect of each heuristic of placement: ``python -m tests.bench.ablate --nodes 10000``.

Each snapshot is planned in turns: with all heuristics, then without each of them, each way with its own cache. One line per load and
heuristic that is off: the CPU time of the planning thread and the work of the solver, as ratios to the plans with all heuristics, and how
many plans are worse by the score of the corpus (:mod:`tests.corpus.compare`). A heuristic without effect has ratios of 1 and no worse plan.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import plan, plan_cycle
from queuectl.planner.cache import PlannerCache
from queuectl.planner.placement import feasible
from tests.bench.bench_planner import Cluster
from tests.bench.clusters import SIZES, chain_gang, mixed_gang, random_gang
from tests.corpus.compare import compare_scores
from tests.corpus.score import score_of

ALL = "all on"
OFF: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    ALL: nullcontext,
    "look_ahead": lambda: patch.object(plan_cycle, "look_ahead", lambda *_: None),
    "_in_the_way": lambda: patch.object(feasible, "_in_the_way", lambda *_: iter(())),
    "_one_by_one": lambda: patch.object(feasible, "_one_by_one", lambda *_: None),
    "narrow": lambda: patch.object(plan_cycle, "narrow", lambda *_: None),
}
HEAD = (
    "| load | off | cpu p50 | cpu p95 | solves | deterministic time | worse plans |\n"
    + "| --- " * 7
    + "|"
)


@dataclass
class Way:
    """The plans of one load without one heuristic."""

    cache: PlannerCache = field(default_factory=PlannerCache)
    cpu: list[float] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)

    def plan(self, snapshot: Snapshot) -> None:
        began = time.thread_time()
        self.plans.append(plan(snapshot, cache=self.cache))
        self.cpu.append(time.thread_time() - began)

    def quantile(self, part: float) -> float:
        ordered = sorted(self.cpu)
        return ordered[min(len(ordered) - 1, int(len(ordered) * part))]

    def stat(self, name: str) -> float:
        return sum(made.stats[name] for made in self.plans)


def loads(nodes: int, batches: int) -> Iterator[tuple[str, list[Snapshot]]]:
    """Many gangs at once on a cluster that is three quarters full."""
    cluster = Cluster(next(size for size in SIZES if size.nodes == nodes))
    rng, levels = cluster.rng, cluster.levels
    makers = {
        "50 gangs of 1, 2, 4, 8 GPUs": (lambda uid, at: chain_gang(uid, rng, at), 50),
        "50 gangs of 1 to 3 podsets": (lambda uid, at: random_gang(uid, rng, at), 50),
        "50 gangs of the mix": (lambda uid, at: mixed_gang(uid, rng, levels, at), 50),
        "100 gangs of the mix": (lambda uid, at: mixed_gang(uid, rng, levels, at), 100),
    }
    for name, (make, width) in makers.items():
        yield f"{name}, {nodes} nodes", cluster.batches(make, batches, width)


def measure(load: str, snapshots: Sequence[Snapshot], off: Sequence[str]) -> Iterator[str]:
    """Plan each snapshot in each way; the lines of the table."""
    ways = {name: Way() for name in (ALL, *off)}
    for way in ways.values():
        plan(snapshots[0], cache=way.cache)
    gc.collect()
    gc.freeze()
    for snapshot in snapshots:
        for name, way in ways.items():
            with OFF[name]():
                way.plan(snapshot)
    base = ways.pop(ALL)
    for name, way in ways.items():
        pairs = zip(snapshots, base.plans, way.plans, strict=True)
        worse = sum(
            any(d.worse for d in compare_scores(score_of(taken, was), score_of(taken, now)))
            for taken, was, now in pairs
        )
        ratios = [
            way.quantile(0.5) / base.quantile(0.5),
            way.quantile(0.95) / base.quantile(0.95),
            *(
                way.stat(stat) / base.stat(stat) if base.stat(stat) else float("nan")
                for stat in ("solves", "deterministic_time")
            ),
        ]
        shown = " | ".join(f"{ratio:.2f}" for ratio in ratios)
        yield f"| {load} | {name} | {shown} | {worse} of {len(snapshots)} |"


def main() -> None:
    names = [name for name in OFF if name != ALL]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000, choices=[s.nodes for s in SIZES])
    parser.add_argument("--batches", type=int, default=10, help="snapshots of each load")
    parser.add_argument("--off", nargs="+", choices=names, default=names)
    options = parser.parse_args()
    print(HEAD, flush=True)
    for load, snapshots in loads(options.nodes, options.batches):
        for line in measure(load, snapshots, options.off):
            print(line, flush=True)


if __name__ == "__main__":
    main()
