"""The connection to the database: a URL, settings, a pool, and the driver's errors as errors of the domain."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import asyncpg
import msgspec
import orjson
from sqlalchemy import URL, event, func, make_url, select
from sqlalchemy.engine import Engine, ExceptionContext
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, InvalidatePoolError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from queuectl.distribution import version
from queuectl.domain.errors import BadInput, DatabaseLoginRefused, StoreError, StoreUnavailable
from queuectl.domain.quantity import Resources

# ---- The pool

T = TypeVar("T")
PROGRAM: Final = "queuectl"
APPLICATION: Final = f"{PROGRAM} {version()}"
"""The name of sessions in ``pg_stat_activity``, by which a migration finds the releases that are connected."""
_DRIVER: Final = "postgresql+asyncpg"
_NUL: Final = "\x00"
# A connection that was used within this time is not tested before its use.
_TRUSTED_SECONDS: Final = 1.0
_LEFT: Final = "queuectl.left"
_PGBOUNCER: Final = "QUEUECTL_DATABASE_PGBOUNCER"
_DIRECT: Final = "QUEUECTL_DATABASE_DIRECT_URL"
_FILE: Final = "QUEUECTL_DATABASE_PASSWORD_FILE"
_API_FILE: Final = "QUEUECTL_API_DATABASE_PASSWORD_FILE"
_TLS_FILES: Final = {"sslrootcert", "sslcert", "sslkey", "sslcrl"}
_WANTED_SERVER: Final = "target_session_attrs"
_TLS: Final = "ssl"
"""Beginning of libpq's parameters for TLS: sslmode, sslrootcert, sslcert, sslkey, …"""


class Pooling(StrEnum):
    """The pool modes of PgBouncer that queuectl supports."""

    SESSION = "session"
    TRANSACTION = "transaction"


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """The URL of the database, and timeouts in seconds.

    Attributes:
        url: ``postgresql://user:password@host:port/database?sslmode=verify-full&sslrootcert=…``.
        pool_size: connections kept; the controller needs five at once.
        connect_timeout: to open a connection.
        statement_timeout: for one statement, enforced by the server.
        lock_timeout: for one lock, enforced by the server.
        answer_timeout: for a whole operation, enforced here, because a frozen or unreachable server does not respond.
        password_file: holds the password, read for each new connection; None = it is in the URL, or none is needed.
        pooling: the pool mode of the PgBouncer to which the URL leads; None = it leads to the server.
        direct: settings of a connection to the server itself, for LISTEN in transaction pooling; None = changes are polled.
        read_only: the server refuses each write.
    """

    url: str
    pool_size: int = 5
    connect_timeout: float = 5.0
    statement_timeout: float = 10.0
    lock_timeout: float = 5.0
    answer_timeout: float = 20.0
    password_file: Path | None = None
    pooling: Pooling | None = None
    direct: DatabaseSettings | None = None
    read_only: bool = False

    @property
    def listening(self) -> DatabaseSettings | None:
        """Settings of the connections that listen; None without any."""
        return self.direct if self.pooling is Pooling.TRANSACTION else self

    @classmethod
    def from_environment(
        cls, url: str, environ: Mapping[str, str] = os.environ, *, api: bool = False
    ) -> DatabaseSettings:
        """Settings for ``url`` from the environment.

        The variables are QUEUECTL_DATABASE_PGBOUNCER, QUEUECTL_DATABASE_DIRECT_URL, and QUEUECTL_DATABASE_PASSWORD_FILE, or
        QUEUECTL_API_DATABASE_PASSWORD_FILE for the URL of the API alone.

        Raises:
            BadInput: a variable has a value that has no meaning.
        """
        passwords = {name: Path(file) for name in (_FILE, _API_FILE) if (file := environ.get(name))}
        pooling = _pooling(environ.get(_PGBOUNCER, ""))
        direct = environ.get(_DIRECT) or None
        if direct and pooling is not Pooling.TRANSACTION:
            raise BadInput(f"{_DIRECT} has a meaning only with {_PGBOUNCER}=transaction")
        return cls(
            url,
            pooling=pooling,
            password_file=passwords.get(_API_FILE if api else _FILE),
            direct=cls(direct, password_file=passwords.get(_FILE)) if direct else None,
        )


def _pooling(mode: str) -> Pooling | None:
    try:
        return Pooling(mode) if mode else None
    except ValueError:
        modes = " or ".join(Pooling)
        raise BadInput(f"{_PGBOUNCER}: {mode!r} is not a pool mode: set {modes}") from None


def parse_url(url: str) -> URL:
    """A Postgres URL for the driver, without its TLS parameters (:func:`_tls_of`).

    Raises:
        BadInput: it is not a Postgres URL. The message does not quote it, because it can hold a password.
    """
    parsed = _read(url)
    query = {name: value for name, value in parsed.query.items() if not name.startswith(_TLS)}
    return parsed.set(drivername=_DRIVER, query=query)


