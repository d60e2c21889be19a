"""The outbox of events, the progress of receivers, and subscriptions: the real store and its double fulfill the same contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from sqlalchemy import false

from queuectl.db.engine import DatabaseSettings
from queuectl.db.ports import Commit
from queuectl.db.rows import notify_from
from queuectl.domain.containment import SetAsideObject
from queuectl.domain.errors import Fenced, StaleSnapshot
from queuectl.domain.events import Admit, Drained, PodsReady
from queuectl.domain.notifications import (
    MOST_SUBSCRIPTIONS,
    BudgetLimit,
    Event,
    EventType,
    JobNotifications,
    Mode,
    Progress,
    Scope,
    Subscription,
)
from queuectl.domain.rules import Retention
from queuectl.domain.workload_notifications import events_of
from tests.doubles.store import MemoryStore
from tests.support.stores import PostgresStore
from tests.unit.test_machine import EVICTED, PLACEMENT, SUBMITTED
from tests.unit.test_workload_notifications import changes

AnyStore = MemoryStore | PostgresStore
DAY = 86400.0
NOW = Mode.IMMEDIATE
OPS, CHAT, MAIL = ("ops", NOW), ("chat", NOW), ("ops", Mode.DIGEST)


def event(name: str, at: float = 0.0, type_: EventType = EventType.STARTED) -> Event:
    return Event(at=at, type=type_, kind="Job", namespace="team", name=name, message=name)


class Outbox:
    """A store that leads, with short forms of its methods."""

    def __init__(self, store: AnyStore) -> None:
        self.store = store
        self.rows = store.notifications
        self.epoch = 0

    async def begin(self) -> None:
        self.store.notifications_enabled = True
        self.epoch = await self.store.take_over("test", 0)

    async def add(self, *events: Event) -> None:
        now = await self.store.now()
        written = [replace(one, at=one.at + now if one.at <= 0 else one.at) for one in events]
        await self.store.announce(written, epoch=self.epoch)

    async def claim(self, by: str, *keys: tuple[str, Mode], seconds: float = 60.0) -> Progress:
        progress = await self.rows.claim(keys, by, seconds)
        assert progress is not None
        return progress

    async def names(self, after: int = 0) -> list[str]:
        return [one.name for one in await self.rows.events(after, 1000)]

    async def prune(self) -> int:
        return await self.store.prune(Retention(), await self.store.now(), epoch=self.epoch)


@pytest.fixture(params=["memory", "postgres"])
def location(request: pytest.FixtureRequest) -> str | None:
    """URL of a fresh database; None = in memory."""
    return request.getfixturevalue("database_url") if request.param == "postgres" else None


@pytest.fixture
async def outbox(location: str | None) -> AsyncIterator[Outbox]:
    made: AnyStore = MemoryStore()
    if location is not None:
        made = await PostgresStore.connect(DatabaseSettings(location))
    begun = Outbox(made)
    await begun.begin()
    yield begun
    await made.close()


async def test_the_age_of_the_oldest_event_is_by_the_clock_of_the_database(outbox: Outbox) -> None:
    await outbox.rows.claim([OPS], "a", 60.0)
    assert [status.oldest_age for status in await outbox.rows.statuses()] == [None]
    await outbox.add(event("old", at=-5000.0), event("new"))
    [status] = await outbox.rows.statuses()
    assert status.oldest_age == pytest.approx(5000.0, abs=100.0)


async def test_a_claim_has_the_time_of_the_database(outbox: Outbox) -> None:
    await outbox.rows.claim([OPS], "a", 60.0)
    await outbox.add(event("one"))
    before = await outbox.store.now()
    claimed = await outbox.claim("a", OPS)
    assert before <= claimed.claimed_at <= await outbox.store.now()
    assert await outbox.rows.drop_beyond(*OPS, "a", max_age=60.0, max_rows=10) == claimed


async def test_a_test_event_has_the_time_of_the_database(outbox: Outbox) -> None:
    before = await outbox.store.now()
    await outbox.rows.announce_test(event("test", before + DAY, EventType.RECEIVER_TEST))
    [written] = await outbox.rows.events(0, 10)
    assert before <= written.at <= await outbox.store.now()


async def test_events_are_read_as_they_were_written(outbox: Outbox) -> None:
    full = Event(
        at=1700000000.25,
        type=EventType.EVICTED,
        kind="Job",
        namespace="team",
        name="grüße",
        uid="u1",
        cluster_queue="gpus",
        user="ann's",
        receivers=("ops", "chat"),
        message="it was evicted; \u2026",
        details={"reason": "Preempted", "lostGpuHours": 1.5, "evictions": 3},
    )
    await outbox.add(full, Event(at=5.0, type=EventType.LEADER_CHANGED, message="a\0b"))
    first, second = await outbox.rows.events(0, 10)
    assert first == replace(full, id=first.id)
    assert (second.message, second.receivers, second.details) == ("a\ufffdb", (), {})
    assert [one.id for one in await outbox.rows.events(first.id, 10)] == [second.id]
    assert await outbox.rows.events(0, 1) == (first,)
    # Only the leader writes, and only if receivers are configured.
    with pytest.raises(Fenced):
        await outbox.store.announce([full], epoch=outbox.epoch - 1)
    outbox.store.notifications_enabled = False
    await outbox.add(full)
    assert len(await outbox.rows.events(0, 10)) == 2


async def test_one_replica_delivers_to_a_receiver_at_a_time(outbox: Outbox) -> None:
    rows, both = outbox.rows, (OPS, CHAT)
    await outbox.add(event("before"))
    assert await rows.claim([], "a", 60.0) is None
    # A new receiver begins at the end, without work.
    assert await rows.claim(both, "a", 60.0) is None
    await outbox.add(event("one"), event("two"))
    claims = await asyncio.gather(*(rows.claim(both, by, 60.0) for by in ("a", "b", "c")))
    claimed = {by: claim for by, claim in zip("abc", claims, strict=True) if claim is not None}
    assert sorted(claim.receiver for claim in claimed.values()) == ["chat", "ops"]
    (by, progress), (other, _) = claimed.items()
    assert await outbox.names(progress.line) == ["one", "two"]
    # The cursor moves only while the claim is one's own.
    key = progress.receiver, progress.mode
    one, two = [each.id for each in await rows.events(progress.line, 10)]
    assert not await rows.settle(*key, other, one, delivered=1, reported=0)
    assert not await rows.extend(*key, other, 60.0)
    assert await rows.drop_beyond(*key, other, max_age=DAY, max_rows=0) is None
    await rows.postpone(*key, other, 60.0, "not mine")
    await rows.release(*key, other)
    assert await rows.claim([key], other, 60.0) is None
    assert await rows.settle(*key, by, one, delivered=1, reported=0)
    assert await rows.extend(*key, by, 60.0)
    await rows.release(*key, by)
    assert (await outbox.claim("c", key)).line == one
    # It never moves back.
    assert await rows.settle(*key, "c", two, delivered=1, reported=0)
    assert await rows.settle(*key, "c", one, delivered=0, reported=0)
    await rows.release(*key, "c")
    assert await rows.claim([key], "c", 60.0) is None


async def test_an_expired_claim_and_a_postponed_receiver_are_offered_again(outbox: Outbox) -> None:
    rows = outbox.rows
    await rows.claim([OPS, MAIL], "a", 60.0)
    await outbox.add(event("one"))
    line = (await outbox.claim("a", OPS, seconds=1.0)).line
    assert await rows.claim([OPS], "b", 60.0) is None
    await asyncio.sleep(1.1)
    assert (await outbox.claim("b", OPS)).line == line
    assert not await rows.settle(*OPS, "a", line + 1, delivered=1, reported=0)
    await rows.postpone(*OPS, "b", 1.0, "timeout\0")
    assert await rows.claim([OPS], "a", 60.0) is None
    await asyncio.sleep(1.1)
    assert (await outbox.claim("a", OPS)).failures == 1
    await rows.postpone(*OPS, "a", 60.0, "again")
    # The digest of the same receiver has a separate cursor.
    digest = await outbox.claim("a", MAIL)
    assert (digest.mode, digest.line, digest.failures) == (Mode.DIGEST, line, 0)
    await rows.postpone(*MAIL, "a", 60.0, "")
    digests, immediate = await rows.statuses()
    assert (digests.waiting, digests.failures, digests.error) == (1, 0, "")
    assert (immediate.failures, immediate.error) == (2, "again")
    assert (immediate.retry_at or 0.0) > await outbox.store.now() + 50.0


async def test_a_postponed_receiver_can_be_kept_for_the_replica_that_has_claimed_it(
    outbox: Outbox,
) -> None:
    rows = outbox.rows
    await rows.claim([OPS], "a", 60.0)
    await outbox.add(event("one"))
    line = (await outbox.claim("a", OPS)).line
    assert (await outbox.claim("a", OPS)).line == line, "its own claim"
    await rows.postpone(*OPS, "a", 0.5, "again", keep_seconds=0.6)
    assert await rows.claim([OPS], "a", 60.0) is None, "it is not due"
    await asyncio.sleep(0.6)
    assert await rows.claim([OPS], "b", 60.0) is None
    assert (await outbox.claim("a", OPS)).failures == 1
    await rows.postpone(*OPS, "a", 0.1, "again", keep_seconds=0.1)
    await asyncio.sleep(0.3)
    assert (await outbox.claim("b", OPS)).failures == 2, "a has ended"
    assert await rows.claim([OPS], "a", 60.0) is None


async def test_events_beyond_the_bounds_are_dropped_and_counted(outbox: Outbox) -> None:
    rows = outbox.rows
    await rows.claim([OPS], "a", 60.0)
    await outbox.add(event("old", -7200.0), event("older", -7300.0))
    await outbox.add(*(event(str(number), number - 50.0) for number in range(5)))
    await outbox.claim("a", OPS)
    kept = await rows.drop_beyond(*OPS, "a", max_age=DAY, max_rows=7)
    assert kept is not None
    assert (kept.dropped, kept.dropped_since) == (0, None)
    by_age = await rows.drop_beyond(*OPS, "a", max_age=3600.0, max_rows=100)
    assert by_age is not None
    assert by_age.dropped == 2
    assert await outbox.names(by_age.line) == ["0", "1", "2", "3", "4"]
    by_rows = await rows.drop_beyond(*OPS, "a", max_age=3600.0, max_rows=3)
    assert by_rows is not None
    assert by_rows.dropped == 4
    assert await outbox.names(by_rows.line) == ["2", "3", "4"]
    since, until = by_rows.dropped_since, by_rows.dropped_until
    assert since is not None
    assert until is not None
    assert until - since == pytest.approx(7300.0 - 49.0, abs=5.0)
    # They stay counted until the message about them was delivered, also with nothing else to deliver.
    last = (await rows.events(0, 100))[-1].id
    assert await rows.settle(*OPS, "a", last, delivered=3, reported=0)
    await rows.release(*OPS, "a")
    assert (await outbox.claim("b", OPS)).dropped == 4
    # One of them was dropped after the message was made.
    assert await rows.settle(*OPS, "b", last, delivered=0, reported=3)
    (status,) = await rows.statuses()
    assert (status.dropped, status.waiting) == (1, 0)
    assert await rows.settle(*OPS, "b", last, delivered=0, reported=1)
    (status,) = await rows.statuses()
    assert (status.delivered, status.dropped, status.waiting) == (3, 0, 0)
    await rows.release(*OPS, "b")
    assert await rows.claim([OPS], "b", 60.0) is None


async def test_events_are_deleted_when_no_receiver_can_get_them(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = outbox.rows
    await rows.claim([OPS, CHAT], "a", 60.0)
    await outbox.add(event("ancient", -9 * DAY), event("one"), event("two"))
    # The receiver chat was removed. If it is configured again, it begins at the end.
    await outbox.claim("a", OPS)
    assert await outbox.prune() == 1
    assert [status.receiver for status in await rows.statuses()] == ["ops"]
    assert await outbox.names() == ["one", "two"]
    assert await rows.claim([CHAT], "b", 60.0) is None
    # Rows stay until each receiver is past them.
    one, two = [each.id for each in await rows.events(0, 10)]
    assert await rows.settle(*OPS, "a", one, delivered=1, reported=0)
    assert await outbox.prune() == 1
    assert await outbox.names() == ["two"]
    assert await rows.settle(*OPS, "a", two, delivered=1, reported=0)
    assert (await outbox.prune(), await outbox.names()) == (1, [])
    # A receiver that is configured again before that gets the events within its bounds. Deleted ones count as dropped.
    for module in ("queuectl.db.notifications", "tests.doubles.notifications"):
        monkeypatch.setattr(f"{module}.MOST_KEPT", 2)
    await outbox.add(*(event(str(number)) for number in range(5)))
    assert (await outbox.prune(), await outbox.names()) == (3, ["3", "4"])
    back = await outbox.claim("c", CHAT)
    assert (back.dropped, await outbox.names(back.line)) == (3, ["3", "4"])


async def test_a_removed_receiver_keeps_no_events_of_a_busy_cluster(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its oldest event was dropped, and the ones after it are not old."""
    for module in ("queuectl.db.notifications", "tests.doubles.notifications"):
        monkeypatch.setattr(f"{module}.MOST_KEPT", 1)
    await outbox.rows.claim([OPS], "a", 60.0)
    await outbox.add(event("ancient", -9 * DAY), event("one"), event("two"))
    monkeypatch.setattr("queuectl.db.notifications._abandoned", false)
    monkeypatch.setattr("tests.doubles.notifications.KEPT_SECONDS", 99 * DAY)
    await outbox.prune()
    monkeypatch.undo()
    (behind,) = await outbox.rows.statuses()
    assert (behind.dropped, behind.waiting) == (2, 1)
    assert (await outbox.prune(), await outbox.rows.statuses()) == (0, ())


