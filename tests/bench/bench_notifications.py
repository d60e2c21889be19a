"""A storm of events with a receiver that is down: ``uv run python -m tests.bench.bench_notifications``.

A leader writes 10,000 events a minute to a durable Postgres and delivers them, as a second replica does, which is killed in between
and replaced. Two receivers answer. The third accepts connections, but does not answer for the first part of the run, which defaults
to ten minutes. All of them are real HTTPS servers in another process.

The figures: by how much the leader's event loop is late, its memory, what each receiver got, got twice and did not get, and
what was dropped beyond its bounds. ``--no-delivery`` measures the leader alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from queuectl.db.embedded import EmbeddedServer
from queuectl.db.engine import DatabaseSettings
from queuectl.db.migrate import upgrade
from queuectl.domain.containment import Containment
from queuectl.domain.notifications import Audience, NotificationStore
from queuectl.domain.rules import Retention
from queuectl.notify.delivery import Delivery
from queuectl.notify.messages import Messages
from queuectl.notify.receivers import Receiver
from queuectl.notify.transports import Transports
from queuectl.notify.worker import DeliveryWorker
from queuectl.telemetry.notifications import NotificationMetrics
from tests.notify.parts import Names, Tls, event, webhook
from tests.support.postgres import server_directory
from tests.support.stores import PostgresStore

NAMES: Final = ("ops", "chat", "down")
EVERY: Final = 0.1  # seconds between two commits
TICK: Final = 0.01
DRAIN_SECONDS: Final = 400.0  # the longest back-off, and the rest of the backlog


class Receivers:
    """Three HTTPS servers. One of them does not answer until a file exists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counts = {name: Counter[str]() for name in NAMES}
        self.dropped = dict.fromkeys(NAMES, 0)

    async def serve(self) -> None:
        """Serve until SIGTERM, and write what arrived."""
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.folder / "tls.crt", self.folder / "tls.key")
        ports, runners = {}, []
        for name in NAMES:
            runner = web.ServerRunner(web.Server(self._handler(name)), shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
            await site.start()
            ports[name] = runner.addresses[0][1]
            runners.append(runner)
        (self.folder / "ports.new").write_text(json.dumps(ports))
        (self.folder / "ports.new").rename(self.folder / "ports")
        await stop.wait()
        got = {
            name: {"ids": dict(self.counts[name]), "dropped": self.dropped[name]} for name in NAMES
        }
        (self.folder / "got").write_text(json.dumps(got))
        for runner in runners:
            await runner.cleanup()

    def _handler(self, name: str) -> Any:
        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            content = json.loads(await request.read())
            if name == "down" and not (self.folder / "up").exists():
                await asyncio.sleep(30)
                return web.Response(status=503)
            if content["type"] == "dev.queuectl.dropped":
                self.dropped[name] += content["data"]["dropped"]
            else:
                self.counts[name][content["id"]] += 1
            return web.Response(text="ok")

        return handle


def receivers(folder: Path) -> list[Receiver]:
    """The receivers of the servers, as an administrator lists them."""
    tls = Tls(folder)
    ports = json.loads((folder / "ports").read_text())
    return [webhook(tls, ports[name], audience=Audience(name, everything=True)) for name in NAMES]


def worker(store: NotificationStore, folder: Path, by: str) -> DeliveryWorker:
    """The delivery of one replica."""
    metrics = NotificationMetrics(CollectorRegistry())
    listed = receivers(folder)
    transports = Transports("bench", Names().book())
    turns = Delivery(store, Messages("bench"), transports.open, metrics, by)
    return DeliveryWorker(store, turns, lambda: listed, metrics, Containment(time.time), by)


async def replica(url: str, folder: Path) -> None:
    """A replica that delivers until it is killed."""
    store = await PostgresStore.connect(DatabaseSettings(url))
    await worker(store.notifications, folder, f"replica-{os.getpid()}").run()


def started(command: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Another process of this benchmark."""
    return subprocess.Popen([sys.executable, "-m", __spec__.name, command, *arguments])


def memory() -> float:
    """MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Leader:
    """Writes events, and measures its event loop."""

    def __init__(self, store: PostgresStore, per_minute: int) -> None:
        self._store = store
        self._each = per_minute / 60 * EVERY
        self.written = 0
        self.late: list[float] = []
        self.commits: list[float] = []

    async def write(self, seconds: float, epoch: int) -> None:
        """Commit events at the rate for this time."""
        begin = time.monotonic()
        due = 0.0
        for number in range(int(seconds / EVERY)):
            due += self._each
            count = int(due) - self.written
            now = time.time()
            events = [replace(event(self.written + n), at=now, id=0) for n in range(count)]
            at = time.perf_counter()
            await self._store.announce(events, epoch=epoch)
            self.commits.append(time.perf_counter() - at)
            self.written += count
            if number % 600 == 599:
                await self._store.prune(Retention(), time.time(), epoch=epoch)
            await asyncio.sleep(max(0.0, begin + (number + 1) * EVERY - time.monotonic()))

    async def measure(self) -> None:
        """Note by how much the loop is late."""
        while True:
            at = time.perf_counter()
            await asyncio.sleep(TICK)
            self.late.append(time.perf_counter() - at - TICK)


async def storm(options: argparse.Namespace) -> None:
    """Run it and print the figures."""
    with server_directory(on_disk=True) as directory, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Tls(folder)
        servers = started("receivers", str(folder))
        server = EmbeddedServer(directory)
        await server.start()
        try:
            await upgrade(server.url())
            while not (folder / "ports").exists():  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.05)
            await _storm(options, server.url(), folder, servers)
        finally:
            servers.kill()
            await server.stop(immediate=True)


async def _storm(
    options: argparse.Namespace, url: str, folder: Path, servers: subprocess.Popen[bytes]
) -> None:
    store = await PostgresStore.connect(DatabaseSettings(url))
    store.notifications_enabled = True
    epoch = await store.take_over("bench", 0)
    leader = Leader(store, options.per_minute)
    tasks = [asyncio.create_task(leader.measure())]
    first = memory()
    replicas: list[subprocess.Popen[bytes]] = []
    if not options.no_delivery:
        tasks.append(asyncio.create_task(worker(store.notifications, folder, "leader").run()))
        await asyncio.sleep(2)  # each receiver has its cursor before the first event
        replicas.append(started("replica", url, str(folder)))
    writing = asyncio.create_task(leader.write(options.seconds, epoch))
    await asyncio.sleep(options.down / 2)
    if replicas:
        replicas[0].send_signal(signal.SIGKILL)
        replicas[0].wait()
        print(f"killed a replica after {options.down / 2:.0f} s", flush=True)
        replicas.append(started("replica", url, str(folder)))
    await asyncio.sleep(options.down / 2)
    (folder / "up").touch()
    await writing
    storm_memory = memory()
    late = sorted(leader.late)
    if not options.no_delivery:
        await drained(store)
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for each_replica in replicas:
        each_replica.kill()
        each_replica.wait()
    statuses = await store.notifications.statuses()
    await store.close()
    servers.send_signal(signal.SIGTERM)
    servers.wait(30)
    report(leader, late, first, storm_memory)
    if not options.no_delivery:
        outcome(leader.written, json.loads((folder / "got").read_text()), statuses)


async def drained(store: PostgresStore) -> None:
    """Wait until each receiver has all events, at most for the longest back-off and a while."""
    begin = time.monotonic()
    while time.monotonic() < begin + DRAIN_SECONDS:
        statuses = await store.notifications.statuses()
        if not any(status.waiting or status.dropped for status in statuses):
            break
        await asyncio.sleep(1)
    print(f"drained within {time.monotonic() - begin:.0f} s after the last event", flush=True)


def report(leader: Leader, late: Sequence[float], first: float, last: float) -> None:
    """Print the figures of the leader."""
    p50, p99, p999 = (late[int(len(late) * share)] * 1000 for share in (0.5, 0.99, 0.999))
    commits = sorted(leader.commits)
    print(f"events written: {leader.written}")
    print(
        f"loop late by ms: p50 {p50:.1f}, p99 {p99:.1f}, p99.9 {p999:.1f}, max {late[-1] * 1000:.1f}"
    )
    print(
        f"commit of events ms: median {statistics.median(commits) * 1000:.1f}, "
        f"p99 {commits[int(len(commits) * 0.99)] * 1000:.1f}, max {commits[-1] * 1000:.1f}"
    )
    print(f"memory of the leader MiB: {first:.0f} before, {last:.0f} at the end of the storm")


def outcome(written: int, got: dict[str, Any], statuses: Sequence[Any]) -> None:
    """Print what each receiver got."""
    untold = {status.receiver: status.dropped for status in statuses}
    for name in NAMES:
        ids = got[name]["ids"]
        dropped = got[name]["dropped"] + untold[name]
        doubles = sum(ids.values()) - len(ids)
        lost = written - len(ids) - dropped
        print(f"{name}: {len(ids)} delivered, {doubles} twice, {dropped} dropped, {lost} lost")


def main() -> None:
    """Run one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command")
    serving = commands.add_parser("receivers")
    serving.add_argument("folder", type=Path)
    delivering = commands.add_parser("replica")
    delivering.add_argument("url")
    delivering.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=660.0, help="of the storm")
    parser.add_argument("--down", type=float, default=600.0, help="seconds without an answer")
    parser.add_argument("--per-minute", type=int, default=10_000)
    parser.add_argument("--no-delivery", action="store_true")
    options = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    if options.command == "receivers":
        asyncio.run(Receivers(options.folder).serve())
    elif options.command == "replica":
        asyncio.run(replica(options.url, options.folder))
    else:
        asyncio.run(storm(options))


if __name__ == "__main__":
    main()
