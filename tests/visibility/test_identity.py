"""Users whom headers name: believed only from the certificate of kube-apiserver, on a real server with TLS."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from queuectl.api.connections import ConnectionLimits
from queuectl.api.server import WebServer
from queuectl.cluster.client import Api
from queuectl.control.listen_address import ListenAddress
from queuectl.domain.errors import BadInput, ClusterUnavailable
from queuectl.domain.identity import Caller
from queuectl.localcluster.certificates import Authority, KeyPair
from queuectl.visibility.identity import FrontProxy, NotIdentified, RequestHeaders
from tests.api.serving import running
from tests.support.tls import write_certificate

NAME = "front-proxy-client"
FORGED = b"X-Remote-User: admin\r\nX-Remote-Group: system:masters\r\n"
Headers = list[tuple[bytes, bytes]]


def config_map(authority: Authority, **changes: str) -> dict[str, str]:
    return {
        "requestheader-client-ca-file": authority.pair.certificate.decode(),
        "requestheader-allowed-names": json.dumps([NAME]),
        "requestheader-username-headers": '["X-Remote-User"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-uid-headers": '["X-Remote-Uid"]',
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
    } | changes


AUTHORITY = Authority.create("front-proxy")
KNOWN = RequestHeaders.read(config_map(AUTHORITY))


def test_headers_name_one_user():
    headers: Headers = [
        (b"X-Remote-User", "Zoë".encode()),
        (b"x-remote-group", b"a"),
        (b"X-REMOTE-GROUP", b"b"),
        (b"x-remote-uid", b"7"),
        (b"x-remote-extra-scopes%2ffirst", b"x"),
        (b"x-remote-extra-scopes%2Ffirst", b"y"),
        (b"authorization", b"Bearer of-the-admin"),
    ]
    assert KNOWN.caller(headers) == Caller("Zoë", ("a", "b"), "7", {"scopes/first": ("x", "y")})


def test_headers_that_do_not_name_one_user_are_refused():
    user = (b"x-remote-user", b"alice")
    refused: dict[str, Headers] = {
        "nobody": [],
        "a group alone": [(b"x-remote-group", b"system:masters")],
        "an empty name": [(b"x-remote-user", b"")],
        "two names": [user, (b"X-Remote-User", b"admin")],
        "the same name twice": [user, user],
        "an underscore in the header": [(b"x_remote_user", b"admin")],
        "two uids": [user, (b"x-remote-uid", b"1"), (b"x-remote-uid", b"2")],
        "not UTF-8": [(b"x-remote-user", b"\xff")],
        "10,000 groups": [user, *((b"x-remote-group", b"g%d" % n) for n in range(10_000))],
        "100 kB": [user, (b"x-remote-extra-a", b"x" * 100_000)],
    }
    believed = []
    for case, headers in refused.items():
        with suppress(NotIdentified):
            believed.append((case, KNOWN.caller(headers)))
    assert believed == []


def test_a_config_map_without_a_usable_authority_is_refused():
    malformed: list[object] = [
        None,
        [],
        {},
        config_map(AUTHORITY, **{"requestheader-client-ca-file": " "}),
        config_map(AUTHORITY, **{"requestheader-allowed-names": "{}"}),
        config_map(AUTHORITY, **{"requestheader-allowed-names": "[" * 5000}),
        config_map(AUTHORITY, **{"requestheader-username-headers": "[7]"}),
    ]
    for found in malformed:
        with pytest.raises(BadInput):
            RequestHeaders.read(found)


class ConfigMapApi:
    """Returns the ConfigMap that the test sets; None = the API server does not answer."""

    def __init__(self, found: dict[str, str] | None) -> None:
        self.found = found

    async def request(self, *_: Any) -> bytes:
        if self.found is None:
            raise ClusterUnavailable("no answer")
        return json.dumps({"data": self.found}).encode()


class Front:
    """A server that answers with the name of the caller, and its clients."""

    def __init__(self, folder: Path, found: dict[str, str] | None) -> None:
        self.folder = folder
        self.api = ConfigMapApi(found)
        self.proxy = FrontProxy(cast(Api, self.api))
        files = write_certificate(folder, "queuectl")
        limits = ConnectionLimits(of_address=None)
        self.server = WebServer(self, ListenAddress("127.0.0.1", 0), files, limits=limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            text, code = self.proxy.caller_of(scope).name, 200
        except NotIdentified as error:
            text, code = str(error), 401
        await PlainTextResponse(text, code)(scope, receive, send)

    @asynccontextmanager
    async def connection(self, identity: KeyPair | None) -> AsyncIterator[Callable[..., Any]]:
        """A connection with a client certificate: ``await ask(head)`` is the status and the body."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if identity is not None:
            identity.save(self.folder / "client.crt", self.folder / "client.key")
            context.load_cert_chain(self.folder / "client.crt", self.folder / "client.key")
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.server.address.port, ssl=context
        )

        async def answer() -> tuple[int, str]:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            return int(head.split()[1]), (await reader.readexactly(size)).decode()

        async def ask(head: bytes, times: int = 1) -> list[tuple[int, str]]:
            writer.write((b"GET / HTTP/1.1\r\nHost: a\r\n" + head + b"\r\n") * times)
            return [await answer() for _ in range(times)]

        try:
            yield ask
        finally:
            writer.transport.abort()


