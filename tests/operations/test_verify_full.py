"""A role without superuser rights does all of queuectl's work over a connection with sslmode=verify-full."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import asyncpg
import pytest
import pytest_asyncio

from queuectl.db.embedded import server_account
from queuectl.db.engine import DatabaseSettings
from queuectl.db.migrate import upgrade
from queuectl.domain.errors import StoreUnavailable
from queuectl.localcluster.layout import free_ports
from tests.db.conformance import OpenStore, StoreConformance
from tests.operations.servers import (
    EVERY,
    needs_tls,
    own_server,
    programs_first,
    restart,
    socket_url,
)
from tests.support.stores import PostgresStore
from tests.support.tls import write_certificate
from tests.system.transcript import Page, shell

pytestmark = [pytest.mark.operations, pytest.mark.timeout(300), needs_tls]

PASSWORD: Final = "not-a-secret"
ROLE: Final = "queuectl"
_numbers = count(1)


@dataclass(frozen=True)
class TlsServer:
    """A Postgres that accepts connections over TCP with TLS and a password alone."""

    folder: Path
    port: int
    authority: Path
    other_authority: Path

    def url(self, database: str, *, host: str = "127.0.0.1", tls: str = "") -> str:
        tls = tls or f"sslmode=verify-full&sslrootcert={self.authority}"
        return f"postgresql://{ROLE}:{PASSWORD}@{host}:{self.port}/{database}?{tls}"

    def admin(self, database: str = "postgres") -> str:
        return socket_url(self.folder, database, port=self.port, user="postgres")

    async def execute(self, statement: str) -> object:
        connection = await asyncpg.connect(self.admin())
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()


def certificates(folder: Path) -> tuple[Path, Path]:
    made = {}
    for name in ("ours", "other"):
        (folder / name).mkdir()
        made[name] = write_certificate(folder / name, name)
    account = server_account()
    shutil.copy(made["ours"].key, folder / "server.key")
    shutil.copy(made["ours"].chain, folder / "server.crt")
    for name in ("server.key", "server.crt"):
        (folder / name).chmod(0o600)
        if account is not None:
            os.chown(folder / name, account.uid, account.gid)
    return made["ours"].chain, made["other"].chain


@pytest.fixture(scope="module")
def server() -> Iterator[TlsServer]:
    (port,) = free_ports(1)
    rules = f"hostssl {EVERY} 127.0.0.1/32 scram-sha-256\n"
    with own_server(f"port = {port}\n", rules, superuser="postgres") as folder:
        ours, other = certificates(folder)
        made = TlsServer(folder, port, ours, other)
        settings = {
            "ssl_cert_file": f"'{folder}/server.crt'",
            "ssl_key_file": f"'{folder}/server.key'",
            "ssl": "on",
        }
        for name, value in settings.items():
            asyncio.run(made.execute(f"ALTER SYSTEM SET {name} = {value}"))
        asyncio.run(made.execute("ALTER SYSTEM SET listen_addresses = '127.0.0.1'"))
        restart(folder)
        yield made


@pytest.fixture(scope="module")
def prepared(server: TlsServer) -> TlsServer:
    """The database and the role of the page, with the schema."""
    environment = {
        "PATH": programs_first(os.environ["PATH"]),
        "ADMIN_URL": server.admin(),
        "PASSWORD": PASSWORD,
    }
    with shell(environment) as typing:
        Page("database.md", typing).type('psql "$ADMIN_URL"')
    asyncio.run(upgrade(server.url("queuectl")))
    return server


class TestStore(StoreConformance):
    @pytest_asyncio.fixture
    async def open_store(self, prepared: TlsServer) -> AsyncIterator[OpenStore]:
        name = f"copy_{next(_numbers)}"
        await prepared.execute(f"CREATE DATABASE {name} TEMPLATE queuectl OWNER {ROLE}")
        opened: list[PostgresStore] = []

        async def open_one() -> PostgresStore:
            opened.append(await PostgresStore.connect(DatabaseSettings(prepared.url(name))))
            return opened[-1]

        yield open_one
        for one in opened:
            await one.close()
        await prepared.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def test_the_role_has_no_superuser_right_and_the_connection_is_encrypted(
    prepared: TlsServer,
) -> None:
    assert not await prepared.execute(f"SELECT rolsuper FROM pg_roles WHERE rolname = '{ROLE}'")
    store = await PostgresStore.connect(DatabaseSettings(prepared.url("queuectl")))
    await store.now()
    used = f"SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = '{ROLE}'"
    assert await prepared.execute(used)
    await store.close()


@pytest.mark.parametrize(
    ("host", "tls", "message"),
    [
        ("127.0.0.1", "sslmode=verify-full&sslrootcert={other}", "certificate verify failed"),
        ("localhost", "sslmode=verify-full&sslrootcert={ours}", "Hostname mismatch"),
        ("127.0.0.1", "sslmode=disable", "no encryption"),
    ],
    ids=["another authority", "another name", "no TLS"],
)
async def test_a_connection_that_cannot_be_trusted_is_refused(
    prepared: TlsServer, host: str, tls: str, message: str
) -> None:
    given = tls.format(ours=prepared.authority, other=prepared.other_authority)
    with pytest.raises(StoreUnavailable, match=message):
        await PostgresStore.connect(
            DatabaseSettings(prepared.url("queuectl", host=host, tls=given))
        )
