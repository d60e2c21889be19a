"""GPU utilization from the exporters, without a Prometheus.

The last scrapes are kept in memory. Each exporter has a ring buffer: the times of its scrapes, and a value per scrape for each GPU and
metric. It gives the aggregates of a window that a Prometheus would return. The buffer covers the longest window. A longer window is
complete only after its duration.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from socket import SOCK_STREAM
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import httpx2
import numpy as np
import numpy.typing as npt
import structlog

from queuectl.domain.errors import SourceUnavailable
from queuectl.domain.utilization import PodKey, PodUse, UtilizationSample
from queuectl.telemetry.signal.names import HONORED, NVIDIA, SLICE, UID, ExporterNames, Gauge
from queuectl.telemetry.signal.queries import BUSY_QUANTILE

# ---- Scrapes

log = structlog.get_logger()
DNS: Final = "dns+"
_AT_ONCE: Final = 64  # scrapes
_MOST: Final = 16 << 20  # bytes of one scrape; that of a node with 56 MIG instances is 2 MiB
_LINE: Final = re.compile(rb"^([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^\n]*)\} ([^ \n]+)", re.MULTILINE)
_LABEL: Final = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')


class ExporterSource:
    """Scrapes exporters once per evaluation, and answers from its buffer.

    A failed scrape is a gap, as in a Prometheus.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        names: Sequence[ExporterNames] = (NVIDIA,),
        scrape_seconds: float = 30.0,
        retention_seconds: float = 7200.0,
        trust_slices: bool = False,
        timeout: float = 5.0,
    ) -> None:
        """Connect lazily.

        Args:
            urls: of the exporters' metrics. The prefix ``dns+`` selects all current addresses of the host, for example
                those of a headless Service.
            names: the metrics and labels of each vendor.
            scrape_seconds: between evaluations. Each of them scrapes.
            retention_seconds: of samples to keep.
            trust_slices: the exporter measures each pod of a time-sliced GPU separately.
            timeout: seconds for one scrape.
        """
        self._urls = tuple(urls)
        self.trusts = f"exporters at {', '.join(urls)}"
        self._scrape = scrape_seconds
        self._slots = max(2, round(retention_seconds / scrape_seconds) + 1)
        self._kept = retention_seconds
        self._trust_slices = trust_slices
        self._timeout = timeout
        self._rings: dict[str, RingBuffer] = {}
        self._scraped_at: float | None = None
        self._devices: dict[str, int] = {}
        self._http = httpx2.AsyncClient(
            timeout=timeout, trust_env=False, limits=httpx2.Limits(max_connections=_AT_ONCE)
        )
        self._wanted = {
            gauge.name.encode(): (number, gauge.full, vendor)
            for vendor in names
            for number, gauge in enumerate(_gauges(vendor))
            if gauge is not None
        }

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def sample(
        self,
        window: float,
        at: float,
        pods: Collection[PodKey],  # noqa: ARG002 - only a Prometheus has two ways to name pods
    ) -> UtilizationSample:
        """The samples of the ``window`` seconds before ``at`` (unix seconds). Scrapes once for each ``at``.

        Raises:
            SourceUnavailable: not one exporter answers.
        """
        if at != self._scraped_at:
            await self._scrape_all(at)
            self._scraped_at = at
        return await asyncio.to_thread(self._sample, window, at)

    async def _scrape_all(self, at: float) -> None:
        slots = asyncio.Semaphore(_AT_ONCE)
        urls = [url for given in self._urls for url in await _resolve(given)]
        texts = await asyncio.gather(*(self._fetch(url, slots) for url in urls))
        failures = [text for text in texts if isinstance(text, str)]
        if failures and len(failures) == len(texts):
            raise SourceUnavailable(f"exporters: none of {len(texts)} answers; {failures[0]}")
        if failures:
            log.warning("exporters_not_reached", count=len(failures), error=failures[0])
        await asyncio.to_thread(self._keep, at, dict(zip(urls, texts, strict=True)))

    async def _fetch(self, url: str, slots: asyncio.Semaphore) -> bytes | str:
        """The text of the scrape, or an error message."""
        text = bytearray()
        try:
            # The limit of the client is for each part. An exporter that sends part after part would hold up the samples of all others.
            async with (
                slots,
                asyncio.timeout(self._timeout),
                self._http.stream("GET", url) as response,
            ):
                if response.status_code != 200:
                    return f"{url}: HTTP {response.status_code}"
                async for part in response.aiter_bytes():
                    text += part
                    if len(text) > _MOST:
                        return f"{url}: more than {_MOST >> 20} MiB"
        except TimeoutError:
            return f"{url}: no answer within {self._timeout:g} s"
        except httpx2.HTTPError as error:
            return f"{url}: {str(error) or type(error).__name__}"
        return bytes(text)

    def _keep(self, at: float, texts: Mapping[str, bytes | str]) -> None:
        self._rings = {
            url: ring
            for url, ring in self._rings.items()
            if url in texts or ring.times.max() >= at - self._kept
        }
        self._devices = {}
        for url, text in texts.items():
            scraped: dict[GpuHolder, dict[int, float]] = {}
            devices: set[tuple[str, ...]] = set()
            if isinstance(text, bytes):
                self._parse(text, scraped, devices)
            self._devices[url] = len(devices)
            ring = self._rings.get(url)
            if ring is None:
                ring = self._rings[url] = RingBuffer(self._slots)
            ring.add(at, scraped)

    def _parse(
        self,
        text: bytes,
        scraped: dict[GpuHolder, dict[int, float]],
        devices: set[tuple[str, ...]],
    ) -> None:
        holders: dict[bytes, GpuHolder | None] = {}  # the same labels follow each metric
        for name, labels, reading in _LINE.findall(text):
            wanted = self._wanted.get(name)
            if wanted is None:
                continue
            metric, full, vendor = wanted
            if labels not in holders:
                holders[labels] = _holder(labels.decode(errors="replace"), vendor)
            holder = holders[labels]
            if holder is None:
                continue
            devices.add(holder.device)
            share = _share(reading, full) if holder.pod else None
            if share is not None:
                scraped.setdefault(holder, {})[metric] = share

    def _sample(self, window: float, at: float) -> UtilizationSample:
        pods: dict[tuple[str, str, str], dict[tuple[str, ...], GpuWindow]] = {}
        holding: dict[tuple[str, ...], set[PodKey]] = {}
        for ring in self._rings.values():
            inside = np.flatnonzero((ring.times > at - window) & (ring.times <= at))
            if not len(inside) or not ring.rows:
                continue
            seen = WindowSamples(ring.values[:, :, inside], ring.times[inside])
            for holder, row in ring.rows.items():
                if seen.newest[row, :TENSOR].max() == self._scraped_at:
                    holding.setdefault(holder.device, set()).add((holder.namespace, holder.pod))
                measured = seen.of(row, at)
                if measured is not None:
                    measured.shared = bool(holder.slice)
                    gpus = pods.setdefault((holder.namespace, holder.pod, holder.uid), {})
                    other = gpus.get(
                        holder.device
                    )  # of a second exporter, or of one that has moved
                    gpus[holder.device] = measured if other is None else measured.beside(other)
        uses = tuple(self._uses(pods, holding, window))
        return UtilizationSample(at, window, window, sum(self._devices.values()), uses)

    def _uses(
        self,
        pods: Mapping[tuple[str, str, str], Mapping[tuple[str, ...], GpuWindow]],
        holding: Mapping[tuple[str, ...], Collection[PodKey]],
        window: float,
    ) -> Iterator[PodUse]:
        for (namespace, pod, uid), by_device in pods.items():
            gpus = list(by_device.values())
            crowded = any(len(holding.get(device, ())) > 1 for device in by_device)
            shared = crowded or any(gpu.shared for gpu in gpus)
            fine = all(gpu.busy is not None for gpu in gpus) and not (shared and self._trust_slices)
            series = [gpu.busy if fine else gpu.coarse for gpu in gpus]
            measured = [one for one in series if one is not None]
            if not measured:
                continue
            yield PodUse(
                namespace=namespace,
                pod=pod,
                gpus=len(measured),
                busy=max(one.high for one in measured),
                mean=sum(one.mean for one in measured) / len(measured),
                coverage=min(
                    1.0, (min(one.samples for one in measured) + 1) * self._scrape / window
                ),
                age=max(one.age for one in measured),
                uid=uid or None,
                tensor=highest(gpu.tensor for gpu in gpus) if fine else None,
                memory_busy=highest(gpu.memory_busy for gpu in gpus) if fine else None,
                memory_held=highest(gpu.memory_held for gpu in gpus),
                shared=shared and not self._trust_slices,
                own=shared and self._trust_slices,
                profiled=fine,
            )


