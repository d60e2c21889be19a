"""Weights that bound what packs on nodes: valid, and complete for up to eight devices."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.planner.model.counts import RAYS
from tests.planner.loads import exceeds
from tests.support.examples import examples

DEVICES = 8
Sizes = dict[int, int]  # devices a pod to pods


def superadditive(
    length: int, largest: int, so_far: tuple[int, ...] = ()
) -> Iterator[tuple[int, ...]]:
    """Functions w of 1, 2, ... with w(a) + w(b) <= w(a + b) and values up to ``largest``."""
    if len(so_far) == length:
        yield so_far
        return
    size = len(so_far) + 1
    low = max((so_far[a - 1] + so_far[size - a - 1] for a in range(1, size)), default=0)
    for value in range(low, largest + 1):
        yield from superadditive(length, largest, (*so_far, value))


def is_extreme(w: tuple[int, ...]) -> bool:
    """Whether the inequalities it meets with equality leave one direction."""
    tight = [np.eye(DEVICES)[i] for i, value in enumerate(w) if value == 0]
    for a in range(1, DEVICES):
        for b in range(a, DEVICES + 1 - a):
            if w[a - 1] + w[b - 1] == w[a + b - 1]:
                row = np.zeros(DEVICES)
                row[[a - 1, a + b - 1]] += (1, -1)
                row[b - 1] += 1
                tight.append(row)
    return bool(tight) and np.linalg.matrix_rank(np.array(tight)) == DEVICES - 1


def test_the_weights_for_up_to_eight_devices_are_all_extreme_superadditive_functions() -> None:
    """By values up to 10; enumerated up to 14 once, no others exist."""
    found = {w for w in superadditive(DEVICES, 10) if any(w) and gcd(*w) == 1 and is_extreme(w)}
    assert found == set(RAYS)


def packs(pods: Sizes, free: tuple[int, ...]) -> bool:
    """By trying everything."""
    size = max((g for g, n in pods.items() if n), default=0)
    if not size:
        return True
    rest = {**pods, size: pods[size] - 1}
    return any(
        packs(rest, (*free[:i], f - size, *free[i + 1 :]))
        for i, f in enumerate(free)
        if f >= size and f not in free[:i]
    )


PODS = st.dictionaries(st.integers(1, 10), st.integers(1, 3), min_size=1, max_size=3)
FREE = st.lists(st.integers(0, 8), min_size=1, max_size=4).map(tuple)


def vectors(pods: Sizes) -> list[tuple[np.ndarray, int]]:
    return [(np.array([g], dtype=np.int64), n) for g, n in pods.items()]


@settings(max_examples=examples(300))
@given(PODS, FREE)
def test_what_packs_is_never_refused(pods: Sizes, free: tuple[int, ...]) -> None:
    if packs(pods, free):
        assert not exceeds(vectors(pods), np.array([free], dtype=np.int64))


def test_weights_that_count_for_all_sizes_at_once_refuse_what_rounding_lets_through() -> None:
    """Rows of a model must do so, as pods of other sizes can be added. Found in a batch of fifty gangs."""
    pods = dict.fromkeys(range(1, 9), 0) | {2: 6, 3: 23, 5: 25}
    free = (4,) * 4 + (6,) * 3 + (7,) + (8,) * 21
    assert sum(g * n for g, n in pods.items()) <= sum(free)
    assert exceeds(vectors(pods), np.array([free], dtype=np.int64))
