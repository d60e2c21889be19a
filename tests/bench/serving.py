"""The API of ``queuectl serve`` for one controller on a real port, and its clients in a separate process."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from queuectl.api.app import create_app
from queuectl.api.auth.layers import AuthenticationLayer
from queuectl.api.server import WebServer
from queuectl.control.composition import ServeComponents
from queuectl.control.listen_address import ListenAddress
from queuectl.web.app import add_dashboard


@asynccontextmanager
async def served(
    parts: ServeComponents, authenticated: AuthenticationLayer | None = None
) -> AsyncIterator[str]:
    """The address of REST and dashboard until the block ends. ``authenticated``: as for :func:`create_app`."""
    app = create_app(
        parts.store,
        parts,
        parts.metrics.registry,
        parts,
        cluster_reader=parts,
        authenticated=authenticated,
    )
    signs_in = authenticated is not None
    add_dashboard(app, parts.store, app.state.guard, parts, parts, signs_in=signs_in)
    server = WebServer(app, ListenAddress("127.0.0.1", 0))
    serving = asyncio.create_task(server.run())
    try:
        yield server.url
    finally:
        app.state.feed.close()
        serving.cancel()
        await asyncio.wait({serving})


@asynccontextmanager
async def clients(module: str, url: str) -> AsyncIterator[Process]:
    """A program that sends requests to this server when it is ready. It ends with the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, url,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 24,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        await process.stdout.readline()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def report_of(process: Process, last_word: str = "") -> Any:
    """The output of a client program after its input ends."""
    printed, _ = await process.communicate(last_word.encode())
    if process.returncode:
        raise RuntimeError(f"the clients ended with code {process.returncode}")
    return json.loads(printed)
