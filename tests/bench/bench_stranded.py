"""GPUs stranded by CPU-only gangs where one flavor has nodes with GPUs and nodes without: ``python -m tests.bench.bench_stranded``.

Gangs arrive one after the other on a small cluster and leave after a time. Each is placed by ``plan()`` when it arrives, and waits
if it does not fit. A free GPU is *stranded* if its node has no CPUs left for it. The figures are means over time.
"""

from __future__ import annotations

import argparse
import heapq
import random
from dataclasses import dataclass, field, replace
from typing import Final

from queuectl.domain.quantity import GPU
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from tests.planner.build import NOW, gang, node, podset, world

GPU_NODES: Final = 12
CPU_NODES: Final = (12, 4)
CPUS_PER_GPU: Final = 10  # that a pod requests; a GPU node has 12 for each GPU
GANGS: Final = 240
_ENDS, _ARRIVES = 0, 1


@dataclass
class Means:
    """Sums over time, in GPU-seconds; and waits in seconds."""

    stranded: float = 0.0
    used: float = 0.0
    seconds: float = 0.0
    waits: list[float] = field(default_factory=list)
    cpu_waits: list[float] = field(default_factory=list)

    def add(self, snapshot: Snapshot, seconds: float) -> None:
        free = {n.name: dict(n.allocatable) for n in snapshot.fleet.nodes}
        for held in snapshot.admitted:
            for part, placed in zip(held.workload.podsets, held.placement.podsets, strict=True):
                for name, pods in placed.nodes:
                    for resource, amount in part.shape.requests.items():
                        free[name][resource] -= amount * pods
                        self.used += amount * pods * seconds if resource == GPU else 0
        left = (max(0, n.get(GPU, 0) - n["cpu"] // CPUS_PER_GPU) for n in free.values())
        self.stranded += sum(left) * seconds
        self.seconds += seconds


def load(rng: random.Random) -> list[tuple[float, float, Workload]]:
    """Arrival and run time in seconds, and the gang; half of them request no GPUs."""
    found, at = [], 0.0
    for number in range(GANGS):
        at += rng.expovariate(1 / 20)
        if number % 2:
            gpus = rng.choice((1, 2, 4, 8, 8))
            pods = podset(count=rng.choice((1, 1, 2)), gpu=gpus, cpu=CPUS_PER_GPU * gpus)
        else:
            pods = podset(count=rng.choice((1, 2, 4)), cpu=rng.choice((4, 8, 16, 32)))
        found.append((at, rng.uniform(100, 900), gang(f"g{number:03}", pods, queued_at=NOW + at)))
    return found


def run(seed: int, cpu_nodes: int) -> Means:
    """One random load."""
    nodes = [node(f"a{n:02}", f"b/r{n // 4}", gpu=8, cpu=96) for n in range(GPU_NODES)]
    nodes += [node(f"c{n:02}", f"b/r{n // 4}", cpu=128) for n in range(cpu_nodes)]
    snapshot, cache, means = world(nodes), PlannerCache(), Means()
    arriving = load(random.Random(seed))
    gangs = {workload.uid: (seconds, workload) for _, seconds, workload in arriving}
    events = [(at, _ARRIVES, workload.uid) for at, _, workload in arriving]
    last = 0.0
    while any(kind == _ARRIVES for _, kind, _ in events):
        at, kind, uid = heapq.heappop(events)
        means.add(snapshot, at - last)
        last = at
        if kind == _ARRIVES:
            waiting = (*snapshot.pending, Pending(gangs[uid][1]))
            snapshot = replace(snapshot, now=NOW + at, pending=waiting)
        else:
            left = tuple(a for a in snapshot.admitted if a.workload.uid != uid)
            snapshot = replace(snapshot, now=NOW + at, admitted=left)
        starts = {a.uid: a.placement for a in plan(snapshot, cache=cache).admitted}
        begun = [p.workload for p in snapshot.pending if p.workload.uid in starts]
        for workload in begun:
            waits = means.waits if workload.gpus else means.cpu_waits
            waits.append(NOW + at - workload.queued_at)
            heapq.heappush(events, (at + gangs[workload.uid][0], _ENDS, workload.uid))
        running = (Admitted(w, starts[w.uid], started_at=NOW + at) for w in begun)
        rest = tuple(p for p in snapshot.pending if p.workload.uid not in starts)
        snapshot = replace(snapshot, pending=rest, admitted=(*snapshot.admitted, *running))
    return means


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    seeds = parser.parse_args().seeds
    print(
        "| CPU nodes | GPUs in use | stranded | mean wait of GPU gangs, s | of CPU-only gangs, s |"
    )
    print("| --- " * 5 + "|", flush=True)
    for cpu_nodes in CPU_NODES:
        runs = [run(seed, cpu_nodes) for seed in range(seeds)]
        seconds = sum(each.seconds for each in runs)
        waits = [
            [w for each in runs for w in each.waits],
            [w for each in runs for w in each.cpu_waits],
        ]
        amounts = (
            sum(each.used for each in runs) / seconds,
            sum(each.stranded for each in runs) / seconds,
            *(sum(each) / max(1, len(each)) for each in waits),
        )
        print(
            f"| {cpu_nodes} | " + " | ".join(f"{each:.1f}" for each in amounts) + " |", flush=True
        )


if __name__ == "__main__":
    main()
