"""Faults of GPUs: the metrics of each vendor's exporter that show them, and their PromQL.

For each signal there is one query over the whole cluster, with a series for each GPU that has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from queuectl.domain.node_health import GpuClock, GpuFault, HealthSignal, NodeHealthRules
from queuectl.domain.words import percent
from queuectl.telemetry.signal.names import HONORED, RENAMED
from queuectl.telemetry.signal.queries import duration
from queuectl.telemetry.signal.trust import Trust

# ---- Names

_FAILED: Final = 20  # DCGM's result FAIL; 10 is a warning
_NANOSECONDS: Final = 1e9
_PERCENT: Final = 100.0


@dataclass(frozen=True, slots=True)
class Metric:
    """Series of which the newest value is a fault where it fulfills the condition.

    Attributes:
        name: of the metric.
        condition: a comparison in PromQL.
        matchers: of labels, in PromQL.
    """

    name: str
    condition: str = "> 0"
    matchers: str = ""


@dataclass(frozen=True, slots=True)
class Throttled:
    """A metric of the time in which the GPU was throttled.

    Attributes:
        name: of the metric.
        full: the value that stands for the whole time; of a counter, in one second.
        counter: it only increases.
    """

    name: str
    full: float
    counter: bool = False


@dataclass(frozen=True, slots=True)
class HealthNames:
    """The signals of one vendor's exporter.

    Attributes:
        node: the label with the name of the node.
        gpu: the label that identifies the GPU on its node.
        metrics: the metrics of each signal, except the next.
        throttled: those of ``HealthSignal.THERMAL``.
        clock: the metric of the SM clock, in MHz; empty = none.
        check: the program whose check fails, in words.
    """

    node: str
    gpu: str
    metrics: Mapping[HealthSignal, tuple[Metric, ...]]
    throttled: tuple[Throttled, ...] = field(default=())
    clock: str = ""
    check: str = ""

    def prefixed(self, prefix: str) -> HealthNames:
        """The names of an exporter that adds a prefix to each of its metrics."""
        return replace(
            self,
            metrics={
                signal: tuple(replace(one, name=prefix + one.name) for one in metrics)
                for signal, metrics in self.metrics.items()
            },
            throttled=tuple(replace(one, name=prefix + one.name) for one in self.throttled),
        )


NVIDIA_HEALTH: Final = HealthNames(
    node="Hostname",
    gpu="gpu",
    metrics={
        HealthSignal.XID: (Metric("DCGM_FI_DEV_XID_ERRORS"),),
        HealthSignal.ECC: (Metric("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"),),
        HealthSignal.ROW_REMAP: (Metric("DCGM_FI_DEV_ROW_REMAP_FAILURE"),),
        HealthSignal.CHECK: (Metric("DCGM_EXP_GPU_HEALTH_STATUS", f">= {_FAILED}"),),
    },
    throttled=(Throttled("DCGM_FI_DEV_THERMAL_VIOLATION", _NANOSECONDS, counter=True),),
    clock="DCGM_FI_DEV_SM_CLOCK",
    check="DCGM",
)
_AMD_HEALTH: Final = HealthNames(
    node="hostname",
    gpu="gpu_id",
    metrics={
        HealthSignal.ECC: (Metric("gpu_ecc_uncorrect_total"),),
        HealthSignal.CHECK: (Metric("gpu_health", "== 0"),),
    },
    throttled=tuple(
        Throttled(f"gpu_violation_{part}_thermal_residency_percentage", _PERCENT)
        for part in ("socket", "vr", "hbm")
    ),
    check="AMD's exporter",
)
_UNCORRECTABLE: Final = 'type="uncorrectable"'
_INTEL_HEALTH: Final = HealthNames(
    node="node",
    gpu="pci_bdf",
    metrics={
        HealthSignal.ECC: (
            Metric("xpum_cache_errors_total", matchers=_UNCORRECTABLE),
            Metric("xpum_non_compute_errors_total", matchers=_UNCORRECTABLE),
            Metric("hw_errors_total", matchers='hw_type="gpu",error_type="uncorrectable"'),
        ),
    },
)
"""XPU Manager 1, and the last metric version 2."""
VENDORS_HEALTH: Final[Mapping[str, HealthNames]] = {
    "nvidia": NVIDIA_HEALTH,
    "amd": _AMD_HEALTH,
    "intel": _INTEL_HEALTH,
}

# ---- Queries

_THERMAL_WINDOW: Final = 300.0
_COVERED: Final = 0.8  # the part of the expected samples that a clock needs
_FRESH_SCRAPES: Final = 2.5  # two intervals, and the duration of a scrape


@dataclass(frozen=True, slots=True)
class HealthQueries:
    """The queries of one vendor's exporter. ``scrape``: seconds between the samples of a GPU."""

    trust: Trust
    scrape: float
    names: HealthNames = NVIDIA_HEALTH

    def of(self, rules: NodeHealthRules) -> Mapping[HealthSignal, str]:
        """The query of each signal that counts and that the exporter has."""
        by = f"{self.names.node},{self.names.gpu}"
        parts = {signal: list(self._faulty(signal, rules)) for signal in rules.signals}
        return {
            signal: f"max by ({by}) ({' or '.join(texts)})"
            for signal, texts in parts.items()
            if texts
        }

    def _faulty(self, signal: HealthSignal, rules: NodeHealthRules) -> Iterator[str]:
        """The series of a signal that are faults."""
        for metric in self.names.metrics.get(signal, ()):
            yield f"{self._fresh(metric.name, metric.matchers)} {metric.condition}"
        if signal is HealthSignal.THERMAL:
            for one in self.names.throttled:
                yield f"{self._throttled(one)} > {rules.throttled_above}"

    def _throttled(self, reason: Throttled) -> str:
        """The part of the time for which each GPU was throttled."""
        average = "rate" if reason.counter else "avg_over_time"
        window = f"{self._series(reason.name)}[{duration(_THERMAL_WINDOW)}]"
        return f"{average}({window}) / {reason.full:.0f}"

    def fault(
        self,
        signal: HealthSignal,
        labels: Mapping[str, str],
        reading: float,
        rules: NodeHealthRules,
    ) -> GpuFault | None:
        """The fault of one series; None for a value that does not count, or without a node."""
        node, gpu = labels.get(self.names.node), labels.get(self.names.gpu, "?")
        if not node or (signal is HealthSignal.XID and reading not in rules.xids):
            return None
        text = {
            HealthSignal.XID: f"XID {reading:.0f}",
            HealthSignal.ECC: "uncorrectable ECC errors",
            HealthSignal.ROW_REMAP: "row remapping failed",
            HealthSignal.THERMAL: f"throttled by temperature for more than {percent(rules.throttled_above)} of the time",
            HealthSignal.CHECK: f"a health check of {self.names.check} fails",
        }[signal]
        return GpuFault(node, signal, f"GPU {gpu}", text)

    def clocks(self, window: float) -> str | None:
        """The average clock of each GPU of a pod over the window, with enough samples and a fresh one; None without the metric."""
        if not self.names.clock:
            return None
        samples = f"{self._series(self.names.clock)}[{duration(window)}]"
        enough = f"count_over_time({samples}) >= {_COVERED * window / self.scrape}"
        return f"avg_over_time({samples}) and {enough} and {self._fresh(self.names.clock)}"

    def clock(self, labels: Mapping[str, str], mhz: float) -> GpuClock | None:
        """The clock of one series; None if it names no pod. Where Prometheus renames labels, ``pod`` names the exporter's pod."""
        names = RENAMED if RENAMED.pod in labels else HONORED
        namespace, pod = labels.get(names.namespace), labels.get(names.pod)
        if not namespace or not pod:
            return None
        return GpuClock((namespace, pod), f"GPU {labels.get(self.names.gpu, '?')}", mhz)

    def _series(self, metric: str, matchers: str = "") -> str:
        return f"{metric}{{{','.join(filter(None, (self.trust.selector, matchers)))}}}"

    def _fresh(self, metric: str, matchers: str = "") -> str:
        """Series with a sample that is not old: for five minutes, Prometheus also returns the last one of a dead exporter."""
        series = self._series(metric, matchers)
        return f"({series} and time() - timestamp({series}) < {_FRESH_SCRAPES * self.scrape})"
