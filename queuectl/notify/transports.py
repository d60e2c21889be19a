"""The channel of a receiver, by its kind."""

from __future__ import annotations

from queuectl.notify.addresses import AddressBook
from queuectl.notify.channels import Channel
from queuectl.notify.mail import MailChannel
from queuectl.notify.receivers import Receiver, SlackTarget, SmtpTarget, WebhookTarget
from queuectl.notify.slack import SlackChannel
from queuectl.notify.webhook import WebhookChannel


class Transports:
    """Opens channels for one installation."""

    def __init__(self, installation: str, book: AddressBook | None = None) -> None:
        """``installation``: the source of CloudEvents. ``book``: resolves hosts; None = by this machine."""
        self._installation = installation
        self._book = book or AddressBook()

    def open(self, receiver: Receiver) -> Channel:
        """A channel, which connects when the first message is sent."""
        match receiver.target:
            case WebhookTarget() as target:
                return WebhookChannel(receiver, target, self._book, self._installation)
            case SlackTarget() as target:
                return SlackChannel(receiver, target, self._book)
            case SmtpTarget() as target:
                return MailChannel(receiver, target, self._book)
