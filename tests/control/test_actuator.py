"""The actuator's memory of writes that were answered, and answers that are not from an API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from queuectl.cluster.adapter import KubernetesCluster
from queuectl.cluster.connection import Connection
from queuectl.control.leader.actuator import Actuator
from queuectl.domain.ledger import Purpose
from queuectl.lifecycle.outstanding_writes import POD, Write
from queuectl.telemetry.metrics import MetricsRecorder
from tests.cluster.test_client import kubeconfig
from tests.doubles.cluster import FakeCluster

GANGS = [f"gang-{number}" for number in range(50)]


class Pods(FakeCluster):
    """Accepts every pin and returns version 5 of the pod."""

    async def patch_pod(self, namespace: str, name: str, patch: object) -> int:
        await asyncio.sleep(0)
        return 5


class Ledger:
    """Each gang has one pin to write until the watch shows it."""

    def __init__(self) -> None:
        self.owing = set(GANGS)
        self.asked = asyncio.Event()

    def due(self, uid: str) -> list[Write]:
        self.asked.set()
        if uid not in self.owing:
            return []
        return [Write(POD, "n", uid, f"pod-of-{uid}", 1, {"metadata": {}}, Purpose.PIN, 1)]


@asynccontextmanager
async def acting(ledger: Ledger) -> AsyncIterator[Actuator]:
    actuator = Actuator(Pods(), ledger.due, MetricsRecorder(), 4)
    task = asyncio.create_task(actuator.run())
    yield actuator
    task.cancel()
    await asyncio.wait({task})


async def poked(actuator: Actuator) -> None:
    actuator.poke(GANGS)
    await actuator.settled()


@pytest.mark.parametrize("ends", ["the watch shows the pins", "the jobs are deleted"])
async def test_a_write_that_is_no_longer_due_is_forgotten(ends: str) -> None:
    ledger = Ledger()
    async with acting(ledger) as actuator:
        await poked(actuator)
        assert len(actuator._assumed) == len(GANGS), "a write is not sent twice before its echo"
        if ends == "the watch shows the pins":
            ledger.owing.clear()
            await poked(actuator)
        else:
            for uid in GANGS:
                actuator.forget(uid)
        assert actuator._assumed == {}


async def test_a_job_that_is_deleted_during_a_write_leaves_no_memory() -> None:
    ledger = Ledger()
    async with acting(ledger) as actuator:
        actuator.poke(GANGS)
        await ledger.asked.wait()
        ledger.owing.clear()
        for uid in GANGS:
            actuator.forget(uid)
        await actuator.settled()
        assert actuator._assumed == {}


class Stopping(FakeCluster):
    """Deletes and evicts pods that its watch still shows."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped: list[str] = []

    async def stop_pod(self, namespace: str, name: str, uid: str) -> None:
        self.stopped.append(name)

    async def evict_pod(self, namespace: str, name: str, uid: str, version: int) -> None:
        self.stopped.append(name)


@pytest.mark.parametrize("how", ["deletes", "evicts"])
async def test_a_pod_is_stopped_once_before_the_watch_shows_it(how: str) -> None:
    cluster, stop = Stopping(), Write(POD, "n", "pod", "pod-uid", 1, {}, Purpose.STOP, 1)
    owed = replace(stop, deletes=how == "deletes", evicts=how == "evicts")
    actuator = Actuator(cluster, lambda _: [owed], MetricsRecorder(), 4)
    task = asyncio.create_task(actuator.run())
    for _ in range(2):
        actuator.poke(["gang"])
        await actuator.settled()
    task.cancel()
    await asyncio.wait({task})
    assert cluster.stopped == ["pod"]


# ---- a proxy between queuectl and the API server


DEEP = "[" * 100_000 + "]" * 100_000
PAGES: dict[str, tuple[int, str]] = {
    "a page": (200, "<html>sign in</html>"),
    "nothing": (200, ""),
    "a JSON list": (200, "[1, 2]"),
    "an object without metadata": (200, '{"error": "sign in"}'),
    "a resourceVersion of another type": (200, '{"metadata": {"resourceVersion": 5}}'),
    "deep JSON": (200, DEEP),
    "a bad gateway": (502, "<html>bad gateway</html>"),
    "a bad gateway with deep JSON": (502, '{"details": ' + DEEP + "}"),
    "a page that is not found": (404, "<html>no such host</html>"),
    "no version": (200, '{"major": "v1", "minor": {}}'),
}


class Proxy:
    """Answers each request with its own page while ``page`` is set, and then as an API server of version 1.33."""

    def __init__(self, page: tuple[int, str]) -> None:
        self.page: tuple[int, str] | None = page
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path}")
        if self.page is not None:
            status, text = self.page
            return web.Response(status=status, text=text, content_type="text/html")
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "33"})
        found = {"name": "pod", "uid": request.match_info["path"], "resourceVersion": "7"}
        return web.json_response({"metadata": found})


PIN = Write(POD, "n", "pod", "pod-uid", 1, {"metadata": {}}, Purpose.PIN, 1)
TEMPLATE = {
    "metadata": {"uid": "job-uid", "resourceVersion": "1"},
    "spec": {"suspend": False, "template": {}},
}
START = Write("Job", "n", "job", "job-uid", 1, TEMPLATE, Purpose.START, 1)


@pytest.mark.parametrize("write", [PIN, START], ids=["a pin", "a start"])
@pytest.mark.parametrize("page", PAGES)
async def test_a_write_is_sent_again_after_an_answer_that_is_not_from_an_api_server(
    page: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start asks for the version of the server first."""
    monkeypatch.setattr("queuectl.control.leader.schedule.FIRST_RETRY", 0.01)
    proxy = Proxy(PAGES[page])
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", proxy.answer)
    async with TestServer(app) as server:
        given = Connection(kubeconfig=kubeconfig(tmp_path, server.port or 0))
        cluster = await KubernetesCluster.connect(given)
        actuator = Actuator(cluster, lambda _: [write], MetricsRecorder(), 2)
        running = asyncio.create_task(actuator.run())
        try:
            async with asyncio.timeout(30):
                actuator.poke(["gang"])
                while len(proxy.asked) < 3:  # noqa: ASYNC110 - of the server
                    await asyncio.sleep(0.001)
                proxy.page = None
                while not actuator._assumed:  # noqa: ASYNC110 - of a worker
                    await asyncio.sleep(0.001)
            assert actuator._assumed == {"gang": {write.uid: 7}}
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.wait({running})
            await cluster.close()
