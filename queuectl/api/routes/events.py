"""The steps of workloads as server-sent events, which a client can resume. Each replica answers."""

# No postponed annotations here: see routes/config.py.

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from queuectl.api.access import (
    ANONYMOUS,
    Guard,
    RecentCredentials,
    caller_of,
    redactor_for,
)
from queuectl.api.database_check import DatabaseCheck
from queuectl.api.feed import (
    RETRY_SECONDS,
    EventFeed,
    EventView,
    FeedLine,
    cut,
    end,
    feed_line,
    heartbeat,
    opening,
    reset,
    sign_of_life,
    signed_out,
    step,
)
from queuectl.api.openapi import responses
from queuectl.api.params import UID, OfClusterQueue, OfNamespace
from queuectl.api.problems import OUTAGES, ApiProblem, ProblemType
from queuectl.db.ports import ApiStore
from queuectl.domain.errors import StoreUnavailable
from queuectl.domain.identity import Caller, Right
from queuectl.domain.queries import HistoryLine
from queuectl.domain.redaction import Redactor
from queuectl.objects.configuration.config_kinds import PREFIX

PATH: Final = f"{PREFIX}/events"
HEARTBEAT_SECONDS: Final = 15.0
TRUST_SECONDS: Final = 30.0  # between checks of rights
KNOWN_SECONDS: Final = 5.0  # between checks of credentials, at most
_EARLY_SECONDS: Final = 0.1
STREAM_RETRY_SECONDS: Final = 10
MOST_STREAMS: Final = 200
MOST_OF_CALLER: Final = 10  # streams

_LAST_WORDS: Final = {
    "type": "object",
    "description": "Of `cut` and `reset`.",
    "properties": {"after": {"type": "integer"}, "reason": {"type": "string"}},
    "required": ["after", "reason"],
    "additionalProperties": False,
}
_SIGN_OF_LIFE: Final = {
    "type": "object",
    "description": "Of `alive`.",
    "properties": {
        "database": {"type": "boolean", "description": "Whether the database responds."},
        "access": {
            "type": "boolean",
            "description": "Whether your rights can be checked. No step is sent while the API server of the cluster, or the issuer of your token, does not respond.",
        },
    },
    "required": ["database", "access"],
    "additionalProperties": False,
}
_EVENT: Final = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "Ask on from here after an interruption."},
        "event": {"enum": ["step", "alive", "cut", "reset", "end"]},
        "retry": {"type": "integer"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {
                "anyOf": [
                    {"$ref": f"#/components/schemas/{EventView.__name__}"},
                    _SIGN_OF_LIFE,
                    _LAST_WORDS,
                ]
            },
        },
    },
}
_LINE: Final = {"ge": 0, "lt": 1 << 63}
FromLine = Annotated[
    int | None,
    Query(
        **_LINE,
        description="Only steps after this id; 0 = all steps. Default: new steps only.",
    ),
]
LastEventId = Annotated[
    int | None,
    Header(
        **_LINE,
        description="The same, as browsers send it when they reconnect. It takes precedence over `after`.",
    ),
]
OfUid = Annotated[
    str | None,
    Query(alias="uid", pattern=UID, description="Only steps of this workload."),
]
Alive = Annotated[
    int | None,
    Query(
        ge=1,
        le=60,
        description="Send an `alive` event after this many seconds without another message, instead of a comment after 15 seconds.",
    ),
]
Follow = Annotated[
    bool,
    Query(description="false = end the stream after the last existing step, with an `end` event."),
]


class StreamLimit:
    """The open streams of one process, by caller."""

    def __init__(
        self,
        most: int = MOST_STREAMS,
        of_caller: int = MOST_OF_CALLER,
        what: str = "event streams",
    ) -> None:
        """``what``: the streams, for messages."""
        self._most = most
        self._of_caller = of_caller
        self._what = what
        self._open: Counter[str] = Counter()

    @contextmanager
    def one_more(self, caller: Caller) -> Iterator[None]:
        """A context for a stream.

        Raises:
            Problem: too-many-requests.
        """
        if caller is not ANONYMOUS and self._open[caller.name] >= self._of_caller:
            raise _too_many(f"{caller.name} has {self._of_caller} open {self._what}")
        if self._open.total() >= self._most:
            raise _too_many(f"{self._most} {self._what} are open")
        self._open[caller.name] += 1
        try:
            yield
        finally:
            self._open -= Counter((caller.name,))  # drops callers without a stream


