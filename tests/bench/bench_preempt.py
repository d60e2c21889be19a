"""Victims for one blocked gang: time, domains solved, and what a removal in queue order would have cost.

Run with ``python -m tests.bench.bench_preempt``. Synthetic clusters of 8-GPU nodes in blocks and racks, nearly full. For
comparison the same snapshots are given to a removal in Kueue's order, written here after its documentation: lowest
priority first, newest first, until the gang fits; then put back in reverse whoever is not needed. It is not Kueue itself.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from queuectl.domain.fleet import HOSTNAME, Fleet, Node
from queuectl.domain.plan import Proof
from queuectl.domain.quantity import CPU, GPU, MEMORY, PODS, Resources
from queuectl.domain.queues import (
    ClusterQueue,
    FlavorQuotas,
    LabelSelector,
    LocalQueue,
    QueueConfig,
    ResourceFlavor,
    ResourceGroup,
    Topology,
    WithinClusterQueue,
)
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import (
    Placement,
    PodSet,
    PodSetPlacement,
    PodShape,
    TopologyMode,
    TopologyRequest,
    Workload,
)
from queuectl.planner.arena import Arena, caps, survey
from queuectl.planner.asking import demand_of
from queuectl.planner.demand import Demand
from queuectl.planner.ledger import open_ledger
from queuectl.planner.preempt import Victims, find_victims
from queuectl.planner.preempt_parts import parts_of
from queuectl.planner.preempt_roster import Bench, bench_for
from queuectl.planner.preempt_scene import domains_of, sums
from queuectl.planner.solve import Solver

NOW = 2_000_000.0
LEVELS = ("block", "rack", HOSTNAME)
GIB = 1 << 30
COVERED = (CPU, MEMORY, PODS, GPU)
FLAVORS = dict.fromkeys(COVERED, "default")
TRIES = 8  # snapshots per line
MIXED, SMALL, FLAT, BLEND = "mixed", "small", "small, one priority", "spread"


@dataclass(frozen=True)
class Line:
    """One line of the table: a cluster, what runs on it, the blocked gang, and the prototype's figure in ms."""

    blocks: int
    racks: int
    hosts: int
    load: str
    nodes: int
    level: str | None
    prototype: str
    several: bool = (
        False  # beside the workers a launcher without GPUs and six 2-GPU pods, all in one domain
    )

    @property
    def size(self) -> int:
        return self.blocks * self.racks * self.hosts


LINES = (
    Line(2, 5, 10, MIXED, 16, "block", "1-4"),
    Line(1, 10, 64, MIXED, 32, "rack", "4-7"),
    Line(1, 10, 64, MIXED, 128, "block", "3-9"),
    Line(1, 10, 64, MIXED, 64, None, "6-8"),
    Line(1, 10, 64, SMALL, 16, "rack", "44-76"),
    Line(1, 10, 64, SMALL, 32, "rack", "55-108"),
    Line(1, 10, 64, SMALL, 64, None, "115-244"),
    Line(1, 10, 64, FLAT, 32, "rack", "-"),
    Line(1, 10, 64, FLAT, 64, None, "-"),
    Line(4, 8, 38, SMALL, 16, "rack", "64-74"),
    Line(5, 20, 50, MIXED, 128, "block", "34-37"),
    Line(5, 20, 50, MIXED, 256, None, "14-55"),
    Line(5, 20, 50, SMALL, 16, "rack", "251-423"),
    Line(5, 20, 50, SMALL, 256, None, "-"),
    Line(1, 10, 64, BLEND, 32, "rack", "-"),
    Line(5, 20, 50, FLAT, 16, "rack", "-"),
    Line(5, 20, 50, BLEND, 16, "rack", "-"),
    Line(5, 20, 50, BLEND, 256, None, "-"),
    Line(5, 20, 50, FLAT, 256, None, "-"),
    Line(1, 10, 64, SMALL, 16, "rack", "-", several=True),
    Line(1, 10, 64, FLAT, 16, "rack", "-", several=True),
    Line(5, 20, 50, MIXED, 128, "block", "-", several=True),
    Line(5, 20, 50, SMALL, 16, "rack", "-", several=True),
    Line(5, 20, 50, SMALL, 200, None, "-", several=True),
)


# -- snapshots


def fleet_of(line: Line) -> Fleet:
    allocatable = Resources({GPU: 8, CPU: 96_000, MEMORY: 1024 * GIB, PODS: 110})
    nodes = [
        Node(
            f"n-{b}-{r}-{h}",
            {"block": f"b{b}", "rack": f"r{b}-{r}", HOSTNAME: f"n-{b}-{r}-{h}"},
            allocatable,
        )
        for b in range(line.blocks)
        for r in range(line.racks)
        for h in range(line.hosts)
    ]
    return Fleet(tuple(sorted(nodes, key=lambda n: n.name)))


