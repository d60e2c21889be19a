"""Metrics and health: alongside the API, and alone on a port that is open to other machines."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import httpx2
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from queuectl.api import health_thread
from queuectl.api.app import create_health_app, create_metrics_app
from queuectl.api.health_thread import STALLED_SECONDS, HealthListener, LoopHealth
from queuectl.control.listen_address import ListenAddress
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.conftest import talking_to
from tests.api.support import FixedHealth


@pytest.fixture
def metrics_port(metrics: MetricsRecorder) -> FastAPI:
    return create_metrics_app(metrics.registry)


@pytest.fixture
def health_port(health: FixedHealth) -> FastAPI:
    return create_health_app(health)


@pytest.fixture(params=["alongside the API", "alone"])
def with_metrics(request: pytest.FixtureRequest, app: FastAPI, metrics_port: FastAPI) -> FastAPI:
    return metrics_port if request.param == "alone" else app


@pytest.fixture(params=["alongside the API", "alone"])
def with_health(request: pytest.FixtureRequest, app: FastAPI, health_port: FastAPI) -> FastAPI:
    return health_port if request.param == "alone" else app


async def test_metrics_are_exposed(with_metrics: FastAPI, metrics: MetricsRecorder) -> None:
    metrics.leading(7)
    async with talking_to(with_metrics) as client:
        answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = {f.name: f for f in text_string_to_metric_families(answer.text)}
    assert families["queuectl_leader_epoch"].samples[0].value == 7


async def test_openmetrics_is_returned_on_request(with_metrics: FastAPI) -> None:
    wanted = {"accept": "application/openmetrics-text; version=1.0.0"}
    async with talking_to(with_metrics) as client:
        answer = await client.get("/metrics", headers=wanted)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


async def test_a_healthy_process_is_ok(with_health: FastAPI) -> None:
    async with talking_to(with_health) as client:
        for path in ("/healthz", "/readyz"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_every_blocker_is_named(with_health: FastAPI, health: FixedHealth) -> None:
    health.blockers = ["watch: pods not listed yet", "database: no answer"]
    async with talking_to(with_health) as client:
        answer = await client.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["blockers"] == health.blockers
        assert (await client.get("/healthz")).status_code == 200


async def test_the_open_ports_offer_nothing_else(
    metrics_port: FastAPI, health_port: FastAPI
) -> None:
    others = ["/api/v1/workloads", "/api/v1/openapi.json", "/docs"]
    for alone, paths in (
        (metrics_port, ["/healthz", "/readyz", *others]),
        (health_port, ["/metrics", *others]),
    ):
        async with talking_to(alone) as client:
            assert {(await client.get(path)).status_code for path in paths} == {404}


async def test_the_open_port_answers_under_any_host(health_port: FastAPI) -> None:
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=health_port), base_url="http://10.0.0.7:8081"
    ) as client:
        assert (await client.get("/healthz")).status_code == 200


async def test_the_kubelet_gets_an_answer_while_the_event_loop_is_busy(
    health: FixedHealth,
) -> None:
    listener = HealthListener(ListenAddress("127.0.0.1", 0), health)
    async with listener.serving():
        answer, unready = _while_the_loop_is_busy(listener.url)
        assert answer.json() == {"status": "ok"}
        assert unready.json()["blockers"] == ["event loop: no answer within 0.05 s"]
        with mock.patch.object(health_thread, "FRESH_SECONDS", -1.0):
            answer = await asyncio.to_thread(httpx2.get, f"{listener.url}/readyz")
        assert answer.json() == {"status": "ok"}


def _while_the_loop_is_busy(url: str) -> tuple[httpx2.Response, httpx2.Response]:
    """The answers to requests of a thread, for which the event loop of the process waits."""
    with (
        ThreadPoolExecutor(2) as threads,
        mock.patch.object(health_thread, "ANSWER_SECONDS", 0.05),
        mock.patch.object(health_thread, "FRESH_SECONDS", -1.0),
    ):
        asked = [threads.submit(httpx2.get, f"{url}{path}") for path in ("/healthz", "/readyz")]
        live, ready = [one.result() for one in asked]
    return live, ready


async def test_a_process_whose_event_loop_hangs_is_not_live(health: FixedHealth) -> None:
    now = 0.0
    seen = LoopHealth(health, lambda: now)
    assert list(await seen.live()) == []
    now = STALLED_SECONDS + 1.0
    assert await seen.live() == ["event loop: has not run for 31 s"]


async def test_the_faults_of_the_controller_are_shown_alongside_its_event_loop() -> None:
    class Stalled(FixedHealth):
        async def live(self) -> list[str]:
            return ["the loop of the leader has made no progress for 91 s"]

    seen = LoopHealth(Stalled(), lambda: 0.0)
    beating = asyncio.create_task(seen.beat())
    await asyncio.sleep(0)
    assert await seen.live() == ["the loop of the leader has made no progress for 91 s"]
    beating.cancel()


async def test_many_requests_for_readiness_are_one_question(health: FixedHealth) -> None:
    asked = 0

    class Counting(FixedHealth):
        async def ready(self) -> list[str]:
            nonlocal asked
            asked += 1
            return []

    seen = LoopHealth(Counting(), lambda: 0.0)
    assert await asyncio.gather(*(seen.ready() for _ in range(20))) == [[]] * 20
    assert asked == 1