@asynccontextmanager
async def fronting(folder: Path, found: dict[str, str] | None) -> AsyncIterator[Front]:
    front = Front(folder, found)
    async with running(front.server):
        await front.proxy.follow(front.server)
        yield front


async def codes(front: Front, identity: KeyPair | None, head: bytes = FORGED) -> list[int]:
    """The statuses of pipelined requests on one connection, and of one after them."""
    async with front.connection(identity) as ask:
        return [code for code, _ in [*await ask(head, 3), *await ask(head)]]


async def test_only_the_certificate_of_the_api_server_names_users(tmp_path: Path):
    async with fronting(tmp_path, config_map(AUTHORITY)) as front:
        assert await codes(front, None) == [401] * 4
        assert await codes(front, AUTHORITY.client("alice")) == [401] * 4
        assert await codes(front, AUTHORITY.client(NAME)) == [200] * 4
        assert await codes(front, AUTHORITY.client(NAME), b"") == [401] * 4
        for stranger in (Authority.create("front-proxy"), Authority.create("another")):
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await codes(front, stranger.client(NAME))


async def test_each_request_of_a_connection_names_its_own_user(tmp_path: Path):
    async with (
        fronting(tmp_path, config_map(AUTHORITY)) as front,
        front.connection(AUTHORITY.client(NAME)) as ask,
    ):
        first = await ask(b"X-Remote-User: alice\r\n")
        assert [*first, *await ask(b"")] == [
            (200, "alice"),
            (401, "the headers do not name exactly one user"),
        ]
        assert await ask(b"X-Remote-User: bob\r\n") == [(200, "bob")]


async def test_connections_of_an_authority_that_was_replaced_are_not_believed(tmp_path: Path):
    new = Authority.create("front-proxy-2")
    async with (
        fronting(tmp_path, config_map(AUTHORITY)) as front,
        front.connection(AUTHORITY.client(NAME)) as ask,
    ):
        assert await ask(FORGED) == [(200, "admin")]
        front.api.found = None  # an outage of the API server changes nothing
        await front.proxy.follow(front.server)
        assert await ask(FORGED) == [(200, "admin")]
        asked = asyncio.create_task(ask(b"X-Remote-User: bob\r\n"))
        front.api.found = config_map(new)
        await front.proxy.follow(front.server)
        with pytest.raises((OSError, asyncio.IncompleteReadError, AssertionError)):
            assert await asked == [(200, "bob")]
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await codes(front, AUTHORITY.client(NAME))
        assert await codes(front, new.client(NAME)) == [200] * 4
        front.api.found = config_map(new, **{"requestheader-allowed-names": '["other"]'})
        await front.proxy.follow(front.server)
        assert await codes(front, new.client(NAME)) == [401] * 4
        front.api.found = {}
        await front.proxy.follow(front.server)
        assert await codes(front, new.client("other")) == [401] * 4


async def test_no_user_is_believed_before_the_authority_is_known(tmp_path: Path):
    async with fronting(tmp_path, None) as front:
        assert await codes(front, AUTHORITY.client(NAME)) == [401] * 4
