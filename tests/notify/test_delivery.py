"""Delivery by workers: what a receiver gets when it, a replica or the database fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from queuectl.domain.containment import Containment
from queuectl.domain.errors import StoreUnavailable
from queuectl.domain.notifications import (
    Audience,
    Event,
    EventType,
    Mode,
    Scope,
    Subscription,
)
from queuectl.notify import delivery, worker
from queuectl.notify.channels import MessageRefused, NotDelivered
from queuectl.notify.delivery import MOST_ATTEMPTS, Delivery
from queuectl.notify.messages import Message, Messages
from queuectl.notify.receivers import Bounds, InvalidReceiver, Receiver, SmtpTarget, WebhookTarget
from queuectl.notify.worker import DeliveryWorker
from queuectl.telemetry.notifications import NotificationMetrics
from tests.doubles import notifications as database
from tests.doubles.notifications import MemoryNotifications, MemoryNotificationTables
from tests.notify.parts import event

FILE = Path("/not/read")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(worker, "MEASURE_SECONDS", 0.0)
    monkeypatch.setattr(delivery, "FIRST_RETRY", 0.002)
    monkeypatch.setattr(delivery, "LONGEST_RETRY", 0.01)


def webhook(name: str = "ops", **options: Any) -> Receiver:
    audience = options.pop("audience", Audience(name, everything=True))
    return Receiver(audience, WebhookTarget("https://a.example/", FILE), **options)


def mail(**options: Any) -> Receiver:
    target = SmtpTarget("a.example", "q@a.example", to=options.pop("to", ""))
    audience = Audience("mail", personal=True, everything=bool(target.to))
    return Receiver(audience, target, **options)


Answer = Callable[[Message, str], Awaitable[None]]


async def takes(_: Message, __: str) -> None:
    """The receiver takes each message."""


@dataclass
class Inbox:
    """The messages of a receiver: a channel double."""

    answer: Answer = takes
    at_once: int = 8
    got: list[tuple[Message, str]] = field(default_factory=list)
    closed: int = 0

    async def send(self, message: Message, to: str) -> None:
        await self.answer(message, to)
        self.got.append((message, to))

    async def close(self) -> None:
        self.closed += 1

    @property
    def names(self) -> list[str]:
        return [message.subject.rpartition("/")[2] or message.title for message, _ in self.got]


class Lab:
    """An outbox, receivers with their inboxes, and replicas."""

    def __init__(self, *receivers: Receiver) -> None:
        self.tables = MemoryNotificationTables()
        self.reach: Callable[[], Awaitable[object]] = self._answer
        self.store: Any = MemoryNotifications(self.tables, self._reach)
        self.receivers = list(receivers)
        self.inboxes = {receiver.name: Inbox() for receiver in receivers}
        self.registry = CollectorRegistry()
        self.metrics = NotificationMetrics(self.registry)
        self.replicas = 0

    async def _reach(self) -> object:
        return await self.reach()

    async def _answer(self) -> None:
        return

    def worker(self, store: Any = None, channels: Any = None) -> DeliveryWorker:
        self.replicas += 1
        name, reached = f"replica-{self.replicas}", store or self.store
        opened = channels or (lambda receiver: self.inboxes[receiver.name])
        turns = Delivery(reached, Messages("lab"), opened, self.metrics, name)
        contained = Containment(time.time)
        return DeliveryWorker(reached, turns, lambda: self.receivers, self.metrics, contained, name)

    async def begin(self) -> None:
        """Receivers begin at the end of the outbox, so each has its cursor before the first event."""
        for each in self.receivers:
            for mode in each.modes:
                await self.store.claim([(each.name, mode)], "", 0.0)

    def add(self, *events: Event) -> None:
        self.tables.add([replace(each, at=time.time() + each.at) for each in events])

    @asynccontextmanager
    async def running(self, replicas: int = 1) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.worker().run()) for _ in range(replicas)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110 - of any state
                await asyncio.sleep(0.001)

    def settled(self) -> bool:
        return all(c.progress.line == self.tables.last for c in self.tables.cursors.values())

    def count(self, name: str, receiver: str = "ops") -> float:
        labels = {"receiver": receiver}
        return self.registry.get_sample_value(f"queuectl_{name}", labels) or 0.0


def clock_ahead(seconds: float) -> SimpleNamespace:
    """A module ``time`` with another time of day."""
    return SimpleNamespace(time=lambda: time.time() + seconds, monotonic=time.monotonic)


def jobs(number: int, **fields: Any) -> list[Event]:
    return [event(each, at=0.0, **fields) for each in range(number)]


async def test_each_receiver_gets_each_event_once_from_several_replicas() -> None:
    lab = Lab(webhook("ops"), webhook("chat"))
    await lab.begin()
    lab.add(*jobs(150))
    async with lab.running(replicas=3):
        await lab.until(lab.settled)
    names = [f"train-{number}" for number in range(150)]
    for inbox in lab.inboxes.values():
        assert sorted(inbox.names) == sorted(names)
    assert lab.count("notifications_delivered_total") == 150
    assert [status.delivered for status in await lab.store.statuses()] == [150, 150]
    assert all(cursor.claimed_by is None for cursor in lab.tables.cursors.values())


async def test_a_receiver_that_hangs_or_fails_delays_no_other() -> None:
    lab = Lab(webhook("hangs"), webhook("down"), webhook("ops"))

    async def hangs(_: Message, __: str) -> None:
        await asyncio.Event().wait()

    async def down(_: Message, __: str) -> None:
        raise NotDelivered("HTTP 503")

    lab.inboxes["hangs"].answer, lab.inboxes["down"].answer = hangs, down
    await lab.begin()
    lab.add(*jobs(3))
    async with lab.running():
        await lab.until(lambda: len(lab.inboxes["ops"].got) == 3)
        await lab.until(lambda: lab.tables.cursors["down", Mode.IMMEDIATE].progress.failures > 3)
    down_cursor = lab.tables.cursors["down", Mode.IMMEDIATE]
    assert down_cursor.error == "HTTP 503"
    assert lab.count("notifications_failed_total", "down") >= 4
    assert lab.tables.cursors["hangs", Mode.IMMEDIATE].claimed_by is None  # given back
    assert lab.count("notification_delay_seconds", "down") > 0


async def test_a_message_that_cannot_be_made_or_is_refused_is_skipped() -> None:
    lab = Lab(webhook())

    async def refuses(message: Message, _: str) -> None:
        if "train-2" in message.subject:
            raise MessageRefused("HTTP 400")
        if "train-3" in message.subject:
            raise RuntimeError("a defect of the transport")

    lab.inboxes["ops"].answer = refuses
    await lab.begin()
    events = jobs(5)
    broken: Any = {"a": [object()]}
    events[1] = replace(events[1], details=broken)
    lab.add(*events)
    async with lab.running():
        await lab.until(lab.settled)
    assert lab.inboxes["ops"].names == ["train-0", "train-4"]
    assert lab.count("notifications_refused_total") == 3
    assert lab.count("notifications_delivered_total") == 2


@pytest.mark.parametrize("number", [3, 500])
async def test_a_message_that_always_fails_is_skipped_once_others_are_delivered(
    number: int,
) -> None:
    lab = Lab(webhook())
    tries = 0

    async def fails(message: Message, _: str) -> None:
        nonlocal tries
        if message.subject.endswith("train-1"):
            tries += 1
            raise NotDelivered("HTTP 500", whole=False)

    lab.inboxes["ops"].answer = fails
    await lab.begin()
    lab.add(*jobs(number))
    later = range(number, number + MOST_ATTEMPTS)
    async with lab.running():
        for each in later:
            before = tries
            await lab.until(lambda before=before: tries > before or lab.settled())  # type: ignore[misc]
            lab.add(event(each, at=0.0))
        await lab.until(lab.settled)
    assert tries >= MOST_ATTEMPTS
    jobs_of_all = {f"train-{each}" for each in range(later.stop)}
    assert sorted(lab.inboxes["ops"].names) == sorted(jobs_of_all - {"train-1"})  # no double
    assert lab.count("notifications_refused_total") == 1


@pytest.mark.parametrize("number", [1, 3, 300])
async def test_mail_that_always_fails_delays_no_mail_to_other_addresses(number: int) -> None:
    lab = Lab(mail())
    lab.inboxes["mail"].at_once = 1  # as that of the channel
    await lab.begin()
    failing = ("ada", "cy", "di")
    for user in (*failing, "bob"):
        lab.tables.addresses[user] = f"{user}@a.example"
        await lab.store.subscribe(Subscription(user, Scope.USER, user, "mail"))

    async def answer(_: Message, to: str) -> None:
        if not to.startswith("bob"):
            raise NotDelivered("SMTP 452", whole=False, address=True)

    lab.inboxes["mail"].answer = answer
    lab.add(*(event(n, at=0.0, user=user) for n in range(number) for user in failing))
    async with lab.running():
        for expected in range(1, 10):
            lab.add(event(1000 + expected, at=0.0, user="bob"))
            await lab.until(lambda n=expected: len(lab.inboxes["mail"].got) == n)  # type: ignore[misc]
        assert lab.count("notifications_refused_total", "mail") >= min(number, 2) * len(failing)


async def test_many_mails_to_one_address_that_fail_delay_no_mail_to_other_addresses() -> None:
    lab = Lab(mail())
    lab.inboxes["mail"].at_once = 1
    await lab.begin()
    for user in ("ada", "bob"):
        lab.tables.addresses[user] = f"{user}@a.example"
        await lab.store.subscribe(Subscription(user, Scope.USER, user, "mail"))
    tries = 0

    async def answer(_: Message, to: str) -> None:
        nonlocal tries
        tries += to.startswith("ada")
        if to.startswith("ada"):
            raise NotDelivered("SMTP 451", whole=False)

    lab.inboxes["mail"].answer = answer
    lab.add(*(event(n, at=0.0, user="ada") for n in range(300)))
    lab.add(*(event(n, at=0.0, user="bob") for n in range(300, 310)))
    async with lab.running():
        await lab.until(lambda: len(lab.inboxes["mail"].got) == 10)
    assert tries <= 2 * delivery.MOST_FAILURES


async def test_a_mail_that_always_fails_delays_no_mail_to_the_same_address() -> None:
    lab = Lab(mail(to="ops@a.example"))
    lab.inboxes["mail"].at_once = 1
    await lab.begin()

    async def answer(message: Message, _: str) -> None:
        if int(message.subject.rpartition("-")[2]) < 10:
            raise NotDelivered("SMTP 451", whole=False)

    lab.inboxes["mail"].answer = answer
    lab.add(*jobs(300))
    async with lab.running():
        await lab.until(lambda: len(lab.inboxes["mail"].got) == 290)


@pytest.mark.parametrize("address", [False, True])
async def test_mail_that_failed_is_delivered_when_its_address_takes_it(address: bool) -> None:
    lab = Lab(mail(to="ops@a.example"))
    lab.inboxes["mail"].at_once = 1
    await lab.begin()
    tries = 0

    async def answer(message: Message, _: str) -> None:
        nonlocal tries
        tries += message.subject.endswith("train-0")
        if tries < 3:
            raise NotDelivered("SMTP 451", whole=False, address=address)

    lab.inboxes["mail"].answer = answer
    lab.add(*jobs(400))
    async with lab.running():
        await lab.until(lab.settled)
    assert sorted(lab.inboxes["mail"].names) == sorted(f"train-{n}" for n in range(400))


async def test_a_receiver_that_is_broken_for_all_loses_nothing() -> None:
    lab = Lab(webhook())
    broken = True

    async def fails(_: Message, __: str) -> None:
        if broken:
            raise NotDelivered("HTTP 500", whole=False)

    lab.inboxes["ops"].answer = fails
    await lab.begin()
    lab.add(*jobs(20))
    cursor = lab.tables.cursors["ops", Mode.IMMEDIATE]
    async with lab.running():
        await lab.until(lambda: cursor.progress.failures > 2 * MOST_ATTEMPTS)
        failed = lab.count("notifications_failed_total")
        assert failed <= 10 * cursor.progress.failures  # few requests for each attempt
        broken = False
        await lab.until(lab.settled)
    assert len(set(lab.inboxes["ops"].names)) == 20
    assert lab.count("notifications_refused_total") == 0


async def test_events_beyond_the_bounds_are_dropped_with_one_message() -> None:
    lab = Lab(webhook(bounds=Bounds(max_age=60, max_rows=10)))
    await lab.begin()
    lab.add(*jobs(30))
    async with lab.running():
        await lab.until(lab.settled)
    assert lab.inboxes["ops"].names == [
        "Notifications dropped",
        *(f"train-{n}" for n in range(20, 30)),
    ]
    assert lab.inboxes["ops"].got[0][0].json["dropped"] == 20
    assert lab.count("notifications_dropped_total") == 20


async def test_the_message_about_dropped_events_is_sent_again_until_it_is_taken() -> None:
    lab = Lab(webhook(bounds=Bounds(max_age=60, max_rows=10)))
    ids: list[str] = []

    async def fails(message: Message, _: str) -> None:
        ids.append(message.id)
        if len(ids) < 3:
            raise NotDelivered("HTTP 503")

    lab.inboxes["ops"].answer = fails
    await lab.begin()
    lab.add(*jobs(12))
    async with lab.running():
        await lab.until(lab.settled)
    assert ids[0] == ids[1] == ids[2] == "lab-dropped-ops-2"
    assert len(lab.inboxes["ops"].got) == 11
    assert lab.count("notifications_dropped_total") == 2


async def test_a_message_about_dropped_events_that_always_fails_delays_no_event() -> None:
    lab = Lab(webhook(bounds=Bounds(max_age=60, max_rows=10)))
    ids: list[str] = []

    async def fails(message: Message, _: str) -> None:
        if message.type.endswith("dropped"):
            ids.append(message.id)
            raise NotDelivered("HTTP 500", whole=False)

    lab.inboxes["ops"].answer = fails
    await lab.begin()
    lab.add(*jobs(12))
    inbox, cursor = lab.inboxes["ops"], lab.tables.cursors["ops", Mode.IMMEDIATE]
    async with lab.running(replicas=2):
        await lab.until(lambda: len(inbox.got) == 10)
        await lab.until(lambda: cursor.progress.failures > MOST_ATTEMPTS)
        assert cursor.progress.dropped == 2, "no other message is delivered in the meantime"
        for number in range(12, 12 + MOST_ATTEMPTS):
            tries = len(ids)
            lab.add(event(number, at=0.0))
            await lab.until(lambda n=number: len(inbox.got) == n - 1)  # type: ignore[misc]
            await lab.until(lambda n=tries: len(ids) > n or not cursor.progress.dropped)  # type: ignore[misc]
        await lab.until(lambda: not cursor.progress.dropped)
    assert sorted(inbox.names) == sorted(f"train-{n}" for n in range(2, 12 + MOST_ATTEMPTS))
    assert set(ids) == {"lab-dropped-ops-2"}
    assert lab.count("notifications_refused_total") == 1
    assert lab.count("notifications_delivered_total") == 10 + MOST_ATTEMPTS


async def test_a_message_about_dropped_events_that_failed_is_sent_after_the_events() -> None:
    lab = Lab(webhook(bounds=Bounds(max_age=60, max_rows=10)))
    tries = 0

    async def fails(message: Message, _: str) -> None:
        nonlocal tries
        tries += message.type.endswith("dropped")
        if message.type.endswith("dropped") and tries < MOST_ATTEMPTS:
            raise NotDelivered("HTTP 500", whole=False)

    lab.inboxes["ops"].answer = fails
    await lab.begin()
    lab.add(*jobs(12))
    cursor = lab.tables.cursors["ops", Mode.IMMEDIATE]
    async with lab.running():
        await lab.until(lambda: tries == MOST_ATTEMPTS and not cursor.progress.dropped)
        assert lab.inboxes["ops"].names[-1] == "Notifications dropped"
        lab.add(*jobs(12))
        await lab.until(lambda: len(lab.inboxes["ops"].got) == 22)
    told = [m for m, _ in lab.inboxes["ops"].got if m.type.endswith("dropped")]
    assert [(message.id, message.json["dropped"]) for message in told] == [
        ("lab-dropped-ops-2", 2),
        ("lab-dropped-ops-14", 2),
    ]


async def test_mail_about_dropped_events_that_always_fails_delays_no_mail_to_users() -> None:
    lab = Lab(mail(to="ops@a.example", bounds=Bounds(max_age=60, max_rows=10)))
    lab.inboxes["mail"].at_once = 1
    await lab.begin()
    lab.tables.addresses["ada"] = "ada@a.example"
    await lab.store.subscribe(Subscription("ada", Scope.USER, "ada", "mail"))

    async def answer(_: Message, to: str) -> None:
        if to.startswith("ops"):
            raise NotDelivered("SMTP 452", whole=False, address=True)

    lab.inboxes["mail"].answer = answer
    lab.add(*jobs(12))
    async with lab.running():
        await lab.until(lambda: len(lab.inboxes["mail"].got) == 10)
    assert sorted(lab.inboxes["mail"].names) == sorted(f"train-{n}" for n in range(2, 12))


@pytest.mark.parametrize("due", [False, True])
async def test_a_message_about_dropped_events_that_always_fails_delays_no_digest(
    due: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``due``: the digests are due at the first try of the message, or after some tries."""
    audience = Audience("ops", everything=True, mode=Mode.DIGEST)
    lab = Lab(webhook(audience=audience, digest_seconds=60.0))
    monkeypatch.setattr(delivery, "DIGEST_ROWS", 10)

    async def fails(message: Message, _: str) -> None:
        if message.type.endswith("dropped"):
            raise NotDelivered("HTTP 500", whole=False)

    lab.inboxes["ops"].answer = fails
    await lab.begin()
    cursor = lab.tables.cursors["ops", Mode.DIGEST]
    lab.add(*(replace(each, at=-61.0 if due else 0.0) for each in jobs(12)))
    async with lab.running():
        if not due:
            await lab.until(lambda: cursor.progress.failures > MOST_ATTEMPTS)
            assert lab.inboxes["ops"].got == []
            monkeypatch.setattr(database, "time", clock_ahead(60.0))
        await lab.until(lambda: len(lab.inboxes["ops"].got) == 1)
        await lab.until(lab.settled)
    ((message, _),) = lab.inboxes["ops"].got
    assert message.json["events"] == 10


