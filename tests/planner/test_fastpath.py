"""Fast paths are proofs: fewest domains, tightest fit, bounds, witnesses; each against enumeration."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from queuectl.planner.model.counts import bounds, fewest_then_tightest
from queuectl.planner.model.patterns import greedy
from queuectl.planner.placement.single import ShapeCapacity
from queuectl.planner.problem.fleet import grow
from tests.planner.build import node
from tests.planner.loads import exceeds
from tests.support.examples import examples

QUICK = settings(max_examples=examples(300), deadline=None)


# Fewest domains, then the tightest fit.


@QUICK
@given(st.lists(st.integers(0, 12), min_size=1, max_size=8), st.integers(1, 40))
def test_fewest_then_tightest_is_the_best_of_all_sets(sizes: list[int], count: int) -> None:
    assume(sum(sizes) >= count)
    chosen = fewest_then_tightest(np.array(sizes), count).tolist()
    best = min(
        (k, sum(sizes[i] for i in group))
        for k in range(1, len(sizes) + 1)
        for group in combinations(range(len(sizes)), k)
        if sum(sizes[i] for i in group) >= count
    )
    assert (len(chosen), sum(sizes[i] for i in chosen)) == best


def test_largest_first_with_a_tight_last_is_not_always_tightest() -> None:
    sizes = np.array([10, 9, 8])
    assert fewest_then_tightest(sizes, 17).tolist() == [1, 2]


def test_many_domains_still_give_the_fewest() -> None:
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 9, 2000)
    chosen = fewest_then_tightest(sizes, 6000)
    assert int(sizes[chosen].sum()) >= 6000
    assert int(np.sort(sizes)[::-1][: len(chosen) - 1].sum()) < 6000


def capacity(*racks: list[int]) -> ShapeCapacity:
    """One block per list of racks' node capacities is overkill: one block, racks of nodes."""
    nodes = [node(f"n{r}-{i}", f"b/r{r}") for r, row in enumerate(racks) for i in range(len(row))]
    tree = grow(nodes, ("block", "rack"))
    return ShapeCapacity(tree, np.array([c for row in racks for c in row]))


@pytest.mark.parametrize(
    ("racks", "count", "pods"),
    [
        ([[4, 4], [8]], 4, [4, 0, 0]),  # both racks leave four over; the first in topology order
        ([[4, 4], [8]], 5, [0, 0, 5]),  # one node instead of two
        ([[5, 5], [4, 4]], 8, [0, 0, 4, 4]),  # one rack each, least left over
        (
            [[2, 2], [2, 2], [3, 3]],
            8,
            [2, 2, 2, 2, 0, 0],
        ),  # two racks, the tightest; their nodes come after
        ([[2, 2], [3, 2]], 9, [2, 2, 3, 2]),
    ],
)
def test_the_placement_minimizes_domains_level_by_level(
    racks: list[list[int]], count: int, pods: list[int]
) -> None:
    filled = capacity(*racks).anywhere(count)
    assert filled is not None
    placed = [0] * len(pods)
    for at, n in filled[1]:
        placed[at] = n
    assert placed == pods


def test_more_pods_than_capacity_proves_infeasibility() -> None:
    rows = capacity([1, 1], [2])
    assert rows.anywhere(5) is None
    assert rows.best_domain(1, 3) is None
    assert rows.best_domain(1, 2) is not None


# Bounds.

sizes_of_pods = st.lists(st.integers(1, 8), min_size=1, max_size=5)
free_on_nodes = st.lists(st.integers(0, 8), min_size=1, max_size=3)


def packs(sizes: list[int], free: list[int]) -> bool:
    return any(
        all(
            sum(s for s, n in zip(sizes, where, strict=True) if n == node) <= f
            for node, f in enumerate(free)
        )
        for where in product(range(len(free)), repeat=len(sizes))
    )


@QUICK
@given(sizes_of_pods, free_on_nodes)
def test_pods_that_a_bound_refutes_do_not_pack(sizes: list[int], free: list[int]) -> None:
    pods = [(np.array([s]), 1) for s in sizes]
    if exceeds(pods, np.array([free])):
        assert not packs(sizes, free)


@QUICK
@given(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=6), free_on_nodes)
def test_on_a_divisor_chain_bounds_and_greedy_are_exact(sizes: list[int], free: list[int]) -> None:
    pods = [(np.array([s]), 1) for s in sizes]
    fits = packs(sizes, free)
    assert exceeds(pods, np.array([free])) == (not fits)
    assert (greedy(np.array([free]), [p for p, _ in pods], [1] * len(pods)) is not None) == fits


@pytest.mark.parametrize(
    ("sizes", "free", "refuted"),
    [
        ([5, 5], [4, 8], True),  # one pod of more than half a node each
        ([6, 6, 4], [8, 8], True),  # sixteen of sixteen, but nothing fits with a six but two
        ([3, 2], [5], False),  # floors by size two alone would refuse it
        ([4, 4, 2], [7, 3], True),
        ([4, 4, 2, 1, 1], [7, 5], False),
    ],
)
def test_known_bounds(sizes: list[int], free: list[int], refuted: bool) -> None:
    assert exceeds([(np.array([s]), 1) for s in sizes], np.array([free])) == refuted
    assert packs(sizes, free) == (not refuted)


def test_large_amounts_are_compared_by_sum_alone() -> None:
    memory = np.array([2**40]), 3
    assert exceeds([memory], np.array([[2**41, 2**39]]))
    assert not exceeds([memory], np.array([[2**41, 2**40]]))
    weights, _ = bounds((1,), 8)
    assert not len(weights)
