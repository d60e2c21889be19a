"""A simulation of the GPU exporters of all nodes, in one process, for tests and the demo.

It answers scrapes with the metric names, labels and text format of the real exporter, for each node. Prometheus finds the
exporters by HTTP service discovery. Annotations on a pod (on a job, on its pod template) define the work of its GPUs::

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
from datetime import datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

import httpx2

from queuectl.localcluster.client import START_SECONDS, get_plain, wait_until
from queuectl.localcluster.errors import LocalClusterError
from queuectl.localcluster.exposition import Dialect, render, render_faults
from queuectl.localcluster.gpus import GpuPod, SimulatedGpus, parse_profile
from queuectl.localcluster.layout import LOOPBACK, clusters, free_ports
from queuectl.localcluster.nodes import GPU

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from queuectl.localcluster.client import Client
    from queuectl.localcluster.cluster import LocalCluster

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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

        ``metric`` can have labels in braces beside those of the GPU.
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
            text += render_faults(node, self._faults.get(node, {}), dialect)
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
