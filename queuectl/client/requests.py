"""The requests of the API and the decoders of their answers. No I/O."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import quote, urlencode

from queuectl.client.answers import HttpAnswer, Json, check, json_object, nothing, page, text
from queuectl.client.errors import BadAnswer, InvalidOption
from queuectl.objects.configuration.config_kinds import PREFIX

if TYPE_CHECKING:
    from queuectl.client.parameters import (
        ActionName,
        NodeFilters,
        PlanChanges,
        ReportName,
        WorkloadFilters,
        WorkloadRef,
    )
    from queuectl.client.types import (
        CommandJson,
        EventJson,
        ExplainJson,
        HistoryJson,
        JobEfficiencyJson,
        NodeJson,
        PlanJson,
        PodJson,
        PreviewJson,
        QueueStopJson,
        ReceiverPageJson,
        SubscriptionJson,
        WorkloadJson,
    )
    from queuectl.domain.commands import Action

T = TypeVar("T")

TIMEOUT_SECONDS: Final = 30.0
WHAT_IF_SECONDS: Final = 300.0  # the server answers one question at a time, with pauses
POLL_SECONDS: Final = 0.3  # between checks of the result of a command
EVENTS: Final = f"{PREFIX}/events"
KEY_HEADER: Final = "Idempotency-Key"
LARGEST_PAGE: Final = 500
UNFINISHED: Final = (
    "Pending", "Held", "Reserved", "Starting", "Running", "Evicting", "Backoff", "Deactivated",
)  # fmt: skip
"""The states of workloads that have not finished, without the import of the ledger."""
FINISHED: Final = "Finished"


@dataclass(frozen=True)
class Request(Generic[T]):
    """A request, and the decoder of its answer.

    Attributes:
        decode: from an answer without an error.
        document: the body, which is sent as JSON; None = no body.
        timeout: seconds in which the server must begin to answer; None = that of the client.
        repeatable: whether it can be sent twice: a read, or a write with an idempotency key.
    """

    method: str
    path: str
    decode: Callable[[HttpAnswer], T]
    query: Mapping[str, object] = field(default_factory=dict)
    document: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    repeatable: bool = False

    @property
    def target(self) -> str:
        """Path and query. Parameters with the value None are left out; a list repeats its parameter."""
        pairs = [(k, _spelled(v)) for k, parameter in self.query.items() for v in _each(parameter)]
        return f"{self.path}?{urlencode(pairs)}" if pairs else self.path

    def decoded(self, answer: HttpAnswer) -> T:
        """The content of the answer. Raises RequestRefused or BadAnswer."""
        check(answer)
        return self.decode(answer)


def _each(parameter: object) -> Sequence[object]:
    if parameter is None:
        return ()
    return parameter if isinstance(parameter, list | tuple) else (parameter,)


def _spelled(parameter: object) -> str:
    return str(parameter).lower() if isinstance(parameter, bool) else str(parameter)


# ---- Requests for any path


def get(path: str, /, **query: object) -> Request[Json]:
    """A JSON object."""
    return Request("GET", path, json_object, query, repeatable=True)


def get_text(path: str, /, **query: object) -> Request[str]:
    """An answer that is not JSON."""
    return Request("GET", path, text, query, repeatable=True)


def put(path: str, document: Json) -> Request[Json]:
    """Create or replace an object."""
    return Request("PUT", path, json_object, document=document)


def post(
    path: str, body: Json, timeout: float | None = None, key: str | None = None
) -> Request[Json]:
    """``timeout``: as for :class:`Request`. ``key``: idempotency key, for a path that reads it; None = it is not sent again."""
    headers = {KEY_HEADER: key} if key is not None else {}
    return Request(
        "POST",
        path,
        json_object,
        document=body,
        headers=headers,
        timeout=timeout,
        repeatable=key is not None,
    )


def delete(path: str, version: str | None = None, *, dry_run: bool = False) -> Request[None]:
    """Delete an object, or only check whether the caller can. ``version``: the version that it must have; None = any."""
    headers = {"If-Match": f'"{version}"'} if version is not None else {}
    query = {"dry_run": True} if dry_run else {}
    return Request("DELETE", path, nothing, query, headers=headers, repeatable=dry_run)


# ---- Lists

MOST_PAGES: Final = 10_000
MOST_EMPTY_PAGES: Final = 100
"""In a row. A server that filters after it has read can send some."""
LONGEST_POSITION: Final = 2048  # characters


@dataclass(frozen=True)
class Listing(Generic[T]):
    """A list of objects of type ``T``, page by page.

    Attributes:
        position: the parameter that continues the list.
        following: the field of a page with its next value.
        first: its first value; None = without it.
        most: the number of items at most; None = all.
    """

    path: str
    query: Mapping[str, object]
    position: str
    following: str
    first: int | None = None
    most: int | None = None

    def pages(self) -> PagePlan:
        """The pages from the beginning."""
        return PagePlan(self)


class PagePlan:
    """Which page is next. A list that does not advance, or never ends, is an error."""

    def __init__(self, listing: Listing[Any]) -> None:
        self._listing = listing
        self._next: object = listing.first
        self._left = listing.most
        self._seen: set[object] = set()
        self._empty = 0
        self._ended = listing.most is not None and listing.most <= 0

    def request(self) -> Request[Json] | None:
        """The request for the next page; None = the list has ended."""
        if self._ended:
            return None
        size = LARGEST_PAGE if self._left is None else min(self._left, LARGEST_PAGE)
        query = {**self._listing.query, "limit": size, self._listing.position: self._next}
        return Request("GET", self._listing.path, page, query, repeatable=True)

    def received(self, body: Json) -> None:
        """A page. Raises BadAnswer for a list without an end."""
        items, following = body["items"], body.get(self._listing.following)
        if self._left is not None:
            self._left -= len(items)
        self._ended = following is None or (self._left is not None and self._left <= 0)
        if self._ended:
            return
        self._empty = 0 if items else self._empty + 1
        valid = isinstance(following, str | int) and len(str(following)) <= LONGEST_POSITION
        if not valid or following in self._seen or self._empty > MOST_EMPTY_PAGES:
            raise BadAnswer(f"{self._listing.path}: the list does not advance: it would never end")
        self._seen.add(following)
        if len(self._seen) >= MOST_PAGES:
            raise BadAnswer(f"{self._listing.path}: the list has more than {MOST_PAGES} pages")
        self._next = following


def by_cursor(path: str, /, **query: object) -> Listing[Json]:
    """A list with a cursor."""
    return Listing(path, query, "cursor", "nextCursor")


def oldest_first(path: str, /, **query: object) -> Listing[Json]:
    """A list that begins with the oldest."""
    return Listing(path, query, "after", "nextAfter", first=0)


def newest_first(path: str, most: int, /, **query: object) -> Listing[Json]:
    """At most ``most`` items of a list that begins with the newest."""
    return Listing(path, query, "before", "nextBefore", most=most)


# ---- Workloads


def segment(name: str) -> str:
    """A name as a part of a path.

    Raises:
        InvalidOption: the path would be another one.
    """
    if name in (".", ".."):
        raise InvalidOption(f"{name!r} is not a name")
    return quote(name, safe="")


def workload_path(workload: WorkloadRef, namespace: str) -> str:
    """Path of a workload: ``NAME`` in the namespace, ``NAMESPACE/NAME``, or the workload as the server returned it.

    Raises:
        InvalidOption: it is none of these.
    """
    if not isinstance(workload, str):
        return f"{PREFIX}/workloads/{segment(str(workload['uid']))}"
    scope, _, name = workload.rpartition("/")
    if not name or "/" in scope:
        raise InvalidOption(f"workload {workload!r}: not of the form NAME or NAMESPACE/NAME")
    return f"{PREFIX}/namespaces/{segment(scope or namespace)}/workloads/{segment(name)}"


def workloads(filters: WorkloadFilters) -> Listing[WorkloadJson]:
    """All workloads that match. Without an order, they are by name, so that none is left out if it changes in between."""
    return Listing(f"{PREFIX}/workloads", {"sort": "name", **_of(filters)}, "cursor", "nextCursor")


def workload(path: str, kind: str | None) -> Request[WorkloadJson]:
    """One workload. ``kind``: of the job, if several have its name."""
    return _typed(get(path, kind=kind))


def explain(path: str, kind: str | None) -> Request[ExplainJson]:
    """Its state, reason, blocking constraints and suggested fixes."""
    return _typed(get(f"{path}/explain", kind=kind))


def efficiency(path: str, kind: str | None) -> Request[JobEfficiencyJson]:
    """Its use of GPUs, CPU and memory, GPU-hours, cost and nodes."""
    return _typed(get(f"{path}/efficiency", kind=kind))


def history(path: str, kind: str | None) -> Listing[HistoryJson]:
    """Its steps, the oldest first."""
    return Listing(f"{path}/history", {"kind": kind}, "after", "nextAfter", first=0)


def pods(path: str, kind: str | None) -> Listing[PodJson]:
    """Its pods."""
    return Listing(f"{path}/pods", {"kind": kind}, "cursor", "nextCursor")


def nodes(filters: NodeFilters) -> Listing[NodeJson]:
    """All nodes that match."""
    return Listing(f"{PREFIX}/nodes", _of(filters), "cursor", "nextCursor")


# ---- Questions


def what_if(changes: PlanChanges) -> Request[PlanJson]:
    """The plan after the changes, compared with the plan without them. Nothing is changed, so it is a read."""
    return Request(
        "POST",
        f"{PREFIX}/plans",
        _as_is,
        document=_of(changes),
        timeout=WHAT_IF_SECONDS,
        repeatable=True,
    )


def report(name: ReportName, by: str | None, since: str | None, until: str | None) -> Request[Json]:
    """A report. ``since``, ``until``: a time of RFC 3339, or a duration before now."""
    return get(f"{PREFIX}/reports/{name}", by=by, since=since, until=until)


# ---- Commands


def command(
    path: str,
    action: Action | ActionName,
    kind: str | None,
    key: str | None,
    details: Mapping[str, object],
) -> Request[CommandJson]:
    """A command for the leader. With the same ``key``, it is stored once; None = a new key."""
    return Request(
        "POST",
        f"{path}/{action}",
        _as_is,
        {"kind": kind},
        dict(details),
        {KEY_HEADER: key or os.urandom(16).hex()},
        repeatable=True,
    )


def preview(
    path: str, action: Action | ActionName, kind: str | None, details: Mapping[str, object]
) -> Request[PreviewJson]:
    """The change, the cost and the effect of an action now. Nothing is changed."""
    query = {"kind": kind, "dry_run": True}
    return Request("POST", f"{path}/{action}", _as_is, query, dict(details), repeatable=True)


def command_result(number: int) -> Request[CommandJson]:
    """A command with its result, if it has one."""
    return _typed(get(f"{PREFIX}/commands/{number}"))


def stop_queue(
    path: str, reason: str | None, *, drain: bool, dry_run: bool
) -> Request[QueueStopJson]:
    """Stop the admission of a queue's gangs. ``drain``: evict those that run."""
    query = {"dry_run": True} if dry_run else {}
    body = {"drain": drain, "reason": reason}
    return Request("POST", f"{path}/stop", _as_is, query, body, repeatable=dry_run)


