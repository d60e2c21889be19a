"""Webhooks at a real HTTPS server: what is sent, and what a hostile receiver can do."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import hmac
import json
import time
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from aiohttp import web

from queuectl.notify import channels, http
from queuectl.notify.channels import MessageRefused, NotDelivered
from queuectl.notify.http import judge, seconds_of
from queuectl.notify.receivers import Receiver, WebhookTarget
from queuectl.notify.transports import Transports
from tests.notify.parts import (
    HOST,
    SECRET,
    Names,
    Tls,
    accepted,
    https_server,
    message,
    raw_server,
    slack,
    webhook,
)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return Tls(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (channels, http):
        monkeypatch.setattr(module, "SEND_SECONDS", 1.0)
    monkeypatch.setattr(http, "DRAIN_SECONDS", 0.05)


async def send(receiver: Receiver, names: Names | None = None, messages: int = 1) -> None:
    channel = Transports("lab", (names or Names()).book()).open(receiver)
    try:
        await asyncio.gather(*(channel.send(message(), "") for _ in range(messages)))
    finally:
        await channel.close()


async def test_a_webhook_gets_a_signed_cloud_event(tls: Tls) -> None:
    async with https_server(tls) as got:
        await send(webhook(tls, got.port))
    (body,), (headers,) = got.bodies, got.headers
    assert headers["Content-Type"] == "application/cloudevents+json; charset=utf-8"
    assert json.loads(body)["id"] == headers["webhook-id"] == message().id
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.new(base64.b64decode(SECRET), signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
    assert headers["Host"] == f"{HOST}:{got.port}"
    assert "Cookie" not in headers


async def test_slack_gets_its_own_format(tls: Tls) -> None:
    async with https_server(tls) as got:
        await send(slack(tls, got.port))
    assert json.loads(got.bodies[0]).keys() >= {"text", "blocks"}
    assert "webhook-signature" not in got.headers[0]


async def test_a_name_is_resolved_once_for_all_messages_of_a_channel(tls: Tls) -> None:
    """The second answer of a hostile name server has no effect."""
    names = Names([["127.0.0.1"], ["169.254.169.254"]])
    async with https_server(tls) as got:
        await send(webhook(tls, got.port), names, messages=5)
    assert (len(got.bodies), names.asked) == (5, 1)


async def test_addresses_that_are_not_permitted_get_no_connection(tls: Tls) -> None:
    async with https_server(tls) as got:
        receiver = webhook(tls, got.port)
        for answer in (["127.0.0.1", "10.0.0.1"], ["169.254.169.254"], ["::ffff:10.0.0.1"]):
            with pytest.raises(NotDelivered, match="not permitted"):
                await send(receiver, Names([answer]))
        with pytest.raises(NotDelivered, match="not permitted"):
            await send(replace(receiver, allowed_networks=()))
    assert got.bodies == []


async def test_a_socket_to_another_address_is_refused(
    tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second barrier, should the client read a host in another way than the check."""
    async with https_server(tls) as got:

        async def elsewhere(*_: object) -> tuple[IPv4Address]:
            return (IPv4Address("8.8.8.8"),)

        names = Names().book()
        monkeypatch.setattr(names, "checked", elsewhere)
        target = WebhookTarget(f"https://127.0.0.1:{got.port}/", tls.folder / "secrets")
        channel = Transports("lab", names).open(replace(webhook(tls, got.port), target=target))
        with pytest.raises(NotDelivered):
            await channel.send(message(), "")
        await channel.close()
    assert got.bodies == []


