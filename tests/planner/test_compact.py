"""Podsets without a common requirement still share nodes, racks and blocks where that costs none of them anything.

The search is greedy: over many small clusters it is allowed a little more than enumeration finds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

import pytest

from queuectl.domain.fleet import Node
from queuectl.domain.quantity import Resources
from queuectl.domain.workload import Placement, PodSet, TopologyMode
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner.build import gang, node, podset, world
from tests.planner.test_fill import spreads

SEEDS = 150
Width = tuple[int, ...]
Where = Sequence[Mapping[str, int]]  # per podset, node to pods


def stands(nodes: list[Node], *podsets: PodSet) -> Where:
    snapshot = world(nodes, [gang("g", *podsets)])
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return as_rows(made.admitted[0].placement) if made.admitted else []


def as_rows(placement: Placement) -> Where:
    return [placed.by_node for placed in placement.podsets]


def width(nodes: list[Node], podsets: Sequence[PodSet], where: Where) -> Width:
    """Preferred racks missed; racks and nodes of each podset, summed; racks and nodes of the gang."""
    rack = {n.name: n.labels["rack"] for n in nodes}
    racks = [{rack[name] for name in row} for row in where]
    vain = sum(
        len(used) > 1
        for p, used in zip(podsets, racks, strict=True)
        if p.topology is not None and p.topology.mode is TopologyMode.PREFERRED
    )
    all_nodes = {name for row in where for name in row}
    all_racks = {rack[name] for name in all_nodes}
    return vain, sum(map(len, racks)), sum(map(len, where)), len(all_racks), len(all_nodes)


def placements(nodes: list[Node], podsets: Sequence[PodSet]) -> Iterator[Where]:
    """Every way to place them all."""
    yield from _rest({n.name: n.allocatable for n in nodes}, nodes, podsets)


def _rest(
    free: dict[str, Resources], nodes: list[Node], podsets: Sequence[PodSet]
) -> Iterator[Where]:
    if not podsets:
        yield []
        return
    podset, need = podsets[0], podsets[0].shape.requests
    fits = [min(free[n.name][r] // amount for r, amount in need.items()) for n in nodes]
    for pods in spreads(fits, podset.count):
        row = {n.name: k for n, k in zip(nodes, pods, strict=True) if k}
        racks = {n.labels["rack"] for n in nodes if n.name in row}
        required = podset.topology is not None and podset.topology.mode is TopologyMode.REQUIRED
        if required and len(racks) > 1:
            continue
        left = {name: amount - need * row.get(name, 0) for name, amount in free.items()}
        for others in _rest(left, nodes, podsets[1:]):
            yield [row, *others]


def drawn(rng: random.Random, *, alike: bool) -> tuple[list[Node], list[PodSet]]:
    """``alike``: GPUs are all that is scarce."""
    nodes = [
        node(
            f"n{i}",
            f"r{rng.randint(0, 2)}",
            gpu=rng.choice([1, 2, 3, 4, 8]),
            cpu=64 if alike else rng.choice([2, 4, 8]),
        )
        for i in range(rng.randint(2, 5))
    ]
    podsets = []
    for i in range(2):
        mode = rng.choice(["required", "preferred", "none"])
        podsets.append(
            podset(
                f"w{i}",
                rng.randint(1, 4),
                required="rack" if mode == "required" else None,
                preferred="rack" if mode == "preferred" else None,
                gpu=rng.choice([1, 1, 2]),
                cpu=1 if alike else rng.choice([1, 2]),
            )
        )
    return nodes, podsets


def test_two_podsets_that_fit_one_rack_share_it() -> None:
    """Alone, the small one would use the tight node of the other rack."""
    nodes = [node("a0", "a", gpu=8), node("b0", "b", gpu=2)]
    big, small = podset("big", 4, gpu=1, required="rack"), podset("small", 1, gpu=2)
    assert stands(nodes, big, small) == [{"a0": 4}, {"a0": 1}]


def test_the_rack_that_holds_both_is_used_though_a_tighter_one_holds_each() -> None:
    nodes = [node("a0", "a", gpu=4), node("b0", "b", gpu=4), node("c0", "c", gpu=8)]
    one = podset("one", 1, gpu=4, required="rack")
    two = podset("two", 1, gpu=4, required="rack")
    assert stands(nodes, one, two) == [{"c0": 1}, {"c0": 1}]


def test_no_podset_is_spread_over_more_racks_to_share_with_another() -> None:
    """Rack a could not hold both; two of its pods would fit with the other podset."""
    nodes = [node("a0", "a", gpu=6), node("b0", "b", gpu=4)]
    first, second = podset("first", 4, gpu=1), podset("second", 4, gpu=1)
    assert stands(nodes, first, second) in ([{"b0": 4}, {"a0": 4}], [{"a0": 4}, {"b0": 4}])


def test_a_preferred_rack_is_not_lost_to_the_podset_placed_before() -> None:
    """The podset that requires a rack is placed first and finds rack a the tightest, the only one that holds both of the others."""
    nodes = [
        node("a0", "a", gpu=4),
        node("c0", "c", gpu=3),
        *(node(f"c{i}", "c", gpu=1) for i in (1, 2)),
    ]
    near = podset("near", 2, gpu=2, preferred="rack")
    strict = podset("strict", 2, gpu=1, required="rack")
    assert width(nodes, [near, strict], stands(nodes, near, strict))[0] == 0


@pytest.mark.parametrize("full", [0, 64])
@pytest.mark.parametrize("alike", [True, False])
def test_hardly_more_domains_than_enumeration_finds(alike: bool, full: int) -> None:
    """``full``: nodes without free capacity; with many of them as little is used."""
    used, least = [], []
    rest = [node(f"full{i}", f"r{i % 3}", gpu=0) for i in range(full)]
    for seed in range(SEEDS):
        nodes, podsets = drawn(random.Random(seed), alike=alike)
        ways = [width(nodes, podsets, where) for where in placements(nodes, podsets)]
        found = stands([*nodes, *rest], *podsets)
        assert bool(found) == bool(ways), seed
        if ways:
            used.append(width(nodes, podsets, found))
            least.append(min(ways))
    assert_close(used, least)


def test_three_podsets_use_hardly_more_domains() -> None:
    used, least = [], []
    for seed in range(40):
        rng = random.Random(1000 + seed)
        nodes, podsets = drawn(rng, alike=True)
        podsets.append(podset("w2", rng.randint(1, 2), gpu=1))
        ways = [width(nodes, podsets, where) for where in placements(nodes, podsets)]
        if ways:
            used.append(width(nodes, podsets, stands(nodes, *podsets)))
            least.append(min(ways))
    assert_close(used, least)


def assert_close(used: Sequence[Width], least: Sequence[Width]) -> None:
    """No preferred rack is missed without need, no podset uses more racks; all else is one in a hundred, or one, more."""
    for at, (ours, best) in enumerate(
        zip(zip(*used, strict=True), zip(*least, strict=True), strict=True)
    ):
        spare = 0 if at < 2 else max(1, sum(best) // 100)
        assert sum(ours) <= sum(best) + spare, at