# ---- Mail to users, subscriptions and digests


async def test_mail_is_sent_to_the_verified_addresses_of_subscribers() -> None:
    lab = Lab(mail())
    await lab.begin()
    lab.tables.addresses |= {"ada": "ada@a.example", "bob": "bob@a.example"}
    for owner, scope, target in (
        ("bob", Scope.QUEUE, "gpus"),
        ("eve", Scope.QUEUE, "gpus"),  # has no address
        ("bob", Scope.NAMESPACE, "other"),
    ):
        await lab.store.subscribe(Subscription(owner, scope, target, "mail"))
    lab.add(
        event(1, at=0.0, receivers=("mail",)),
        event(2, at=0.0, cluster_queue="cpus"),
        event(3, at=0.0, cluster_queue="cpus", receivers=("mail", "other"), user="eve"),
    )
    async with lab.running():
        await lab.until(lab.settled)
    got = [(message.subject, to) for message, to in lab.inboxes["mail"].got]
    assert sorted(got) == [("Job/team/train-1", f"{user}@a.example") for user in ("ada", "bob")]


async def test_a_digest_is_sent_when_its_first_event_is_old_enough() -> None:
    audience = Audience("ops", everything=True, mode=Mode.DIGEST)
    lab = Lab(webhook(audience=audience, digest_seconds=100.0))
    await lab.begin()
    lab.add(event(0, at=-90.0), event(1, at=0.0, type=EventType.STARTED))
    cursor = lab.tables.cursors["ops", Mode.DIGEST]
    async with lab.running():
        await lab.until(lambda: cursor.retry_at > 0)
        assert 5 < cursor.retry_at - time.time() <= 10
        assert lab.inboxes["ops"].got == []
        lab.tables.events[0] = replace(lab.tables.events[0], at=time.time() - 101)
        cursor.retry_at = 0.0
        await lab.until(lab.settled)
    ((message, _),) = lab.inboxes["ops"].got
    assert message.json["counts"] == {"workload.evicted": 1, "workload.started": 1}
    assert cursor.delivered == 2


