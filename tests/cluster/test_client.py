"""Responses of the server become errors of the domain; configuration and credentials."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from queuectl.cluster.client import Api, Expired, Forbidden, NotServed, failure
from queuectl.cluster.connection import Connection
from queuectl.cluster.lease import Lease
from queuectl.cluster.review import _policies, _probe_status, kueue_keys_act, kueue_runs
from queuectl.cluster.server import Server, discover, mismatches
from queuectl.cluster.stream import current_version
from queuectl.cluster.takeover import read_admissions
from queuectl.domain.errors import (
    LONGEST_WAIT,
    BadInput,
    ClusterBusy,
    ClusterError,
    ClusterUnavailable,
    ObjectGone,
    WriteConflict,
    WriteRefused,
)
from queuectl.objects.kinds import KINDS, JobKinds


def status(code: int, **more: Any) -> bytes:
    return json.dumps({"kind": "Status", "code": code, "message": "because"} | more).encode()


def causes(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"details": {"causes": [{"reason": r, "field": f} for r, f in pairs]}}


@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        (400, status(400), WriteRefused),
        (401, status(401), ClusterBusy),
        (403, status(403), Forbidden),
        (404, status(404, reason="NotFound"), ObjectGone),
        (404, b"404 page not found\n", NotServed),
        (404, b"<html>no such host</html>", NotServed),
        (408, status(408), ClusterUnavailable),
        (409, status(409), WriteConflict),
        (410, status(410), Expired),
        (415, status(415), WriteRefused),
        (422, status(422), WriteRefused),
        (422, status(422, **causes(("FieldValueInvalid", "metadata.uid"))), ObjectGone),
        (422, status(422, **causes(("FieldValueInvalid", "spec.suspend"))), WriteRefused),
        (429, status(429), ClusterBusy),
        (429, status(429, **causes(("DisruptionBudget", ""))), WriteRefused),
        (500, status(500, message="This pod has more than one PodDisruptionBudget"), WriteRefused),
        (
            500,
            status(500, reason="InternalError", message="PodDisruptionBudget"),
            ClusterUnavailable,
        ),
        (500, b"", ClusterUnavailable),
        (502, b"<html>bad gateway</html>", ClusterUnavailable),
        (503, status(503), ClusterUnavailable),
        (504, status(504, **causes(("ResourceVersionTooLarge", ""))), Expired),
    ],
)
def test_each_status_becomes_one_error(
    code: int, body: bytes, expected: type[ClusterError]
) -> None:
    error = failure("PATCH /x", code, body)
    assert type(error) is expected
    assert str(error).startswith(f"PATCH /x: {code}: ")


@pytest.mark.parametrize(
    ("header", "details", "seconds"),
    [
        ("7", {}, 7.0),
        ("", {"details": {"retryAfterSeconds": 3}}, 3.0),
        ("7", {"details": {"retryAfterSeconds": 3}}, 7.0),
        ("", {"details": {"retryAfterSeconds": int("9" * 400)}}, None),
        ("9" * 400, {}, LONGEST_WAIT),
        ("Wed, 21 Oct 2026 07:28:00 GMT", {}, None),
        ("", {}, None),
    ],
)
def test_the_server_determines_the_time_of_the_retry(
    header: str, details: dict[str, Any], seconds: float | None
) -> None:
    error = failure("GET /x", 429, status(429, **details), header)
    assert isinstance(error, ClusterUnavailable)
    assert error.retry_after == seconds


def test_the_message_of_the_server_is_kept() -> None:
    assert "because" in str(failure("GET /x", 422, status(422)))
    assert "bad gateway" in str(failure("GET /x", 502, b"bad gateway"))


async def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nowhere"):
        await Api.connect(Connection(kubeconfig=tmp_path / "nowhere"))


async def test_outside_of_a_pod_and_without_kubeconfig_no_cluster_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(BadInput, match="set KUBECONFIG"):
        await Api.connect(Connection())


async def test_a_closed_port_is_unavailable(tmp_path: Path, unused_tcp_port: int) -> None:
    api = await Api.connect(Connection(kubeconfig=kubeconfig(tmp_path, unused_tcp_port)))
    with pytest.raises(ClusterUnavailable):
        await api.request("GET", "/version")
    with pytest.raises(ClusterUnavailable):
        async with api.stream("/api/v1/pods", ()):
            pass
    await api.close()


def kubeconfig(folder: Path, port: int = 1, cluster: Mapping[str, str] | None = None) -> Path:
    """The kubeconfig of a plain HTTP server on loopback, or of ``cluster``."""
    path = folder / "kubeconfig"
    stated = {"server": f"http://127.0.0.1:{port}", **(cluster or {})}
    path.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": stated}],
                "users": [{"name": "u", "user": {"token": "secret"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return path


async def test_a_kubeconfig_that_is_half_written_leaves_the_credentials_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs write it again, for example when they renew a token."""
    tokens: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        tokens.append(request.headers.get("Authorization", ""))
        return web.json_response({})

    monkeypatch.setattr("queuectl.cluster.connection._REFRESH_SECONDS", -1.0)
    app = web.Application()
    app.router.add_get("/", answer)
    async with TestServer(app) as server:
        file = kubeconfig(tmp_path, server.port or 0)
        complete = file.read_text()
        api = await Api.connect(Connection(kubeconfig=file), watches=0)
        for broken in ("{", '{"users": 3}', ""):
            file.write_text(broken)
            with pytest.raises(ClusterUnavailable):
                await api.request("GET", "/")
        file.write_text(complete)
        await api.request("GET", "/")
        await api.close()
    assert tokens == ["Bearer secret"]


