"""A relay in front of a Postgres socket that can lose the answer to a COMMIT, as a network can at the worst moment."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from queuectl.db.directories import PORT

SOCKET = f".s.PGSQL.{PORT}"


class LossyRelay:
    """Forwards everything, until :attr:`lose_commits` is set: then a COMMIT arrives, and its answer does not."""

    def __init__(self, upstream: Path, directory: Path) -> None:
        self._upstream = upstream
        self.directory = directory
        self.lose_commits = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        server_reader, server_writer = await asyncio.open_unix_connection(self._upstream / SOCKET)
        answers = asyncio.create_task(self._forward(server_reader, writer))
        try:
            while data := await reader.read(65536):
                losing = self.lose_commits and b"COMMIT" in data
                if losing:
                    answers.cancel()
                    await asyncio.wait({answers})
                server_writer.write(data)
                await server_writer.drain()
                if losing:
                    await server_reader.read(1)  # it is done: the server has answered
                    break
        finally:
            answers.cancel()
            server_writer.close()
            writer.close()
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def lossy_relay(upstream: Path) -> AsyncIterator[LossyRelay]:
    """A relay to the server whose sockets are in ``upstream``."""
    with tempfile.TemporaryDirectory(prefix="qrelay-") as directory:
        relay = LossyRelay(upstream, Path(directory))
        server = await asyncio.start_unix_server(relay.accept, Path(directory) / SOCKET)
        yield relay
        server.close()
        await relay.close()
        await server.wait_closed()
