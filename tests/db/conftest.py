"""A real Postgres for every test of this folder, and stores on it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from queuectl.db.engine import DatabaseSettings
from tests.support.postgres import database_url, postgres
from tests.support.stores import PostgresStore

__all__ = ["database_url", "postgres", "store"]


@pytest_asyncio.fixture
async def store(database_url: str) -> AsyncIterator[PostgresStore]:
    """A store on the database of the test."""
    opened = await PostgresStore.connect(DatabaseSettings(database_url))
    yield opened
    await opened.close()
