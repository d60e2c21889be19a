"""The interface of each transport: a channel to one receiver, over which messages are sent for a short time."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol

from queuectl.client.tls import lenient
from queuectl.notify.messages import Message

SEND_SECONDS: Final = 5.0
"""For one request of HTTP with its answer, and for each command of SMTP."""


class NotDelivered(Exception):
    """The receiver did not take a message now. It is sent again later.

    The message of this error is shown to administrators. It quotes nothing that the receiver sent.

    Attributes:
        retry_after: seconds that the receiver asks for; None without a request.
        whole: the fault is the receiver's, not the message's: further messages of this turn fail as well.
        address: the fault is that of the mail address: further messages to it fail as well.
    """

    def __init__(
        self,
        text: str,
        *,
        retry_after: float | None = None,
        whole: bool = True,
        address: bool = False,
    ) -> None:
        super().__init__(text)
        self.retry_after = retry_after
        self.whole = whole
        self.address = address


class MessageRefused(Exception):
    """The receiver will never take this message. It is skipped."""


class Channel(Protocol):
    """A way to one receiver. It connects when the first message is sent."""

    @property
    def at_once(self) -> int:
        """How many messages can be sent at the same time."""
        ...

    async def send(self, message: Message, to: str) -> None:
        """Send one message.

        Args:
            message: what is sent.
            to: the mail address; empty for the place that the administrator set.

        Raises:
            NotDelivered: it is to be sent again.
            MessageRefused: it is to be skipped.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


def trusted(ca_file: Path | None) -> ssl.SSLContext:
    """The certificates that a receiver trusts. It blocks for about 30 ms if the file has changed.

    Raises:
        NotDelivered: the file holds no certificate.
    """
    try:
        stat = ca_file.stat() if ca_file is not None else None
        return _trusted(ca_file, (stat.st_mtime_ns, stat.st_size) if stat is not None else ())
    except OSError as error:  # ssl.SSLError is one
        raise NotDelivered("the file with the trusted certificates cannot be used") from error


@lru_cache(maxsize=32)
def _trusted(ca_file: Path | None, _version: Sequence[int]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=os.fspath(ca_file) if ca_file else None)
    return context if ca_file is None else lenient(context)
