"""Migrations to the schema that this release needs. The revisions are in ``migrations/``; its README describes how to add one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Final, TypeVar

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, func, inspect, select, text, update

import queuectl
from queuectl.db import replicas
from queuectl.db.connections import check_server
from queuectl.db.engine import (
    APPLICATION,
    PROGRAM,
    DatabaseSettings,
    answers_within,
    limit,
    make_engine,
)
from queuectl.db.replicas import Replica
from queuectl.db.tables import leadership, schema_requirement
from queuectl.distribution import version
from queuectl.domain.errors import StoreError, UnusableSchema

PATIENCE: Final = 24 * 3600.0
"""Seconds for a statement, a lock and an answer: a long migration, also of another process, must not time out."""
# Sessions of other releases that have no registered replica, for example of `queuectl recover`.
_OTHERS: Final = text(
    "SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = current_database()"
    " AND (application_name = :program OR application_name LIKE :program || ' %')"
    " AND application_name <> ALL (:known)"
)
POST: Final = "_post"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The revision of a schema.

    Attributes:
        current: None for an empty database.
        head: the newest revision of this release.
        recognized: False when a newer release has upgraded it.
        replicas: the registered replicas, also expired ones.
    """

    current: str | None
    head: str
    recognized: bool = True
    replicas: tuple[Replica, ...] = ()

    @property
    def up_to_date(self) -> bool:
        return self.current == self.head


def migrations_directory(package: Path = Path(queuectl.__file__).parent) -> Path:
    """``queuectl/_migrations`` of an installed wheel, or ``migrations`` next to the package in a checkout."""
    for candidate in (package / "_migrations", package.parent / "migrations"):
        if (candidate / "env.py").is_file():
            return candidate
    raise StoreError(f"the installation is incomplete: no migrations next to {package}")


async def upgrade(
    url: str, *, pre_only: bool = False, directory: Path | None = None
) -> SchemaState:
    """Apply the missing revisions in one transaction. Concurrent upgrades wait for each other.

    A schema of a newer release does not change: its pre half is compatible with this release.

    Args:
        url: of the database.
        pre_only: stop before the first post revision, because replicas of an earlier release can be running. An empty database
            gets all revisions.
        directory: of the revisions; None takes those of this release.

    Raises:
        StoreUnavailable: no response; either all revisions were applied or none.
        StoreError: a revision failed, or replicas of another release run and a post revision is to be applied, or
            ``pre_only`` stops before a pre revision that this release needs; nothing was changed.
        UnusableSchema: as for :func:`check_schema`, but the database can be empty; nothing was changed.
        BadInput: the URL is wrong or the server too old.
    """
    work = _upgrade_to(pre_only=pre_only)
    return await _with_connection(patient(url), directory, work, "migrating the database")


async def grant(url: str, statements: str) -> None:
    """Give the roles of the leader and of the API their rights on all tables, as the owner of the tables.

    Args:
        url: of the database.
        statements: the content of ``deploy/postgres/roles.sql``.

    Raises:
        StoreUnavailable: no response; nothing was changed, or everything.
        StoreError: the caller is not the owner, or the roles do not exist and the owner cannot create them.
        BadInput: the URL is wrong or the server too old.
    """
    async with driver_connection(url, "granting rights") as connection, connection.transaction():
        await connection.execute(f"SELECT pg_advisory_xact_lock({replicas.LOCK})")
        await connection.execute(statements)


