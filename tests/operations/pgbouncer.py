"""A real PgBouncer in front of the Postgres of a test."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import make_url

from queuectl.db.embedded import PORT, USER, EmbeddedServer, server_account
from tests.support.postgres import server_directory

PROGRAM: Final = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
_START_SECONDS: Final = 10.0
_IGNORED: Final = "statement_timeout,lock_timeout,idle_in_transaction_session_timeout,jit"

needs_pgbouncer: Final = pytest.mark.skipif(
    PROGRAM is None, reason="needs the program pgbouncer (Debian: apt install pgbouncer)"
)


@dataclass
class PgBouncer:
    """A running PgBouncer. ``socket``: the directory of its socket."""

    socket: Path
    process: subprocess.Popen[bytes]

    def through(self, url: str) -> str:
        """The same database by way of PgBouncer."""
        query = {"host": str(self.socket), "port": str(PORT)}
        return make_url(url).set(query=query).render_as_string(hide_password=False)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _configuration(server: EmbeddedServer, folder: Path, mode: str, *, ignores: bool) -> str:
    ignored = f"ignore_startup_parameters = {_IGNORED}" if ignores else ""
    return f"""
[databases]
* = host={server.sockets} port={PORT}
[pgbouncer]
listen_addr =
listen_port = {PORT}
unix_socket_dir = {folder}
auth_type = trust
auth_file = {folder}/users
pool_mode = {mode}
default_pool_size = 3
max_db_connections = 60
{ignored}
"""


@contextmanager
def pgbouncer(
    server: EmbeddedServer, mode: str, *, ignores: bool = False, pool_size: int = 3
) -> Iterator[PgBouncer]:
    """PgBouncer with a pool mode.

    Args:
        server: the Postgres behind it.
        mode: its ``pool_mode``.
        ignores: it accepts and ignores the parameters that queuectl sends to a server.
        pool_size: connections to the server, for each database.
    """
    assert PROGRAM is not None
    with server_directory() as folder:
        text = _configuration(server, folder, mode, ignores=ignores)
        text = text.replace("default_pool_size = 3", f"default_pool_size = {pool_size}")
        (folder / "pgbouncer.ini").write_text(text)
        (folder / "users").write_text(f'"{USER}" ""\n')
        account = server_account()
        if account is not None:
            os.chown(folder, account.uid, account.gid)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [PROGRAM, "-q", str(folder / "pgbouncer.ini")],
                stdout=log,
                stderr=log,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
            )
        try:
            _answers(folder, process)
            yield PgBouncer(folder, process)
        finally:
            process.kill()
            process.wait()


def _answers(folder: Path, process: subprocess.Popen[bytes]) -> None:
    socket = folder / f".s.PGSQL.{PORT}"
    deadline = time.monotonic() + _START_SECONDS
    while not socket.exists():
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)
