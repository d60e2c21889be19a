"""The meaning of an answer to a patch: it took effect, can still take effect, or is refused permanently."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.writes import Events, Writer
from queuectl.domain.errors import (
    ClusterError,
    ClusterUnavailable,
    ObjectGone,
    WriteConflict,
    WriteRefused,
)
from queuectl.domain.jobs import JobRecord
from tests.cluster.test_client import kubeconfig

PATCH = {"metadata": {"uid": "u1", "resourceVersion": "7"}}
AS_EXPECTED = {"metadata": {"uid": "u1", "resourceVersion": "7"}}
CHANGED = {"metadata": {"uid": "u1", "resourceVersion": "8"}}
ANOTHER = {"metadata": {"uid": "u2", "resourceVersion": "9"}}


@asynccontextmanager
async def server(
    folder: Path, code: int, answer: bytes, there: dict[str, Any] | None
) -> AsyncIterator[Writer]:
    """An API server with this object, which gives this answer to each patch."""

    async def patched(_: web.Request) -> web.Response:
        return web.Response(status=code, body=answer)

    async def read(_: web.Request) -> web.Response:
        if there is None:
            return web.json_response({"message": "not found"}, status=404)
        return web.json_response(there)

    app = web.Application()
    app.router.add_patch("/{path:.*}", patched)
    app.router.add_get("/{path:.*}", read)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    api = await Api.connect(Connection(kubeconfig=kubeconfig(folder, port)))
    try:
        yield Writer(api)
    finally:
        await api.close()
        await runner.cleanup()


NO = json.dumps({"kind": "Status", "message": "a webhook denies it"}).encode()


@pytest.mark.parametrize(
    ("code", "answer", "there", "expected"),
    [
        (409, NO, CHANGED, WriteConflict),
        (409, NO, AS_EXPECTED, WriteRefused),
        (409, NO, ANOTHER, ObjectGone),
        (409, NO, None, ObjectGone),
        (404, NO, None, ObjectGone),
        (404, NO, AS_EXPECTED, WriteRefused),
        (404, NO, CHANGED, WriteConflict),
        (410, NO, AS_EXPECTED, WriteRefused),
        (400, NO, AS_EXPECTED, WriteRefused),
        (403, NO, AS_EXPECTED, WriteRefused),
        (413, NO, AS_EXPECTED, WriteRefused),
        (422, NO, AS_EXPECTED, WriteRefused),
        (500, NO, AS_EXPECTED, ClusterUnavailable),
        (200, b"<html>a portal</html>", AS_EXPECTED, ClusterUnavailable),
    ],
)
async def test_an_answer_to_a_patch_means(
    tmp_path: Path,
    code: int,
    answer: bytes,
    there: dict[str, Any] | None,
    expected: type[ClusterError],
) -> None:
    async with server(tmp_path, code, answer, there) as writer:
        with pytest.raises(expected) as error:
            await writer.patch_job("Job", "a", "train", PATCH)
        refused = isinstance(error.value, WriteRefused)
        assert refused == (expected is WriteRefused)
        if refused:
            assert f" {code}: a webhook denies it" in str(error.value)


async def test_a_write_on_no_condition_does_not_read_the_object(tmp_path: Path) -> None:
    """queuectl may patch namespaces and Events, and may not get them."""
    async with server(tmp_path, 404, NO, ANOTHER) as writer:
        with pytest.raises(ObjectGone, match="a webhook denies it"):
            await writer.patch_namespace("a", {"metadata": {"labels": {"x": "y"}}})


@pytest.mark.parametrize("depth", [0, 1500, 9000])
async def test_the_answer_to_a_patch_is_read_at_each_depth_of_its_field_owners(
    tmp_path: Path, depth: int
) -> None:
    owners = '{"f:a":' * depth + "{}" + "}" * depth
    answer = f'{{"metadata":{{"managedFields":[{owners}],"uid":"u1","resourceVersion":"8"}}}}'
    async with server(tmp_path, 200, answer.encode(), AS_EXPECTED) as writer:
        assert await writer.patch_job("Job", "a", "train", PATCH) == 8


async def create_event(
    folder: Path, answers: Callable[[web.Request], Awaitable[web.Response]], message: str
) -> None:
    """Create an Event on a server that answers each POST in this way."""
    app = web.Application()
    app.router.add_post("/{path:.*}", answers)
    async with TestServer(app) as there:
        assert there.port is not None
        api = await Api.connect(Connection(kubeconfig=kubeconfig(folder, there.port)))
        job = JobRecord("Job", "a", "train", "u1", 7, 1.0, "q", ())
        try:
            await Events(api).create(job, "Normal", "Held", message)
        finally:
            await api.close()


@pytest.mark.parametrize("code", [403, 404, 409, 422])
async def test_an_event_that_a_webhook_refuses_is_refused(tmp_path: Path, code: int) -> None:
    """No code means that the watch is behind, for which the creation is repeated."""

    async def refuses(_: web.Request) -> web.Response:
        return web.Response(status=code, body=NO, content_type="application/json")

    with pytest.raises(WriteRefused, match="a webhook denies it"):
        await create_event(tmp_path, refuses, "held")


async def test_the_note_of_an_event_controls_no_terminal(tmp_path: Path) -> None:
    """``kubectl`` prints it as it is."""
    notes: list[str] = []

    async def created(request: web.Request) -> web.Response:
        notes.append((await request.json())["note"])
        return web.json_response(
            {"metadata": {"name": "train-1", "uid": "u2", "resourceVersion": "8"}}
        )

    await create_event(tmp_path, created, "held for x\x1b]0;PWNED\x07\x9b2J\u202e")
    assert notes == [r"held for x\u001b]0;PWNED\u0007\u009b2J\u202e"]
