"""The writes of Postgres for a day of gangs: ``python -m tests.bench.bench_database_day [--minutes 15] [--rate 100000]``.

A durable server (fsync on). The store commits the changes of a slice of a day as the leader does: each second one commit of what
happened in it. A gang of four pods waits ten minutes with two reasons, runs for an hour and ends. At the beginning, the gangs of a steady
state run and wait. Once a minute, the accountant writes the usage of all of them. Counters of the slice are scaled to a day; with
``--minutes 5 15``, two slices show that they grow linearly. Nothing depends on the speed of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import asyncpg
from rich.console import Console
from rich.table import Table

from queuectl.control.leader.accounting import Accountant, UsageInputs
from queuectl.db.embedded import EmbeddedServer
from queuectl.db.engine import DatabaseSettings
from queuectl.db.migrate import upgrade
from queuectl.db.ports import Commit
from queuectl.domain.accounting import FlavorGpus, Mark, Subject, UsagePhase
from queuectl.domain.events import Admit, Ended, PodsReady, Refuse, StartConfirmed
from queuectl.domain.jobs import JobOutcome
from queuectl.domain.ledger import CycleDecision, Entry, EntryChange
from queuectl.domain.plan import Proof
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.workload import Placement, PodSetPlacement
from queuectl.planner.cache import PlannerCache
from queuectl.state.marking import Marker
from queuectl.state.mirror import Mirror
from tests.bench.bench_usage import CONFIG, fleet
from tests.db.histories import step, submitted
from tests.operations.servers import PROGRAMS
from tests.support.contained import no_unit_is_set_aside
from tests.support.postgres import server_directory
from tests.support.stores import PostgresStore

DAY: Final = 86_400.0
START: Final = 1_790_000_000.0
WAITS: Final = 600.0
RUNS: Final = 3600.0
HELD: Final = (FlavorGpus("h100", "on-demand", 4),)
REASONS: Final = (
    Reason(
        Code.WAITING_FOR_QUOTA,
        "8 of 64 GPUs of the quota are free: 24 more are needed",
        {"free": 8, "needed": 32},
    ),
    Reason(
        Code.TOPOLOGY_PLACEMENT_FAILED,
        "no rack has 32 free GPUs: the largest free part is 24 GPUs on 3 nodes",
        {"free": 24, "needed": 32, "levels": ["example.com/rack"]},
    ),
)
COUNTERS: Final = """
SELECT (SELECT wal_bytes::float8 FROM pg_stat_wal) AS wal, (SELECT wal_fpi FROM pg_stat_wal) AS images,
  (SELECT wal_sync FROM pg_stat_wal) AS syncs,
  (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()) AS transactions
"""
ROWS: Final = """
SELECT relname AS name, n_tup_ins AS inserted, n_tup_upd AS updated, n_tup_hot_upd AS hot, n_tup_del AS deleted,
  pg_total_relation_size(relid) AS size
