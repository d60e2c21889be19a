"""The common part of the leader's store and the API's store: connections, configuration, and reads of single rows.

Most methods of a store are one query of this package on a connection: :func:`statement`, :func:`snapshot` and
:func:`transaction` make them. :mod:`queuectl.db.ports` documents them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db import commands as command_rows
from queuectl.db import documents, pastuse, reads, usage
from queuectl.db.connections import Connections
from queuectl.db.engine import DatabaseSettings
from queuectl.db.migrate import check_schema, known_revisions
from queuectl.db.replicas import Registration

P = ParamSpec("P")
R = TypeVar("R")

Query = Callable[Concatenate[AsyncConnection, P], Awaitable[R]]
Method = Callable[Concatenate["Database", P], Coroutine[Any, Any, R]]


def statement(doing: str, query: Query[P, R]) -> Method[P, R]:
    """A method that runs a query of one statement; see :meth:`Connections.statement`."""
    return _method(lambda store: store.connections.statement(doing), query)


def snapshot(doing: str, query: Query[P, R]) -> Method[P, R]:
    """A method whose reads all see the same moment; see :meth:`Connections.snapshot`."""
    return _method(lambda store: store.connections.snapshot(doing), query)


def transaction(doing: str, query: Query[P, R]) -> Method[P, R]:
    """A method that writes in one transaction; see :meth:`Connections.transaction`."""
    return _method(lambda store: store.connections.transaction(doing), query)


def _method(
    connect: Callable[[Database], AbstractAsyncContextManager[AsyncConnection]], query: Query[P, R]
) -> Method[P, R]:
    async def method(self: Database, /, *args: P.args, **kwargs: P.kwargs) -> R:
        async with connect(self) as connection:
            return await query(connection, *args, **kwargs)

    return method


class Database:
    """A pool of connections to the ledger. All methods can raise StoreUnavailable."""

    def __init__(self, connections: Connections) -> None:
        self.connections: Final = connections
        self.usage: Final = usage.UsageLedger(connections.transaction, connections.snapshot)

    def registration(self, name: str) -> Registration:
        """The registration of this process under its name; see :mod:`queuectl.db.replicas`."""
        return Registration(self.connections.transaction, name, known_revisions())

    @classmethod
    async def connect(cls, settings: DatabaseSettings) -> Self:
        """Open the pool, and check the version of the server and the schema.

        Raises:
            BadInput: the URL is wrong or the server too old.
            UnusableSchema: this release cannot use the schema.
        """
        connections = Connections(settings)
        try:
            await connections.check()
            async with connections.transaction("reading the schema") as connection:
                await connection.run_sync(check_schema)
        except BaseException:
            await connections.close()
            raise
        return cls(connections)

    async def close(self) -> None:
        """Close all connections, without waiting for a server that does not respond."""
        await self.connections.close()

    configuration = snapshot("reading the configuration", documents.revision_and_documents)
    config_changes = snapshot("reading changes of the configuration", documents.changes)
    get_config = statement("reading configuration", documents.read)
    put_config = transaction("writing the configuration", documents.write)
    get_workload = snapshot("reading a workload", reads.one_entry)
    commands = statement("reading commands", command_rows.unanswered)
    past_use = statement("reading past use", pastuse.load)
