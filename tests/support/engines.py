"""Engines of SQLAlchemy that tests use one after the other, with the statements that they have compiled.

An engine compiles each statement once, which takes a tenth of the CPU time of a test with a controller. The databases of tests have
few names, so that many tests can use the engine of an earlier one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from queuectl.db import connections
from queuectl.db.connections import Connections
from queuectl.db.engine import DatabaseSettings, make_engine


@contextmanager
def reused_engines() -> Iterator[None]:
    """Let new connections take an engine with the same settings, whose connections are closed."""
    idle: dict[DatabaseSettings, list[AsyncEngine]] = defaultdict(list)
    closed: WeakSet[Connections] = WeakSet()
    close = Connections.close

    def take(settings: DatabaseSettings) -> AsyncEngine:
        return idle[settings].pop() if idle[settings] else make_engine(settings)

    async def give_back(pool: Connections) -> None:
        if pool not in closed:  # another one may use its engine
            closed.add(pool)
            await close(pool)
            idle[pool._settings].append(pool._engine)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "make_engine", take)
        patch.setattr(Connections, "close", give_back)
        yield
