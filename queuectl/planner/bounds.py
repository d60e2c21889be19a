"""Weights under which sums over nodes bound what can be packed: tighter than the plain sum, and always valid.

Take devices of one resource: pod sizes g, free devices f on a node. For any weights w(g) the pods on a node weigh at most
W(f), the best knapsack of size f; so sum(w(g) * pods) <= sum(W(f)) over any set of nodes. Two families of weights say what
the plain sum does not:

- floor(g a / b): with 1 / h for each size h the floors that are exact on a divisor chain, with other fractions the rounding
  cuts of Chvátal and Gomory;
- for l up to half a node of c devices: c where g > c - l, 0 where g < l, else g. Pods of more than half a node exclude each
  other, whatever is left beside them (dual feasible functions; Lueker 1983, Fekete and Schepers 2001).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np

from queuectl.planner.topology import Ints

LARGEST: Final = 64  # a node with more of a resource than this is not counted in devices
_FRACTIONS: Final = 8  # denominators of the rounding cuts; larger ones tell little more

Bound: TypeAlias = tuple[tuple[int, ...], Ints]  # weight of each size, W(f) for f = 0, 1, ...


@lru_cache(maxsize=1024)
def bounds(sizes: tuple[int, ...], largest: int) -> tuple[Bound, ...]:
    """All distinct bounds for pods of these sizes (ascending) on nodes of up to ``largest`` devices."""
    steps = [(1, h) for h in sizes if h]
    steps += [(a, b) for b in range(1, min(largest, _FRACTIONS) + 2) for a in range(1, b + 1)]
    weights = {tuple(a * g // b for g in sizes) for a, b in steps}
    weights |= {_halves(sizes, largest, low) for low in range(2, largest // 2 + 1)}
    telling = sorted(w for w in weights if any(w) and w != sizes)
    return tuple((w, _knapsack(sizes, w, largest)) for w in telling)


def _halves(sizes: tuple[int, ...], largest: int, low: int) -> tuple[int, ...]:
    return tuple(largest if g > largest - low else 0 if g < low else g for g in sizes)


def _knapsack(sizes: tuple[int, ...], weights: tuple[int, ...], largest: int) -> Ints:
    best = np.zeros(largest + 1, dtype=np.int64)
    for free in range(1, largest + 1):
        fitting = [best[free - g] + w for g, w in zip(sizes, weights, strict=True) if 0 < g <= free]
        best[free] = max([best[free - 1], *fitting])
    best.flags.writeable = False
    return best


def exceeds(pods: Sequence[tuple[Ints, int]], free: Ints) -> bool:
    """Whether these pods (vector, count) provably do not pack on nodes with this much free, (R, N)."""
    vectors = np.stack([vector for vector, _ in pods])
    counts = np.array([count for _, count in pods], dtype=np.int64)
    for column in np.flatnonzero(vectors.any(axis=0)):
        asked, there = vectors[:, column], free[column]
        if int(asked @ counts) > int(there.sum()):
            return True
        largest = int(there.max(initial=0))
        if largest > LARGEST:
            continue
        sizes, at = np.unique(asked, return_inverse=True)
        of_size = np.zeros(len(sizes), dtype=np.int64)
        np.add.at(of_size, at.reshape(-1), counts)
        nodes = np.bincount(there, minlength=largest + 1)
        for weights, most in bounds(tuple(sizes.tolist()), largest):
            if int(np.array(weights) @ of_size) > int(most @ nodes):
                return True
    return False
