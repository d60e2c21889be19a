"""The part of an API server over HTTP that commands of users need: reads of a pod and of its log, and deletions.

tests/operations/test_cancel.py and tests/real/test_logs.py run the same commands on a real one.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

TOKEN = "kube-token"
PAGE = b"<html>sign in</html>"
_POD = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)(/log)?")


@dataclass
class KubernetesHttp:
    """Objects and logs of an API server.

    Attributes:
        uids: of the objects that exist, by path.
        logs: text of each container of each pod, by path of the pod; several containers need a choice.
        annotations: of pods, by path.
        pages: status of a web page that a proxy returns, by path.
        forbidden: paths to which the user has no right.
        requests: the requests so far, with the body of a deletion.
        headers: of the last request.
    """

    uids: dict[str, str] = field(default_factory=dict)
    logs: dict[str, dict[str, bytes]] = field(default_factory=dict)
    annotations: dict[str, dict[str, str]] = field(default_factory=dict)
    pages: dict[str, int] = field(default_factory=dict)
    forbidden: set[str] = field(default_factory=set)
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    def answer(self, method: str, target: str, body: Any) -> tuple[int, bytes]:
        """Status and body."""
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.requests.append((method, target, body))
        if url.path in self.pages:
            return self.pages[url.path], PAGE
        if url.path in self.forbidden:
            return _refusal(403, "Forbidden", f'User "alice" cannot {method.lower()} {url.path}')
        if method == "DELETE":
            return self._deleted(url.path, body)
        pod = _POD.fullmatch(url.path)
        path = url.path.removesuffix("/log")
        if pod is None or path not in self.logs:
            return _refusal(404, "NotFound", f"{url.path} not found")
        if pod[3]:
            return self._log(path, query)
        spec = {"containers": [{"name": name} for name in self.logs[path]]}
        metadata = {"annotations": self.annotations.get(path)}
        return 200, json.dumps({"kind": "Pod", "metadata": metadata, "spec": spec}).encode()

    def _log(self, path: str, query: dict[str, str]) -> tuple[int, bytes]:
        containers = self.logs[path]
        container = query.get("container")
        if container is None and len(containers) > 1:
            names = " ".join(containers)
            return _refusal(
                400,
                "BadRequest",
                f"a container name must be specified for pod x, choose one of: [{names}]",
            )
        if container is not None and container not in containers:
            return _refusal(400, "BadRequest", f"container {container} is not valid for pod x")
        text = containers[container] if container else next(iter(containers.values()))
        lines = text.splitlines(keepends=True)
        return 200, b"".join(lines[-int(query["tailLines"]) :] if "tailLines" in query else lines)

    def _deleted(self, path: str, body: Any) -> tuple[int, bytes]:
        uid, expected = self.uids.get(path), body["preconditions"]["uid"]
        if uid is None:
            return _refusal(404, "NotFound", f"{path} not found")
        if uid != expected:
            text = (
                f"the UID in the precondition ({expected}) does not match the UID in record ({uid})"
            )
            return _refusal(409, "Conflict", text)
        if not body.get("dryRun"):
            del self.uids[path]
        return 200, b'{"kind": "Status", "status": "Success"}'


def _refusal(code: int, reason: str, message: str) -> tuple[int, bytes]:
    status = {"kind": "Status", "reason": reason, "message": message, "code": code}
    return code, json.dumps(status).encode()


@contextmanager
def kubernetes_http(folder: Path) -> Iterator[tuple[KubernetesHttp, Path]]:
    """A server, and the kubeconfig of a user in the namespace ``team-a``, until the block ends."""
    kubernetes = KubernetesHttp()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            kubernetes.headers = dict(self.headers)
            status, content = kubernetes.answer(self.command, self.path, body)
            self.send_response(status)
            if content == PAGE:
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Location", "https://sign-in.example.com")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_DELETE = do_GET  # noqa: N815 - the name of http.server

        def log_message(self, *_: Any) -> None:
            return

    class QuietServer(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """A client that has read enough closes its connection."""

    with QuietServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        config = folder / "kubeconfig"
        config.write_text(
            yaml.safe_dump(
                {
                    "current-context": "here",
                    "contexts": [
                        {
                            "name": "here",
                            "context": {"user": "alice", "cluster": "c", "namespace": "team-a"},
                        }
                    ],
                    "users": [{"name": "alice", "user": {"token": TOKEN, "as": "bob"}}],
                    "clusters": [
                        {
                            "name": "c",
                            "cluster": {"server": f"http://127.0.0.1:{server.server_port}"},
                        }
                    ],
                }
            )
        )
        try:
            yield kubernetes, config
        finally:
            server.shutdown()
            thread.join()
