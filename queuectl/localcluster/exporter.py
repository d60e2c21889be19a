"""A simulation of the GPU exporters of all nodes, in one process, for tests and the demo.

It answers scrapes with the metric names, labels and text format of NVIDIA's DCGM exporter, of AMD's exporter, or of Intel's XPU Manager,
for each node. Prometheus finds the exporters by HTTP service discovery. Annotations on a pod (on a job, on its pod template) define the
work of its GPUs::

    dcgm.queuectl.dev/profile: "busy=0.9 for 60; idle"      see gpus.py; the default is busy
    dcgm.queuectl.dev/profile.3: "idle"                     the same, only for the pod of completion index 3
    dcgm.queuectl.dev/shared: "true"                        its GPU is time-sliced with other such pods
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, Self

import httpx2

from queuectl.localcluster.client import START_SECONDS, get_plain, wait_until
from queuectl.localcluster.errors import LocalClusterError
from queuectl.localcluster.gpus import (
    IDLE,
    Assignments,
    GpuActivity,
    GpuPod,
    SimulatedGpu,
    SimulatedGpus,
    parse_profile,
)
from queuectl.localcluster.layout import LOOPBACK, clusters, free_ports
from queuectl.localcluster.nodes import GPU

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from queuectl.localcluster.client import Client
    from queuectl.localcluster.cluster import LocalCluster


# ---- The process

PROFILE = "dcgm.queuectl.dev/profile"
SHARED = "dcgm.queuectl.dev/shared"
_INDEX = "batch.kubernetes.io/job-completion-index"
_MIG = "nvidia.com/mig-"
_AMD = "amd.com/gpu"
_NAME = "exporters"
_FOLLOW_SECONDS = 0.5
_TARGETS = "/targets"


class Exporters:
    """The exporters of all nodes. As a context manager, they end with the block. Safe to use from several threads.

    Attributes:
        dialect: the dialect of nodes without their own.
        problems: pods with invalid annotations, with the error; such a pod has no GPUs here.
    """

    def __init__(self, dialect: Dialect | None = None, *, port: int = 0) -> None:
        """Listen on this port of loopback; 0 = a free port."""
        self.dialect = dialect or Dialect()
        self.problems: dict[str, str] = {}
        self._devices: dict[str, SimulatedGpus] = {}
        self._dialects: dict[str, Dialect] = {}
        self._loads: dict[str, GpuPod] = {}
        self._dead: set[str] = set()
        self._faults: dict[str, dict[tuple[str, int], float]] = {}
        self._lock = threading.Lock()
        exporters = self

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, kind, text = exporters.answer(self.path)
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 256

            def handle_error(self, *_: Any) -> None:
                """Ignore errors of a connection: a scraper can be killed."""

        self._server = Server((LOOPBACK, port), Answers)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{LOOPBACK}:{self._server.server_address[1]}"

    @property
    def targets_url(self) -> str:
        """The URL for the ``http_sd_configs`` of a Prometheus."""
        return targets_url(self._server.server_address[1])

    def url(self, node: str) -> str:
        """The URL of a node's exporter."""
        return url(self._server.server_address[1], node)

    def add_node(self, node: str, gpus: int = 8, dialect: Dialect | None = None) -> None:
        """Add the exporter of a node with free GPUs. ``dialect``: its own dialect."""
        with self._lock:
            self._devices.setdefault(node, SimulatedGpus(node, gpus))
            if dialect is not None:
                self._dialects[node] = dialect

    def put(self, load: GpuPod) -> None:
        """Assign GPUs to a pod."""
        self.add_node(load.node)
        with self._lock:
            self._loads[load.uid] = load
            self._devices[load.node].put(load)

    def take(self, uid: str) -> None:
        """Remove a pod."""
        with self._lock:
            load = self._loads.pop(uid, None)
            if load is not None:
                self._devices[load.node].take(uid)

    def kill(self, node: str) -> None:
        """Let the node's exporter fail every scrape from now on."""
        with self._lock:
            self._dead.add(node)

    def revive(self, node: str) -> None:
        """Let the node's exporter answer again."""
        with self._lock:
            self._dead.discard(node)

    def fault(self, node: str, gpu: int, metric: str, reading: float) -> None:
        """Report this value of a metric for a GPU from now on; 0 = no fault.

        ``metric`` can have labels in braces in addition to those of the GPU.
        """
        with self._lock:
            self._faults.setdefault(node, {})[metric, gpu] = reading

    def answer(self, path: str) -> tuple[int, str, str]:
        """Status, content type and body of a request."""
        if path == _TARGETS:
            return 200, "application/json", json.dumps(self._targets())
        node = path.removeprefix("/metrics/")
        with self._lock:
            devices = self._devices.get(node)
            if devices is None or node in self._dead:
                return (404 if devices is None else 503), "text/plain", "no exporter\n"
            dialect = self._dialects.get(node, self.dialect)
            text = render(devices.assignments, devices.free_devices, dialect, time.time())
            text += _render_faults(node, self._faults.get(node, {}), dialect)
        return 200, "text/plain; version=0.0.4; charset=utf-8", text

    @contextlib.contextmanager
    def following(self, client: Client) -> Iterator[None]:
        """Follow the pods of a cluster while the block runs."""
        stop = threading.Event()

        def follow() -> None:
            while not stop.wait(_FOLLOW_SECONDS):
                # The API server can be away for a time; the next poll reads all pods.
                with contextlib.suppress(LocalClusterError):
                    self.see(client.get("/api/v1/pods", resourceVersion="0")["items"])

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def see(self, pods: list[dict[str, Any]]) -> None:
        """Take these as all pods of the cluster. Running pods hold their GPUs."""
        loads: dict[str, GpuPod] = {}
        self.problems.clear()
        for pod in pods:
            try:
                load = load_of(pod)
            except ValueError as error:  # an annotation of a user
                meta = pod["metadata"]
                self.problems[f"{meta['namespace']}/{meta['name']}"] = str(error)
                continue
            if load is not None:
                loads[load.uid] = load
        for uid in self._loads.keys() - loads.keys():
            self.take(uid)
        for uid, load in loads.items():
            if uid not in self._loads:
                self.put(load)

    def _targets(self) -> list[dict[str, Any]]:
        """The targets with the labels that a service discovery of Kubernetes gives to the pods of exporters."""
        with self._lock:
            nodes = sorted(self._devices)
        return [
            {
                "targets": [self.address],
                "labels": {
                    "__metrics_path__": f"/metrics/{node}",
                    "instance": node,
                    "namespace": "gpu-operator",
                    "pod": f"dcgm-exporter-{node}",
                    "container": "exporter",
                },
            }
            for node in nodes
        ]


