"""Reads of the ledger, for the leader and for lists of the API: workloads, history, sums over live workloads by queue, and evictions."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    CursorResult,
    Row,
    Select,
    cast,
    func,
    literal_column,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.bulk import TEXTS, any_of
from queuectl.db.rows import (
    ENTRY_COLUMNS,
    entry_from,
    history_line_from,
    lease_from,
    placements_from,
)
from queuectl.db.tables import documents, history, leases, outbox, placements, workloads
from queuectl.domain.estimates import DAY
from queuectl.domain.gpus import of_parts
from queuectl.domain.ledger import Entry, Intent, MigrationCost, State
from queuectl.domain.queries import (
    BY_NAME,
    FIELDS,
    IN_QUEUE_ORDER,
    LONGEST_PAGE,
    UNFINISHED,
    URGENCY,
    HistoryLine,
    LiveWorkloads,
    PagePosition,
    QueueCounts,
    QueuePosition,
    SortKey,
    WaitingOrder,
    WorkloadFilter,
    WorkloadOrder,
    WorkloadPage,
)
from queuectl.domain.reasons import NOT_IN_LINE, Code, Reason
from queuectl.domain.selectors import Match, SelectorCondition

# ---- Workloads and history

_CLOCKS_APART: Final = 3600.0  # largest difference of the server's clock in seconds
_KEYSET: Final = (workloads.c.namespace, workloads.c.name, workloads.c.uid)
_TEXT_KEYS: Final = (SortKey.STATE, SortKey.CLUSTER_QUEUE)  # columns of the database's collation
_DOCUMENTS: Final[ARRAY[Any]] = ARRAY(JSONB(), dimensions=1)
TURN: Final = (
    workloads.c.priority.desc(),
    func.coalesce(workloads.c.requeued_at, workloads.c.queued_at),
    workloads.c.uid,
)
"""The queue order, as in :func:`queuectl.domain.queries.turn`."""
# Only live workloads have rows in the three side tables, so loading all live ones reads those whole.
LIVE: Final = (
    select(*ENTRY_COLUMNS).where(workloads.c.finished_at.is_(None)).order_by(workloads.c.uid)
)


async def live_entries(connection: AsyncConnection) -> tuple[Entry, ...]:
    """Every workload that is not Finished, by uid."""
    rows = (await connection.execute(LIVE)).all()
    return await _complete(connection, rows, None)


# `version` counts the writes of a row; `since` distinguishes it from a row of a restored database.
_VERSIONS: Final = (
    select(workloads.c.uid, workloads.c.version, workloads.c.since)
    .where(workloads.c.finished_at.is_(None))
    .order_by(workloads.c.uid)
)


async def live_entries_since(
    connection: AsyncConnection, before: Iterable[Entry]
) -> tuple[Entry, ...]:
    """Every workload that is not Finished, by uid; of those read before only what has changed is read again."""
    known = {(entry.uid, entry.version, entry.since): entry for entry in before}
    stand = [tuple(row) for row in await connection.execute(_VERSIONS)]
    news = [key[0] for key in stand if key not in known]
    read = {entry.uid: entry for entry in await _entries(connection, news)}
    return tuple(known.get(key) or read[key[0]] for key in stand)


async def live_workloads(connection: AsyncConnection, before: Collection[Entry]) -> LiveWorkloads:
    """The same with the time of the read, which is not later than what it shows."""
    at = (
        await connection.execute(select(func.extract("epoch", func.statement_timestamp())))
    ).scalar_one()
    return LiveWorkloads(await live_entries_since(connection, before), float(at))


async def entries_of(connection: AsyncConnection, uids: Collection[str]) -> tuple[Entry, ...]:
    """The workloads with these uids that exist."""
    return await _entries(connection, list(uids))


async def _entries(connection: AsyncConnection, uids: list[str]) -> tuple[Entry, ...]:
    if not uids:
        return ()
    statement = select(*ENTRY_COLUMNS).where(workloads.c.uid == any_of())
    rows = await connection.execute(statement, {"uids": uids})
    return await _complete(connection, rows.all(), uids)


def moves_since(seconds: float) -> Select[Any]:
    """The statement behind :func:`spent_on_moves`; the tests pin its plan."""
    h = history.c
    since = func.extract("epoch", func.now()) - seconds
    moved = h.event == literal_column(f"'{Code.DEFRAGMENTED.value}'")
    return select(h.at, h.code, h.message, h.details).where(moved, h.at > since).order_by(h.id)


async def spent_on_moves(connection: AsyncConnection) -> tuple[MigrationCost, ...]:
    """The cost of moves in the last day by the server's clock, and some time before, because the clocks can differ."""
    rows = await connection.execute(moves_since(DAY + _CLOCKS_APART))
    costs = (
        MigrationCost.from_reason(row.at, Reason.read(row.code, row.message, row.details))
        for row in rows
    )
    return tuple(spent for spent in costs if spent is not None)


