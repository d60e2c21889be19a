"""Receivers and subscriptions of a caller: which ones it may use, and what it may subscribe to.

A caller subscribes to its own jobs with the right ``create subscriptions`` in any namespace, to a namespace with the right there, and to
a ClusterQueue with the right in all namespaces. No answer has an address or a credential of a receiver.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final, Literal

from fastapi import Request
from pydantic import Field

from queuectl.api.access import ANONYMOUS, Guard, Visible, caller_of
from queuectl.api.auth.audit import record_change
from queuectl.api.params import NAME
from queuectl.api.problems import ApiProblem, ProblemType, wrong_parameter
from queuectl.api.schemas import View, maybe
from queuectl.db.ports import ApiStore
from queuectl.domain.identity import LONGEST_NAME, Right
from queuectl.domain.notifications import (
    ADMINISTRATORS_ONLY,
    MOST_SUBSCRIPTIONS,
    SELECTABLE,
    EventType,
    Mode,
    ReceiverStatus,
    Scope,
    Subscription,
)
from queuectl.domain.queries import DocumentKey
from queuectl.notify.receivers import Receiver, SlackTarget, SmtpTarget
from queuectl.notify.receivers_file import ReceiverList

STATUS: Final = Right("get", "receivers/status")
_CREATE: Final = ("create", "subscriptions")
_DELETE: Final = Right("delete", "subscriptions")
_LIST: Final = Right("list", "subscriptions")
_NO_ADDRESS: Final = (
    "you have no verified email address: sign in to the dashboard through the OpenID Connect issuer"
)
_NO_USER: Final = "queuectl does not authenticate callers here, so it knows none of your jobs"

ReceiverKind = Literal["webhook", "slack", "smtp"]


class ReceiverStatusView(View):
    """The delivery to a receiver in one mode."""

    mode: Mode
    waiting: int = Field(description="Events after the last delivered one, for it or not.")
    delivered: int
    dropped: int = Field(description="Events beyond its bounds that no message has reported yet.")
    failures: int = Field(description="Failed attempts since the last success.")
    error: str = Field(description="Of the last attempt; empty after a success.")
    retry_at: datetime | None = Field(
        description="Time of the next attempt, or of the next digest; null = at the next event."
    )


class ReceiverView(View):
    """A receiver that the caller may use."""

    name: str
    kind: ReceiverKind
    modes: list[Mode]
    events: list[EventType] = Field(description="The types that a subscription can select.")
    personal: bool = Field(
        description="true = it sends email to the verified address of each subscriber."
    )
    status: list[ReceiverStatusView] | None = Field(
        description="For callers with the right `get receivers/status`; empty before the first delivery, null without the right."
    )


class ReceiverPage(View):
    items: list[ReceiverView] = Field(description="By name.")
    address: str | None = Field(
        description="Your email address that the OpenID Connect issuer has verified at your last sign-in."
    )
    error: str | None = Field(
        description="Why the file with the receivers, as it is now, has no effect; null = it has, or without the right `get receivers/status`."
    )


class SubscriptionBody(View):
    """A subscription to create."""

    receiver: str = Field(min_length=1, max_length=63)
    scope: Scope = Field(Scope.USER, description="`user` = your own jobs.")
    target: str | None = Field(
        None,
        pattern=NAME,
        description="Name of the namespace, or of the ClusterQueue; omit it for your own jobs.",
    )
    events: list[EventType] = Field(
        [], max_length=len(SELECTABLE), description="Types of events; empty = all."
    )
    mode: Mode = Mode.IMMEDIATE


class SubscriptionView(View):
    """A subscription."""

    id: int
    owner: str
    scope: Scope
    target: str
    receiver: str
    events: list[EventType] = Field(description="Empty = all.")
    mode: Mode
    warning: str | None = Field(description="Why it has no effect now; null = it has.")


class SubscriptionPage(View):
    items: list[SubscriptionView] = Field(description="By id.")
    next_after: int | None = Field(
        description="Value of `after` for the next page; null = this is the last page."
    )


class ReceiverTestView(View):
    """A test event that is written, and delivered like each other event."""

    receiver: str
    to: str | None = Field(
        description="Your email address, for email to users; null = its own place."
    )


class Subscriptions:
    """The receivers and subscriptions of callers. Methods may raise StoreUnavailable and ClusterUnavailable."""

    def __init__(self, guard: Guard, store: ApiStore, receivers: ReceiverList) -> None:
        self._guard = guard
        self._store = store
        self._rows = store.notifications
        self._receivers = receivers

    @property
    def configured(self) -> bool:
        """Whether there are receivers."""
        return self._receivers.file is not None

    async def may_create(self, request: Request) -> bool:
        """Whether the caller may subscribe to anything."""
        return await self._guard.somewhere(request, *_CREATE, self._store.namespaces)

    async def receivers(self, request: Request) -> ReceiverPage:
        """The receivers that the caller may use, with their status if the caller may see it."""
        visible = await self._guard.visible(request, "list", "receivers", self._store.namespaces)
        sees_status = await self._guard.may(request, STATUS)
        statuses = await self._rows.statuses() if sees_status else ()
        usable = [each for each in self._receivers.current if _usable(each, visible)]
        return ReceiverPage(
            items=[
                _receiver(each, statuses if sees_status else None)
                for each in sorted(usable, key=lambda each: each.name)
            ],
            address=await self._address(request) if usable else None,
            error=(self._receivers.error or None) if sees_status else None,
        )

    async def own(self, request: Request) -> SubscriptionPage:
        """The caller's."""
        rows = await self._rows.subscriptions_of(caller_of(request).name)
        return SubscriptionPage(items=await self._views(rows), next_after=None)

    async def every(self, request: Request, after: int, limit: int) -> SubscriptionPage:
        """Those of all users, for a caller with the right to list them."""
        await self._guard.require(request, _LIST)
        rows = await self._rows.all_subscriptions(after, limit)
        last = rows[-1].id if len(rows) == limit else None
        return SubscriptionPage(items=await self._views(rows), next_after=last)

    async def create(self, request: Request, body: SubscriptionBody) -> SubscriptionView:
        """Create a subscription of a caller with the right to create some; one of the same scope and receiver is replaced.

        Raises:
            Problem: forbidden, not-found, invalid-parameter, or not-in-this-state with too many subscriptions.
        """
        target = await self._target(request, body)
        visible = await self._guard.visible(request, *_CREATE, self._store.namespaces)
        receiver = self._receivers.named(body.receiver)
        if receiver is None or not _usable(receiver, visible):
            detail = f"receiver {body.receiver!r} does not exist, or is not for your namespaces"
            raise ApiProblem(ProblemType.NOT_FOUND, detail)
        namespaces = receiver.audience.namespaces
        if body.scope is Scope.NAMESPACE and namespaces is not None and target not in namespaces:
            detail = f"receiver {receiver.name} is not for namespace {target}"
            raise ApiProblem(ProblemType.FORBIDDEN, detail)
        if body.mode not in receiver.modes:
            raise wrong_parameter("mode", f"receiver {receiver.name} sends no digests")
        if wrong := sorted(ADMINISTRATORS_ONLY.intersection(body.events)):
            raise wrong_parameter("events", f"{wrong[0]} cannot be selected")
        owner = caller_of(request).name
        events = frozenset(body.events)
        wanted = Subscription(owner, body.scope, target, receiver.name, events, body.mode)
        stored = await self._rows.subscribe(wanted)
        if stored is None:
            detail = f"{owner} has {MOST_SUBSCRIPTIONS} subscriptions: delete one of them"
            raise ApiProblem(ProblemType.NOT_IN_THIS_STATE, detail)
        record_change(request, f"subscription {stored.id}: {_sentence(stored)}")
        return (await self._views([stored]))[0]

    async def delete(self, request: Request, number: int, *, dry_run: bool) -> None:
        """Delete a subscription of the caller, or of any user for a caller with the right to delete them.

        Args:
            request: of the caller.
            number: of the subscription.
            dry_run: only check whether it can be deleted.

        Raises:
            Problem: forbidden, which does not show whether another user has it; not-found.
        """
        stored = await self._rows.subscription(number)
        if stored is None or stored.owner != caller_of(request).name:
            await self._guard.require(request, _DELETE)
        if stored is None or not (dry_run or await self._rows.unsubscribe(number)):
            raise ApiProblem(ProblemType.NOT_FOUND, f"subscription {number} does not exist")
        if not dry_run:
            record_change(request, f"deleted: {_sentence(stored)} of {stored.owner}")

    async def test_target(self, request: Request, name: str) -> str | None:
        """The email address to which a test of a receiver goes; None for a receiver that is one place.

        Raises:
            Problem: not-found; not-in-this-state if email has nowhere to go.
        """
        receiver = self._receivers.named(name)
        if receiver is None:
            raise ApiProblem(ProblemType.NOT_FOUND, f"receiver {name!r} does not exist")
        if not isinstance(receiver.target, SmtpTarget):
            return None
        address = await self._address(request)
        if address is None and not receiver.target.to:
            raise ApiProblem(ProblemType.NOT_IN_THIS_STATE, _NO_ADDRESS)
        return address

    async def _target(self, request: Request, body: SubscriptionBody) -> str:
        """The name of the user, namespace or ClusterQueue, once the caller's right to it is checked."""
        if body.scope is Scope.USER:
            if body.target is not None:
                raise wrong_parameter(
                    "target", "must be left out: you can subscribe to your own jobs only"
                )
            return caller_of(request).name
        if body.target is None:
            raise wrong_parameter("target", f"is required: the name of the {body.scope}")
        if body.scope is Scope.NAMESPACE:
            await self._guard.require(request, Right(*_CREATE, body.target))
            return body.target
        await self._guard.require(request, Right(*_CREATE))
        if await self._store.get_config(DocumentKey("ClusterQueue", "", body.target)) is None:
            raise ApiProblem(ProblemType.NOT_FOUND, f"ClusterQueue {body.target} does not exist")
        return body.target

    async def _address(self, request: Request) -> str | None:
        user = caller_of(request).name
        return (await self._rows.addresses([user])).get(user)

    async def _views(self, rows: Sequence[Subscription]) -> list[SubscriptionView]:
        addresses = await self._rows.addresses(sorted({row.owner for row in rows})) if rows else {}
        return [
            SubscriptionView(
                id=row.id,
                owner=row.owner,
                scope=row.scope,
                target=row.target,
                receiver=row.receiver,
                events=sorted(row.events),
                mode=row.mode,
                warning=self._warning(row, addresses),
            )
            for row in rows
        ]

    def _warning(self, row: Subscription, addresses: Collection[str]) -> str | None:
        receiver = self._receivers.named(row.receiver)
        if receiver is None:
            return f"receiver {row.receiver} no longer exists"
        if row.mode not in receiver.modes:
            return f"receiver {row.receiver} no longer sends digests"
        namespaces = receiver.audience.namespaces
        if row.scope is Scope.NAMESPACE and namespaces is not None and row.target not in namespaces:
            return f"receiver {row.receiver} cannot be used for namespace {row.target}"
        if row.scope is Scope.USER and row.owner == ANONYMOUS.name:
            return _NO_USER
        if receiver.audience.personal and row.owner not in addresses:
            return _NO_ADDRESS
        return None