def url(port: int, node: str) -> str:
    """The URL of a node's exporter, for exporters on this port."""
    return f"http://{LOOPBACK}:{port}/metrics/{node}"


def targets_url(port: int) -> str:
    """The URL for the ``http_sd_configs`` of a Prometheus, for exporters on this port."""
    return f"http://{LOOPBACK}:{port}{_TARGETS}"


def start_for(cluster: LocalCluster) -> str:
    """Simulate the exporters of a cluster's nodes in a separate process, which ends with the cluster.

    Returns:
        The URL for a Prometheus: :func:`targets_url`.

    Raises:
        LocalClusterError: They do not start.
    """
    (port,) = free_ports(1)
    program = [sys.executable, "-m", "queuectl.localcluster", _NAME]
    cluster.supervisor.start(
        _NAME,
        [*program, "--name", cluster.name, "--port", str(port)],
        env={"XDG_STATE_HOME": str(clusters().parents[1])},
        cwd=cluster.supervisor.directory,
        log=cluster.log(_NAME),
    )
    urls = [url(port, node) for node in cluster.nodes.gpus()]
    wait_until(partial(_answer, urls), "the GPU exporters", START_SECONDS)
    return targets_url(port)


def _answer(urls: Iterable[str]) -> bool:
    with contextlib.suppress(httpx2.HTTPError):
        return all(get_plain(one).is_success for one in urls)
    return False


def load_of(pod: dict[str, Any]) -> GpuPod | None:
    """The GPUs of a pod; None for a pod without GPUs or that does not run.

    Raises:
        ValueError: its profile is invalid.
    """
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    if status.get("phase") != "Running" or not spec.get("nodeName"):
        return None
    for container in spec["containers"]:
        limits = (container.get("resources") or {}).get("limits") or {}
        for resource, amount in limits.items():
            if resource in (GPU, _AMD) or resource.startswith(_MIG):
                annotations = meta.get("annotations") or {}
                index = annotations.get(_INDEX, (meta.get("labels") or {}).get(_INDEX))
                text = annotations.get(f"{PROFILE}.{index}") or annotations.get(PROFILE) or "busy"
                return GpuPod(
                    namespace=meta["namespace"],
                    pod=meta["name"],
                    uid=meta["uid"],
                    node=spec["nodeName"],
                    gpus=int(amount),
                    profile=parse_profile(text),
                    since=datetime.fromisoformat(status["startTime"]).timestamp(),
                    container=container["name"],
                    mig=resource.removeprefix(_MIG) if resource.startswith(_MIG) else "",
                    shared=annotations.get(SHARED) == "true",
                )
    return None


# ---- The exposition

_MODEL: Final = "NVIDIA H100 80GB HBM3"
_DRIVER: Final = "570.133.20"
_MEMORY_MIB: Final = 81559
_CLOCK_MHZ: Final = 1980


@dataclass(frozen=True, slots=True)
class Dialect:
    """The configuration of an exporter.

    Attributes:
        dcp: it has the profiling metrics (DCGM_FI_PROF_…).
        pod_uid: it labels pods with their uid.
        virtual_gpus: each pod of a time-sliced GPU has a series; otherwise only the last pod.
        vendor: whose exporter it is: ``nvidia``, ``amd`` or ``intel``.
    """

    dcp: bool = True
    pod_uid: bool = False
    virtual_gpus: bool = False
    vendor: str = "nvidia"


def render(
    assignments: Assignments, free_devices: Sequence[SimulatedGpu], dialect: Dialect, now: float
) -> str:
    """The answer to a scrape of a node's exporter. ``free_devices``: devices without a pod."""
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


def _render_faults(node: str, faults: Mapping[tuple[str, int], float], dialect: Dialect) -> str:
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
        "modelName": _MODEL,
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