async def rows_of(connection: AsyncConnection, statement: Select[Any]) -> tuple[Entry, ...]:
    """The workloads whose rows a statement selects, in its order, without their rows in side tables: one round trip."""
    return tuple(entry_from(row) for row in await connection.execute(statement))


async def one_entry(connection: AsyncConnection, uid: str) -> Entry | None:
    """The workload with this uid, or None."""
    return await _one(connection, select(*ENTRY_COLUMNS).where(workloads.c.uid == uid))


def named(kind: str, namespace: str, name: str) -> Select[Any]:
    """The statement behind :func:`entry_named`; the tests pin its plan."""
    w = workloads.c
    return (
        select(*ENTRY_COLUMNS)
        .where(w.namespace == namespace, w.name == name, w.kind == kind)
        .order_by((w.state == State.FINISHED.value), w.queued_at.desc(), w.uid)
        .limit(1)
    )


def all_named(namespace: str, name: str) -> Select[Any]:
    """The statement behind :func:`entries_named`; the tests pin its plan."""
    w = workloads.c
    return (
        select(*ENTRY_COLUMNS)
        .where(w.namespace == namespace, w.name == name)
        .ext(distinct_on(w.kind))
        .order_by(w.kind, (w.state == State.FINISHED.value), w.queued_at.desc(), w.uid)
    )


async def entries_named(
    connection: AsyncConnection, namespace: str, name: str
) -> tuple[Entry, ...]:
    """For each kind, the workload that has this name, as :func:`entry_named` chooses it; by kind."""
    rows = (await connection.execute(all_named(namespace, name))).all()
    return tuple(await _complete(connection, rows, [row.uid for row in rows]))


async def entry_named(
    connection: AsyncConnection, kind: str, namespace: str, name: str
) -> Entry | None:
    """The workload that has this name, a live one before finished ones and the newest before older; or None."""
    return await _one(connection, named(kind, namespace, name))


async def _one(connection: AsyncConnection, statement: Select[Any]) -> Entry | None:
    rows = (await connection.execute(statement)).all()
    return next(iter(await _complete(connection, rows, [row.uid for row in rows])), None)


def listing(
    filters: WorkloadFilter, after: PagePosition | None, limit: int, order: WorkloadOrder = BY_NAME
) -> Select[Any]:
    """The statement behind :func:`page_of`; the tests pin its plans.

    An index serves the order of names. In another order the database sorts all workloads that match.
    """
    return _page(
        _matching(filters), _sort_key(order), after.key if after is not None else None, limit, order
    )


def urgent(
    filters: WorkloadFilter,
    urgency: int,
    after: tuple[Any, ...] | None,
    limit: int,
    order: WorkloadOrder,
) -> Select[Any]:
    """The workloads of one urgency; the tests pin its plans.

    Those that have not finished are in one small index by the time at which they were queued. No index has the state, because each
    change of a state would then be a write to that index.

    Args:
        filters: of the list.
        urgency: as in :data:`queuectl.domain.queries.URGENCY`.
        after: the time, namespace, name and uid after which to continue.
        limit: the number of rows at most.
        order: whether the newest are first.
    """
    states = _states_of(urgency)
    finished = states == {State.FINISHED}
    statement = _matching(replace(filters, states=frozenset()))
    ended = workloads.c.finished_at
    if finished:
        time, statement = ended, statement.where(ended.is_not(None))
    else:
        # By its statistics, PostgreSQL expects few rows in any of these states: it would read all of them and sort them. It expects
        # that an exclusion leaves most rows.
        others = UNFINISHED - ((filters.states or states) & states)
        time = workloads.c.queued_at
        excluded = workloads.c.state.not_in(sorted(state.value for state in others))
        statement = statement.where(ended.is_(None), excluded)
    return _page(statement, (time, *_KEYSET), after, limit, order)


def _states_of(urgency: int) -> frozenset[State]:
    return frozenset(state for state, rank in URGENCY.items() if rank == urgency)


