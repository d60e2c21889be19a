"""The supervisor of ``queuectl serve`` on a real Postgres and the cluster double, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from queuectl.control.careful import RunChild
from queuectl.control.progress import SteadyClock
from queuectl.control.settings import Settings
from queuectl.control.supervisor import Supervisor
from queuectl.db.engine import DatabaseSettings
from queuectl.objects.kinds import KINDS
from queuectl.telemetry.metrics import MetricsRecorder
from tests.doubles.cluster import FakeCluster
from tests.support.stores import PostgresStore


@asynccontextmanager
async def running(
    url: str,
    cluster: FakeCluster,
    settings: Settings | None = None,
    run_child: RunChild | None = None,
) -> AsyncIterator[Supervisor]:
    """A supervisor that runs until the end of the block and is then shut down."""
    store = await PostgresStore.connect(DatabaseSettings(url))
    supervisor = Supervisor(
        store=store,
        cluster=cluster,
        metrics=MetricsRecorder(),
        settings=settings or Settings(),
        clock=SteadyClock(),
        kinds=KINDS,
        run_child=run_child,
    )
    cluster.containment = supervisor.containment
    stop = asyncio.Event()
    task = asyncio.create_task(supervisor.run(stop))
    try:
        yield supervisor
    finally:
        stop.set()
        await task
        await store.close()


async def until(done: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    """Check the condition every 10 ms."""
    for _ in range(3000):
        result = done()
        if result if isinstance(result, bool) else await result:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"never: {what}")
