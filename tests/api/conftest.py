from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from fastapi import FastAPI

from queuectl.api.app import create_app
from queuectl.db.engine import DatabaseSettings
from queuectl.db.ports import Commit
from queuectl.domain.ledger import EntryChange
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api import shared_fields
from tests.api.support import LIVES, FixedHealth, job, live_through
from tests.doubles.store import MemoryStore
from tests.support.postgres import TestPostgres, database_url, postgres
from tests.support.stores import PostgresStore

__all__ = ["database_url", "postgres"]

AnyStore = MemoryStore | PostgresStore

shared_fields.share()


@pytest.fixture
def health() -> FixedHealth:
    return FixedHealth()


@pytest.fixture
def metrics() -> MetricsRecorder:
    return MetricsRecorder()


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


async def live(store: AnyStore) -> None:
    """Write a workload in every state."""
    for name, life in LIVES.items():
        await commit(store, live_through(job(name), *life))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def lived(postgres: TestPostgres) -> str:
    """Name of a database with a workload in every state. It takes a hundred commits, so tests get copies of it."""
    name = await postgres.fresh()
    store = await PostgresStore.connect(DatabaseSettings(postgres.server.url(name)))
    await live(store)
    await store.close()
    return name


@pytest.fixture(params=["memory", "postgres"])
def location(request: pytest.FixtureRequest) -> str | None:
    """URL of a fresh database, that of :func:`ledger` where the test asks for it; None = in memory."""
    if request.param == "memory":
        return None
    wanted = "lived_url" if "ledger" in request.fixturenames else "database_url"
    url: str = request.getfixturevalue(wanted)
    return url


@pytest.fixture
async def lived_url(postgres: TestPostgres, lived: str) -> AsyncIterator[str]:
    name = await postgres.fresh(lived)
    yield postgres.server.url(name)
    await postgres.drop(name)


@pytest.fixture
async def store(location: str | None) -> AsyncIterator[AnyStore]:
    """A store in memory and one in Postgres: each test runs with both."""
    made: AnyStore = MemoryStore()
    if location is not None:
        made = await PostgresStore.connect(DatabaseSettings(location))
    yield made
    await made.close()


class Delegate:
    """Delegates to an object of the current test."""

    def __init__(self, of: Callable[[], Any]) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of(), name)


class Standby:
    """The API over the store and health of the current test. It is made once, which takes longer than many requests.

    It keeps nothing between requests but the feed of the event stream, whose tests make their own.
    """

    def __init__(self) -> None:
        self._store: AnyStore = MemoryStore()
        self._health, self._metrics = FixedHealth(), MetricsRecorder()
        store: Any = Delegate(lambda: self._store)
        store.audit = Delegate(
            lambda: self._store.audit
        )  # the layer of the audit log keeps a reference
        health: Any = Delegate(lambda: self._health)
        registry: Any = Delegate(lambda: self._metrics.registry)
        self._app = create_app(store, health, registry)

    def over(self, store: AnyStore, health: FixedHealth, metrics: MetricsRecorder) -> FastAPI:
        """Until the next test."""
        self._store, self._health, self._metrics = store, health, metrics
        return self._app


@pytest.fixture(scope="session")
def standby() -> Standby:
    return Standby()


@pytest.fixture
def app(
    standby: Standby, memory: MemoryStore, health: FixedHealth, metrics: MetricsRecorder
) -> FastAPI:
    """The API over the store double. Other tests share it: a test that changes it restores it."""
    return standby.over(memory, health, metrics)


def talking_to(app: FastAPI) -> httpx2.AsyncClient:
    """A client in the same process. Defects answer 500, as they do over the wire."""
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000")


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    """Talks to the API over the double."""
    async with talking_to(app) as made:
        yield made


@pytest.fixture
async def api(
    standby: Standby, store: AnyStore, health: FixedHealth, metrics: MetricsRecorder
) -> AsyncIterator[httpx2.AsyncClient]:
    """Talks to the API over either store."""
    async with talking_to(standby.over(store, health, metrics)) as made:
        yield made


async def commit(store: AnyStore, changes: Sequence[EntryChange]) -> None:
    """Write the changes of one workload, one commit each."""
    epoch = await store.take_over("test", 0)
    for cycle, change in enumerate(changes, 1):
        await store.commit(Commit([change]), epoch=epoch, cycle=cycle)


@pytest.fixture
async def ledger(store: AnyStore, location: str | None) -> AnyStore:
    """A workload in every state."""
    if location is None:
        await live(store)
    return store
