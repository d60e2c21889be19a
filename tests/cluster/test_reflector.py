"""The reflector with a server that misbehaves on purpose: a script defines the answer to each request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.reflector import Pace, Reflector, WatchHooks
from queuectl.cluster.resources import watched
from queuectl.cluster.stream import INITIAL_EVENTS_END
from queuectl.control.composition import WatchMeter
from queuectl.domain.records import Deleted, Delta, ListCompleted, Unreadable, Upserted
from queuectl.telemetry.metrics import MetricsRecorder
from tests.cluster.test_client import kubeconfig

PODS = next(resource for resource in watched() if resource.name == "pods")
PYTORCHJOBS = next(resource for resource in watched() if resource.name == "pytorchjobs")
PACE = Pace(idle=5.0, initial=5.0, backoff=1.0, ceiling=8.0, absent=60.0, upgrade=900.0, page=2)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def pod(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}}


def added(name: str, version: int) -> bytes:
    return msgspec.json.encode({"type": "ADDED", "object": pod(name, version)}) + b"\n"


def bookmark(version: int, *, end: bool = False) -> bytes:
    annotations = {INITIAL_EVENTS_END: "true"} if end else {}
    meta = {"resourceVersion": str(version), "annotations": annotations}
    return msgspec.json.encode({"type": "BOOKMARK", "object": {"metadata": meta}}) + b"\n"


ALL = bookmark(10, end=True)
EXPIRED = msgspec.json.encode({"type": "ERROR", "object": {"code": 410, "message": "old"}}) + b"\n"


def stream(*pieces: bytes, then: str = "end") -> Answer:
    """A watch of these pieces, which then ends normally, is cut, or hangs."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if then == "cut":
            assert request.transport is not None
            request.transport.abort()
        elif then == "silence":
            await asyncio.Event().wait()
        return response

    return answer


def page(*pods: dict[str, Any], version: int, token: str = "") -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        meta = {"resourceVersion": str(version), "continue": token}
        return web.json_response({"metadata": meta, "items": pods})

    return answer


def refuse(code: int, **headers: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"code": code, "message": "no"}, status=code, headers=headers)

    return answer


@dataclass
class Scripted:
    """A server that answers by a script and does not answer after its last line."""

    script: list[Answer]
    queries: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(dict(request.query))
        self.paths.append(request.path)
        if not self.script:
            self.done.set()
            return await stream(then="silence")(request)
        return await self.script.pop(0)(request)


@dataclass
class Seen:
    """The calls of the reflector."""

    deltas: list[Delta] = field(default_factory=list)
    synced: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    hooks: Counter[str] = field(default_factory=Counter)

    def sink(self, deltas: Any) -> None:
        self.deltas += deltas

    def listed(self, resource: str) -> None:
        self.hooks["listed"] += 1

    def received(self, resource: str, objects: int) -> None:
        self.hooks["received"] += 1

    def interrupted(self, resource: str, error: str) -> None:
        self.hooks["interrupted"] += 1

    def absent(self, resource: str) -> None:
        self.hooks["absent"] += 1

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0)

    @property
    def story(self) -> list[str]:
        """``+a`` upserted, ``-a`` deleted, ``=a,b`` listed."""
        return [text_of(delta) for delta in self.deltas]


def text_of(delta: Delta) -> str:
    match delta:
        case Upserted(record):
            return "+" + getattr(record, "name", "?")
        case Deleted():
            return "-" + delta.key
        case ListCompleted():
            return "=" + ",".join(sorted(delta.keys))
        case Unreadable():
            return "?" + delta.name


