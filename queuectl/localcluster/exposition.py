"""The metrics of a node's exporter, in the text format of NVIDIA's DCGM exporter, of AMD's exporter, or of Intel's XPU Manager."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from queuectl.localcluster.gpus import IDLE, Assignments, GpuActivity, GpuPod, SimulatedGpu

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MODEL: Final = "NVIDIA H100 80GB HBM3"
_DRIVER: Final = "570.133.20"
_MEMORY_MIB: Final = 81559
_CLOCK_MHZ: Final = 1980


@dataclass(frozen=True, slots=True)
class Dialect:
    """The configuration of an exporter.

    Attributes:
        dcp: it has the profiling metrics (DCGM_FI_PROF_…).
        pod_uid: it labels pods with their uid.
        virtual_gpus: each pod of a time-sliced GPU has a series; else only the last pod.
        vendor: whose exporter it is: ``nvidia``, ``amd`` or ``intel``.
    """

    dcp: bool = True
    pod_uid: bool = False
    virtual_gpus: bool = False
    vendor: str = "nvidia"


def render(
    assignments: Assignments, free_devices: Sequence[SimulatedGpu], dialect: Dialect, now: float
) -> str:
    """The answer to a scrape of a node's exporter. ``spare``: devices without a pod."""
    rows = list(_rows(assignments, free_devices, dialect, now))
    families = _FAMILIES[dialect.vendor](dialect)
    lines: list[str] = []
    for name, text, value in families:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        for device, whole, own, labels in rows:
            amount = value(device, whole, own)
            if amount is not None:
                lines.append(f"{name}{{{labels}}} {amount:.6f}".rstrip("0").rstrip("."))
    return "\n".join(lines) + "\n"


def render_faults(node: str, faults: Mapping[tuple[str, int], float], dialect: Dialect) -> str:
    """The series of faults of a node's GPUs, by metric and number of the GPU. A metric can have further labels in braces."""
    lines: list[str] = []
    for metric in sorted({metric for metric, _ in faults}):
        name, _, more = metric.removesuffix("}").partition("{")
        lines += [f"# HELP {name} A fault of the GPU.", f"# TYPE {name} gauge"]
        for (of, gpu), value in sorted(faults.items()):
            if of == metric:
                labels = ",".join(
                    filter(None, (_labels(SimulatedGpu(node, gpu), None, dialect), more))
                )
                lines.append(f"{name}{{{labels}}} {value:.0f}")
    return "".join(f"{line}\n" for line in lines)


def _rows(
    assignments: Assignments, free_devices: Sequence[SimulatedGpu], dialect: Dialect, now: float
) -> Iterator[tuple[SimulatedGpu, GpuActivity, GpuActivity, str]]:
    """The device of each series, the work of the whole device, the work of its pod, and its labels."""
    by_device: dict[tuple[int, int | None], list[tuple[SimulatedGpu, GpuPod, GpuActivity]]] = {}
    for device, load, number in assignments:
        key = (device.index, device.instance)
        by_device.setdefault(key, []).append((device, load, load.work(number, now)))
    for sharing in by_device.values():
        whole = max((work for _, _, work in sharing), key=lambda work: work.engine)
        shown = sharing if dialect.virtual_gpus else sharing[-1:]
        for device, load, work in shown:
            yield device, whole, work, _labels(device, load if work.pod_exported else None, dialect)
    for device in free_devices:
        yield device, IDLE, IDLE, _labels(device, None, dialect)


def _labels(device: SimulatedGpu, load: GpuPod | None, dialect: Dialect) -> str:
    if dialect.vendor == "intel":
        return _text(_intel_labels(device, load))
    labels = _amd_labels(device) if dialect.vendor == "amd" else _dcgm_labels(device, load)
    if load is not None:
        labels |= {"container": load.container, "namespace": load.namespace, "pod": load.pod}
        if dialect.pod_uid:
            labels["pod_uid"] = load.uid
        if dialect.virtual_gpus and device.slice is not None:
            labels["vgpu"] = str(device.slice)
    elif dialect.vendor == "amd":
        labels |= {"container": "", "namespace": "", "pod": ""}
    return _text(labels)