def _too_many(detail: str) -> ApiProblem:
    headers = {"Retry-After": str(STREAM_RETRY_SECONDS)}
    return ApiProblem(ProblemType.TOO_MANY_REQUESTS, f"{detail} already", headers)


class ServerSentEvents(StreamingResponse):
    """Ends its generator when the client disconnects, not when the garbage is collected."""

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncIterator[str]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(chunks, headers=headers)
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._chunks):  # type: ignore[type-var]  # an async generator
            await super().__call__(scope, receive, send)


class EventStream(ServerSentEvents):
    """A stream of steps, which counts for its caller."""

    def __init__(self, chunks: AsyncIterator[str], limit: StreamLimit) -> None:
        super().__init__(chunks)
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._limit.one_more(caller_of(Request(scope))):
            await super().__call__(scope, receive, send)


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """The filter of a stream. Each field that is set must match."""

    namespace: str | None
    cluster_queue: str | None
    uid: str | None

    def matches(self, line: HistoryLine) -> bool:
        """Whether a line matches."""
        wanted = (
            (self.namespace, line.namespace),
            (self.cluster_queue, line.cluster_queue),
            (self.uid, line.uid),
        )
        return all(value is None or value == actual for value, actual in wanted)


class EventScope:
    """The rights of the caller of one stream. They are checked periodically, because they can be revoked."""

    def __init__(
        self,
        guard: Guard,
        request: Request,
        store: ApiStore,
        known_seconds: float = KNOWN_SECONDS,
        workload: Right | None = None,
    ) -> None:
        """``known_seconds``: between checks of the credentials.

        ``workload``: the right to the only workload of the stream; None = the stream can have several.
        """
        self._guard = guard
        self._request = request
        self._store = store
        self._known: dict[str, bool] = {}
        self._all = False
        self._workload = workload
        self._may_watch_workload = False
        self._until = 0.0
        self._credentials = RecentCredentials(request, known_seconds)

    async def is_valid(self) -> bool:
        """Whether the caller's credentials were good a few seconds ago. Raises as :meth:`chunks`."""
        return await self._credentials.valid()

    async def chunks(self, lines: Sequence[FeedLine]) -> list[str]:
        """The encoding of these lines, without those that the caller is not allowed to see.

        Raises:
            ClusterUnavailable, StoreUnavailable: the rights cannot be checked.
        """
        await self._check_rights({chunks.line.namespace for chunks in lines})
        mine = [
            chunks
            for chunks in lines
            if self._may_watch_workload or self._known[chunks.line.namespace]
        ]
        redactor = await self._redactor(frozenset[str]().union(*(chunks.named for chunks in mine)))
        return [step(chunks.id, _data(chunks, redactor)) for chunks in mine]

    async def _redactor(self, named: frozenset[str]) -> Redactor:
        if self._all:
            return Redactor()
        if named - self._known.keys():  # a text of this form can also be an image
            named &= await self._store.namespaces()
            await self._check_rights(named)
        visible = {name for name in named if self._known[name]}
        own = self._workload
        return redactor_for(named, visible, (f"{own.namespace}/{own.name}",) if own else ())

    async def _check_rights(self, namespaces: Collection[str]) -> None:
        """Find the namespaces among these in which the caller is allowed to watch workloads. A right can also be to one workload."""
        now = asyncio.get_running_loop().time()
        if now >= self._until:
            own = self._workload
            self._may_watch_workload = own is not None and await self._guard.may(self._request, own)
            self._known, self._until = {}, now + TRUST_SECONDS
        new = set(namespaces) - self._known.keys()
        if new:

            async def named() -> Iterable[str]:
                return new

            visible = await self._guard.visible(self._request, "watch", "workloads", named)
            self._all = visible is None
            self._known |= {name: visible is None or name in visible for name in new}


def _data(sent: FeedLine, redactor: Redactor) -> str:
    line = redactor.line(sent.line)
    return sent.data if line is sent.line else feed_line(line).data