async def test_proxies_of_the_environment_are_not_used(
    tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with https_server(tls) as got:
        await send(webhook(tls, got.port))
    assert len(got.bodies) == 1


async def test_a_redirect_is_not_followed(tls: Tls) -> None:
    async def away(_: web.BaseRequest) -> web.Response:
        return web.Response(status=302, headers={"Location": "http://169.254.169.254/latest"})

    async with https_server(tls, away) as got:
        with pytest.raises(NotDelivered, match="HTTP 302: redirects are not followed"):
            await send(webhook(tls, got.port))
    assert len(got.bodies) == 1


async def test_a_wrong_certificate_gets_no_message(tls: Tls, tmp_path: Path) -> None:
    async with https_server(tls) as got:
        receiver = webhook(tls, got.port)
        other = webhook(Tls(tmp_path), got.port)  # trusts another certificate
        wrong_name = WebhookTarget(f"https://other.example:{got.port}/", tls.folder / "secrets")
        for each in (other, replace(receiver, ca_file=None), replace(receiver, target=wrong_name)):
            with pytest.raises(NotDelivered, match="certificate is not valid"):
                await send(each)
        broken = tmp_path / "broken.pem"
        broken.write_text("nonsense")
        for ca_file in (broken, tmp_path / "missing.pem"):
            with pytest.raises(NotDelivered, match="trusted certificates"):
                await send(replace(receiver, ca_file=ca_file))
    assert got.bodies == []


async def test_a_missing_or_faulty_secret_is_named_without_its_text(
    tls: Tls, tmp_path: Path
) -> None:
    async with https_server(tls) as got:
        faulty = tmp_path / "faulty"
        faulty.write_text("hunter2")
        for path, reason in ((tmp_path / "missing", "No such file"), (faulty, "24 to 64|base64")):
            target = WebhookTarget(f"https://{HOST}:{got.port}/", path)
            with pytest.raises(NotDelivered, match=reason) as error:
                await send(replace(webhook(tls, got.port), target=target))
            assert "hunter2" not in str(error.value)
        receiver = slack(tls, got.port)
        (tls.folder / "url").write_text("https://hooks.example@evil.example/secret")
        with pytest.raises(NotDelivered, match="a user") as error:
            await send(receiver)
        assert "evil" not in str(error.value)


# ---- Hostile answers


@pytest.mark.usefixtures("_fast")
async def test_an_endless_or_slow_answer_holds_no_message(tls: Tls) -> None:
    """The status is the answer. The rest is read up to a limit, or not at all."""
    written = 0

    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal written
        response = web.StreamResponse()
        if request.path == "/bomb":
            response.headers["Content-Encoding"] = "gzip"
        if request.path == "/stalls":
            response.content_length = 1000
        await response.prepare(request)
        if request.path == "/stalls":
            await asyncio.Event().wait()
        block = gzip.compress(bytes(10**6)) if request.path == "/bomb" else bytes(65_536)
        while True:
            await response.write(block)
            written += len(block)

    async with https_server(tls, endless) as got:
        for path in ("/endless", "/bomb", "/stalls"):
            await send(webhook(tls, got.port, path=path))
    assert len(got.bodies) == 3
    assert written < 20 * 2**20  # what the buffers of the system hold


@pytest.mark.usefixtures("_fast")
async def test_a_receiver_that_does_not_speak_http_fails(tls: Tls) -> None:
    answers = {
        "nothing": (b"", "within 5 seconds"),
        "drops": (b"DROP", "closes the connection"),
        "nonsense": (b"\x00\xff nonsense\r\n\r\n", "no answer over HTTP"),
        "endless header": (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000, "no answer over HTTP"),
        "slow": (b"SLOW", "within 5 seconds"),
    }
    for content, reason in answers.values():

        async def session(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, content: bytes = content
        ) -> None:
            await reader.readuntil(b"\r\n\r\n")
            if content == b"DROP":
                return
            if content == b"SLOW":
                for byte in b"HTTP/1.1 200 OK\r\n":
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.05)
            writer.write(content)
            await writer.drain()
            await asyncio.Event().wait()

        async with raw_server(session, tls) as port:
            with pytest.raises(NotDelivered, match=reason):
                await send(webhook(tls, port))


async def test_no_server_at_the_address(tls: Tls) -> None:
    async with https_server(tls) as got:
        port = got.port
    with pytest.raises(NotDelivered) as error:
        await send(webhook(tls, port))
    assert error.value.whole
    assert "127.0.0.1" not in str(error.value)


# ---- Statuses


def test_a_status_decides_about_the_message() -> None:
    for status in (200, 201, 202, 204, 299):
        judge(status, "")
    for status in (400, 402, 405, 406, 409, 411, 413, 414, 415, 418, 422, 431, 451):
        with pytest.raises(MessageRefused, match=str(status)):
            judge(status, "")
    again = (
        100,
        301,
        302,
        303,
        307,
        308,
        401,
        403,
        404,
        407,
        408,
        410,
        425,
        429,
        500,
        502,
        503,
        504,
        599,
        999,
    )
    for status in again:
        with pytest.raises(NotDelivered, match=str(status)) as error:
            judge(status, "7")
        assert error.value.whole is (status != 500)
    with pytest.raises(NotDelivered) as error:
        judge(429, "7")
    assert error.value.retry_after == 7.0


def test_retry_after_is_bounded() -> None:
    soon = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 100))
    assert 90 < (seconds_of(soon) or 0) <= 100
    for text, expected in {
        "": None,
        "5": 5.0,
        " 5 ": 5.0,
        "9" * 400: 3600.0,
        "-5": None,
        "١": None,  # noqa: RUF001
        "1.5": None,
        "soon": None,
        "Sun, 06 Nov 1994 08:49:37 GMT": 0.0,
        "Fri, 31 Dec 9999 23:59:59 GMT": 3600.0,
        "x" * 10_000: None,
        "Sun, 06 Nov 1994 08:49:37 +9999": None,
        f"Mon, 01 Jan 2029 00:00:00 +{'9' * 20}": None,
    }.items():
        assert seconds_of(text) == expected, text[:40]


async def test_many_messages_share_connections(tls: Tls) -> None:
    ports = set()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername")[1])
        return await accepted(request)

    async with https_server(tls, handler) as got:
        channel = Transports("lab", Names().book()).open(webhook(tls, got.port))
        for _ in range(4):
            await asyncio.gather(*(channel.send(message(), "") for _ in range(2)))
        await channel.close()
    assert (len(got.bodies), len(ports)) == (8, 2)
