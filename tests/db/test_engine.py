"""Connections to a database: URLs, limits, and values that no column can hold."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qsl

import orjson
import pytest

from queuectl.api.server import Certificate
from queuectl.db import connections
from queuectl.db.engine import DatabaseSettings, Pooling, encode_json, parse_url
from queuectl.domain.errors import BadInput, StoreError, StoreUnavailable
from tests.support.postgres import TestPostgres
from tests.support.stores import PostgresStore
from tests.support.tls import write_certificate


@pytest.mark.parametrize(
    ("url", "rendered"),
    [
        ("postgresql://u@h/d", "postgresql+asyncpg://u@h/d"),
        ("postgres://u:p@h:6432/d", "postgresql+asyncpg://u:p@h:6432/d"),
        ("postgresql+asyncpg://h/d", "postgresql+asyncpg://h/d"),
        ("postgresql://h/d?sslmode=verify-full&sslcert=/x", "postgresql+asyncpg://h/d"),
        ("postgresql://u@/d?host=/run/pg", "postgresql+asyncpg://u@/d?host=%2Frun%2Fpg"),
    ],
)
def test_urls_are_read_as_libpq_reads_them(url: str, rendered: str):
    assert parse_url(url).render_as_string(hide_password=False) == rendered


@pytest.mark.parametrize(
    "url", ["", "db.example.com", "mysql://u:secret@h/d", "postgresql+psycopg://h"]
)
def test_other_urls_are_refused_without_quoting_them(url: str):
    with pytest.raises(BadInput) as refused:
        parse_url(url)
    assert "secret" not in str(refused.value)


class TlsServer:
    """Accepts TLS as Postgres does, records the bytes of clients that trust it, and closes the connection."""

    def __init__(self, certificate: Certificate) -> None:
        self.received: list[bytes] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate.chain, certificate.key)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            yield server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            request = await reader.readexactly(8)
            if int.from_bytes(request[4:]) != 80877103:  # an SSLRequest
                self.received.append(request)
            else:
                writer.write(b"S")
                await writer.start_tls(self._context)
                self.received.append(await reader.read(1000))
        writer.close()


@pytest.mark.parametrize("place", ["url", "environment"])
@pytest.mark.parametrize(
    ("tls", "trusted", "received"),
    [
        ("sslmode=verify-full&sslrootcert={ours}", True, True),
        ("sslmode=verify-full&sslrootcert={other}", False, False),
        ("sslmode=verify-ca&sslrootcert={other}", False, False),
        ("sslmode=require", True, True),
    ],
)
async def test_a_database_without_a_trusted_certificate_receives_nothing(
    tmp_path: Path,
    tls: str,
    trusted: bool,
    received: bool,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
):
    """The parameters are those of the URL, or the variables of libpq, which the chart sets."""
    folders = {name: tmp_path / name for name in ("ours", "other")}
    for folder in folders.values():
        folder.mkdir()
    files = {name: write_certificate(folder, name) for name, folder in folders.items()}
    server = TlsServer(files["ours"])
    query = tls.format(**{name: one.chain for name, one in files.items()})
    if place == "environment":
        for name, value in parse_qsl(query):
            monkeypatch.setenv(f"PG{name.upper()}", value)
        query = ""
    async with server.listening() as port:
        url = f"postgresql://someone:secret@127.0.0.1:{port}/d?{query}"
        with pytest.raises(StoreUnavailable) as failed:
            await PostgresStore.connect(DatabaseSettings(url))
    assert ("certificate verify failed" in str(failed.value)) is not trusted
    assert [b"someone" in words for words in server.received] == [True] * received


@pytest.mark.parametrize("name", ["sslrootcert", "sslcert", "sslkey"])
async def test_a_missing_file_of_a_url_is_named(name: str):
    with pytest.raises(BadInput, match=f"{name}: the file /nowhere does not exist"):
        await PostgresStore.connect(DatabaseSettings(f"postgresql://h/d?{name}=/nowhere"))


FILES = {"QUEUECTL_DATABASE_PASSWORD_FILE": "/a", "QUEUECTL_API_DATABASE_PASSWORD_FILE": "/b"}
DIRECT = {"QUEUECTL_DATABASE_PGBOUNCER": "transaction", "QUEUECTL_DATABASE_DIRECT_URL": "d"}


@pytest.mark.parametrize(
    ("environ", "api", "settings"),
    [
        ({}, False, DatabaseSettings("x")),
        ({"QUEUECTL_DATABASE_PGBOUNCER": ""}, False, DatabaseSettings("x")),
        (FILES, False, DatabaseSettings("x", password_file=Path("/a"))),
        (FILES, True, DatabaseSettings("x", password_file=Path("/b"))),
        (
            {"QUEUECTL_DATABASE_PGBOUNCER": "session"},
            False,
            DatabaseSettings("x", pooling=Pooling.SESSION),
        ),
        (
            DIRECT | FILES,
            True,
            DatabaseSettings(
                "x",
                password_file=Path("/b"),
                pooling=Pooling.TRANSACTION,
                direct=DatabaseSettings("d", password_file=Path("/a")),
            ),
        ),
    ],
)
def test_the_environment_has_passwords_and_pgbouncer(
    environ: dict[str, str], api: bool, settings: DatabaseSettings
):
    assert DatabaseSettings.from_environment("x", environ, api=api) == settings


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"QUEUECTL_DATABASE_PGBOUNCER": "yes"}, "'yes' is not a pool mode: set session or trans"),
        ({"QUEUECTL_DATABASE_PGBOUNCER": "statement"}, "'statement' is not a pool mode"),
        ({"QUEUECTL_DATABASE_DIRECT_URL": "d"}, "only with QUEUECTL_DATABASE_PGBOUNCER=trans"),
    ],
)
def test_settings_of_pgbouncer_without_a_meaning_are_refused(environ: dict[str, str], message: str):
    with pytest.raises(BadInput, match=message):
        DatabaseSettings.from_environment("x", environ)


async def test_an_old_server_is_refused_by_number(
    database_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connections, "MINIMUM_VERSION", 990000)
    with pytest.raises(BadInput, match="PostgreSQL 99 or newer is needed"):
        await PostgresStore.connect(DatabaseSettings(database_url))


async def test_a_missing_server_is_unavailable():
    with pytest.raises(StoreUnavailable):
        await PostgresStore.connect(DatabaseSettings("postgresql://u@/d?host=/nowhere/at/all"))


async def test_a_database_without_schema_names_the_remedy(postgres: TestPostgres):
    name = await postgres.empty()
    with pytest.raises(StoreError, match="the database has no schema: run `queuectl db upgrade`"):
        await PostgresStore.connect(DatabaseSettings(postgres.server.url(name)))
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
