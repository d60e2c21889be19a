"""The receivers of notifications, as this process would reach them: file, credentials and addresses. Nothing is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from queuectl.cli.doctor.findings import Finding, Level
from queuectl.domain.errors import BadInput
from queuectl.domain.words import counted
from queuectl.notify.addresses import AddressBook, AddressRefused, Lookup, system_lookup
from queuectl.notify.receivers import (
    InvalidReceiver,
    Receiver,
    SlackTarget,
    SmtpTarget,
    WebhookTarget,
    checked_url,
    read_secret,
)
from queuectl.notify.receivers_file import read_receivers, unreadable_credentials
from queuectl.notify.webhook import secrets_of

_CHECK: Final = "receivers"
_FIX: Final = "docs/how-to/notifications.md#all-fields-of-a-receiver"


def examine(file: Path | None, lookup: Lookup = system_lookup) -> list[Finding]:
    """Findings on the receivers of a file; none without a file. ``lookup``: resolves hosts."""
    if file is None:
        return []
    try:
        receivers = read_receivers(file)
    except BadInput as error:
        return [Finding(_CHECK, Level.PROBLEM, str(error), f"correct the receiver: {_FIX}")]
    findings = asyncio.run(_all(receivers, lookup))
    fine = len(receivers) - len({finding.message.partition(":")[0] for finding in findings})
    text = f"{counted(fine, 'receiver')} of {len(receivers)} with readable credentials and permitted addresses"
    return [*findings, Finding(_CHECK, Level.OK, text)] if fine else findings


async def _all(receivers: tuple[Receiver, ...], lookup: Lookup) -> list[Finding]:
    answers = await asyncio.gather(*(_one(receiver, lookup) for receiver in receivers))
    return [finding for answer in answers for finding in answer]


async def _one(receiver: Receiver, lookup: Lookup) -> list[Finding]:
    if problems := list(await asyncio.to_thread(lambda: list(_credentials(receiver)))):
        fix = "correct the Secret with the credentials: docs/how-to/notifications.md"
        return [_problem(receiver, problem, fix) for problem in problems]
    host = await asyncio.to_thread(_host, receiver)
    try:
        await AddressBook(lookup).checked(host, receiver.allowed_networks)
    except AddressRefused as error:
        return [
            _problem(receiver, f"{host}: {error}", f"correct the host or allowedNetworks: {_FIX}")
        ]
    return []


def _problem(receiver: Receiver, message: str, fix: str) -> Finding:
    return Finding(_CHECK, Level.PROBLEM, f"{receiver.name}: {message}", fix)


def _credentials(receiver: Receiver) -> Iterator[str]:
    """A sentence for each credential that cannot be used."""
    wrong = unreadable_credentials(receiver)
    yield from wrong
    if wrong:
        return
    try:
        match receiver.target:
            case WebhookTarget() as target:
                secrets_of(read_secret(target.secrets_file))
            case SlackTarget() as target:
                checked_url(read_secret(target.url_file))
            case _:
                return
    except InvalidReceiver as error:
        yield str(error)


def _host(receiver: Receiver) -> str:
    """The host to which messages go. Its credentials are usable."""
    match receiver.target:
        case SmtpTarget() as target:
            return target.host
        case WebhookTarget() as target:
            return urlsplit(target.url).hostname or ""
        case SlackTarget() as target:
            return checked_url(read_secret(target.url_file)).hostname or ""
