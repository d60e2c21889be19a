"""How fast the ledger is written and read: ``uv run python -m tests.bench.bench_store``.

A durable embedded server (fsync on) on the disk of the temporary directory, through its Unix socket. "rows" counts every
row written: workloads, placements, outbox, history. Times are medians over the rounds, in milliseconds of wall time; the
targets stand alongside the figures and are not asserted; docs/explanation/service-benchmarks.md keeps the last run.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from queuectl.db.embedded import EmbeddedServer
from queuectl.db.engine import DatabaseSettings
from queuectl.db.migrate import upgrade
from queuectl.db.ports import Commit
from queuectl.domain.events import Admit, PodsReady, StartConfirmed
from queuectl.domain.ledger import EntryChange
from queuectl.domain.notifications import Event, EventType, Mode
from queuectl.domain.queries import WorkloadFilter
from queuectl.domain.rules import Retention
from queuectl.domain.workload import Placement, PodSetPlacement
from tests.db.histories import step, submitted
from tests.support.postgres import server_directory
from tests.support.stores import PostgresStore

ROUNDS = 7
EIGHT_NODES = Placement(
    (
        PodSetPlacement(
            "main", tuple((f"node-{n}", 1) for n in range(8)), {"nvidia.com/gpu": "h100"}
        ),
    )
)


@dataclass(frozen=True)
class Figure:
    what: str
    rows: int
    wall: float  # seconds
    cpu: float  # CPU time of this process in seconds
    target: str = ""


def rows_of(change: EntryChange) -> int:
    """Rows that a commit of ``change`` writes or deletes."""
    before = change.before
    placed = change.after.placement is not (before.placement if before else None)
    new_intent = change.after.intent is not (before.intent if before else None)
    return 1 + placed + new_intent + (change.note is not None)


async def timed(work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
    await work()
    used = resource.getrusage(resource.RUSAGE_SELF).ru_utime - cpu
    return time.perf_counter() - wall, used


class Bench:
    """Runs rounds on fresh workloads each and keeps the medians."""

    def __init__(self, store: PostgresStore, epoch: int) -> None:
        self.store = store
        self.epoch = epoch
        self.figures: list[Figure] = []

    async def commits(self, size: int, target: str) -> None:
        """New workloads, their admission, and the echo of the write, ``size`` in one commit each."""
        names = ("submissions", "admissions", "echoes")
        samples: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        rows = dict.fromkeys(names, 0)
        for number in range(ROUNDS):
            new = [submitted(f"s{size}-{number}-{n}") for n in range(size)]
            admitted = [step(c.after, Admit(EIGHT_NODES)) for c in new]
            echoed = [step(c.after, StartConfirmed()) for c in admitted]
            for name, changes in zip(names, (new, admitted, echoed), strict=True):
                samples[name].append(await timed(lambda changes=changes: self._commit(changes)))  # type: ignore[misc]  # a default binds the loop's value
                rows[name] = sum(map(rows_of, changes))
        for name in names:
            goal = target if name == "admissions" else ""
            self._keep(f"commit {size:,} {name}", rows[name], samples[name], goal)

    async def events(self, size: int) -> None:
        """Starts of ``size`` gangs in one commit, with and without an event for receivers of each, in turn."""
        samples: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for number in range(ROUNDS):
            for enabled, timings in samples.items():
                new = [submitted(f"e{size}-{number}-{enabled}-{n}") for n in range(size)]
                admitted = [step(c.after, Admit(EIGHT_NODES)) for c in new]
                await self._commit(new)
                await self._commit(admitted)
                ready = [step(c.after, PodsReady()) for c in admitted]
                self.store.notifications_enabled = enabled
                timings.append(await timed(lambda ready=ready: self._commit(ready)))  # type: ignore[misc]  # a default binds the loop's value
                self.store.notifications_enabled = False
        for enabled, timings in samples.items():
            with_events = "with" if enabled else "without"
            self._keep(
                f"commit {size:,} starts {with_events} events", (2 + enabled) * size, timings
            )

    async def pruning(self, size: int) -> None:
        """Deletion of ``size`` events that the receivers are past, in batches, and the bounds of a receiver that is down."""
        receivers = [("up", Mode.IMMEDIATE), ("down", Mode.IMMEDIATE)]
        rows = self.store.notifications
        await rows.claim(receivers, "bench", 600.0)
        self.store.notifications_enabled = True
        event = Event(
            at=await self.store.now(), type=EventType.STARTED, namespace="team-a", message="m" * 200
        )
        await self.store.announce([event] * size, epoch=self.epoch)
        end = (await rows.events(0, size))[-1].id
        for receiver, mode in receivers:
            await rows.claim([(receiver, mode)], "bench", 600.0)
            bounds = [
                await timed(
                    lambda r=receiver: rows.drop_beyond(  # type: ignore[misc]  # a default binds the loop's value
                        r, Mode.IMMEDIATE, "bench", max_age=6 * 3600.0, max_rows=size
                    )
                )
                for _ in range(ROUNDS)
            ]
        self._keep(f"bounds of a receiver with {size:,} events", size, bounds)
        reads = [await timed(lambda: rows.events(end - 500, 500)) for _ in range(ROUNDS)]
        self._keep("read 500 events", 500, reads)
        waits = [await timed(self._prune) for _ in range(ROUNDS)]
        self._keep(f"prune {size:,} events that are needed", 0, waits)
        for receiver, mode in receivers:
            await rows.settle(receiver, mode, "bench", end, delivered=size, reported=size)
        deletions = [await timed(self._prune) for _ in range(ROUNDS)]
        self._keep("prune 5,000 events", 5000, deletions)

    async def _prune(self) -> None:
        await self.store.prune(Retention(), time.time(), epoch=self.epoch)

    async def _commit(self, changes: Sequence[EntryChange]) -> None:
        await self.store.commit(Commit(changes, revision=0), epoch=self.epoch, cycle=1)

    async def reads(self) -> None:
        live = len((await self.store.load()).entries)
        self._keep(
            f"load {live:,} live workloads",
            live,
            [await timed(self.store.load) for _ in range(ROUNDS)],
        )
        page = [
            await timed(lambda: self.store.list_workloads(WorkloadFilter(namespace="team-a")))
            for _ in range(ROUNDS)
        ]
        self._keep("list a page of 100", 100, page)

    def _keep(
        self, what: str, rows: int, samples: list[tuple[float, float]], target: str = ""
    ) -> None:
        wall = statistics.median(s[0] for s in samples)
        self.figures.append(
            Figure(what, rows, wall, statistics.median(s[1] for s in samples), target)
        )


def show(figures: list[Figure], version: str) -> None:
    table = Table(title=f"ledger on embedded PostgreSQL {version}, fsync on, {ROUNDS} rounds")
    table.add_column("what", no_wrap=True)
    for heading in ("rows", "ms", "CPU ms", "rows/s", "target"):
        table.add_column(heading, justify="right")
    for figure in figures:
        table.add_row(
            figure.what,
            f"{figure.rows:,}",
            f"{figure.wall * 1000:.1f}",
            f"{figure.cpu * 1000:.1f}",
            f"{figure.rows / figure.wall:,.0f}",
            figure.target,
        )
    Console(width=110).print(table)


async def main() -> None:
    with server_directory(on_disk=True) as directory:
        async with EmbeddedServer(directory) as server:
            await upgrade(server.url())
            store = await PostgresStore.connect(DatabaseSettings(server.url()))
            bench = Bench(store, await store.take_over("bench", 0))
            await bench.commits(1, "")
            await bench.commits(100, "")
            await bench.commits(1000, "10-30 ms, > 20k rows/s")
            await bench.events(1000)
            await bench.reads()
            await bench.pruning(50_000)
            await store.close()
            show(bench.figures, (server.data_directory / "PG_VERSION").read_text().strip())


if __name__ == "__main__":
    asyncio.run(main())