def _share(reading: bytes, full: float) -> float | None:
    """The value as a part of ``full``; None if it is not a measurement: not a number, or negative."""
    try:
        share = float(reading) / full
    except ValueError:
        return None
    return share if share >= 0.0 else None


def _gauges(names: ExporterNames) -> tuple[Gauge | None, ...]:
    """In the order of the metrics of a ring buffer."""
    used, free = (Gauge(name) if name else None for name in (names.memory_used, names.memory_free))
    return (
        *(names.busy, names.coarse, names.tensor, names.memory_busy),
        *(used, free, names.memory_held),
    )


def _holder(text: str, names: ExporterNames) -> GpuHolder | None:
    """The holder of a series; None for a series that describes a part of a GPU."""
    labels = dict(_LABEL.findall(text))
    if any(labels.get(label) for label in names.parts):
        return None
    device = tuple(labels.get(label, "") for label in names.device)
    own = names.own_labels or HONORED
    return GpuHolder(
        labels.get(own.namespace, ""),
        labels.get(own.pod, ""),
        labels.get(UID, ""),
        device,
        labels.get(SLICE, ""),
    )


async def _resolve(url: str) -> list[str]:
    """The URLs that a URL of the settings selects.

    Raises:
        SourceUnavailable: its host has no address.
    """
    if not url.startswith(DNS):
        return [url]
    parts = urlsplit(url.removeprefix(DNS))
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port, type=SOCK_STREAM)
    except OSError as error:
        raise SourceUnavailable(f"exporters: {parts.hostname}: {error}") from error
    hosts = sorted({str(address[4][0]) for address in found})
    shown = (f"[{host}]" if ":" in host else host for host in hosts)
    return [urlunsplit(parts._replace(netloc=f"{host}:{port}")) for host in shown]


# ---- Samples in memory

Floats = npt.NDArray[np.float32]
_METRICS: Final = 7
BUSY, COARSE, TENSOR, MEMORY_BUSY, USED, FREE, HELD = range(_METRICS)
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
        self.values: Floats = np.empty((0, _METRICS, slots), np.float32)
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
        empty = np.full((len(new), _METRICS, len(self.times)), np.nan, np.float32)
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
        held = used / (used + free) if 0 < used + free < inf else None  # False if one is NaN
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
