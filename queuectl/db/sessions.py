"""Browser sessions in Postgres, for all replicas. Only the hashes of their ids are stored."""

from __future__ import annotations

from sqlalchemy import delete, func, insert, select

from queuectl.db.engine import decode_json, storable
from queuectl.db.tables import NOW, NOW_ONCE, sessions
from queuectl.db.usage import Transaction
from queuectl.domain.identity import Caller, Session


class SessionStore:
    """Sessions over the connections of a store. Methods can raise StoreUnavailable."""

    def __init__(self, transaction: Transaction, statement: Transaction) -> None:
        """``statement``: for one that is a transaction by itself."""
        self._transaction = transaction
        self._statement = statement

    async def open(self, key: str, caller: Caller, seconds: float, ends: float | None) -> Session:
        """See the Protocol. ``key``: the hash of its id."""
        c = sessions.c
        values = {
            "key": key,
            "caller": storable(caller.name),
            "identity": caller,
            "since": NOW,
            "until": func.least(NOW + seconds, ends),  # without a null
        }
        expired = c.until <= NOW_ONCE
        opened = insert(sessions).values(values).returning(c.since, c.until)
        async with self._transaction("opening a session") as connection:
            await connection.execute(delete(sessions).where(expired))
            row = (await connection.execute(opened)).one()
        return Session(caller, row.since, row.until)

    async def find(self, key: str) -> Session | None:
        """The session; None without one, or if it has expired."""
        c = sessions.c
        found = select(sessions).where(c.key == key, c.until > NOW)
        async with self._statement("reading a session") as connection:
            row = (await connection.execute(found)).one_or_none()
        if row is None:
            return None
        return Session(decode_json(Caller, row.identity), row.since, row.until)

    async def close(self, key: str) -> None:
        """End a session, if there is one."""
        async with self._statement("closing a session") as connection:
            await connection.execute(delete(sessions).where(sessions.c.key == key))
