"""The recorder keeps every change in the cluster's order, over deletions, relists and interruptions."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import msgspec
import pytest

from queuectl.demo import recorder as module
from queuectl.demo.recorder import Recorder
from queuectl.demo.watch import KubeconfigServer, ListEnd, WatchedObject
from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.localcluster import layout
from queuectl.localcluster.certificates import Authority

PODS = "/api/v1/pods"
JOBS = "/apis/batch/v1/jobs"


def pod(uid: str, version: int, **spec: Any) -> dict[str, Any]:
    meta = {"name": uid, "namespace": "team", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": meta, "spec": spec}


def seen(document: dict[str, Any], *, gone: bool = False) -> WatchedObject:
    meta = document["metadata"]
    raw = msgspec.Raw(json.dumps(document).encode())
    return WatchedObject(meta["uid"], int(meta["resourceVersion"]), gone, raw)


class FakeServer:
    """Sends the messages that the test sets, collection by collection, then no more."""

    script: ClassVar[dict[str, list[WatchedObject | ListEnd]]] = {}
    now: ClassVar[dict[str, ListEnd]] = {}

    def __init__(self, path: Path) -> None:
        self.path = path

    async def close(self) -> None: ...

    async def list(self, path: str) -> ListEnd:
        return self.now.get(path, ListEnd(0, {}, True))

    async def follow(self, path: str) -> AsyncIterator[WatchedObject | ListEnd]:
        for one in self.script.get(path, [ListEnd(0, {}, True)]):
            yield one
        await asyncio.Event().wait()


Start = Callable[..., Recorder]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    running: list[Recorder] = []
    monkeypatch.setattr(module, "KubeconfigServer", FakeServer)

    def starter(
        pods: list[WatchedObject | ListEnd], **more: list[WatchedObject | ListEnd]
    ) -> Recorder:
        monkeypatch.setattr(
            FakeServer, "script", {PODS: pods, JOBS: more["jobs"]} if more else {PODS: pods}
        )
        recorder = Recorder(Path("unused"))
        running.append(recorder)
        return recorder.__enter__()

    yield starter
    for recorder in running:
        recorder.close()


def story(recorder: Recorder) -> list[tuple[int, str, bool]]:
    """The records after all messages."""
    recorder.settle(seconds=5)
    return [(e.version, e.key, e.gone) for e in recorder.recording().events]


def test_listed_changed_and_deleted_objects_are_recorded_in_order(start: Start, monkeypatch):
    first, bound = pod("p", 3), pod("p", 5, nodeName="a")
    monkeypatch.setattr(FakeServer, "now", {PODS: ListEnd(9, {}, True)})
    recorder = start(
        [seen(first), ListEnd(4, {"p": 3}, True), seen(bound), seen(pod("p", 8), gone=True)]
    )
    assert story(recorder) == [(3, "p", False), (5, "p", False), (8, "p", True)]
    assert recorder.recording().gaps == 0


def test_a_deleted_pod_is_recorded_as_it_was_last(start: Start, monkeypatch):
    monkeypatch.setattr(FakeServer, "now", {PODS: ListEnd(9, {}, True)})
    recorder = start(
        [ListEnd(1, {}, True), seen(pod("p", 5, nodeName="a")), seen(pod("p", 8), gone=True)]
    )
    story(recorder)
    last = recorder.recording().events[-1].fact
    assert isinstance(last, PodRecord)
    assert last.node == "a"


def test_a_revision_without_a_change_of_interest_is_omitted(start: Start, monkeypatch):
    monkeypatch.setattr(FakeServer, "now", {PODS: ListEnd(7, {"p": 6}, True)})
    recorder = start([ListEnd(1, {}, True), seen(pod("p", 5)), seen(pod("p", 6))])
    assert story(recorder) == [(5, "p", False)]


def test_after_an_expired_watch_an_object_that_is_not_listed_is_deleted_and_the_gap_is_counted(
    start: Start, monkeypatch
):
    monkeypatch.setattr(FakeServer, "now", {PODS: ListEnd(20, {"q": 12}, True)})
    said = [
        seen(pod("p", 3)),
        ListEnd(4, {"p": 3}, True),
        seen(pod("q", 12)),
        ListEnd(15, {"q": 12}, False),
    ]
    recorder = start(said)
    assert story(recorder) == [(3, "p", False), (12, "q", False), (15, "p", True)]
    assert recorder.recording().gaps == 1


def test_events_of_all_resources_stand_in_one_order(start: Start, monkeypatch):
    job = pod("j", 4)
    job["metadata"]["labels"] = {"queuectl.dev/queue-name": "queue"}
    now = {
        PODS: ListEnd(9, {"p": 5}, True),
        JOBS: ListEnd(9, {"j": 4, "unqueued": 6}, True),
    }
    monkeypatch.setattr(FakeServer, "now", now)
    jobs = [ListEnd(1, {}, True), seen(job), seen(pod("unqueued", 6))]
    recorder = start([ListEnd(1, {}, True), seen(pod("p", 5))], jobs=jobs)
    assert story(recorder) == [(4, "j", False), (5, "p", False)]
    assert isinstance(recorder.recording().events[0].fact, JobRecord)


def test_now_is_what_exists(start: Start, monkeypatch):
    monkeypatch.setattr(FakeServer, "now", {PODS: ListEnd(9, {"p": 5}, True)})
    said = [
        seen(pod("gone", 3)),
        ListEnd(4, {"gone": 3}, True),
        seen(pod("p", 5)),
        seen(pod("gone", 6), gone=True),
    ]
    recorder = start(said)
    story(recorder)
    nodes, pods = recorder.now()
    assert nodes == {}
    assert [one.uid for one in pods] == ["p"]


def test_the_pods_of_a_group_are_recorded_with_their_group(start: Start):
    grouped = pod("p", 5)
    grouped["metadata"] |= {
        "labels": {"queuectl.dev/queue-name": "q", "queuectl.dev/pod-group-name": "g"},
        "annotations": {
            "queuectl.dev/submitted-by": "alice",
            "queuectl.dev/pod-group-total-count": "2",
        },
    }
    recorder = start([ListEnd(1, {}, True), seen(grouped)])
    story(recorder)
    [found] = recorder.now()[1]
    assert found.member is not None
    assert (found.member.group, found.member.total) == ("g", 2)


def test_it_does_not_settle_before_the_revision_of_the_server(start: Start, monkeypatch):
    monkeypatch.setattr(FakeServer, "now", {PODS: ListEnd(9, {"p": 7}, True)})
    recorder = start([ListEnd(1, {}, True), seen(pod("p", 5))])
    with pytest.raises(TimeoutError, match="/api/v1/pods"):
        recorder.settle(seconds=0.2)


def test_a_recorder_that_ends_while_it_connects_leaves_no_task_and_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    left: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: left.append(str(found.exc_value)))
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as silent:  # no handshake succeeds
        path = layout.write_kubeconfig(
            tmp_path / "config",
            cluster="c",
            server=f"https://127.0.0.1:{silent.getsockname()[1]}",
            authority=Authority.create("test").pair.certificate,
            user="u",
            identity="token",
        )
        for turn in range(100):
            recorder = Recorder(path)
            recorder._thread.start()
            time.sleep(turn % 50 * 0.0002)
            recorder.close()
            assert asyncio.all_tasks(recorder._loop) == set()
    gc.collect()
    assert left == []


# ---- the watch itself


def server(
    tmp_path: Path, handler: Callable[[httpx2.Request], httpx2.Response]
) -> KubeconfigServer:
    path = layout.write_kubeconfig(
        tmp_path / "config",
        cluster="c",
        server="https://127.0.0.1:1",
        authority=Authority.create("test").pair.certificate,
        user="u",
        identity="token",
    )
    made = KubeconfigServer(path)
    made._client = httpx2.AsyncClient(
        base_url="https://127.0.0.1:1",
        transport=httpx2.MockTransport(handler),
        headers=made._client.headers,
    )
    return made


def listing(version: int, *items: dict[str, Any], more: str = "") -> httpx2.Response:
    meta = {"resourceVersion": str(version), "continue": more}
    return httpx2.Response(200, json={"metadata": meta, "items": list(items)})


def watching(*events: tuple[str, dict[str, Any]]) -> httpx2.Response:
    lines = [json.dumps({"type": kind, "object": document}) for kind, document in events]
    return httpx2.Response(200, content="".join(f"{line}\n" for line in lines).encode())


EXPIRED = ("ERROR", {"code": 410, "metadata": {}})


async def collect(made: KubeconfigServer, count: int) -> list[tuple[str, int, bool] | ListEnd]:
    found: list[tuple[str, int, bool] | ListEnd] = []
    stream = made.follow(PODS)
    async with asyncio.timeout(10):
        async for one in stream:
            found.append(one if isinstance(one, ListEnd) else (one.uid, one.version, one.gone))
            if len(found) == count:
                break
    await stream.aclose()  # type: ignore[attr-defined]  # an async generator behind the interface
    await made.close()
    return found


async def test_a_list_of_several_pages_is_read_whole_before_the_watch(tmp_path: Path):
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        query = dict(request.url.params)
        assert request.headers["authorization"] == "Bearer token"
        asked.append(query.get("continue", query.get("resourceVersion", "")))
        if "watch" in query:
            return watching(("ADDED", pod("c", 11)))
        return (
            listing(10, pod("b", 2)) if "continue" in query else listing(10, pod("a", 1), more="x")
        )

    found = await collect(server(tmp_path, answer), 4)
    assert found == [
        ("a", 1, False),
        ("b", 2, False),
        ListEnd(10, {"a": 1, "b": 2}, True),
        ("c", 11, False),
    ]
    assert asked[:3] == ["", "x", "10"]


async def test_a_watch_that_ends_continues_from_its_last_version_bookmarks_included(tmp_path: Path):
    answers = [
        listing(10),
        watching(("ADDED", pod("a", 11)), ("BOOKMARK", {"metadata": {"resourceVersion": "20"}})),
        watching(("DELETED", pod("a", 21))),
    ]
    versions: list[str | None] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        versions.append(dict(request.url.params).get("resourceVersion"))
        return answers.pop(0)

    found = await collect(server(tmp_path, answer), 3)
    assert found == [ListEnd(10, {}, True), ("a", 11, False), ("a", 21, True)]
    assert versions == [None, "10", "20"]


@pytest.mark.parametrize("forgotten", [httpx2.Response(410), watching(EXPIRED)])
async def test_after_an_expired_version_the_server_is_listed_again_and_the_gap_is_recorded(
    tmp_path: Path, forgotten: httpx2.Response
):
    answers = [listing(10), forgotten, listing(30, pod("a", 25))]
    found = await collect(server(tmp_path, lambda _: answers.pop(0)), 3)
    assert found == [
        ListEnd(10, {}, True),
        ("a", 25, False),
        ListEnd(30, {"a": 25}, False),
    ]


async def test_an_interruption_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("queuectl.demo.watch._RETRY_SECONDS", 0.0)
    answers: list[httpx2.Response] = [
        httpx2.Response(503),
        listing(10),
        httpx2.Response(500),
        watching(("ADDED", pod("a", 11))),
    ]
    found = await collect(server(tmp_path, lambda _: answers.pop(0)), 2)
    assert found == [ListEnd(10, {}, True), ("a", 11, False)]


async def test_the_connection_of_a_watch_that_is_refused_is_used_again(tmp_path: Path) -> None:
    read: list[bool] = []

    class Body(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"no such kind"
            read.append(True)

    answers = [listing(10), httpx2.Response(410, stream=Body()), listing(30)]
    await collect(server(tmp_path, lambda _: answers.pop(0)), 2)
    assert read == [True]


async def test_a_kind_that_is_not_installed_yet_is_empty_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("queuectl.demo.watch._RETRY_SECONDS", 0.0)
    missing = httpx2.Response(404)
    answers = [missing, missing, watching(("ADDED", pod("a", 11)))]
    found = await collect(server(tmp_path, lambda _: answers.pop(0)), 2)
    assert found == [ListEnd(0, {}, True), ("a", 11, False)]


def test_an_object_that_cannot_be_read_keeps_its_last_form(start: Start, monkeypatch):
    monkeypatch.setattr(FakeServer, "now", {PODS: ListEnd(9, {"p": 8}, True)})
    broken = pod("p", 8) | {"spec": 1}
    recorder = start([ListEnd(1, {}, True), seen(pod("p", 5, nodeName="a")), seen(broken)])
    assert story(recorder) == [(5, "p", False)]
