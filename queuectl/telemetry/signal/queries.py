"""The PromQL of one look: a handful of queries over the whole cluster, each with one value per pod.

From the exporters' own series, or from the recording rules of deploy/prometheus/rules.yaml, which cost a fraction of it on
a large cluster because they go over every GPU's samples once, as they come, instead of once per window and look.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from queuectl.telemetry.signal.names import SLICE, UID, Gauge, Names, PodLabels

BUSY_QUANTILE: Final = 0.9


class Value(StrEnum):
    """What is asked of every pod."""

    BUSY = "busy"
    MEAN = "mean"
    SAMPLES = "samples"
    GPUS = "gpus"
    AGE = "age"
    SHARED = "shared"
    TENSOR = "tensor"
    MEMORY_BUSY = "memory_busy"
    MEMORY_HELD = "memory_held"


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and what its values are divided by."""

    text: str
    full: float = 1.0


def duration(seconds: float) -> str:
    """As PromQL writes it."""
    return f"{round(seconds * 1000)}ms"


class Raw:
    """Over the exporters' own series."""

    smear: Final = 0.0

    def __init__(self, names: Names) -> None:
        self._names = names

    def pods(self, labels: PodLabels, window: float) -> Mapping[Value, Query]:
        """Everything about every pod, over the window that ends now."""
        names, by = self._names, _by(labels)
        queries = self._measured(names.busy, labels, window)
        held, free = (f'{m}{{{labels.pod}!=""}}' for m in (names.memory_used, names.memory_free))
        queries[Value.MEMORY_HELD] = Query(f"max by ({by}) ({held} / ({held} + {free}))")
        queries[Value.SHARED] = self._shared(names.busy, labels)
        for value, gauge in ((Value.TENSOR, names.tensor), (Value.MEMORY_BUSY, names.memory_busy)):
            if gauge is not None:
                queries[value] = _busiest(gauge, labels, window)
        return queries

    def coarse(self, labels: PodLabels, window: float) -> Mapping[Value, Query]:
        """The same by the metric that stands in for the better one."""
        if self._names.coarse is None:
            return {}
        return self._measured(self._names.coarse, labels, window)

    def gpus(self, window: float) -> Query:
        """How many GPUs were seen in the window, whoever holds them: one missed scrape does not unmake them."""
        gauges = (self._names.busy, self._names.coarse)
        any_of = "|".join(gauge.name for gauge in gauges if gauge is not None)
        device = ",".join(self._names.device)
        seen = f'last_over_time({{__name__=~"{any_of}"}}[{duration(window)}])'
        return Query(f"count(group by ({device}) ({seen}))")

    def _measured(self, gauge: Gauge, labels: PodLabels, window: float) -> dict[Value, Query]:
        by, series = _by(labels), f'{gauge.name}{{{labels.pod}!=""}}'
        samples = f"{series}[{duration(window)}]"
        # Of two series of one GPU (its exporter was restarted, or is scraped twice) the fuller one counts, not both: two
        # halves of a window must not pass for a whole.
        counted = f"max by ({by},{','.join(self._names.device)}) (count_over_time({samples}))"
        return {
            Value.BUSY: _busiest(gauge, labels, window),
            Value.MEAN: Query(f"avg by ({by}) (avg_over_time({samples}))", gauge.full),
            Value.SAMPLES: Query(f"min by ({by}) ({counted})"),
            Value.GPUS: Query(f"count by ({by}) ({counted})"),
            Value.AGE: Query(f"max by ({by}) (time() - timestamp({series}))"),
        }

    def _shared(self, gauge: Gauge, labels: PodLabels) -> Query:
        by, device = _by(labels), ",".join(self._names.device)
        holders = f'group by ({by},{device}) ({gauge.name}{{{labels.pod}!=""}})'
        crowded = f"count by ({device}) ({holders}) > 1"
        sliced = f'{gauge.name}{{{labels.pod}!="",{SLICE}!=""}}'
        return Query(f"group by ({by}) ({holders} and on ({device}) ({crowded}) or {sliced})")


class Recorded:
    """Over what the recording rules made of them; their group is evaluated every ``every`` seconds over ``over`` seconds."""

    def __init__(self, scrape: float = 30.0, every: float = 30.0, over: float = 120.0) -> None:
        self._scrape = scrape
        self._every = every
        self._over = over
        self.smear: Final = over

    def pods(self, labels: PodLabels, window: float) -> Mapping[Value, Query]:
        """Everything about every pod, over the window that ends now."""
        queries = self._measured("profiling", labels, window)
        by = _by(labels)
        for value, name in ((Value.TENSOR, "tensor"), (Value.MEMORY_BUSY, "memory_busy")):
            series = _recorded(name, "profiling", labels)
            queries[value] = Query(f"max by ({by}) ({_quantile(series, window)})")
        held = f'queuectl:gpu_memory_held{{{labels.pod}!=""}}'
        queries[Value.MEMORY_HELD] = Query(f"max by ({by}) ({held})")
        queries[Value.SHARED] = Query(f'group by ({by}) (queuectl:gpu_shared{{{labels.pod}!=""}})')
        return queries

    def coarse(self, labels: PodLabels, window: float) -> Mapping[Value, Query]:
        """The same by the metric that stands in for the better one."""
        return self._measured("coarse", labels, window)

    def gpus(self, window: float) -> Query:
        """How many GPUs were seen in the window, whoever holds them: one missed scrape does not unmake them."""
        return Query(f"max(max_over_time(queuectl:gpus[{duration(window)}]))")

    def _measured(self, signal: str, labels: PodLabels, window: float) -> dict[Value, Query]:
        by, span = _by(labels), duration(window)
        busy, mean, samples, gpus = (
            _recorded(name, signal, labels) for name in ("busy", "mean", "samples", "devices")
        )
        age = _recorded("age", signal, labels).replace(":2m", "")
        return {
            Value.BUSY: Query(f"max by ({by}) ({_quantile(busy, window)})"),
            Value.MEAN: Query(f"avg by ({by}) (avg_over_time({mean}[{span}]))"),
            # Each evaluation counted the samples of `over` seconds, so each sample stands in over/every of them. One that
            # comes just before the evaluation may be stored just after it, and then always does: one more counts as there.
            Value.SAMPLES: Query(
                f"min by ({by}) (count_over_time({samples}[{span}])"
                f" * clamp_max(avg_over_time({samples}[{span}]) + 1, {self._over / self._scrape}))",
                self._over / self._every,
            ),
            Value.GPUS: Query(f"min by ({by}) (min_over_time({gpus}[{span}]))"),
            Value.AGE: Query(f"max by ({by}) ({age} + (time() - timestamp({age})))"),
        }


Dialect = Raw | Recorded


def _by(labels: PodLabels) -> str:
    return f"{labels.namespace},{labels.pod},{UID}"


def _busiest(gauge: Gauge, labels: PodLabels, window: float) -> Query:
    series = f'{gauge.name}{{{labels.pod}!=""}}'
    return Query(f"max by ({_by(labels)}) ({_quantile(series, window)})", gauge.full)


def _quantile(series: str, window: float) -> str:
    return f"quantile_over_time({BUSY_QUANTILE}, {series}[{duration(window)}])"


def _recorded(name: str, signal: str, labels: PodLabels) -> str:
    return f'queuectl:gpu_{name}:2m{{signal="{signal}",{labels.pod}!=""}}'