Run = Callable[..., Awaitable[tuple[Seen, Scripted]]]


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Run]:
    """Run a reflector with a script until the end of the script."""
    async with contextlib.AsyncExitStack() as stack:

        async def go(
            *script: Answer,
            pace: Pace = PACE,
            resource: Any = PODS,
            reported: set[str] | None = None,
            hooks: WatchHooks | None = None,
        ) -> tuple[Seen, Scripted]:
            scripted, seen = Scripted(list(script)), Seen()
            app = web.Application()
            app.router.add_get("/{path:.*}", scripted.handle)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            api = await Api.connect(Connection(kubeconfig=kubeconfig(tmp_path, port)))
            stack.push_async_callback(api.close)
            reflector = Reflector(
                api,
                resource,
                seen.sink,
                seen.synced.append,
                hooks or seen,
                pace,
                seen.sleep,
                reported,
            )
            task = asyncio.create_task(reflector.run())
            try:
                async with asyncio.timeout(20):
                    await scripted.done.wait()
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            return seen, scripted

        yield go


async def test_all_objects_are_listed_and_then_changes_follow(run: Run) -> None:
    seen, server = await run(stream(added("a", 5), added("b", 7), ALL, added("c", 11)))
    assert seen.story == ["+a", "+b", "=a,b", "+c"]
    assert seen.synced == ["pods"]
    assert seen.waits == []
    first, then = server.queries
    assert (first["sendInitialEvents"], first["resourceVersionMatch"]) == ("true", "NotOlderThan")
    assert "resourceVersion" not in first
    assert (then["resourceVersion"], "sendInitialEvents" in then) == ("11", False)
    assert all(query["allowWatchBookmarks"] == "true" for query in server.queries)
    assert all(290 <= int(query["timeoutSeconds"]) <= 319 for query in server.queries)


async def test_the_next_watch_begins_at_the_bookmark(run: Run) -> None:
    _, server = await run(stream(added("a", 5), ALL, bookmark(99)))
    assert server.queries[-1]["resourceVersion"] == "99"


async def test_a_cut_in_the_middle_of_an_object_loses_nothing(run: Run) -> None:
    seen, server = await run(
        stream(added("a", 5), ALL, added("b", 11), added("c", 12)[:30], then="cut"),
        stream(added("c", 12)),
    )
    assert seen.story == ["+a", "=a", "+b", "+c"]
    assert server.queries[1]["resourceVersion"] == "11"
    assert len(seen.waits) == 1


@pytest.mark.parametrize("how", ["status", "event"])
async def test_after_a_forgotten_version_it_lists_again(run: Run, how: str) -> None:
    middle = [refuse(410)] if how == "status" else [stream(added("x", 11), EXPIRED)]
    seen, _ = await run(stream(added("a", 5), ALL), *middle, stream(added("b", 20), ALL))
    assert [one for one in seen.story if one != "+x"] == ["+a", "=a", "+b", "=b"]
    assert seen.synced == ["pods"]
    assert seen.hooks["listed"] == 2


@pytest.mark.parametrize("code", [400, 422])
async def test_a_server_without_watch_list_is_listed_by_pages_from_then_on(
    run: Run, code: int
) -> None:
    seen, server = await run(
        refuse(code),
        page(pod("a", 5), pod("b", 6), version=50, token="next"),
        page(pod("c", 7), version=50),
        stream(EXPIRED),
        page(pod("c", 7), version=60),
    )
    assert seen.story == ["+a", "+b", "+c", "=a,b,c", "+c", "=c"]
    assert [query.get("continue") for query in server.queries[1:3]] == [None, "next"]
    assert [query.get("limit") for query in server.queries[1:3]] == ["2", "2"]
    assert server.queries[3]["resourceVersion"] == "50"
    assert "sendInitialEvents" not in server.queries[4]


async def test_missing_rights_do_not_lead_to_a_list_by_pages(run: Run) -> None:
    seen, server = await run(refuse(403), stream(added("a", 5), ALL))
    assert seen.story == ["+a", "=a"]
    assert server.queries[1]["sendInitialEvents"] == "true"
    assert len(seen.waits) == 1


async def test_without_the_end_of_the_list_it_lists_by_pages_once(run: Run) -> None:
    seen, server = await run(
        stream(added("a", 5), then="silence"),
        page(pod("a", 5), version=50),
        stream(EXPIRED),
        stream(added("a", 5), ALL),
        pace=Pace(initial=0.1, idle=5.0, page=2),
    )
    assert seen.story == ["+a", "+a", "=a", "+a", "=a"]
    assert "limit" in server.queries[1]
    assert server.queries[3]["sendInitialEvents"] == "true"