def _page(
    statement: Select[Any],
    key: tuple[ColumnElement[Any], ...],
    after: tuple[Any, ...] | None,
    limit: int,
    order: WorkloadOrder,
) -> Select[Any]:
    """The rows of a statement in the order of a key, after one value of it."""
    if after is not None:
        ended, here = tuple_(*after), tuple_(*key)
        statement = statement.where(here < ended if order.descending else here > ended)
    return statement.order_by(*(c.desc() if order.descending else c for c in key)).limit(limit)


def _matching(filters: WorkloadFilter) -> Select[Any]:
    statement = select(*ENTRY_COLUMNS)
    for name in ("namespace", "name", "queue", "cluster_queue", "kind", "user"):
        required = getattr(filters, name)
        if required is not None:
            statement = statement.where(workloads.c[name] == required)
    if filters.namespaces is not None:
        statement = statement.where(workloads.c.namespace.in_(sorted(filters.namespaces)))
    if filters.code is not None:
        statement = statement.where(workloads.c.reason_code == filters.code.value)
    if filters.states:
        statement = statement.where(workloads.c.state.in_(sorted(s.value for s in filters.states)))
    for condition in filters.labels:
        statement = statement.where(_has_label(condition))
    return statement


def _has_label(condition: SelectorCondition) -> ColumnElement[bool]:
    """One condition of a label selector. An index serves those that a label fulfills."""
    labels, key = workloads.c.labels, condition.key
    pairs = [json.dumps({key: accepted}) for accepted in sorted(condition.accepted)]
    among: ColumnElement[bool] = labels.op("@>", is_comparison=True)(
        func.any(cast(cast(pairs, TEXTS), _DOCUMENTS))
    )
    has_key: ColumnElement[bool] = labels.has_key(key)
    match condition.match:
        case Match.IN:
            return among
        case Match.NOT_IN:
            return ~among
        case Match.EXISTS:
            return has_key
        case Match.ABSENT:
            return ~has_key


def _sort_key(order: WorkloadOrder) -> tuple[ColumnElement[Any], ...]:
    if order.key is SortKey.NAME:
        return _KEYSET
    column = workloads.c[FIELDS[order.key]]
    return (column.collate("C") if order.key in _TEXT_KEYS else column, *_KEYSET)


async def namespaces(connection: AsyncConnection) -> frozenset[str]:
    """The namespaces with a LocalQueue or a workload."""
    return frozenset(await connection.scalars(known_namespaces()))


def known_namespaces() -> Select[Any]:
    """The statement behind :func:`namespaces`. Each step finds the next namespace by the index, whatever the number of workloads."""
    w, d = workloads.c, documents.c
    step = select(func.min(w.namespace).label("namespace")).cte("step", recursive=True)
    following = select(func.min(w.namespace)).where(w.namespace > step.c.namespace)
    steps = step.union_all(select(following.scalar_subquery()).where(step.c.namespace.is_not(None)))
    of_queues = select(d.namespace).where(d.kind == "LocalQueue")
    either = of_queues.union(select(steps.c.namespace).where(steps.c.namespace.is_not(None)))
    return select(either.subquery().c.namespace)


def live_users(namespaces: Collection[str] | None, limit: int) -> Select[Any]:
    """The statement behind :func:`users`; the tests pin its plan."""
    w = workloads.c
    found = select(w.user).distinct().where(w.finished_at.is_(None), w.user != "")
    if namespaces is not None:
        found = found.where(w.namespace.in_(sorted(namespaces)))
    return found.order_by(w.user).limit(limit)


async def users(
    connection: AsyncConnection, namespaces: Collection[str] | None, limit: int
) -> tuple[str, ...]:
    """The users of workloads that have not finished, by name."""
    return tuple(await connection.scalars(live_users(namespaces, limit)))


async def page_of(
    connection: AsyncConnection,
    filters: WorkloadFilter,
    cursor: str | None = None,
    limit: int = 100,
    order: WorkloadOrder = BY_NAME,
) -> WorkloadPage:
    """One page in this order, of each workload its own row.

    Raises:
        BadInput: ``cursor`` is not one of ours, or of a list in another order.
    """
    limit = max(1, min(limit, LONGEST_PAGE))
    after = PagePosition.parse(cursor, order) if cursor is not None else None
    if order.key is SortKey.URGENCY:
        entries = await _by_urgency(connection, filters, after, limit + 1, order)
    else:
        entries = await rows_of(connection, listing(filters, after, limit + 1, order))
    more, entries = len(entries) > limit, entries[:limit]
    return WorkloadPage(entries, PagePosition.of(entries[-1], order).cursor if more else None)


