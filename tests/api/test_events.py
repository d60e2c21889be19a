"""The event stream: every committed step in order, for each caller that may see it, and none lost over any interruption."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from starlette.requests import Request

from queuectl.api import feed as feeding
from queuectl.api.access import Guard, set_caller
from queuectl.api.app import create_app
from queuectl.api.database_check import DatabaseCheck
from queuectl.api.feed import EventFeed
from queuectl.api.routes import events as route
from queuectl.api.routes.events import ClientStream, EventScope, StreamFilter
from queuectl.db.embedded import EmbeddedServer
from queuectl.db.engine import DatabaseSettings
from queuectl.db.migrate import upgrade
from queuectl.db.ports import Commit
from queuectl.domain.errors import ClusterUnavailable, StoreUnavailable
from queuectl.domain.events import Event
from queuectl.domain.identity import Caller, Right
from queuectl.domain.ledger import EntryChange
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.conftest import AnyStore, talking_to
from tests.api.signed import asking, signed_app
from tests.api.support import LIVES, FixedHealth, job, live_through
from tests.doubles.access import MemoryAccess
from tests.doubles.store import MemoryDatabase, MemoryStore
from tests.support.postgres import server_directory
from tests.support.stores import PostgresStore

PATIENCE = 20.0  # seconds; a hang is a failure
ALL = StreamFilter(None, None, None)


@dataclass
class ReceivedEvent:
    """One block of a stream. ``data`` is None for a comment, and for the opening."""

    id: int
    event: str = ""
    data: dict[str, object] | None = None

    @property
    def name(self) -> object:
        return (self.data or {})["name"]


def blocks(text: str) -> list[ReceivedEvent]:
    """As a browser reads it."""
    found = []
    for block in text.split("\n\n")[:-1]:
        fields = dict(
            line.split(": ", 1) for line in block.splitlines() if not line.startswith(":")
        )
        data = json.loads(fields["data"]) if "data" in fields else None
        found.append(ReceivedEvent(int(fields["id"]), fields.get("event", ""), data))
    return found


class Writer:
    """The leader, as far as history is concerned."""

    def __init__(self, store: AnyStore) -> None:
        self.store = store
        self.epoch = 0
        self.cycle = 0

    async def commit(self, changes: Sequence[EntryChange]) -> None:
        """Each in its own transaction."""
        self.epoch = self.epoch or await self.store.take_over("test", 0)
        for change in changes:
            self.cycle += 1
            await self.store.commit(Commit([change]), epoch=self.epoch, cycle=self.cycle)

    async def submit(self, *names: str, namespace: str = "team-a") -> None:
        for name in names:
            await self.commit(live_through(job(name, namespace=namespace)))

    async def live(self, name: str, *events: Event) -> None:
        await self.commit(live_through(job(name), *events))


@pytest.fixture
def writer(store: AnyStore) -> Writer:
    return Writer(store)


class Sees:
    """Rights to watch in these namespaces."""

    def __init__(self, *namespaces: str) -> None:
        self.namespaces = set(namespaces)

    async def may(self, caller: Caller, right: Right) -> bool:
        return right.namespace in self.namespaces


def stream(
    feed: EventFeed,
    *,
    after: int = 0,
    until: int | None = None,
    wanted: StreamFilter = ALL,
    guard: Guard | None = None,
) -> ClientStream:
    request = Request({"type": "http"})
    return ClientStream(
        feed,
        wanted,
        EventScope(guard or Guard(), request, feed._store),
        after,
        until,
        DatabaseCheck(feed._store),
    )


@asynccontextmanager
async def open_stream(
    opened: ClientStream,
) -> AsyncIterator[Callable[[], Awaitable[list[ReceivedEvent]]]]:
    """Yields a function that returns the next lines of a stream, without its opening."""
    received = opened.chunks()

    async def more() -> list[ReceivedEvent]:
        async with asyncio.timeout(PATIENCE):
            return blocks(await anext(received))

    (first,) = await more()
    assert first.id == opened.after
    assert not first.event
    try:
        yield more
    finally:
        await received.aclose()  # type: ignore[attr-defined]  # an async generator behind the interface


async def take(
    more: Callable[[], Awaitable[list[ReceivedEvent]]], count: int
) -> list[ReceivedEvent]:
    """The next ``count`` steps."""
    found: list[ReceivedEvent] = []
    while len(found) < count:
        found += [event for event in await more() if event.event == "step"]
    assert len(found) == count
    return found


async def answered(
    store: AnyStore, query: str = "after=0&follow=false", **headers: str
) -> list[ReceivedEvent]:
    """The answer to a client that asks over HTTP and does not wait for more, without its end."""
    app = create_app(store, FixedHealth(), MetricsRecorder().registry)
    async with talking_to(app) as client, asyncio.timeout(PATIENCE):
        answer = await client.get(f"/api/v1/events?{query}", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, last = blocks(answer.text)
    assert last.event in ("end", "reset")
    return [event for event in (*events, last) if event.event not in ("", "end")]


async def test_committed_steps_reach_the_listeners(store: AnyStore, writer: Writer) -> None:
    async with open_stream(stream(EventFeed(store))) as more:
        await writer.submit("a")
        (event,) = await take(more, 1)
        assert (event.name, event.data and event.data["toState"]) == ("a", "Pending")
        await writer.submit("b", "c")
        assert [event.name for event in await take(more, 2)] == ["b", "c"]


async def test_a_step_has_every_field_of_its_history_entry(store: AnyStore, writer: Writer) -> None:
    await writer.live("running", *LIVES["running"])
    received = await answered(store)
    lines = await store.history("uid-job-running")
    assert [event.id for event in received] == [line.id for line in lines]
    started = received[1].data
    assert started is not None
    assert (started["id"], started["uid"], started["kind"]) == (
        received[1].id,
        "uid-job-running",
        "Job",
    )
    assert (started["fromState"], started["toState"]) == ("Pending", "Starting")
    assert (started["clusterQueue"], started["namespace"]) == ("team-a", "team-a")
    assert started["placement"]


async def test_all_streams_share_one_reader(store: AnyStore, writer: Writer) -> None:
    reads = 0
    history = store.history

    async def counted(*args: object, **more: object) -> object:
        nonlocal reads
        reads += 1
        return await history(*args, **more)  # type: ignore[arg-type]

    store.history = counted  # type: ignore[assignment]
    feed = EventFeed(store)
    streams = [stream(feed) for _ in range(50)]
    async with open_stream(streams[0]) as first:
        received = [opened.chunks() for opened in streams[1:]]
        for each in received:
            await anext(each)
        waiting = [asyncio.ensure_future(anext(each)) for each in received]
        await asyncio.sleep(0)
        await writer.submit("a")
        await take(first, 1)
        for text in await asyncio.gather(*waiting):
            assert [event.name for event in blocks(text)] == ["a"]
        for each in received:
            await each.aclose()  # type: ignore[attr-defined]  # an async generator behind the interface
    assert reads == 1


@pytest.mark.parametrize("how", ["header", "parameter"])
async def test_a_client_that_reconnects_gets_each_missed_step_exactly_once(
    store: AnyStore, writer: Writer, how: str
) -> None:
    await writer.submit("a", "b", "c", "d")
    whole = await answered(store)
    seen = whole[1].id
    if how == "header":
        rest = await answered(store, "after=0&follow=false", **{"Last-Event-ID": str(seen)})
    else:
        rest = await answered(store, f"after={seen}&follow=false")
    assert [event.name for event in rest] == ["c", "d"]
    assert [event.id for event in rest] == [event.id for event in whole[2:]]


async def test_a_client_without_a_last_event_id_gets_only_new_steps(
    store: AnyStore, writer: Writer
) -> None:
    await writer.submit("a")
    assert await answered(store, "follow=false") == []


async def test_a_client_that_missed_more_than_a_page_continues_without_a_gap(
    store: AnyStore, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "LONGEST_PAGE", 3)
    await writer.submit(*(f"job-{n:02}" for n in range(10)))
    async with open_stream(stream(EventFeed(store))) as more:
        before = await take(more, 10)
        await writer.submit("late")
        after = await take(more, 1)
    assert [event.name for event in before] == [f"job-{n:02}" for n in range(10)]
    assert [event.name for event in after] == ["late"]


async def test_a_slow_client_is_cut_off_and_resumes_without_a_loss(
    store: AnyStore, writer: Writer
) -> None:
    feed = EventFeed(store, window=4)
    async with open_stream(stream(feed)) as quick, open_stream(stream(feed)) as slow:
        await writer.submit("first")
        await take(quick, 1)
        (seen,) = await take(slow, 1)
        names = [f"job-{n:02}" for n in range(12)]
        for name in names:
            await writer.submit(name)
            await take(quick, 1)
        (last,) = await slow()
        assert last.event == "cut"
        assert (last.id, last.data and last.data["after"]) == (seen.id, seen.id)
        with pytest.raises(StopAsyncIteration):
            await slow()
    missed = await answered(store, f"after={last.id}&follow=false")
    assert [event.name for event in missed] == names


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["a", "b"]),
        ("&namespace=team-b", ["b"]),
        ("&cluster_queue=team-a", ["a", "b"]),
        ("&cluster_queue=other", []),
        ("&uid=uid-job-a", ["a"]),
    ],
)
async def test_filters_select(
    store: AnyStore, writer: Writer, query: str, expected: list[str]
) -> None:
    await writer.submit("a")
    await writer.submit("b", namespace="team-b")
    received = await answered(store, "after=0&follow=false" + query)
    assert [event.name for event in received] == expected


async def test_steps_that_a_caller_may_not_see_are_not_sent(
    store: AnyStore, writer: Writer
) -> None:
    await writer.submit("ours")
    await writer.submit("theirs", namespace="team-b")
    await writer.submit("ours-too")
    guard = Guard(Sees("team-a"))
    async with open_stream(stream(EventFeed(store), guard=guard)) as more:
        assert [event.name for event in await take(more, 2)] == ["ours", "ours-too"]


async def test_the_stream_ends_when_its_rights_are_revoked(
    store: AnyStore, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "TRUST_SECONDS", 0.0)
    rights = Sees("team-a", "team-b")
    async with open_stream(stream(EventFeed(store), guard=Guard(rights))) as more:
        await writer.submit("seen")
        await take(more, 1)
        rights.namespaces = {"team-b"}
        await writer.submit("unseen")
        await writer.submit("still-seen", namespace="team-b")
        assert [event.name for event in await take(more, 1)] == ["still-seen"]


async def test_the_right_to_one_workload_is_enough_for_its_steps(
    store: AnyStore, writer: Writer
) -> None:
    await writer.submit("a", "b")
    access = MemoryAccess()
    own = Right("watch", "workloads", "team-a", "a")
    access.know("of-one", "one", own)
    async with asking(signed_app(store, access), "of-one") as client:
        steps = await client.get("/api/v1/events?uid=uid-job-a&after=0&follow=false")
        other = await client.get("/api/v1/events?uid=uid-job-b&after=0&follow=false")
    assert [event.name for event in blocks(steps.text) if event.event == "step"] == ["a"]
    assert other.status_code == 404


async def test_a_stream_of_one_workload_ends_with_the_right_to_it(
    store: AnyStore, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "TRUST_SECONDS", 0.0)
    await writer.submit("a")
    access = MemoryAccess()
    own = Right("watch", "workloads", "team-a", "a")
    caller = access.know("of-one", "one", own)
    request = Request({"type": "http"})
    set_caller(request.scope, caller)
    scope = EventScope(Guard(access), request, store, workload=own)
    lines = [feeding.feed_line(line) for line in await store.history("uid-job-a")]
    access.down = True
    with pytest.raises(ClusterUnavailable):
        await scope.chunks(lines)
    access.down = False
    assert await scope.chunks(lines)
    access.granted.clear()
    assert not await scope.chunks(lines)


async def test_an_idle_stream_sends_heartbeats_with_the_newest_id(
    store: AnyStore, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "HEARTBEAT_SECONDS", 0.01)
    await writer.submit("a", "b")
    none = StreamFilter("team-c", None, None)
    async with open_stream(stream(EventFeed(store), wanted=none)) as more:
        newest = await store.newest_line()
        while (await more())[0].id < newest:
            pass


async def test_an_idle_stream_shows_whether_the_database_responds(store: AnyStore) -> None:
    check = DatabaseCheck(store)
    quiet = stream(EventFeed(store))
    events = replace(quiet, database=check, alive_seconds=0.01).chunks()
    await anext(events)
    async with asyncio.timeout(PATIENCE):
        assert 'event: alive\ndata: {"database": true, "access": true}' in await anext(events)

    async def lost() -> bool:
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "answers", lost)
        async with asyncio.timeout(PATIENCE):
            assert 'event: alive\ndata: {"database": false, "access": true}' in await anext(events)
    await events.aclose()  # type: ignore[attr-defined]


async def test_a_stream_shows_that_it_holds_steps_back_while_rights_cannot_be_checked(
    store: AnyStore, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "RETRY_SECONDS", 0.01)
    access = MemoryAccess(masters={"unauthenticated caller"}, down=True)
    feed = EventFeed(store)
    held = replace(stream(feed, guard=Guard(access)), alive_seconds=0.01)
    await writer.submit("a")
    events = held.chunks()
    await anext(events)
    async with asyncio.timeout(PATIENCE):
        while '{"database": true, "access": false}' not in await anext(events):
            pass
        access.down = False
        while "event: step" not in await anext(events):
            pass
        assert '{"database": true, "access": true}' in await anext(events)
    await events.aclose()  # type: ignore[attr-defined]


async def test_an_id_of_the_future_belongs_to_another_database(
    store: AnyStore, writer: Writer
) -> None:
    await writer.submit("a")
    (received,) = await answered(store, "after=1000")
    assert received.event == "reset"
    assert received.id == await store.newest_line()


async def test_streams_end_when_the_server_stops(store: AnyStore) -> None:
    feed = EventFeed(store)
    received = stream(feed).chunks()
    await anext(received)
    waiting = asyncio.ensure_future(anext(received))
    await asyncio.sleep(0)
    feed.close()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(StopAsyncIteration):
            await waiting


@pytest.mark.parametrize(
    ("query", "status", "problem"),
    [
        ("after=-1", 422, "invalid-parameter"),
        ("after=nonsense", 422, "invalid-parameter"),
        ("uid=nobody", 404, "not-found"),
        ("namespace=Team_A", 422, "invalid-parameter"),
    ],
)
async def test_a_wrong_parameter_is_a_problem(query: str, status: int, problem: str) -> None:
    app = create_app(MemoryStore(), FixedHealth(), MetricsRecorder().registry)
    async with talking_to(app) as client:
        answer = await client.get(f"/api/v1/events?{query}")
    assert answer.status_code == status
    assert answer.json()["type"].endswith(f"/{problem}")


async def test_an_outage_of_the_database_loses_no_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeding, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(route, "HEARTBEAT_SECONDS", 0.01)
    database = MemoryDatabase()
    store = MemoryStore(database)
    writer = Writer(store)
    async with open_stream(stream(EventFeed(store))) as more:
        await writer.submit("before")
        assert [event.name for event in await take(more, 1)] == ["before"]
        database.down = True
        async with database.changed:
            database.changed.notify_all()
        assert not (await more())[0].event
        database.down = False
        await writer.submit("after")
        assert [event.name for event in await take(more, 1)] == ["after"]


async def submit_in_the_end(writer: Writer, name: str) -> None:
    """A connection from before the restart fails once, and nothing was written through it."""
    while True:
        try:
            return await writer.submit(name)
        except StoreUnavailable:
            continue


async def test_a_restart_of_postgres_loses_no_step() -> None:
    with server_directory() as directory:
        server = EmbeddedServer(directory, durable=True)
        await server.start()
        try:
            await upgrade(server.url())
            store = await PostgresStore.connect(DatabaseSettings(server.url()))
            writer = Writer(store)
            async with open_stream(stream(EventFeed(store))) as more:
                await writer.submit("before")
                assert [event.name for event in await take(more, 1)] == ["before"]
                await server.stop(immediate=True)
                await server.start()
                for name in ("after", "later"):
                    await submit_in_the_end(writer, name)
                assert [event.name for event in await take(more, 2)] == ["after", "later"]
            await store.close()
        finally:
            await server.stop(immediate=True)


async def test_a_restored_database_ends_the_streams_with_a_message() -> None:
    database = MemoryDatabase()
    store = MemoryStore(database)
    writer = Writer(store)
    async with open_stream(stream(EventFeed(store))) as more:
        await writer.submit("a", "b", "c")
        await take(more, 3)
        database.down = True
        async with database.changed:
            database.changed.notify_all()
        await asyncio.sleep(0.01)
        del database.history[1:]
        database.down = False
        (last,) = await more()
        assert (last.event, last.id) == ("reset", 1)
