from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import cache
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from playwright.async_api import Browser

from queuectl.api.access import Guard
from queuectl.api.app import create_app
from queuectl.domain.identity import Caller, Right
from queuectl.domain.links import LinkTemplate
from queuectl.telemetry.metrics import MetricsRecorder
from queuectl.web.app import add_dashboard
from tests.api.conftest import Delegate, talking_to
from tests.api.support import FixedHealth
from tests.web.browser import NoBrowser, running, served
from tests.web.sample import NOW, Sample, make
from tests.web.serve_sample import dashboard


class FixedRights:
    """Allows the rights that the test gives."""

    def __init__(self, *rights: Right) -> None:
        self.rights = set(rights)

    async def may(self, caller: Caller, right: Right) -> bool:
        return right in self.rights


class Standby:
    """The API and the dashboard over the sample of the current test, with a fixed clock.

    Made once, because the application takes long to make; see tests/api/conftest.py.
    """

    def __init__(self) -> None:
        self._sample, self._guard = make(), Guard()
        store: Any = Delegate(lambda: self._sample.store)
        store.audit = Delegate(lambda: self._sample.store.audit)
        diagnoser: Any = Delegate(lambda: self._sample.diagnoser)
        cluster_reader: Any = Delegate(lambda: self._sample.cluster_reader)
        guard: Any = Delegate(lambda: self._guard)
        self._app = create_app(store, FixedHealth(), MetricsRecorder().registry, diagnoser)
        self._links: list[LinkTemplate] = []
        add_dashboard(
            self._app, store, guard, cluster_reader, diagnoser, links=self._links, clock=lambda: NOW
        )

    def over(
        self, sample: Sample, guard: Guard | None = None, links: Sequence[LinkTemplate] = ()
    ) -> FastAPI:
        """The application over this sample until the next test; without a guard, everything is allowed."""
        self._sample, self._guard = sample, guard or Guard()
        self._links[:] = links
        return self._app


@cache
def _standby(*, guarded: bool) -> Standby:
    """One application with all rights and one with a guard, because a test can use both."""
    return Standby()


def app_over(
    sample: Sample, guard: Guard | None = None, links: Sequence[LinkTemplate] = ()
) -> FastAPI:
    """The API and the dashboard over a sample, with a fixed clock."""
    return _standby(guarded=guard is not None).over(sample, guard, links)


@pytest.fixture
def sample() -> Sample:
    return make()


@pytest.fixture
async def pages(sample: Sample) -> AsyncIterator[httpx2.AsyncClient]:
    """A client with all rights."""
    async with talking_to(app_over(sample)) as client:
        yield client


@pytest.fixture
async def tenant(sample: Sample) -> AsyncIterator[httpx2.AsyncClient]:
    """A client that may read the workloads of one team and the nodes, and hold the gangs of that team."""
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
    """Stopped before its server: an open page follows the event stream, and a server waits for open responses."""
    try:
        async with running() as started:
            yield started
    except NoBrowser as error:
        pytest.skip(str(error))