async def digests_by_mail(*users: str) -> Lab:
    """A lab whose mail sends each minute a digest to each of these users."""
    lab = Lab(mail(digest_seconds=60.0))
    await lab.begin()
    for user in users:
        lab.tables.addresses[user] = f"{user}@a.example"
        await lab.store.subscribe(Subscription(user, Scope.QUEUE, "gpus", "mail", mode=Mode.DIGEST))
    return lab


async def test_digests_to_users_that_were_sent_are_not_sent_again() -> None:
    lab = await digests_by_mail("ada", "bob")
    tries = 0

    async def fails(_: Message, to: str) -> None:
        nonlocal tries
        tries += to.startswith("bob")
        if to.startswith("bob") and tries < 3:
            if tries == 1:
                lab.add(replace(event(4), at=-61.0))  # it is for the next digests
            raise NotDelivered("SMTP 452", whole=False)

    lab.inboxes["mail"].answer = fails
    lab.add(*(replace(each, at=-61.0) for each in jobs(3)))
    async with lab.running():
        await lab.until(lab.settled)
    counts = sorted((to, message.json["events"]) for message, to in lab.inboxes["mail"].got)
    assert counts == [(f"{user}@a.example", events) for user in ("ada", "bob") for events in (1, 3)]


@pytest.mark.parametrize("failures", [0, 3])
async def test_each_user_gets_one_digest_from_several_replicas(failures: int) -> None:
    """One turn sends to 128 users. ``failures``: of one address, before it is delivered."""
    users = [f"user-{number:03}" for number in range(200)]
    lab = await digests_by_mail(*users)
    tries = 0

    async def answer(_: Message, to: str) -> None:
        nonlocal tries
        tries += to.startswith("user-000@")
        await asyncio.sleep(0)
        if to.startswith("user-000@") and tries <= failures:
            raise NotDelivered("SMTP 452", whole=False, address=True)

    lab.inboxes["mail"].answer = answer
    lab.add(*(replace(each, at=-61.0) for each in jobs(3)))
    async with lab.running(replicas=3):
        await lab.until(lab.settled)
    assert sorted(to for _, to in lab.inboxes["mail"].got) == [f"{u}@a.example" for u in users]
    assert lab.tables.cursors["mail", Mode.DIGEST].claimed_by is None


