"""Past use by account, as the leader last sampled it: one row for each resource."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.bulk import arrays, insert_rows
from queuectl.db.engine import storable
from queuectl.db.tables import leadership, past_use
from queuectl.domain.pastuse import AccountScope, PastUseAccount, Used

_COLUMNS: Final = tuple(past_use.c)
_INSERT: Final = insert_rows(past_use, _COLUMNS)
_KEEP: Final = _INSERT.on_conflict_do_update(
    constraint=past_use.primary_key,
    set_={"value": _INSERT.excluded.value, "at": _INSERT.excluded.at},
)


async def keep(connection: AsyncConnection, used: Sequence[Used], forget: float) -> None:
    """Replace these accounts, and delete accounts that were last written before ``forget``."""
    await _write(connection, _KEEP, used)
    await connection.execute(delete(past_use).where(past_use.c.at < forget))


async def start(connection: AsyncConnection, used: Sequence[Used]) -> None:
    """Add those of these accounts that do not exist. The leader's commits wait until then, because they can add some."""
    await connection.execute(select(leadership.c.epoch).with_for_update(key_share=True))
    known = {one.account for one in await load(connection)}
    await _write(connection, _INSERT, [one for one in used if one.account not in known])


async def _write(connection: AsyncConnection, statement: Insert, used: Sequence[Used]) -> None:
    rows = [
        {
            "scope": one.account.scope.value,
            "key": storable(one.account.name),
            "resource": storable(resource),
            "value": amount,
            "at": one.at,
        }
        for one in used
        for resource, amount in one.amounts.items()
    ]
    if rows:
        await connection.execute(statement, arrays(_COLUMNS, rows))


async def load(connection: AsyncConnection) -> tuple[Used, ...]:
    """All of them, by account."""
    c = past_use.c
    amounts: dict[tuple[PastUseAccount, float], dict[str, float]] = {}
    rows = await connection.execute(select(past_use).order_by(c.scope, c.key, c.resource))
    for row in rows:
        account = PastUseAccount(AccountScope(row.scope), row.key)
        amounts.setdefault((account, row.at), {})[row.resource] = row.value
    return tuple(Used(account, at, found) for (account, at), found in amounts.items())
