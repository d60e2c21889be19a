"""Logs of pods: the double and the adapter, here on HTTP as the API server and the kubelet speak it.

The local control plane has no kubelet. tests/real/test_pod_logs.py has the adapter on real ones.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from queuectl.cluster.pod_logs import KubernetesPodLogs
from queuectl.domain.errors import ClusterError, ClusterUnavailable, ObjectGone, WriteRefused
from queuectl.domain.pod_logs import LogRequest, PodIdentity
from queuectl.web.log_streams import PodLog, PodLogSource
from tests.doubles.pod_logs import MemoryLog, MemoryPod, MemoryPodLogs

PATIENCE = 20.0
POD = PodIdentity("team-a", "train-0", "uid-1")


@dataclass
class World:
    """``state``: what exists; ``source``: the implementation under test."""

    state: MemoryPodLogs
    source: PodLogSource


class KubeletHttp:
    """Answers like an API server that passes the log on from a kubelet. ``paths``: of requests."""

    def __init__(self, state: MemoryPodLogs) -> None:
        self.state = state
        self.paths: list[str] = []
        self.before_log: Any = None
        """Called when the log is requested, before anything else."""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{name}", self.pod)
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{name}/log", self.log)
        return app

    async def pod(self, request: web.Request) -> web.Response:
        self.paths.append(request.raw_path)
        key = request.match_info["namespace"], request.match_info["name"]
        pod = self.state.pods.get(key)
        if pod is None:
            return _status(404, "NotFound", f'pods "{key[1]}" not found')
        statuses = [
            {"name": name, "lastState": {"terminated": {"exitCode": 1}} if name in pod.previous else {}}
            for name in pod.logs
        ]  # fmt: skip
        chosen = {"kubectl.kubernetes.io/default-container": pod.default} if pod.default else {}
        return web.json_response(
            {
                "kind": "Pod",
                "metadata": {"uid": pod.uid, "annotations": chosen},
                "spec": {"containers": [{"name": name} for name in pod.logs]},
                "status": {"containerStatuses": statuses},
            }
        )

    async def log(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.raw_path)
        if self.before_log is not None:
            self.before_log()
        key = request.match_info["namespace"], request.match_info["name"]
        if key[0] in self.state.forbidden:
            return _status(403, "Forbidden", 'User "q" cannot get resource "pods/log"')
        pod = self.state.pods[key]
        query = request.query
        asked = LogRequest(
            PodIdentity(*key, pod.uid),
            query["container"],
            query.get("previous") == "true",
            query.get("follow") == "true",
            int(query["tailLines"]),
        )
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        async with self.state.opened(asked) as opened:
            try:
                part = await opened.read(
                    PATIENCE
                )  # the kubelet sends no head before the first byte
            except WriteRefused as error:
                return _status(400, "BadRequest", str(error))
            await response.prepare(request)
            while part:
                await response.write(part)
                part = await opened.read(PATIENCE)
        return response


def _status(code: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return web.Response(status=code, body=json.dumps(body), content_type="application/json")


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[tuple[KubeletHttp, KubernetesPodLogs]]:
    http = KubeletHttp(MemoryPodLogs())
    async with TestServer(http.app(), shutdown_timeout=0.0) as server:
        config = tmp_path / "kubeconfig"
        config.write_text(
            yaml.safe_dump(
                {
                    "current-context": "here",
                    "contexts": [{"name": "here", "context": {"user": "q", "cluster": "c"}}],
                    "users": [{"name": "q", "user": {"token": "t"}}],
                    "clusters": [
                        {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}
                    ],
                }
            )
        )
        adapter = await KubernetesPodLogs.connect(config, streams=4)
        yield http, adapter
        await adapter.close()


@pytest.fixture(params=["memory", "http"])
def world(request: pytest.FixtureRequest, kubelet: tuple[KubeletHttp, KubernetesPodLogs]) -> World:
    http, adapter = kubelet
    return World(http.state, http.state if request.param == "memory" else adapter)


def request_of(
    pod: PodIdentity = POD, *, previous: bool = False, follow: bool = True, tail: int = 100
) -> LogRequest:
    return LogRequest(pod, "main", previous, follow, tail)


async def text(world: World, request: LogRequest) -> bytes:
    """All of a log until its end."""
    found = b""
    async with asyncio.timeout(PATIENCE), world.source.opened(request) as log:
        while (part := await log.read(PATIENCE)) != b"":
            found += part or b""
    return found


async def error_of(world: World, request: LogRequest) -> ClusterError:
    with pytest.raises(ClusterError) as raised:
        await text(world, request)
    return raised.value


async def test_a_log_is_read_from_its_last_lines_and_followed_to_its_end(world: World) -> None:
    log = MemoryLog(b"one\ntwo\nthree\n")
    world.state.pods["team-a", "train-0"] = MemoryPod("uid-1", {"main": log}, default="main")
    assert await text(world, request_of(follow=False, tail=2)) == b"two\nthree\n"
    async with asyncio.timeout(PATIENCE), world.source.opened(request_of(tail=1)) as opened:
        assert await opened.read(PATIENCE) == b"three\n"
        assert await opened.read(0.01) is None
        log.write(b"\xff\x00four")
        assert await opened.read(PATIENCE) == b"\xff\x00four"
        log.end()
        assert await opened.read(PATIENCE) == b""
    for _ in range(100):
        if not world.state.open:
            break
        await asyncio.sleep(0.01)
    assert world.state.open == []


async def test_a_silent_container_is_waited_for_and_left_at_once(world: World) -> None:
    log = MemoryLog()
    world.state.pods["team-a", "train-0"] = MemoryPod("uid-1", {"main": log})
    async with asyncio.timeout(PATIENCE):
        async with world.source.opened(request_of()) as opened:
            assert await opened.read(0.05) is None
            log.write(b"first")
            assert await opened.read(PATIENCE) == b"first"
        log.written = b""
        async with world.source.opened(request_of()) as opened:
            assert await opened.read(0.05) is None


async def test_containers_are_those_of_this_pod(world: World) -> None:
    logs, previous = {"main": MemoryLog(), "side": MemoryLog()}, {"side": MemoryLog(b"before\n")}
    world.state.pods["team-a", "train-0"] = MemoryPod("uid-1", logs, previous, default="side")
    found = await world.source.containers(POD)
    assert (found.names, found.default) == (("main", "side"), "side")
    assert found.restarted == {"side"}
    request = LogRequest(POD, "side", True, False, 10)
    assert await text(world, request) == b"before\n"
    for other in (PodIdentity("team-a", "train-0", "uid-0"), PodIdentity("team-a", "none", "x")):
        with pytest.raises(ObjectGone):
            await world.source.containers(other)


async def test_what_cannot_be_read_has_its_reason(world: World) -> None:
    waiting = MemoryLog(waiting="ContainerCreating")
    world.state.pods["team-a", "train-0"] = MemoryPod("uid-1", {"main": waiting})
    error = await error_of(world, request_of())
    assert (type(error), str(error)) == (WriteRefused, "container 'main' is waiting to start: ContainerCreating")  # fmt: skip
    error = await error_of(world, request_of(previous=True))
    assert (type(error), str(error)) == (WriteRefused, "previous terminated container 'main' not found")  # fmt: skip
    world.state.forbidden.add("team-a")
    error = await error_of(world, request_of())
    assert type(error) is WriteRefused
    assert "queuectl's own account may not read logs" in str(error)


async def test_a_pod_that_was_created_again_with_the_same_name_is_not_read(world: World) -> None:
    world.state.pods["team-a", "train-0"] = MemoryPod("uid-2", {"main": MemoryLog(b"secret")})
    error = await error_of(world, request_of())
    assert type(error) is ObjectGone


async def test_a_pod_that_is_replaced_between_the_check_and_the_log_is_not_read(
    kubelet: tuple[KubeletHttp, KubernetesPodLogs],
) -> None:
    http, adapter = kubelet
    http.state.pods["team-a", "train-0"] = MemoryPod("uid-1", {"main": MemoryLog(b"own")})
    await adapter.containers(POD)

    def replaced() -> None:
        other = MemoryPod("uid-2", {"main": MemoryLog(b"secret")})
        http.state.pods["team-a", "train-0"] = other

    http.before_log = replaced
    world = World(http.state, adapter)
    assert type(await error_of(world, request_of())) is ObjectGone


async def test_names_stay_in_their_part_of_the_path(
    kubelet: tuple[KubeletHttp, KubernetesPodLogs],
) -> None:
    http, adapter = kubelet
    for name in ("../secrets/x", "a/log?x=", "%2e%2e"):
        with pytest.raises(ClusterError):
            await adapter.containers(PodIdentity("team-a", name, "uid-1"))
    assert {path.count("/") for path in http.paths} <= {6}, http.paths


async def test_a_reader_that_waits_makes_the_kubelet_wait(
    kubelet: tuple[KubeletHttp, KubernetesPodLogs],
) -> None:
    """The memory of one stream is bounded: what is not read is not received."""
    http, adapter = kubelet
    most = 32 << 20
    http.state.pods["team-a", "train-0"] = MemoryPod("uid-1", {"main": MemoryLog(b"x" * most)})
    async with asyncio.timeout(PATIENCE), adapter.opened(request_of()) as opened:
        await opened.read(PATIENCE)
        await asyncio.sleep(0.2)
        part = await opened.read(PATIENCE)
    assert part is not None
    assert len(part) <= 1 << 20


async def test_a_connection_that_breaks_is_an_error(
    kubelet: tuple[KubeletHttp, KubernetesPodLogs],
) -> None:
    http, adapter = kubelet
    http.state.pods["team-a", "train-0"] = MemoryPod("uid-1", {"main": MemoryLog(b"x")})
    async with asyncio.timeout(PATIENCE), adapter.opened(request_of()) as opened:
        assert await opened.read(PATIENCE) == b"x"
        http.state.down = ClusterUnavailable("the kubelet ends")
        http.state.pods["team-a", "train-0"].logs["main"].write(b"y")
        error = await _first_error(opened)
    assert type(error) is ClusterUnavailable


async def _first_error(opened: PodLog) -> ClusterError | None:
    """The error before the end of a log."""
    try:
        while await opened.read(PATIENCE) != b"":
            pass
    except ClusterError as error:
        return error
    return None
