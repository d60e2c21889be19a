"""Serves the dashboard over a sample: ``python -m tests.web.serve_sample [PORT] [--small] [--postgres]``.

Every two seconds a gang is submitted, so that the pages have something to follow. With ``--postgres``, the sample is in a real database
and does not change.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from itertools import count
from pathlib import Path

from fastapi import FastAPI

from queuectl.api.app import create_app
from queuectl.api.server import ListenAddress, WebServer
from queuectl.db.ports import ApiStore, Commit
from queuectl.domain.commands import Answer
from queuectl.domain.ledger import EntryChange
from queuectl.notify.receivers_file import ReceiverList
from queuectl.telemetry.metrics import MetricsRecorder
from queuectl.web.app import add_dashboard
from tests.api.support import FixedHealth, job, live_through
from tests.api.test_subscriptions import ALL
from tests.support.postgres import running_postgres
from tests.web.sample import LARGE, NOW, SMALL, Sample, make
from tests.web.stored import stored


def dashboard(sample: Sample, store: ApiStore | None = None) -> FastAPI:
    """The API and its pages over a sample, whose records are in ``store``; their clock starts at the sample's time."""
    store = store or sample.store
    app = create_app(
        store,
        FixedHealth(),
        MetricsRecorder().registry,
        sample.diagnoser,
        receivers=ReceiverList(Path("receivers.yaml"), ALL),
    )
    started = time.time()
    add_dashboard(
        app,
        store,
        app.state.guard,
        sample.cluster_reader,
        sample.diagnoser,
        clock=lambda: NOW + time.time() - started,
    )
    return app


async def submit(sample: Sample, number: int) -> None:
    """One more gang in the queue of team ``vision``."""
    record = job(f"new-{number:04}", at=NOW + number, namespace="team-vision")
    changes = live_through(record)
    await sample.store.commit(Commit(changes), epoch=sample.database.epoch, cycle=100_000 + number)


async def answer(sample: Sample, outcome: str, *changes: EntryChange) -> None:
    """Answer the newest command, as the leader does."""
    (number, _) = max(sample.database.commands.items())
    await sample.store.commit(
        Commit(changes, answers=[Answer(number, outcome)]),
        epoch=sample.database.epoch,
        cycle=number,
    )


async def serve(port: int, sample: Sample) -> None:
    """Serve a sample to which gangs are submitted."""
    async with asyncio.TaskGroup() as group:
        group.create_task(run(port, dashboard(sample)))
        for number in count(1):
            await asyncio.sleep(2)
            await submit(sample, number)


async def serve_stored(port: int, sample: Sample) -> None:
    """Serve a sample from its own database."""
    async with running_postgres() as postgres:
        store = await stored(sample.database, postgres.server.url(await postgres.fresh()))
        try:
            await run(port, dashboard(sample, store))
        finally:
            await store.close()


async def run(port: int, app: FastAPI) -> None:
    server = WebServer(app, ListenAddress("127.0.0.1", port))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
    print(f"{server.url}/ui/", flush=True)
    await server.run()


if __name__ == "__main__":
    ports = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    serving = serve_stored if "--postgres" in sys.argv else serve
    made = make(SMALL if "--small" in sys.argv else LARGE)
    asyncio.run(serving(ports[0] if ports else 8765, made))