async def test_a_watch_without_events_is_resumed_at_its_version(run: Run) -> None:
    seen, server = await run(
        stream(added("a", 5), ALL, then="silence"),
        pace=Pace(idle=0.1, initial=5.0),
    )
    assert server.queries[1]["resourceVersion"] == "10"
    assert seen.hooks["interrupted"] == 1


async def test_pauses_double_up_to_the_maximum_and_are_reset_after_success(run: Run) -> None:
    seen, _ = await run(
        *[refuse(500)] * 6, stream(added("a", 5), ALL, added("b", 11), then="cut"), refuse(500)
    )
    limits = [1, 2, 4, 8, 8, 8, 1, 2]
    assert len(seen.waits) == len(limits)
    assert all(limit / 2 <= wait <= limit for wait, limit in zip(seen.waits, limits, strict=True))


async def test_an_outage_logs_one_warning_and_its_end(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "queuectl.cluster.reflector")
    await run(
        *[refuse(500)] * 6, stream(added("a", 5), ALL, added("b", 11), then="cut"), refuse(500)
    )
    levels = [
        record.levelname
        for record in caplog.records
        if record.name == "queuectl.cluster.reflector" and record.getMessage().startswith("pods: ")
    ]
    assert levels == ["WARNING", *["DEBUG"] * 5, "INFO", "WARNING", "DEBUG"]


@pytest.mark.parametrize(("asked", "waits"), [("40", 40.0), ("86400", 60.0), ("9" * 400, 60.0)])
async def test_the_retry_time_of_the_server_is_respected_up_to_a_minute(
    run: Run, asked: str, waits: float
) -> None:
    seen, _ = await run(refuse(429, **{"Retry-After": asked}), stream(added("a", 5), ALL))
    assert seen.waits == [waits]


async def test_a_watch_that_ends_at_once_is_repeated_after_a_pause(run: Run) -> None:
    seen, _ = await run(stream(added("a", 5), ALL), stream(), stream())
    assert len(seen.waits) == 2


def training_job(name: str, version: int) -> bytes:
    meta = {"name": name, "uid": name, "resourceVersion": str(version)}
    labeled = meta | {"labels": {"queuectl.dev/queue-name": "main"}}
    return msgspec.json.encode({"type": "ADDED", "object": {"metadata": labeled}}) + b"\n"


def groups(*served: str) -> Answer:
    """Discovery of the API server with these groups."""
    return body(kind="APIGroupList", groups=[{"versions": [{"groupVersion": v}]} for v in served])


def resources(*names: str) -> Answer:
    """Discovery of one group and version."""
    return body(kind="APIResourceList", resources=[{"name": name} for name in names])


def body(**content: Any) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(content)

    return answer


KUBEFLOW = groups("apps/v1", "kubeflow.org/v1")


async def test_a_kind_that_is_not_installed_is_empty_and_discovered_later(run: Run) -> None:
    seen, server = await run(
        *(refuse(404), groups("apps/v1")),
        *(refuse(404), KUBEFLOW, resources("mpijobs")),
        stream(training_job("a", 5), ALL),
        *(refuse(404), groups()),
        resource=PYTORCHJOBS,
    )
    assert seen.story == ["=", "+a", "=a", "="]
    assert seen.synced == ["pytorchjobs"]
    assert seen.waits == [60.0, 60.0, 60.0]
    assert server.paths[1:5] == ["/apis", PYTORCHJOBS.path, "/apis", "/apis/kubeflow.org/v1"]


def taint_rule(name: str, version: int) -> bytes:
    document = pod(name, version) | {"spec": {"taint": {"key": "broken", "effect": "NoExecute"}}}
    return msgspec.json.encode({"type": "ADDED", "object": document}) + b"\n"


