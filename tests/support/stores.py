"""Both stores of one database in one object, for tests of the leader and the API together."""

from __future__ import annotations

from queuectl.db.api_store import PostgresApiStore
from queuectl.db.leader_store import PostgresLeaderStore


class PostgresStore(PostgresLeaderStore, PostgresApiStore):
    """The methods of the leader's store and of the API's."""
