"""The metrics of each vendor's exporter that show faults of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from queuectl.domain.node_health import HealthSignal

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
AMD_HEALTH: Final = HealthNames(
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
INTEL_HEALTH: Final = HealthNames(
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
    "amd": AMD_HEALTH,
    "intel": INTEL_HEALTH,
}