async def test_a_message_that_fails_repeats_no_later_one_on_another_replica() -> None:
    lab = Lab(webhook())
    await lab.begin()
    lab.add(*jobs(50))
    tries = 0

    async def answer(message: Message, _: str) -> None:
        nonlocal tries
        await asyncio.sleep(0)
        if "train-0" in message.subject:
            tries += 1
            if tries <= 3:
                raise NotDelivered("HTTP 503", whole=False)

    lab.inboxes["ops"].answer = answer
    async with lab.running(replicas=3):
        await lab.until(lab.settled)
    assert tries == 4
    assert sorted(lab.inboxes["ops"].names) == sorted(f"train-{number}" for number in range(50))


async def test_another_replica_sends_the_rest_after_one_that_stops_with_messages_ahead() -> None:
    lab = Lab(webhook())
    await lab.begin()
    lab.add(*jobs(5))
    down = True

    async def answer(message: Message, _: str) -> None:
        if down and "train-0" in message.subject:
            raise NotDelivered("HTTP 503", whole=False)

    lab.inboxes["ops"].answer = answer
    async with lab.running():
        await lab.until(lambda: len(lab.inboxes["ops"].got) == 4)
        await lab.until(lambda: lab.tables.cursors["ops", Mode.IMMEDIATE].retry_at > 0)
    assert lab.tables.cursors["ops", Mode.IMMEDIATE].claimed_by is None
    down = False
    async with lab.running():
        await lab.until(lab.settled)
    assert set(lab.inboxes["ops"].names) == {f"train-{number}" for number in range(5)}