async def test_the_event_of_a_budget_is_written_once(outbox: Outbox) -> None:
    nearly, spent = BudgetLimit("team", "2026-11", 80), BudgetLimit("team", "2026-11", 100)
    store = outbox.store
    await store.announce_budgets({nearly: event("80", 1.0)}, epoch=outbox.epoch)
    both = {nearly: event("again", 2.0), spent: event("100", 2.0)}
    await store.announce_budgets(both, epoch=outbox.epoch)
    await store.announce_budgets(
        {replace(nearly, month="2026-12"): event("next", 3.0)}, epoch=outbox.epoch
    )
    assert await outbox.names() == ["80", "100", "next"]
    with pytest.raises(Fenced):
        await store.announce_budgets(both, epoch=outbox.epoch - 1)


async def test_subscriptions_and_addresses_are_kept(outbox: Outbox) -> None:
    rows = outbox.rows
    own = Subscription("ann", Scope.USER, "ann", "ops", frozenset({EventType.FAILED}))
    team = Subscription("ann", Scope.NAMESPACE, "team", "chat", mode=Mode.DIGEST)
    first, second = await rows.subscribe(own), await rows.subscribe(team)
    assert first is not None
    assert second is not None
    assert first == replace(own, id=first.id)
    changed = await rows.subscribe(replace(own, events=frozenset(), mode=Mode.DIGEST))
    assert changed == replace(own, events=frozenset(), mode=Mode.DIGEST, id=first.id)
    assert await rows.subscriptions("ops") == (changed,)
    assert await rows.subscriptions_of("ann") == (changed, second)
    assert await rows.all_subscriptions(0, 1) == (changed,)
    assert await rows.all_subscriptions(first.id, 5) == (second,)
    assert (await rows.subscription(second.id), await rows.subscription(99)) == (second, None)
    assert (await rows.unsubscribe(first.id), await rows.unsubscribe(first.id)) == (True, False)
    assert await _addresses(outbox, "ann", "bob") == {}
    for address in ("ann@example.com", "ann@example.org"):
        await rows.keep_address("ann", address)
    assert await _addresses(outbox, "ann", "bob") == {"ann": "ann@example.org"}
    await rows.keep_address("ann", None)
    assert await _addresses(outbox, "ann") == {}


