"""Placement of one podset, against enumeration: fewest domains from the top, slices whole, even spreads, consecutive ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuectl.domain.fleet import Node
from queuectl.planner.model.counts import most_even, needed
from queuectl.planner.placement.single import ShapeCapacity
from queuectl.planner.problem.fleet import grow
from queuectl.planner.problem.request import ANYWHERE
from tests.support.examples import examples

MANY = settings(max_examples=examples(400), deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Case:
    """Nodes with the path to each and the pods it holds; slices as (level, size)."""

    paths: tuple[tuple[str, ...], ...]
    fits: tuple[int, ...]
    count: int
    slices: tuple[tuple[int, int], ...] = ()

    @property
    def depth(self) -> int:
        return len(self.paths[0])

    @property
    def capacity(self) -> ShapeCapacity:
        labels = [f"level{i}" for i in range(self.depth)]
        nodes = [
            Node(f"n{i}", dict(zip(labels, path, strict=True))) for i, path in enumerate(self.paths)
        ]
        return ShapeCapacity(grow(nodes, labels), np.array(self.fits), self.slices)

    def widths(self, pods: Sequence[int]) -> tuple[int, ...]:
        """Domains used per level, nodes last."""
        used = [path for path, n in zip(self.paths, pods, strict=True) if n]
        return (*(len({path[: i + 1] for path in used}) for i in range(self.depth)), len(used))

    def whole(self, pods: Sequence[int]) -> bool:
        """Whether every domain of a slice's level holds a multiple of its size."""
        return all(
            n % size == 0
            for level, size in self.slices
            for n in self.per_domain(level, pods).values()
        )

    def per_domain(self, level: int, pods: Sequence[int]) -> Counter[tuple[str, ...]]:
        counted: Counter[tuple[str, ...]] = Counter()
        for path, n in zip(self.paths, pods, strict=True):
            counted[path[: level + 1]] += n
        return counted

    def placements(self, inside: frozenset[int]) -> Iterator[tuple[int, ...]]:
        """Every way to put all pods on these nodes in whole slices."""
        fits = [f if i in inside else 0 for i, f in enumerate(self.fits)]
        return (pods for pods in spreads(fits, self.count) if self.whole(pods))

    def domains(self, level: int) -> list[frozenset[int]]:
        if level == ANYWHERE:
            return [frozenset(range(len(self.paths)))]
        groups: dict[tuple[str, ...], set[int]] = {}
        for i, path in enumerate(self.paths):
            groups.setdefault((*path, str(i))[: level + 1], set()).add(i)
        return [frozenset(group) for group in groups.values()]


def spreads(fits: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    if not fits:
        if count == 0:
            yield ()
        return
    if sum(fits) < count:
        return
    for n in range(min(fits[0], count) + 1):
        yield from ((n, *rest) for rest in spreads(fits[1:], count - n))


@st.composite
def cases(draw: st.DrawFn, *, sliced: bool | None = None) -> Case:
    depth = draw(st.integers(1, 4))
    paths = tuple(
        tuple(draw(st.sampled_from("ab")) for _ in range(depth))
        for _ in range(draw(st.integers(2, 7)))
    )
    fits = tuple(draw(st.integers(0, 4)) for _ in paths)
    slices: list[tuple[int, int]] = []
    size = 1
    if sliced if sliced is not None else draw(st.booleans()):
        levels = sorted(
            draw(st.sets(st.integers(0, depth - 1), min_size=1, max_size=3)), reverse=True
        )
        for level in levels:
            size *= draw(st.integers(2, 3)) if level == levels[0] else 2
            slices.append((level, size))
    count = size * draw(st.integers(1, max(1, 9 // size)))
    return Case(paths, fits, count, tuple(reversed(slices)))


def placed(case: Case, found: tuple[object, list[tuple[int, int]]]) -> tuple[int, ...]:
    pods = [0] * len(case.paths)
    order = case.capacity.tree.order
    for at, n in found[1]:
        pods[order[at]] += n
    return tuple(pods)


@MANY
@given(cases(), st.integers(-1, 3))
def test_the_fewest_domains_are_used_from_the_top_down(case: Case, level: int) -> None:
    """A placement is found where there is one, and down to the first level that takes several domains none uses fewer."""
    level = min(level, case.depth)
    options = [p for inside in case.domains(level) for p in case.placements(inside)]
    capacity = case.capacity
    held = capacity.holding(level) >= case.count
    found = (
        capacity.anywhere(case.count)
        if level == ANYWHERE
        else capacity.best_domain(level, case.count)
    )
    assert (found is not None) == bool(options) == bool(held.any())
    if found is not None:
        pods = placed(case, found)
        assert pods in options
        least = min(map(case.widths, options))
        decided = next((at for at, used in enumerate(least) if used > 1), len(least))
        assert case.widths(pods)[: decided + 1] == least[: decided + 1]


@MANY
@given(cases())
def test_scores_equal_the_domains_used(case: Case) -> None:
    found = case.capacity.anywhere(case.count)
    if found is not None:
        half = len(found[0]) // 2
        assert found[0][:half] == case.widths(placed(case, found))


@MANY
@given(cases(), st.integers(-1, 2))
def test_even_spreads_are_found_whenever_there_are_any(case: Case, level: int) -> None:
    level = min(level, case.depth - 1)
    below = level + 1
    unit = case.capacity.grains[below]

    def even(pods: tuple[int, ...]) -> bool:
        if below == case.depth:
            shares = [n for n in pods if n]
        else:
            shares = [n for n in case.per_domain(below, pods).values() if n]
        return max(shares) - min(shares) <= unit

    options = [p for d in case.domains(level) for p in case.placements(d) if even(p)]
    found = case.capacity.evenly(level, case.count)
    assert (found is not None) == bool(options)
    if found is not None:
        pods = placed(case, found)
        assert pods in options
        assert case.widths(pods)[below] == min(case.widths(p)[below] for p in options)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 9)), st.integers(1, 30)), min_size=1, max_size=5))
def test_each_owner_fills_its_largest_domains_first(owners: list[tuple[list[int], int]]) -> None:
    sizes = np.array([size for own, _ in owners for size in own], dtype=np.int64)
    owner = np.repeat(np.arange(len(owners)), [len(own) for own, _ in owners])
    counts = np.array([count for _, count in owners])
    assert needed(sizes, owner, len(owners), counts).tolist() == [
        next((k for k in range(1, len(own) + 1) if sum(sorted(own)[-k:]) >= count), len(own) + 1)
        for own, count in owners
    ]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(1, 15))
def test_even_shares_are_the_tightest_of_the_fewest(sizes: list[int], count: int) -> None:
    found = most_even(np.array(sizes), count)
    ways = [
        (k, sum(sizes[i] for i in group))
        for k in range(1, min(len(sizes), count) + 1)
        for group in combinations(range(len(sizes)), k)
        if sum(sizes[i] > count // k for i in group) >= count % k
        and all(sizes[i] >= count // k for i in group)
    ]
    assert (found is not None) == bool(ways)
    if found is not None:
        chosen, shares = found
        assert int(shares.sum()) == count
        assert int(shares.max()) - int(shares.min()) <= 1
        assert (shares <= np.array(sizes)[chosen]).all()
        assert len(chosen) == min(ways)[0]