@asynccontextmanager
async def driver_connection(url: str, doing: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the driver, for statements that sqlalchemy does not pass on. ``doing``: what it is for, in words.

    Raises:
        StoreUnavailable: no response.
        StoreError: a statement failed.
        BadInput: the URL is wrong or the server too old.
    """
    settings = patient(url)
    engine = make_engine(settings)
    try:
        async with answers_within(PATIENCE, doing), engine.connect() as connection:
            await check_server(connection, settings)
            await connection.rollback()
            yield (await connection.get_raw_connection()).driver_connection
    finally:
        await engine.dispose()


async def current(url: str, *, directory: Path | None = None) -> SchemaState:
    """The revision of the database. It changes nothing, and waits for an answer as long as ``DatabaseSettings`` state.

    Raises:
        UnusableSchema: as for :func:`check_schema`, but the database can be empty.
        StoreUnavailable, BadInput: as for :func:`upgrade`.
    """
    settings = DatabaseSettings.from_environment(url)
    return await _with_connection(settings, directory, _state, "reading the schema")


def check_schema(connection: Connection) -> None:
    """Check that this release can use the schema.

    Raises:
        UnusableSchema: it is missing, or an earlier commit of queuectl or another program has made it, or the post revision of
            a newer release was applied.
    """
    if _present(connection, known_revisions()) is None:
        raise UnusableSchema("the database has no schema: run `queuectl db upgrade`")


def known_revisions(directory: Path | None = None) -> tuple[str, ...]:
    """All revisions of this release, the oldest first."""
    return _revisions(_config(directory))


def _revisions(config: Config) -> tuple[str, ...]:
    """All revisions of a configuration of alembic, the oldest first. Raises StoreError if it has none."""
    script = ScriptDirectory.from_config(config)
    revisions = tuple(one.revision for one in script.walk_revisions())[::-1]
    if not revisions:
        raise StoreError("the installation is incomplete: it has no revisions")
    return revisions


def _config(directory: Path | None) -> Config:
    config = Config()
    config.set_main_option(
        "script_location", str(directory or migrations_directory()).replace("%", "%%")
    )
    return config


async def was_used(url: str) -> bool:
    """Whether a leader has used the database. It changes nothing.

    Raises:
        UnusableSchema, StoreUnavailable, BadInput: as for :func:`current`.
    """
    settings = DatabaseSettings.from_environment(url)
    return await _with_connection(settings, None, _was_used, "reading the database")


def _was_used(connection: Connection, config: Config) -> bool:
    if _present(connection, _revisions(config)) is None:
        return False
    return bool(connection.scalar(select(leadership.c.epoch)))


def patient(url: str) -> DatabaseSettings:
    """Settings for one connection that waits for long work: a migration, also that of another process."""
    return replace(
        DatabaseSettings.from_environment(url),
        pool_size=1,
        statement_timeout=0,
        lock_timeout=PATIENCE,
        answer_timeout=PATIENCE,
    )


async def _with_connection(
    settings: DatabaseSettings,
    directory: Path | None,
    work: Callable[[Connection, Config], T],
    doing: str,
) -> T:
    config = _config(directory)
    single = replace(settings, pool_size=1)
    engine = make_engine(single)
    try:
        async with answers_within(single.answer_timeout, doing), engine.begin() as connection:
            await check_server(connection, single)
            await limit(connection, single)
            return await connection.run_sync(work, config)
    finally:
        await engine.dispose()


def _state(connection: Connection, config: Config) -> SchemaState:
    """The state. Raises UnusableSchema if this release cannot use the schema."""
    revisions = _revisions(config)
    present = _present(connection, revisions)
    if present is None:
        return SchemaState(None, revisions[-1])
    registered = replicas.registered(connection)
    return SchemaState(present, revisions[-1], present in revisions, tuple(registered))


def _present(connection: Connection, revisions: Collection[str]) -> str | None:
    """The revision of the schema; None for an empty database. Raises UnusableSchema if a release with these revisions cannot use it."""
    heads = MigrationContext.configure(connection).get_current_heads()
    if not heads:
        return None
    has_requirement = inspect(connection).has_table(schema_requirement.name)
    required = connection.scalar(replicas.REQUIRED) if has_requirement else None
    if not required:  # the first revision of a release writes one
        raise UnusableSchema(
            f"the schema ({', '.join(heads)}) belongs to an earlier commit of queuectl or to another program, so version "
            f"{version()} does not use it. Create a new database. To keep the queues and the gangs of an earlier commit, "
            "export its configuration with `queuectl config export`, and run `queuectl recover` on the new database"
        )
    replicas.check_usable(required, revisions)
    return heads[0]


def _upgrade_to(*, pre_only: bool) -> Callable[[Connection, Config], SchemaState]:
    def work(connection: Connection, config: Config) -> SchemaState:
        connection.execute(select(func.pg_advisory_xact_lock(replicas.LOCK)))
        state = _state(connection, config)
        missing = _applicable(connection, config, state, pre_only=pre_only)
        if missing:
            config.attributes["connection"] = connection
            command.upgrade(config, missing[-1])
            _require(connection, missing)
        return _state(connection, config)

    return work


async def planned(
    url: str, *, pre_only: bool = False, directory: Path | None = None
) -> tuple[str, ...]:
    """The revisions that :func:`upgrade` would apply now, the first one first. The errors are the same."""

    def work(connection: Connection, config: Config) -> tuple[str, ...]:
        return tuple(_applicable(connection, config, _state(connection, config), pre_only=pre_only))

    # It can wait for the heartbeat of a replica.
    return await _with_connection(patient(url), directory, work, "reading the schema")


def _applicable(
    connection: Connection, config: Config, state: SchemaState, *, pre_only: bool
) -> list[str]:
    """The missing revisions that can be applied now."""
    missing = _missing(config, state) if state.recognized else []
    if state.current is not None and any(map(_is_post, missing)):
        if pre_only:
            return _before_post(missing)
        _refuse_beside_others(connection, state.replicas, missing)
    return missing


def _is_post(revision: str) -> bool:
    return revision.endswith(POST)


def _require(connection: Connection, applied: Sequence[str]) -> None:
    """Record the last post revision: from now on, a release that does not know it cannot use the schema."""
    post = [*filter(_is_post, applied)][-1:]
    for revision in post:
        connection.execute(update(schema_requirement).values(revision=revision))


def _missing(config: Config, state: SchemaState) -> list[str]:
    """Revisions that are to be applied, the first one first."""
    script = ScriptDirectory.from_config(config)
    found = script.iterate_revisions("head", state.current or "base")
    return [one.revision for one in found][::-1]


def _before_post(missing: Sequence[str]) -> list[str]:
    """Those before the first post revision.

    Raises:
        StoreError: a pre revision comes after it: the post half of an earlier release was never applied.
    """
    before = list(takewhile(lambda name: not _is_post(name), missing))
    after = missing[len(before) :]
    if not _is_post(after[-1]):
        raise StoreError(
            f"the schema lacks {after[0]}, the second half of an earlier release: "
            "stop all replicas of that release, then run `queuectl db upgrade`"
        )
    return before


def _refuse_beside_others(
    connection: Connection, registered: Sequence[Replica], missing: Sequence[str]
) -> None:
    """A post revision removes what replicas of an earlier release need.

    Raises:
        StoreError: such a replica is registered, or has a session without a registration.
    """
    last = max(number for number, name in enumerate(missing) if _is_post(name))
    replicas.refuse_beside(connection, missing[last:], missing[last])
    named = [APPLICATION, *(f"{PROGRAM} {one.release}" for one in registered)]
    others = connection.execute(_OTHERS, {"known": named, "program": PROGRAM})
    sessions = ", ".join(sorted(others.scalars()))
    if sessions:
        raise StoreError(
            f"replicas of another release are connected ({sessions}): replace or stop them "
            "(kubectl -n queuectl-system rollout status deployment queuectl), then run `queuectl db upgrade` again"
        )
