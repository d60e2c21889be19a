"""The receivers of an administrator: where events are sent, with which credentials, and within which bounds.

A credential is a file, read again for each connection, so that a changed Secret acts without a restart.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

from queuectl.domain.mail_addresses import plain_address
from queuectl.domain.notifications import LARGEST_BACKLOG, LONGEST_AGE, Audience, Mode
from queuectl.notify.addresses import Network, listable

NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
MAX_SECRET_BYTES: Final = 16_384
MAX_SECRETS: Final = 4  # of one webhook, while they are rotated
MAX_URL: Final = 2_048

_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.IGNORECASE)
_URL_PATH: Final = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*")


class InvalidReceiver(ValueError):
    """A receiver, or a credential of it, has a fault. The message names it, without secrets."""


class SmtpSecurity(StrEnum):
    """How a connection to a mail server is encrypted. Email without TLS is not sent."""

    STARTTLS = "starttls"
    TLS = "tls"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Beyond either of them, the oldest events are dropped and counted.

    Attributes:
        max_age: seconds.
        max_rows: events in the outbox that this receiver has not passed, for it or not.
    """

    max_age: float = 6 * 3600.0
    max_rows: int = 10_000


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """CloudEvents 1.0 in JSON, signed as Standard Webhooks do.

    Attributes:
        url: https only.
        secrets_file: one secret a line, in base64 with an optional prefix ``whsec_``. Each message is signed with each of them.
    """

    url: str
    secrets_file: Path

    def __post_init__(self) -> None:
        checked_url(self.url)


@dataclass(frozen=True, slots=True)
class SlackTarget:
    """An incoming webhook of Slack, or of a server with the same format.

    Attributes:
        url_file: the whole address, which is a secret; https only.
    """

    url_file: Path


@dataclass(frozen=True, slots=True)
class SmtpTarget:
    """A mail server.

    Attributes:
        host: name or IP address.
        port: TCP port.
        security: how the connection is encrypted.
        sender: address of the sender.
        to: address of the administrator's subscription; empty = email is sent to subscribers only.
        user_name_file: user name of the login; None = no login.
        password_file: its password.
    """

    host: str
    sender: str
    port: int = 587
    security: SmtpSecurity = SmtpSecurity.STARTTLS
    to: str = ""
    user_name_file: Path | None = None
    password_file: Path | None = None

    def __post_init__(self) -> None:
        checked_host(self.host)
        if not 0 < self.port < 65_536:
            raise InvalidReceiver("the port is not between 1 and 65535")
        checked_mail_address(self.sender)
        if self.to:
            checked_mail_address(self.to)
        if (self.user_name_file is None) != (self.password_file is None):
            raise InvalidReceiver(
                "a login needs a file with the user name and one with the password"
            )


Target: TypeAlias = WebhookTarget | SlackTarget | SmtpTarget


@dataclass(frozen=True, slots=True)
class Receiver:
    """One receiver.

    Attributes:
        audience: its name, the namespaces that can use it, and the events that it gets without a subscription.
        target: where and how messages are sent.
        allowed_networks: private networks that its host may resolve to.
        ca_file: certificates that it trusts; None = those of this machine.
        digest_seconds: time between two digests; 0 = it sends none.
        bounds: of its backlog.
    """

    audience: Audience
    target: Target
    allowed_networks: tuple[Network, ...] = ()
    ca_file: Path | None = None
    digest_seconds: float = 0.0
    bounds: Bounds = Bounds()

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise InvalidReceiver("the name is not a label of DNS in lower case")
        if self.digest_seconds and not 60 <= self.digest_seconds <= 86_400 * 7:
            raise InvalidReceiver("the time between digests is not between a minute and a week")
        if self.audience.mode is Mode.DIGEST and not self.digest_seconds:
            raise InvalidReceiver("it sends no digests, but its own events are digested")
        smtp = isinstance(self.target, SmtpTarget)
        if self.audience.personal is not smtp:
            raise InvalidReceiver("only email is sent to the address of each user")
        if isinstance(self.target, SmtpTarget) and self._has_standing and not self.target.to:
            raise InvalidReceiver(
                "to: an email address is required for the events without a subscription"
            )
        if not all(map(listable, self.allowed_networks)):
            raise InvalidReceiver("an allowed network is not private")
        if not 60 <= self.bounds.max_age <= LONGEST_AGE:
            raise InvalidReceiver("the largest age is not between a minute and a week")
        if not 1 <= self.bounds.max_rows <= LARGEST_BACKLOG:
            raise InvalidReceiver(f"the most events are not between 1 and {LARGEST_BACKLOG}")

    @property
    def name(self) -> str:
        return self.audience.name

    @property
    def _has_standing(self) -> bool:
        own = self.audience
        return own.everything or bool(own.queues or own.own_namespaces)

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The ways in which it gets events, each with its own progress."""
        return (Mode.IMMEDIATE, Mode.DIGEST) if self.digest_seconds else (Mode.IMMEDIATE,)


def checked_url(text: str) -> SplitResult:
    """The parts of the address of a receiver.

    Raises:
        InvalidReceiver: it is not an https address of a host with a plain path. The message does not quote it.
    """
    if len(text) > MAX_URL or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidReceiver("the address is too long or has characters that are not allowed")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InvalidReceiver("the address has a faulty host or port") from error
    if parts.scheme != "https" or not text.lower().startswith("https://"):
        raise InvalidReceiver("the address does not begin with https://")
    if "@" in parts.netloc or "\\" in text or parts.fragment or "#" in text:
        raise InvalidReceiver("the address has a user, a backslash or a fragment")
    if port == 0:
        raise InvalidReceiver("the port is not between 1 and 65535")
    checked_host(parts.hostname or "")
    if parts.path and not _URL_PATH.fullmatch(parts.path):
        raise InvalidReceiver("the path has characters that are not allowed")
    return parts


def checked_host(host: str) -> str:
    """A host that is a plain IP address or a name of DNS.

    Some resolvers read a name of digits, such as ``0x7f.1`` or ``2130706433``, as an IP address.

    Raises:
        InvalidReceiver: it is neither.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        labels = host.removesuffix(".").split(".")
        if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
            raise InvalidReceiver("the host is neither a name nor an IP address") from None
        if re.match(r"[0-9]", labels[-1]):
            raise InvalidReceiver("the host ends in a number, but is not an IP address") from None
    else:
        if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
            raise InvalidReceiver("the host has a zone")
    return host


def checked_mail_address(text: str) -> str:
    """An email address of one mailbox.

    Raises:
        InvalidReceiver: it has another form, such as a list, a display name, quotes or characters outside ASCII.
    """
    if plain_address(text) is None:
        raise InvalidReceiver("the email address has a form that is not allowed")
    return text


def read_secret(path: Path) -> str:
    """The text of a credential without white space at its ends. It blocks.

    Raises:
        InvalidReceiver: the file is not readable, too long, empty, or not text.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
        text = content.decode("ascii").strip()
    except OSError as error:
        raise InvalidReceiver(f"credential {path.name}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidReceiver(f"credential {path.name}: not ASCII text") from error
    if len(content) > MAX_SECRET_BYTES or not text:
        raise InvalidReceiver(f"credential {path.name}: empty or too long")
    return text
