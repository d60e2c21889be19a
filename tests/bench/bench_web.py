"""What pages cost on the server: ``uv run python -m tests.bench.bench_web``.

A durable embedded server (fsync on) holds 10,000 gangs that wait; the cluster has 5,000 nodes with gangs on nine tenths of
them. Each page is asked for in the same process, without a network. Medians over the rounds; the yardstick of each is one
page of the REST API's own listing, in the same run.
"""

from __future__ import annotations

import asyncio
import statistics
import time

import asyncpg
import httpx2
from rich.console import Console
from rich.table import Table

from queuectl.api.app import create_app
from queuectl.db.embedded import EmbeddedServer
from queuectl.db.engine import DatabaseSettings
from queuectl.db.migrate import upgrade
from queuectl.db.store import PostgresStore
from queuectl.domain.ledger import Change, Note
from queuectl.telemetry.metrics import Metrics
from queuectl.web.app import add_dashboard
from tests.api.support import FixedHealth
from tests.support.postgres import server_directory
from tests.web.sample import LARGE, NOW, Sample, make

ROUNDS = 7
BATCH = 1000
YARDSTICK = "/api/v1/workloads?limit=100"
PAGES = (
    YARDSTICK,
    "/ui/",
    "/ui/queues",
    "/ui/queues/language",
    "/ui/workloads",
    "/ui/workloads/run-00001",
    "/ui/nodes",
    "/ui/nodes/data",
    "/ui/nodes?q=rack-03",
    "/ui/evictions",
)


async def fill(store: PostgresStore, sample: Sample) -> None:
    """Put the sample into the database."""
    epoch = await store.take_over("bench", 0)
    for document in sample.database.documents.values():
        await store.put_config(document.document)
    entries = list(sample.database.entries.values())
    for start in range(0, len(entries), BATCH):
        changes = [
            Change(None, entry, entry.since, Note(str(entry.reason.code), None, entry.state, entry.reason))
            for entry in entries[start : start + BATCH]
        ]  # fmt: skip
        await store.commit(changes, epoch=epoch, revision=None, cycle=1 + start)


async def analyze(url: str) -> None:
    """What autovacuum does within a minute of such a rush."""
    connection = await asyncpg.connect(url)
    await connection.execute("ANALYZE")
    await connection.close()


async def measure(client: httpx2.AsyncClient, page: str) -> tuple[float, int]:
    """Median milliseconds, and bytes."""
    times, size = [], 0
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        answer = await client.get(page)
        times.append((time.perf_counter() - begun) * 1000)
        answer.raise_for_status()
        size = len(answer.content)
    return statistics.median(times), size


async def run(url: str) -> Table:
    """Fill a database and ask for every page."""
    await upgrade(url)
    store = await PostgresStore.connect(DatabaseSettings(url))
    sample = make(LARGE)
    await fill(store, sample)
    await analyze(url)
    app = create_app(store, FixedHealth(), Metrics().registry, sample.diagnoser)
    add_dashboard(app, store, app.state.guard, sample.scene, sample.diagnoser, clock=lambda: NOW)
    table = Table("page", "ms", "of the listing", "kB")
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        found = {page: await measure(client, page) for page in PAGES}
    for page, (milliseconds, size) in found.items():
        ratio = milliseconds / found[YARDSTICK][0]
        table.add_row(page, f"{milliseconds:.0f}", f"{ratio:.1f}", f"{size / 1000:.0f}")
    await store.close()
    return table


async def main() -> None:
    """Measure, and print a table."""
    with server_directory(on_disk=True) as directory:
        async with EmbeddedServer(directory) as server:
            Console().print(await run(server.url()))


if __name__ == "__main__":
    asyncio.run(main())
