"""The API under load beside the controller that serves it: ``python -m tests.bench.bench_api``.

1,000 gangs are submitted at once to the cluster double and admitted by the real loop on a real Postgres: first with nobody
asking, then with 200 clients that read (lists, floor, nodes, explain, decisions; each pauses 5 seconds between two questions) and
50 event streams, half of which break every second and resume. Server and controller share one process and event loop, as in
``queuectl serve``; the clients are a process of their own. Printed for both runs: seconds until all gangs run, lag of the
event loop; for the clients: latencies by path, and whether any stream lost or doubled a line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2
import structlog
from rich.console import Console
from rich.table import Table

from queuectl.api.app import create_app
from queuectl.api.server import Address, WebServer
from queuectl.control.loop import Loop
from queuectl.control.settings import Settings
from queuectl.control.tryout import TryOut
from queuectl.control.viewer import Viewer
from queuectl.db.engine import DatabaseSettings
from queuectl.db.store import PostgresStore
from queuectl.domain.floor import Floor
from queuectl.domain.ledger import State
from queuectl.domain.trial import Trial
from queuectl.objects.whatif import WhatIf
from queuectl.telemetry.metrics import Metrics
from tests.api.support import FixedHealth
from tests.control.rig import Rig, gang, rig
from tests.support.postgres import running_postgres

GANGS: Final = 1000
READERS: Final = 200
STREAMS: Final = 50
THINK_SECONDS: Final = 5.0
BREAK_SECONDS: Final = 1.0
PATHS: Final = (
    "/api/v1/workloads?limit=100",
    "/api/v1/workloads?limit=100&state=Pending",
    "/api/v1/floor",
    "/api/v1/nodes?limit=50",
    "/api/v1/domains",
    "/api/v1/decisions?limit=20",
    "/api/v1/clusterqueues",
)


@dataclass
class Run:
    """One way of letting the gangs in. Seconds."""

    wall: float
    lags: list[float]
    answers: dict[str, list[float]] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    doubled: int = 0
    lines: int = 0
    breaks: int = 0


class Lookout:
    """What `queuectl serve` shows, of the controller in the rig."""

    def __init__(self, world: Rig, loop: Loop) -> None:
        limits = world.settings.solver.limits
        self._viewer = Viewer(
            world.store,
            loop._mirror,
            limits,
            world.clock,
            leading=lambda: loop.books if loop.loaded else None,
            watching=lambda: True,
        )
        share = world.settings.planning_share
        self._tryout = TryOut(self._viewer.latest, world.store, loop._mirror, share)

    async def floor(self) -> Floor | None:
        return await self._viewer.floor()

    async def try_out(self, asked: WhatIf) -> Trial | None:
        return await self._tryout.try_out(asked)


async def lag(into: list[float]) -> None:
    """How much later than asked the event loop comes back."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.01)
        into.append(time.perf_counter() - began - 0.01)


@asynccontextmanager
async def served(world: Rig, loop: Loop, url: str) -> AsyncIterator[WebServer]:
    lookout = Lookout(world, loop)
    desk = await PostgresStore.connect(DatabaseSettings(url))  # connections of its own, as in serve
    app = create_app(desk, FixedHealth(), Metrics().registry, lookout=lookout)
    server = WebServer(app, Address("127.0.0.1", 0))
    serving = asyncio.create_task(server.run())
    try:
        yield server
    finally:
        app.state.feed.close()
        serving.cancel()
        await asyncio.wait({serving})
        await desk.close()


async def admitted(world: Rig) -> float:
    """Submit the gangs and let the world go on until all of them run."""
    for number in range(GANGS):
        world.cluster.submit(gang("Job", f"gang-{number:04}", 1))
    began = time.perf_counter()
    while True:
        await world._keep_running()
        stepped = time.perf_counter()
        world.cluster.step()
        # The double plays an API server, which is a process of its own: it may have a quarter of this one.
        await asyncio.sleep(3 * (time.perf_counter() - stepped) + 0.01)
        assert world.loop is not None
        if world.loop.books.ledger.count(State.RUNNING) == GANGS:
            return time.perf_counter() - began


async def measured(url: str, *, asked: bool) -> Run:
    async with rig(url, GANGS) as world:
        world.settings = Settings()
        await world.until(lambda: world.loop is not None and world.loop.loaded, "a leader")
        assert world.loop is not None
        lags: list[float] = []
        sampler = asyncio.create_task(lag(lags))
        if not asked:
            run = Run(await admitted(world), lags)
            sampler.cancel()
            return run
        async with served(world, world.loop, url) as server:
            clients = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.bench.bench_api", server.url,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert clients.stdout is not None
            await clients.stdout.readline()  # all streams are open
            lags.clear()
            run = Run(await admitted(world), lags)
            sampler.cancel()
            end = await world.store.newest_line()
            told, _ = await clients.communicate(f"{end}\n".encode())
        report = json.loads(told)
        run.answers, run.statuses = report["answers"], report["statuses"]
        run.breaks, run.lines = report["breaks"], end
        ids = [line.id for line in await history(world)]
        for seen in report["seen"]:
            run.lost += len(set(ids) - set(seen))
            run.doubled += len(seen) - len(set(seen))
        return run


