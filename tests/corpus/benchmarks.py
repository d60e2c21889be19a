"""The snapshots of tests/bench: those of 640 nodes and fewer of 5,000 and more, without those that measure the same again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final
from unittest.mock import patch

from queuectl.control.settings import Settings
from queuectl.domain.workload import Workload
from tests.bench import (
    bench_defrag,
    bench_planner,
    bench_preempt,
    bench_queues,
    bench_repair,
    bench_replay,
    bench_thrash,
    tenants,
    thrash,
)
from tests.bench.bench_explain import waiting
from tests.bench.bench_planner import Cluster, Maker
from tests.bench.bench_repair import Hit, accident
from tests.bench.clusters import (
    FIVE,
    SIZES,
    THREE,
    chain_gang,
    gang_of,
    mixed_gang,
    random_gang,
    sliced_gang,
)
from tests.bench.kueue.mix import read
from tests.corpus.captured import Named, captured, numbered

SMALL: Final = 700  # nodes; of larger clusters fewer snapshots are taken
PERIOD: Final = 0.5  # simulated seconds between two cycles of a replay


def benchmarks() -> Iterator[Named]:
    """All of them, by benchmark."""
    for part in (_planner, _explain, _preempt, _repair, _defrag, _queues, _replay, _thrash):
        name = part.__name__.strip("_")
        yield from ((f"{name}/{detail}", snapshot) for detail, snapshot in part())


def _planner() -> Iterator[Named]:
    for levels, size in ((THREE, SIZES[0]), (FIVE, SIZES[0]), (THREE, SIZES[1])):
        small = size.nodes < SMALL
        cluster = Cluster(size, levels)
        where = f"{size.nodes} nodes, {len(levels)} levels"
        for name, make in _alone(cluster):
            yield from numbered(f"one, {name}, {where}", cluster.singles(make, 8 if small else 1))
        for name, make, width in _together(cluster):
            made = cluster.batches(make, 3 if small and width < 100 else 1, width)
            yield from numbered(f"{width}, {name}, {where}", made)
    yield from captured(bench_planner, lambda: list(bench_planner.refusals()), "refusals", 3)


def _alone(cluster: Cluster) -> Iterator[tuple[str, Maker]]:
    rng, levels = cluster.rng, cluster.levels
    for sets in (1, 2, 3, 4):

        def of_sets(uid: str, at: float, sets: int = sets) -> Workload:
            return gang_of(uid, sets, rng, levels, at)

        yield f"{sets} podsets", of_sets
    yield "sliced", lambda uid, at: sliced_gang(uid, rng, levels, at)
    yield "mix", lambda uid, at: mixed_gang(uid, rng, levels, at)


def _together(cluster: Cluster) -> Iterator[tuple[str, Maker, int]]:
    """With how many gangs."""
    rng, levels = cluster.rng, cluster.levels
    yield "mix", lambda uid, at: mixed_gang(uid, rng, levels, at), 50
    if levels is THREE:
        for width in (50, 15):
            yield "chain", lambda uid, at: chain_gang(uid, rng, at), width
            yield "random", lambda uid, at: random_gang(uid, rng, at), width
        yield "mix", lambda uid, at: mixed_gang(uid, rng, levels, at), 100


def _explain() -> Iterator[Named]:
    for size, count in ((SIZES[0], 5), (SIZES[1], 1)):
        for width in (1, 50):
            cycles = islice(waiting(Cluster(size), width), count)
            found = [cycle.snapshot for cycle in cycles]
            yield from numbered(f"{width}, {size.nodes} nodes", found)


def _preempt() -> Iterator[Named]:
    large = 0
    for number, line in enumerate(bench_preempt.LINES):
        name = f"line {number}, {line.size} nodes"
        if line.size < SMALL:
            yield from numbered(name, [tenants.snapshot(line, seed) for seed in range(3)])
        elif line.size <= 5000:
            large += 1
            if large % 3 == 1:
                yield name, tenants.snapshot(line, 0)


def _repair() -> Iterator[Named]:
    for cluster in bench_repair.CLUSTERS:
        for lost in bench_repair.LOST:
            for idle in (0.2, 0.0):
                name = f"{cluster.size} nodes, {lost} lost, {idle} idle"
                if cluster.size < SMALL:
                    hit = Hit(cluster, lost, idle)
                    yield from numbered(name, [accident(hit, seed) for seed in range(3)])
                elif cluster.size <= 5000 and lost == 8:
                    yield name, accident(Hit(cluster, lost, idle), 0)


def _defrag() -> Iterator[Named]:
    for number, case in enumerate(bench_defrag.CASES):
        nodes = case.blocks * case.racks * case.hosts
        name = f"case {number}, {nodes} nodes"
        if nodes < SMALL:
            yield from numbered(name, [bench_defrag.snapshot(case, seed) for seed in range(3)])
        elif number in (4, 7):
            yield name, bench_defrag.snapshot(case, 0)


def _queues() -> Iterator[Named]:
    """A twentieth of the queues and of the gangs that wait."""
    queues, cohorts, pending = bench_queues.SCALE
    with patch.object(bench_queues, "SCALE", (queues // 20, cohorts // 2, pending // 20)):
        for nodes in (False, True):
            for fair in (False, True):
                for occupied in (0.5, 1.0):
                    name = f"{occupied} occupied{', nodes' * nodes}{', fair' * fair}"
                    yield name, bench_queues.large_snapshot(occupied, nodes=nodes, fair=fair)


def _replay() -> Iterator[Named]:
    for mix, part in (("baseline", 0.05), ("tas", 0.05), ("large-scale", 0.01)):
        replay = bench_replay.Replay(read(mix, part), Settings(), PERIOD)
        yield from captured(bench_replay, replay.run, mix, 10)


def _thrash() -> Iterator[Named]:
    run = bench_thrash.simulate
    yield from captured(bench_replay, lambda: run(0, thrash.config()), "default", 12)
