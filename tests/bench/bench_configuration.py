"""The cost of applying thousands of queues one by one: ``python -m tests.bench.bench_configuration``.

A process each: one answers PUTs as the API does and writes to a real Postgres, the other leads and follows the
configuration, on a cluster double on which nothing waits. Queues are put one after the other, as a client that applies a
repository does. Figures are CPU seconds of each process, and milliseconds of CPU for each PUT of the last tenth: what
grows with the number of queues shows there. Reads: how often the leader took the configuration in.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import structlog

from queuectl.api.app import create_app
from queuectl.control.leader.loop import Loop
from queuectl.control.progress import SteadyClock
from queuectl.control.settings import Settings
from queuectl.control.supervisor import Supervisor
from queuectl.db.embedded import EmbeddedServer
from queuectl.db.engine import DatabaseSettings
from queuectl.db.migrate import upgrade
from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document
from queuectl.objects.kinds import KINDS
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.support import FixedHealth
from tests.doubles.cluster import FakeCluster
from tests.support.contained import no_unit_is_set_aside
from tests.support.postgres import server_directory
from tests.support.stores import PostgresStore

QUEUES = 1_000
PUTS = tuple[str, Document]


def documents(queues: int) -> list[PUTS]:
    """Paths and documents, in the order in which a careful admin applies them."""
    base = "/api/v1"
    made: list[PUTS] = [(f"{base}/resourceflavors/gpu", m.flavor("gpu"))]
    for number in range(queues):
        name = f"team-{number}"
        queue = m.cluster_queue(name, "gpu", {"nvidia.com/gpu": 8, "cpu": 64})
        queue["spec"]["cohortName"] = f"cohort-{number % 10}"
        made.append((f"{base}/clusterqueues/{name}", queue))
    for number in range(queues):
        name = f"team-{number}"
        local = m.local_queue(name, "main", name)
        made.append((f"{base}/namespaces/{name}/localqueues/main", local))
    return made


async def put_all(url: str, queues: int) -> tuple[float, float]:
    """CPU seconds in all, and milliseconds for each of the last tenth."""
    store = await PostgresStore.connect(DatabaseSettings(url))
    app = create_app(store, FixedHealth(), MetricsRecorder().registry)
    puts = documents(queues)
    tail = len(puts) // 10
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1:8000"
    ) as client:
        began = late = time.process_time()
        for number, (path, document) in enumerate(puts):
            if number == len(puts) - tail:
                late = time.process_time()
            answer = await client.put(path, json=document)
            assert answer.status_code == 201, answer.text
            assert answer.json()["warnings"] == []
        ended = time.process_time()
    await store.close()
    return ended - began, (ended - late) * 1e3 / tail


class CountingSupervisor(Supervisor):
    """Counts how often the configuration was taken in."""

    reads = 0

    async def _lead_until_lost(self, loop: Loop, epoch: int) -> None:
        taken = loop.configuration_changed

        async def counted() -> None:
            self.reads += 1
            await taken()

        loop.configuration_changed = counted  # type: ignore[method-assign]
        await super()._lead_until_lost(loop, epoch)


async def follow(url: str) -> None:
    """Lead until the configuration has the revision of an input line; then print the cost as JSON."""
    store = await PostgresStore.connect(DatabaseSettings(url))
    supervisor = CountingSupervisor(
        store=store,
        cluster=FakeCluster([]),
        metrics=MetricsRecorder(),
        settings=Settings(),
        clock=SteadyClock(),
        kinds=KINDS,
    )
    stop = asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop))
    while supervisor._leading is None:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    await asyncio.sleep(1.0)
    began = time.process_time()
    print("leading", flush=True)
    revision = int(await asyncio.to_thread(sys.stdin.readline))
    while supervisor._leading.leader_state.config.revision < revision:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    said = {"cpu": time.process_time() - began, "reads": supervisor.reads}
    print(json.dumps(said), flush=True)
    stop.set()
    await running
    await store.close()


@asynccontextmanager
async def database() -> AsyncIterator[str]:
    """URL of a fresh one."""
    with server_directory() as directory:
        async with EmbeddedServer(directory) as server:
            await upgrade(server.url())
            yield server.url()


async def measure(queues: int) -> None:
    """Print one line."""
    async with database() as url:
        leader = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.bench.bench_configuration", "--follow", url,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert leader.stdin is not None
        assert leader.stdout is not None
        assert await leader.stdout.readline() == b"leading\n", "the leader ended"
        api, late = await put_all(url, queues)
        store = await PostgresStore.connect(DatabaseSettings(url))
        revision, _ = await store.configuration()
        await store.close()
        leader.stdin.write(f"{revision}\n".encode())
        said = json.loads(await leader.stdout.readline())
        if await leader.wait():
            raise RuntimeError("the leader failed")
    print(
        f"| {queues:,} | {api:.1f} | {late:.1f} | {said['cpu']:.1f} | {said['reads']:,} |",
        flush=True,
    )


async def main(sizes: list[int]) -> None:
    print(
        "| ClusterQueues, LocalQueues each | API CPU s | of the last tenth, ms each | leader CPU s | reads |"
    )
    print("| ---: | ---: | ---: | ---: | ---: |", flush=True)
    for queues in sizes:
        await measure(queues)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=[QUEUES // 4, QUEUES])
    parser.add_argument("--follow", metavar="URL")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with no_unit_is_set_aside():
        asyncio.run(follow(asked.follow) if asked.follow else main(asked.sizes))