async def test_a_user_has_a_bounded_number_of_subscriptions(outbox: Outbox) -> None:
    rows = outbox.rows
    own = Subscription("ann", Scope.NAMESPACE, "", "ops")
    made = await asyncio.gather(
        *(rows.subscribe(replace(own, target=f"team-{n}")) for n in range(MOST_SUBSCRIPTIONS + 5))
    )
    assert made.count(None) == 5
    kept = await rows.subscriptions_of("ann")
    assert len(kept) == MOST_SUBSCRIPTIONS
    again = replace(kept[0], mode=Mode.DIGEST)
    assert await rows.subscribe(again) == again
    assert await rows.subscribe(replace(own, owner="bob")) is not None


async def test_a_test_event_is_in_the_order_of_the_events(outbox: Outbox) -> None:
    test = Event(at=5.0, type=EventType.RECEIVER_TEST, receivers=("ops",), user="ann")
    await outbox.rows.announce_test(test)
    [stored] = await outbox.rows.events(0, 10)
    assert replace(stored, id=0, at=5.0) == test


async def _addresses(outbox: Outbox, *users: str) -> dict[str, str]:
    given: Sequence[str] = users
    return dict(await outbox.rows.addresses(given))


# ---- Events that the store writes with what it stores


async def test_a_commit_writes_its_events_if_receivers_are_configured(outbox: Outbox) -> None:
    store = outbox.store
    *_, started = changes(SUBMITTED, Admit(PLACEMENT), PodsReady())
    path = changes(SUBMITTED, Admit(PLACEMENT), PodsReady(), EVICTED, Drained())
    for change in path[:3]:
        await store.commit(Commit([change]), epoch=outbox.epoch, cycle=1)
    (event_of_start,) = await outbox.rows.events(0, 10)
    assert replace(event_of_start, id=0) == events_of([started])[0]
    # A commit that fails writes no event.
    with pytest.raises(StaleSnapshot):
        await store.commit(Commit([path[4]]), epoch=outbox.epoch, cycle=1)
    with pytest.raises(Fenced):
        await store.commit(Commit([path[3]]), epoch=outbox.epoch - 1, cycle=1)
    assert len(await outbox.rows.events(0, 10)) == 1
    store.notifications_enabled = False
    await store.commit(Commit([path[3]]), epoch=outbox.epoch, cycle=1)
    assert len(await outbox.rows.events(0, 10)) == 1