def address_of(url: str) -> str:
    """The database, its host and the role of a URL, in words. Never the password.

    Raises:
        BadInput: it is not a Postgres URL.
    """
    parsed = _read(url)
    hosts = parsed.query.get("host") or parsed.host or "a local socket"
    where = hosts if isinstance(hosts, str) else ",".join(hosts)
    port = f":{parsed.port}" if parsed.port else ""
    role = f" as {parsed.username}" if parsed.username else ""
    return f"{parsed.database or 'the default database'} on {where}{port}{role}"


def _tls_of(url: str) -> str | None:
    """The TLS parameters of a URL, as a URL for the driver; None without any.

    Raises:
        BadInput: a file that it names does not exist.
    """
    options = {name: value for name, value in _read(url).query.items() if name.startswith(_TLS)}
    for name in _TLS_FILES & options.keys():
        if not Path(str(options[name])).is_file():
            raise BadInput(f"the database URL: {name}: the file {options[name]} does not exist")
    return f"postgresql://?{urlencode(options)}" if options else None


def _read(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise BadInput("the database URL cannot be read: postgresql://user@host/database") from None
    if not re.fullmatch(r"postgres(ql)?(\+asyncpg)?", parsed.drivername):
        raise BadInput(
            f"the database URL names {parsed.drivername}; only postgresql:// is supported"
        )
    return parsed


def make_engine(settings: DatabaseSettings) -> AsyncEngine:
    """A pool of connections; none is opened yet."""
    arguments = _connect_arguments(settings)
    if settings.pooling is Pooling.TRANSACTION:
        # An unnamed statement ends with the next one. A named one would stay on a connection that another client gets.
        arguments |= {"prepared_statement_cache_size": 0, "prepared_statement_name_func": str}
    engine = create_async_engine(
        parse_url(settings.url),
        connect_args=arguments,
        pool_size=settings.pool_size,
        max_overflow=0,
        pool_timeout=settings.answer_timeout,
        pool_use_lifo=True,
        json_serializer=encode_json,
        json_deserializer=orjson.loads,
    )
    _try_idle_connections(engine.sync_engine)
    if not settings.read_only:
        _replace_read_only_connections(engine.sync_engine)
    return engine


def _replace_read_only_connections(engine: Engine) -> None:
    """Replace all connections after the server refuses a write.

    A primary that became a standby keeps connections, and the same address can lead to another server by now.
    """

    @event.listens_for(engine, "handle_error")
    def refused(context: ExceptionContext) -> None:
        if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
            context.is_disconnect = True


def _try_idle_connections(engine: Engine) -> None:
    """Test an idle connection before its use. If it does not work, all idle connections are replaced.

    The pre-ping of the pool tests it before each transaction, which adds three round trips to each commit of a busy leader.
    """

    @event.listens_for(engine, "checkin")
    def left(_connection: Any, record: Any) -> None:
        record.info[_LEFT] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def taken(connection: Any, record: Any, _fairy: Any) -> None:
        if time.monotonic() - record.info.get(_LEFT, time.monotonic()) < _TRUSTED_SECONDS:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError from error


async def open_connection(engine: AsyncEngine, settings: DatabaseSettings) -> asyncpg.Connection:
    """A connection of the driver outside the pool. Raises the errors of the driver."""
    _, named = engine.dialect.create_connect_args(parse_url(settings.url))
    return await asyncpg.connect(**named, **_connect_arguments(settings))


def _connect_arguments(settings: DatabaseSettings) -> dict[str, Any]:
    arguments: dict[str, Any] = {"timeout": settings.connect_timeout}
    if (tls := _tls_of(settings.url)) is not None:
        arguments["dsn"] = tls  # the other arguments take precedence over it
    stated = _WANTED_SERVER in _read(settings.url).query
    if not (stated or settings.read_only or settings.pooling):
        # PgBouncer answers with the state of an earlier server.
        arguments[_WANTED_SERVER] = "primary"
    if settings.password_file is not None:
        arguments["password"] = partial(_password, settings.password_file)
    if settings.pooling is Pooling.TRANSACTION:
        arguments["statement_cache_size"] = 0
    session = {"application_name": APPLICATION}
    if settings.pooling is None:
        session |= _limits(settings)
    return arguments | {"server_settings": session}


def _limits(settings: DatabaseSettings) -> dict[str, str]:
    """Parameters of the server."""
    writes = (
        {"transaction_read_only": "on"}
        if settings.pooling is not None
        else {"default_transaction_read_only": "on"}
    )
    return (writes if settings.read_only else {}) | {
        "statement_timeout": _milliseconds(settings.statement_timeout),
        "lock_timeout": _milliseconds(settings.lock_timeout),
        "idle_in_transaction_session_timeout": _milliseconds(settings.answer_timeout),
        "jit": "off",
    }


async def limit(connection: AsyncConnection, settings: DatabaseSettings) -> None:
    """Set the limits of a transaction that has begun. PgBouncer accepts them neither at the start of a session nor for its length."""
    if settings.pooling is not None:
        given = _limits(settings).items()
        await connection.execute(select(*(func.set_config(*each, True) for each in given)))


async def _password(file: Path) -> str:
    """The current content of the file. A rotated password needs no restart.

    Raises:
        OSError: it cannot be read.
    """
    return (await asyncio.to_thread(file.read_text)).rstrip("\n")


def encode_json(content: Any) -> str:
    """JSON text for a jsonb column, without the one character that Postgres cannot hold.

    A value of the domain has the fields of its class; :func:`decode_json` reads it.
    """
    encoded = msgspec.json.encode(content, enc_hook=_plain)  # integers of any size, as jsonb
    if b"\\u0000" in encoded:
        encoded = msgspec.json.encode(_scrubbed(msgspec.to_builtins(content, enc_hook=_plain)))
    return encoded.decode()


def decode_json(kind: type[T], document: Any) -> T:
    """The value of the domain that :func:`encode_json` wrote to a jsonb column."""
    return msgspec.convert(document, kind, dec_hook=_from_plain)


def _plain(content: Any) -> Any:
    if isinstance(content, Mapping):
        return dict(content)
    raise NotImplementedError(f"no JSON for {type(content)}")


def _from_plain(kind: type[Any], document: Any) -> Any:
    if kind is Resources:
        return Resources(document)
    raise NotImplementedError(f"no {kind} in JSON")


def storable(text: str) -> str:
    """``text`` as a text column can hold it: NUL, legal in Kubernetes annotations, becomes U+FFFD."""
    return text.replace(_NUL, "\ufffd")


def _scrubbed(content: Any) -> Any:
    match content:
        case str():
            return storable(content)
        case Mapping():
            return {storable(key): _scrubbed(inner) for key, inner in content.items()}
        case list() | tuple():
            return [_scrubbed(inner) for inner in content]
        case _:
            return content


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))


