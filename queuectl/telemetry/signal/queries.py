"""The PromQL of one evaluation: queries over the whole cluster, each with one value per pod.

From the exporters' own series, or from the recording rules of deploy/chart/rules/rules.yaml, which cost a fraction of it on
a large cluster because they go over every GPU's samples once, as they come, instead of once per window and look.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from queuectl.telemetry.signal.names import SLICE, UID, ExporterNames, Gauge, PodLabelNames
from queuectl.telemetry.signal.trust import NVIDIA_TRUST, Trust

BUSY_QUANTILE: Final = 0.9
_JOBS_NAMED: Final = 20  # untrusted jobs in a message; a tenant can create any number


class PodSignal(StrEnum):
    """The values of each pod."""

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
    """An expression, and the divisor of its values."""

    text: str
    full: float = 1.0


def duration(seconds: float) -> str:
    """A duration in PromQL."""
    return f"{round(seconds * 1000)}ms"


class Raw:
    """Queries of the series of the exporters."""

    smear: Final = 0.0

    def __init__(self, names: ExporterNames, trust: Trust = NVIDIA_TRUST) -> None:
        self._names = names
        self._trust = trust

    def pods(self, labels: PodLabelNames, window: float) -> Mapping[PodSignal, Query]:
        """The queries of all values of all pods, over the window that ends now."""
        names = self._names
        queries = self._measured(names.busy, labels, window)
        queries[PodSignal.MEMORY_HELD] = self._memory_held(labels)
        queries[PodSignal.SHARED] = self._shared(names.busy, labels)
        for value, gauge in (
            (PodSignal.TENSOR, names.tensor),
            (PodSignal.MEMORY_BUSY, names.memory_busy),
        ):
            if gauge is not None:
                queries[value] = self._highest(gauge, labels, window)
        return queries

    def coarse(self, labels: PodLabelNames, window: float) -> Mapping[PodSignal, Query]:
        """The same queries with the coarse metric."""
        if self._names.coarse is None:
            return {}
        return self._measured(self._names.coarse, labels, window)

    def gpus(self, window: float) -> Query:
        """The number of GPUs with samples in the window, allocated or not. One missed scrape does not change it."""
        device = ",".join(self._names.device)
        series = f"{{{self._any_gpu()},{self._trust.selector}{self._whole()}}}"
        seen = f"last_over_time({series}[{duration(window)}])"
        return Query(f"count(group by ({device}) ({seen}))")

    def untrusted(self) -> Query:
        """Untrusted scrape jobs that export GPU series now."""
        others = (f"{{{self._any_gpu()},{each}}}" for each in self._trust.negated)
        return Query(f"topk({_JOBS_NAMED}, group by (job) ({' or '.join(others)}))")

    def _any_gpu(self) -> str:
        gauges = (self._names.busy, self._names.coarse)
        return f'__name__=~"{"|".join(gauge.name for gauge in gauges if gauge is not None)}"'

    def _series(self, metric: str, labels: PodLabelNames) -> str:
        return f'{metric}{{{self._trust.selector},{labels.pod}!=""{self._whole()}}}'

    def _whole(self) -> str:
        """Matchers for series of whole GPUs, or of instances of one."""
        return "".join(f',{label}=""' for label in self._names.parts)

    def _memory_held(self, labels: PodLabelNames) -> Query:
        gauge, by = self._names.memory_held, _by(labels)
        if gauge is not None:
            held, full = self._series(gauge.name, labels), gauge.full
        else:
            used, free = (
                self._series(m, labels) for m in (self._names.memory_used, self._names.memory_free)
            )
            held, full = f"({used} / ({used} + {free}))", 1.0
        whole = self._of_each_gpu(held, self._any_series(labels), labels)
        return Query(f"max by ({by}) ({held}) and {whole}", full)

    def _highest(self, gauge: Gauge, labels: PodLabelNames, window: float) -> Query:
        """Of pods whose GPUs all have the metric."""
        seen, any_gpu = (
            f"last_over_time({series}[{duration(window)}])"
            for series in (self._series(gauge.name, labels), self._any_series(labels))
        )
        whole = self._of_each_gpu(seen, any_gpu, labels)
        return Query(f"{self._busiest(gauge, labels, window).text} and {whole}", gauge.full)

    def _of_each_gpu(self, series: str, any_gpu: str, labels: PodLabelNames) -> str:
        """The pods of which as many GPUs are in ``series`` as in ``any_gpu``: the pod has no value if one of them has none."""
        by = _by(labels)
        each = f"{by},{','.join(self._names.device)}"
        have, all_gpus = (
            f"count by ({by}) (group by ({each}) ({one}))" for one in (series, any_gpu)
        )
        return f"({have} >= {all_gpus})"

    def _any_series(self, labels: PodLabelNames) -> str:
        """The use of each GPU of a pod."""
        return f'{{{self._any_gpu()},{self._trust.selector},{labels.pod}!=""{self._whole()}}}'

    def _busiest(self, gauge: Gauge, labels: PodLabelNames, window: float) -> Query:
        series = self._series(gauge.name, labels)
        return Query(f"max by ({_by(labels)}) ({_quantile(series, window)})", gauge.full)

    def _measured(
        self, gauge: Gauge, labels: PodLabelNames, window: float
    ) -> dict[PodSignal, Query]:
        by, series = _by(labels), self._series(gauge.name, labels)
        samples = f"{series}[{duration(window)}]"
        # If a GPU has two series (its exporter was restarted, or is scraped twice), the one with more samples counts: two
        # half windows are not a full one. The higher use counts, so a second series never lowers the price of an eviction.
        each = f"{by},{','.join(self._names.device)}"
        counted = f"max by ({each}) (count_over_time({samples}))"
        mean = f"avg by ({by}) (max by ({each}) (avg_over_time({samples})))"
        return {
            PodSignal.BUSY: self._busiest(gauge, labels, window),
            PodSignal.MEAN: Query(mean, gauge.full),
            PodSignal.SAMPLES: Query(f"min by ({by}) ({counted})"),
            PodSignal.GPUS: Query(f"count by ({by}) ({counted})"),
            PodSignal.AGE: Query(f"max by ({by}) (time() - timestamp({series}))"),
        }

    def _shared(self, gauge: Gauge, labels: PodLabelNames) -> Query:
        by, device = _by(labels), ",".join(self._names.device)
        series = self._series(gauge.name, labels)
        holders = f"group by ({by},{device}) ({series})"
        crowded = f"count by ({device}) ({holders}) > 1"
        sliced = f'{series.removesuffix("}")},{SLICE}!=""}}'
        return Query(f"group by ({by}) ({holders} and on ({device}) ({crowded}) or {sliced})")


class Recorded:
    """Queries of the recording rules. Their group is evaluated every ``every`` seconds over ``over`` seconds.

    The series of rules have no ``instance``. Series of the same name with one belong to a target.
    """

    def __init__(
        self,
        scrape: float = 30.0,
        every: float = 30.0,
        over: float = 120.0,
        trust: Trust = NVIDIA_TRUST,
    ) -> None:
        self._scrape = scrape
        self._every = every
        self._over = over
        self.smear: Final = over
        self._trusted = f'instance="",{trust.selector}'

    def pods(self, labels: PodLabelNames, window: float) -> Mapping[PodSignal, Query]:
        """The queries of all values of all pods, over the window that ends now."""
        queries = self._measured("profiling", labels, window)
        by = _by(labels)
        for value, name in ((PodSignal.TENSOR, "tensor"), (PodSignal.MEMORY_BUSY, "memory_busy")):
            series = self._series(f"gpu_{name}:2m", labels, "profiling")
            queries[value] = Query(f"max by ({by}) ({_quantile(series, window)})")
        held, shared = (self._series(name, labels) for name in ("gpu_memory_held", "gpu_shared"))
        queries[PodSignal.MEMORY_HELD] = Query(f"max by ({by}) ({held})")
        queries[PodSignal.SHARED] = Query(f"group by ({by}) ({shared})")
        return queries

    def coarse(self, labels: PodLabelNames, window: float) -> Mapping[PodSignal, Query]:
        """The same queries with the coarse metric."""
        return self._measured("coarse", labels, window)

    def gpus(self, window: float) -> Query:
        """The number of GPUs with samples in the window, allocated or not. One missed scrape does not change it."""
        seen = f"queuectl:gpus{{{self._trusted}}}[{duration(window)}]"
        return Query(f"sum(max_over_time({seen}))")

    def there(self) -> Query:
        """A query with a result if the rules record."""
        return Query(f"count(queuectl:gpu_busy:2m{{{self._trusted}}})")

    def _series(self, name: str, labels: PodLabelNames, signal: str = "") -> str:
        of = f'signal="{signal}",' if signal else ""
        return f'queuectl:{name}{{{of}{self._trusted},{labels.pod}!=""}}'

    def _measured(
        self, signal: str, labels: PodLabelNames, window: float
    ) -> dict[PodSignal, Query]:
        by, span = _by(labels), duration(window)
        busy, mean, samples, gpus = (
            self._series(f"gpu_{name}:2m", labels, signal)
            for name in ("busy", "mean", "samples", "devices")
        )
        age = self._series("gpu_age", labels, signal)
        return {
            PodSignal.BUSY: Query(f"max by ({by}) ({_quantile(busy, window)})"),
            PodSignal.MEAN: Query(f"max by ({by}) (avg_over_time({mean}[{span}]))"),
            # Each evaluation counts the samples of `over` seconds, so over/every of them count a sample. If samples
            # are more frequent than the setting, an evaluation with any sample is full.
            PodSignal.SAMPLES: Query(
                f"min by ({by}) (count_over_time({samples}[{span}])"
                f" * clamp_max(avg_over_time({samples}[{span}]), {self._over / self._scrape}))",
                self._over / self._every,
            ),
            PodSignal.GPUS: Query(f"min by ({by}) (min_over_time({gpus}[{span}]))"),
            PodSignal.AGE: Query(f"max by ({by}) ({age} + (time() - timestamp({age})))"),
        }


Dialect = Raw | Recorded


def _by(labels: PodLabelNames) -> str:
    return f"{labels.namespace},{labels.pod},{UID}"


def _quantile(series: str, window: float) -> str:
    return f"quantile_over_time({BUSY_QUANTILE}, {series}[{duration(window)}])"