@asynccontextmanager
async def proxy(asked: list[str]) -> AsyncIterator[str]:
    """The address of a proxy that answers each request itself and records the requested addresses."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.split(b" ")[1].decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"


async def test_a_cluster_is_reached_through_the_proxy_of_its_kubeconfig(tmp_path: Path) -> None:
    asked: list[str] = []
    async with proxy(asked) as address:
        cluster = {"server": "http://api.example:6443", "proxy-url": address}
        path = kubeconfig(tmp_path, cluster=cluster)
        api = await Api.connect(Connection(kubeconfig=path))
        assert await api.request("GET", "/version") == b"{}"
        await api.close()
    assert asked == ["http://api.example:6443/version"]


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("socks5://user:secret@proxy:1080", "the scheme is socks5, "),
        ("proxy", "the scheme is missing"),
    ],
)
async def test_an_unsupported_proxy_is_refused_with_file_context_and_field(
    tmp_path: Path, address: str, says: str
) -> None:
    path = kubeconfig(tmp_path, cluster={"proxy-url": address})
    for context, named in ((None, "the current context"), ("x", "context 'x'")):
        with pytest.raises(BadInput) as refused:
            await Api.connect(Connection(kubeconfig=path, context=context))
        for part in (str(path), named, "proxy-url", says):
            assert part in str(refused.value)
        assert "secret" not in str(refused.value)


async def test_a_404_from_another_server_does_not_mean_that_no_kueue_runs(
    tmp_path: Path,
) -> None:
    async def astray(request: web.Request) -> web.Response:
        return web.Response(status=404, text="default backend - 404")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", astray)
    async with TestServer(app) as server:
        api = await Api.connect(Connection(kubeconfig=kubeconfig(tmp_path, server.port or 0)))
        with pytest.raises(ClusterError, match="default backend"):
            await kueue_runs(api)
        await api.close()


NO_ANSWERS = (
    b"<html>sign in</html>",
    b"",
    b"[]",
    b"null",
    b"{}",
    b'{"major": 1, "minor": 36}',
    b'{"major": "one", "minor": "x"}',
    b'{"major": "1", "minor": "\xd9\xa3"}',
    b'{"major": "1"}',
    b'{"status": {"allowed": "yes"}, "metadata": [], "spec": 1}',
    b'{"metadata": {"resourceVersion": "new"}}',
    b'{"metadata": {"annotations": {"queuectl.dev/epoch": "%s"}}}' % (b"9" * 5000),
    b'{"metadata": {"resourceVersion": "\xff"}, "major": "\xff", "kind": "\xff"}',
)
"""Successful responses of a proxy, or of another server."""


async def _policies_of(api: Api, kinds: JobKinds) -> None:
    for probe in (_policies(api, True, kinds), _probe_status(api, Server((1, 35)))):
        with contextlib.suppress(ClusterUnavailable):
            async for _ in probe:
                pass


ASKED: dict[str, Callable[[Api], Awaitable[object]]] = {
    "the version": discover,
    "the policies": partial(_policies_of, kinds=KINDS),
    "Kueue's keys": partial(kueue_keys_act, namespace="default"),
    "declared kinds": partial(mismatches, kinds=KINDS),
    "a collection": partial(current_version, path="/api/v1/pods"),
    "the Lease": lambda api: Lease(api, "default", "leader").read(),
    "admissions of a Kueue": read_admissions,
}


@pytest.mark.parametrize("body", NO_ANSWERS, ids=lambda body: str(body[:40]))
@pytest.mark.parametrize("asked", ASKED)
async def test_a_response_that_is_not_from_an_api_server_is_not_an_answer(
    tmp_path: Path, asked: str, body: bytes
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        assert server.port is not None
        api = await Api.connect(Connection(kubeconfig=kubeconfig(tmp_path, server.port)))
        try:
            with contextlib.suppress(ClusterUnavailable):
                await ASKED[asked](api)
            if asked in ("the version", "a collection"):
                with pytest.raises(ClusterUnavailable):
                    await ASKED[asked](api)
        finally:
            await api.close()


async def test_a_refused_connection_names_the_address_and_the_cause(tmp_path: Path) -> None:
    api = await Api.connect(Connection(kubeconfig=kubeconfig(tmp_path, 9)))
    try:
        with pytest.raises(ClusterUnavailable) as refused:
            await api.request("GET", "/version")
        assert (
            str(refused.value) == "GET /version: cannot connect to 127.0.0.1:9 (Connection refused)"
        )
    finally:
        await api.close()
