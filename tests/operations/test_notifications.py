"""Events of a job at a real HTTPS receiver with a private certificate authority: each once, with a signature that the documented code accepts."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from queuectl.demo.scenario import PodSetManifest
from queuectl.notify.webhook import CONTENT_TYPE
from tests.support.controlplane import NODES
from tests.support.tls import write_certificate
from tests.system.installation import QUICK, Installation, installed
from tests.unit.test_notifications_page import is_genuine

pytestmark = pytest.mark.operations
SECRET = base64.b64encode(b"s" * 32).decode()


@dataclass
class Hook:
    """A receiver, with the headers and bodies that it got."""

    folder: Path
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    port: int = 0

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of a type, once the signature of each request is verified."""
        assert all(is_genuine(headers, body, SECRET) for headers, body in self.requests)
        bodies = [json.loads(body) for _, body in self.requests]
        return [body for body in bodies if body["type"] == f"dev.queuectl.{kind}"]


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hook]:
    made = Hook(tmp_path_factory.mktemp("hook"))
    files = write_certificate(made.folder, "hook")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.requests.append((dict(self.headers.items()), body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """The requests are kept."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.chain, files.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, name="hook")
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def installation(hook: Hook) -> Iterator[Installation]:
    (hook.folder / "hook-secret").write_text(SECRET)
    receiver = {
        "name": "hook",
        "kind": "webhook",
        "url": f"https://127.0.0.1:{hook.port}/events",
        "hmacSecretFile": "hook-secret",
        "caFile": "tls.crt",
        "allowedNetworks": ["127.0.0.0/8"],
    }
    file = hook.folder / "receivers.yaml"
    file.write_text(yaml.safe_dump({"receivers": [receiver]}))
    with installed(NODES, settings={**QUICK, "QUEUECTL_NOTIFY_FILE": str(file)}) as running:
        yield running


def test_the_events_of_a_job_arrive_once_with_a_signature(
    installation: Installation, hook: Hook
) -> None:
    address = installation.controller.api
    with (
        installation.workspace(32) as workspace,
        httpx2.Client(base_url=address, trust_env=False) as api,
    ):
        annotations = {"queuectl.dev/notify": "hook"}
        pods = PodSetManifest(2, gpus=8)
        workspace.job("told", pods, seconds=1.0, annotations=annotations)
        workspace.job("silent", pods, seconds=1.0)
        workspace.until_state("told", "Finished")
        workspace.until(lambda: hook.events("workload.finished"), "the event of the end")
        [started], [finished] = (
            hook.events(f"workload.{kind}") for kind in ("started", "finished")
        )
        subject = f"Job/{workspace.namespace}/told"
        assert {event["subject"] for event in (started, finished)} == {subject}
        assert started["data"]["clusterQueue"] == finished["data"]["clusterQueue"] != ""
        assert len({headers["webhook-id"] for headers, _ in hook.requests}) == len(hook.requests)
        assert {headers["Content-Type"] for headers, _ in hook.requests} == {CONTENT_TYPE}
        workspace.until_state("silent", "Finished")
        assert api.post("/api/v1/receivers/hook/test").status_code == 202
        workspace.until(lambda: hook.events("receiver.test"), "the test event")

        def status() -> dict[str, Any]:
            [receiver] = api.get("/api/v1/receivers").json()["items"]
            [only] = receiver["status"]
            return dict(only)

        workspace.until(lambda: not status()["waiting"], "an empty outbox")
        assert (status()["dropped"], status()["failures"], status()["error"]) == (0, 0, "")
        assert status()["delivered"] == len(hook.requests)
        assert not any("silent" in body.decode() for _, body in hook.requests)
