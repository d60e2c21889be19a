from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest
from fastapi import FastAPI
from playwright.async_api import Browser

from queuectl.api.access import Guard
from queuectl.api.app import create_app
from queuectl.domain.identity import Caller, Right
from queuectl.telemetry.metrics import Metrics
from queuectl.web.app import add_dashboard
from tests.api.conftest import talking_to
from tests.api.support import FixedHealth
from tests.web.browser import NoBrowser, running, served
from tests.web.sample import NOW, Sample, make
from tests.web.serve_sample import dashboard


class FixedRights:
    """May what the test says."""

    def __init__(self, *rights: Right) -> None:
        self.rights = set(rights)

    async def may(self, caller: Caller, right: Right) -> bool:
        return right in self.rights


def app_over(sample: Sample, guard: Guard | None = None) -> FastAPI:
    """The API and the dashboard over a sample; the clock stands still."""
    app = create_app(sample.store, FixedHealth(), Metrics().registry, sample.diagnoser)
    guard = guard or app.state.guard
    add_dashboard(app, sample.store, guard, sample.scene, sample.diagnoser, clock=lambda: NOW)
    return app


@pytest.fixture
def sample() -> Sample:
    return make()


@pytest.fixture
async def pages(sample: Sample) -> AsyncIterator[httpx2.AsyncClient]:
    """Asks for pages as somebody who may do everything."""
    async with talking_to(app_over(sample)) as client:
        yield client


@pytest.fixture
async def tenant(sample: Sample) -> AsyncIterator[httpx2.AsyncClient]:
    """Asks for pages as somebody who may read the workloads of one team and the nodes, and hold that team's gangs."""
    rights = FixedRights(
        Right("list", "workloads", "team-vision"),
        Right("list", "nodes"),
        *(Right("get", "workloads", e.namespace, e.name) for e in _of_vision(sample)),
        *(Right("create", "workloads/hold", e.namespace, e.name) for e in _of_vision(sample)),
    )
    async with talking_to(app_over(sample, Guard(rights))) as client:
        yield client


def _of_vision(sample: Sample):
    return [e for e in sample.database.entries.values() if e.namespace == "team-vision"]


@pytest.fixture
async def address(sample: Sample) -> AsyncIterator[str]:
    async with served(dashboard(sample)) as url:
        yield url


@pytest.fixture
async def browser(address: str) -> AsyncIterator[Browser]:
    """Gone before its server: a page that is still open follows its events, and a server waits for whom it answers."""
    try:
        async with running() as started:
            yield started
    except NoBrowser as error:
        pytest.skip(str(error))
