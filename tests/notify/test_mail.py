"""Mail to a real server with TLS and a login."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import replace
from email import message_from_bytes
from ipaddress import ip_address
from pathlib import Path

import pytest

from queuectl.notify import channels, mail
from queuectl.notify.channels import MessageRefused, NotDelivered
from queuectl.notify.receivers import Receiver, SmtpSecurity
from queuectl.notify.transports import Transports
from tests.notify.parts import (
    Fault,
    Names,
    Tls,
    babbles,
    hangs_up,
    mail_server,
    message,
    raw_server,
    smtp,
    stalls,
)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return Tls(tmp_path_factory.mktemp("tls"))


async def send(receiver: Receiver, *to: str, names: Names | None = None) -> None:
    channel = Transports("lab", (names or Names()).book()).open(receiver)
    try:
        for each in to:
            await channel.send(message(), each)
    finally:
        await channel.close()


@pytest.mark.parametrize("security", list(SmtpSecurity))
async def test_mail_goes_over_tls_after_a_login(tls: Tls, security: SmtpSecurity) -> None:
    async with mail_server(tls, security) as got:
        await send(smtp(tls, got.port, security=security), "ada@lab.example", "")
    assert [mail.rcpt_tos for mail in got.mails] == [["ada@lab.example"], ["ops@lab.example"]]
    assert got.logins == [b"queuectl"]  # one connection
    content = got.mails[0].content
    assert isinstance(content, bytes)
    assert message_from_bytes(content)["Subject"] == "queuectl: Workload evicted"
    assert got.mails[0].mail_from == "queuectl@lab.example"


async def test_mail_is_not_sent_without_tls_or_to_a_wrong_certificate(
    tls: Tls, tmp_path: Path
) -> None:
    async with mail_server(tls) as got:
        receiver = smtp(tls, got.port)
        for each in (replace(receiver, ca_file=None), smtp(Tls(tmp_path), got.port)):
            with pytest.raises(NotDelivered, match="certificate is not valid"):
                await send(each, "")
        with pytest.raises(NotDelivered):
            await send(smtp(tls, got.port, security=SmtpSecurity.TLS), "")
        with pytest.raises(NotDelivered, match="refuses the login"):
            await send(smtp(tls, got.port, password="wrong"), "")
        with pytest.raises(NotDelivered, match="not permitted"):
            await send(receiver, "", names=Names([["127.0.0.1", "10.0.0.1"]]))
        assert got.mails == []


async def test_a_refused_address_or_mail_is_skipped_and_others_are_not(tls: Tls) -> None:
    refused = {"gone@lab.example": "550 no such user", "full@lab.example": "452 mailbox full"}
    async with mail_server(tls, refuse_to=refused) as got:
        channel = Transports("lab", Names().book()).open(smtp(tls, got.port))
        with pytest.raises(MessageRefused, match="SMTP 550"):
            await channel.send(message(), "gone@lab.example")
        with pytest.raises(NotDelivered, match="SMTP 452") as later:
            await channel.send(message(), "full@lab.example")
        assert (later.value.whole, later.value.address) == (False, True)
        with pytest.raises(MessageRefused, match="form"):
            await channel.send(message(), "a@b.example, c@d.example")
        await channel.send(message(), "ada@lab.example")
        got.refuse_data = "554 spam"
        with pytest.raises(MessageRefused, match="SMTP 554"):
            await channel.send(message(), "ada@lab.example")
        got.refuse_data = "451 later"
        with pytest.raises(NotDelivered, match="SMTP 451") as later:
            await channel.send(message(), "ada@lab.example")
        assert (later.value.whole, later.value.address) == (False, False)
        await channel.close()
    assert [mail.rcpt_tos for mail in got.mails] == [["ada@lab.example"]]


@pytest.mark.parametrize("fault", [stalls, hangs_up, babbles])
@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("MAIL", (True, False)),
        ("bad@lab.example", (False, True)),
        ("DATA", (False, False)),
    ],
)
async def test_a_mail_without_a_proper_answer_fails_alone_once_its_address_is_sent(
    tls: Tls,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    fault: Fault,
    expected: tuple[bool, bool],
) -> None:
    monkeypatch.setattr(mail, "SEND_SECONDS", 1.0)
    async with mail_server(tls, faults={place: fault}) as got:
        channel = Transports("lab", Names().book()).open(smtp(tls, got.port))
        for _ in range(2):
            with pytest.raises(NotDelivered) as failed:
                await channel.send(message(), "bad@lab.example")
            assert (failed.value.whole, failed.value.address) == expected
        got.faults = {}
        await channel.send(message(), "ada@lab.example")
        assert len(got.logins) == 3, "each failure ends its connection"
        got.faults = {place: hangs_up}
        with pytest.raises(NotDelivered):
            await channel.send(message(), "bad@lab.example")
    with pytest.raises(NotDelivered) as failed:
        await channel.send(message(), "ada@lab.example")
    assert failed.value.whole, "the server is down"
    await channel.close()
    assert [mail.rcpt_tos for mail in got.mails] == [["ada@lab.example"]]


async def test_a_server_without_starttls_gets_neither_login_nor_mail(tls: Tls) -> None:
    lines: list[bytes] = []

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail\r\n")
        while line := await reader.readline():
            lines.append(line)
            if line.startswith(b"EHLO"):
                writer.write(b"250-mail\r\n250 AUTH PLAIN LOGIN\r\n")
            else:
                writer.write(b"502 no\r\n")

    async with raw_server(plain) as port:
        with pytest.raises(NotDelivered):
            await send(smtp(tls, port), "")
    assert {line.split()[0] for line in lines} <= {b"EHLO", b"STARTTLS", b"QUIT"}


async def test_a_hostile_server_ends_within_the_limits(
    tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (channels, mail):
        monkeypatch.setattr(module, "SEND_SECONDS", 0.2)
    monkeypatch.setattr(mail, "MAIL_SECONDS", 0.5)

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"220-more\r\n" * 1000)
            await writer.drain()

    async def drops(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail\r\n")

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail\r\n")
        while await reader.readline():
            await asyncio.sleep(0.15)
            writer.write(b"250 ok\r\n")

    for session in (silent, endless, drops, slow):
        async with raw_server(session) as port:
            with pytest.raises(NotDelivered):
                await send(smtp(tls, port), "")


async def test_text_of_users_cannot_end_a_mail(tls: Tls) -> None:
    async with mail_server(tls) as got:
        channel = Transports("lab", Names().book()).open(smtp(tls, got.port))
        await channel.send(
            message(message="a\r\n.\r\nMAIL FROM:<evil@x.example>", name=".\r\n."), ""
        )
        await channel.send(message(), "")
        await channel.close()
    assert len(got.mails) == 2


async def test_an_address_that_never_answers_leaves_time_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mail, "SEND_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:
        port = silent.getsockname()[1]
        with socket.create_server(("127.0.0.2", port)), contextlib.ExitStack() as full:
            for _ in range(4):  # the kernel answers no further connection
                waiting = full.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(("127.0.0.1", port))
            addresses = [ip_address("127.0.0.1"), ip_address("127.0.0.2")]
            with await mail._dial(addresses, port) as connection:
                assert connection.getpeername()[0] == "127.0.0.2"
