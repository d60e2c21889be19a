"""Real receivers on this machine, and what their tests share."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import ssl
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from queuectl.domain.notifications import Audience, Event, EventType
from queuectl.notify.addresses import AddressBook
from queuectl.notify.messages import Message, Messages
from queuectl.notify.receivers import (
    Receiver,
    SlackTarget,
    SmtpSecurity,
    SmtpTarget,
    WebhookTarget,
)
from tests.support.tls import write_certificate

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)
HOST = "hooks.example"
SECRET = base64.b64encode(b"0123456789abcdef01234567").decode()
USER, PASSWORD = "queuectl", "correct horse"


def event(number: int = 0, at: float = 1_790_000_000.0, **fields: Any) -> Event:
    """An event of a job."""
    given = {
        "type": EventType.EVICTED,
        "kind": "Job",
        "namespace": "team",
        "name": f"train-{number}",
        "uid": "u",
        "cluster_queue": "gpus",
        "user": "ada",
        "message": f"Job train-{number} was evicted",
    }
    return Event(**{**given, **fields}, at=at, id=number)


def message(**fields: Any) -> Message:
    """The message of an event."""
    return Messages("lab").of_event(event(7, **fields))


@dataclass
class Tls:
    """A certificate for :data:`HOST`, in a file that receivers can trust."""

    folder: Path

    def __post_init__(self) -> None:
        if not self.ca_file.exists():
            write_certificate(self.folder, "receiver", dns=HOST)

    @property
    def ca_file(self) -> Path:
        return self.folder / "tls.crt"

    def server(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.ca_file, self.folder / "tls.key")
        return context


@dataclass
class Names:
    """A name server. Each lookup takes the next answer; the last one stays."""

    answers: list[Sequence[str]] = field(default_factory=lambda: [["127.0.0.1"]])
    asked: int = 0

    def __call__(self, host: str) -> Sequence[str]:
        del host
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def book(self) -> AddressBook:
        return AddressBook(self)


@dataclass
class Requests:
    """A real HTTPS server and the requests that it got."""

    port: int = 0
    bodies: list[bytes] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)


Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


async def accepted(_: web.BaseRequest) -> web.StreamResponse:
    """The answer of a receiver that took a message."""
    return web.Response(text="ok")


@asynccontextmanager
async def https_server(tls: Tls, handler: Handler = accepted) -> AsyncIterator[Requests]:
    """A receiver of webhooks."""
    requests = Requests()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        requests.bodies.append(await request.read())
        requests.headers.append(request.headers)
        return await handler(request)

    server = web.Server(handle)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls.server())
    await site.start()
    assert site._server is not None
    requests.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    yield requests
    await runner.cleanup()


Fault = Callable[[SMTP], Awaitable[str]]


async def stalls(_: SMTP) -> str:
    """The server never answers."""
    return await asyncio.Future()


async def hangs_up(server: SMTP) -> str:
    """The server closes the connection."""
    assert server.transport is not None
    server.transport.close()
    return await asyncio.Future()


async def babbles(_: SMTP) -> str:
    """The server answers with a line that has no code."""
    return "what?"


@dataclass
class Mailbox:
    """A real mail server with a login, and the mails that it got."""

    port: int = 0
    mails: list[Envelope] = field(default_factory=list)
    logins: list[bytes] = field(default_factory=list)
    refuse_to: Mapping[str, str] = field(default_factory=dict)
    refuse_data: str = ""
    faults: Mapping[str, Fault] = field(default_factory=dict)
    """By command, or by mail address for RCPT: what happens instead of an answer."""

    async def handle_MAIL(  # noqa: N802 - by aiosmtpd
        self, server: SMTP, session: Session, envelope: Envelope, address: str, _: list[str]
    ) -> str:
        del session
        if "MAIL" in self.faults:
            return await self.faults["MAIL"](server)
        envelope.mail_from = address
        return "250 OK"

    async def handle_RCPT(  # noqa: N802 - by aiosmtpd
        self, server: SMTP, session: Session, envelope: Envelope, address: str, _: list[str]
    ) -> str:
        del session
        if address in self.faults:
            return await self.faults[address](server)
        if address in self.refuse_to:
            return self.refuse_to[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        del session
        if "DATA" in self.faults:
            return await self.faults["DATA"](server)
        if self.refuse_data:
            return self.refuse_data
        self.mails.append(envelope)
        return "250 OK"

    def login(
        self, server: SMTP, session: Session, envelope: Envelope, way: str, given: Any
    ) -> Any:
        del server, session, envelope, way
        assert isinstance(given, LoginPassword)
        self.logins.append(given.login)
        right = given == LoginPassword(USER.encode(), PASSWORD.encode())
        return AuthResult(success=right, handled=False)


@asynccontextmanager
async def mail_server(
    tls: Tls, security: SmtpSecurity = SmtpSecurity.STARTTLS, **options: Any
) -> AsyncIterator[Mailbox]:
    """A mail server that needs TLS and a login."""
    mailbox = Mailbox(**options)
    starttls = security is SmtpSecurity.STARTTLS

    def session() -> SMTP:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # TLS is around it
            return _session()

    def _session() -> SMTP:
        return SMTP(
            mailbox,
            hostname="mail.example",
            tls_context=tls.server() if starttls else None,
            require_starttls=starttls,
            auth_required=True,
            auth_require_tls=starttls,
            authenticator=mailbox.login,
            loop=asyncio.get_running_loop(),
        )

    server = await asyncio.get_running_loop().create_server(
        session, "127.0.0.1", 0, ssl=None if starttls else tls.server()
    )
    mailbox.port = server.sockets[0].getsockname()[1]
    yield mailbox
    server.close()


def _written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def webhook(tls: Tls, port: int, *, path: str = "/hook", **options: Any) -> Receiver:
    """A receiver of kind webhook at a real server."""
    secrets = _written(tls.folder, "secrets", f"whsec_{SECRET}\n")
    target = WebhookTarget(f"https://{HOST}:{port}{path}", secrets)
    audience = options.pop("audience", Audience("ops", everything=True))
    return Receiver(audience, target, LOOPBACK, tls.ca_file, **options)


def slack(tls: Tls, port: int) -> Receiver:
    """A receiver in Slack's format at a real server."""
    url = _written(tls.folder, "url", f"https://{HOST}:{port}/services/T/B/x\n")
    return Receiver(Audience("chat", everything=True), SlackTarget(url), LOOPBACK, tls.ca_file)


def smtp(tls: Tls, port: int, **options: Any) -> Receiver:
    """A receiver of kind smtp at a real server."""
    target = SmtpTarget(
        HOST,
        "queuectl@lab.example",
        port,
        options.pop("security", SmtpSecurity.STARTTLS),
        options.pop("to", "ops@lab.example"),
        _written(tls.folder, "user", USER),
        _written(tls.folder, "password", options.pop("password", PASSWORD) + "\n"),
    )
    audience = Audience("mail", everything=True, personal=True)
    return Receiver(audience, target, LOOPBACK, tls.ca_file, **options)


Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw_server(conversation: Conversation, tls: Tls | None = None) -> AsyncIterator[int]:
    """A server that answers as it likes. Returns its port."""
    tasks: set[asyncio.Task[None]] = set()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(OSError, ssl.SSLError, asyncio.CancelledError):
            await conversation(reader, writer)
        writer.transport.abort()

    context = tls.server() if tls is not None else None
    server = await asyncio.start_server(run, "127.0.0.1", 0, ssl=context)
    yield server.sockets[0].getsockname()[1]
    server.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks)
    await asyncio.sleep(0.01)  # the transports close
