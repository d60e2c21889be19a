"""Events that queuectl sends to receivers, and who receives each one.

The leader writes an event in the transaction of the change. Any replica delivers it, at least once within the bounds of the
receiver. Times are unix seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol

# ---- Events


class EventType(StrEnum):
    """The kinds of events. The values are the types of CloudEvents without their prefix ``dev.queuectl.``."""

    STARTED = "workload.started"
    EVICTED = "workload.evicted"
    EVICTION_NOTICE = "workload.eviction-notice"
    IDLE = "workload.idle"
    FINISHED = "workload.finished"
    FAILED = "workload.failed"
    HELD = "workload.held"
    DELAYED = "workload.delayed"
    BUDGET_NEARLY_SPENT = "budget.nearly-spent"
    BUDGET_SPENT = "budget.spent"
    OBJECT_SET_ASIDE = "object.set-aside"
    LEADER_CHANGED = "controller.leader-changed"
    RECEIVER_TEST = "receiver.test"


ADMINISTRATORS_ONLY: Final = frozenset(
    {EventType.OBJECT_SET_ASIDE, EventType.LEADER_CHANGED, EventType.RECEIVER_TEST}
)
"""Types that belong to no user, namespace or ClusterQueue, so no subscription selects them."""
SELECTABLE: Final = tuple(each for each in EventType if each not in ADMINISTRATORS_ONLY)
"""Types that a subscription can select."""


class Mode(StrEnum):
    """When a receiver gets an event."""

    IMMEDIATE = "immediate"
    DIGEST = "digest"


class Scope(StrEnum):
    """Whose events a subscription selects."""

    USER = "user"
    NAMESPACE = "namespace"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class Event:
    """One event, as it is stored and sent.

    Attributes:
        id: position in the outbox; 0 before it is stored. Receivers remove doubles by it. In a database that was restored from a
            backup, ids repeat: together with ``at`` they do not.
        at: time of the change.
        type: what happened.
        kind: kind of the object; empty for events of the controller.
        namespace: its namespace; empty for objects without one.
        name: its name.
        uid: its uid; empty if it has none.
        cluster_queue: ClusterQueue of the workload or of the budget; empty if none.
        user: user of the workload; empty if unknown.
        receivers: names of receivers that the job's annotation lists.
        message: one sentence, with names in it as users wrote them. Each transport escapes it.
        details: further facts, such as lost GPU-hours. Keys are camelCase.
    """

    at: float
    type: EventType
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    cluster_queue: str = ""
    user: str = ""
    receivers: tuple[str, ...] = ()
    message: str = ""
    details: Mapping[str, str | int | float] = field(default_factory=lambda: MappingProxyType({}))
    id: int = 0


# ---- Their receivers

MOST_RECEIVERS: Final = 8
"""The most receivers that the annotation of a job can name."""
MOST_SUBSCRIPTIONS: Final = 100
"""The most subscriptions of one user."""


@dataclass(frozen=True, slots=True)
class JobNotifications:
    """The request in the annotations of a job.

    Attributes:
        receivers: names of receivers, at most :data:`MOST_RECEIVERS`.
        events: types that they get, sorted; empty for all.
        error: a sentence about a wrong value, which has no effect; empty if all values are right.
    """

    receivers: tuple[str, ...] = ()
    events: tuple[EventType, ...] = ()
    error: str = ""

    def receivers_of(self, event: EventType) -> tuple[str, ...]:
        """The receivers of an event of the job."""
        return self.receivers if not self.events or event in self.events else ()


@dataclass(frozen=True, slots=True)
class Subscription:
    """A request of a user to receive events.

    Attributes:
        id: key in the database; 0 before it is stored.
        owner: user who created it.
        scope: whose events it selects.
        target: name of the user, namespace or ClusterQueue.
        receiver: name of the receiver.
        events: types that it selects; empty for all.
        mode: when they are sent.
    """

    owner: str
    scope: Scope
    target: str
    receiver: str
    events: frozenset[EventType] = frozenset()
    mode: Mode = Mode.IMMEDIATE
    id: int = 0


@dataclass(frozen=True, slots=True)
class Audience:
    """The tenants that can use a receiver, and the events that it gets without a subscription.

    Attributes:
        name: name of the receiver.
        namespaces: tenants that may name it; None for all.
        personal: it sends to the verified address of each subscriber, not to one place.
        everything: without a subscription it gets the events of all queues and namespaces, and those of the controller.
        queues: ClusterQueues whose events it gets without a subscription.
        own_namespaces: namespaces whose events it gets without a subscription.
        events: types that it gets without a subscription; empty for all.
        mode: when it gets those.
    """

    name: str
    namespaces: frozenset[str] | None = None
    personal: bool = False
    everything: bool = False
    queues: frozenset[str] = frozenset()
    own_namespaces: frozenset[str] = frozenset()
    events: frozenset[EventType] = frozenset()
    mode: Mode = Mode.IMMEDIATE


@dataclass(frozen=True, slots=True)
class Recipient:
    """One place to which an event is sent.

    Attributes:
        user: whose address gets it; empty for the place that the administrator set.
        mode: when it is sent.
    """

    user: str
    mode: Mode


# ---- Delivery

LONGEST_AGE: Final = 7 * 86400.0
"""The longest ``maxAgeSeconds`` of a receiver."""
LARGEST_BACKLOG: Final = 100_000
"""The largest ``maxRows`` of a receiver."""
KEPT_SECONDS: Final = 8 * 86400.0
"""How long an event is kept that a receiver did not get. A receiver without a claim for this time begins again at the end."""
MOST_KEPT: Final = 200_000
"""The most events that are kept: the newest."""


@dataclass(frozen=True, slots=True)
class BudgetLimit:
    """A limit of a budget of which one event is written. ``percent``: 80 or 100. ``month``: as ``2026-11``."""

    budget: str
    month: str
    percent: int


@dataclass(frozen=True, slots=True)
class ReceiverStatus:
    """The delivery to a receiver, for people.

    Attributes:
        receiver: its name.
        mode: immediate or digest.
        waiting: events after the cursor, for this receiver or not.
        oldest_age: seconds since the oldest of them; None without one.
        delivered: events that were delivered, ever.
        dropped: events that were dropped since the last message about dropped events.
        failures: failed attempts since the last success.
        error: of the last attempt; empty after a success.
        retry_at: when the next attempt or digest is due; None = it was never postponed.
    """

    receiver: str
    mode: Mode
    waiting: int
    oldest_age: float | None
    delivered: int
    dropped: int
    failures: int
    error: str
    retry_at: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the events of a receiver are delivered, as claimed by a replica.

    Attributes:
        receiver: name of the receiver.
        mode: immediate or digest.
        line: id of the last event that is settled for this receiver.
        failures: failed attempts since the last success.
        dropped: events that were dropped since the last message about dropped events.
        dropped_since: time of the oldest of them; None if none was dropped.
        dropped_until: time of the newest of them.
        claimed_at: time of the claim.
    """

    receiver: str
    mode: Mode
    line: int
    failures: int = 0
    dropped: int = 0
    dropped_since: float | None = None
    dropped_until: float | None = None
    claimed_at: float = 0.0


