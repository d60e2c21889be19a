"""Packing pods of several shapes on the nodes of one class: greedily, otherwise by exact rows.

Exact rows come in two forms. M2: nodes with equal free vectors are one class, and a variable counts the nodes of a class
that take each maximal *pattern* of pods. M0: a variable per shape and node; for node classes where the patterns are too many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from queuectl.planner.problem.fleet import Ints
from queuectl.planner.problem.problem import most_pods, most_pods_of_node
from queuectl.planner.solver import Model

MOST_PATTERNS: Final = 2000
_STEPS_PER_PATTERN: Final = 20  # count vectors tried for each pattern allowed


def greedy(free: Ints, vectors: Sequence[Ints], counts: Sequence[int]) -> Ints | None:
    """Best-fit decreasing: pods per shape and node (K, n), or None.

    Exact where one resource binds and its sizes form a divisor chain.
    """
    totals = free.sum(axis=1)
    for keys in (_by_size, _by_share):
        rank = list(zip(keys(totals, vectors), range(len(vectors)), strict=True))
        order = [k for _, k in sorted(rank)]
        placed = _fill_in_order(free, vectors, counts, order)
        if placed is not None:
            return placed
    return None


def _by_size(totals: Ints, vectors: Sequence[Ints]) -> list[tuple[float, ...]]:
    """Largest request of the scarcest resource first."""
    scarcest = totals.argsort(kind="stable")
    return [tuple((-vector[scarcest]).tolist()) for vector in vectors]


def _by_share(totals: Ints, vectors: Sequence[Ints]) -> list[tuple[float, ...]]:
    """Largest share of any resource first."""
    there = np.maximum(totals, 1)
    return [(-float((vector / there).max()),) for vector in vectors]


def _fill_in_order(
    free: Ints, vectors: Sequence[Ints], counts: Sequence[int], order: Sequence[int]
) -> Ints | None:
    left = free.copy()
    placed = np.zeros((len(vectors), free.shape[1]), dtype=np.int64)
    for k in order:
        vector = vectors[k]
        asked = vector.nonzero()[0]
        there = left[asked]
        fits = most_pods(left, vector, asked.tolist())
        most_asked = int(np.argmax(vector[asked] / np.maximum(there.sum(axis=1), 1)))
        tightest = there[most_asked].argsort(kind="stable")
        room = fits[tightest].cumsum()
        if room[-1] < counts[k]:
            return None
        last = int(room.searchsorted(counts[k]))
        used = tightest[: last + 1]
        shares = fits[used]
        shares[last] -= room[last] - counts[k]
        placed[k, used] = shares
        left[:, used] -= vector[:, None] * shares
    return placed


@dataclass(frozen=True, slots=True)
class Exact:
    """Exact rows of one node class in a model: how to read the pods per node out of a solution."""

    nodes: tuple[tuple[Ints, tuple[tuple[int, tuple[int, ...]], ...]], ...]
    shapes: int
    size: int

    def read(self, solution: Sequence[int], counts: Sequence[int]) -> Ints:
        """Pods per shape and node (K, n); patterns may hold more than is asked, so they are cut to ``counts``."""
        placed = np.zeros((self.shapes, self.size), dtype=np.int64)
        for nodes, patterns in self.nodes:
            at = 0
            for variable, pattern in patterns:
                for node in nodes[at : at + solution[variable]]:
                    placed[:, node] += pattern
                at += solution[variable]
        before = np.cumsum(placed, axis=1) - placed
        wanted = np.array(counts, dtype=np.int64)[:, None]
        cut: Ints = np.clip(wanted - before, 0, placed)
        return cut


def add_exact(model: Model, free: Ints, vectors: Sequence[Ints], totals: Sequence[int]) -> Exact:
    """Add rows under which the variables ``totals`` (pods per shape in the node class) have a packing on the nodes."""
    asked = np.flatnonzero(np.any(np.stack(vectors), axis=0))
    small = tuple(tuple(int(a) for a in vector[asked]) for vector in vectors)
    rows = _effective(np.maximum(free[asked], 0), np.array(small, dtype=np.int64))
    most = [model.bounds[v][1] for v in totals]
    kinds, inverse = np.unique(rows, axis=1, return_inverse=True)
    inverse = inverse.reshape(-1)
    by_kind: list[tuple[Ints, tuple[tuple[int, ...], ...]]] = []
    number = 0
    for kind in range(kinds.shape[1]):
        nodes = np.flatnonzero(inverse == kind)
        there = tuple(int(v) for v in kinds[:, kind])
        fits = tuple(min(m, most_pods_of_node(there, v)) for m, v in zip(most, small, strict=True))
        patterns = maximal_patterns(there, small, fits, MOST_PATTERNS)
        number += len(patterns or ())
        if patterns is None or number > MOST_PATTERNS:
            return _per_node(model, rows, small, totals)
        by_kind.append((nodes, patterns))
    return _by_pattern(model, by_kind, totals, free.shape[1])


def _effective(free: Ints, vectors: Ints) -> Ints:
    """Free amounts cut to what can be used at all alongside the scarcest device, so that more nodes look alike.

    Where every shape takes devices, whatever packs into f of them takes at most f times the largest ratio of another
    resource to devices: more than that is never touched.
    """
    effective = free.copy()
    taken_by_all = np.flatnonzero((vectors > 0).all(axis=0))
    for base in taken_by_all:
        for other in range(len(free)):
            if other != base:
                useful = np.max(
                    -(-vectors[:, other] * free[base][:, None] // vectors[:, base]), axis=1
                )
                np.minimum(effective[other], useful, out=effective[other])
    return effective


def _by_pattern(
    model: Model,
    by_kind: Sequence[tuple[Ints, tuple[tuple[int, ...], ...]]],
    totals: Sequence[int],
    size: int,
) -> Exact:
    supply: list[tuple[list[int], list[int]]] = [([], []) for _ in totals]
    groups = []
    for nodes, patterns in by_kind:
        variables = [model.var(0, len(nodes)) for _ in patterns]
        model.at_most(variables, [1] * len(variables), len(nodes))
        for variable, pattern in zip(variables, patterns, strict=True):
            for shape, count in enumerate(pattern):
                if count:
                    supply[shape][0].append(variable)
                    supply[shape][1].append(-count)
        groups.append((nodes, tuple(zip(variables, patterns, strict=True))))
    for total, (variables, coeffs) in zip(totals, supply, strict=True):
        model.at_most([total, *variables], [1, *coeffs], 0)
    return Exact(tuple(groups), len(totals), size)


def _per_node(
    model: Model, rows: Ints, vectors: Sequence[Sequence[int]], totals: Sequence[int]
) -> Exact:
    """M0; a node's variables are read back as patterns of one pod each."""
    groups = []
    supply: list[list[int]] = [[] for _ in totals]
    for node in range(rows.shape[1]):
        there = [int(v) for v in rows[:, node]]
        variables = []
        for shape, vector in enumerate(vectors):
            most = min(most_pods_of_node(there, vector), model.bounds[totals[shape]][1])
            variables.append(model.var(0, most))
            supply[shape].append(variables[-1])
        for resource, amount in enumerate(there):
            model.at_most(variables, [vector[resource] for vector in vectors], amount)
        groups.append((node, variables))
    for total, variables in zip(totals, supply, strict=True):
        model.equal([total, *variables], [-1, *[1] * len(variables)], 0)
    units = [tuple(int(i == j) for j in range(len(totals))) for i in range(len(totals))]
    return Exact(
        tuple(
            (
                np.full(sum(model.bounds[v][1] for v in variables), node),
                tuple(zip(variables, units, strict=True)),
            )
            for node, variables in groups
        ),
        len(totals),
        rows.shape[1],
    )


