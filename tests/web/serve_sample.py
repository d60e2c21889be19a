"""Serves the dashboard over a sample: ``python -m tests.web.serve_sample [PORT] [--small]``.

Every two seconds a gang is submitted, so that the pages have something to follow.
"""

from __future__ import annotations

import asyncio
import sys
import time
from itertools import count
from pathlib import Path

from fastapi import FastAPI

from queuectl.api.app import create_app
from queuectl.api.server import WebServer
from queuectl.control.listen_address import ListenAddress
from queuectl.db.ports import Commit
from queuectl.domain.commands import Answer
from queuectl.domain.ledger import EntryChange
from queuectl.notify.receivers_file import ReceiverList
from queuectl.telemetry.metrics import MetricsRecorder
from queuectl.web.app import add_dashboard
from tests.api.support import FixedHealth, job, live_through
from tests.api.test_subscriptions import ALL
from tests.web.sample import LARGE, NOW, SMALL, Sample, make


def dashboard(sample: Sample) -> FastAPI:
    """The API and its pages over a sample; their clock starts at the sample's time."""
    app = create_app(
        sample.store,
        FixedHealth(),
        MetricsRecorder().registry,
        sample.diagnoser,
        receivers=ReceiverList(Path("receivers.yaml"), ALL),
    )
    started = time.time()
    add_dashboard(
        app,
        sample.store,
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
    server = WebServer(dashboard(sample), ListenAddress("127.0.0.1", port))
    print(f"{server.url}/ui/", flush=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.run())
        for number in count(1):
            await asyncio.sleep(2)
            await submit(sample, number)


if __name__ == "__main__":
    ports = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    asyncio.run(serve(ports[0] if ports else 8765, make(SMALL if "--small" in sys.argv else LARGE)))
