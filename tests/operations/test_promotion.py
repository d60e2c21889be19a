"""The primary of the database is killed under load, and its replica is promoted: nothing is lost, and nothing starts twice.

queuectl runs in this process, on a double of the cluster, with the URL that docs/how-to/database.md names. The servers are real.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from queuectl.control.progress import SteadyClock
from queuectl.control.settings import Settings
from queuectl.control.supervisor import Supervisor
from queuectl.db.embedded import PORT, USER
from queuectl.db.engine import DatabaseSettings
from queuectl.db.migrate import upgrade
from queuectl.domain.ledger import State, violations
from queuectl.domain.queries import HistoryLine
from queuectl.objects.kinds import KINDS
from queuectl.telemetry.metrics import MetricsRecorder
from tests.control.rig import Rig, configuration, gang, live, nodes
from tests.doubles.cluster import FakeCluster
from tests.operations.servers import as_server, own_server, program, socket_url
from tests.support.postgres import patiently
from tests.support.stores import PostgresStore

pytestmark = [pytest.mark.operations, pytest.mark.timeout(600)]

MACHINES = 16
GANGS = 80
PODS = 2
STEPS = 5
PRIMARY = "wal_level = replica\nmax_wal_senders = 4\nwal_keep_size = 256MB\n"
REPLICA_PORT = PORT + 1


@dataclass
class Servers:
    """A primary and its streaming replica; their sockets are in one folder."""

    folder: Path

    @property
    def url(self) -> str:
        """Of whichever server accepts writes."""
        hosts = f"host={self.folder},{self.folder}&port={PORT},{REPLICA_PORT}"
        return f"postgresql://{USER}@/postgres?{hosts}"

    def replicate(self) -> None:
        """Copy the primary, and start the copy as its replica."""
        data = str(self.folder / "replica")
        connection = f"host={self.folder} port={PORT} user={USER} application_name=replica"
        copy = ["-d", connection, "-D", data, "-R", "-X", "stream", "-c", "fast"]
        as_server([program("pg_basebackup"), *copy])
        options = ["-l", str(self.folder / "replica-log"), "-o", f"-p {REPLICA_PORT}", "-w"]
        as_server([program("pg_ctl"), "-D", data, *options, "start"])

    def promote(self) -> None:
        as_server([program("pg_ctl"), "-D", str(self.folder / "replica"), "-w", "promote"])

    def kill_primary(self) -> None:
        """SIGKILL to the server and all its sessions, as if the machine were lost."""
        lock = self.folder / "data" / "postmaster.pid"
        postmaster = int(lock.read_text().split()[0])
        lock.unlink()  # the fixture stops the servers that have one
        os.kill(postmaster, signal.SIGSTOP)  # it would start its processes again
        for pid in [*children(postmaster), postmaster]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def execute(self, port: int, *statements: str) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(socket_url(self.folder, port=port))
        try:
            rows: list[asyncpg.Record] = []
            for statement in statements:
                rows = await connection.fetch(statement)
            return rows
        finally:
            await connection.close()

    async def until(self, port: int, condition: str) -> None:
        while not (await self.execute(port, f"SELECT {condition}"))[0][0]:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)


def children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(status.parent.name))
    return found


@dataclass
class Load:
    """Gangs that arrive, run and end, and the invariants of the cluster at each step."""

    cluster: FakeCluster
    world: Rig
    uids: list[str] = field(default_factory=list)
    whole: Counter[str] = field(default_factory=Counter)

    def step(self) -> None:
        """Advance the cluster. A gang ends after some steps in which it ran whole."""
        self.cluster.step()
        self.world.check()
        for uid in self.uids:
            if self.whole[uid] < STEPS:
                self.whole[uid] += len(live(self.cluster.pods_of(uid))) == PODS
                if self.whole[uid] == STEPS:
                    self.cluster.finish(uid)

    async def arrive(self, count: int) -> None:
        for _ in range(count):
            name = f"gang-{len(self.uids):03}"
            self.uids.append(self.cluster.submit(gang("Job", name, PODS)))
            for _ in range(3):
                await asyncio.sleep(0.01)
                self.step()

    async def until_finished(self, store: PostgresStore) -> None:
        """Wait until each gang has ended, in the cluster and in the ledger. A gang that ended before a new leader saw it has no entry there."""
        while True:
            for _ in range(10):
                self.step()
                await asyncio.sleep(0.02)
            entries = await patiently(lambda: store.get_workloads(self.uids))
            ran = all(self.whole[uid] == STEPS for uid in self.uids)
            if ran and all(entry.state is State.FINISHED for entry in entries):
                return


@pytest.fixture
def servers() -> Iterator[Servers]:
    with own_server(PRIMARY) as folder:
        made = Servers(folder)
        asyncio.run(upgrade(socket_url(folder)))
        made.replicate()
        yield made


@asynccontextmanager
async def controller(servers: Servers) -> AsyncIterator[tuple[Load, PostgresStore]]:
    """A replica of queuectl that leads, and the load. Its lease does not expire on a busy machine."""
    cluster = FakeCluster(nodes(MACHINES), clock=time.time)
    settings = DatabaseSettings(servers.url, connect_timeout=30.0)
    store, reader = [await PostgresStore.connect(settings) for _ in range(2)]
    supervisor = Supervisor(
        store=store,
        cluster=cluster,
        metrics=MetricsRecorder(),
        settings=Settings(
            holder="a", lease_duration=120.0, lease_renew=1.0, events_per_second=2000.0
        ),
        clock=SteadyClock(),
        kinds=KINDS,
    )
    for document in configuration(MACHINES * 8):
        await reader.put_config(document)
    stop = asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop))
    try:
        yield Load(cluster, Rig(cluster, reader, reader)), reader
    finally:
        stop.set()
        await running
        for one in (store, reader):
            await one.close()


async def all_lines(store: PostgresStore) -> list[HistoryLine]:
    lines: list[HistoryLine] = []
    while page := await patiently(partial(store.history, None, lines[-1].id if lines else 0, 500)):
        lines += page
    return lines


def starts(lines: list[HistoryLine]) -> Counter[tuple[str, int]]:
    return Counter(
        (line.uid, line.attempt)
        for line in lines
        if line.to_state is State.STARTING and line.from_state is not State.STARTING
    )


async def test_a_synchronous_replica_that_is_promoted_has_lost_nothing(servers: Servers) -> None:
    await servers.execute(
        PORT,
        "ALTER SYSTEM SET synchronous_standby_names = 'replica'",
        "SELECT pg_reload_conf()",
    )
    await servers.until(PORT, "bool_or(sync_state = 'sync') FROM pg_stat_replication")
    async with controller(servers) as (load, store):
        await load.arrive(GANGS // 2)
        known: Any = await all_lines(store)
        servers.kill_primary()
        await load.arrive(GANGS // 4)
        servers.promote()
        await load.arrive(GANGS // 4)
        await load.until_finished(store)
        lines = await all_lines(store)
        entries = await store.get_workloads(load.uids)
    assert lines[: len(known)] == known, "a line that was committed is lost"
    assert max(starts(lines).values()) == 1
    assert {entry.uid for entry in entries} == set(load.uids)
    assert {(entry.state, entry.attempt) for entry in entries} == {(State.FINISHED, 1)}
    assert [violations(entry) for entry in entries] == [[]] * len(entries)


async def test_an_asynchronous_replica_that_lacks_commits_starts_no_gang_twice(
    servers: Servers,
) -> None:
    async with controller(servers) as (load, store):
        await load.arrive(GANGS // 4)
        await servers.until(
            PORT, "bool_and(replay_lsn = pg_current_wal_lsn()) FROM pg_stat_replication"
        )
        await servers.execute(
            REPLICA_PORT, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"
        )
        await load.arrive(GANGS // 4)
        known = await all_lines(store)
        servers.kill_primary()
        servers.promote()
        after = await all_lines(store)
        assert len(after) < len(known), "the replica has all commits"
        await load.arrive(GANGS // 2)
        await load.until_finished(store)
        lines = await all_lines(store)
        entries = await store.get_workloads(load.uids)
    assert max(starts(lines).values()) == 1
    assert {entry.state for entry in entries} == {State.FINISHED}
    assert [violations(entry) for entry in entries] == [[]] * len(entries)
