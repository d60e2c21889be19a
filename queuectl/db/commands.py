"""Users' commands on workloads: the API adds rows, and the leader executes each of them once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, CursorResult, Select, and_, exists, func, or_, select, update
from sqlalchemy.dialects.postgresql import distinct_on, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.bulk import arrays, unnest_rows
from queuectl.db.engine import storable
from queuectl.db.rows import command_from
from queuectl.db.tables import NOW, commands, workloads
from queuectl.domain.commands import (
    DONE,
    MOST_WAITING,
    Action,
    Answer,
    Command,
    CommandFilter,
    CommandState,
)
from queuectl.domain.errors import Conflict, StaleSnapshot, TooManyCommands
from queuectl.domain.queries import LONGEST_PAGE

CHANNEL: Final = "queuectl_commands"
_BATCH: Final = 500
_ANSWER: Final = (commands.c.id, commands.c.outcome)
_OPEN: Final = commands.c.outcome.is_(None)
_KNOWN: Final = commands.c.action.in_([action.value for action in Action])
"""A newer release can have written others. It carries them out."""
_STATES: Final[dict[CommandState, ColumnElement[bool]]] = {
    CommandState.WAITING: _OPEN,
    CommandState.DONE: commands.c.outcome == DONE,
    CommandState.REFUSED: and_(commands.c.outcome.is_not(None), commands.c.outcome != DONE),
}


async def add(connection: AsyncConnection, command: Command) -> Command:
    """Add a command. This function assigns its ``id`` and its time. A repeated request returns the first command.

    Raises:
        Conflict: the request id was used for something else.
        TooManyCommands: the number of commands that wait for this workload is at its limit.
    """
    open_of_it = select(commands.c.id).where(_OPEN, commands.c.uid == command.uid)
    waiting = await connection.scalars(open_of_it.limit(MOST_WAITING))
    if len(waiting.all()) == MOST_WAITING:
        earlier = await of_request(connection, command.request_id)
        if earlier is None:
            raise TooManyCommands(f"{MOST_WAITING} commands of this workload wait already")
        return same_request(earlier, command)
    columns = {
        "uid": command.uid,
        "action": command.action.value,
        "priority": command.priority,
        "by": storable(command.by),
        "request_id": command.request_id,
        "at": NOW,
        "until": command.until,
        "queue": command.queue,
        "why": storable(command.why),
        "admin": command.admin,
        "report": command.report,
    }
    added = insert(commands).values(columns).on_conflict_do_nothing().returning(commands)
    row = (await connection.execute(added)).one_or_none()
    if row is not None:
        await connection.execute(select(func.pg_notify(CHANNEL, str(row.id))))
        return command_from(row)
    earlier = await of_request(connection, command.request_id)
    assert earlier is not None, "the insert met it"
    return same_request(earlier, command)


async def of_request(connection: AsyncConnection, request_id: str) -> Command | None:
    """The command of this request, or None."""
    same = select(commands).where(commands.c.request_id == request_id)
    row = (await connection.execute(same)).one_or_none()
    return command_from(row) if row is not None else None


def same_request(earlier: Command, command: Command) -> Command:
    """``earlier``, if it is the same command.

    Raises:
        Conflict: it is another command.
    """
    if earlier.content != command.content:
        raise Conflict(f"request {command.request_id} was {earlier.action} of {earlier.uid}")
    return earlier


async def numbered(connection: AsyncConnection, number: int) -> Command | None:
    """The command with this id, or None."""
    row = (await connection.execute(select(commands).where(commands.c.id == number))).one_or_none()
    return command_from(row) if row is not None else None


async def of_workload(
    connection: AsyncConnection, uid: str, after: int = 0, limit: int = 100
) -> tuple[Command, ...]:
    """Commands for one workload with ids above ``after``, oldest first."""
    mine = select(commands).where(commands.c.uid == uid, commands.c.id > after, _KNOWN)
    rows = await connection.execute(mine.order_by(commands.c.id).limit(min(limit, LONGEST_PAGE)))
    return tuple(map(command_from, rows))


def listing(filters: CommandFilter, limit: int) -> Select[Any]:
    """The statement behind :func:`newest`; the tests pin its plan."""
    c, w = commands.c, workloads.c
    statement = select(commands).where(_KNOWN).order_by(c.id.desc()).limit(limit)
    its_row = exists().where(w.uid == c.uid)
    if filters.namespaces is not None:
        statement = statement.where(its_row.where(w.namespace.in_(sorted(filters.namespaces))))
    if filters.workload is not None:
        namespace, _, name = filters.workload.partition("/")
        statement = statement.where(its_row.where(w.namespace == namespace, w.name == name))
    if filters.by is not None:
        statement = statement.where(c.by == filters.by)
    if filters.states:
        statement = statement.where(or_(*(_STATES[state] for state in sorted(filters.states))))
    if filters.before is not None:
        statement = statement.where(c.id < filters.before)
    return statement


async def newest(
    connection: AsyncConnection, filters: CommandFilter, limit: int = 100
) -> tuple[Command, ...]:
    """The newest of these commands, newest first."""
    rows = await connection.execute(listing(filters, max(1, min(limit, LONGEST_PAGE))))
    return tuple(map(command_from, rows))


async def unanswered(connection: AsyncConnection) -> tuple[Command, ...]:
    """The first one of each workload, oldest first: no workload can have so many that others wait for them."""
    c = commands.c
    first = select(c.id).ext(distinct_on(c.uid)).where(_OPEN, _KNOWN).order_by(c.uid, c.id)
    rows = await connection.execute(
        select(commands).where(c.id.in_(first)).order_by(c.id).limit(_BATCH)
    )
    return tuple(map(command_from, rows))


async def any_unanswered(connection: AsyncConnection) -> bool:
    """Whether there is one."""
    return bool(await connection.scalar(select(exists().where(_OPEN, _KNOWN))))


async def answer(connection: AsyncConnection, answers: Sequence[Answer]) -> None:
    """Write the results of commands.

    Raises:
        StaleSnapshot: one of them has a result already.
    """
    if not answers:
        return
    given = unnest_rows(_ANSWER)
    noted = (
        update(commands).where(commands.c.id == given.c.id, _OPEN).values(outcome=given.c.outcome)
    )
    rows = [{"id": each.id, "outcome": each.outcome} for each in answers]
    result: CursorResult[tuple[()]] = await connection.execute(noted, arrays(_ANSWER, rows))
    if result.rowcount != len(rows):
        raise StaleSnapshot("a command was answered before")
