"""CloudEvents 1.0 in JSON (structured mode), signed as the Standard Webhooks describe."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Sequence
from typing import Final

from queuectl.domain.words import format_time
from queuectl.notify.addresses import AddressBook
from queuectl.notify.channels import NotDelivered
from queuectl.notify.http import HttpClient
from queuectl.notify.messages import Message
from queuectl.notify.receivers import (
    MAX_SECRETS,
    InvalidReceiver,
    Receiver,
    WebhookTarget,
    checked_url,
    read_secret,
)

CONTENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"
LEAST_SECRET_BYTES: Final = 24
MOST_SECRET_BYTES: Final = 64
KEY_PREFIX: Final = "whsec_"
AT_ONCE: Final = 8


def cloud_event(message: Message, installation: str) -> bytes:
    """The JSON of a message.

    Raises:
        ValueError: JSON cannot hold it.
    """
    event = {
        "specversion": "1.0",
        "id": message.id,
        "source": f"/queuectl/{installation}",
        "type": message.type,
        "time": format_time(message.at),
        "datacontenttype": "application/json",
        "data": {"title": message.title, "text": message.text, **message.json},
    }
    if message.subject:
        event["subject"] = message.subject
    return json.dumps(event, separators=(",", ":"), allow_nan=False).encode()


def secrets_of(text: str) -> tuple[bytes, ...]:
    """The secrets of a file, one a line, in base64.

    Raises:
        InvalidReceiver: the file has no secret, too many, or one that is not base64 or has another length than the standard allows.
    """
    lines = [line.strip().removeprefix(KEY_PREFIX) for line in text.splitlines() if line.strip()]
    if not 0 < len(lines) <= MAX_SECRETS:
        raise InvalidReceiver(f"the file does not hold one to {MAX_SECRETS} secrets")
    try:
        secrets = tuple(base64.b64decode(line, validate=True) for line in lines)
    except (binascii.Error, ValueError) as error:
        raise InvalidReceiver("a secret is not in base64") from error
    if not all(LEAST_SECRET_BYTES <= len(each) <= MOST_SECRET_BYTES for each in secrets):
        raise InvalidReceiver("a secret does not have 24 to 64 bytes")
    return secrets


def signature(secrets: Sequence[bytes], id_: str, timestamp: int, body: bytes) -> str:
    """The header ``webhook-signature``: one signature for each secret, over the id, the time and the body."""
    signed = f"{id_}.{timestamp}.".encode() + body
    digests = (hmac.new(secret, signed, hashlib.sha256).digest() for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


class WebhookChannel:
    """To one webhook."""

    at_once = AT_ONCE

    def __init__(
        self, receiver: Receiver, target: WebhookTarget, book: AddressBook, installation: str
    ) -> None:
        """Connect nothing yet."""
        self._target = target
        self._installation = installation
        self._http = HttpClient(receiver, checked_url(target.url), book)
        self._secrets: tuple[bytes, ...] = ()

    async def send(self, message: Message, to: str) -> None:  # noqa: ARG002 - of the interface
        """Send one message."""
        body = cloud_event(message, self._installation)
        if not self._secrets:
            try:
                text = await asyncio.to_thread(read_secret, self._target.secrets_file)
                self._secrets = secrets_of(text)
            except InvalidReceiver as error:
                raise NotDelivered(str(error)) from error
        timestamp = int(time.time())
        headers = {
            "Content-Type": CONTENT_TYPE,
            "webhook-id": message.id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature(self._secrets, message.id, timestamp, body),
        }
        await self._http.post(body, headers)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()
