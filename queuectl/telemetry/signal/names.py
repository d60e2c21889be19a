"""The metric names of the vendors' exporters, and the labels that name the pod and the GPU of a series."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Gauge:
    """A metric and its maximum, by which values are divided to get 0..1."""

    name: str
    full: float = 1.0


@dataclass(frozen=True, slots=True)
class PodLabelNames:
    """The labels that name the pod of a GPU."""

    namespace: str
    pod: str


@dataclass(frozen=True, slots=True)
class ExporterNames:
    """The metrics of one vendor's exporter.

    Attributes:
        busy: part of the time in which the engines were busy.
        coarse: the replacement of ``busy`` if that is not exported; None = it has none.
        tensor, memory_busy: tensor pipes and memory interface; None = not exported.
        memory_used, memory_free: GPU memory, in one unit; empty = not exported.
        device: labels that together identify a GPU, or an instance of one.
        memory_held: the part of the GPU memory in use, where the other two are not exported.
        parts: labels of series that describe a part of a GPU, or several; these series are not read.
        own_labels: the labels that name the pod, for an exporter that does not use ``namespace`` and ``pod``.
    """

    busy: Gauge
    coarse: Gauge | None
    tensor: Gauge | None
    memory_busy: Gauge | None
    memory_used: str
    memory_free: str
    device: tuple[str, ...]
    memory_held: Gauge | None = None
    parts: tuple[str, ...] = ()
    own_labels: PodLabelNames | None = None

    def prefixed(self, prefix: str) -> ExporterNames:
        """The names of an exporter that adds a prefix to each of its metrics."""
        gauges = (self.busy, self.coarse, self.tensor, self.memory_busy, self.memory_held)
        busy, coarse, tensor, memory_busy, memory_held = (
            Gauge(prefix + gauge.name, gauge.full) if gauge is not None else None
            for gauge in gauges
        )
        return replace(
            self,
            busy=busy or self.busy,
            coarse=coarse,
            tensor=tensor,
            memory_busy=memory_busy,
            memory_held=memory_held,
            memory_used=self.memory_used and prefix + self.memory_used,
            memory_free=self.memory_free and prefix + self.memory_free,
        )


NVIDIA: Final = ExporterNames(
    busy=Gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
    coarse=Gauge("DCGM_FI_DEV_GPU_UTIL", 100.0),
    tensor=Gauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
    memory_busy=Gauge("DCGM_FI_PROF_DRAM_ACTIVE"),
    memory_used="DCGM_FI_DEV_FB_USED",
    memory_free="DCGM_FI_DEV_FB_FREE",
    # Without the host name: it can be that of the exporter's pod, and a GPU with a new exporter is still one GPU.
    device=("UUID", "gpu", "GPU_I_ID"),
)
AMD: Final = ExporterNames(
    busy=Gauge("gpu_gfx_activity", 100.0),
    coarse=None,
    tensor=None,
    memory_busy=Gauge("gpu_umc_activity", 100.0),
    memory_used="gpu_used_vram",
    memory_free="gpu_free_vram",
    device=("hostname", "serial_number", "gpu_id", "gpu_partition_id"),
)
INTEL: Final = ExporterNames(
    busy=Gauge("xpum_engine_ratio"),
    coarse=None,
    tensor=None,
    memory_busy=Gauge("xpum_memory_bandwidth_ratio"),
    memory_used="",
    memory_free="",
    device=("node", "pci_bdf"),
    memory_held=Gauge("xpum_memory_ratio"),
    parts=("sub_dev", "card"),
    own_labels=PodLabelNames("kube_namespace", "kube_pod"),
)
"""XPU Manager 1. Version 2 names no pods."""
VENDORS: Final[Mapping[str, ExporterNames]] = {"nvidia": NVIDIA, "amd": AMD, "intel": INTEL}

UID: Final = "pod_uid"
SLICE: Final = "vgpu"
"""Label of a series that is one pod's part of a time-sliced GPU."""


HONORED: Final = PodLabelNames("namespace", "pod")
RENAMED: Final = PodLabelNames("exported_namespace", "exported_pod")
"""The labels after Prometheus renames them: the target has labels of the same name, and ``honor_labels`` is off."""
