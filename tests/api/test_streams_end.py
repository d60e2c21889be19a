"""An event stream does not outlive the credentials it was opened with."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from queuectl.api.auth.authentication import PROOF, SESSION_PATH
from queuectl.api.routes import events as route
from queuectl.api.server import Address, WebServer
from tests.api.conftest import commit
from tests.api.signed import ADMIN, bearer, people, signed_app
from tests.api.support import job, live_through
from tests.doubles.access import MemoryAccess
from tests.doubles.store import MemoryStore

PATIENCE = 30.0


@pytest.fixture
def access(monkeypatch: pytest.MonkeyPatch) -> MemoryAccess:
    monkeypatch.setattr(route, "KNOWN_SECONDS", 0.05)
    return people()


@asynccontextmanager
async def served(store: MemoryStore, access: MemoryAccess) -> AsyncIterator[httpx2.AsyncClient]:
    """The API on a real port."""
    server = WebServer(signed_app(store, access, secure=False), Address("127.0.0.1", 0))
    serving = asyncio.create_task(server.run())
    try:
        async with httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
            yield client
    finally:
        server.stop()
        await serving


async def rest(answer: httpx2.Response) -> str:
    """The text of a stream until it ends."""
    async with asyncio.timeout(PATIENCE):
        return "".join([text async for text in answer.aiter_text()])


async def test_a_stream_ends_at_sign_out(memory: MemoryStore, access: MemoryAccess) -> None:
    async with served(memory, access) as client:
        signed_in = await client.post(SESSION_PATH, json={"token": ADMIN})
        assert signed_in.status_code == 201
        own = {PROOF: "1", "Sec-Fetch-Site": "same-origin"}
        async with client.stream("GET", route.PATH) as answer:
            assert answer.status_code == 200
            out = await client.delete(SESSION_PATH, headers=own)
            assert out.status_code == 204
            text = await rest(answer)
    assert text.count("event: cut") == 1
    assert "your session or token has ended" in text


@pytest.mark.parametrize("how", ["expires", "is withdrawn"])
async def test_a_stream_ends_when_its_token_does(
    memory: MemoryStore, access: MemoryAccess, how: str
) -> None:
    ends = time.time() + (1.0 if how == "expires" else 3600.0)
    claims = base64.urlsafe_b64encode(json.dumps({"exp": ends}).encode()).decode().rstrip("=")
    token = f"header.{claims}.signature"
    access.know(token, "admin", master=True)
    async with (
        served(memory, access) as client,
        client.stream("GET", route.PATH, headers=bearer(token)) as answer,
    ):
        assert answer.status_code == 200
        if how == "is withdrawn":
            del access.callers[token]
        text = await rest(answer)
        await commit(memory, live_through(job("late")))
    assert "your session or token has ended" in text
    assert "late" not in text