async def test_an_older_version_of_an_api_is_followed_until_the_newer_one_is_served(
    run: Run,
) -> None:
    [rules] = (one for one in watched() if one.name == "devicetaintrules")
    assert rules.older is not None
    v1, v1beta2 = rules.path, rules.older.path
    seen, server = await run(
        *(refuse(404), groups("resource.k8s.io/v1"), resources("resourceslices")),
        *(refuse(404), groups("resource.k8s.io/v1")),
        *(refuse(404), groups("resource.k8s.io/v1", "resource.k8s.io/v1beta2"), resources()),
        stream(taint_rule("a", 5), ALL),
        *(refuse(404), groups("resource.k8s.io/v1")),
        stream(taint_rule("b", 12), bookmark(20, end=True)),
        resource=rules,
    )
    assert seen.story == ["=", "+a", "=a", "+b", "=b"], "the devices keep their taints"
    assert seen.synced == ["devicetaintrules"]
    assert seen.waits == [60.0]
    asked = [path for path in server.paths if path.endswith("rules")]
    assert asked == [v1, v1beta2, v1, v1beta2, v1beta2, v1, v1]


@pytest.mark.parametrize(
    "then",
    [
        (KUBEFLOW, resources("mpijobs", "pytorchjobs")),
        (KUBEFLOW, refuse(404)),
        (refuse(404),),
        (refuse(503),),
        (body(message="default backend"),),
    ],
    ids=["it is served", "no resources", "no groups", "server away", "a proxy's answer"],
)
async def test_a_404_deletes_nothing_unless_discovery_lacks_the_kind(
    run: Run, then: tuple[Answer, ...]
) -> None:
    seen, server = await run(
        stream(training_job("a", 5), ALL),
        *(refuse(404), *then),
        stream(training_job("b", 11)),
        resource=PYTORCHJOBS,
    )
    assert seen.story == ["+a", "=a", "+b"]
    assert len(seen.waits) == 1
    assert server.queries[-1]["resourceVersion"] == "11", "the watch continues at its version"


async def test_resources_that_an_older_release_does_not_serve_are_reported_once_and_checked_seldom(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    reported: set[str] = set()
    devices = [one for one in watched() if one.since]
    for resource in devices:
        seen, _ = await run(
            *(refuse(404), groups("apps/v1")) * 2,
            refuse(404),
            resource=resource,
            reported=reported,
        )
        assert seen.waits == [900.0, 900.0]
        assert seen.hooks == {"absent": 2}, "nothing is listed or watched"
    assert len(devices) == 4
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "resource.k8s.io/v1: not used, the API server is older than Kubernetes 1.34"
    ]


async def test_a_built_in_kind_never_counts_as_absent(run: Run) -> None:
    seen, _ = await run(refuse(404), stream(added("a", 5), ALL))
    assert seen.story == ["+a", "=a"]
    assert len(seen.waits) == 1


WATCH_LIST = (stream(added("a", 5), added("b", 6), ALL, bookmark(12), added("c", 13)),)
PAGES = (
    refuse(400),
    page(pod("a", 5), pod("b", 6), version=10, token="next"),
    page(version=10),
    stream(bookmark(12), added("c", 13)),
)


@pytest.mark.parametrize("answers", [WATCH_LIST, PAGES], ids=["WatchList", "pages"])
async def test_each_object_is_counted_once_and_bookmarks_are_not(
    run: Run, answers: tuple[Answer, ...]
) -> None:
    metrics = MetricsRecorder()
    await run(*answers, hooks=WatchMeter(metrics))
    objects, lists = (
        metrics.registry.get_sample_value(f"queuectl_watch_{name}_total", {"kind": "pods"})
        for name in ("events", "relists")
    )
    assert (objects, lists) == (3, 1)


@pytest.mark.parametrize(
    "answers",
    [(stream(ALL),), (refuse(400), page(version=10))],
    ids=["WatchList", "pages"],
)
async def test_a_list_without_objects_is_an_answer(run: Run, answers: tuple[Answer, ...]) -> None:
    metrics = MetricsRecorder()
    await run(*answers, hooks=WatchMeter(metrics))
    last = "queuectl_watch_last_event_timestamp_seconds"
    assert metrics.registry.get_sample_value(last, {"kind": "pods"})


