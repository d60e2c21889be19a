"""The REST API on a real port: in its own thread, as a command line talks to it, or on the event loop of a test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from structlog.testing import capture_logs

from queuectl.api.app import create_app
from queuectl.api.auth.layers import AuthenticationLayer
from queuectl.api.ports import ClusterReader, Diagnoser
from queuectl.api.server import Certificate, WebServer
from queuectl.control.listen_address import ListenAddress
from queuectl.notify.receivers_file import ReceiverList
from queuectl.objects.configuration.owners import Owner
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.support import FixedHealth
from tests.doubles.store import MemoryStore


class NotifyingStore(MemoryStore):
    """A store that also notifies of changes from another thread."""

    async def history_grown(self, after: int, *, poll: float = 0.01) -> None:
        while await self.newest_line() <= after:  # noqa: ASYNC110 - an Event is of one thread
            await asyncio.sleep(poll)


@contextmanager
def serving(
    store: MemoryStore,
    diagnoser: Diagnoser | None = None,
    *,
    cluster_reader: ClusterReader | None = None,
    authenticated: AuthenticationLayer | None = None,
    certificate: Certificate | None = None,
    receivers: ReceiverList | None = None,
    owner: Owner = Owner.DATABASE,
) -> Iterator[str]:
    """The address of an API over this store, until the block ends."""
    app = create_app(
        store,
        FixedHealth(),
        MetricsRecorder().registry,
        diagnoser,
        cluster_reader=cluster_reader,
        authenticated=authenticated,
        receivers=receivers,
        owner=owner,
    )
    server = WebServer(app, ListenAddress("127.0.0.1", 0), certificate)
    thread = threading.Thread(target=lambda: asyncio.run(server.run()), name="api")
    thread.start()
    try:
        with capture_logs():  # the server's log lines do not mix with those of its client
            yield server.url
    finally:
        server.stop()
        thread.join()


@asynccontextmanager
async def running(server: WebServer) -> AsyncIterator[WebServer]:
    """The server on this event loop, until the block ends."""
    serves = asyncio.create_task(server.run())
    try:
        yield server
    finally:
        server.stop()
        await serves
