"""The cost of planned starts: ``python -m tests.bench.bench_backfill``.

A cycle on 1,000 nodes, three quarters of them full, with gangs of known ends and 200 pending gangs, with BestEffortFIFO and with Backfill.
*First* has no cache of planned starts, *same* is the same snapshot again, *other* the next one after a gang has arrived.
All plans are verified, outside the clock.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from queuectl.domain.queues import Backfill, QueueingStrategy
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.workload import Duration, PodSet, Workload
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.verify import verify
from tests.bench.clusters import (
    NOW,
    Size,
    busy,
    chain_gang,
    config,
    fleet,
    gang,
    shape,
    snapshot,
)

_SIZE: Final = Size(2, 10, 50)
_PENDING: Final = 200
_REPEATS: Final = 5


def of(planned_starts: int | None) -> Snapshot:
    """The cluster; None = BestEffortFIFO."""
    rng = random.Random(3)
    nodes = fleet(_SIZE, rng)
    running = tuple(
        replace(each, ends_at=NOW + 60.0 * rng.randint(1, 600), end_enforced=True)
        for each in busy(nodes, 0.75, rng)
    )
    settings = config()
    if planned_starts is not None:
        queues = {
            name: replace(
                queue,
                strategy=QueueingStrategy.BACKFILL,
                backfill=Backfill(planned_starts, delay=0.1),
            )
            for name, queue in settings.cluster_queues.items()
        }
        settings = replace(settings, cluster_queues=queues)
    large = [gang(f"large{i}", PodSet("w", 600, shape(8, 64_000, 512))) for i in range(3)]
    small = [chain_gang(f"small{i}", rng, 1.0 + i) for i in range(_PENDING)]
    gangs = [_known(each, 60.0 * rng.randint(5, 300)) for each in (*large, *small)]
    return snapshot(nodes, settings, running, tuple(gangs))


def _known(workload: Workload, seconds: float) -> Workload:
    return replace(workload, duration=Duration(seconds, enforced=True))


def timed(taken: Snapshot, cache: PlannerCache) -> tuple[float, Snapshot]:
    """CPU milliseconds of a plan, and the snapshot with its planned starts."""
    began = time.thread_time()
    made = plan(taken, cache=cache)
    milliseconds = (time.thread_time() - began) * 1e3
    assert not verify(taken, made)
    starts = {planned.uid: planned.start for planned in made.planned}
    pending = tuple(replace(p, planned_start=starts.get(p.workload.uid)) for p in taken.pending)
    return milliseconds, replace(taken, pending=pending)


def rows() -> Iterator[tuple[str, float, float, float]]:
    """The strategy, and CPU milliseconds of each sort of cycle: the least of some repetitions."""
    for name, planned_starts in (("BestEffortFIFO", None), ("Backfill", 1), ("Backfill, 3", 3)):
        first, same, other = [], [], []
        for _ in range(_REPEATS):
            cache = PlannerCache()
            taken = of(planned_starts)
            found, taken = timed(taken, cache)
            first.append(found)
            found, taken = timed(taken, cache)
            same.append(found)
            more = _known(gang("new", PodSet("w", 2, shape(8, 64_000, 512)), queued_at=900.0), 90.0)
            taken = replace(taken, pending=(*taken.pending, Pending(more)))
            other.append(timed(taken, cache)[0])
        yield name, min(first), min(same), min(other)


def main() -> None:
    """Print the table."""
    print(
        f"{_SIZE.nodes} nodes, {_PENDING + 3} pending gangs; CPU milliseconds of the planning thread"
    )
    print("| strategy | first | same | other |\n| --- | --- | --- | --- |")
    for name, first, same, other in rows():
        print(f"| {name} | {first:.1f} | {same:.1f} | {other:.1f} |")


if __name__ == "__main__":
    main()
