"""Bringing the schema to what this release needs. The revisions are in ``migrations/``; its README tells how to add one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, func, select

import queuectl
from queuectl.db.engine import DatabaseSettings, check_version, make_engine
from queuectl.db.failures import answers_within
from queuectl.domain.errors import StoreError

_LOCK: Final = 0x7175657565  # "queue"; any constant nobody else uses
_PATIENCE: Final = 600.0
POST: Final = "_post"


@dataclass(frozen=True, slots=True)
class SchemaState:
    """``current`` is None for an empty database. ``known`` is False when a newer release has upgraded it."""

    current: str | None
    head: str
    known: bool = True

    @property
    def up_to_date(self) -> bool:
        return self.current == self.head


def migrations_directory(package: Path = Path(queuectl.__file__).parent) -> Path:
    """``queuectl/_migrations`` of an installed wheel, or ``migrations`` beside the package in a checkout."""
    for candidate in (package / "_migrations", package.parent / "migrations"):
        if (candidate / "env.py").is_file():
            return candidate
    raise StoreError(f"the installation is incomplete: no migrations beside {package}")


async def upgrade(
    url: str, *, pre_only: bool = False, directory: Path | None = None
) -> SchemaState:
    """Apply what is missing, in one transaction; concurrent upgrades wait for each other.

    A schema that a newer release has upgraded is left alone: its pre half keeps this release working.

    Args:
        url: of the database.
        pre_only: stop before the first post revision: old replicas still run.
        directory: of the revisions; None takes those of this release.

    Raises:
        StoreUnavailable: no answer; nothing was changed unless all was.
        StoreError: a revision failed; nothing was changed.
        BadInput: the URL is wrong or the server too old.
    """
    return await _with_connection(url, directory, _upgrade_to(pre_only=pre_only))


async def current(url: str, *, directory: Path | None = None) -> SchemaState:
    """Which revision the database is at; changes nothing. Errors as for :func:`upgrade`."""
    return await _with_connection(url, directory, _state)


async def _with_connection(
    url: str, directory: Path | None, work: Callable[[Connection, Config], SchemaState]
) -> SchemaState:
    config = Config()
    config.set_main_option(
        "script_location", str(directory or migrations_directory()).replace("%", "%%")
    )
    # A long migration, or waiting for somebody else's, is no reason to give up.
    patient = replace(
        DatabaseSettings.from_environment(url),
        pool_size=1,
        statement_timeout=0,
        lock_timeout=_PATIENCE,
        answer_timeout=_PATIENCE,
    )
    engine = make_engine(patient)
    try:
        async with (
            answers_within(_PATIENCE, "migrating the database"),
            engine.begin() as connection,
        ):
            await check_version(connection)
            return await connection.run_sync(work, config)
    finally:
        await engine.dispose()


def _state(connection: Connection, config: Config) -> SchemaState:
    script = ScriptDirectory.from_config(config)
    present = MigrationContext.configure(connection).get_current_revision()
    head = script.get_current_head()
    if head is None:
        raise StoreError("the installation is incomplete: there are no revisions")
    return SchemaState(present, head, present is None or _knows(script, present))


def _knows(script: ScriptDirectory, revision: str) -> bool:
    try:
        return script.get_revision(revision) is not None
    except CommandError:
        return False


def _upgrade_to(*, pre_only: bool) -> Callable[[Connection, Config], SchemaState]:
    def work(connection: Connection, config: Config) -> SchemaState:
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
        state = _state(connection, config)
        target = _last_before_post(config, state.current) if pre_only else state.head
        if state.known and target != state.current and target is not None:
            config.attributes["connection"] = connection
            command.upgrade(config, target)
        return _state(connection, config)

    return work


def _last_before_post(config: Config, present: str | None) -> str | None:
    """The newest revision that can be reached from ``present`` without a post revision on the way."""
    script = ScriptDirectory.from_config(config)
    reached = present
    for revision in reversed(list(script.iterate_revisions("head", present or "base"))):
        if revision.revision.endswith(POST):
            break
        reached = revision.revision
    return reached
