"""The kept samples of exporters: what is in a window, what is forgotten, and sums as Prometheus makes them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.telemetry.signal.exporters import (
    BUSY,
    FREE,
    TENSOR,
    USED,
    GpuHolder,
    RingBuffer,
    WindowSamples,
)

A = GpuHolder("team", "a", "", ("n0", "GPU-0"), "")
B = GpuHolder("team", "b", "", ("n0", "GPU-1"), "")


def seen(ring: RingBuffer, since: float = -np.inf) -> WindowSamples:
    inside = np.flatnonzero(ring.times > since)
    return WindowSamples(ring.values[:, :, inside], ring.times[inside])


@given(st.lists(st.none() | st.floats(0, 1, width=32), min_size=1, max_size=30))
def test_sums_are_over_the_samples_that_are_there_whatever_the_gaps(
    samples: list[float | None],
) -> None:
    ring = RingBuffer(slots=12)
    for at, value in enumerate(samples):
        ring.add(float(at), {} if value is None else {A: {BUSY: value}})
    there = [(at, v) for at, v in enumerate(samples) if v is not None and at >= len(samples) - 12]
    if A not in ring.rows:
        assert there == []
        return
    found = seen(ring).of(ring.rows[A], at=float(len(samples)))
    if not there:
        assert found is None
        return
    assert found is not None
    assert found.busy is not None
    values = [value for _, value in there]
    assert found.busy.samples == len(values)
    assert found.busy.mean == pytest.approx(np.mean(values), abs=1e-6)
    assert found.busy.high == pytest.approx(np.quantile(values, 0.9), abs=1e-6)
    assert found.busy.age == len(samples) - there[-1][0]


def test_a_window_has_only_its_own_samples() -> None:
    ring = RingBuffer(slots=10)
    for at in range(10):
        ring.add(float(at), {A: {BUSY: 1.0 if at < 5 else 0.0}})
    found = seen(ring, since=4.5).of(ring.rows[A], at=9.0)
    assert found is not None
    assert found.busy is not None
    assert (found.busy.high, found.busy.samples) == (0.0, 5)


def test_a_deleted_pod_is_forgotten_once_its_samples_are_dropped() -> None:
    ring = RingBuffer(slots=3)
    ring.add(0.0, {A: {BUSY: 1.0}, B: {BUSY: 0.5}})
    for at in range(1, 4):
        assert A in ring.rows
        ring.add(float(at), {B: {BUSY: 0.5}})
    ring.add(4.0, {B: {BUSY: 0.5}})
    assert set(ring.rows) == {B}
    found = seen(ring).of(ring.rows[B], at=4.0)
    assert found is not None
    assert found.busy is not None
    assert (found.busy.high, found.busy.samples) == (0.5, 3)


def test_what_is_not_exported_is_not_known() -> None:
    ring = RingBuffer(slots=3)
    ring.add(0.0, {A: {BUSY: 0.0, USED: 10.0}})
    found = seen(ring).of(ring.rows[A], at=0.0)
    assert found is not None
    assert (found.coarse, found.tensor, found.memory_busy, found.memory_held) == (None,) * 4
    ring.add(1.0, {A: {BUSY: 0.0, TENSOR: 0.25, USED: 10.0, FREE: 30.0}})
    found = seen(ring).of(ring.rows[A], at=1.0)
    assert found is not None
    assert (found.tensor, found.memory_held) == (0.25, 0.25)
