"""The real store and its double fulfill the same contract."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from queuectl.db.engine import DatabaseSettings
from tests.db.conformance import OpenStore, StoreConformance
from tests.doubles.store import MemoryDatabase, MemoryStore
from tests.support.stores import PostgresStore


class TestPostgresStore(StoreConformance):
    @pytest_asyncio.fixture
    async def open_store(self, database_url: str) -> AsyncIterator[OpenStore]:
        opened: list[PostgresStore] = []

        async def open_one() -> PostgresStore:
            opened.append(await PostgresStore.connect(DatabaseSettings(database_url)))
            return opened[-1]

        yield open_one
        for one in opened:
            await one.close()


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        database = MemoryDatabase()

        async def open_one() -> MemoryStore:
            return MemoryStore(database)

        return open_one
