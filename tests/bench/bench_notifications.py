"""A storm of events with a receiver that is down: ``uv run python -m tests.bench.bench_notifications``.

A leader moves jobs through the ledger on a durable Postgres: 10,000 starts and ends a minute, each with its event in the transaction of
the change. The leader and another replica deliver them to three real HTTPS servers in another process. Two receivers answer. The third
accepts connections, but does not answer for the first part of the run, which defaults to ten minutes.

In the middle of that part, the leader is killed (SIGKILL) while it has claimed receivers and a commit is in flight. A second leader
takes over with the next epoch, loads the ledger and continues its jobs.

The figures: by how much the event loop of each leader is late, its memory, and what each receiver got, got twice, did not get and got
without a commit. The history of the ledger states what it has to get. ``--no-delivery`` measures one leader that writes events, without
delivery.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from sqlalchemy import func, select

from queuectl.db.embedded import EmbeddedServer
from queuectl.db.engine import DatabaseSettings
from queuectl.db.migrate import upgrade
from queuectl.db.ports import Commit
from queuectl.db.tables import history, notification_progress, workloads
from queuectl.domain.containment import Containment
from queuectl.domain.events import Admit, Ended, Event, PodsReady
from queuectl.domain.jobs import JobOutcome
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.notifications import Audience, EventType, NotificationStore, ReceiverStatus
from queuectl.domain.rules import Retention
from queuectl.domain.workload import Placement, PodSetPlacement
from queuectl.notify.delivery import Delivery
from queuectl.notify.messages import TYPE_PREFIX, Messages
from queuectl.notify.receivers import Receiver
from queuectl.notify.transports import Transports
from queuectl.notify.worker import DeliveryWorker
from queuectl.telemetry.notifications import NotificationMetrics
from tests.db.histories import step, submitted
from tests.notify.parts import Names, Tls, webhook
from tests.support.postgres import server_directory
from tests.support.stores import PostgresStore

NAMES: Final = ("ops", "chat", "down")
EVERY: Final = 0.1  # seconds between two commits
EVENTS_PER_JOB: Final = 2  # its start and its end
TICK: Final = 0.01
DRAIN_SECONDS: Final = 400.0  # the longest back-off, and the rest of the backlog
LEADER_CHANGED: Final = TYPE_PREFIX + EventType.LEADER_CHANGED
NODE: Final = Placement((PodSetPlacement("main", (("node-1", 1),), {"nvidia.com/gpu": "h100"}),))
NEXT: Final[Mapping[State, Event]] = {
    State.PENDING: Admit(NODE),
    State.STARTING: PodsReady(),
    State.RUNNING: Ended(JobOutcome.SUCCEEDED),
}


# ---- The receivers


class Receivers:
    """Three HTTPS servers. One of them does not answer until a file exists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counts = {name: Counter[str]() for name in NAMES}
        self.changes: dict[str, set[tuple[str, str]]] = {name: set() for name in NAMES}
        self.delays: dict[str, list[float]] = {name: [] for name in NAMES}
        self.dropped: dict[str, dict[str, int]] = {name: {} for name in NAMES}

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
            name: {
                "ids": dict(self.counts[name]),
                "changes": sorted(self.changes[name]),
                "delays": sorted(self.delays[name]),
                "dropped": sum(self.dropped[name].values()),
            }
            for name in NAMES
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
            message = content["id"]
            if content["type"] == f"{TYPE_PREFIX}dropped":
                self.dropped[name][message] = content["data"]["dropped"]
            else:
                at = dt.datetime.fromisoformat(content["time"]).timestamp()
                self.counts[name][message] += 1
                about = content.get("subject", "")
                leader = content["type"] == LEADER_CHANGED
                self.changes[name].add((content["type"], "" if leader else about))
                self.delays[name].append(time.time() - at)
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


# ---- The leaders


