"""The API under load alongside the controller that serves it: ``python -m tests.bench.bench_api``.

The burst: 1,000 gangs are submitted at once and admitted by a controller as ``queuectl serve`` runs it, on a real Postgres: first with
no requests, then with 200 clients that read (lists, cluster map, nodes, decisions; each pauses 5 seconds between two requests)
and 50 event streams, half of which break every second and resume. Server and controller share one process and event loop; the
cluster double is a separate process, and so are the clients. Printed for both runs: seconds until all gangs run, lag of the event
loop; for the clients: latencies by path, and whether any stream lost or doubled a line.

The backlog: 5,000 nodes, full, and 10,000 pending gangs; the time of one view on the leader and on a
standby, and of a what-if.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import structlog
from rich.console import Console
from rich.table import Table

from queuectl.cli.program import tune_interpreter
from queuectl.control.composition import ServeComponents
from queuectl.control.progress import SteadyClock
from queuectl.control.settings import Settings
from queuectl.control.supervisor import Supervisor
from queuectl.db.engine import DatabaseSettings
from queuectl.db.store import PostgresApiStore
from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.ledger import State
from queuectl.domain.what_if import WhatIf
from queuectl.localcluster.nodes import RACK
from queuectl.objects.kinds import KINDS
from queuectl.planner import StopSignal, plan
from queuectl.telemetry.metrics import MetricsRecorder
from tests.bench.backlog import LARGE, SMALL, Backlog, Size
from tests.bench.backlog import configuration as backlog_configuration
from tests.bench.bystander import lag
from tests.bench.faraway import FarCluster, far_cluster
from tests.bench.readers import READERS, STREAMS
from tests.bench.serving import clients, report_of, served
from tests.control.rig import configuration, gang
from tests.support.contained import no_unit_is_set_aside
from tests.support.postgres import running_postgres
from tests.support.stores import PostgresStore

T = TypeVar("T")

GANGS: Final = 1000
REST_SECONDS: Final = 1.0


@dataclass
class Run:
    """One way of letting the gangs in. Seconds; ``worked``: of this process' processor."""

    wall: float
    worked: float
    lags: list[float]
    answers: dict[str, list[float]] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    doubled: int = 0
    lines: int = 0
    breaks: int = 0


@dataclass
class World:
    """A controller as ``queuectl serve`` wires it, and the cluster it rules."""

    cluster: FarCluster
    parts: ServeComponents
    task: asyncio.Task[None]

    async def pause(self, seconds: float) -> None:
        """Let everything go on; an error of the controller is raised here."""
        if (await asyncio.wait({self.task}, timeout=seconds))[0]:
            self.task.result()

    async def running(self) -> int:
        tallies = await self.parts.store.tallies()
        return sum(tally.workloads for tally in tallies if tally.state is State.RUNNING)


@asynccontextmanager
async def ruled(url: str, gangs: int = GANGS) -> AsyncIterator[World]:
    """A cluster of so many nodes with a leader."""
    store, command_service = [await PostgresStore.connect(DatabaseSettings(url)) for _ in range(2)]
    for document in configuration(gangs * 8):
        await store.put_config(document)
    async with far_cluster(gangs) as cluster:
        supervisor = Supervisor(
            store=store,
            cluster=cluster,
            metrics=MetricsRecorder(),
            settings=Settings(),
            clock=SteadyClock(),
            kinds=KINDS,
        )
        stop = asyncio.Event()
        running = asyncio.create_task(supervisor.run(stop))
        world = World(
            cluster,
            ServeComponents(
                supervisor,
                command_service,
                MetricsRecorder(),
                command_service.registration("bench"),
            ),
            running,
        )
        while supervisor._leader_state() is None:
            await world.pause(0.05)
        yield world
        stop.set()
        await running
    await store.close()
    await command_service.close()


async def admitted(world: World, gangs: int = GANGS) -> tuple[float, float]:
    """Submit the gangs and wait until all of them run: seconds of the clock, and of this process' processor."""
    for number in range(gangs):
        await world.cluster.submit(gang("Job", f"gang-{number:04}", 1))
    began, worked = time.perf_counter(), time.process_time()
    while await world.running() < gangs:
        await world.pause(0.1)
    return time.perf_counter() - began, time.process_time() - worked


async def measured(url: str, *, asked: bool) -> Run:
    async with ruled(url) as world:
        lags: list[float] = []
        sampler = asyncio.create_task(lag(lags))
        if not asked:
            run = Run(*await admitted(world), lags)
            sampler.cancel()
            return run
        async with (
            served(world.parts) as address,
            clients("tests.bench.readers", address) as readers,  # all streams are open
        ):
            lags.clear()
            run = Run(*await admitted(world), lags)
            sampler.cancel()
            store = world.parts.store
            end = await store.newest_line()
            report = await report_of(readers, f"{end}\n")
        run.answers, run.statuses = report["answers"], report["statuses"]
        run.breaks, run.lines = report["breaks"], end
        ids = [line.id for line in await history(store)]
        for seen in report["seen"]:
            run.lost += len(set(ids) - set(seen))
            run.doubled += len(seen) - len(set(seen))
        return run


