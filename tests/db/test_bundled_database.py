"""The bundled server: its password, its Secret and its rules, and the refusal of an empty database next to its volume."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import os
import signal
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.control import bundled_database, certificate_keeper
from queuectl.control.bundled_database import OWNER, ROLES, BundledSettings, refuse_unmoved, serve
from queuectl.control.certificate_keeper import from_data, to_data
from queuectl.control.certificates import Certificates, issue
from queuectl.db.embedded import DATABASE, PORT, USER
from queuectl.db.migrate import grant, upgrade
from queuectl.domain.errors import ClusterUnavailable, ObjectGone, StoreError
from tests.doubles.certificate_objects import CertificateObjects
from tests.support.postgres import TestPostgres, server_directory

HOST = f"127.54.{os.getpid() // 250 % 250}.{os.getpid() % 250 + 1}"
"""An address of this process: the port is fixed, and workers run at the same time."""
BACKEND = HOST.replace("127.54", "127.55")
"""The address of the server itself."""
CERTIFICATE = "queuectl-database-tls"
ROLES_SQL = Path(__file__).parents[2] / "deploy" / "postgres" / "roles.sql"


@pytest.fixture
def directory() -> Iterator[Path]:
    with server_directory() as made:
        yield made / "postgres"


class DatabaseObjects(CertificateObjects):
    """The objects of the chart for the server.

    Attributes:
        certificate: the Secret with its certificate.
        secret: the Secret with the URLs.
        authority_file: in which a client has the authority that the server publishes.
    """

    def __init__(self, authority_file: Path) -> None:
        super().__init__()
        self.authority_file = authority_file
        self.certificate: dict[str, Any] = {"metadata": {"resourceVersion": "1"}, "data": None}

    def _stored(self, path: str) -> dict[str, Any]:
        return self.certificate if path.endswith(f"/{CERTIFICATE}") else super()._stored(path)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> DatabaseObjects:
    """A double of the API server with the empty objects of the chart."""
    double = DatabaseObjects(tmp_path / "authority.crt")

    async def connect(_: Connection) -> CertificateObjects:
        return double

    monkeypatch.setattr(Api, "connect", connect)
    monkeypatch.setattr(certificate_keeper, "FIRST_SECONDS", 0.02)
    monkeypatch.setattr(bundled_database, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(bundled_database, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(bundled_database, "_RETRY_SECONDS", 0.02)
    return double


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[None]:
    """The server, from the time at which the Secret has its URLs."""
    stop, ready = asyncio.Event(), asyncio.Event()
    settings = BundledSettings(
        directory,
        HOST,
        "queuectl-system",
        "database",
        CERTIFICATE,
        "authority",
        HOST,
        PORT,
        BACKEND,
    )
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


def url(cluster: DatabaseObjects, key: str = "migration-url") -> str:
    """A URL of the Secret, as the pods of queuectl use it: they verify the server with the authority that it publishes."""
    plain = base64.b64decode(cluster.secret["data"][key]).decode()
    cluster.authority_file.write_bytes(cluster.trusted_by_clients)
    return f"{plain}?sslmode=verify-full&sslrootcert={cluster.authority_file}"


def presented() -> bytes:
    """The certificate that the server presents, as PEM."""
    with socket.create_connection((HOST, PORT), timeout=10) as plain:
        plain.sendall(
            struct.pack("!ii", 8, 80877103)
        )  # the request for TLS of the protocol of Postgres
        assert plain.recv(1) == b"S"
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(plain) as secured:
            return ssl.DER_cert_to_PEM_cert(secured.getpeercert(True) or b"").encode()


async def fetched(address: str, query: str) -> Any:
    connection = await asyncpg.connect(address)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def test_the_role_of_migrations_owns_a_durable_database_and_the_others_own_nothing(
    directory: Path, cluster: DatabaseObjects
) -> None:
    async with running(directory):
        address = url(cluster)
        state = await upgrade(address)
        assert state.up_to_date
        for _ in range(2):
            await grant(address, ROLES_SQL.read_text())
        assert await fetched(address, "SHOW fsync") == "on"
        assert await fetched(address, "SHOW full_page_writes") == "on"
        query = "SELECT rolsuper OR rolcreaterole OR rolcreatedb FROM pg_roles WHERE rolname = current_user"
        owned = "SELECT count(*) FROM pg_class WHERE relowner = current_user::regrole"
        stored = "SELECT rolpassword FROM pg_authid WHERE rolname = 'queuectl_owner'"
        for key, role in ROLES.items():
            login = url(cluster, key)
            assert await fetched(login, "SELECT current_user") == role
            assert await fetched(login, query) is False
            assert (await fetched(login, owned) > 0) == (role == OWNER)
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await fetched(login, stored)
        for key in ("url", "api-url"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await fetched(url(cluster, key), "CREATE TABLE mine (number int)")
        assert (await upgrade(url(cluster, "url"), pre_only=True)).up_to_date
        write = "DELETE FROM workloads"
        await fetched(url(cluster, "url"), write)
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await fetched(url(cluster, "api-url"), write)


async def test_others_cannot_log_in_and_no_connection_is_without_tls(
    directory: Path, cluster: DatabaseObjects
) -> None:
    async with running(directory):
        options = url(cluster).partition("?")[2]
        for login in (f"{OWNER}:wrong", OWNER, f"{USER}:x"):
            with pytest.raises(
                (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InterfaceError)
            ):
                await fetched(
                    f"postgresql://{login}@{HOST}:{PORT}/{DATABASE}?{options}", "SELECT 1"
                )
        elsewhere = url(cluster).replace(f"/{DATABASE}?", "/postgres?")
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
            await fetched(elsewhere, "SELECT 1")
        plain = url(cluster).replace("sslmode=verify-full", "sslmode=disable")
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError, match="no encryption"):
            await fetched(plain, "SELECT 1")
        cluster.config_map["data"]["ca.crt"] = issue(
            [HOST], dt.datetime.now(dt.UTC)
        ).certificate.decode()
        with pytest.raises(ssl.SSLCertVerificationError):
            await fetched(url(cluster), "SELECT 1")


async def test_a_restart_keeps_password_certificate_and_rows_even_if_a_mount_changed_the_modes(
    directory: Path, cluster: DatabaseObjects
) -> None:
    async with running(directory):
        before, certificate = url(cluster), await asyncio.to_thread(presented)
        await fetched(before, "CREATE TABLE kept AS SELECT 7 AS number")
    for folder in (directory / "data", directory / "sock"):
        folder.chmod(0o2770)
    async with running(directory):
        assert url(cluster) == before
        assert await fetched(before, "SELECT number FROM kept") == 7
        assert await asyncio.to_thread(presented) == certificate


async def test_a_renewed_certificate_needs_no_restart(
    directory: Path, cluster: DatabaseObjects
) -> None:
    async with running(directory):
        connection = await asyncpg.connect(url(cluster))
        renewed = issue([HOST], dt.datetime.now(dt.UTC))
        stored = from_data(cluster.certificate["data"])
        trusted = (*stored.trusted, renewed.certificate)
        cluster.certificate["data"] = to_data(Certificates(renewed, None, trusted))
        async with asyncio.timeout(30):
            while await asyncio.to_thread(presented) != renewed.certificate:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await fetched(url(cluster), "SELECT 1") == 1
        assert await connection.fetchval("SELECT 1") == 1, "an open connection continues"
        await connection.close()


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


@pytest.mark.operations  # a start of the server for each
@pytest.mark.parametrize("content", HOSTILE)
async def test_a_secret_with_other_content_gets_a_new_password(
    directory: Path, cluster: DatabaseObjects, content: str
) -> None:
    cluster.secret["data"] = HOSTILE[content]
    async with running(directory):
        passwords = {urlsplit(url(cluster, key)).password or "" for key in ROLES}
        assert len(passwords) == len(ROLES)
        assert min(map(len, passwords)) >= 40
        assert await fetched(url(cluster), "SELECT 1") == 1


async def test_a_secret_that_was_emptied_is_written_again_and_failures_are_tried_again(
    directory: Path, cluster: DatabaseObjects
) -> None:
    cluster.answers = [ClusterUnavailable("down"), ClusterUnavailable("down")]
    cluster.conflicts = 1
    async with running(directory):
        cluster.secret["data"] = None
        async with asyncio.timeout(30):
            while not cluster.secret["data"]:  # noqa: ASYNC110 - of a double
                await asyncio.sleep(0.02)
        assert await fetched(url(cluster), "SELECT 1") == 1


async def test_the_process_ends_with_its_server(directory: Path, cluster: DatabaseObjects) -> None:
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
    postgres: TestPostgres, cluster: DatabaseObjects
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
    postgres: TestPostgres, cluster: DatabaseObjects
) -> None:
    name = await postgres.fresh()
    await postgres.execute("UPDATE leadership SET epoch = 1", name)
    cluster.answers = [ClusterUnavailable("down")]
    await refused(postgres.server.url(name))
    assert cluster.answers
    await postgres.execute(f"DROP DATABASE {name}")