def _usable(receiver: Receiver, visible: Visible) -> bool:
    """Whether a receiver is for a caller with rights in these namespaces."""
    namespaces = receiver.audience.namespaces
    if visible is None:
        return True
    return bool(visible) if namespaces is None else not namespaces.isdisjoint(visible)


def _receiver(receiver: Receiver, statuses: Sequence[ReceiverStatus] | None) -> ReceiverView:
    return ReceiverView(
        name=receiver.name,
        kind=_kind(receiver),
        modes=list(receiver.modes),
        events=list(SELECTABLE),
        personal=receiver.audience.personal,
        status=None
        if statuses is None
        else [_status(each) for each in statuses if each.receiver == receiver.name],
    )


def _kind(receiver: Receiver) -> ReceiverKind:
    if isinstance(receiver.target, SmtpTarget):
        return "smtp"
    return "slack" if isinstance(receiver.target, SlackTarget) else "webhook"


def _status(status: ReceiverStatus) -> ReceiverStatusView:
    return ReceiverStatusView(
        mode=status.mode,
        waiting=status.waiting,
        delivered=status.delivered,
        dropped=status.dropped,
        failures=status.failures,
        error=status.error[:LONGEST_NAME],
        retry_at=maybe(status.retry_at),
    )


def _sentence(subscription: Subscription) -> str:
    """For the audit log."""
    events = ", ".join(sorted(subscription.events)) or "all events"
    scope = f"{subscription.scope} {subscription.target}"
    return f"{events} of {scope} to {subscription.receiver}, {subscription.mode}"
