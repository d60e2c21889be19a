"""Metrics and health: beside the API, and alone on a port that is open to other machines."""

from __future__ import annotations

import httpx2
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from queuectl.api.app import create_metrics_app
from queuectl.telemetry.metrics import Metrics
from tests.api.conftest import talking_to
from tests.api.support import FixedHealth


@pytest.fixture
def alone(health: FixedHealth, metrics: Metrics) -> FastAPI:
    return create_metrics_app(health, metrics.registry)


@pytest.fixture(params=["beside the API", "alone"])
def either(request: pytest.FixtureRequest, app: FastAPI, alone: FastAPI) -> FastAPI:
    return alone if request.param == "alone" else app


async def test_metrics_are_exposed(either: FastAPI, metrics: Metrics) -> None:
    metrics.leading(7)
    async with talking_to(either) as client:
        answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = {f.name: f for f in text_string_to_metric_families(answer.text)}
    assert families["queuectl_leader_epoch"].samples[0].value == 7


async def test_openmetrics_is_returned_on_request(either: FastAPI) -> None:
    wanted = {"accept": "application/openmetrics-text; version=1.0.0"}
    async with talking_to(either) as client:
        answer = await client.get("/metrics", headers=wanted)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


async def test_a_healthy_process_is_ok(either: FastAPI) -> None:
    async with talking_to(either) as client:
        for path in ("/healthz", "/readyz"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_every_blocker_is_named(either: FastAPI, health: FixedHealth) -> None:
    health.blockers = ["watch: pods not listed yet", "database: no answer"]
    async with talking_to(either) as client:
        answer = await client.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["blockers"] == health.blockers
        assert (await client.get("/healthz")).status_code == 200


async def test_the_open_port_offers_nothing_else(alone: FastAPI) -> None:
    async with talking_to(alone) as client:
        for path in ("/api/v1/workloads", "/api/v1/openapi.json", "/docs"):
            assert (await client.get(path)).status_code == 404


async def test_the_open_port_answers_under_any_host(alone: FastAPI) -> None:
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=alone), base_url="http://10.0.0.7:8080"
    ) as client:
        assert (await client.get("/healthz")).status_code == 200