@pytest.mark.parametrize("failing", [("bob",), ("bob", "cy", "di", "eve")])
async def test_a_digest_that_always_fails_is_skipped_when_the_next_ones_are_due(
    failing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = await digests_by_mail(*failing, "zoe")
    lab.inboxes["mail"].at_once = 1

    async def answer(_: Message, to: str) -> None:
        if not to.startswith("zoe"):
            raise NotDelivered("SMTP 452", whole=False, address=True)

    lab.inboxes["mail"].answer = answer
    cursor = lab.tables.cursors["mail", Mode.DIGEST]
    lab.add(*(replace(each, at=-61.0) for each in jobs(3)))
    async with lab.running():
        await lab.until(lambda: cursor.progress.failures > 5 * MOST_ATTEMPTS)
        assert lab.count("notifications_refused_total", "mail") == 0
        lab.add(event(3, at=0.0))
        monkeypatch.setattr(database, "time", clock_ahead(60.0))
        await lab.until(lambda: len(lab.inboxes["mail"].got) == 2)
    assert [message.json["events"] for message, _ in lab.inboxes["mail"].got] == [3, 1]
    assert lab.count("notifications_refused_total", "mail") == len(failing)


async def test_digests_that_fail_for_all_are_kept() -> None:
    lab = await digests_by_mail("ada", "bob")
    broken = True

    async def answer(_: Message, __: str) -> None:
        if broken:
            raise NotDelivered("SMTP 452", whole=False)

    lab.inboxes["mail"].answer = answer
    cursor = lab.tables.cursors["mail", Mode.DIGEST]
    lab.add(*(replace(each, at=-200.0) for each in jobs(3)))
    async with lab.running():
        await lab.until(lambda: cursor.progress.failures > 2 * MOST_ATTEMPTS)
        broken = False
        await lab.until(lab.settled)
    assert len(lab.inboxes["mail"].got) == 2
    assert lab.count("notifications_refused_total", "mail") == 0


async def test_digests_go_on_after_an_outage_beyond_the_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery, "LOOK_SECONDS", 0.001)
    audience = Audience("ops", everything=True, mode=Mode.DIGEST)
    lab = Lab(webhook(audience=audience, digest_seconds=60.0, bounds=Bounds(max_age=60)))
    await lab.begin()
    down = True

    async def answer(_: Message, __: str) -> None:
        if down:
            raise NotDelivered("HTTP 503")

    lab.inboxes["ops"].answer = answer
    cursor = lab.tables.cursors["ops", Mode.DIGEST]
    lab.add(*(replace(each, at=-61.0) for each in jobs(3)))
    async with lab.running():
        await lab.until(lambda: cursor.progress.failures > 3)
        lab.tables.events[:] = [replace(each, at=time.time() - 1000) for each in lab.tables.events]
        lab.add(replace(event(10), at=-61.0))
        down = False
        await lab.until(lab.settled)
    got = [message for message, _ in lab.inboxes["ops"].got]
    assert "lab-dropped-ops-digest-3" in {message.id for message in got}
    assert [message.json["events"] for message in got if message.title == "Digest"] == [1]


