"""The cost of the usage ledger: ``uv run python -m tests.bench.bench_usage``.

A durable embedded server (fsync on), through its Unix socket. First, what marks add to a commit: the same 1,000 admissions
with and without them, by turns. Then entries in the ledger of 10,000 gangs that run and 2,000 that wait, with utilization of
every gang that runs; the loop's share of it is the CPU time of this process. Medians over the rounds. docs/reference/usage-figures.md
has the last results.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import replace

import asyncpg
from rich.console import Console
from rich.table import Table

from queuectl.control.leader.accounting import Accountant, UsageInputs
from queuectl.db.embedded import EmbeddedServer
from queuectl.db.engine import DatabaseSettings
from queuectl.db.migrate import upgrade
from queuectl.db.ports import Commit
from queuectl.domain.accounting import FlavorGpus, Mark, Subject, UsagePhase
from queuectl.domain.events import Admit
from queuectl.domain.fleet import HOSTNAME, Fleet, Node
from queuectl.domain.ledger import EntryChange
from queuectl.domain.quantity import GPU, PODS, Resources
from queuectl.domain.queues import QueueConfig, ResourceFlavor
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.usage_reports import Grouping, Period
from queuectl.domain.utilization import GangUse, UseState
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, PodShape, Workload
from queuectl.planner.cache import PlannerCache
from queuectl.reports.fragmentation import free_gpus
from queuectl.state.gpu_holders import SampleLog
from queuectl.state.marking import Marker
from queuectl.state.mirror import Mirror
from tests.bench.bench_store import EIGHT_NODES
from tests.db.histories import step, submitted
from tests.support.contained import no_unit_is_set_aside
from tests.support.postgres import server_directory
from tests.support.stores import PostgresStore

ROUNDS = 9
RUNNING = 10_000
WAITING = 2_000
NODES = 5_000
TICK = 60.0
START = 1_700_000_000.0
HELD = (FlavorGpus("h100", "on-demand", 8),)
CONFIG = QueueConfig(flavors={"h100": ResourceFlavor("h100")})

Sample = tuple[float, float]  # seconds of wall and of this process's CPU


def mark(uid: str, phase: UsagePhase, at: float) -> Mark:
    """As the controller writes it."""
    labels = (("project", "vision"), ("team", "research"))
    who = Subject(uid, "Job", "team-a", f"job-{uid}", "research", "gpus", "", "ann", labels)
    held = HELD if phase is UsagePhase.HOLDS else ()
    return Mark(uid, at, at, phase, 1, 8, held, who if phase is UsagePhase.WAITS else None)


class Bench:
    """One database, one ledger."""

    def __init__(self, store: PostgresStore, epoch: int) -> None:
        self.store = store
        self.epoch = epoch
        self.now = START
        self.samples = SampleLog()
        self.snapshot = fleet()
        facts = UsageInputs(
            marker=Marker(Mirror({})),
            live=lambda: (),
            config=lambda: CONFIG,
            samples=self.samples.of,
            snapshot=lambda: self.snapshot,
        )
        self.accountant = Accountant(store.usage, facts, lambda: self.now, epoch, PlannerCache())

    async def commits(self, marked: bool, number: int) -> Sample:
        """1,000 admissions in one commit."""
        names = [f"{marked}-{number}-{n}" for n in range(1000)]
        new = [submitted(name) for name in names]
        await self._commit(new)
        admitted = [step(c.after, Admit(EIGHT_NODES)) for c in new]
        if marked:
            admitted = [
                replace(c, marks=(mark(c.after.uid, UsagePhase.HOLDS, c.at),)) for c in admitted
            ]
        began, used = time.perf_counter(), time.process_time()
        await self._commit(admitted)
        return time.perf_counter() - began, time.process_time() - used

    async def _commit(self, changes: list[EntryChange]) -> None:
        await self.store.commit(Commit(changes, revision=0), epoch=self.epoch, cycle=1)

    async def populate(self) -> None:
        """All gangs are pending, then most of them run."""
        uids = [f"run-{n}" for n in range(RUNNING + WAITING)]
        for low in range(0, len(uids), 1000):
            new = [submitted(uid) for uid in uids[low : low + 1000]]
            changes = []
            for n, change in enumerate(new, low):
                uid = change.after.uid
                marks = [mark(uid, UsagePhase.WAITS, START)]
                if n < RUNNING:
                    marks.append(mark(uid, UsagePhase.HOLDS, START + 1.0))
                changes.append(replace(change, marks=tuple(marks)))
            await self._commit(changes)

    async def account(self) -> Sample:
        """One entry, a minute later, after all gangs were measured."""
        self.now += TICK
        uids = (f"run-{n}" for n in range(RUNNING))
        uses = {
            uid: GangUse(uid, 1, UseState.ACTIVE, START, self.now, 0.5, 1.0, "") for uid in uids
        }
        self.samples.note(uses, self.now)
        began, used = time.perf_counter(), time.process_time()
        await self.accountant.account()
        return time.perf_counter() - began, time.process_time() - used

    async def report(self, by: str) -> Sample:
        period = Period.around(START, self.now)
        began, used = time.perf_counter(), time.process_time()
        await self.store.usage.report(period, Grouping.parse(by))
        return time.perf_counter() - began, time.process_time() - used


def fleet() -> Snapshot:
    """5,000 nodes of 8 GPUs, four fifths of them held, and gangs of eight sizes that wait."""
    size = Resources({GPU: 8, PODS: 110})
    nodes = tuple(Node(f"n{i:05}", {HOSTNAME: f"n{i:05}"}, size) for i in range(NODES))
    gangs = [
        Workload(f"g{i}", "Job", "a", f"g{i}", (PodSet("w", 1, _shape(1 + i % 8)),))
        for i in range(NODES + 1000)
    ]
    admitted = tuple(
        Admitted(gang, Placement((PodSetPlacement("w", ((f"n{i:05}", 1),)),)))
        for i, gang in enumerate(gangs[: NODES * 4 // 5])
    )
    pending = tuple(Pending(gang) for gang in gangs[NODES:])
    return Snapshot(START, Fleet(nodes), CONFIG, pending, admitted)


def _shape(gpus: int) -> PodShape:
    return PodShape(Resources({GPU: gpus, PODS: 1}))


def cpu_of_fragmentation(snapshot: Snapshot, cache: PlannerCache) -> float:
    """With the cache of the process, as the controller computes it each minute."""
    began = time.process_time()
    free_gpus(snapshot, snapshot, cache)
    return time.process_time() - began


async def main() -> None:
    with server_directory(on_disk=True) as directory:
        async with EmbeddedServer(directory) as server:
            await upgrade(server.url())
            store = await PostgresStore.connect(DatabaseSettings(server.url()))
            bench = Bench(store, await store.take_over("bench", 0))
            table = Table(title=f"usage ledger, fsync on, medians of {ROUNDS} rounds")
            table.add_column("what", no_wrap=True)
            table.add_column("ms", justify="right")
            table.add_column("CPU ms", justify="right")

            def show(what: str, samples: list[Sample]) -> None:
                wall, cpu = (1000 * statistics.median(s[i] for s in samples) for i in (0, 1))
                table.add_row(what, f"{wall:.1f}", f"{cpu:.1f}")

            plain, marked = [], []
            for number in range(ROUNDS):
                plain.append(await bench.commits(False, number))
                marked.append(await bench.commits(True, number))
            show("commit 1,000 admissions without marks", plain)
            show("commit 1,000 admissions with marks", marked)
            await store.usage.marks(1)
            await bench.populate()
            show("first entry: 22,000 marks folded", [await bench.account()])
            entries = [await bench.account() for _ in range(ROUNDS)]
            show("entry: 10,000 gangs run, 2,000 wait", entries)
            for by in ("clusterqueue", "workload"):
                show(f"report by {by}", [await bench.report(by) for _ in range(ROUNDS)])
            cache = PlannerCache()
            cpu = [cpu_of_fragmentation(bench.snapshot, cache) for _ in range(ROUNDS)]
            show("of an entry: free GPUs of 5,000 nodes", [(c, c) for c in cpu])
            await store.close()
            Console(width=110).print(table)
            connection = await asyncpg.connect(server.url())
            rows = await connection.fetch(
                "SELECT hour, count(*) FROM usage_hours GROUP BY hour ORDER BY hour"
            )
            size = await connection.fetchval("SELECT pg_total_relation_size('usage_hours')")
            await connection.close()
            print(
                "rows of usage_hours by hour:",
                [row["count"] for row in rows],
                f"{size / 2**20:.0f} MiB",
            )


if __name__ == "__main__":
    with no_unit_is_set_aside():
        asyncio.run(main())