@lru_cache(maxsize=4096)
def maximal_patterns(
    free: tuple[int, ...], vectors: tuple[tuple[int, ...], ...], most: tuple[int, ...], limit: int
) -> tuple[tuple[int, ...], ...] | None:
    """Count vectors that fit ``free`` and to which no pod can be added; None when there are more than ``limit``."""
    patterns: list[tuple[int, ...]] = []
    for step, pattern in enumerate(_patterns(free, vectors, most, ())):
        if step > _STEPS_PER_PATTERN * limit:
            return None
        if _maximal(pattern, free, vectors, most):
            patterns.append(pattern)
            if len(patterns) > limit:
                return None
    return tuple(patterns)


def _patterns(
    free: Sequence[int],
    vectors: Sequence[Sequence[int]],
    most: Sequence[int],
    chosen: tuple[int, ...],
) -> Iterator[tuple[int, ...]]:
    at = len(chosen)
    if at == len(vectors):
        yield chosen
        return
    fits = min(most[at], most_pods_of_node(free, vectors[at]))
    last = at == len(vectors) - 1
    for count in range(fits, fits - 1 if last else -1, -1):
        left = [f - count * a for f, a in zip(free, vectors[at], strict=True)]
        yield from _patterns(left, vectors, most, (*chosen, count))


def _maximal(
    pattern: tuple[int, ...],
    free: Sequence[int],
    vectors: Sequence[Sequence[int]],
    most: Sequence[int],
) -> bool:
    left = [
        f - sum(c * v[r] for c, v in zip(pattern, vectors, strict=True)) for r, f in enumerate(free)
    ]
    return not any(
        pattern[k] < most[k] and all(a <= f for f, a in zip(left, v, strict=True))
        for k, v in enumerate(vectors)
    )
