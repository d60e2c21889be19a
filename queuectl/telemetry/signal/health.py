"""The PromQL of faults of GPUs: for each signal one query over the whole cluster, with a series for each GPU that has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from queuectl.domain.node_health import GpuClock, GpuFault, HealthSignal, NodeHealthRules
from queuectl.telemetry.signal.health_names import NVIDIA_HEALTH, HealthNames, Throttled
from queuectl.telemetry.signal.names import HONORED, RENAMED
from queuectl.telemetry.signal.queries import duration
from queuectl.telemetry.signal.trust import Trust

_THERMAL_WINDOW: Final = 300.0
COVERED: Final = 0.8  # the part of the expected samples that a clock needs
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
        if not node or (signal is HealthSignal.XID and int(reading) not in rules.xids):
            return None
        text = {
            HealthSignal.XID: f"XID {reading:.0f}",
            HealthSignal.ECC: "uncorrectable ECC errors",
            HealthSignal.ROW_REMAP: "row remapping failed",
            HealthSignal.THERMAL: f"throttled by temperature for more than {rules.throttled_above:.0%} of the time",
            HealthSignal.CHECK: f"a health check of {self.names.check} fails",
        }[signal]
        return GpuFault(node, signal, f"GPU {gpu}", text)

    def clocks(self, window: float) -> str | None:
        """The average clock of each GPU of a pod over the window, with enough samples and a fresh one; None without the metric."""
        if not self.names.clock:
            return None
        samples = f"{self._series(self.names.clock)}[{duration(window)}]"
        enough = f"count_over_time({samples}) >= {COVERED * window / self.scrape}"
        return f"avg_over_time({samples}) and {enough} and {self._fresh(self.names.clock)}"

    def clock(self, labels: Mapping[str, str], mhz: float) -> GpuClock | None:
        """The clock of one series; None if it names no pod. Where Prometheus renames labels, ``pod`` is that of the exporter."""
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
