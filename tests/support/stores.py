"""Both stores of one database in one object, for tests of the leader and the API together."""

from __future__ import annotations

from queuectl.db.api_store import ApiStore
from queuectl.db.leader_store import LeaderStore


class PostgresStore(LeaderStore, ApiStore):
    """The methods of the leader's store and of the API's."""