async def _by_urgency(
    connection: AsyncConnection,
    filters: WorkloadFilter,
    after: PagePosition | None,
    limit: int,
    order: WorkloadOrder,
) -> tuple[Entry, ...]:
    """At most ``limit`` workloads: those of one urgency, and of the next ones while the page is not full."""
    entries: tuple[Entry, ...] = ()
    ended, position = (after.key[0], after.key[1:]) if after is not None else (None, None)
    for urgency in sorted(set(URGENCY.values()), reverse=order.descending):
        passed = ended is not None and (urgency > ended if order.descending else urgency < ended)
        if passed or not (filters.states or URGENCY.keys()) & _states_of(urgency):
            continue
        start = position if urgency == ended else None
        statement = urgent(filters, urgency, start, limit - len(entries), order)
        entries += await rows_of(connection, statement)
        if len(entries) == limit:
            break
    return entries


def lines(uids: Iterable[str]) -> Select[Any]:
    """The statement behind :func:`lines_of`; the tests pin its plan."""
    w = workloads.c
    among = any_of(uids)
    # The array is resolved first, by uid. In a join, PostgreSQL can compare all pairs until it has statistics of a new burst.
    queues = func.any(func.array(select(w.cluster_queue).where(w.uid == among).scalar_subquery()))
    ranked = (
        select(
            w.uid,
            func.row_number().over(partition_by=w.cluster_queue, order_by=TURN).label("among"),
            func.row_number()
            .over(partition_by=(w.namespace, w.queue), order_by=TURN)
            .label("local"),
        )
        .where(
            w.finished_at.is_(None),
            w.cluster_queue != "",
            w.cluster_queue == queues,
            w.state.in_([state.value for state in IN_QUEUE_ORDER]),
            w.reason_code.not_in(sorted(code.value for code in NOT_IN_LINE)),
        )
        .subquery()
    )
    return select(ranked).where(ranked.c.uid == among)


async def lines_of(connection: AsyncConnection, uids: Iterable[str]) -> dict[str, QueuePosition]:
    """The positions of workloads in queue order, by uid. Workloads that are not pending are left out."""
    rows = await connection.execute(lines(uids))
    return {row.uid: QueuePosition(row.among, row.local) for row in rows}


async def names_of(connection: AsyncConnection, uids: Iterable[str]) -> dict[str, str]:
    """``namespace/name`` by uid, of those that exist."""
    w = workloads.c
    found = select(w.uid, w.namespace, w.name).where(w.uid == any_of())
    rows = await connection.execute(found, {"uids": list(uids)})
    return {row.uid: f"{row.namespace}/{row.name}" for row in rows}


def history_after(uid: str | None, after: int, limit: int) -> Select[Any]:
    """The statement behind :func:`history_lines`; the tests pin its plans."""
    w = workloads.c
    queue = select(w.cluster_queue).where(w.uid == history.c.uid).scalar_subquery()
    statement = (
        select(history, func.coalesce(queue, "").label("cluster_queue"))
        .where(history.c.id > after)
        .order_by(history.c.id)
        .limit(limit)
    )
    return statement if uid is None else statement.where(history.c.uid == uid)


async def history_lines(
    connection: AsyncConnection, uid: str | None, after: int = 0, limit: int = 100
) -> tuple[HistoryLine, ...]:
    """Lines with a larger id than ``after``, oldest first: of one workload, or of all without ``uid``."""
    limit = max(1, min(limit, LONGEST_PAGE))
    rows = (await connection.execute(history_after(uid, after, limit))).all()
    return tuple(history_line_from(row) for row in rows)


def history_before_end(uid: str, limit: int) -> Select[Any]:
    """The statement behind :func:`newest_lines`; the tests pin its plan."""
    queue = select(workloads.c.cluster_queue).where(workloads.c.uid == history.c.uid)
    return (
        select(history, func.coalesce(queue.scalar_subquery(), "").label("cluster_queue"))
        .where(history.c.uid == uid)
        .order_by(history.c.id.desc())
        .limit(limit)
    )


async def newest_lines(
    connection: AsyncConnection, uid: str, limit: int = 100
) -> tuple[HistoryLine, ...]:
    """The last lines of one workload, newest first."""
    limit = max(1, min(limit, LONGEST_PAGE))
    rows = (await connection.execute(history_before_end(uid, limit))).all()
    return tuple(history_line_from(row) for row in rows)


async def newest_line(connection: AsyncConnection) -> int:
    """The id of the last line; 0 without any."""
    return int(await connection.scalar(select(func.max(history.c.id))) or 0)