@asynccontextmanager
async def following(
    tmp_path: Path, answer: Answer, pace: Pace = PACE
) -> AsyncIterator[tuple[Reflector, Seen, list[dict[str, str]]]]:
    """A reflector of a server that answers each request so, and the queries that the server has received."""
    queries: list[dict[str, str]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        queries.append(dict(request.query))
        return await answer(request)

    app, seen = web.Application(), Seen()
    app.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api = await Api.connect(Connection(kubeconfig=kubeconfig(tmp_path, runner.addresses[0][1])))
    reflector = Reflector(api, PODS, seen.sink, seen.synced.append, seen, pace, seen.sleep)
    task = asyncio.create_task(reflector.run())
    try:
        yield reflector, seen, queries
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await api.close()
        await runner.cleanup()


def silent_after(version: int, shown: asyncio.Event, *brief: bytes) -> Answer:
    """Consistent reads give this version. The first stream is silent after its list, a later list is complete, and a brief watch has these pieces."""
    streams = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal streams
        if "limit" in request.query:
            return await page(version=version)(request)
        streams += 1
        pieces = list(brief)
        if streams == 1:
            pieces = [added("a", 4), ALL]
        elif "sendInitialEvents" in request.query:
            pieces = [added("b", version), bookmark(version, end=True)]
        shown.set()
        return await stream(*pieces, then="silence")(request)

    return answer


async def test_a_watch_that_is_behind_lists_again(tmp_path: Path) -> None:
    shown = asyncio.Event()
    async with following(tmp_path, silent_after(20, shown)) as (reflector, seen, queries):
        await shown.wait()
        async with asyncio.timeout(20):
            assert await reflector.catch_up()
        assert seen.story == ["+a", "=a", "+b", "=b"]
        assert [q for q in queries if "limit" in q] == [{"limit": "1"}]


@pytest.mark.parametrize("news", [bookmark(20), added("b", 20)])
async def test_a_watch_of_many_objects_that_is_behind_is_opened_again_and_lists_nothing(
    tmp_path: Path, news: bytes
) -> None:
    shown, pace = asyncio.Event(), replace(PACE, few=0)
    answer = silent_after(20, shown, news)
    async with following(tmp_path, answer, pace) as (reflector, seen, queries):
        await shown.wait()
        async with asyncio.timeout(20):
            assert await reflector.catch_up()
        assert seen.story[:2] == ["+a", "=a"]
        assert seen.story[2:] in ([], ["+b"])
        [brief] = [q for q in queries if q.get("timeoutSeconds") == "3"]
        assert brief["resourceVersion"] == "10"


async def test_a_watch_that_is_still_behind_when_it_is_opened_again_lists_again(
    tmp_path: Path,
) -> None:
    shown, pace = asyncio.Event(), replace(PACE, few=0, brief=0.5)
    async with following(tmp_path, silent_after(20, shown), pace) as (reflector, seen, queries):
        await shown.wait()
        async with asyncio.timeout(20):
            assert await reflector.catch_up()
        assert seen.story == ["+a", "=a", "+b", "=b"]
        assert [q.get("resourceVersion") for q in queries if "watch" in q] == [None, "10", None]


async def test_a_watch_that_shows_the_newest_version_does_not_list_again(tmp_path: Path) -> None:
    shown = asyncio.Event()
    async with following(tmp_path, silent_after(10, shown)) as (reflector, seen, queries):
        await shown.wait()
        async with asyncio.timeout(20):
            assert await reflector.catch_up()
            assert await reflector.catch_up()
        assert seen.story == ["+a", "=a"]
        assert len([q for q in queries if "watch" in q]) == 1


async def test_a_reflector_that_ends_does_not_catch_up(tmp_path: Path) -> None:
    async def unavailable(request: web.Request) -> web.StreamResponse:
        return await refuse(503)(request)

    async with following(tmp_path, unavailable) as (reflector, _, queries):
        waiting = asyncio.create_task(reflector.catch_up())
        while len(queries) < 4:  # noqa: ASYNC110 - of the server
            await asyncio.sleep(0)
        assert not waiting.done()
    async with asyncio.timeout(20):
        assert not await waiting