async def test_users_with_one_address_get_each_event_once_and_each_of_their_digests() -> None:
    lab = Lab(mail(digest_seconds=60.0))
    await lab.begin()
    for user, target in (("ada", "team"), ("bob", "team"), ("cy", "lab"), ("di", "lab")):
        lab.tables.addresses[user] = f"{target}@a.example"
        mode = Mode.DIGEST if target == "lab" else Mode.IMMEDIATE
        await lab.store.subscribe(Subscription(user, Scope.QUEUE, "gpus", "mail", mode=mode))
    lab.add(event(1, at=-61.0))
    async with lab.running():
        await lab.until(lab.settled)
    places = sorted((to, message.title) for message, to in lab.inboxes["mail"].got)
    digest = ("lab@a.example", "Digest")
    assert places == [digest, digest, ("team@a.example", "Workload evicted")]
    assert len({message.id for message, _ in lab.inboxes["mail"].got}) == 3


@pytest.mark.parametrize("wrong_by", [-1e9, 1e9])
async def test_a_wrong_clock_of_a_replica_changes_neither_digests_nor_the_delay(
    wrong_by: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (delivery, worker):
        monkeypatch.setattr(module, "time", clock_ahead(wrong_by))
    audience = Audience("ops", everything=True, mode=Mode.DIGEST)
    lab = Lab(webhook(audience=audience, digest_seconds=1000.0))
    await lab.begin()
    lab.add(event(0, at=-500.0))
    cursor = lab.tables.cursors["ops", Mode.DIGEST]
    async with lab.running():
        await lab.until(lambda: cursor.retry_at > 0)
        assert cursor.retry_at - time.time() == pytest.approx(500.0, abs=100.0)
        assert lab.inboxes["ops"].got == []
        lab.tables.events[0] = replace(lab.tables.events[0], at=time.time() - 3000.0)
        await lab.until(lambda: lab.count("notification_delay_seconds") > 1000.0)
        assert lab.count("notification_delay_seconds") == pytest.approx(2000.0, abs=100.0)


async def test_a_clock_that_is_ahead_postpones_no_digest_for_long() -> None:
    audience = Audience("ops", everything=True, mode=Mode.DIGEST)
    lab = Lab(webhook(audience=audience, digest_seconds=100.0))
    await lab.begin()
    cursor = lab.tables.cursors["ops", Mode.DIGEST]
    lab.add(event(0, at=50.0))
    async with lab.running():
        await lab.until(lambda: cursor.retry_at > 0)
        assert cursor.retry_at - time.time() <= 100
        lab.tables.events[0] = replace(lab.tables.events[0], at=time.time() + 1e9)
        cursor.retry_at = 0.0
        await lab.until(lab.settled)
    assert len(lab.inboxes["ops"].got) == 1


# ---- Crashes


class Killed:
    """A store, or a channel, of a process that ends at a step: after it, nothing has an effect."""

    def __init__(self, steps: Steps, inner: Any) -> None:
        self._steps = steps
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if not callable(attribute):
            return attribute

        async def call(*args: Any, **options: Any) -> Any:
            await self._steps.step()
            answer = await attribute(*args, **options)
            await self._steps.step()
            return answer

        return call


@dataclass
class Steps:
    """The steps of a process before its end: each call begins one and ends one."""

    last: int
    count: int = 0
    dead: asyncio.Event = field(default_factory=asyncio.Event)

    async def step(self) -> None:
        self.count += 1
        if self.dead.is_set():
            raise StoreUnavailable("this process has ended")
        if self.count >= self.last:
            self.dead.set()
            await asyncio.Event().wait()


@pytest.mark.parametrize("mode", list(Mode))
async def test_a_crash_at_any_step_loses_no_event(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that is sent twice has the same id and the same text."""
    monkeypatch.setattr(worker, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(worker, "RELEASE_SECONDS", 0.0)
    monkeypatch.setattr(delivery, "CHUNK", 2)
    doubles = 0
    for last in range(1, 200):
        audience = Audience("ops", everything=True, mode=mode)
        digest_seconds = 60.0 if mode is Mode.DIGEST else 0.0
        lab = Lab(webhook(audience=audience, digest_seconds=digest_seconds))
        await lab.begin()
        lab.add(*(replace(each, at=-61.0) for each in jobs(5)))
        steps = Steps(last)
        first = lab.worker(
            Killed(steps, lab.store), lambda r, s=steps, lab=lab: Killed(s, lab.inboxes[r.name])
        )
        task = asyncio.create_task(first.run())
        await lab.until(lambda s=steps, lab=lab: s.dead.is_set() or lab.settled())  # type: ignore[misc]
        crashed = steps.dead.is_set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for cursor in lab.tables.cursors.values():
            cursor.claimed_until = 0.0  # the claim of the dead process ends
        async with lab.running():
            await lab.until(lab.settled)
        got = [message for message, _ in lab.inboxes["ops"].got]
        by_id = {message.id: message for message in got}
        assert all(by_id[message.id] == message for message in got)
        assert len(by_id) == (5 if mode is Mode.IMMEDIATE else 1)
        doubles += len(got) - len(by_id)
        if not crashed:
            break
    assert last > 10
    assert doubles > 0  # a crash between the message and the cursor


async def test_a_worker_without_a_database_continues() -> None:
    lab = Lab(webhook())
    await lab.begin()
    lab.add(*jobs(5))
    failures = 0

    async def fails() -> None:
        nonlocal failures
        failures += 1
        if failures in {1, 2, 5, 9, 14, 20}:  # at another call of a turn each time
            raise StoreUnavailable("no answer")

    lab.reach = fails
    async with lab.running():
        for _ in range(500):
            if lab.settled():
                break
            await asyncio.sleep(0.002)
            for cursor in lab.tables.cursors.values():
                cursor.claimed_until = min(cursor.claimed_until, time.time() + 0.01)
    assert lab.settled()
    assert len({message.id for message, _ in lab.inboxes["ops"].got}) == 5


async def test_a_claim_that_is_lost_ends_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "EXTEND_SECONDS", 0.005)
    lab = Lab(webhook())

    async def hangs(_: Message, __: str) -> None:
        lab.tables.cursors["ops", Mode.IMMEDIATE].claimed_by = "another"
        await asyncio.sleep(100)

    lab.inboxes["ops"].answer = hangs
    await lab.begin()
    lab.add(*jobs(1))
    async with lab.running():
        await lab.until(lambda: lab.inboxes["ops"].closed > 0)
    cursor = lab.tables.cursors["ops", Mode.IMMEDIATE]
    assert (cursor.claimed_by, cursor.progress.line) == ("another", 0)


@pytest.mark.sets_aside
async def test_a_defect_about_one_receiver_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "FIRST_FAULT", 0.001)
    lab = Lab(webhook("ops"), webhook("chat"))
    await lab.begin()
    lab.add(*jobs(2))

    def opened(receiver: Receiver) -> Inbox:
        if receiver.name == "chat":
            raise RuntimeError("a defect")
        return lab.inboxes[receiver.name]

    task = asyncio.create_task(lab.worker(channels=opened).run())
    chat = lab.tables.cursors["chat", Mode.IMMEDIATE]
    await lab.until(lambda: len(lab.inboxes["ops"].got) == 2 and chat.progress.failures > 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert chat.error == "internal error"


async def test_metrics_follow_the_receivers() -> None:
    lab = Lab(webhook("ops"), webhook("chat"))
    async with lab.running():
        await lab.until(lambda: lab.count("notifications_delivered_total", "chat") == 0)
        await asyncio.sleep(0.01)
        assert (
            lab.registry.get_sample_value(
                "queuectl_notification_delay_seconds", {"receiver": "chat"}
            )
            == 0
        )
        del lab.receivers[1]
        await asyncio.sleep(0.01)
    labels = {"receiver": "chat"}
    assert lab.registry.get_sample_value("queuectl_notifications_failed_total", labels) is None


def test_faulty_receivers_are_refused() -> None:
    for options in (
        {"audience": Audience("Ops")},
        {"audience": Audience("ops", personal=True)},
        {"audience": Audience("ops", mode=Mode.DIGEST)},
        {"digest_seconds": 1.0},
        {"bounds": Bounds(max_age=1.0)},
        {"bounds": Bounds(max_rows=0)},
        {"bounds": Bounds(max_rows=10**9)},
    ):
        with pytest.raises(InvalidReceiver):
            webhook(**options)
    with pytest.raises(InvalidReceiver, match="to: an email address is required"):
        Receiver(
            Audience("m", personal=True, everything=True), SmtpTarget("a.example", "q@a.example")
        )
    mail = SmtpTarget("a.example", "q@a.example")
    wrong: tuple[dict[str, Any], ...] = (
        {"port": 0},
        {"sender": "x"},
        {"host": "127.1"},
        {"user_name_file": FILE},
    )
    for fields in wrong:
        with pytest.raises(InvalidReceiver):
            replace(mail, **fields)
