"""Search of workloads by a part of their names. An index of trigrams finds finished workloads; it needs no extension of Postgres.

A text that many names contain is first searched for in the newest finished workloads, which are often enough. Otherwise, the index finds
at most some thousands, of which the newest are taken: so the work for one search is bounded.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Select, cast, func, literal_column, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from queuectl.db.bulk import TEXTS
from queuectl.db.tables import name_trigrams, workloads
from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from queuectl.domain.search import NEWEST_FINISHED, SearchText, WorkloadSummary

MOST_INDEXED: Final = 20_000
"""Rows that the index finds for one search and the database reads."""
_LAST: Final = "\U0010ffff"  # sorts after each character of a uid
_W: Final = workloads.c
_COLUMNS: Final = (
    *(_W.uid, _W.kind, _W.namespace, _W.name, _W.state, _W.cluster_queue, _W.user),
    *(_W.gpu_parts, _W.reason_code, _W.queued_at, _W.finished_at),
)
_FINISHED: Final = _W.finished_at.is_not(None)


async def unfinished(connection: AsyncConnection) -> tuple[WorkloadSummary, ...]:
    """All workloads that have not finished."""
    statement: Select[Any] = select(*_COLUMNS).where(_W.finished_at.is_(None))
    rows = await connection.execute(statement)
    return tuple(_summary(row) for row in rows)


async def finished_matches(
    connection: AsyncConnection,
    search: SearchText,
    namespaces: frozenset[str] | None,
    limit: int,
) -> tuple[WorkloadSummary, ...]:
    """Finished workloads of these namespaces that match, in the order of results; see :meth:`queuectl.db.ports.ApiStore.finished_matches`."""
    if not search.possible or (namespaces is not None and not namespaces):
        return ()
    matches: dict[str, WorkloadSummary] = {}

    async def take(statement: Select[Any] | None) -> int:
        if statement is None:
            return 0
        rows = (await connection.execute(statement)).all()
        matches.update((row.uid, _summary(row)) for row in rows)
        return len(rows)

    await take(exactly(search, namespaces, limit))
    if await take(among_newest(search, namespaces, limit)) < limit and search.indexed:
        await take(by_trigrams(search, namespaces, limit))
    return tuple(search.in_order(matches.values())[:limit])


def exactly(
    search: SearchText, namespaces: frozenset[str] | None, limit: int
) -> Select[Any] | None:
    """The statement for the whole name or the beginning of a uid; None where the text is neither."""
    alike: list[ColumnElement[bool]] = []
    if search.full_name is not None:
        namespace, name = search.full_name
        alike.append((_W.namespace == namespace) & (_W.name == name))
    if search.begins_uid:
        alike.append((_W.uid >= search.text) & (_W.uid < search.text + _LAST))
    if not alike:
        return None
    return _visible(select(*_COLUMNS).where(_FINISHED, or_(*alike)), namespaces).limit(limit)


def among_newest(search: SearchText, namespaces: frozenset[str] | None, limit: int) -> Select[Any]:
    """The statement for the newest finished workloads."""
    newest = _visible(select(*_COLUMNS).where(_FINISHED), namespaces)
    window = newest.order_by(_W.finished_at.desc()).limit(NEWEST_FINISHED).subquery()
    return (
        select(window)
        .where(_has_part(search, window.c))
        .order_by(window.c.finished_at.desc())
        .limit(limit)
    )


def by_trigrams(search: SearchText, namespaces: frozenset[str] | None, limit: int) -> Select[Any]:
    """The statement for all finished workloads."""
    indexed: ColumnElement[bool] = name_trigrams(_W).op("@>", is_comparison=True)(
        cast(search.trigrams, TEXTS)
    )
    statement = _visible(
        select(*_COLUMNS).where(_FINISHED, indexed, _has_part(search, _W)), namespaces
    )
    window = statement.limit(MOST_INDEXED).subquery()
    return select(window).order_by(window.c.finished_at.desc()).limit(limit)


def _has_part(
    search: SearchText, columns: ReadOnlyColumnCollection[str, Any]
) -> ColumnElement[bool]:
    full_name = columns.namespace.concat(literal_column("'/'")).concat(columns.name)
    return func.strpos(full_name, search.part) > 0


def _visible(statement: Select[Any], namespaces: frozenset[str] | None) -> Select[Any]:
    if namespaces is None:
        return statement
    return statement.where(_W.namespace.in_(sorted(namespaces)))


def _summary(row: Row[Any]) -> WorkloadSummary:
    return WorkloadSummary(
        row.uid,
        row.kind,
        row.namespace,
        row.name,
        State(row.state),
        row.cluster_queue,
        row.user,
        row.gpu_parts,
        Code.read(row.reason_code),
        row.queued_at,
        row.finished_at,
    )
