"""Workers and their leader in one domain: found whenever a placement exists, and in as few domains as enumeration finds.

The packing is greedy, so the second is not a theorem: it must hold at least on these seeds, racks and blocks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import pytest

from queuectl.domain.fleet import Node
from queuectl.domain.quantity import Resources
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import PodSet
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner.build import gang, node, podset, world
from tests.planner.test_fill import spreads
from tests.support.examples import examples

SEEDS = 400
NOTHING = Resources()


def drawn(rng: random.Random) -> tuple[list[Node], PodSet, PodSet, str, str]:
    nodes = [
        node(f"n{i}", f"{rng.choice('xy')}/r{rng.randint(0, 2)}", gpu=rng.randint(0, 5), cpu=rng.randint(1, 8))
        for i in range(rng.randint(3, 6))
    ]  # fmt: skip
    mode, level = rng.choice(["required", "preferred"]), rng.choice(["block", "rack"])
    required, preferred = (level, None) if mode == "required" else (None, level)

    def of_group(name: str, count: int, gpu: int, cpu: int) -> PodSet:
        return podset(
            name, count, required=required, preferred=preferred, group="g", gpu=gpu, cpu=cpu
        )

    workers = of_group("worker", rng.randint(2, 6), 1, rng.randint(0, 1))
    leader = of_group("leader", 1, rng.randint(0, 1), rng.randint(1, 5))
    return nodes, workers, leader, mode, level


def widths(nodes: list[Node], used: set[str]) -> tuple[int, int, int]:
    paths = {(n.labels["block"], n.labels["rack"]) for n in nodes if n.name in used}
    return len({block for block, _ in paths}), len(paths), len(used)


def placements(nodes: list[Node], workers: PodSet, leader: PodSet) -> Iterator[set[str]]:
    """The nodes of every way to place both."""
    for seat in nodes:
        if not fits(seat, leader.shape.requests):
            continue
        free = [
            fits(n, workers.shape.requests, leader.shape.requests if n is seat else NOTHING)
            for n in nodes
        ]
        for pods in spreads(free, workers.count):
            yield {seat.name, *(n.name for n, k in zip(nodes, pods, strict=True) if k)}  # fmt: skip


def fits(on: Node, pod: Mapping[str, int], beside: Mapping[str, int] = NOTHING) -> int:
    return max(0, min((on.allocatable[r] - beside[r]) // a for r, a in pod.items()))


def climbed(nodes: list[Node], used: set[str], level: str) -> int:
    """How far above the level the narrowest domain of these nodes is."""
    blocks, racks, _ = widths(nodes, used)
    narrow = [racks, blocks] if level == "rack" else [blocks]
    return next((i for i, number in enumerate(narrow) if number == 1), len(narrow))


@pytest.mark.seeds
@pytest.mark.parametrize("part", range(examples(4)))
def test_a_leader_and_its_workers_use_hardly_more_racks_than_enumeration_finds(part: int) -> None:
    """At most one in a hundred small clusters misses a preferred domain, or uses more blocks or racks."""
    wider = 0
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        nodes, workers, leader, mode, level = drawn(random.Random(seed))
        snapshot: Snapshot = world(nodes, [gang("g", leader, workers)])
        made = plan(snapshot)
        assert verify(snapshot, made) == ()
        ways = [
            (climbed(nodes, used, level), widths(nodes, used))
            for used in placements(nodes, workers, leader)
            if mode == "preferred" or climbed(nodes, used, level) == 0
        ]
        assert bool(made.admitted) == bool(ways), seed
        if ways:
            used = {n for p in made.admitted[0].placement.podsets for n, _ in p.nodes}
            climb, best = min(ways)
            wider += (climbed(nodes, used, level), widths(nodes, used)[:2]) > (climb, best[:2])
    assert wider <= SEEDS // 100
