"""Gain and cost of the solve that consolidates placements: ``python -m tests.bench.bench_consolidation``.

The same batches planned without it and with it. Domains, nodes and what is broken into are sums over all batches (the
measure of :mod:`queuectl.planner.placement.single`); time is CPU of the planning thread in milliseconds, both of whole plans.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from itertools import product
from unittest.mock import patch

from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner import plan, plan_cycle
from queuectl.planner.cache import PlannerCache
from tests.bench.bench_planner import Cluster, Maker, three
from tests.bench.clusters import SIZES, chain_gang, random_gang
from tests.planner.test_consolidation import measured

WIDTHS = (15, 50)
Sums = tuple[int, ...]


def planned(snapshots: Sequence[Snapshot], cache: PlannerCache) -> tuple[Sums, list[float]]:
    """The measure summed over all plans, and the time of each."""
    sums: Sums = (0,) * 6
    took = []
    for snapshot in snapshots:
        at = time.thread_time()
        made = plan(snapshot, cache=cache)
        took.append((time.thread_time() - at) * 1e3)
        if made.admitted:
            sums = tuple(a + b for a, b in zip(sums, measured(snapshot, made), strict=True))
    return sums, took


def line(cluster: Cluster, name: str, make: Maker, width: int, count: int) -> str:
    batches = cluster.batches(make, count, width)
    cache = PlannerCache()
    plan(batches[0], cache=cache)
    with patch.object(plan_cycle, "consolidate", lambda *_: 0):
        before, alone = planned(batches, cache)
    after, took = planned(batches, cache)
    blocks, racks, nodes, _, whole, whole_racks = (
        f"{a} → {b}" if a != b else str(a) for a, b in zip(before, after, strict=True)
    )
    load = f"{width} gangs, {name}, {cluster.size.nodes} nodes"
    cells = (load, blocks, racks, nodes, whole, whole_racks, three(alone), three(took))
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer batches")
    count = 3 if parser.parse_args().quick else 10
    print("| load | blocks | racks | nodes | whole nodes broken | whole racks broken |", end="")
    print(" ms without, p50 / p95 / max | with |\n" + "| --- " * 8 + "|", flush=True)
    for size in SIZES[:2]:
        cluster = Cluster(size)

        def chain(uid: str, at: float, cluster: Cluster = cluster) -> Workload:
            return chain_gang(uid, cluster.rng, at)

        def mix(uid: str, at: float, cluster: Cluster = cluster) -> Workload:
            return random_gang(uid, cluster.rng, at)

        for (name, make), width in product((("1, 2, 4, 8 GPUs", chain), ("mixed", mix)), WIDTHS):
            print(line(cluster, name, make, width, count), flush=True)


if __name__ == "__main__":
    main()
