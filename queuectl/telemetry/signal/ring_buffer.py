"""The last scrapes of exporters in memory, and the aggregates of a window that a Prometheus would return."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from queuectl.telemetry.signal.queries import BUSY_QUANTILE

Floats = npt.NDArray[np.float32]
METRICS: Final = 7
BUSY, COARSE, TENSOR, MEMORY_BUSY, USED, FREE, HELD = range(METRICS)
"""The stored metrics of a GPU."""


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """The holder of a GPU: pod, uid and device labels; ``slice`` for a time-sliced GPU."""

    namespace: str
    pod: str
    uid: str
    device: tuple[str, ...]
    slice: str


class RingBuffer:
    """The last scrapes of one exporter: metrics x scrapes for each holder, NaN without a sample."""

    def __init__(self, slots: int) -> None:
        self.times = np.full(slots, -np.inf)
        self.rows: dict[GpuHolder, int] = {}
        self.values: Floats = np.empty((0, METRICS, slots), np.float32)
        self._seen = np.empty(0)
        self._next = 0

    def add(self, at: float, scraped: Mapping[GpuHolder, Mapping[int, float]]) -> None:
        """Add a scrape and remove the oldest. Holders without samples are removed."""
        slot, self._next = self._next, (self._next + 1) % len(self.times)
        self.times[slot] = at
        self._make_room(scraped.keys() - self.rows.keys())
        self.values[:, :, slot] = np.nan
        for holder, measured in scraped.items():
            row = self.rows[holder]
            self._seen[row] = at
            for metric, value in measured.items():
                self.values[row, metric, slot] = value

    def _make_room(self, new: Collection[GpuHolder]) -> None:
        kept = [row for row in self.rows.values() if self._seen[row] >= self.times.min()]
        if not new and len(kept) == len(self.rows):
            return
        by_row = {row: holder for holder, row in self.rows.items()}
        holders = [by_row[row] for row in kept] + list(new)
        empty = np.full((len(new), METRICS, len(self.times)), np.nan, np.float32)
        self.values = np.concatenate([self.values[kept], empty])
        self._seen = np.concatenate([self._seen[kept], np.full(len(new), -np.inf)])
        self.rows = {holder: row for row, holder in enumerate(holders)}


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one GPU in a window."""

    high: float
    mean: float
    samples: int
    age: float


@dataclass(slots=True)
class GpuWindow:
    """One GPU of one pod in a window."""

    busy: Series | None
    coarse: Series | None
    tensor: float | None
    memory_busy: float | None
    memory_held: float | None
    shared: bool = False

    @property
    def samples(self) -> int:
        """The samples of the metric that has more of them."""
        return max(one.samples for one in (self.busy, self.coarse) if one is not None)

    def beside(self, second: GpuWindow) -> GpuWindow:
        """Combine the records of two exporters for one GPU: the one with more samples, with the higher use of the two."""
        fuller, poorer = (self, second) if self.samples >= second.samples else (second, self)
        return GpuWindow(
            _not_below(fuller.busy, poorer.busy),
            _not_below(fuller.coarse, poorer.coarse),
            highest((fuller.tensor, poorer.tensor)),
            highest((fuller.memory_busy, poorer.memory_busy)),
            highest((fuller.memory_held, poorer.memory_held)),
            fuller.shared or poorer.shared,
        )


def highest(shares: Iterable[float | None]) -> float | None:
    """None if one value is unknown, because it could be the higher one."""
    known = list(shares)
    there = [value for value in known if value is not None]
    return max(there) if there and len(there) == len(known) else None


def _not_below(series: Series | None, floor: Series | None) -> Series | None:
    if series is None or floor is None:
        return series
    return replace(series, high=max(series.high, floor.high), mean=max(series.mean, floor.mean))


class WindowSamples:
    """The aggregates of all holders of one exporter in a window. Arrays are holders x metrics."""

    def __init__(self, samples: Floats, times: npt.NDArray[np.float64]) -> None:
        there = ~np.isnan(samples)
        self._samples = there.sum(axis=-1)
        self.newest = np.where(there, times, -np.inf).max(axis=-1)
        parts = np.clip(samples, 0.0, 1.0)
        total = np.where(there, parts, 0.0).sum(axis=-1)
        self._mean = total / np.maximum(self._samples, 1)
        self._high = _quantile(np.sort(parts, axis=-1), self._samples)
        latest = np.where(there, times, -np.inf).argmax(axis=-1)
        self._last = np.take_along_axis(samples, latest[..., None], axis=-1)[..., 0]

    def of(self, row: int, at: float) -> GpuWindow | None:
        """The aggregates of one holder; None without measurements."""
        busy, coarse = self._series(row, BUSY, at), self._series(row, COARSE, at)
        if busy is None and coarse is None:
            return None
        used, free = float(self._last[row, USED]), float(self._last[row, FREE])
        tensor, memory_busy = (
            float(self._high[row, metric]) if self._samples[row, metric] else None
            for metric in (TENSOR, MEMORY_BUSY)
        )
        held = used / (used + free) if used + free > 0 else None  # False if one is NaN
        if self._samples[row, HELD]:
            held = min(max(float(self._last[row, HELD]), 0.0), 1.0)
        return GpuWindow(busy, coarse, tensor, memory_busy, held)

    def _series(self, row: int, metric: int, at: float) -> Series | None:
        samples = int(self._samples[row, metric])
        if not samples:
            return None
        high, mean = float(self._high[row, metric]), float(self._mean[row, metric])
        return Series(high, mean, samples, at - float(self.newest[row, metric]))


def _quantile(ordered: Floats, counts: npt.NDArray[np.intp]) -> npt.NDArray[np.floating]:
    """Quantile of the first ``counts`` values along the last axis, with the interpolation of Prometheus. NaN follow the values."""
    rank = BUSY_QUANTILE * np.maximum(counts - 1, 0)
    below = np.floor(rank).astype(np.intp)
    above = np.minimum(below + 1, np.maximum(counts - 1, 0))
    low, high = (
        np.take_along_axis(ordered, at[..., None], axis=-1)[..., 0] for at in (below, above)
    )
    return low + (rank - below) * (high - low)
