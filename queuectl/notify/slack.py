"""The format of Slack's incoming webhooks.

The blocks are plain text, which Slack does not parse. The text for notifications, which other servers with this format read as
Markdown, is escaped, and its marks are broken by a character without width.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Final

from queuectl.notify.addresses import AddressBook
from queuectl.notify.channels import NotDelivered
from queuectl.notify.http import HttpClient
from queuectl.notify.messages import Message
from queuectl.notify.receivers import (
    InvalidReceiver,
    Receiver,
    SlackTarget,
    checked_url,
    read_secret,
)

MAX_BLOCK: Final = 3000  # characters, by Slack's limit
MAX_BLOCKS: Final = 40  # Slack's limit is 50
WORD_JOINER: Final = "\u2060"

_MARKS: Final = re.compile(r"[@#`*_~|\[\]()!\\]|[:/](?=/)")


def escaped(text: str) -> str:
    """Text in which Slack reads no mention, link or other control sequence."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def unmarked(text: str) -> str:
    """Text in which no server reads a mention, a link or Markdown."""
    return escaped(_MARKS.sub(lambda mark: f"{mark[0]}{WORD_JOINER}", text))


def payload(message: Message) -> bytes:
    """The JSON of a message.

    Raises:
        ValueError: JSON cannot hold it.
    """
    blocks = [
        {"type": "section", "text": {"type": "plain_text", "text": text, "emoji": False}}
        for text in _blocks(message)
    ]
    content = {
        "text": f"{message.title}: {unmarked(message.text)}",
        "blocks": blocks[:MAX_BLOCKS],
        "mrkdwn": False,
        "link_names": False,
        "parse": "none",
        "unfurl_links": False,
        "unfurl_media": False,
    }
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def _blocks(message: Message) -> list[str]:
    """The lines of a message, as few texts of a length that Slack takes."""
    texts: list[str] = []
    for line in (message.title, message.text, *message.lines):
        safe = escaped(line)
        if texts and len(texts[-1]) + 1 + len(safe) <= MAX_BLOCK:
            texts[-1] += f"\n{safe}"
        else:
            texts.append(safe)
    return texts


class SlackChannel:
    """To one incoming webhook. Slack takes about one message a second, so they are sent one after the other."""

    at_once = 1

    def __init__(self, receiver: Receiver, target: SlackTarget, book: AddressBook) -> None:
        """Connect nothing yet."""
        self._receiver = receiver
        self._target = target
        self._book = book
        self._http: HttpClient | None = None

    async def send(self, message: Message, to: str) -> None:  # noqa: ARG002 - of the interface
        """Send one message."""
        body = payload(message)
        if self._http is None:
            try:
                url = checked_url(await asyncio.to_thread(read_secret, self._target.url_file))
            except InvalidReceiver as error:
                raise NotDelivered(str(error)) from error
            self._http = HttpClient(self._receiver, url, self._book)
        await self._http.post(body, {"Content-Type": "application/json; charset=utf-8"})

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()
