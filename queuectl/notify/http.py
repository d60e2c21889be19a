"""Requests to webhooks: one POST of JSON to a checked address.

The client follows no redirect, uses no proxy, sends no cookie, and reads at most 64 KiB of an answer.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import SplitResult

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from queuectl.distribution import version
from queuectl.notify.addresses import Address, AddressBook, AddressRefused
from queuectl.notify.channels import SEND_SECONDS, MessageRefused, NotDelivered, trusted
from queuectl.notify.receivers import Receiver

MAX_ANSWER: Final = 64 * 1024
DRAIN_SECONDS: Final = 1.0
LONGEST_RETRY_AFTER: Final = 3600.0

_AGAIN: Final = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.GONE,
        HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_EARLY,
        HTTPStatus.TOO_MANY_REQUESTS,
    }
)
"""Refusals of the whole receiver or of the moment. Each other 4xx is about the message."""


class _CheckedAddresses(AbstractResolver):
    """Returns the checked addresses of one host and asks no name server."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - of the interface
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        """Holds nothing."""


class HttpClient:
    """Connections to one receiver."""

    def __init__(self, receiver: Receiver, url: SplitResult, book: AddressBook) -> None:
        """Connect nothing yet."""
        self._receiver = receiver
        self._url = url
        self._book = book
        self._session: aiohttp.ClientSession | None = None
        self._connecting = asyncio.Lock()

    async def post(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a body.

        Raises:
            NotDelivered: it is to be sent again.
            MessageRefused: the receiver refuses this body.
        """
        deadline = asyncio.get_running_loop().time() + SEND_SECONDS
        try:
            async with asyncio.timeout_at(deadline):
                session = await self._connected()
                answer = await session.post(
                    self._url.geturl(), data=body, headers=headers, allow_redirects=False
                )
            try:
                judge(answer.status, answer.headers.get("Retry-After", ""))
                await _drain(answer, deadline)
            finally:
                answer.release()
        except AddressRefused as error:
            raise NotDelivered(str(error)) from error
        except TimeoutError as error:
            text = "the receiver does not answer within 5 seconds"
            raise NotDelivered(text, whole=False) from error
        except aiohttp.ServerDisconnectedError as error:
            raise NotDelivered("the receiver closes the connection", whole=False) from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise NotDelivered("the certificate is not valid for the host") from error
        except aiohttp.ClientSSLError as error:
            raise NotDelivered("no connection with TLS") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise NotDelivered(f"no answer over HTTP: {type(error).__name__}") from error

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _connected(self) -> aiohttp.ClientSession:
        async with self._connecting:
            if self._session is None:
                host = self._url.hostname or ""
                addresses = await self._book.checked(host, self._receiver.allowed_networks)
                context = await asyncio.to_thread(trusted, self._receiver.ca_file)
                connector = aiohttp.TCPConnector(
                    resolver=_CheckedAddresses(addresses),
                    use_dns_cache=False,
                    ssl=context,
                    socket_factory=lambda address_info: _socket(address_info, addresses),
                    limit=64,
                )
                self._session = aiohttp.ClientSession(
                    connector=connector,
                    timeout=aiohttp.ClientTimeout(total=SEND_SECONDS),
                    trust_env=False,
                    auto_decompress=False,
                    cookie_jar=aiohttp.DummyCookieJar(),
                    headers={"User-Agent": f"queuectl/{version()}", "Accept-Encoding": "identity"},
                    max_line_size=8190,
                    max_field_size=8190,
                    read_bufsize=MAX_ANSWER // 2,
                )
        return self._session


def _socket(address_info: Any, addresses: Sequence[Address]) -> socket.socket:
    """A socket for a checked address only: aiohttp asks no resolver for a host that it takes for an IP address."""
    family, kind, protocol, _, target = address_info
    if ipaddress.ip_address(target[0]) not in addresses:
        raise OSError(errno.EACCES, "not a checked address")
    connection = socket.socket(family, kind, protocol)
    connection.setblocking(False)
    return connection


async def _drain(answer: aiohttp.ClientResponse, deadline: float) -> None:
    """Read a short answer, so that the connection can be used again. A longer or slower one ends the connection.

    The status alone shows whether the message is delivered.
    """
    length = answer.content_length
    if length is None or length > MAX_ANSWER:
        answer.close()
        return
    limit = min(deadline, asyncio.get_running_loop().time() + DRAIN_SECONDS)
    try:
        async with asyncio.timeout_at(limit):
            await answer.content.readexactly(length)
    except (aiohttp.ClientError, asyncio.IncompleteReadError, OSError, ValueError):
        answer.close()


def judge(status: int, retry_after: str) -> None:
    """Judge the status of an answer.

    Raises:
        NotDelivered: send the message again.
        MessageRefused: skip it.
    """
    if 200 <= status < 300:
        return
    text = f"HTTP {status}"
    if 300 <= status < 400:
        raise NotDelivered(f"{text}: redirects are not followed")
    if 400 <= status < 500 and status not in _AGAIN:
        raise MessageRefused(text)
    # A receiver answers 500 if one message is the cause, or if it is broken.
    whole = status != HTTPStatus.INTERNAL_SERVER_ERROR
    raise NotDelivered(text, retry_after=seconds_of(retry_after), whole=whole)


def seconds_of(retry_after: str) -> float | None:
    """The seconds of a ``Retry-After``, at most an hour; None if it names none."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:10]), LONGEST_RETRY_AFTER)
    try:
        at = parsedate_to_datetime(text[:64])
    except (ValueError, OverflowError):
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    seconds = (at - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER)
