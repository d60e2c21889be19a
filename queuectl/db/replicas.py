"""The replicas that use the database. Each registers its release, and proves with a heartbeat that it runs.

A post revision removes what earlier releases need. Two rules keep such a release and such a schema apart:

- ``queuectl db upgrade`` applies no post revision while a replica is registered whose release does not know that revision.
- A release does not connect to a schema whose last post revision it does not know.

An upgrade holds the advisory lock :data:`LOCK`, and a new replica shares it while it registers, and therefore one of the two sees the other.
A heartbeat takes no lock: replicas of the earlier release must not expire during a long pre revision. A process that was frozen
for longer than :data:`EXPIRY_SECONDS` has expired; its first heartbeat after a post revision ends it. Times are read from the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog
from sqlalchemy import Connection, delete, func, select
from sqlalchemy.dialects.postgresql import insert

from queuectl.db.tables import NOW, leadership, replicas, schema_requirement
from queuectl.db.usage import Transaction
from queuectl.distribution import version
from queuectl.domain.errors import StoreError, StoreUnavailable, UnusableSchema

log = structlog.get_logger()

LOCK: Final = 0x7175657565  # "queue"; a constant that other programs do not use
HEARTBEAT_SECONDS: Final = 10.0
EXPIRY_SECONDS: Final = 60.0
GRACE_SECONDS: Final = 1.5 * HEARTBEAT_SECONDS
_FORGET_SECONDS: Final = 86400.0
REQUIRED: Final = select(schema_requirement.c.revision)
"""The revision that a release must know to use the schema."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A registered process.

    Attributes:
        name: as in the Lease.
        release: its version of queuectl.
        revision: the newest revision of the schema that its release knows.
        age: seconds since its last heartbeat.
        leads: it was the last process that became the leader.
    """

    name: str
    release: str
    revision: str
    age: float
    leads: bool = False

    @property
    def expired(self) -> bool:
        return self.age > EXPIRY_SECONDS

    def __str__(self) -> str:
        return (
            f"{self.name} (version {self.release}, schema {self.revision}, "
            f"last heartbeat {self.age:.0f} s ago)"
        )


class Registration:
    """One process among the registered replicas. Methods can raise StoreUnavailable."""

    def __init__(self, transaction: Transaction, name: str, revisions: Sequence[str]) -> None:
        """``revisions``: all revisions that this release knows, the oldest first."""
        self._transaction = transaction
        self._revisions = revisions
        self._row: dict[str, Any] = {
            "name": name,
            "release": version(),
            "revision": revisions[-1],
        }

    @asynccontextmanager
    async def registered(self) -> AsyncIterator[None]:
        """The registration of a process, from its start to its orderly end.

        Raises:
            UnusableSchema: this release cannot use the schema.
        """
        await self._register()
        try:
            yield
        finally:
            try:
                await self._leave()
            except StoreError as error:
                log.warning("heartbeat_not_written", error=str(error))

    async def keep(self, answered: Callable[[], None] = lambda: None) -> None:
        """Write heartbeats until canceled. ``answered``: called after each one, and at the start.

        Raises:
            UnusableSchema: the process was taken for stopped, and this release can no longer use the schema.
        """
        answered()
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                await self.beat()
                answered()
            except StoreUnavailable as error:
                log.warning("heartbeat_not_written", error=str(error))

    async def beat(self) -> None:
        """Write one heartbeat. An expired registration is valid again.

        Raises:
            UnusableSchema: this release cannot use the schema.
        """
        row = insert(replicas).values(**self._row, seen_at=NOW)
        renewed = row.on_conflict_do_update(
            index_elements=[replicas.c.name],
            set_={name: row.excluded[name] for name in (*self._row, "seen_at")},
        ).returning(REQUIRED.scalar_subquery())
        async with self._transaction("writing a heartbeat") as connection:
            required = (await connection.scalars(renewed)).one()
            check_usable(required, self._revisions)

    async def _register(self) -> None:
        """Replace the registration of an earlier process with this name, and forget processes that stopped long ago."""
        async with self._transaction("registering this replica") as connection:
            await connection.execute(select(func.pg_advisory_xact_lock_shared(LOCK)))
            check_usable((await connection.scalars(REQUIRED)).one(), self._revisions)
            old = replicas.c.seen_at < NOW - _FORGET_SECONDS
            mine = replicas.c.name == self._row["name"]
            await connection.execute(delete(replicas).where(old | mine))
            new = insert(replicas).values(**self._row, started_at=NOW, seen_at=NOW)
            started = (await connection.scalars(new.returning(replicas.c.started_at))).one()
        self._row["started_at"] = started

    async def _leave(self) -> None:
        c, own = replicas.c, self._row
        mine = (c.name == own["name"]) & (c.started_at == own["started_at"])
        async with self._transaction("deleting the registration") as connection:
            await connection.execute(delete(replicas).where(mine))


def check_usable(required: str, revisions: Collection[str]) -> None:
    """Check that a release can use a schema.

    Raises:
        UnusableSchema: it does not know the last post revision.
    """
    if required not in revisions:
        raise UnusableSchema(
            f"the schema has {required}, the second half of the upgrade to a newer release, so version {version()} "
            "cannot use it: run the newer release, or restore a backup from before that upgrade"
        )


def registered(connection: Connection) -> list[Replica]:
    """All registered replicas by name, also expired ones."""
    c = replicas.c
    found = select(
        c.name,
        c.release,
        c.revision,
        func.greatest(NOW - c.seen_at, 0.0).label("age"),
        (c.name == select(leadership.c.holder).scalar_subquery()).label("leads"),
    ).order_by(c.name)
    rows = [Replica(**row) for row in connection.execute(found).mappings()]
    return [replace(one, age=float(one.age)) for one in rows]


def refuse_beside(connection: Connection, needed: Collection[str], post: str) -> None:
    """Check that no replica runs whose release does not know a post revision.

    An expired replica has the time of one more heartbeat: the database was possibly not available for the earlier ones.

    Args:
        connection: holds :data:`LOCK`.
        needed: the revisions one of which a release must have as its newest.
        post: the post revision, for the message.

    Raises:
        StoreError: there is such a replica.
    """
    older = [one for one in registered(connection) if one.revision not in needed]
    if older and all(one.expired for one in older):
        connection.execute(select(func.pg_sleep(GRACE_SECONDS)))
        older = [one for one in registered(connection) if one.revision not in needed]
    running = [one for one in older if not one.expired]
    if running:
        raise StoreError(
            f"{post} removes what replicas of an earlier release need: "
            + "; ".join(map(str, running))
            + ". Replace or stop them (kubectl -n queuectl-system rollout status deployment queuectl), "
            "then run `queuectl db upgrade` again; "
            f"a stopped replica counts for {EXPIRY_SECONDS:g} s after its last heartbeat"
        )
