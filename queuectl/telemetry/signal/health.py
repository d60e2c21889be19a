"""The PromQL of faults of GPUs: for each signal one query over the whole cluster, with a series for each GPU that has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from queuectl.domain.node_health import GpuClock, GpuFault, HealthSignal, NodeHealthRules
from queuectl.telemetry.signal.names import HONORED, RENAMED
from queuectl.telemetry.signal.queries import duration
from queuectl.telemetry.signal.trust import Trust

_NODE: Final = "Hostname"
_GPU: Final = "gpu"
_BY: Final = f"{_NODE},{_GPU}"
_XID: Final = "DCGM_FI_DEV_XID_ERRORS"
_ECC: Final = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
_ROW_REMAP: Final = "DCGM_FI_DEV_ROW_REMAP_FAILURE"
_THERMAL: Final = "DCGM_FI_DEV_THERMAL_VIOLATION"
_CHECK: Final = "DCGM_EXP_GPU_HEALTH_STATUS"
_CLOCK: Final = "DCGM_FI_DEV_SM_CLOCK"
_FAILED: Final = 20  # DCGM's result FAIL; 10 is a warning
_NANOSECONDS: Final = 1e9
_THERMAL_WINDOW: Final = 300.0
COVERED: Final = 0.8  # the part of the expected samples that a clock needs
_FRESH_SCRAPES: Final = 2.5  # two intervals, and the duration of a scrape


@dataclass(frozen=True, slots=True)
class HealthQueries:
    """The queries of NVIDIA's exporter. ``scrape``: seconds between the samples of a GPU."""

    trust: Trust
    scrape: float

    def of(self, rules: NodeHealthRules) -> Mapping[HealthSignal, str]:
        """The query of each signal that counts."""
        slow = f"rate({self._series(_THERMAL)}[{duration(_THERMAL_WINDOW)}]) / {_NANOSECONDS:.0f}"
        texts = {
            HealthSignal.XID: f"max by ({_BY}) ({self._fresh(_XID)} > 0)",
            HealthSignal.ECC: f"max by ({_BY}) ({self._fresh(_ECC)} > 0)",
            HealthSignal.ROW_REMAP: f"max by ({_BY}) ({self._fresh(_ROW_REMAP)} > 0)",
            HealthSignal.THERMAL: f"max by ({_BY}) ({slow} > {rules.throttled_above})",
            HealthSignal.CHECK: f"max by ({_BY}) ({self._fresh(_CHECK)} >= {_FAILED})",
        }
        return {signal: text for signal, text in texts.items() if signal in rules.signals}

    def clocks(self, window: float) -> str:
        """The average clock of each GPU of a pod over the window, with enough samples and a fresh one."""
        samples = f"{self._series(_CLOCK)}[{duration(window)}]"
        enough = f"count_over_time({samples}) >= {COVERED * window / self.scrape}"
        return f"avg_over_time({samples}) and {enough} and {self._fresh(_CLOCK)}"

    def _series(self, metric: str) -> str:
        return f"{metric}{{{self.trust.selector}}}"

    def _fresh(self, metric: str) -> str:
        """Series with a sample that is not old: for five minutes, Prometheus also returns the last one of a dead exporter."""
        series = self._series(metric)
        return f"({series} and time() - timestamp({series}) < {_FRESH_SCRAPES * self.scrape})"


def fault(
    signal: HealthSignal, labels: Mapping[str, str], value: float, rules: NodeHealthRules
) -> GpuFault | None:
    """The fault of one series; None for a value that does not count, or without a node."""
    node, gpu = labels.get(_NODE), labels.get(_GPU, "?")
    if not node or (signal is HealthSignal.XID and int(value) not in rules.xids):
        return None
    text = {
        HealthSignal.XID: f"XID {value:.0f}",
        HealthSignal.ECC: "uncorrectable ECC errors",
        HealthSignal.ROW_REMAP: "row remapping failed",
        HealthSignal.THERMAL: f"throttled by temperature for more than {rules.throttled_above:.0%} of the time",
        HealthSignal.CHECK: "a health check of DCGM fails",
    }[signal]
    return GpuFault(node, signal, f"GPU {gpu}", text)


def clock(labels: Mapping[str, str], mhz: float) -> GpuClock | None:
    """The clock of one series; None if it names no pod. Where Prometheus renames labels, ``pod`` is that of the exporter."""
    names = RENAMED if RENAMED.pod in labels else HONORED
    namespace, pod = labels.get(names.namespace), labels.get(names.pod)
    if not namespace or not pod:
        return None
    return GpuClock((namespace, pod), f"GPU {labels.get(_GPU, '?')}", mhz)