@dataclass(frozen=True)
class ClientStream:
    """The stream of one client.

    Attributes:
        after: id of the line after which it begins.
        until: id of the last line; None = it does not end.
        database: checked for the `alive` events.
        alive_seconds: without another message, after which an `alive` event is sent; None = comments are sent instead.
    """

    feed: EventFeed
    filters: StreamFilter
    scope: EventScope
    after: int
    until: int | None
    database: DatabaseCheck
    alive_seconds: float | None = None

    async def chunks(self) -> AsyncIterator[str]:
        """The parts of the stream."""
        clock = asyncio.get_running_loop().time
        position, sent_at, live, access = self.after, clock(), False, True
        quiet = self.alive_seconds or HEARTBEAT_SECONDS
        async with self.feed.listening():
            restored = self.feed.restored
            yield opening(position)
            while not self.feed.closing.is_set() and not self._ended(position):
                if self.feed.restored != restored:
                    yield reset(self.feed.end)
                    return
                if live and not self.feed.keeps(position):
                    yield cut(position)
                    return
                try:
                    lines = await self.feed.more(position, min(quiet, KNOWN_SECONDS))
                    if not await self.scope.is_valid():
                        yield signed_out(position)
                        return
                    text, access = await self._shown(lines), True
                except OUTAGES as error:
                    access = isinstance(error, StoreUnavailable)
                    await asyncio.sleep(RETRY_SECONDS)
                    lines, text = (), ""
                position = lines[-1].id if lines else position
                live = live or self.feed.keeps(position)
                # A timer can end a little early, and an `alive` event must not wait for the next one.
                if not text and clock() - sent_at >= quiet - _EARLY_SECONDS:
                    text = await self._sign_of_life(position, access=access)
                if text:
                    yield text
                    sent_at = clock()
        if self._ended(position):
            yield end(position)

    async def _sign_of_life(self, position: int, *, access: bool) -> str:
        if self.alive_seconds is None:
            return heartbeat(position)
        return sign_of_life(position, database=await self.database.answers(), access=access)

    def _ended(self, position: int) -> bool:
        return self.until is not None and position >= self.until

    async def _shown(self, lines: Sequence[FeedLine]) -> str:
        matching = [chunks for chunks in lines if self.filters.matches(chunks.line)]
        return "".join(await self.scope.chunks(matching))


def add_routes(
    routes: APIRouter,
    guard: Guard,
    store: ApiStore,
    feed: EventFeed,
    limit: StreamLimit,
    database: DatabaseCheck,
) -> None:
    """Offer the path."""

    @routes.get(
        PATH,
        tags=["Events"],
        operation_id="streamEvents",
        status_code=200,
        summary="The steps of workloads as server-sent events",
        response_class=EventStream,
        responses={
            200: {
                "content": {"text/event-stream": {"schema": _EVENT}},
                "description": "A stream of `step` events; `cut` and `reset` end it, and say why. With `follow=false`, `end` ends it. Comments come every "
                "15 seconds without another message.",
            },
            **responses(ProblemType.NOT_FOUND),
        },
    )
    async def stream_events(
        request: Request,
        namespace: OfNamespace = None,
        cluster_queue: OfClusterQueue = None,
        uid: OfUid = None,
        after: FromLine = None,
        last_event_id: LastEventId = None,
        follow: Follow = True,
        alive: Alive = None,
    ) -> EventStream:
        if namespace is not None:
            await guard.require(request, Right("watch", "workloads", namespace))
        workload = None
        if uid is not None:
            entry = await store.get_workload(uid)
            if entry is not None:
                workload = Right("watch", "workloads", entry.namespace, entry.name)
            # A caller does not learn whether a workload of others has this uid.
            if workload is None or not await guard.may(request, workload):
                raise ApiProblem(ProblemType.NOT_FOUND, f"no workload has the uid {uid}")
        if namespace is None and uid is None:
            await _require_some(guard, request, store)
        newest = await store.newest_line()
        start = last_event_id if last_event_id is not None else after
        if start is not None and start > newest:
            return EventStream(_once(reset(newest)), limit)
        position = newest if start is None else start
        until = None if follow else newest
        known_seconds = min(KNOWN_SECONDS, alive or KNOWN_SECONDS)
        scope = EventScope(guard, request, store, known_seconds, workload)
        filters = StreamFilter(namespace, cluster_queue, uid)
        stream = ClientStream(feed, filters, scope, position, until, database, alive)
        return EventStream(stream.chunks(), limit)


async def _require_some(guard: Guard, request: Request, store: ApiStore) -> None:
    """Raise a FORBIDDEN problem unless the caller may watch workloads somewhere: ids of steps show the activity of all teams."""
    if not await guard.somewhere(request, "watch", "workloads", store.namespaces):
        await guard.require(request, Right("watch", "workloads"))


async def _once(text: str) -> AsyncIterator[str]:
    yield text