def config() -> QueueConfig:
    quotas = FlavorQuotas("default", dict.fromkeys(COVERED, 1 << 55))
    queue = ClusterQueue(
        "main",
        (ResourceGroup(COVERED, (quotas,)),),
        within_cluster_queue=WithinClusterQueue.LOWER_PRIORITY,
        namespace_selector=LabelSelector(),
    )
    return QueueConfig(
        1,
        {"main": queue},
        {("team", "main"): LocalQueue("team", "main", "main")},
        {"default": ResourceFlavor("default", topology="gpus")},
        {"gpus": Topology("gpus", LEVELS)},
    )


def shape(gpus: int) -> PodShape:
    return PodShape(Resources({GPU: gpus, CPU: gpus * 11_000, MEMORY: gpus * 100 * GIB, PODS: 1}))


def gang(uid: str, pods: int, gpus: int, priority: int, level: str | None = None) -> Workload:
    topology = TopologyRequest(TopologyMode.REQUIRED, level) if level is not None else None
    podset = PodSet("w", pods, shape(gpus), topology)
    return Workload(uid, "Job", "team", uid, (podset,), "main", priority)


def with_helpers(workers: Workload) -> Workload:
    """The gang with podsets of two more shapes in the same domain."""
    (main,) = workers.podsets
    group = "g" if main.topology is not None else None
    cpu_only = PodShape(Resources({CPU: 20_000, MEMORY: 8 * GIB, PODS: 1}))
    small = PodShape(Resources({GPU: 2, CPU: 20_000, MEMORY: 8 * GIB, PODS: 1}))
    podsets = (
        replace(main, group=group),
        PodSet("launcher", 1, cpu_only, main.topology, group),
        PodSet("loader", 6, small, main.topology, group),
    )
    return replace(workers, podsets=podsets)


def tenants(line: Line, fleet: Fleet, rng: random.Random) -> Iterator[Admitted]:
    """Gangs one after the other over the nodes in topology order; about 3 % of the nodes stay idle."""
    names = [n.name for n in fleet.nodes if rng.random() >= 0.03]
    priorities = (0,) if line.load in (FLAT, BLEND) else (0, 0, 10, 20, 50)
    for number, (nodes, gpus) in enumerate(_held(line.load, names, rng)):
        yield admitted(f"g{number}", nodes, gpus, rng.choice(priorities), rng)


def _held(load: str, names: list[str], rng: random.Random) -> Iterator[tuple[list[str], int]]:
    """Nodes and GPUs per node of one gang after the other."""
    if load == BLEND:
        yield from _spread(names, rng)
        return
    at = 0
    while at < len(names):
        if load == MIXED and rng.random() < 0.35:
            nodes = min(rng.choice((2, 4, 8, 16, 32)), len(names) - at)
            yield names[at : at + nodes], 8
            at += nodes
            continue
        left = 8
        while left > 0 and (left == 8 or rng.random() < 0.93):
            gpus = min(left, rng.choice((8, 8, 4) if load == MIXED else (1, 2, 2, 4, 4, 8)))
            yield [names[at]], gpus
            left -= gpus
        at += 1


def _spread(names: list[str], rng: random.Random) -> Iterator[tuple[list[str], int]]:
    """Gangs of one to four 2- or 4-GPU pods on nodes near each other that they share with others: the hardest load."""
    for first in range(0, len(names), 16):
        near = names[first : first + 16]
        for gpus, slots in ((4, 1), (2, 2)):
            pieces = [n for n in near for _ in range(slots)]
            rng.shuffle(pieces)
            while pieces:
                size = rng.choice((1, 1, 2, 3, 4))
                yield list(dict.fromkeys(pieces[:size])), gpus
                pieces = pieces[size:]


def admitted(uid: str, nodes: list[str], gpus: int, priority: int, rng: random.Random) -> Admitted:
    workload = gang(uid, len(nodes), gpus, priority)
    where = PodSetPlacement("w", tuple((n, 1) for n in nodes), FLAVORS)
    started = NOW - rng.randrange(60, 200_000)
    return Admitted(
        workload,
        Placement((where,)),
        started_at=started,
        checkpoint_at=NOW - rng.randrange(0, 7200) if rng.random() < 0.7 else None,
        utilization=rng.choice((None, 0.05, 0.5, 0.9, 0.97)),
    )


def snapshot(line: Line, seed: int) -> Snapshot:
    rng = random.Random(seed)
    fleet = fleet_of(line)
    blocked = gang("blocked", line.nodes, 8, 100, line.level)
    if line.several:
        blocked = with_helpers(blocked)
    running = tuple(tenants(line, fleet, rng))
    return Snapshot(NOW, fleet, config(), (Pending(blocked),), running, {}, {"team": {}})