def resume_queue(path: str, reason: str | None, *, dry_run: bool) -> Request[QueueStopJson]:
    """Resume a stopped queue."""
    query = {"dry_run": True} if dry_run else {}
    return Request("POST", f"{path}/resume", _as_is, query, {"reason": reason}, repeatable=dry_run)


def queue_path(name: str, namespace: str | None) -> str:
    """Path of a ClusterQueue, or with a namespace of a LocalQueue."""
    if namespace is None:
        return f"{PREFIX}/clusterqueues/{segment(name)}"
    return f"{PREFIX}/namespaces/{segment(namespace)}/localqueues/{segment(name)}"


# ---- Subscriptions

_SUBSCRIPTIONS: Final = f"{PREFIX}/subscriptions"


def receivers() -> Request[ReceiverPageJson]:
    """The receivers of events that the caller can use."""
    return Request("GET", f"{PREFIX}/receivers", _as_is, repeatable=True)


def subscriptions(*, everyone: bool) -> Listing[SubscriptionJson]:
    """The caller's subscriptions, or those of all users."""
    query = {"all": True} if everyone else {}
    return Listing(_SUBSCRIPTIONS, query, "after", "nextAfter", first=0)


def subscribe(
    receiver: str,
    namespace: str | None,
    queue: str | None,
    events: Sequence[str],
    *,
    digest: bool,
) -> Request[SubscriptionJson]:
    """Subscribe to the events of a namespace, of a ClusterQueue, or of the caller's own jobs. Raises InvalidOption."""
    if namespace is not None and queue is not None:
        raise InvalidOption("a subscription is to a namespace or to a queue, not to both")
    scope = "namespace" if namespace is not None else "queue" if queue is not None else "user"
    body = {
        "receiver": receiver,
        "scope": scope,
        "target": namespace if namespace is not None else queue,
        "events": [_event_type(name) for name in events],
        "mode": "digest" if digest else "immediate",
    }
    return Request("POST", _SUBSCRIPTIONS, _as_is, document=body, repeatable=True)


