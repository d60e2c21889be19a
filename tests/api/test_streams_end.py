"""The callers that can open an event stream, the number of streams, and that none outlives the credentials it was opened with."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest

from queuectl.api import feed
from queuectl.api.auth.authentication import PROOF, SESSION_PATH
from queuectl.api.routes import events as route
from queuectl.api.routes.events import StreamLimit
from queuectl.api.server import WebServer
from queuectl.control.listen_address import ListenAddress
from tests.api.conftest import commit
from tests.api.serving import running
from tests.api.signed import ADMIN, NO_RIGHTS, bearer, people, signed_app
from tests.api.support import job, live_through
from tests.doubles.access import MemoryAccess
from tests.doubles.store import MemoryStore

PATIENCE = 30.0


@pytest.fixture
def access(monkeypatch: pytest.MonkeyPatch) -> MemoryAccess:
    monkeypatch.setattr(route, "KNOWN_SECONDS", 0.05)
    return people()


@asynccontextmanager
async def served(
    store: MemoryStore, access: MemoryAccess, limit: StreamLimit | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    """The API on a real port."""
    app = signed_app(store, access, streams=limit, secure=False)
    server = WebServer(app, ListenAddress("127.0.0.1", 0))
    async with (
        running(server),
        httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client,
    ):
        yield client


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


# ---- rights and limits


async def test_a_caller_without_a_right_gets_no_stream_and_no_id(
    memory: MemoryStore, access: MemoryAccess
) -> None:
    await commit(memory, live_through(job("other")))
    async with served(memory, access) as client:
        for query in ({}, {"after": 0}, {"after": 1 << 40}, {"follow": False}):
            answer = await client.get(route.PATH, params=query, headers=bearer(NO_RIGHTS))
            assert answer.status_code == 403
            assert "id:" not in answer.text


async def test_a_caller_has_a_limited_number_of_streams_and_others_have_theirs(
    memory: MemoryStore, access: MemoryAccess
) -> None:
    access.know("second", "second", master=True)
    limit = StreamLimit(most=3, of_caller=2)
    async with served(memory, access, limit) as client, AsyncExitStack() as streams:

        async def opened(token: str) -> int:
            request = client.stream("GET", route.PATH, headers=bearer(token))
            return (await streams.enter_async_context(request)).status_code

        assert [await opened(ADMIN) for _ in range(3)] == [200, 200, 429]
        assert [await opened("second") for _ in range(2)] == [200, 429]
        refused = await client.get(route.PATH, headers=bearer(ADMIN))
        assert refused.json()["type"].endswith("/too-many-requests")
        assert refused.headers["retry-after"] == "10"
        await streams.aclose()
        async with asyncio.timeout(PATIENCE):
            while await opened(ADMIN) != 200:
                pass


async def test_streams_that_begin_far_in_the_past_read_one_page_at_a_time(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "LONGEST_PAGE", 2)
    for number in range(3):
        await commit(memory, live_through(job(f"j{number}")))
    reading = most = 0
    history = memory.history

    async def counted(*asked: Any) -> Any:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await asyncio.sleep(0)
        found = await history(*asked)
        reading -= 1
        return found

    monkeypatch.setattr(memory, "history", counted)
    lines = feed.EventFeed(memory)
    async with lines.listening():
        pages = await asyncio.gather(*(lines.more(0, PATIENCE) for _ in range(10)))
    assert {len(page) for page in pages} == {2}
    assert most == 1
