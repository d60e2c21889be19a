"""Both stores of one database in one object, for tests of the leader and the API together."""

from __future__ import annotations

from queuectl.db.store import PostgresApiStore, PostgresLeaderStore


class PostgresStore(PostgresLeaderStore, PostgresApiStore):
    """The methods of the leader's store and of the API's."""
