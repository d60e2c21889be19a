"""How fast the command line starts: ``python -m tests.bench.bench_cli``.

Each program runs in its own process, in turns with the others, so that all of them meet the same load of the machine.
A command without a server is measured until it ends. A command with a server is measured until its first request arrives.
kubectl does the same alongside queuectl, and the interpreter alone shows the share of Python.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from queuectl.localcluster import build, versions

ROUNDS: Final = 20
TARGET_MS: Final = 200.0


class FirstRequest(BaseHTTPRequestHandler):
    """Notes when the first request arrives, and answers with an empty list."""

    arrived: float | None = None

    def do_GET(self) -> None:
        type(self).arrived = type(self).arrived or time.perf_counter()
        body = json.dumps({"kind": "List", "items": [], "nextCursor": None}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def listening() -> Iterator[str]:
    """The address of the server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), FirstRequest)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def took(command: list[str], home: str) -> float:
    """Milliseconds until the first request, or until the end of a command that sends none."""
    FirstRequest.arrived = None
    environment = {"HOME": home, "PATH": os.environ["PATH"], "KUBECONFIG": f"{home}/config"}
    began = time.perf_counter()
    subprocess.run(command, env=environment, capture_output=True, check=False)
    return ((FirstRequest.arrived or time.perf_counter()) - began) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    queuectl = str(Path(sys.executable).parent / "queuectl")
    kubectl = str(build.program(versions.kubectl()))
    with tempfile.TemporaryDirectory() as home, listening() as server:
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "queuectl": [queuectl],
            "queuectl --help": [queuectl, "--help"],
            "kubectl --help": [kubectl, "--help"],
            "queuectl version": [queuectl, "version"],
            "kubectl version --client": [kubectl, "version", "--client"],
            "queuectl get workloads, to its first request": [
                *(queuectl, "get", "workloads", "--server", server)
            ],
            "kubectl get pods, to its first request": [kubectl, "get", "pods", "--server", server],
        }
        for command in commands.values():  # the interpreter compiles modules once
            took(command, home)
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                times[name].append(took(command, home))
    print("| command | ms, p50 / p95 | target, p50 |")
    print("| --- | --- | --- |")
    for name, found in times.items():
        p95 = sorted(found)[round(0.95 * (len(found) - 1))]
        target = f"{TARGET_MS:.0f}" if name.startswith("queuectl") else ""
        print(f"| `{name}` | {statistics.median(found):.0f} / {p95:.0f} | {target} |")


if __name__ == "__main__":
    main()
