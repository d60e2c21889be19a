"""CPU, memory and disk space of queuectl and its Postgres, for clusters of several sizes: docs/how-to/sizing.md.

    python -m tests.bench.bench_sizing [NODES:RUNNING:PENDING]...

One control plane for each size, with KWOK nodes of 8 GPUs. A leader and a standby use a Postgres with fsync, on a disk. Gangs have
two pods of 4 GPUs. Three phases of each size are measured: no change, a stream of short gangs, and readers of the REST API at the standby.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import asyncpg
import httpx2

from queuectl.db.embedded import EmbeddedServer
from queuectl.demo import scenario as m
from queuectl.demo.controller import ControllerProcess
from queuectl.demo.scenario import PodSetManifest
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.client import wait_until
from tests.bench.bench_system import SPACE, print_table
from tests.bench.stage import (
    BLOCK,
    RACK,
    Stage,
    _status,
    cpu_of,
    descendants,
    stage,
)
from tests.operations.servers import PROGRAMS
from tests.support.controllers import CheckedController
from tests.support.postgres import server_directory

SIZES: Final = ("100:80:100", "300:250:1000", "1000:800:2000")
QUIET_SECONDS: Final = 30.0
STREAM_SECONDS: Final = 45.0
READ_SECONDS: Final = 15.0
STREAM_PER_SECOND: Final = 2
GANG: Final = PodSetManifest(2, gpus=4)
SQL: Final = """
    SELECT pg_database_size(current_database()), wal_bytes::float8, wal_sync,
      (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database())
    FROM pg_stat_wal
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at one time: CPU in seconds, sizes in bytes."""

    at: float
    leader: float
    standby: float
    postgres: float
    size: int
    wal: float
    syncs: int
    commits: int


@dataclass
class Rig:
    """A cluster of one size."""

    play: Stage
    standby: ControllerProcess
    server: EmbeddedServer

    def read(self) -> Reading:
        assert self.play.controller is not None
        assert self.server.pid is not None
        time.sleep(1.1)  # sessions report their statistics once a second
        size, wal, syncs, commits = asyncio.run(self._asked())
        family = [self.server.pid, *descendants(self.server.pid)]
        return Reading(
            time.monotonic(),
            cpu_of(self.play.controller.pid),
            cpu_of(self.standby.pid),
            sum(cpu_of(pid) for pid in family),
            size,
            wal,
            syncs,
            commits,
        )

    async def _asked(self) -> tuple[int, float, int, int]:
        connection = await asyncpg.connect(self.server.url())
        try:
            row = await connection.fetchrow(SQL)
        finally:
            await connection.close()
        return row[0], row[1], row[2], row[3]

    def memory(self) -> tuple[float, float, float]:
        """Resident MiB of the leader and the standby, and private MiB of Postgres."""
        assert self.play.controller is not None
        assert self.server.pid is not None
        family = [self.server.pid, *descendants(self.server.pid)]
        return (
            _status(self.play.controller.pid, "VmRSS"),
            _status(self.standby.pid, "VmRSS"),
            sum(_status(pid, "RssAnon") for pid in family),
        )

    def measured(self, work: Callable[[], None]) -> tuple[Reading, Reading]:
        before = self.read()
        work()
        return before, self.read()


@contextmanager
def rig(nodes: int) -> Iterator[Rig]:
    shape = NodeSpec(blocks=1, racks_per_block=max(1, nodes // 10), hosts_per_rack=10)
    queues = [
        m.topology("gpus", BLOCK, RACK),
        m.flavor("gpu", topology="gpus"),
        m.cluster_queue("all", "gpu", {"nvidia.com/gpu": 8 * nodes, "cpu": "1M"}),
        m.cluster_queue("none", "gpu", {"nvidia.com/gpu": 0, "cpu": "1M"}),
        m.local_queue(SPACE, "all", "all"),
        m.local_queue(SPACE, "none", "none"),
    ]
    with server_directory(on_disk=True) as directory:
        server = EmbeddedServer(directory, binaries=PROGRAMS)
        asyncio.run(server.start())
        settings = {"QUEUECTL_DATABASE_URL": server.url()}
        try:
            with stage(shape, queues, [SPACE], settings) as play:
                standby = CheckedController.start(play.cluster, settings, replica="b")
                try:
                    standby.wait_ready()
                    yield Rig(play, standby, server)
                finally:
                    standby.stop()
        finally:
            asyncio.run(server.stop())


def settled(found: Rig, running: int, pending: int) -> None:
    """Submit the gangs that stay, and wait until they run or are pending."""
    rest = found.play.rest
    assert rest is not None
    found.play.submit(*(m.job(f"run-{i}", SPACE, "all", GANG) for i in range(running)))
    found.play.submit(*(m.job(f"wait-{i}", SPACE, "none", GANG) for i in range(pending)))

    def there() -> bool:
        states = [one["state"] for one in rest.workloads().values()]
        return states.count("Running") >= running and states.count("Pending") >= pending

    wait_until(there, "all gangs settled", 1800)
    time.sleep(20)  # status annotations and Events are published at a limited rate


def stream(found: Rig) -> int:
    """Submit short gangs at a rate, and wait until they have ended. Returns their number."""
    count = int(STREAM_SECONDS * STREAM_PER_SECOND)
    began = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, began + number / STREAM_PER_SECOND - time.monotonic()))
        found.play.submit(m.job(f"short-{number}", SPACE, "all", GANG, seconds=5))
    found.play.wait_for_jobs(count, 300)
    return count


def readers(found: Rig) -> int:
    """Read pages of 100 workloads at the standby, one after the other. Returns the number of answers."""
    answers, began = 0, time.monotonic()
    with httpx2.Client(base_url=found.standby.api, trust_env=False, timeout=30) as client:
        while time.monotonic() - began < READ_SECONDS:
            client.get("/api/v1/workloads?limit=100").raise_for_status()
            answers += 1
            time.sleep(0.05)
    return answers


def one_size(nodes: int, running: int, pending: int) -> tuple[str, ...]:
    """The row of one size."""
    with rig(nodes) as found:
        empty = found.read()
        settled(found, running, pending)
        loaded = found.read()
        quiet = found.measured(lambda: time.sleep(QUIET_SECONDS))
        counts: list[int] = []
        busy = found.measured(lambda: counts.append(stream(found)))
        reads = found.measured(lambda: counts.append(readers(found)))
        leader, standby, postgres = found.memory()
    gangs, answers = counts
    gang_bytes = (loaded.size - empty.size) / (running + pending)

    def share(pair: tuple[Reading, Reading], who: str) -> str:
        spent = getattr(pair[1], who) - getattr(pair[0], who)
        return f"{1000 * spent / (pair[1].at - pair[0].at):.0f}"

    def each(pair: tuple[Reading, Reading], what: str, count: int, scale: float = 1.0) -> str:
        return f"{scale * (getattr(pair[1], what) - getattr(pair[0], what)) / count:.1f}"

    return (
        f"{nodes} / {running} / {pending}",
        *(f"{value:.0f}" for value in (leader, standby, postgres)),
        *(share(quiet, who) for who in ("leader", "standby", "postgres")),
        *(share(busy, who) for who in ("leader", "standby", "postgres")),
        each(busy, "commits", gangs),
        each(busy, "syncs", gangs),
        each(busy, "wal", gangs, 1 / 1024),
        f"{gang_bytes / 1024:.1f}",
        each(reads, "standby", answers, 1000),
    )


TITLES: Final = (
    "nodes / running / pending",
    "leader, MiB",
    "standby, MiB",
    "Postgres, MiB",
    "leader, mCPU, quiet",
    "standby, mCPU, quiet",
    "Postgres, mCPU, quiet",
    "leader, mCPU, stream",
    "standby, mCPU, stream",
    "Postgres, mCPU, stream",
    "transactions per gang",
    "WAL syncs per gang",
    "WAL per gang, KiB",
    "database per gang, KiB",
    "standby CPU per page, ms",
)


def main() -> None:
    columns: list[tuple[str, ...]] = [TITLES]
    for size in sys.argv[1:] or SIZES:
        nodes, running, pending = map(int, size.split(":"))
        began = time.monotonic()
        columns.append(one_size(nodes, running, pending))
        print(f"  {size}: {time.monotonic() - began:.0f} s", flush=True)
    head, *rows = zip(*columns, strict=True)
    print_table(head, *rows)


if __name__ == "__main__":
    main()