async def history(store: PostgresApiStore) -> list[Any]:
    lines: list[Any] = []
    while page := await store.history(None, lines[-1].id if lines else 0, 500):
        lines += page
    return lines


# -- the report -------------------------------------------------------------------------------------------------------


def quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, 99th percentile and the worst, in milliseconds."""
    if len(values) < 2:
        return (0.0, 0.0, 0.0)
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return (cuts[49] * 1000, cuts[98] * 1000, max(values) * 1000)


def table(rows: Iterable[tuple[str, Sequence[float]]], title: str) -> Table:
    made = Table("what", "n", "p50 ms", "p99 ms", "worst ms", title=title, box=None)
    for name, values in rows:
        made.add_row(name, str(len(values)), *(f"{q:.1f}" for q in quantiles(values)))
    return made


def report_burst(alone: Run, asked: Run, console: Console) -> None:
    console.print(table([("alone", alone.lags), ("asked", asked.lags)], "lag of the event loop"))
    every = [seconds for answers in asked.answers.values() for seconds in answers]
    console.print(table([*asked.answers.items(), ("all", every)], "answers"))
    console.print(
        f"{GANGS} gangs run after {alone.wall:.1f} s alone, {asked.wall:.1f} s with {READERS} readers and "
        f"{STREAMS} streams: {asked.wall / alone.wall:.2f} times; processor {alone.worked:.1f} and {asked.worked:.1f} s"
    )
    console.print(
        f"statuses {asked.statuses}; {asked.lines} lines on each of {STREAMS} streams, {asked.breaks} times "
        f"resumed: {asked.lost} lost, {asked.doubled} sent twice"
    )


# -- one question over a backlog ----------------------------------------------------------------------------------------


async def questions(url: str, size: Size) -> Table:
    """The time of one view and of one what-if, each repeated on a cluster without changes."""
    backlog = Backlog(url, size)
    await backlog.start("leader")
    for document in backlog_configuration(size):
        await backlog.controllers["leader"].store.put_config(document)
    await backlog.fill()
    await backlog.start("standby")
    leader, standby = (parts.task for parts in backlog.controllers.values())
    job = m.job("what-if", "team-language", "main", PodSetManifest(8, gpus=8, required=RACK))

    async def without() -> None:
        """The half of a what-if that plans without the change."""
        seen = await leader.viewer.latest()
        assert seen is not None
        await asyncio.to_thread(plan, seen.snapshot, StopSignal())

    asked: dict[str, tuple[int, Callable[[], Awaitable[object]]]] = {
        "a view, on the leader": (5, leader.viewer.latest),
        "the first view on a standby": (1, standby.viewer.latest),
        "a later look of a standby": (5, standby.viewer.latest),
        "what-if: one more gang, by the leader": (5, lambda: leader.what_if.try_out(WhatIf([job]))),
        "of that the view and the plan without the change": (5, without),
    }
    made = Table("what", "wall ms", "CPU ms", title=f"one question, {size.waiting} wait", box=None)
    for what, (rounds, ask) in asked.items():
        walls, works = zip(*[await timed(ask) for _ in range(rounds)], strict=True)
        made.add_row(what, *(f"{statistics.median(each) * 1000:.0f}" for each in (walls, works)))
    await backlog.close()
    return made


async def timed(ask: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Seconds of the clock and of the processor, once everything has rested."""
    await asyncio.sleep(REST_SECONDS)
    began, worked = time.perf_counter(), time.process_time()
    await ask()
    return time.perf_counter() - began, time.process_time() - worked


async def main(size: Size, *, backlog: bool, burst: bool) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    tune_interpreter()  # as serve does
    console = Console(width=120)
    async with running_postgres() as postgres:

        async def afresh(work: Callable[[str], Awaitable[T]]) -> T:
            database = await postgres.fresh()
            done = await work(postgres.server.url(database))
            await postgres.drop(database)
            return done

        if burst:
            alone = await afresh(partial(measured, asked=False))
            report_burst(alone, await afresh(partial(measured, asked=True)), console)
        if backlog:
            console.print(await afresh(partial(questions, size=size)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["burst", "backlog"], help="one part of it")
    parser.add_argument(
        "--small", action="store_true", help="a small backlog, to see whether it works"
    )
    given = parser.parse_args()
    parts = {"backlog": given.only != "burst", "burst": given.only != "backlog"}
    with no_unit_is_set_aside():
        asyncio.run(main(SMALL if given.small else LARGE, **parts))