async def history(world: Rig) -> list[Any]:
    lines: list[Any] = []
    while page := await world.store.history(None, lines[-1].id if lines else 0, 500):
        lines += page
    return lines


# -- the clients ------------------------------------------------------------------------------------------------------


class Clients:
    """Two hundred that read, fifty that listen."""

    def __init__(self, url: str) -> None:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx2.AsyncClient(base_url=url, limits=limits, timeout=60.0)
        self._over = asyncio.Event()
        self._end = 0
        self.answers: dict[str, list[float]] = {path: [] for path in PATHS}
        self.statuses: dict[str, int] = {}
        self.breaks = 0

    async def read(self, number: int) -> None:
        await asyncio.sleep(THINK_SECONDS * number / READERS)
        turn = number
        while not self._over.is_set():
            path = PATHS[turn % len(PATHS)]
            turn += 1
            began = time.perf_counter()
            answer = await self._client.get(path)
            self.answers[path].append(time.perf_counter() - began)
            status = str(answer.status_code)
            self.statuses[status] = self.statuses.get(status, 0) + 1
            await asyncio.sleep(THINK_SECONDS)

    async def listen(self, number: int, opened: asyncio.Semaphore) -> list[int]:
        seen: list[int] = []
        position = 0
        breaks = number % 2 == 1
        first = True
        while not (self._over.is_set() and position >= self._end):
            until = time.monotonic() + BREAK_SECONDS if breaks else None
            headers = {"Last-Event-ID": str(position)}
            async with self._client.stream("GET", "/api/v1/events", headers=headers) as answer:
                async for line in answer.aiter_lines():
                    if first:
                        first = False
                        opened.release()
                    if line.startswith("id: "):
                        position = int(line[4:])
                    elif line == "event: step":
                        seen.append(position)
                    elif self._over.is_set() and position >= self._end:
                        break
                    elif line == "" and until is not None and time.monotonic() > until:
                        self.breaks += 1
                        break
        return seen

    async def run(self) -> dict[str, Any]:
        opened = asyncio.Semaphore(0)
        listening = [asyncio.create_task(self.listen(n, opened)) for n in range(STREAMS)]
        for _ in range(STREAMS):
            await opened.acquire()
        reading = [asyncio.create_task(self.read(n)) for n in range(READERS)]
        print("ready", flush=True)
        self._end = int(await asyncio.to_thread(sys.stdin.readline))
        self._over.set()
        await asyncio.gather(*reading)
        seen = await asyncio.wait_for(asyncio.gather(*listening), 60.0)
        await self._client.aclose()
        return {
            "answers": self.answers, "statuses": self.statuses, "seen": seen, "breaks": self.breaks,
        }  # fmt: skip


# -- the report -------------------------------------------------------------------------------------------------------


def quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, 99th percentile and the worst, in milliseconds."""
    if len(values) < 2:
        return (0.0, 0.0, 0.0)
    cuts = statistics.quantiles(values, n=100)
    return (cuts[49] * 1000, cuts[98] * 1000, max(values) * 1000)


def table(rows: Iterable[tuple[str, Sequence[float]]], title: str) -> Table:
    made = Table("what", "n", "p50 ms", "p99 ms", "worst ms", title=title, box=None)
    for name, values in rows:
        made.add_row(name, str(len(values)), *(f"{q:.1f}" for q in quantiles(values)))
    return made


async def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    async with running_postgres() as postgres:
        runs = {}
        for name, asked in (("alone", False), ("asked", True)):
            database = await postgres.fresh()
            runs[name] = await measured(postgres.server.url(database), asked=asked)
            await postgres.drop(database)
    alone, asked_ = runs["alone"], runs["asked"]
    console = Console()
    lags = [(name, run.lags) for name, run in runs.items()]
    console.print(table(lags, "lag of the event loop"))
    every = [seconds for answers in asked_.answers.values() for seconds in answers]
    console.print(table([*asked_.answers.items(), ("all", every)], "answers"))
    console.print(
        f"{GANGS} gangs run after {alone.wall:.1f} s alone, {asked_.wall:.1f} s with {READERS} readers and "
        f"{STREAMS} streams: {asked_.wall / alone.wall:.2f} times"
    )
    console.print(
        f"statuses {asked_.statuses}; {asked_.lines} lines on each of {STREAMS} streams, {asked_.breaks} times "
        f"resumed: {asked_.lost} lost, {asked_.doubled} told twice"
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(asyncio.run(Clients(sys.argv[1]).run())))
    else:
        asyncio.run(main())