def _text(labels: dict[str, str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in labels.items())


def _dcgm_labels(device: SimulatedGpu, load: GpuPod | None) -> dict[str, str]:
    labels = {
        "gpu": str(device.index),
        "UUID": device.uuid,
        "pci_bus_id": f"00000000:{0x18 + device.index:02X}:00.0",
        "device": f"nvidia{device.index}",
        "modelName": MODEL,
    }
    if device.instance is not None:
        profile = load.mig if load is not None else "1g.10gb"
        labels |= {"GPU_I_PROFILE": profile, "GPU_I_ID": str(device.instance)}
    return labels | {"Hostname": device.node, "DCGM_FI_DRIVER_VERSION": _DRIVER}


def _amd_labels(device: SimulatedGpu) -> dict[str, str]:
    return {
        "card_series": "AMD Instinct MI300X OAM",
        "gpu_id": str(device.index),
        "gpu_partition_id": str(device.instance or 0),
        "hostname": device.node,
        "serial_number": f"{device.node}-{device.index}",
    }


def _intel_labels(device: SimulatedGpu, load: GpuPod | None) -> dict[str, str]:
    labels = {
        "uuid": f"{device.node}-{device.index}",
        "dev_name": "Intel Data Center GPU Flex 170",
        "pci_bdf": f"0000:{0x18 + device.index:02x}:00.0",
        "node": device.node,
    }
    if load is not None:
        labels |= {"kube_pod": load.pod, "kube_namespace": load.namespace}
    return labels


class _Value:
    """The value of a metric: ``of`` the work, times ``scale``.

    ``own``: only the pod's part of a shared GPU. ``mig``: instances have it too. ``first``: partitions after the first have 0.
    """

    def __init__(
        self,
        of: str,
        scale: float = 1.0,
        *,
        own: bool = False,
        mig: bool = True,
        first: bool = False,
    ) -> None:
        self._of, self._scale, self._own, self._mig, self._first = of, scale, own, mig, first

    def __call__(self, device: SimulatedGpu, whole: GpuActivity, own: GpuActivity) -> float | None:
        if device.instance is not None and not self._mig:
            return None  # the driver has no utilization of an instance
        if device.instance and self._first:
            return 0.0
        work = own if self._own else whole
        part = 1.0 - work.memory_held if self._of == "free" else getattr(work, self._of)
        return float(part) * self._scale


_Family = tuple[str, str, _Value]


def _dcgm_families(dialect: Dialect) -> list[_Family]:
    families = [
        (
            "DCGM_FI_DEV_GPU_UTIL",
            "GPU utilization (in %).",
            _Value("engine", 100, own=True, mig=False),
        ),
        (
            "DCGM_FI_DEV_FB_FREE",
            "Framebuffer memory free (in MiB).",
            _Value("free", _MEMORY_MIB, own=True),
        ),
        (
            "DCGM_FI_DEV_FB_USED",
            "Framebuffer memory used (in MiB).",
            _Value("memory_held", _MEMORY_MIB, own=True),
        ),
    ]
    families.append(
        ("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", _Value("clock", _CLOCK_MHZ))
    )
    if dialect.dcp:
        families += [
            (
                "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
                "Ratio of time the graphics engine is active.",
                _Value("engine"),
            ),
            (
                "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
                "Ratio of cycles the tensor (HMMA) pipe is active.",
                _Value("tensor"),
            ),
            (
                "DCGM_FI_PROF_DRAM_ACTIVE",
                "Ratio of cycles the device memory interface is active sending or receiving data.",
                _Value("memory_busy"),
            ),
        ]
    return families


def _amd_families(_: Dialect) -> list[_Family]:
    return [
        (
            "gpu_gfx_activity",
            "Graphics engine usage percentage.",
            _Value("engine", 100, first=True),
        ),
        ("gpu_umc_activity", "Memory engine usage percentage.", _Value("memory_busy", 100)),
        ("gpu_used_vram", "Used VRAM in MB.", _Value("memory_held", 196_592)),
        ("gpu_free_vram", "Free VRAM in MB.", _Value("free", 196_592)),
    ]


def _intel_families(_: Dialect) -> list[_Family]:
    return [
        ("xpum_engine_ratio", "GPU active time of the elapsed time.", _Value("engine")),
        ("xpum_memory_bandwidth_ratio", "Memory throughput.", _Value("memory_busy")),
        ("xpum_memory_ratio", "Used GPU memory.", _Value("memory_held")),
    ]


_FAMILIES: Final = {"nvidia": _dcgm_families, "amd": _amd_families, "intel": _intel_families}