class NotificationStore(Protocol):
    """Events, progress and subscriptions in the database. All times come from the database's clock."""

    async def claim(
        self, receivers: Sequence[tuple[str, Mode]], by: str, seconds: float
    ) -> Progress | None:
        """Claim one of these receivers that has undelivered or dropped events and is due; None without one.

        No other replica has claimed it. A receiver without progress begins at the current end of the outbox. Of several, the one that
        was claimed longest ago is first.
        """
        ...

    async def extend(self, receiver: str, mode: Mode, by: str, seconds: float) -> bool:
        """Keep a claim for a number of seconds more. False if another replica has it."""
        ...

    async def events(self, after: int, limit: int) -> Sequence[Event]:
        """Events with a larger id, in the order of their ids. Types that this release does not know are left out."""
        ...

    async def drop_beyond(
        self, receiver: str, mode: Mode, by: str, *, max_age: float, max_rows: int
    ) -> Progress | None:
        """Move the cursor past events beyond the bounds and count them as dropped. None if the claim is lost."""
        ...

    async def settle(
        self, receiver: str, mode: Mode, by: str, line: int, *, delivered: int, reported: int
    ) -> bool:
        """Move the cursor to ``line`` after a delivery. False if the claim is lost, and nothing is written.

        ``reported``: the number of dropped events in the message about them, if it was delivered. Others can have been dropped since.
        """
        ...

    async def postpone(
        self,
        receiver: str,
        mode: Mode,
        by: str,
        seconds: float,
        error: str,
        *,
        keep_seconds: float = 0.0,
    ) -> None:
        """Do not offer the receiver for a number of seconds, after a failure or until the next digest (empty ``error``).

        The claim is given back, or kept for ``keep_seconds`` beyond that time.
        """
        ...

    async def release(self, receiver: str, mode: Mode, by: str) -> None:
        """Give the claim back."""
        ...

    async def statuses(self) -> Sequence[ReceiverStatus]:
        """The delivery to each receiver that was ever claimed, by name and mode."""
        ...

    async def subscriptions(self, receiver: str) -> Sequence[Subscription]:
        """The subscriptions to a receiver."""
        ...

    async def subscriptions_of(self, owner: str) -> Sequence[Subscription]:
        """The subscriptions that a user created."""
        ...

    async def subscription(self, number: int) -> Subscription | None:
        """The subscription with this id, or None."""
        ...

    async def all_subscriptions(self, after: int, limit: int) -> Sequence[Subscription]:
        """The subscriptions of all users with larger ids, in the order of their ids."""
        ...

    async def subscribe(self, subscription: Subscription) -> Subscription | None:
        """Store it and assign its id. One of the same owner, scope, target and receiver gets its events and its mode instead.

        None if the owner has :data:`MOST_SUBSCRIPTIONS` others.
        """
        ...

    async def unsubscribe(self, number: int) -> bool:
        """Delete the subscription with this id. False if it does not exist."""
        ...

    async def announce_test(self, event: Event) -> None:
        """Append an event of the type :attr:`EventType.RECEIVER_TEST`, in the order of the events of the leader. This method assigns its time."""
        ...

    async def addresses(self, users: Sequence[str]) -> Mapping[str, str]:
        """Verified mail address of each of these users that has one."""
        ...

    async def keep_address(self, user: str, address: str | None) -> None:
        """Replace the verified mail address of a user. None = the identity provider verifies none now."""
        ...


