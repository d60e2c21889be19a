"""How a database is reached: URLs, limits, values no column can hold."""

from __future__ import annotations

import orjson
import pytest

from queuectl.db import engine
from queuectl.db.engine import DatabaseSettings, encode_json, parse_url
from queuectl.db.store import PostgresStore
from queuectl.domain.errors import BadInput, StoreError, StoreUnavailable
from tests.support.postgres import TestPostgres


@pytest.mark.parametrize(
    ("url", "rendered"),
    [
        ("postgresql://u@h/d", "postgresql+asyncpg://u@h/d"),
        ("postgres://u:p@h:6432/d", "postgresql+asyncpg://u:p@h:6432/d"),
        ("postgresql+asyncpg://h/d", "postgresql+asyncpg://h/d"),
        ("postgresql://h/d?sslmode=verify-full", "postgresql+asyncpg://h/d?ssl=verify-full"),
        ("postgresql://u@/d?host=/run/pg", "postgresql+asyncpg://u@/d?host=%2Frun%2Fpg"),
    ],
)
def test_urls_are_taken_as_libpq_takes_them(url: str, rendered: str):
    assert parse_url(url).render_as_string(hide_password=False) == rendered


@pytest.mark.parametrize(
    "url", ["", "db.example.com", "mysql://u:secret@h/d", "postgresql+psycopg://h"]
)
def test_other_urls_are_refused_without_quoting_them(url: str):
    with pytest.raises(BadInput) as refused:
        parse_url(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(("flag", "on"), [("1", True), ("true", True), ("", False), ("0", False)])
def test_the_environment_says_whether_pgbouncer_is_between(flag: str, on: bool):
    settings = DatabaseSettings.from_environment("x", {"QUEUECTL_DATABASE_PGBOUNCER": flag})
    assert settings.pgbouncer is on


async def test_an_old_server_is_refused_by_number(
    database_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine, "MINIMUM_VERSION", 990000)
    with pytest.raises(BadInput, match="PostgreSQL 99 or newer is needed"):
        await PostgresStore.connect(DatabaseSettings(database_url))


async def test_a_server_that_is_not_there_is_unavailable():
    with pytest.raises(StoreUnavailable):
        await PostgresStore.connect(DatabaseSettings("postgresql://u@/d?host=/nowhere/at/all"))


async def test_a_database_without_schema_names_the_remedy(postgres: TestPostgres):
    name = await postgres.empty()
    store = await PostgresStore.connect(DatabaseSettings(postgres.server.url(name)))
    with pytest.raises(StoreError, match="queuectl db upgrade"):
        await store.load()
    await store.close()
    await postgres.drop(name)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ({"a": [1, 2.5, None, "x"]}, {"a": [1, 2.5, None, "x"]}),
        ({"a\x00": ["b\x00c", {"d": "\x00"}]}, {"a\ufffd": ["b\ufffdc", {"d": "\ufffd"}]}),
        ("the text \\u0000", "the text \\u0000"),
        ((1, 2), [1, 2]),
    ],
)
def test_json_keeps_all_but_nul(value: object, stored: object):
    assert orjson.loads(encode_json(value)) == stored