def memory() -> float:
    """MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Leader:
    """Moves jobs through the ledger, and measures its event loop.

    A leader that is killed leaves two files: the commits that it began and ended, and a line of figures for each second.
    """

    def __init__(self, store: PostgresStore, epoch: int, folder: Path, per_minute: int) -> None:
        self._store = store
        self._epoch = epoch
        self._per_second = per_minute / EVENTS_PER_JOB / 60
        self._commits = (folder / f"commits-{epoch}").open("w", buffering=1)
        self._figures = (folder / f"figures-{epoch}").open("w", buffering=1)
        self._late: list[float] = []
        self._durations: list[float] = []
        self._live: list[Entry] = []

    async def lead(self, begin: float, seconds: float) -> None:
        """Commit changes until ``seconds`` after ``begin``, and then until each job has ended."""
        self._live = list((await self._store.load()).entries)
        async with self._store.connections.statement("counting jobs") as connection:
            count = int(await connection.scalar(select(func.count()).select_from(workloads)) or 0)
        cycle = 0
        while (now := time.time()) < begin + seconds or self._live:
            cycle += 1
            due = int(min(now - begin, seconds) * self._per_second)
            new = [submitted(f"job-{n}", f"job-{n}", at=now) for n in range(count, due)]
            count = max(count, due)
            await self._commit([*(step(e, NEXT[e.state], now) for e in self._live), *new], cycle)
            if cycle % 600 == 0:
                await self._store.prune(Retention(), now, epoch=self._epoch)
            await asyncio.sleep(max(0.0, now + EVERY - time.time()))

    async def _commit(self, changes: Sequence[EntryChange], cycle: int) -> None:
        self._commits.write(f"{cycle}\n")
        begin = time.perf_counter()
        await self._store.commit(Commit(changes), epoch=self._epoch, cycle=cycle)
        self._durations.append(time.perf_counter() - begin)
        self._commits.write("ended\n")
        self._live = [c.after for c in changes if c.after.state is not State.FINISHED]

    async def measure(self) -> None:
        """Write by how much the loop is late, how long commits take, and the memory."""
        while True:
            begin = time.perf_counter()
            await asyncio.sleep(TICK)
            self._late.append(time.perf_counter() - begin - TICK)
            if len(self._late) >= 1 / TICK:
                figures = {
                    "late": self._late,
                    "commits": self._durations,
                    "memory": memory(),
                    "processor": time.process_time(),
                }
                self._figures.write(json.dumps(figures) + "\n")
                self._late, self._durations = [], []


async def lead(options: argparse.Namespace) -> None:
    """Take over, write events until the end of the storm, and deliver until this process is killed."""
    store = await PostgresStore.connect(DatabaseSettings(options.url))
    store.notifications_enabled = True
    by = f"leader-{options.number}"
    epoch = await store.take_over(by, 0)
    leader = Leader(store, epoch, options.folder, options.per_minute)
    tasks = [asyncio.create_task(leader.measure())]
    if not options.no_delivery:
        tasks.append(asyncio.create_task(worker(store.notifications, options.folder, by).run()))
    await leader.lead(options.begin, options.seconds)
    tasks.pop(0).cancel()
    (options.folder / "written").touch()
    await asyncio.gather(*tasks)
    await store.close()


# ---- The storm


async def storm(options: argparse.Namespace) -> None:
    """Run it and print the figures."""
    with server_directory(on_disk=True) as directory, tempfile.TemporaryDirectory() as name:
        options.folder = Path(name)
        Tls(options.folder)
        server = EmbeddedServer(directory)
        await server.start()
        try:
            await upgrade(server.url())
            options.url = server.url()
            store = await PostgresStore.connect(DatabaseSettings(options.url))
            async with Storm(options, store) as running:
                await running.run()
            await figures(options, store)
            await store.close()
        finally:
            await server.stop(immediate=True)


class Storm:
    """The processes of one run. They end with it."""

    def __init__(self, options: argparse.Namespace, store: PostgresStore) -> None:
        self._options = options
        self._store = store
        self._folder: Path = options.folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._begin = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    async def run(self) -> None:
        """Let the storm pass, and deliver what is left of it."""
        servers = self._start("receivers")
        await self._until(lambda: self._text("ports"))
        delivery = not self._options.no_delivery
        if delivery:
            self._start("replica")
            await self._cursors()
        self._begin = time.time()
        leader = self._lead(1)
        if delivery:
            await asyncio.sleep(self._options.down / 2)
            await self._replace(leader)
            await asyncio.sleep(max(0.0, self._begin + self._options.down - time.time()))
        (self._folder / "up").touch()
        await self._until((self._folder / "written").exists)
        if delivery:
            await drained(self._store)
        servers.send_signal(signal.SIGTERM)
        servers.wait(30)

    def _start(self, command: str, *flags: str) -> subprocess.Popen[bytes]:
        """Another process of this benchmark."""
        shared = f"--url={self._options.url}", f"--folder={self._folder}"
        process = subprocess.Popen([sys.executable, "-m", __spec__.name, command, *shared, *flags])
        self._processes.append(process)
        return process

    def _lead(self, number: int) -> subprocess.Popen[bytes]:
        options = self._options
        flags = [
            f"--number={number}",
            f"--begin={self._begin}",
            f"--seconds={options.seconds}",
            f"--per-minute={options.per_minute}",
        ]
        return self._start("leader", *flags, *["--no-delivery"] * options.no_delivery)

    def _text(self, name: str) -> str:
        """Content of a file of another process; empty without it."""
        path = self._folder / name
        return path.read_text() if path.exists() else ""

    async def _until(self, condition: Callable[[], object], every: float = 0.01) -> None:
        """Wait for other processes.

        Raises:
            RuntimeError: one of them has ended.
        """
        while not condition():
            if any(each.poll() not in (None, -signal.SIGKILL) for each in self._processes):
                raise RuntimeError("a process of the benchmark has ended")
            await asyncio.sleep(every)

    async def _cursors(self) -> None:
        """Wait until each receiver has its cursor: it gets the events after it."""
        while len(await self._store.notifications.statuses()) < len(NAMES):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.1)

    async def _replace(self, leader: subprocess.Popen[bytes]) -> None:
        """Kill the leader while it has claimed a receiver and a commit is in flight, and start the next one."""
        while not await claims(self._store):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.1)
        await self._until(lambda: not self._text("commits-1").endswith("ended\n"), every=0.001)
        leader.send_signal(signal.SIGKILL)
        leader.wait()
        killed = time.time()
        receivers = ", ".join(await claims(self._store))
        cycle = self._text("commits-1").split()[-1]
        print(f"killed the leader after {killed - self._begin:.0f} s, with claims: {receivers}")
        self._lead(2)
        await self._until(lambda: "ended" in self._text("commits-2"))
        print(f"the second leader committed {time.time() - killed:.1f} s later")
        if cycle == "ended":
            print("no commit was in flight", flush=True)
            return
        its = select(func.count()).where(history.c.epoch == 1, history.c.cycle == int(cycle))
        async with self._store.connections.statement("reading history") as connection:
            lines = await connection.scalar(its)
        print(f"commit {cycle} was in flight: {lines} lines of it are in the history", flush=True)


async def claims(store: PostgresStore) -> list[str]:
    """The receivers that the first leader has claimed."""
    c = notification_progress.c
    now = func.extract("epoch", func.clock_timestamp())
    claimed = select(c.receiver).where(c.claimed_by == "leader-1", c.claimed_until > now)
    async with store.connections.statement("reading claims") as connection:
        return sorted(await connection.scalars(claimed))


async def drained(store: PostgresStore) -> None:
    """Wait until each receiver has all events, at most for the longest back-off and a while."""
    begin = time.monotonic()
    while time.monotonic() < begin + DRAIN_SECONDS:
        statuses = await store.notifications.statuses()
        if not any(status.waiting or status.dropped for status in statuses):
            break
        await asyncio.sleep(1)
    print(f"drained within {time.monotonic() - begin:.0f} s after the last event", flush=True)


# ---- The figures


async def figures(options: argparse.Namespace, store: PostgresStore) -> None:
    """Print the figures of a run that has ended."""
    for path in sorted(options.folder.glob("figures-*")):
        report(path)
    due = await due_changes(store)
    print(f"events of committed changes: {len(due)}")
    got = json.loads((options.folder / "got").read_text())
    for status in await store.notifications.statuses():
        outcome(status, got[status.receiver], due)


async def due_changes(store: PostgresStore) -> set[tuple[str, str]]:
    """Type and subject of each event that receivers have to get, by the committed history."""
    c = history.c
    types = {
        State.RUNNING.value: TYPE_PREFIX + EventType.STARTED,
        State.FINISHED.value: TYPE_PREFIX + EventType.FINISHED,
    }
    ended = select(c.kind, c.namespace, c.name, c.to_state).where(c.to_state.in_(types))
    async with store.connections.statement("reading history") as connection:
        rows = (await connection.execute(ended)).all()
        leaders = await connection.scalar(select(func.count(c.epoch.distinct())))
    changes = {(types[row.to_state], f"{row.kind}/{row.namespace}/{row.name}") for row in rows}
    if leaders == 2:  # the second leader took over from the first
        changes.add((LEADER_CHANGED, ""))
    return changes


def percentiles(values: Iterable[float], unit: float) -> str:
    """Four figures of these values."""
    ordered = sorted(values)
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    parts = [f"{name} {ordered[int(len(ordered) * s)] / unit:.1f}" for name, s in shares.items()]
    return ", ".join([*parts, f"max {ordered[-1] / unit:.1f}"])


def report(path: Path) -> None:
    """Print the figures of one leader."""
    seconds = [json.loads(line) for line in path.read_text().splitlines()]
    usage = [each["memory"] for each in seconds]
    print(f"leader of epoch {path.name.removeprefix('figures-')}:")
    print(f"  loop late by ms: {percentiles((v for s in seconds for v in s['late']), 0.001)}")
    print(f"  commits ms: {percentiles((v for s in seconds for v in s['commits']), 0.001)}")
    print(f"  memory MiB: {usage[0]:.0f} at first, {usage[-1]:.0f} at last, {max(usage):.0f} most")
    print(f"  CPU seconds: {seconds[-1]['processor']:.0f} in {len(seconds)} lines")


def outcome(status: ReceiverStatus, got: dict[str, Any], due: set[tuple[str, str]]) -> None:
    """Print what one receiver got."""
    deliveries = Counter(got["ids"])
    changes = {tuple(each) for each in got["changes"]}
    dropped = got["dropped"] + status.dropped
    print(
        f"{status.receiver}: {len(deliveries)} delivered, "
        f"{deliveries.total() - len(deliveries)} doubles, {dropped} dropped, "
        f"{len(due - changes) - dropped} lost, {len(changes - due)} without a commit; "
        f"seconds late: {percentiles(got['delays'], 1)}"
    )


def main() -> None:
    """Run one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", nargs="?", choices=("receivers", "replica", "leader"))
    parser.add_argument("--url")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--number", type=int)
    parser.add_argument("--begin", type=float)
    parser.add_argument("--seconds", type=float, default=660.0, help="of the storm")
    parser.add_argument("--down", type=float, default=600.0, help="seconds without an answer")
    parser.add_argument("--per-minute", type=int, default=10_000)
    parser.add_argument("--no-delivery", action="store_true")
    options = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    match options.command:
        case "receivers":
            asyncio.run(Receivers(options.folder).serve())
        case "replica":
            asyncio.run(replica(options.url, options.folder))
        case "leader":
            asyncio.run(lead(options))
        case _:
            asyncio.run(storm(options))


if __name__ == "__main__":
    main()