async def test_annotations_and_the_announced_start_are_part_of_a_workload(outbox: Outbox) -> None:
    request = JobNotifications(("ops", "chat"), (EventType.FAILED, EventType.HELD), "a\0 error")
    (submitted,) = changes(SUBMITTED)
    entry = replace(submitted.after, notify=request, announced_start=1e9 / 3)
    new = replace(submitted, after=entry)
    await outbox.store.commit(Commit([new]), epoch=outbox.epoch, cycle=1)
    (loaded,) = (await outbox.store.load()).entries
    assert loaded.announced_start == entry.announced_start
    assert loaded.notify is not None
    assert replace(loaded.notify, error="a\0 error") == request
    document = {"receivers": ["ops"], "events": ["workload.failed", "later"], "error": ""}
    assert notify_from(document) == JobNotifications(("ops",), (EventType.FAILED,))
    assert notify_from(document | {"events": ["later"]}).receivers == ()


async def test_another_leader_and_the_first_object_of_a_defect_have_an_event(
    outbox: Outbox,
) -> None:
    store = outbox.store
    outbox.epoch = await store.take_over("pod-b", 0)
    aside = SetAsideObject(
        0, 5.0, outbox.epoch, "object", "u1", "Job/team/a", "E1", "x.py:1", 9, truncated=False
    )
    for unit in (
        aside,
        replace(aside, at=6.0),
        replace(aside, key="u2"),
        replace(aside, place="y.py:2"),
    ):
        await store.keep_set_aside(unit, b"{}")
    leads, first, second = await outbox.rows.events(0, 10)
    assert (leads.type, leads.message) == (
        EventType.LEADER_CHANGED,
        "Replica pod-b leads instead of test",
    )
    assert (first.at, first.details["place"], first.namespace) == (5.0, "x.py:1", "")
    assert (second.type, second.details["place"]) == (EventType.OBJECT_SET_ASIDE, "y.py:2")
    with pytest.raises(Fenced):
        await store.keep_set_aside(replace(aside, epoch=outbox.epoch - 1, place="z"), b"{}")
