"""The targets of the faults: a control plane, a Postgres, and two controllers that reach both through relays."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2
import yaml

from queuectl.cluster.adapter import SYSTEM_NAMESPACE
from queuectl.db.embedded import EmbeddedServer
from queuectl.demo.api_connection import ApiConnection, ApiRefused
from queuectl.demo.controller import ACCOUNT, ControllerProcess
from queuectl.demo.recorder import Recorder
from queuectl.localcluster import LocalCluster
from queuectl.localcluster.client import Client, get_plain
from tests.support.relay import Relay, http_relay, postgres_relay
from tests.system.actions import outside_database
from tests.system.installation import QUICK

PROGRAM = "queuectl"
CLOCK = Path(__file__).parent / "clock"
TURN_SECONDS = 0.2


class Wires:
    """The relays, in a separate thread.

    Attributes:
        database: between controllers and Postgres; its socket is in ``sockets``.
        api: between controllers and the API server; controllers use ``kubeconfig``.
    """

    database: Relay
    api: Relay
    sockets: Path
    kubeconfig: Path

    def __init__(self, cluster: LocalCluster, server: EmbeddedServer) -> None:
        self._cluster = cluster
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relays", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> None:
        enter = self._stack.enter_async_context
        self.database, self.sockets = await enter(postgres_relay(self._server.sockets))
        url = urlsplit(self._cluster.server)
        assert url.hostname is not None
        assert url.port is not None
        upstream = ssl.create_default_context(cadata=self._cluster.authority.decode())
        self.api, port = await enter(http_relay(url.hostname, url.port, upstream, self._served()))
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="qchaos-")))
        account = self._cluster.kubeconfig_for_service_account(SYSTEM_NAMESPACE, ACCOUNT)
        document = yaml.safe_load(account.read_text())
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(document))

    def _served(self) -> ssl.SSLContext:
        pair = self._cluster._authority().server("relay")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.NamedTemporaryFile(suffix=".pem") as file:
            file.write(pair.certificate + b"\n" + pair.key)
            file.flush()
            context.load_cert_chain(file.name)
        return context

    def cut(self, relay: Relay, chosen: Callable[[str], bool]) -> int:
        """Break connections; see :meth:`Relay.cut`."""

        async def cut() -> int:
            return relay.cut(chosen)

        return int(self._run(cut()))

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


@dataclass
class Stage:
    """All running parts.

    Attributes:
        meanwhile: called repeatedly during a fault and while the test waits.
        clocks: a file for each controller, with the offset of its system clock in seconds.
        reachable: the API server answers, so that the load can act.
        pace: factor for the duration of faults.
    """

    cluster: LocalCluster
    server: EmbeddedServer
    wires: Wires
    controllers: tuple[ControllerProcess, ControllerProcess]
    recorder: Recorder
    clocks: tuple[Path, Path]
    meanwhile: Callable[[], None] = lambda: None
    reachable: bool = True
    pace: float = 1.0
    _acting: threading.Lock = field(default_factory=threading.Lock)

    @property
    def client(self) -> Client:
        return self.cluster.client

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            # Of several faults at a time, each waits in its own thread, and one of them acts.
            if self.reachable and self._acting.acquire(blocking=False):
                try:
                    self.meanwhile()
                finally:
                    self._acting.release()
            time.sleep(min(TURN_SECONDS, left))

    def last(self, seconds: float) -> None:
        """Wait for the duration of a fault."""
        self.wait(seconds * self.pace)

    def until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait until a condition holds. Returns whether it held in time."""
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                return False
            self.wait(TURN_SECONDS)
        return True

    def leader(self) -> ControllerProcess:
        """The controller that reports that it leads, or the first one if none does."""
        return next(filter(leads, self.controllers), self.controllers[0])

    def ask(self, path: str) -> bool:
        """POST to the API of any controller. Returns whether it was accepted."""
        for controller in self.controllers:
            try:
                with ApiConnection(controller.api, timeout=3.0) as rest:
                    rest._ask("POST", path)
            except ApiRefused:
                continue
            return True
        return False

    def apply(self, documents: list[Any], seconds: float = 60.0) -> None:
        """Write documents to the configuration, once a controller answers."""

        def applied() -> bool:
            for controller in self.controllers:
                try:
                    with ApiConnection(controller.api, timeout=5.0) as rest:
                        rest.apply(documents)
                except ApiRefused:
                    continue
                return True
            return False

        if not self.until(applied, seconds):
            raise AssertionError("no controller accepts the configuration")


def leads(controller: ControllerProcess) -> bool:
    try:
        text = get_plain(f"{controller.metrics}/metrics", timeout=2.0).text
    except httpx2.HTTPError:
        return False
    return "queuectl_leader 1.0" in text


def family(pid: int) -> list[int]:
    """A process and its children."""
    pids = [pid]
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(status.read_text().rpartition(")")[2].split()[1]) == pid:
                pids.append(int(status.parent.name))
        except OSError:
            continue
    return pids


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


@contextmanager
def stage(cluster: LocalCluster) -> Iterator[Stage]:
    """Two controllers with their own database, on a cluster with queuectl installed."""
    with ExitStack() as stack:
        server = stack.enter_context(outside_database())
        wires = stack.enter_context(Wires(cluster, server))
        url = server.url().replace(str(server.sockets), str(wires.sockets))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qchaos-")))
        clocks = (folder / "a", folder / "b")
        controllers = []
        for name, clock in zip(("-a", "-b"), clocks, strict=True):
            clock.write_text("0")
            settings = {
                "PYTHONPATH": str(CLOCK),
                "CHAOS_CLOCK": str(clock),
                "QUEUECTL_DATABASE_URL": url,
                "QUEUECTL_KUBECONFIG": str(wires.kubeconfig),
                "QUEUECTL_HOLDER": f"chaos{name}",
            }
            controller = ControllerProcess.start(cluster, QUICK | settings, replica=name)
            stack.callback(controller.stop)
            controllers.append(controller)
        for controller in controllers:
            controller.wait_ready()
        recorder = stack.enter_context(Recorder(cluster.kubeconfig))
        first, second = controllers
        yield Stage(cluster, server, wires, (first, second), recorder, clocks)