FROM pg_stat_user_tables
"""
INDEXES: Final = """
SELECT indexrelname AS name, idx_scan AS scans, pg_relation_size(indexrelid) AS size FROM pg_stat_user_indexes
WHERE relname IN ('workloads', 'history', 'placements', 'outbox', 'usage_hours', 'usage_subjects')
"""


@dataclass
class Gangs:
    """The gangs of a slice, by when they change next."""

    store: PostgresStore
    epoch: int
    now: float = START
    number: int = 0
    cycle: int = 0
    due: dict[int, list[tuple[Entry, int]]] = field(default_factory=dict)

    def later(self, seconds: float, entry: Entry, stage: int) -> None:
        self.due.setdefault(int(self.now + seconds), []).append((entry, stage))

    def submit(self) -> EntryChange:
        self.number += 1
        n = self.number
        labels = (("project", f"p{n % 30}"),)
        change = submitted(
            f"{n:08}-91cf-4d0c-9c4e-6c1d5bb1a1b0",
            f"train-{n}",
            namespace=f"team-{n % 60:02}",
            at=self.now,
            labels=labels,
        )
        self.later(1, change.after, 1)
        return replace(change, marks=(self._mark(change.after, UsagePhase.WAITS, first=True),))

    def advance(self, entry: Entry, stage: int) -> EntryChange:
        """The next change of a gang: two reasons, its start, the confirmation, its pods and its end."""
        event: Any
        match stage:
            case 1 | 2:
                event, pause = Refuse(REASONS[stage - 1]), WAITS / 2
            case 3:
                event, pause = Admit(_placement(int(entry.uid[:8]))), 1
            case 4:
                event, pause = StartConfirmed(), 4
            case 5:
                event, pause = PodsReady(), RUNS
            case _:
                event, pause = Ended(JobOutcome.SUCCEEDED), 0
        change = step(entry, event, self.now)
        if stage < 6:
            self.later(pause, change.after, stage + 1)
        phases = {3: UsagePhase.HOLDS, 6: UsagePhase.GONE}
        if stage in phases:
            change = replace(change, marks=(self._mark(change.after, phases[stage]),))
        return change

    def _mark(self, entry: Entry, phase: UsagePhase, *, first: bool = False) -> Mark:
        who = Subject(
            *(entry.uid, entry.kind, entry.namespace, entry.name, entry.queue, entry.cluster_queue),
            user=f"user-{int(entry.uid[:8]) % 300}",
            labels=(("project", "vision"), ("team", "research")),
        )
        held = HELD if phase is UsagePhase.HOLDS else ()
        return Mark(
            entry.uid, self.now, self.now, phase, entry.attempt, 4, held, who if first else None
        )

    async def commit(self, changes: list[EntryChange], *, planned: bool = True) -> None:
        """At most one change of a workload in a commit."""
        waiting = deque(changes)
        while waiting:
            taken, left, seen = [], deque[EntryChange](), set[str]()
            for change in waiting:
                if change.after.uid in seen:
                    left.append(change)
                else:
                    seen.add(change.after.uid)
                    taken.append(change)
            waiting = left
            self.cycle += 1
            decision = _decision(self.now) if planned else None
            await self.store.commit(
                Commit(taken, decision=decision), epoch=self.epoch, cycle=self.cycle
            )

    async def second(self, arrivals: int) -> None:
        changes = [self.advance(entry, stage) for entry, stage in self.due.pop(int(self.now), [])]
        changes += [self.submit() for _ in range(arrivals)]
        starts = any(change.after.placement is not None for change in changes)
        await self.commit(changes, planned=starts)
        self.now += 1.0

    async def steady(self, per_second: float) -> None:
        """The gangs that wait and run at any time, each since its own time."""
        for stage, last in ((3, WAITS), (6, RUNS)):
            for low in range(0, int(per_second * last), 500):
                times = [
                    START - last + number / per_second
                    for number in range(low, min(low + 500, int(per_second * last)))
                ]
                batch = [self._at(at, self.submit) for at in times]
                await self.commit(batch, planned=False)
                for number in range(3, stage):
                    pairs = zip(times, [change.after for change in batch], strict=True)
                    batch = [
                        self._at(at, lambda e=entry, n=number: self.advance(e, n))  # type: ignore[misc]  # a default binds the loop's value
                        for at, entry in pairs
                    ]
                    await self.commit(batch, planned=False)
                uids = {change.after.uid for change in batch}
                for at, those in list(self.due.items()):
                    self.due[at] = [pair for pair in those if pair[0].uid not in uids]
                for number, change in enumerate(batch, low):
                    self.later(1 + number / per_second, change.after, stage)

    def _at(self, at: float, work: Callable[[], EntryChange]) -> EntryChange:
        now, self.now = self.now, at
        try:
            return work()
        finally:
            self.now = now


def _placement(n: int) -> Placement:
    nodes = tuple((f"gpu-node-{(n * 7 + k) % 10000:05}", 1) for k in range(4))
    return Placement((PodSetPlacement("main", nodes, {"nvidia.com/gpu": "h100", "cpu": "h100"}),))


def _decision(at: float) -> CycleDecision:
    return CycleDecision(
        at=at,
        revision=1,
        nodes=10_000,
        pending=700,
        running=4200,
        started=1,
        gpus=4,
        evicted=0,
        moved=0,
        waiting=699,
        reasons={"WaitingForQuota": 699},
        proof=Proof.OPTIMAL,
        seconds=0.05,
        stats={"candidates": 12},
    )


@dataclass(frozen=True)
class Counts:
    totals: dict[str, float]
    rows: dict[str, dict[str, int]]


async def counts(connection: asyncpg.Connection) -> Counts:
    await asyncio.sleep(1.1)  # sessions report their statistics once a second
    totals = {key: float(amount) for key, amount in (await connection.fetchrow(COUNTERS)).items()}
    rows = {row["name"]: dict(row) for row in await connection.fetch(ROWS)}
    return Counts(totals, rows)


async def slice_of_day(
    rate: int, minutes: int, statements: Sequence[str], console: Console
) -> None:
    per_second = rate / DAY
    with server_directory(on_disk=True) as directory:
        settings = {"shared_buffers": "512MB", "checkpoint_timeout": "15min", "max_wal_size": "4GB"}
        async with EmbeddedServer(directory, binaries=PROGRAMS, settings=settings) as server:
            await upgrade(server.url())
            connection: Any = await asyncpg.connect(server.url())
            store = await PostgresStore.connect(DatabaseSettings(server.url()))
            gangs = Gangs(store, await store.take_over("bench", 0))
            snapshot = fleet()
            facts = UsageInputs(Marker(Mirror({})), tuple, _config, lambda _: (), lambda: snapshot)
            accountant = Accountant(
                store.usage, facts, lambda: gangs.now, gangs.epoch, PlannerCache()
            )
            gangs.now = START - WAITS - RUNS
            await accountant.account()
            gangs.now = START
            await gangs.steady(per_second)
            for statement in statements:
                await connection.execute(statement)
            await accountant.account()
            gangs.now += 60.0
            await accountant.account()  # the first hours of all of them
            before, submitted_before = await counts(connection), gangs.number
            arrived = 0.0
            for second in range(minutes * 60):
                arrived += per_second
                await gangs.second(int(arrived))
                arrived -= int(arrived)
                if second % 60 == 59:
                    await accountant.account()
            after = await counts(connection)
            new = gangs.number - submitted_before
            console.print(
                table(before, after, DAY / 60 / minutes, f"{minutes} minutes, {new} gangs")
            )
            indexes = Table("index", "scans", "KiB", title="indexes")
            for row in await connection.fetch(INDEXES):
                indexes.add_row(row["name"], f"{row['scans']}", f"{row['size'] / 1024:.0f}")
            console.print(indexes)
            await store.close()
            await connection.close()


def _config() -> QueueConfig:
    return CONFIG


def table(before: Counts, after: Counts, scale: float, title: str) -> Table:
    """The difference of two counts, for a day."""
    shown = Table("for a day", "", "inserted", "updated", "of it HOT", "deleted", title=title)
    for name, amount in after.totals.items():
        spent = (amount - before.totals[name]) * scale
        text = f"{spent / 2**20:,.0f} MiB" if name == "wal" else f"{spent:,.0f}"
        shown.add_row(name, text, "", "", "", "")
    for name, row in sorted(after.rows.items()):
        was = before.rows[name]
        cells = [(row[key] - was[key]) * scale for key in ("inserted", "updated", "hot", "deleted")]
        if any(cells):
            grown = (row["size"] - was["size"]) * scale / 2**20
            shown.add_row(name, f"{grown:,.0f} MiB", *(f"{cell:,.0f}" for cell in cells))
    return shown


async def main(rate: int, minutes: list[int], statements: list[str]) -> None:
    console = Console(width=110)
    for each in minutes:
        await slice_of_day(rate, each, statements, console)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, nargs="+", default=[15])
    parser.add_argument("--rate", type=int, default=100_000, help="gangs a day")
    parser.add_argument(
        "--sql", nargs="*", default=[], help="statements before the slice, to try a setting"
    )
    asked = parser.parse_args()
    with no_unit_is_set_aside():
        asyncio.run(main(asked.rate, asked.minutes, asked.sql))
