"""The metric names of the vendors' exporters, and the labels that name the pod and the GPU of a series."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Gauge:
    """A metric and its maximum, by which values are divided to get 0..1."""

    name: str
    full: float = 1.0


@dataclass(frozen=True, slots=True)
class ExporterNames:
    """The metrics of one vendor's exporter.

    Attributes:
        busy: part of the time in which the engines were busy.
        coarse: the replacement of ``busy`` if that is not exported; None = there is none.
        tensor, memory_busy: tensor pipes and memory interface; None = not exported.
        memory_used, memory_free: GPU memory, in one unit.
        device: labels that together identify a GPU, or an instance of one.
    """

    busy: Gauge
    coarse: Gauge | None
    tensor: Gauge | None
    memory_busy: Gauge | None
    memory_used: str
    memory_free: str
    device: tuple[str, ...]


NVIDIA: Final = ExporterNames(
    busy=Gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
    coarse=Gauge("DCGM_FI_DEV_GPU_UTIL", 100.0),
    tensor=Gauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
    memory_busy=Gauge("DCGM_FI_PROF_DRAM_ACTIVE"),
    memory_used="DCGM_FI_DEV_FB_USED",
    memory_free="DCGM_FI_DEV_FB_FREE",
    device=("Hostname", "UUID", "gpu", "GPU_I_ID"),
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
VENDORS: Final[Mapping[str, ExporterNames]] = {"nvidia": NVIDIA, "amd": AMD}

UID: Final = "pod_uid"
SLICE: Final = "vgpu"
"""Label of a series that is one pod's part of a time-sliced GPU."""


@dataclass(frozen=True, slots=True)
class PodLabels:
    """The labels that name the pod of a GPU."""

    namespace: str
    pod: str


HONORED: Final = PodLabels("namespace", "pod")
RENAMED: Final = PodLabels("exported_namespace", "exported_pod")
"""The labels after Prometheus renames them: the target has labels of the same name, and ``honor_labels`` is off."""
