"""Mail over SMTP with TLS: plain text, one address for each mail."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from email.headerregistry import Address as Mailbox
from email.message import EmailMessage
from email.policy import SMTP as WIRE
from typing import Final

import aiosmtplib

from queuectl.notify.addresses import Address, AddressBook, AddressRefused
from queuectl.notify.channels import SEND_SECONDS, MessageRefused, NotDelivered, trusted
from queuectl.notify.messages import Message
from queuectl.notify.receivers import (
    InvalidReceiver,
    Receiver,
    SmtpSecurity,
    SmtpTarget,
    checked_mail_address,
    read_secret,
)

MAIL_SECONDS: Final = (
    30.0  # for one mail with all its commands, and for a connection with its login
)
QUIT_SECONDS: Final = 0.2
PERMANENT: Final = 500  # from this code on, by SMTP


def mail(message: Message, sender: str, to: str) -> EmailMessage:
    """The mail of a message.

    Args:
        message: its content.
        sender: mail address.
        to: mail address.

    Raises:
        InvalidReceiver: an address has a form that is not allowed.
    """
    checked_mail_address(sender)
    checked_mail_address(to)
    composed = EmailMessage(policy=WIRE)
    composed["From"] = Mailbox("queuectl", addr_spec=sender)
    composed["To"] = Mailbox(addr_spec=to)
    composed["Subject"] = f"queuectl: {message.title}"
    composed["Date"] = datetime.fromtimestamp(message.at, UTC)
    composed["Message-ID"] = f"<{message.id}@{sender.rpartition('@')[2]}>"
    composed["Auto-Submitted"] = "auto-generated"
    composed["X-Auto-Response-Suppress"] = "All"
    text = "\n".join((message.text, "", *message.lines))
    safe = text.encode("utf-8", "replace").decode()
    composed.set_content(safe.rstrip() + "\n", cte="quoted-printable")
    return composed


class MailChannel:
    """To one mail server, over one connection."""

    at_once = 1

    def __init__(self, receiver: Receiver, target: SmtpTarget, book: AddressBook) -> None:
        """Connect nothing yet."""
        self._receiver = receiver
        self._target = target
        self._book = book
        self._smtp: aiosmtplib.SMTP | None = None
        self._connection: socket.socket | None = None

    async def send(self, message: Message, to: str) -> None:
        """Send one message."""
        recipient = to or self._target.to
        try:
            content = mail(message, self._target.sender, recipient).as_bytes()
        except InvalidReceiver as error:
            raise MessageRefused(str(error)) from error
        whole, address = True, False
        try:
            async with asyncio.timeout(MAIL_SECONDS):
                if self._smtp is None or not self._smtp.is_connected:
                    self._smtp = await self._connected()
                await self._smtp.mail(self._target.sender)
                # From here on, the address or the content can be the cause. If it is the server, the next connection fails.
                whole, address = False, True
                await self._smtp.rcpt(recipient)
                address = False
                await self._smtp.data(content)
        except aiosmtplib.SMTPRecipientRefused as error:
            await self._reset()
            raise _recipient_refused(error.code) from error
        except aiosmtplib.SMTPDataError as error:
            await self._reset()
            raise _content_refused(error.code) from error
        except (aiosmtplib.SMTPException, OSError, ValueError, AddressRefused) as error:
            self._disconnect()
            raise NotDelivered(_reason(error), whole=whole, address=address) from error

    async def _reset(self) -> None:
        """Prepare the connection for the next mail after one that the server refused."""
        if self._smtp is not None:
            try:
                await self._smtp.rset()
            except (aiosmtplib.SMTPException, OSError):
                self._disconnect()

    def _disconnect(self) -> None:
        """End a connection on which an answer is missing: it could come later, and count for another mail."""
        if self._smtp is not None:
            self._smtp.close()

    async def close(self) -> None:
        """Take leave of the server and close the connection, whether it answers or not."""
        if self._smtp is not None and self._smtp.is_connected:
            with contextlib.suppress(aiosmtplib.SMTPException, OSError):
                await self._smtp.quit(timeout=QUIT_SECONDS)
        if self._smtp is not None:
            self._smtp.close()
        if self._connection is not None:
            _end(self._connection)

    async def _connected(self) -> aiosmtplib.SMTP:
        target = self._target
        addresses = await self._book.checked(target.host, self._receiver.allowed_networks)
        context = await asyncio.to_thread(trusted, self._receiver.ca_file)
        user, password = await asyncio.to_thread(_login, target)
        if self._connection is not None:
            _end(self._connection)
        connection = self._connection = await _dial(addresses, target.port)
        smtp = aiosmtplib.SMTP(
            hostname=target.host,
            sock=connection,
            timeout=SEND_SECONDS,
            use_tls=target.security is SmtpSecurity.TLS,
            start_tls=target.security is SmtpSecurity.STARTTLS,
            tls_context=context,
            local_hostname="queuectl.invalid",
            username=user,
            password=password,
        )
        await smtp.connect()
        return smtp


def _end(connection: socket.socket) -> None:
    """End a connection at once: a server that does not end TLS would hold it for half a minute."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _login(target: SmtpTarget) -> tuple[str | None, str | None]:
    if target.user_name_file is None or target.password_file is None:
        return None, None
    return read_secret(target.user_name_file), read_secret(target.password_file)


async def _dial(addresses: Sequence[Address], port: int) -> socket.socket:
    """A connection to the first checked address that answers. One that does not answer leaves time for the others."""
    loop = asyncio.get_running_loop()
    failure: OSError = ConnectionError("no address")
    for address in addresses:
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            async with asyncio.timeout(SEND_SECONDS / len(addresses)):
                await loop.sock_connect(connection, (str(address), port))
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise failure


def _recipient_refused(code: int) -> Exception:
    if code >= PERMANENT:
        return MessageRefused(f"the mail server refuses the address (SMTP {code})")
    text = f"the mail server refuses the address now (SMTP {code})"
    return NotDelivered(text, whole=False, address=True)


def _content_refused(code: int) -> Exception:
    if code >= PERMANENT:
        return MessageRefused(f"the mail server refuses the email (SMTP {code})")
    return NotDelivered(f"SMTP {code}", whole=False)


def _reason(error: Exception) -> str:
    if isinstance(error, (AddressRefused, InvalidReceiver)):
        return str(error)
    if isinstance(error, aiosmtplib.SMTPAuthenticationError):
        return f"the mail server refuses the login (SMTP {error.code})"
    if isinstance(error, aiosmtplib.SMTPResponseException):
        return f"SMTP {error.code}"
    if isinstance(error, TimeoutError):
        return "the mail server does not answer within 5 seconds"
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return "the certificate is not valid for the host"
    return f"no connection to the mail server: {type(cause).__name__}"
