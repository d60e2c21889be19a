"""The audit log in Postgres. Each process writes its own requests; see :mod:`queuectl.domain.audit`."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import CursorResult, Select, delete, insert, select, update

from queuectl.db.engine import storable
from queuectl.db.tables import NOW, NOW_ONCE, audit
from queuectl.db.usage import Transaction
from queuectl.domain.audit import AuditFilter, AuditLine, RequestOutcome

_BATCH: Final = 5000


class AuditLog:
    """The audit log over the connections of a store. Methods can raise StoreUnavailable."""

    def __init__(self, statement: Transaction) -> None:
        """``statement``: a connection for one statement that is a transaction by itself."""
        self._statement = statement

    async def begin(self, line: AuditLine) -> int:
        """See the Protocol."""
        row = {
            "at": NOW,
            "request_id": line.request_id,
            "caller": storable(line.caller),
            "groups": list(line.groups),
            "method": line.method,
            "path": storable(line.path),
            "operation": line.operation,
            "status": line.status,
            "detail": storable(line.detail),
        }
        written = insert(audit).values(row).returning(audit.c.id)
        async with self._statement("writing the audit log") as connection:
            return int((await connection.scalars(written)).one())

    async def end(self, number: int, outcome: RequestOutcome) -> None:
        """Complete a line."""
        values = {
            "operation": outcome.operation,
            "status": outcome.status,
            "detail": storable(outcome.detail),
        }
        async with self._statement("completing the audit log") as connection:
            await connection.execute(update(audit).where(audit.c.id == number).values(values))

    async def lines(self, filters: AuditFilter, limit: int) -> tuple[AuditLine, ...]:
        """The newest of these lines, newest first."""
        async with self._statement("reading the audit log") as connection:
            rows = await connection.execute(listing(filters, limit))
            return tuple(AuditLine(**{**row._mapping, "groups": tuple(row.groups)}) for row in rows)

    async def prune(self, age: float) -> int:
        """See the Protocol."""
        gone = delete(audit).where(audit.c.id.in_(outdated(age)))
        async with self._statement("deleting old lines of the audit log") as connection:
            deleted: CursorResult[Any] = await connection.execute(gone)
            return deleted.rowcount


def outdated(age: float) -> Select[Any]:
    """Ids of some lines older than ``age`` seconds."""
    c = audit.c
    return select(c.id).where(c.at < NOW_ONCE - age).order_by(c.at).limit(_BATCH)


def listing(filters: AuditFilter, limit: int) -> Select[Any]:
    """The statement behind :meth:`AuditLog.lines`."""
    c = audit.c
    statement = select(audit).order_by(c.id.desc()).limit(limit)
    if filters.caller is not None:
        statement = statement.where(c.caller == filters.caller)
    if filters.path is not None:
        statement = statement.where(c.path.startswith(filters.path, autoescape=True))
    if filters.since is not None:
        statement = statement.where(c.at >= filters.since)
    if filters.before is not None:
        statement = statement.where(c.id < filters.before)
    return statement