# ---- Matching


def recipients(
    event: Event, audience: Audience, subscriptions: Sequence[Subscription]
) -> tuple[Recipient, ...]:
    """Where a receiver sends an event, each place once; empty if the event is not for it.

    Args:
        event: what happened.
        audience: of the receiver.
        subscriptions: those to this receiver.
    """
    own_place = event.user if audience.personal else ""
    if event.type is EventType.RECEIVER_TEST:  # for this receiver alone, whatever it gets otherwise
        tested = audience.name in event.receivers
        return (Recipient(own_place, Mode.IMMEDIATE),) if tested else ()
    modes: dict[str, Mode] = {}

    def add(place: str, mode: Mode) -> None:
        if mode is Mode.IMMEDIATE or place not in modes:
            modes[place] = mode

    if _standing(event, audience):
        add("", audience.mode)
    named = audience.name in event.receivers and _serves(audience, event.namespace)
    if named and (own_place or not audience.personal):
        add(own_place, Mode.IMMEDIATE)
    for each in subscriptions:
        if each.receiver == audience.name and _selects(each, event, audience):
            add(each.owner if audience.personal else "", each.mode)
    return tuple(Recipient(user, mode) for user, mode in sorted(modes.items()))


class SubscriptionIndex:
    """Subscriptions by target. The time for an event then does not grow with the subscriptions to other targets."""

    def __init__(self, subscriptions: Sequence[Subscription]) -> None:
        self._by_target: dict[tuple[Scope, str], list[Subscription]] = {}
        for each in subscriptions:
            self._by_target.setdefault((each.scope, each.target), []).append(each)

    def about(self, event: Event) -> list[Subscription]:
        """The subscriptions whose target is the user, the namespace or the ClusterQueue of an event."""
        targets = (
            (Scope.USER, event.user),
            (Scope.NAMESPACE, event.namespace),
            (Scope.QUEUE, event.cluster_queue),
        )
        return [each for target in targets for each in self._by_target.get(target, ())]


def _standing(event: Event, audience: Audience) -> bool:
    return (not audience.events or event.type in audience.events) and (
        audience.everything
        or bool(event.cluster_queue and event.cluster_queue in audience.queues)
        or bool(event.namespace and event.namespace in audience.own_namespaces)
    )


def _serves(audience: Audience, namespace: str) -> bool:
    """Whether tenants of a namespace may name the receiver. Events without a namespace belong to no tenant."""
    return bool(namespace) and (audience.namespaces is None or namespace in audience.namespaces)


def _selects(subscription: Subscription, event: Event, audience: Audience) -> bool:
    """An event of a queue can have no namespace: that of a budget. Users subscribe to their own events only."""
    if subscription.events and event.type not in subscription.events:
        return False
    target, served = subscription.target, _serves(audience, event.namespace)
    match subscription.scope:
        case Scope.USER:
            return served and bool(target) and event.user == target == subscription.owner
        case Scope.NAMESPACE:
            return served and event.namespace == target
        case Scope.QUEUE:
            return (
                bool(target) and event.cluster_queue == target and (served or not event.namespace)
            )
