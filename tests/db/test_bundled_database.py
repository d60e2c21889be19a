"""The bundled server: its password, its Secret and its rules, and the refusal of an empty database beside its volume."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.control import bundled_database
from queuectl.control.bundled_database import OWNER, URLS, BundledSettings, refuse_unmoved, serve
from queuectl.db.embedded import DATABASE, PORT, USER
from queuectl.db.migrate import upgrade
from queuectl.domain.errors import ClusterUnavailable, ObjectGone, StoreError
from tests.doubles.certificate_objects import CertificateObjects
from tests.support.postgres import TestPostgres, server_directory

HOST = f"127.54.{os.getpid() // 250 % 250}.{os.getpid() % 250 + 1}"
"""An address of this process: the port is fixed, and workers run at the same time."""
"""An address of this machine on which no other server listens."""


@pytest.fixture
def directory() -> Iterator[Path]:
    with server_directory() as made:
        yield made / "postgres"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CertificateObjects:
    """A double of the API server with the empty Secret of the chart."""
    double = CertificateObjects()

    async def connect(_: Connection) -> CertificateObjects:
        return double

    monkeypatch.setattr(Api, "connect", connect)
    monkeypatch.setattr(bundled_database, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(bundled_database, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(bundled_database, "_RETRY_SECONDS", 0.02)
    return double


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[None]:
    """The server, from the time at which the Secret has its URLs."""
    stop, ready = asyncio.Event(), asyncio.Event()
    settings = BundledSettings(directory, HOST, "queuectl-system", "database", listen=HOST)
    served = asyncio.create_task(serve(settings, stop, ready.set))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({served, waiting}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if served.done():
            served.result()
        yield
    finally:
        waiting.cancel()
        stop.set()
        await served


def url(cluster: CertificateObjects) -> str:
    urls = {base64.b64decode(cluster.secret["data"][key]).decode() for key in URLS}
    [only] = urls
    return only


async def fetched(address: str, query: str) -> Any:
    connection = await asyncpg.connect(address)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def test_the_role_of_the_secret_owns_a_durable_database(
    directory: Path, cluster: CertificateObjects
) -> None:
    async with running(directory):
        address = url(cluster)
        state = await upgrade(address)
        assert state.up_to_date
        assert await fetched(address, "SHOW fsync") == "on"
        assert await fetched(address, "SHOW full_page_writes") == "on"
        query = "SELECT rolsuper OR rolcreaterole OR rolcreatedb FROM pg_roles WHERE rolname = current_user"
        assert await fetched(address, query) is False
        stored = "SELECT rolpassword FROM pg_authid WHERE rolname = 'queuectl_owner'"
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await fetched(address, stored)


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://{OWNER}:wrong@{HOST}:{PORT}/{DATABASE}",
        f"postgresql://{OWNER}@{HOST}:{PORT}/{DATABASE}",
        f"postgresql://{USER}:x@{HOST}:{PORT}/{DATABASE}",
        f"postgresql://{OWNER}:x@{HOST}:{PORT}/postgres",
    ],
    ids=["wrong password", "no password", "another role", "another database"],
)
async def test_others_cannot_log_in(
    directory: Path, cluster: CertificateObjects, address: str
) -> None:
    async with running(directory):
        with pytest.raises(
            (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InterfaceError)
        ):
            await fetched(address, "SELECT 1")


async def test_a_restart_keeps_password_and_rows_also_if_a_mount_changed_the_modes(
    directory: Path, cluster: CertificateObjects
) -> None:
    async with running(directory):
        before = url(cluster)
        await fetched(before, "CREATE TABLE kept AS SELECT 7 AS number")
    for folder in (directory / "data", directory / "sock"):
        folder.chmod(0o2770)
    async with running(directory):
        assert url(cluster) == before
        assert await fetched(before, "SELECT number FROM kept") == 7


HOSTILE: dict[str, Any] = {
    "nothing": None,
    "a list": ["url"],
    "no base64": {"migration-url": "&&&"},
    "a number": {"migration-url": 5},
    "no URL": {"migration-url": base64.b64encode(b"http://[").decode()},
    "no UTF-8": {"migration-url": base64.b64encode(b"\xff").decode()},
    "a short password": {"migration-url": base64.b64encode(b"postgresql://a:b@c/d").decode()},
    "a quote": {"migration-url": base64.b64encode(b"postgresql://a:';DROP@c/d").decode()},
}


@pytest.mark.parametrize("content", HOSTILE)
async def test_a_secret_with_other_content_gets_a_new_password(
    directory: Path, cluster: CertificateObjects, content: str
) -> None:
    cluster.secret["data"] = HOSTILE[content]
    async with running(directory):
        assert len(urlsplit(url(cluster)).password or "") >= 40
        assert await fetched(url(cluster), "SELECT 1") == 1


async def test_a_secret_that_was_emptied_is_written_again_and_failures_are_tried_again(
    directory: Path, cluster: CertificateObjects
) -> None:
    cluster.answers = [ClusterUnavailable("down"), ClusterUnavailable("down")]
    cluster.conflicts = 1
    async with running(directory):
        cluster.secret["data"] = None
        async with asyncio.timeout(30):
            while not cluster.secret["data"]:  # noqa: ASYNC110 - of a double
                await asyncio.sleep(0.02)
        assert await fetched(url(cluster), "SELECT 1") == 1


async def test_the_process_ends_with_its_server(
    directory: Path, cluster: CertificateObjects
) -> None:
    async def killed() -> None:
        async with running(directory):
            pid = int((directory / "data" / "postmaster.pid").read_text().splitlines()[0])
            os.kill(pid, signal.SIGQUIT)
            await asyncio.sleep(1)

    with pytest.raises(StoreError, match="PostgreSQL has ended"):
        await killed()


# ---- the refusal of an empty database


async def refused(url: str) -> None:
    await refuse_unmoved(url, "queuectl-system", "data-queuectl-database-0", None)


async def test_an_unused_database_is_refused_while_the_claim_exists(
    postgres: TestPostgres, cluster: CertificateObjects
) -> None:
    """Also one with a schema: a move that failed leaves it."""
    for name in (await postgres.empty(), await postgres.fresh()):
        with pytest.raises(StoreError, match="`queuectl db move`"):
            await refused(postgres.server.url(name))
        cluster.answers = [ObjectGone("no such claim")]
        await refused(postgres.server.url(name))
        cluster.answers = [ClusterUnavailable("down")]
        with pytest.raises(ClusterUnavailable):
            await refused(postgres.server.url(name))
        await postgres.execute(f"DROP DATABASE {name}")


async def test_a_used_database_is_accepted_without_a_request(
    postgres: TestPostgres, cluster: CertificateObjects
) -> None:
    name = await postgres.fresh()
    await postgres.execute("UPDATE leadership SET epoch = 1", name)
    cluster.answers = [ClusterUnavailable("down")]
    await refused(postgres.server.url(name))
    assert cluster.answers
    await postgres.execute(f"DROP DATABASE {name}")
