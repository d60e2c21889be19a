"""Reads of the API at ten million rows of history: ``python -m tests.bench.bench_history_rows``.

    python -m tests.bench.bench_history_rows [--gangs 1850000] [--a-day 100000] [--directory FOLDER]

A server on a disk, with the settings of queuectl and ``shared_buffers`` of 1 GB, has a database of 18 days with 100,000 gangs a day
(:mod:`tests.bench.filled`): 11 GiB. It is removed at the end. With ``--directory``, it stays there for the next run. Each read runs
through the store of the API, as pages, the CLI, REST and CSV exports call it. The first table reads the hours of each workload, and the
second one the sums of days (:mod:`queuectl.db.usage_days`). Each read runs three times: the first and the fastest wall time are shown. CPU times, of
the server and of this process together, are the least of the three; they do not depend on the load of the machine. With ``--gangs 185000
--a-day 10000``, the same 18 days have a tenth of the rows.

Deletions of workloads and of usage run with commits of the leader and updates of the usage ledger, whose longest waits are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import asyncpg
from rich.console import Console
from rich.table import Table

from queuectl.db.embedded import EmbeddedServer
from queuectl.db.engine import DatabaseSettings
from queuectl.db.migrate import upgrade
from queuectl.db.ports import Commit
from queuectl.domain.accounting import HOUR, AccountingTerms, Amounts, Subject
from queuectl.domain.audit import AuditFilter
from queuectl.domain.budgets import Budget, BudgetScope
from queuectl.domain.commands import CommandFilter
from queuectl.domain.errors import BadInput, StoreError
from queuectl.domain.folding import Fold
from queuectl.domain.ledger import State
from queuectl.domain.queries import (
    MOST_URGENT_FIRST,
    SortKey,
    WorkloadFilter,
    WorkloadOrder,
)
from queuectl.domain.rules import Retention
from queuectl.domain.search import SearchText
from queuectl.domain.selectors import label_selector
from queuectl.domain.usage_reports import ALL_USAGE, DAY, Grouping, Period, UsageScope
from tests.bench.filled import GANGS_A_DAY, UNTIL, fill
from tests.bench.stage import cpu_of, descendants
from tests.db.histories import submitted
from tests.operations.servers import PROGRAMS
from tests.support.postgres import server_directory
from tests.support.stores import PostgresStore

GANGS: Final = 1_850_000
ROUNDS: Final = 3
BATCHES: Final = 40
TARGET: Final = 1.0
MONTH: Final = Period(UNTIL - 30 * DAY, UNTIL)
WEEK: Final = Period(UNTIL - 7 * DAY, UNTIL)
PAGE: Final = 100
SETTINGS: Final = {
    "shared_buffers": "1GB",
    "max_wal_size": "1GB",
    "autovacuum_naptime": "1d",
}

Read = Callable[[], Awaitable[object]]


def reports(store: PostgresStore) -> Iterator[tuple[str, Read]]:
    """Reports and exports of usage."""
    usage = store.usage
    for by in ("namespace", "queue", "clusterqueue", "cohort", "user", "label:project", "flavor", "price"):  # fmt: skip
        grouping = Grouping.parse(by)
        yield f"report of 30 days by {by}", lambda g=grouping: usage.report(MONTH, g)  # type: ignore[misc]  # a default binds the loop's value
    for by in ("namespace", "user"):
        grouping = Grouping.parse(by)
        yield (
            f"dashboard: usage of 30 days by {by}",
            lambda g=grouping: usage.compared(MONTH, g, ALL_USAGE, 100),  # type: ignore[misc]
        )
    mine = UsageScope(namespaces=frozenset({"team-07"}))
    of_user = UsageScope(user="user-7")
    yield (
        "dashboard: usage of 30 days of a namespace by user",
        lambda: usage.compared(MONTH, Grouping.parse("user"), mine, 100),
    )
    yield (
        "dashboard: usage of 30 days of a user by workload",
        lambda: usage.compared(MONTH, Grouping.parse("workload"), of_user, 100),
    )
    yield (
        "dashboard: usage of 30 days by workload; refused if there are more than 200,000",
        lambda: _refused(usage.compared(MONTH, Grouping.parse("workload"), ALL_USAGE, 100)),
    )
    yield (
        "report of 30 days by workload: refused, because it has too many rows",
        lambda: _refused(usage.report(MONTH, Grouping.parse("workload"))),
    )
    day = Period(UNTIL - DAY, UNTIL)
    yield "report of a day by user", lambda: usage.report(day, Grouping.parse("user"))
    yield "report of 7 days by user", lambda: usage.report(WEEK, Grouping.parse("user"))
    yield "report of 7 days by hour", lambda: usage.report(WEEK, Grouping.parse("hour"))
    yield "chart of LocalQueues over a day", lambda: usage.hours(day)
    yield "chart of LocalQueues over 7 days", lambda: usage.hours(WEEK)
    budgets = [Budget(f"b{n}", BudgetScope.NAMESPACE, f"team-{n:02}", 1000) for n in range(60)] + [
        Budget(f"u{n}", BudgetScope.USER, f"user-{n}", 1000) for n in range(300)
    ]
    yield "360 budgets of the month", lambda: usage.spent(budgets, UNTIL - 1.0)
    yield "export of recorded jobs, a page", lambda: usage.recorded(MONTH, "8", PAGE)
    yield "estimates: the last 2,000 run times", lambda: usage.past_runs(2000)


def lists(store: PostgresStore, uid: str, line: int) -> Iterator[tuple[str, Read]]:
    """Pages of lists, the history, the search and the logs."""
    finished = WorkloadFilter(states=frozenset({State.FINISHED}))
    lists: dict[str, tuple[WorkloadFilter, WorkloadOrder | None]] = {
        "all, the most urgent first": (WorkloadFilter(), MOST_URGENT_FIRST),
        "of a namespace, the most urgent first": (
            WorkloadFilter(namespace="team-07"),
            MOST_URGENT_FIRST,
        ),
        "of a user, the most urgent first": (WorkloadFilter(user="user-7"), MOST_URGENT_FIRST),
        "all by name": (WorkloadFilter(), None),
        "of a namespace by name": (WorkloadFilter(namespace="team-07"), None),
        "of a user by name": (WorkloadFilter(user="user-7"), None),
        "of a ClusterQueue, finished, by name": (
            WorkloadFilter(cluster_queue="cq-07", states=frozenset({State.FINISHED})),
            None,
        ),
        "finished by name": (finished, None),
        "of a label by name": (WorkloadFilter(labels=label_selector("project=p21")), None),
        "of a kind by name": (WorkloadFilter(kind="PyTorchJob"), None),
        "of a reason by name": (
            WorkloadFilter(states=frozenset({State.PENDING})),
            None,
        ),
        "all, the most GPUs first": (
            WorkloadFilter(),
            WorkloadOrder(SortKey.GPUS, descending=True),
        ),
        "all, the newest first": (
            WorkloadFilter(),
            WorkloadOrder(SortKey.QUEUED_AT, descending=True),
        ),
    }
    for name, (filters, order) in lists.items():
        more = (order,) if order is not None else ()
        yield (
            f"list: {name}",
            lambda f=filters, m=more: store.list_workloads(f, None, PAGE, *m),  # type: ignore[misc]
        )
    yield "history of a workload", lambda: store.newest_lines(uid, PAGE)
    yield "history of all, a page in the middle", lambda: store.history(None, line // 2, PAGE)
    yield "evictions of all", lambda: store.evictions(limit=PAGE)
    yield "evictions of a namespace", lambda: store.evictions({"team-07"}, limit=PAGE)
    yield "search: a part of many names", lambda: _search(store, "train-7")
    yield "search: a rare part of a name", lambda: _search(store, "00815")
    yield "search: no name has it", lambda: _search(store, "zebra")
    yield "search in a namespace", lambda: _search(store, "eval", frozenset({"team-07"}))
    yield "audit log, a page", lambda: store.audit.lines(AuditFilter(), PAGE)
    yield (
        "audit log of a caller",
        lambda: store.audit.lines(AuditFilter(caller="user-7"), PAGE),
    )
    yield (
        "audit log of a path without requests",
        lambda: store.audit.lines(AuditFilter(path="/api/v1/config"), PAGE),
    )
    yield "commands, a page", lambda: store.newest_commands(CommandFilter(), PAGE)
    yield "decisions, a page", lambda: store.decisions(None, PAGE)
    yield "namespaces", store.namespaces
    yield "users", lambda: store.users(None, PAGE)
    yield "counts of the queues", store.tallies
    yield "one workload with its usage", lambda: store.usage.job(uid)
    yield "ledger of a new leader", store.load
    yield "past use (fair share)", store.past_use


async def _refused(report: Awaitable[object]) -> None:
    with contextlib.suppress(BadInput):
        await report


async def _search(
    store: PostgresStore, words: str, namespaces: frozenset[str] | None = None
) -> object:
    return await store.finished_matches(SearchText(words), namespaces, 50)


@dataclass(frozen=True)
class Timed:
    """Seconds of the first run, of the fastest, and the least CPU time; the error that ended it."""

    first: float
    fastest: float
    cpu: float
    error: str


def cpu_seconds(postmaster: int) -> float:
    """CPU time of the server and of this process up to now. A process of the server states nanoseconds until it ends."""
    total = time.process_time() + cpu_of(postmaster)
    for pid in descendants(postmaster):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    return total


async def timed(read: Read, postmaster: int) -> Timed:
    """Three runs of a read, or one that takes long."""
    seconds: list[float] = []
    cpu: list[float] = []
    for _ in range(ROUNDS):
        before = cpu_seconds(postmaster)
        began = time.perf_counter()
        error = ""
        try:
            await read()
        except StoreError as failure:
            error = str(failure).rpartition(": ")[2]
        seconds.append(time.perf_counter() - began)
        cpu.append(cpu_seconds(postmaster) - before)
        if cpu[0] > 5:
            break
    return Timed(seconds[0], min(seconds), min(cpu), error)


async def measure(title: str, reads: Sequence[tuple[str, Read]], postmaster: int) -> Table:
    table = Table("read", "first ms", "fastest ms", "CPU ms", "", title=title)
    for name, read in reads:
        run = await timed(read, postmaster)
        note = run.error or ("missed" if run.cpu > TARGET else "")
        times = (f"{1000 * seconds:.0f}" for seconds in (run.first, run.fastest, run.cpu))
        table.add_row(name, *times, note)
    return table


async def sizes(connection: asyncpg.Connection) -> Table:
    table = Table("table", "rows", "table MiB", "with indexes MiB", title="the database")
    rows = await connection.fetch(
        "SELECT relname, reltuples::bigint AS rows, pg_table_size(c.oid) AS heap, pg_total_relation_size(c.oid) AS whole"
        " FROM pg_class c WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND reltuples > 0"
        " ORDER BY whole DESC LIMIT 14"
    )
    for name, number, heap, whole in rows:
        table.add_row(name, f"{number:,}", f"{heap / 2**20:.0f}", f"{whole / 2**20:.0f}")
    return table


async def add_up(store: PostgresStore, epoch: int) -> list[float]:
    """Seconds for each day. The last five hours have no sums; a leader leaves out at most four."""
    seconds: list[float] = []
    while True:
        began = time.perf_counter()
        now = UNTIL - 1.5 * HOUR
        if not await store.usage.add_up(now, UNTIL - 400.0 * DAY, epoch=epoch):
            return seconds
        seconds.append(time.perf_counter() - began)


async def analyze(url: str) -> None:
    """As autovacuum does after a while."""
    connection = await asyncpg.connect(url)
    await connection.execute(
        "VACUUM (ANALYZE) usage_days, usage_queue_days, usage_queues, usage_spanning"
    )
    await connection.close()


Seconds = list[float]


@contextlib.asynccontextmanager
async def repeated(write: Callable[[int], Awaitable[None]]) -> AsyncIterator[Seconds]:
    """Seconds that each of many writes took, one after the other with pauses of 20 ms."""
    seconds: Seconds = []

    async def always() -> None:
        for number in count():
            began = time.perf_counter()
            await write(number)
            seconds.append(time.perf_counter() - began)
            await asyncio.sleep(0.02)

    task = asyncio.create_task(always())
    yield seconds
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def deletions(store: PostgresStore, epoch: int, days: float, batches: int) -> list[Table]:
    """Deletions of the oldest workloads and of the oldest usage, in batches."""
    retention = Retention(after_finished=DAY * days)

    async def commit(number: int) -> None:
        change = submitted(f"pruning-{time.time_ns()}-{number}")
        await store.commit(Commit([change]), epoch=epoch, cycle=1)

    async def update(number: int) -> None:
        """An update of the usage ledger inserts a row of the newest hour."""
        over = (await store.usage.progress()).until
        until = (over or float(UNTIL)) + 0.001
        fold = Fold(over or until, until, AccountingTerms({}, {}))
        name = f"pruning-{time.time_ns()}-{number}"
        subject = Subject(name, "Job", "team-07", name, "queue-1", "cq-07")
        hour = int(until) // HOUR * HOUR
        fold.hours[hour, fold.accounts.of(subject, ""), "h100", ""] = Amounts(
            allocated=1, unknown=1
        )
        await store.usage.keep(fold, over=over, until=until, marks=(), epoch=epoch, free={})

    async def measured(what: str, delete: Callable[[], Awaitable[int]]) -> Table:
        async with repeated(commit) as commits, repeated(update) as updates:
            await asyncio.sleep(5.0)
            alone = {"commit": list(commits), "update of usage": list(updates)}
            commits.clear()
            updates.clear()
            deleted = 0
            times: Seconds = []
            for _ in range(batches):
                began = time.perf_counter()
                deleted += await delete()
                times.append(time.perf_counter() - began)
                await asyncio.sleep(0.05)
        rows = {f"{name}, without deletions": seconds for name, seconds in alone.items()}
        rows |= {"commit": commits, "update of usage": updates, "batch of deletions": times}
        table = Table(
            "", "median ms", "longest ms", title=f"deletion of {deleted:,} rows of {what}"
        )
        for name, seconds in rows.items():
            figures = (statistics.median(seconds), max(seconds)) if seconds else ()
            table.add_row(name, *(f"{1000 * one:.0f}" for one in figures))
        return table

    return [
        await measured("workloads", lambda: store.prune(retention, float(UNTIL), epoch=epoch)),
        await measured("usage", lambda: store.usage.prune(UNTIL - DAY, epoch=epoch)),
    ]


async def run(directory: Path, gangs: int, a_day: int, only: str, batches: int) -> None:
    async with EmbeddedServer(
        directory, binaries=PROGRAMS, durable=False, settings=SETTINGS, timeout=600.0
    ) as server:
        await upgrade(server.url())
        connection: Any = await asyncpg.connect(server.url(), command_timeout=7200)
        if not await connection.fetchval("SELECT EXISTS (SELECT FROM history)"):
            await fill(connection, gangs, a_day)
        await connection.execute("DELETE FROM usage_summed")
        console = Console(width=110)
        console.print(await sizes(connection))
        uid = await connection.fetchval("SELECT uid FROM history WHERE id > 100000 LIMIT 1")
        line = await connection.fetchval("SELECT max(id) FROM history")
        await connection.close()
        settings = DatabaseSettings(server.url())
        store = await PostgresStore.connect(settings)
        epoch = await store.take_over("bench", 0)
        postmaster = server.pid
        if postmaster is None:
            raise RuntimeError("the server has ended")
        load = os.getloadavg()[0]
        asked = [(n, r) for n, r in lists(store, uid, line) if only in n]
        console.print(await measure(f"lists and logs; load average {load:.0f}", asked, postmaster))
        asked = [(n, r) for n, r in reports(store) if only in n]
        console.print(await measure("reports from the hours of each workload", asked, postmaster))
        patient = replace(settings, statement_timeout=600.0, answer_timeout=600.0)
        adding = await PostgresStore.connect(patient)
        seconds = await add_up(adding, epoch)
        await adding.close()
        if seconds:
            await analyze(server.url())
            print(f"added up {len(seconds)} days in {max(seconds):.1f} s at most for a day")
        console.print(await measure("reports with the sums of days", asked, postmaster))
        if not only:
            days = gangs / a_day - 1.0
            for table in await deletions(store, epoch, days, batches):
                console.print(table)
        await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gangs", type=int, default=GANGS)
    parser.add_argument("--a-day", type=int, default=GANGS_A_DAY)
    parser.add_argument("--batches", type=int, default=BATCHES, help="of each kind of deletion")
    parser.add_argument("--directory", type=Path, help="keep the database here")
    parser.add_argument("--only", default="", help="reads whose names contain this")
    asked = parser.parse_args()
    if asked.directory is not None:
        asked.directory.mkdir(mode=0o755, exist_ok=True)
        asyncio.run(run(asked.directory, asked.gangs, asked.a_day, asked.only, asked.batches))
        return
    with server_directory(on_disk=True) as directory:
        asyncio.run(run(directory, asked.gangs, asked.a_day, asked.only, asked.batches))


if __name__ == "__main__":
    main()
