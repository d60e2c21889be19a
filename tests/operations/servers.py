"""Postgres servers of these tests, with the programs of the same version: pg_dump, pg_restore, psql and pg_ctl."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from queuectl.db.embedded import (
    PORT,
    SYSTEM_ROOT,
    USER,
    EmbeddedServer,
    find_binaries,
    server_account,
    usable,
)
from queuectl.db.engine import DatabaseSettings
from tests.db.conformance import commit, loaded
from tests.db.histories import submitted
from tests.support.postgres import server_directory
from tests.support.stores import PostgresStore

EVERY: Final = "all\tall"
"""Each database and each role, in pg_hba.conf."""
_SYSTEM: Final = sorted(SYSTEM_ROOT.glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
_NAMED: Final = {"QUEUECTL_PG_BIN": str(_SYSTEM[-1].parent)} if _SYSTEM else {}
PROGRAMS: Final = usable(find_binaries(_NAMED), server_account())
"""Those of the machine, if there are any. The server of queuectl[demo] has no TLS."""

needs_tls: Final = pytest.mark.skipif(
    not _SYSTEM, reason="needs a Postgres with TLS (Debian: apt install postgresql)"
)


@contextmanager
def postgres_server(settings: Mapping[str, str] | None = None) -> Iterator[EmbeddedServer]:
    """A server outside the controllers."""
    with server_directory() as directory:
        server = EmbeddedServer(directory, binaries=PROGRAMS, durable=False, settings=settings)
        asyncio.run(server.start())
        try:
            yield server
        finally:
            asyncio.run(server.stop(immediate=True))


def programs_first(path: str) -> str:
    """A search path on which the programs of the server come first."""
    return f"{PROGRAMS.directory}:{path}"


def folder_for_the_server(parent: Path, name: str) -> Path:
    """A new folder that belongs to the account of the server."""
    folder = parent / name
    folder.mkdir(mode=0o700)
    account = server_account()
    if account is not None:
        os.chown(folder, account.uid, account.gid)
    return folder


def as_server(
    command: Sequence[str], *, check: bool = True, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run a command as the account of the server."""
    account = server_account()
    return subprocess.run(
        command,
        check=check,
        stdin=subprocess.DEVNULL,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        **{"stdout": subprocess.DEVNULL, **options},
    )


def program(name: str) -> str:
    return str(PROGRAMS.directory / name)


@contextmanager
def own_server(
    configuration: str = "", rules: str = "", *, superuser: str = USER
) -> Iterator[Path]:
    """A server as an administrator creates it. Returns its folder: the data are in `data`, the socket is next to them.

    Args:
        configuration: further lines of postgresql.conf.
        rules: further lines of pg_hba.conf.
        superuser: the name of its first role.
    """
    with server_directory(on_disk=True) as parent:
        folder = folder_for_the_server(parent, "pg")
        data = folder / "data"
        as_server([program("initdb"), "-D", str(data), "-U", superuser, "-A", "trust"])
        with (data / "postgresql.conf").open("a") as file:
            file.write(f"listen_addresses = ''\nunix_socket_directories = '{folder}'\n")
            file.write(configuration)
        (data / "pg_hba.conf").write_text(
            f"local {EVERY} trust\nlocal replication all trust\n{rules}"
        )
        try:
            as_server(
                [program("pg_ctl"), "-D", str(data), "-l", str(folder / "log"), "-w", "start"]
            )
            yield folder
        finally:
            for pid in folder.glob("*/postmaster.pid"):
                as_server([program("pg_ctl"), "-D", str(pid.parent), "-m", "immediate", "stop"])


def restart(folder: Path) -> None:
    """Restart an own server, for settings that need it."""
    data = str(folder / "data")
    as_server([program("pg_ctl"), "-D", data, "-l", str(folder / "log"), "-w", "restart"])


def socket_url(
    folder: Path, database: str = "postgres", *, port: int = PORT, user: str = USER
) -> str:
    """A URL without a password, by way of the socket of an own server."""
    return f"postgresql://{user}@/{database}?host={folder}&port={port}"


async def committed(url: str, uid: str) -> None:
    """Add a workload to the ledger."""
    store = await PostgresStore.connect(DatabaseSettings(url))
    await commit(store, await store.take_over("test", 0), submitted(uid))
    await store.close()


async def workloads(url: str) -> set[str]:
    """The uids of all workloads in the ledger."""
    store = await PostgresStore.connect(DatabaseSettings(url))
    found = set(await loaded(store))
    await store.close()
    return found
