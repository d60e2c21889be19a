"""Migrations to the schema that this release needs. The revisions are in ``migrations/``; its README describes how to add one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, func, select, text

import queuectl
from queuectl.db.engine import (
    APPLICATION,
    PROGRAM,
    DatabaseSettings,
    check_version,
    make_engine,
)
from queuectl.db.failures import answers_within
from queuectl.domain.errors import StoreError

_LOCK: Final = 0x7175657565  # "queue"; a constant that other programs do not use
_PATIENCE: Final = 24 * 3600.0
_OTHERS: Final = text(
    "SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name LIKE :any AND application_name <> :own"
)
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
    """Apply the missing revisions in one transaction. Concurrent upgrades wait for each other.

    A schema of a newer release does not change: its pre half is compatible with this release.

    Args:
        url: of the database.
        pre_only: stop before the first post revision, because replicas of an earlier release can be running. An empty database
            gets all revisions.
        directory: of the revisions; None takes those of this release.

    Raises:
        StoreUnavailable: no response; either all revisions were applied or none.
        StoreError: a revision failed, or replicas of another release are connected and a post revision is to be applied, or
            ``pre_only`` stops before a pre revision that this release needs; nothing was changed.
        BadInput: the URL is wrong or the server too old.
    """
    return await _with_connection(url, directory, _upgrade_to(pre_only=pre_only))


async def current(url: str, *, directory: Path | None = None) -> SchemaState:
    """The revision of the database. It changes nothing. Errors as for :func:`upgrade`."""
    return await _with_connection(url, directory, _state)


async def _with_connection(
    url: str, directory: Path | None, work: Callable[[Connection, Config], SchemaState]
) -> SchemaState:
    config = Config()
    config.set_main_option(
        "script_location", str(directory or migrations_directory()).replace("%", "%%")
    )
    # A long migration, also of another process, is no reason for a time-out.
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
        missing = _missing(config, state) if state.known else []
        if state.current is not None and any(name.endswith(POST) for name in missing):
            if pre_only:
                missing = _before_post(missing)
            else:
                _refuse_beside_others(connection)
        if missing:
            config.attributes["connection"] = connection
            command.upgrade(config, missing[-1])
        return _state(connection, config)

    return work


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
    before = list(takewhile(lambda name: not name.endswith(POST), missing))
    after = missing[len(before) :]
    if not after[-1].endswith(POST):
        raise StoreError(
            f"the schema lacks {after[0]}, the second half of an earlier release: "
            "stop all replicas of that release, then run `queuectl db upgrade`"
        )
    return before


def _refuse_beside_others(connection: Connection) -> None:
    """A post revision takes away what replicas of an earlier release need. Each names its release to the server.

    Raises:
        StoreError: sessions of another release are open.
    """
    others = connection.execute(_OTHERS, {"own": APPLICATION, "any": f"{PROGRAM} %"})
    found = ", ".join(sorted(others.scalars()))
    if found:
        raise StoreError(f"replicas of another release are connected ({found}): stop them first")
