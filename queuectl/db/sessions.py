"""Browser sessions in Postgres, for all replicas. Only the hashes of their ids are stored."""

from __future__ import annotations

from sqlalchemy import delete, insert, select

from queuectl.db.engine import decode_json, storable
from queuectl.db.tables import sessions
from queuectl.db.usage import Transaction
from queuectl.domain.identity import Caller, Session


class SessionStore:
    """Sessions over the connections of a store. Methods can raise StoreUnavailable."""

    def __init__(self, transaction: Transaction, statement: Transaction) -> None:
        """``statement``: for one that is a transaction by itself."""
        self._transaction = transaction
        self._statement = statement

    async def open(self, key: str, session: Session) -> None:
        """Store a session under the hash of its id, and delete expired sessions."""
        c, caller = sessions.c, session.caller
        values = {
            "key": key,
            "caller": storable(caller.name),
            "identity": caller,
            "since": session.since,
            "until": session.until,
        }
        async with self._transaction("opening a session") as connection:
            await connection.execute(delete(sessions).where(c.until <= session.since))
            await connection.execute(insert(sessions).values(values))

    async def find(self, key: str, now: float) -> Session | None:
        """The session; None without one, or if it has expired."""
        c = sessions.c
        found = select(sessions).where(c.key == key, c.until > now)
        async with self._statement("reading a session") as connection:
            row = (await connection.execute(found)).one_or_none()
        if row is None:
            return None
        return Session(decode_json(Caller, row.identity), row.since, row.until)

    async def close(self, key: str) -> None:
        """End a session, if there is one."""
        async with self._statement("closing a session") as connection:
            await connection.execute(delete(sessions).where(sessions.c.key == key))