# ---- Errors of the driver

# SQLSTATE classes and codes after which a retry with new reads is correct.
_CLASSES: Final = (
    "08",  # connection exceptions
    "53",  # out of disk, memory, connections
    "57",  # shutdown, starting up, canceled by statement_timeout
    "58",  # I/O errors of the server
)
_READ_ONLY: Final = "25006"
_CODES: Final = {
    "28000": "access denied: a rotated certificate or a new pg_hba.conf",
    "28P01": "the password was rotated, and the file does not have the new one yet",
    _READ_ONLY: "the server is read-only: a standby, or a demoted primary",
    "25P03": "the transaction was idle for too long",
    "40001": "serialization failure",
    "40P01": "deadlock",
    "55P03": "a lock was not available in time",
}
_LOGIN: Final = {"28000", "28P01"}
_NO_SCHEMA: Final = {"42P01", "42703"}
_POOLER: Final = ("08P01", "startup parameter")  # PgBouncer accepts few of them


@asynccontextmanager
async def answers_within(seconds: float, doing: str) -> AsyncIterator[None]:
    """Limit the time of one operation, and raise errors of the domain only.

    Raises:
        StoreUnavailable: no response, a lost connection or a server that shuts down: the outcome is unknown.
        StoreError: the server rejected the statement.
        BadInput: a PgBouncer answered that the settings do not name.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except (TimeoutError, PoolTimeout) as error:
        raise StoreUnavailable(
            f"{doing}: no answer from the database within {seconds:g} s"
        ) from error
    except (
        DBAPIError,
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.TargetServerAttributeNotMatched,
        OSError,
    ) as error:
        raise _translated(error, doing) from error


def _translated(error: BaseException, doing: str) -> StoreError | BadInput:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    if any(
        isinstance(one, asyncpg.TargetServerAttributeNotMatched) for one in (cause, cause.__cause__)
    ):
        return StoreUnavailable(
            f"{doing}: no server of the database URL is a primary: queuectl cannot use a standby"
        )
    text = f"{doing}: {str(cause).splitlines()[0] if str(cause) else type(cause).__name__}"
    state = getattr(cause, "sqlstate", None)
    if state is None:
        lost = isinstance(error, DBAPIError) and (
            error.connection_invalidated or isinstance(error, InterfaceError)
        )
        plain = isinstance(error, OSError | asyncpg.InterfaceError)
        return StoreUnavailable(text) if lost or plain else StoreError(text)
    if state == _POOLER[0] and _POOLER[1] in text:
        return BadInput(
            f"{text}: the database URL leads to PgBouncer; set QUEUECTL_DATABASE_PGBOUNCER to its pool mode, session or transaction"
        )
    if state in _LOGIN:
        return DatabaseLoginRefused(text)
    if state[:2] in _CLASSES or state in _CODES:
        return StoreUnavailable(text)
    if state in _NO_SCHEMA:
        text += " (run `queuectl db upgrade`)"
    return StoreError(text)
