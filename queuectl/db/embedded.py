"""An embedded Postgres: a private server in one directory, with a Unix socket only, that stops with its owner.

The directory holds ``data`` (the cluster), ``log``, ``lock`` (an flock: one owner at a time, which the kernel releases when the
process ends) and, if the path is short enough, ``sock``. The end of the owner stops the server in order (see
:mod:`queuectl.db.launch`). The next start waits for a server that is still stopping. The module does not depend on one event
loop, but the *thread* that calls :meth:`EmbeddedServer.start` must live as long as the server.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self
from urllib.parse import quote

import asyncpg

from queuectl.db import launch
from queuectl.db.binaries import Binaries, find_binaries, reachable, server_account, usable
from queuectl.db.directories import PORT, default_directory, make_private, socket_directory
from queuectl.domain.errors import BadInput, StoreError

USER: Final = "queuectl"
DATABASE: Final = "queuectl"
_POLL_SECONDS: Final = 0.02
_LOG_BYTES: Final = 4 << 20
_STOP_SIGNALS: Final = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))
_SETTINGS: Final = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "60",
    "shared_buffers": "64MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "jit": "off",
}
_VOLATILE: Final = {"fsync": "off", "full_page_writes": "off"}  # survives a crash, not a power cut


class EmbeddedFailed(StoreError):
    """The embedded server did not start or is in use; the message names the directory and quotes the log."""


class EmbeddedServer:
    """One embedded server. You can start and stop it repeatedly, or use it as an asynchronous context.

    Args:
        directory: of the server; None takes :func:`queuectl.db.directories.default_directory`.
        binaries: None takes :func:`queuectl.db.binaries.find_binaries`.
        durable: False loses data in a crash of the machine, but not of the server; for tests only.
        settings: further settings of postgresql.conf.
        timeout: seconds for a start, with crash recovery.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        binaries: Binaries | None = None,
        durable: bool = True,
        settings: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> None:
        self._durable = durable
        self._account = server_account()
        self._binaries = usable(binaries or find_binaries(), self._account)
        self.directory = (directory or default_directory(self._binaries.major)).absolute()
        self._settings = {**_SETTINGS, **({} if durable else _VOLATILE), **(settings or {})}
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None
        self.sockets = socket_directory(self.directory, self._account)

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def pid(self) -> int | None:
        """The pid of the postmaster; None if it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def url(self, database: str = DATABASE) -> str:
        """The connection URL of one of its databases, as psql and QUEUECTL_DATABASE_URL take it."""
        return (
            f"postgresql://{USER}@/{database}?host={quote(str(self.sockets), safe='/')}&port={PORT}"
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start it, and create the cluster and the database if they are missing. Does nothing while it runs.

        Raises:
            EmbeddedFailed: another process uses the directory, or Postgres does not start.
            BadInput: the directory cannot be used.
        """
        if self.pid is not None:
            return
        self._prepare()
        self._acquire()
        try:
            async with asyncio.timeout(self._timeout):
                await self._settle()
                await self._create_cluster()
                await self._launch()
                await self._create_database()
        except BaseException as error:
            await asyncio.shield(self._end(_STOP_SIGNALS[1:]))
            if isinstance(error, TimeoutError):
                raise self._failed(f"not ready after {self._timeout:.0f} s") from None
            raise

    async def stop(self, *, immediate: bool = False) -> None:
        """Stop it: in order, or ``immediate`` as in a crash (the next start recovers). Does nothing if it is stopped."""
        await self._end(_STOP_SIGNALS[1:] if immediate else _STOP_SIGNALS)

    async def _end(self, signals: tuple[tuple[signal.Signals, float], ...]) -> None:
        process = self._process
        if process is not None:
            for number, seconds in signals:
                if process.poll() is not None:
                    break
                process.send_signal(number)
                await _until(lambda: process.poll() is not None, seconds)
            self._process = None
        if self._lock is not None:
            if self.sockets.parent != self.directory:
                shutil.rmtree(self.sockets, ignore_errors=True)
            self._lock.close()
            self._lock = None

    def _prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._account is not None and not reachable(self.directory):
            raise BadInput(
                f"{self.directory}: as root the embedded database runs as user `nobody`, which has no access to it; "
                "choose a directory whose parents others may enter, or run as an ordinary user"
            )
        make_private(self.sockets, self._account)
        version = self.data / "PG_VERSION"
        if version.exists() and version.read_text().strip() != str(self._binaries.major):
            raise BadInput(
                f"{self.directory} holds a PostgreSQL {version.read_text().strip()} cluster, the programs found are "
                f"version {self._binaries.major}: choose another directory, or dump and restore"
            )

    def _acquire(self) -> None:
        lock = (self.directory / "lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            lock.close()
            raise EmbeddedFailed(
                f"the embedded database in {self.directory} is in use by process {owner}"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        self._lock = lock

    async def _settle(self) -> None:
        """Wait for the server of an owner that has ended. It is stopping; stop it again if necessary."""
        for number, seconds in ((None, 5.0), *_STOP_SIGNALS):
            pid = _running_postmaster(self.data)
            if pid is None:
                return
            if number is not None:
                with suppress(ProcessLookupError):  # it has ended since
                    os.kill(pid, number)
            await _until(lambda: _running_postmaster(self.data) is None, seconds)

    async def _create_cluster(self) -> None:
        """Initialize under a temporary name, so that an interrupted start leaves no incomplete cluster."""
        if self.data.exists():
            return
        fresh = self.directory / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        make_private(fresh, self._account)
        process = self._spawn(
            self._binaries.initdb, "-D", str(fresh), "-U", USER, "--auth=trust", "--no-locale",
            "--encoding=UTF8", "--no-instructions", *([] if self._durable else ["--no-sync"]),
        )  # fmt: skip
        self._process = process
        await _until(lambda: process.poll() is not None)
        if process.returncode != 0:
            raise self._failed("initdb failed")
        fresh.rename(self.data)
        if self._durable:
            _sync(self.directory)

    async def _launch(self) -> None:
        """Start the postmaster. Backends of a killed one can hold its shared memory for a moment."""
        settings = {**self._settings, "unix_socket_directories": str(self.sockets)}
        options = [f"--{key}={value}" for key, value in settings.items()]
        while True:
            begin = self._log_size()
            process = self._spawn(self._binaries.postgres, "-D", str(self.data), *options)
            self._process = process
            while process.poll() is None:
                if _status(self.data, process.pid) == "ready":
                    return
                await asyncio.sleep(_POLL_SECONDS)
            if "still in use" not in self._log_from(begin):
                raise self._failed("the server stopped while starting")
            await asyncio.sleep(10 * _POLL_SECONDS)

    async def _create_database(self) -> None:
        connection = await asyncpg.connect(
            host=str(self.sockets), port=PORT, user=USER, database="postgres"
        )
        try:
            known = await connection.fetchval(
                "SELECT 1 FROM pg_database WHERE datname = $1", DATABASE
            )
            if known is None:
                await connection.execute(f"CREATE DATABASE {DATABASE}")
        finally:
            await connection.close()

    def _spawn(self, program: Path, *arguments: str) -> subprocess.Popen[bytes]:
        account = (str(self._account.uid), str(self._account.gid)) if self._account else ("-", "-")
        kept = ("PATH", "LD_LIBRARY_PATH")
        log = self.directory / "log"
        if self._log_size() > _LOG_BYTES:
            log.rename(log.with_suffix(".1"))
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), *account, str(program), *arguments],
                cwd="/",
                env={"LC_ALL": "C", **{key: os.environ[key] for key in kept if key in os.environ}},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )  # fmt: skip

    def _log_size(self) -> int:
        log = self.directory / "log"
        return log.stat().st_size if log.exists() else 0

    def _log_from(self, offset: int) -> str:
        return (self.directory / "log").read_bytes()[offset:].decode(errors="replace")

    def _failed(self, what: str) -> EmbeddedFailed:
        tail = " | ".join(self._log_from(max(0, self._log_size() - 2000)).splitlines()[-5:])
        return EmbeddedFailed(f"embedded database in {self.directory}: {what}: {tail}")


def _sync(directory: Path) -> None:
    """Write the entries of a directory to the disk."""
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _pid_file(data: Path) -> list[str]:
    try:
        return (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return []


def _running_postmaster(data: Path) -> int | None:
    """The pid of a live server on ``data``. A pid that another program has now does not count."""
    lines = _pid_file(data)
    if not lines or not lines[0].strip().isdigit():
        return None
    pid = int(lines[0])
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    return pid if os.fsencode(data) in command.split(b"\0") else None


def _status(data: Path, pid: int) -> str:
    """The state of the postmaster in its pid file: ``starting``, ``ready``, ``stopping``; "" before."""
    lines = _pid_file(data)
    return lines[7].strip() if len(lines) > 7 and lines[0].strip() == str(pid) else ""


async def _until(done: Callable[[], bool], seconds: float = math.inf) -> bool:
    """Poll ``done`` for at most this many seconds. Returns whether it became true."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True


@asynccontextmanager
async def provided(url: str | None) -> AsyncIterator[str]:
    """The URL to use: the one given, or that of an embedded server that runs as long as the context."""
    if url:
        yield url
        return
    async with EmbeddedServer() as server:
        yield server.url()