# -- the order to compare with


def in_queue_order(arena: Arena, demand: Demand, bench: Bench) -> list[int] | None:
    """Lowest priority first, newest first, until it fits; then back in reverse whoever is not needed."""
    fits = _fits(arena, demand)
    order = sorted(
        range(bench.size), key=lambda i: (int(bench.rank[i]), -bench.gangs[i].started_at)
    )
    free = arena.later.copy()
    taken: list[int] = []
    for gang_at in order:
        if fits(free):
            break
        _move(free, arena, bench.gangs[gang_at], 1)
        taken.append(gang_at)
    if not fits(free):
        return None
    for gang_at in list(reversed(taken)):
        _move(free, arena, bench.gangs[gang_at], -1)
        if fits(free):
            taken.remove(gang_at)
        else:
            _move(free, arena, bench.gangs[gang_at], 1)
    return taken


def _fits(arena: Arena, demand: Demand) -> Callable[[np.ndarray], bool]:
    (part,) = parts_of(demand)
    ((pod, count),) = part.counts
    domain, domains = domains_of(part)
    return lambda free: bool((sums(domain, domains, caps(free, pod)) >= count).any())


def _move(free: np.ndarray, arena: Arena, gang_there: Admitted, sign: int) -> None:
    nodes, amounts = arena.use_of(gang_there)
    for row, amount in zip(free, amounts, strict=True):
        np.add.at(row, nodes, sign * amount)


# -- the table


@dataclass
class Measured:
    millis: list[float]
    cpu: list[float]
    solver_calls: list[int]
    ours: list[tuple[int, int, int]]
    theirs: list[tuple[int, int, int]]
    running: int
    proved: int


def measure(line: Line, *, compare: bool) -> Measured:
    done = Measured([], [], [], [], [], 0, 0)
    for seed in range(TRIES):
        snap = snapshot(line, seed)
        entry = snap.pending[0]
        queue = snap.config.cluster_queues["main"]
        arena = survey(snap)
        flavors = tuple(
            {r: f for r, f in FLAVORS.items() if p.shape.requests[r]}
            for p in entry.workload.podsets
        )
        demand = demand_of(arena, entry, queue, flavors)
        solver = Solver(snap.limits)
        began, busy = time.perf_counter(), time.process_time()
        answer = find_victims(open_ledger(arena), demand, queue, solver)
        done.cpu.append((time.process_time() - busy) * 1e3)
        done.millis.append((time.perf_counter() - began) * 1e3)
        done.solver_calls.append(solver.calls)
        done.running = len(snap.admitted)
        assert answer is not None
        done.proved += answer.proof is Proof.OPTIMAL
        done.ours.append(_layers(answer))
        if compare and not line.several:
            bench = bench_for(open_ledger(arena), entry.workload, queue)
            taken = in_queue_order(arena, demand, bench) or []
            costs = [bench.cost(i) for i in taken]
            worst = max((c.priority for c in costs), default=0)
            done.theirs.append((worst, sum(c.lost_work for c in costs), len(costs)))
    return done


def _layers(answer: Victims) -> tuple[int, int, int]:
    costs = [p.cost for p in answer.victims]
    worst = max((c.priority for c in costs), default=0)
    return worst, sum(c.lost_work for c in costs), len(costs)


def _mean(rows: list[tuple[int, int, int]]) -> str:
    if not rows:
        return "-"
    priority, lost, count = (sum(column) / len(rows) for column in zip(*rows, strict=True))
    return f"({priority:.0f}, {lost / 1000:.0f}k, {count:.0f})"


def main() -> None:
    compare = "--alone" not in sys.argv
    print(
        "ms; victims as mean (highest priority, lost GPU-seconds, number) over", TRIES, "snapshots"
    )
    head = (
        *("nodes", "running", "load", "gang", "level", "p50", "p95", "max"),
        *("cpu p50", "cpu p95", "prototype", "solver calls", "proved"),
    )
    print("| " + " | ".join((*head, "queue order", "ours")) + " |")
    print("|" + " --- |" * (len(head) + 2))
    for line in LINES:
        done = measure(line, compare=compare)
        p50, p95 = np.percentile(done.millis, [50, 95])
        cells = (
            line.size,
            done.running,
            line.load,
            f"{line.nodes}x8{' +1 +6x2' if line.several else ''}",
            line.level or "anywhere",
            f"{p50:.0f}",
            f"{p95:.0f}",
            f"{max(done.millis):.0f}",
            *(f"{ms:.0f}" for ms in np.percentile(done.cpu, [50, 95])),
            line.prototype,
            f"{min(done.solver_calls)}-{max(done.solver_calls)}",
            f"{done.proved}/{TRIES}",
            _mean(done.theirs),
            _mean(done.ours),
        )
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
