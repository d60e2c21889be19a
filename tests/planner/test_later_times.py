"""The parts of later times: free capacity after ends, and the first time at which something fits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.planner.backfill.timeline import Departures, first_fit
from queuectl.planner.problem.usage import Slots
from queuectl.planner.quota import QuotaNode, QuotaRow, QuotaTree, QuotaUse

CHARGED = ("cq", "default", "nvidia.com/gpu")
POOLS = QuotaTree({"cq": QuotaNode("cq")})


@dataclass(frozen=True, eq=False)
class Held:
    slots: Slots
    charges: tuple[tuple[QuotaRow, int], ...]


def held(nodes: list[int]) -> Held:
    """One GPU on each of these nodes."""
    slots = np.array(nodes, dtype=np.int64), np.ones((1, len(nodes)), dtype=np.int64)
    return Held(slots, ((CHARGED, len(nodes)),))


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.lists(st.integers(0, 3), max_size=4)).map(
            lambda drawn: (float(drawn[0]), held(drawn[1]))
        ),
        max_size=6,
    )
)
def test_what_is_free_after_ends_is_the_sum_of_what_has_left(
    drawn: list[tuple[float, Held]],
) -> None:
    ends = sorted(drawn, key=lambda end: end[0])
    departures = Departures.of(ends, resources=1)
    use = QuotaUse(POOLS)
    use.add(CHARGED, 100)
    for at in range(-1, 7):
        gone = [holder for end, holder in ends if end <= at]
        number = departures.number(at)
        free = np.zeros((1, 4), dtype=np.int64)
        after = departures.free(free, number)
        assert number == len(gone)
        assert not free.any()
        for node in range(4):
            assert after[0, node] == sum(int((h.slots[0] == node).sum()) for h in gone)
        left = 100 - sum(len(holder.slots[0]) for holder in gone)
        assert departures.use(use, number).of("cq", CHARGED[1:]) == left


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8])
def test_the_first_time_at_which_something_fits_needs_few_tries(size: int) -> None:
    for earliest in range(size + 1):
        tries: list[int] = []

        def fit(at: int, earliest: int = earliest, tries: list[int] = tries) -> str | None:
            tries.append(at)
            return f"fits at {at}" if at >= earliest else None

        expected = f"fits at {earliest}" if earliest < size else None
        assert first_fit(range(size), fit) == expected
        assert len(tries) <= size.bit_length()
