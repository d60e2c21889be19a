from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import httpx2
import pytest
from fastapi import FastAPI

from queuectl.api.app import create_app
from queuectl.db.engine import DatabaseSettings
from queuectl.db.store import PostgresStore
from queuectl.domain.ledger import Change
from queuectl.telemetry.metrics import Metrics
from tests.api.support import LIVES, FixedHealth, job, live_through
from tests.doubles.store import MemoryStore
from tests.support.postgres import database_url, postgres  # noqa: F401

AnyStore = MemoryStore | PostgresStore


@pytest.fixture
def health() -> FixedHealth:
    return FixedHealth()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture(params=["memory", "postgres"])
def location(request: pytest.FixtureRequest) -> str | None:
    """URL of a fresh database; None = in memory."""
    return request.getfixturevalue("database_url") if request.param == "postgres" else None


@pytest.fixture
async def store(location: str | None) -> AsyncIterator[AnyStore]:
    """The double and the real thing: what holds for one holds for the other."""
    made: AnyStore = MemoryStore()
    if location is not None:
        made = await PostgresStore.connect(DatabaseSettings(location))
    yield made
    await made.close()


@pytest.fixture
def app(memory: MemoryStore, health: FixedHealth, metrics: Metrics) -> FastAPI:
    """The API over the double."""
    return create_app(memory, health, metrics.registry)


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
    store: AnyStore, health: FixedHealth, metrics: Metrics
) -> AsyncIterator[httpx2.AsyncClient]:
    """Talks to the API over either store."""
    async with talking_to(create_app(store, health, metrics.registry)) as made:
        yield made


async def commit(store: AnyStore, changes: Sequence[Change]) -> None:
    """Write the changes of one workload, one commit each."""
    epoch = await store.take_over("test", 0)
    for cycle, change in enumerate(changes, 1):
        await store.commit([change], epoch=epoch, revision=None, cycle=cycle)


@pytest.fixture
async def ledger(store: AnyStore) -> AnyStore:
    """A workload in every state."""
    for name, life in LIVES.items():
        await commit(store, live_through(job(name), *life))
    return store
