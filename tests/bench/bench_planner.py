"""Planner latencies, CP-SAT included: ``python -m tests.bench.bench_planner``.

One line per load: the whole of ``plan()`` from snapshot to plan, in milliseconds; *wall* as the clock saw it, *cpu* of the
planning thread, the solver included (what an idle machine would show). The peer's figure stands beside ours; the cluster is
synthetic (:mod:`tests.bench.clusters`), three quarters of its nodes full. Every plan is verified, outside the clock.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from queuectl.domain.plan import Plan, Proof
from queuectl.domain.queues import QueueConfig
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import PodSet, TopologyMode, TopologyRequest, Workload
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.bench.clusters import (
    RACK,
    SIZES,
    Size,
    admitted,
    busy,
    chain_gang,
    config,
    fleet,
    gang,
    random_gang,
    shape,
    snapshot,
)

SEED = 3
FULL = 0.75


@dataclass(frozen=True)
class Line:
    """One row of the table: samples in milliseconds and what the plans said."""

    load: str
    wall: list[float]
    cpu: list[float]
    plans: list[Plan]
    peer: str
    target: str

    def render(self) -> str:
        searched = sum(p.stats["solves"] > 1 for p in self.plans)
        open_ = sum(p.proof is Proof.UNDECIDED for p in self.plans)
        counts = f"{len(self.plans)}/{searched}/{open_}"
        return (
            f"| {self.load} | {_three(self.wall)} | {_three(self.cpu)} | {counts} |"
            f" {self.peer} | {self.target} |"
        )


def _three(samples: Sequence[float]) -> str:
    ordered = sorted(samples)
    p50, p95 = (ordered[min(len(ordered) - 1, int(len(ordered) * q))] for q in (0.5, 0.95))
    return f"{p50:.1f} / {p95:.1f} / {ordered[-1]:.1f}"


def measure(load: str, snapshots: Iterable[Snapshot], peer: str, target: str) -> Line:
    """Plan each snapshot once; the fleet is known from a cycle before, as in the running loop."""
    wall, cpu, plans = [], [], []
    for number, taken in enumerate(snapshots):
        if number == 0:
            plan(taken)
        at, of_thread = time.perf_counter(), time.thread_time()
        made = plan(taken)
        cpu.append((time.thread_time() - of_thread) * 1e3)
        wall.append((time.perf_counter() - at) * 1e3)
        plans.append(made)
        found = verify(taken, made)
        assert not found, found
    return Line(load, wall, cpu, plans, peer, target)


Maker = Callable[[str, random.Random, float], Workload]


@dataclass
class Cluster:
    size: Size
    rng: random.Random

    def __post_init__(self) -> None:
        self.nodes = fleet(self.size, self.rng)
        self.running = busy(self.nodes, FULL, self.rng)
        self.settings = config()

    def with_gangs(self, gangs: Sequence[Workload]) -> Snapshot:
        return snapshot(self.nodes, self.settings, self.running, tuple(gangs))

    def singles(self, count: int) -> list[Snapshot]:
        return [self.with_gangs([random_gang(f"g{i}", self.rng)]) for i in range(count)]

    def batches(self, make: Maker, count: int, width: int = 50) -> list[Snapshot]:
        return [
            self.with_gangs([make(f"k{b}-{i}", self.rng, float(i)) for i in range(width)])
            for b in range(count)
        ]


ONE = {
    640: "prototype 0.14 / 3.9 / 20",
    5000: "prototype 0.33 / 3.9 / 14",
    10000: "prototype 0.42 / 3.2 / 68",
}
MANY = {640: "prototype 6 (solver)", 5000: "prototype 16 (solver)", 10000: "prototype 27 (solver)"}
MANY_TARGET = {640: "50", 5000: "100", 10000: "150"}


def placements(size: Size, quick: bool) -> list[Line]:
    """One gang, and fifty together: of the mix, and of pods of 1, 2, 4 or 8 GPUs only."""
    cluster = Cluster(size, random.Random(SEED))
    n = size.nodes
    batches = 3 if quick else 10
    return [
        measure(
            f"one gang of the mix, {n} nodes",
            cluster.singles(30 if quick else 120),
            ONE[n],
            "2 / 100",
        ),
        measure(
            f"50 gangs of 1, 2, 4, 8 GPUs, {n} nodes",
            cluster.batches(chain_gang, batches),
            MANY[n],
            MANY_TARGET[n],
        ),
        measure(
            f"50 gangs of the mix, {n} nodes",
            cluster.batches(random_gang, batches),
            "-",
            MANY_TARGET[n],
        ),
    ]


# A full cluster's "no".

FIVE_HUNDRED = Size(1, 10, 50)


def _eighty(level: str | None) -> Workload:
    topology = TopologyRequest(TopologyMode.REQUIRED, level) if level else None
    return gang("eighty", PodSet("w", 10, shape(8, 64_000, 512), topology))


def _refusals() -> list[Line]:
    rng = random.Random(SEED)
    nodes = fleet(FIVE_HUNDRED, rng, out=0.0)
    pod = shape(8, 64_000, 512)
    full = tuple(admitted(f"r{i}", pod, {n.name: 1}) for i, n in enumerate(nodes.nodes))
    spread = tuple(a for i, a in enumerate(full) if i % 50 >= 5)  # five free nodes in each rack
    loads: list[tuple[str, QueueConfig, tuple[Admitted, ...], str | None]] = [
        ("full cluster, no quota left", config(nominal=4000), full, None),
        ("full cluster, nothing free", config(), full, None),
        ("400 GPUs free, none of 80 in one rack", config(), spread, RACK),
    ]
    return [
        measure(
            f"80-GPU gang: {name}",
            [snapshot(nodes, settings, running, (_eighty(level),))] * 20,
            "Kueue 50 (a count), KAI 249,500",
            "100",
        )
        for name, settings, running, level in loads
    ]


def _many_equal() -> list[Line]:
    rng = random.Random(SEED)
    lines = []
    for size in SIZES:
        nodes = fleet(size, rng)
        running = busy(nodes, 1.0, rng)
        pods = (PodSet("a", 4, shape(8, 64_000, 512)), PodSet("b", 2, shape(3, 8_000, 64)))
        equal = tuple(gang(f"e{i}", *pods, queued_at=float(i)) for i in range(1000))
        taken = snapshot(nodes, config(), running, equal)
        lines.append(
            measure(f"1,000 equal pending gangs, full, {size.nodes} nodes", [taken] * 5, "-", "-")
        )
    return lines


def _deep_queue() -> list[Line]:
    """A thousand different gangs on a cluster that holds few of them."""
    cluster = Cluster(SIZES[1], random.Random(SEED))
    gangs = [chain_gang(f"d{i}", cluster.rng, float(i)) for i in range(1000)]
    entries = cluster.with_gangs(gangs)
    return [measure("1,000 pending gangs, 5000 nodes", [entries] * 2, "-", "-")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples")
    quick = parser.parse_args().quick
    print(
        "| load | wall p50 / p95 / max | cpu p50 / p95 / max | plans / searched / open | peer | target |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for size in SIZES:
        for line in placements(size, quick):
            print(line.render(), flush=True)
    for line in [*_refusals(), *_many_equal(), *_deep_queue()]:
        print(line.render(), flush=True)


if __name__ == "__main__":
    main()
