"""Planner latencies, CP-SAT included: ``python -m tests.bench.bench_planner``.

One line per load: the whole of ``plan()`` from snapshot to plan, in milliseconds; *wall* as the clock saw it, *cpu* of the
planning thread, the solver included (what an idle machine would show). *Unsearched* is the share of gangs that counting
and a witness decided; the one solve that confirms every plan is not a search. The figure of the prototype is alongside
ours. Clusters are synthetic (:mod:`tests.bench.clusters`), three quarters of their nodes full; each has a process of its
own, so its peak memory is that of the load. The garbage collector is set as the controller sets it. Every plan is verified,
outside the clock.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from queuectl.domain.plan import Plan, Proof
from queuectl.domain.queues import QueueConfig
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import PodSet, TopologyMode, TopologyRequest, Workload
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.verify import verify
from tests.bench.clusters import (
    FIVE,
    RACK,
    SIZES,
    THREE,
    Size,
    admitted,
    busy,
    chain_gang,
    config,
    fleet,
    gang,
    gang_of,
    mixed_gang,
    random_gang,
    shape,
    sliced_gang,
    snapshot,
)

SEED = 3
FULL = 0.75
LONGEST = 2000.0  # ms within which every case of the mix must be answered
HEAD = (
    "| load | wall p50 / p95 / max | cpu p50 / p95 / max | plans | unsearched | undecided |"
    " prototype or peer | target |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
)

Maker = Callable[[str, float], Workload]


@dataclass(frozen=True)
class Line:
    """One row of the table: samples in milliseconds, and the results of the plans."""

    load: str
    wall: list[float]
    cpu: list[float]
    plans: list[Plan]
    peer: str
    target: str

    @property
    def undecided(self) -> int:
        return sum(p.proof is Proof.UNDECIDED for p in self.plans)

    def render(self) -> str:
        return (
            f"| {self.load} | {three(self.wall)} | {three(self.cpu)} | {len(self.plans)} |"
            f" {_unsearched(self.plans):.0%} | {self.undecided} | {self.peer} | {self.target} |"
        )


def _unsearched(plans: Sequence[Plan]) -> float:
    gangs = sum(p.stats["looked_at"] for p in plans)
    searches = sum(p.stats["solves"] - bool(p.admitted) for p in plans)
    return max(0.0, 1 - searches / gangs)


def three(samples: Sequence[float]) -> str:
    ordered = sorted(samples)
    p50, p95 = (ordered[min(len(ordered) - 1, int(len(ordered) * q))] for q in (0.5, 0.95))
    return f"{p50:.1f} / {p95:.1f} / {ordered[-1]:.1f}"


def measure(load: str, snapshots: Iterable[Snapshot], peer: str = "-", target: str = "-") -> Line:
    """Plan each snapshot once; the fleet is known from a cycle before, as in the running loop."""
    wall, cpu, plans = [], [], []
    cache = PlannerCache()
    gc.set_threshold(50_000, 20, 20)  # as the controller does
    for number, taken in enumerate(snapshots):
        if number == 0:
            plan(taken, cache=cache)
            gc.collect()
            gc.freeze()
        at, of_thread = time.perf_counter(), time.thread_time()
        made = plan(taken, cache=cache)
        cpu.append((time.thread_time() - of_thread) * 1e3)
        wall.append((time.perf_counter() - at) * 1e3)
        plans.append(made)
        found = verify(taken, made)
        assert not found, found
    return Line(load, wall, cpu, plans, peer, target)


@dataclass
class Cluster:
    size: Size
    levels: tuple[str, ...] = THREE

    def __post_init__(self) -> None:
        self.rng = random.Random(SEED)
        self.nodes = fleet(self.size, self.rng)
        self.running = busy(self.nodes, FULL, self.rng)
        self.settings = config(levels=self.levels)

    def with_gangs(self, gangs: Sequence[Workload]) -> Snapshot:
        return snapshot(self.nodes, self.settings, self.running, tuple(gangs))

    def singles(self, make: Maker, count: int) -> list[Snapshot]:
        return [self.with_gangs([make(f"g{i}", 0.0)]) for i in range(count)]

    def batches(self, make: Maker, count: int, width: int = 50) -> list[Snapshot]:
        return [
            self.with_gangs([make(f"k{b}-{i}", float(i)) for i in range(width)])
            for b in range(count)
        ]


ONE = {640: "0.14 / 3.9 / 20", 5000: "0.33 / 3.9 / 14", 10000: "0.42 / 3.2 / 68"}
MANY = {640: "6 (solver alone)", 5000: "16 (solver alone)", 10000: "27 (solver alone)"}
HUNDRED = {640: "11 (solver alone)", 5000: "133 (solver alone)", 10000: "-"}
MANY_TARGET = {640: "50", 5000: "100", 10000: "150"}


def placements(size: Size, levels: tuple[str, ...], few: float) -> Iterator[Line]:
    """One gang of each sort, then many together; on five levels the mixes alone."""
    cluster = Cluster(size, levels)
    rng, n = cluster.rng, size.nodes
    where = f"{n} nodes, {len(levels)} levels"
    singles = max(10, int(60 * few))
    if levels is THREE:
        for sets in (1, 2, 3, 4):

            def of_sets(uid: str, at: float, sets: int = sets) -> Workload:
                return gang_of(uid, sets, rng, levels, at)

            yield measure(
                f"one gang, {sets} podsets, {where}",
                cluster.singles(of_sets, singles),
                ONE[n],
                "2 / 100",
            )
    yield measure(
        f"one sliced gang, {where}",
        cluster.singles(lambda uid, at: sliced_gang(uid, rng, levels, at), singles),
        target="2 / 100",
    )

    def any_gang(uid: str, at: float) -> Workload:
        return mixed_gang(uid, rng, levels, at)

    mix = measure(
        f"**one gang of the mix, {where}**",
        cluster.singles(any_gang, 2 * singles),
        ONE[n],
        "2 / 100",
    )
    yield mix
    batches = max(3, int(10 * few))
    if levels is THREE:
        yield measure(
            f"50 gangs of 1, 2, 4, 8 GPUs, {where}",
            cluster.batches(lambda uid, at: chain_gang(uid, rng, at), batches),
            MANY[n],
            MANY_TARGET[n],
        )
        yield measure(
            f"50 gangs of 1 to 3 podsets, {where}",
            cluster.batches(lambda uid, at: random_gang(uid, rng, at), batches),
            target=MANY_TARGET[n],
        )
    yield measure(
        f"50 gangs of the mix, {where}",
        cluster.batches(any_gang, batches),
        target=MANY_TARGET[n],
    )
    yield measure(
        f"100 gangs of the mix, {where}",
        cluster.batches(any_gang, max(2, batches // 2), 100),
        HUNDRED[n],
    )


# A full cluster's "no".

FIVE_HUNDRED = Size(1, 10, 50)


def _eighty(level: str | None) -> Workload:
    topology = TopologyRequest(TopologyMode.REQUIRED, level) if level else None
    return gang("eighty", PodSet("w", 10, shape(8, 64_000, 512), topology))


def refusals() -> Iterator[Line]:
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
    for name, settings, running, level in loads:
        yield measure(
            f"a no to 80 GPUs on 500 nodes: {name}",
            [snapshot(nodes, settings, running, (_eighty(level),))] * 20,
            "Kueue 50 (a greedy count), KAI 249,500",
            "100, proved",
        )


def long_queues() -> Iterator[Line]:
    """A thousand equal gangs on a full cluster; a thousand different ones where few fit."""
    rng = random.Random(SEED)
    for size in SIZES:
        nodes = fleet(size, rng)
        running = busy(nodes, 1.0, rng)
        pods = (PodSet("a", 4, shape(8, 64_000, 512)), PodSet("b", 2, shape(3, 8_000, 64)))
        equal = tuple(gang(f"e{i}", *pods, queued_at=float(i)) for i in range(1000))
        taken = snapshot(nodes, config(), running, equal)
        yield measure(f"1,000 equal pending gangs, full, {size.nodes} nodes", [taken] * 5)
    cluster = Cluster(SIZES[1])
    gangs = [chain_gang(f"d{i}", cluster.rng, float(i)) for i in range(1000)]
    yield measure("1,000 different pending gangs, 5000 nodes", [cluster.with_gangs(gangs)] * 2)


# A process for each cluster, so that its memory is its own.

PARTS = [f"{size.nodes}/{len(levels)}" for size in SIZES for levels in (THREE, FIVE)]


def part(name: str, few: float) -> None:
    """Print the lines of one cluster, and what it took."""
    if name == "queues":
        lines: Iterator[Line] = (line for each in (refusals(), long_queues()) for line in each)
    else:
        nodes, levels = map(int, name.split("/"))
        size = next(size for size in SIZES if size.nodes == nodes)
        lines = placements(size, THREE if levels == len(THREE) else FIVE, few)
    mix: list[Line] = []
    for line in lines:
        print(line.render(), flush=True)
        mix += [line] if "the mix" in line.load else []
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"| {name}: peak memory {peak:.0f} MiB | | | | | | - | - |", flush=True)
    if name.startswith("5000"):
        slowest = max(max(line.wall) for line in mix)
        undecided = sum(line.undecided for line in mix)
        met = "met" if slowest <= LONGEST and not undecided else "**missed**"
        result = f"slowest {slowest:.0f} ms, {undecided} undecided: {met}"
        print(f"| every case of the mix, {name} | {result} | | | | | - | 2000, none undecided |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the samples")
    parser.add_argument("--part", choices=[*PARTS, "queues"], help="this cluster alone")
    given = parser.parse_args()
    few = 0.25 if given.quick else 1.0
    if given.part:
        part(given.part, few)
        return 0
    print(HEAD, flush=True)
    for name in [*PARTS, "queues"]:
        command = [sys.executable, "-m", "tests.bench.bench_planner", "--part", name]
        code = subprocess.run([*command, *(["--quick"] if given.quick else [])], check=False)
        if code.returncode:
            return code.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