def _event_type(name: str) -> str:
    """``failed`` stands for ``workload.failed``, as in the annotation of a job."""
    return name if "." in name else f"workload.{name}"


def unsubscribe(number: int, *, dry_run: bool) -> Request[None]:
    """Delete a subscription, or only check whether the caller can."""
    return delete(f"{_SUBSCRIPTIONS}/{number}", dry_run=dry_run)


# ---- Events


def events(after: int | None, filters: Mapping[str, object], *, follow: bool) -> Request[None]:
    """The stream of events above an id; None = new ones. Its answer is a stream and not a document: see :mod:`queuectl.client.stream`."""
    query = {"after": after, **({} if follow else {"follow": False}), **filters}
    return Request("GET", EVENTS, nothing, query, repeatable=True)


def no_position() -> BadAnswer:
    """The error of a stream without a block."""
    return BadAnswer(f"{EVENTS}: the stream has no position, so it is not from queuectl")


def event(block: Json) -> EventJson:
    """The data of a step."""
    step: Any = block
    typed: EventJson = step
    return typed


def _as_is(answer: HttpAnswer) -> Any:
    """An object with the type of the API, which the client does not check: an older server can lack a field."""
    return json_object(answer)


def _typed(request: Request[Json]) -> Request[Any]:
    return request


def _of(options: Any) -> dict[str, object]:
    return dict(options)