async def _complete(
    connection: AsyncConnection, rows: Sequence[Row[Any]], uids: list[str] | None
) -> tuple[Entry, ...]:
    """Entries of ``rows`` with their placements, leases and intents; ``uids`` None reads the side tables whole."""
    if not rows:
        return ()
    order = (placements.c.uid, placements.c.ordinal)
    placed = placements_from(
        await _side(connection, select(placements).order_by(*order), placements.c.uid, uids)
    )
    leased = {
        row.uid: lease_from(row)
        for row in await _side(connection, select(leases), leases.c.uid, uids)
    }
    intents = select(outbox.c.uid, outbox.c.intent)
    intent_of = {
        row.uid: Intent(row.intent) for row in await _side(connection, intents, outbox.c.uid, uids)
    }
    return tuple(entry_from(row, placed, leased, intent_of) for row in rows)


async def _side(
    connection: AsyncConnection,
    statement: Select[Any],
    key: ColumnElement[str],
    uids: list[str] | None,
) -> Iterable[Row[Any]]:
    if uids is not None:
        statement = statement.where(key == any_of())
    result: CursorResult[Any] = await connection.execute(statement, {"uids": uids} if uids else {})
    return result


# ---- Sums, the waiting workloads, and evictions

_W: Final = workloads.c
_KEY: Final = (_W.namespace, _W.queue, _W.cluster_queue, _W.state, _W.reason_code)
_ORDERS: Final = {
    WaitingOrder.TURN: TURN,
    WaitingOrder.AGE: (_W.queued_at, _W.uid),
}


def _tallying() -> Select[Any]:
    """The statement behind :func:`tallies`."""
    return (
        select(
            *_KEY,
            func.count().label("workloads"),
            func.sum(_W.gpu_parts).label("parts"),
            func.min(_W.queued_at).label("oldest"),
        )
        .where(_W.finished_at.is_(None))
        .group_by(*_KEY)
        .order_by(*_KEY)
    )


async def tallies(connection: AsyncConnection) -> tuple[QueueCounts, ...]:
    """Counts of all workloads that are not Finished."""
    rows = await connection.execute(_tallying())
    return tuple(
        QueueCounts(
            row.namespace,
            row.queue,
            row.cluster_queue,
            State(row.state),
            Code.read(row.reason_code),
            row.workloads,
            of_parts(int(row.parts)),
            row.oldest,
        )
        for row in rows
    )


async def waiting(
    connection: AsyncConnection,
    cluster_queue: str | None = None,
    namespaces: Collection[str] | None = None,
    *,
    queue: str | None = None,
    order: WaitingOrder = WaitingOrder.TURN,
    skip: int = 0,
    limit: int = 100,
) -> tuple[Entry, ...]:
    """Pending and Reserved workloads; see :meth:`queuectl.db.ports.ApiStore.waiting`."""
    statement = select(*ENTRY_COLUMNS).where(
        _W.finished_at.is_(None), _W.state.in_([state.value for state in IN_QUEUE_ORDER])
    )
    if cluster_queue is not None:
        statement = statement.where(_W.cluster_queue == cluster_queue)
    if queue is not None:
        statement = statement.where(_W.queue == queue)
    if namespaces is not None:
        statement = statement.where(_W.namespace.in_(sorted(namespaces)))
    limit = max(1, min(limit, LONGEST_PAGE))
    return await rows_of(connection, statement.order_by(*_ORDERS[order]).offset(skip).limit(limit))


def evicting(namespaces: Collection[str] | None, before: int | None, limit: int) -> Select[Any]:
    """The statement behind :func:`evictions`; the tests pin its plan."""
    h = history.c
    evicting = h.to_state == literal_column(f"'{State.EVICTING.value}'")  # as in the index
    statement = select(history).where(evicting, h.from_state.is_distinct_from(h.to_state))
    if before is not None:
        statement = statement.where(h.id < before)
    if namespaces is not None:
        statement = statement.where(h.namespace.in_(sorted(namespaces)))
    return statement.order_by(h.id.desc()).limit(limit)


async def evictions(
    connection: AsyncConnection,
    namespaces: Collection[str] | None = None,
    *,
    before: int | None = None,
    limit: int = 100,
) -> tuple[HistoryLine, ...]:
    """The latest evictions, newest first, at most 500."""
    limit = max(1, min(limit, LONGEST_PAGE))
    rows = await connection.execute(evicting(namespaces, before, limit))
    return tuple(history_line_from(row) for row in rows)
