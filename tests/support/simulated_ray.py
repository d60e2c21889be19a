"""A simulated Ray: an endpoint that answers KubeRay as the dashboards of Ray clusters do, because simulated pods run no program.

The applications of Ray Serve run as soon as KubeRay has submitted them to a cluster, for as long as its head is the same pod.

KubeRay reads the end of a RayJob from ``http://<head service>.<namespace>.svc.cluster.local:8265/api/jobs/<id>``. The endpoint is the HTTP
proxy of KubeRay (``ClusterSpec.proxy``), so it receives the requests for all clusters. It keeps nothing but the jobs that KubeRay submitted
itself: the status of a job is an annotation of its RayJob, which :func:`play` writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any, Final
from urllib.parse import urlsplit

from queuectl.demo.scenario import Document
from queuectl.localcluster.client import Client
from tests.system.installation import Workspace

_STATUS: Final = "simulated.queuectl.dev/ray-job-status"
_JOBS: Final = "/api/jobs/"
_SERVE: Final = "/api/serve/applications/"
_PROXY_HEALTH: Final = "/-/healthz"


def path(namespace: str, name: str = "") -> str:
    return f"/apis/ray.io/v1/namespaces/{namespace}/rayjobs" + (f"/{name}" if name else "")


def play(workspace: Workspace, name: str, status: str) -> None:
    """Let the current Ray job of a RayJob have this status: RUNNING, SUCCEEDED, FAILED or STOPPED."""
    where = path(workspace.namespace, name)
    job = workspace.client.get(where)["status"]["jobId"]
    workspace.client.patch(where, {"metadata": {"annotations": {_STATUS: f"{job}:{status}"}}})


@dataclass
class SimulatedRay:
    """The endpoint. ``client``: of the cluster, once it runs."""

    port: int = 0
    client: Client | None = None
    submitted: set[str] = field(default_factory=set)
    applications: dict[str, list[str]] = field(default_factory=dict)
    """The names of the applications of Ray Serve by the uid of the head."""
    lock: Lock = field(default_factory=Lock)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def info(self, namespace: str, job: str) -> Document | None:
        """The answer about a Ray job; None if the cluster does not know it."""
        with self.lock:
            listed = self.client.get(path(namespace))["items"] if self.client else []
        for one in listed:
            if one.get("status", {}).get("jobId") != job:
                continue
            by_kuberay = one["spec"].get("submissionMode") == "HTTPMode"
            if by_kuberay and job not in self.submitted:
                return None
            played = one["metadata"].get("annotations", {}).get(_STATUS, "")
            known, _, status = played.rpartition(":")
            return {"submission_id": job, "status": status if known == job else "RUNNING"}
        return None

    def head(self, namespace: str, service: str) -> str:
        """The uid of the head behind the Service of a cluster; "" = it has none."""
        cluster = service.removesuffix("-head-svc")
        wanted = {"ray.io/cluster": cluster, "ray.io/node-type": "head"}.items()
        with self.lock:
            pods = self.client.get(f"/api/v1/namespaces/{namespace}/pods") if self.client else {}
        found = (one["metadata"] for one in pods.get("items", ()))
        return next((one["uid"] for one in found if wanted <= one["labels"].items()), "")

    def serving(self, head: str) -> Document:
        """The answer about the applications of Ray Serve on a head."""
        running = {"status": "RUNNING", "deployments": {}}
        names = self.applications.get(head, ())
        return {"applications": {name: {"name": name, **running} for name in names}}


def _handler(ray: SimulatedRay) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if url.path == _PROXY_HEALTH:
                self._answer(200, {})
                return
            if url.path == _SERVE:
                self._answer(200, ray.serving(self._head()))
                return
            namespace, job = self._asked()
            found = ray.info(namespace, job)
            self._answer(404 if found is None else 200, found or {})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self._asked()[1]:
                self._answer(200, {"stopped": True})
                return
            job = json.loads(body)["submission_id"]
            ray.submitted.add(job)
            self._answer(200, {"job_id": job, "submission_id": job})

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            names = [one["name"] for one in json.loads(body)["applications"]]
            ray.applications[self._head()] = names
            self._answer(200, {})

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as in the base class
            """No log."""

        def _head(self) -> str:
            service, namespace = (urlsplit(self.path).hostname or "").split(".")[:2]
            return ray.head(namespace, service)

        def _asked(self) -> tuple[str, str]:
            """Namespace of the Ray cluster, and id of the job."""
            url = urlsplit(self.path)
            rest = url.path.removeprefix(_JOBS)
            return (url.hostname or "").split(".")[1], rest.partition("/")[0]

        def _answer(self, code: int, document: Document) -> None:
            body = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


@contextmanager
def simulated_ray() -> Iterator[SimulatedRay]:
    """The endpoint, on a free port of loopback."""
    ray = SimulatedRay()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(ray))
    server.daemon_threads = True
    ray.port = server.server_address[1]
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield ray
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
