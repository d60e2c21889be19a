"""The common part of the leader's store and the API's store: connections, configuration, and reads of single rows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Self

from queuectl.db import (
    commands,
    documents,
    pastuse,
    reads,
    usage,
)
from queuectl.db.connections import Connections
from queuectl.db.engine import DatabaseSettings
from queuectl.db.migrate import check_schema, known_revisions
from queuectl.db.replicas import Registration
from queuectl.domain.commands import Command
from queuectl.domain.ledger import Document, Entry
from queuectl.domain.pastuse import Used
from queuectl.domain.queries import (
    ConfigChanges,
    ConfigDocument,
    DocumentKey,
)


class Database:
    """A pool of connections to the ledger. All methods can raise StoreUnavailable."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._transaction: Final = connections.transaction
        self._statement: Final = connections.statement
        self._snapshot: Final = connections.snapshot
        self.usage: Final = usage.UsageLedger(connections.transaction, connections.snapshot)

    def registration(self, name: str) -> Registration:
        """The registration of this process under its name; see :mod:`queuectl.db.replicas`."""
        return Registration(self._transaction, name, known_revisions())

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
        await self._connections.close()

    async def configuration(self) -> tuple[int, tuple[Document, ...]]:
        """Current revision and all configuration documents."""
        async with self._snapshot("reading the configuration") as connection:
            return await documents.revision_and_documents(connection)

    async def config_changes(self, since: int, known: Collection[DocumentKey]) -> ConfigChanges:
        """The documents that were written after a revision, and those that were deleted; see the Protocol."""
        async with self._snapshot("reading changes of the configuration") as connection:
            return await documents.changes(connection, since, known)

    async def get_config(self, key: DocumentKey) -> ConfigDocument | None:
        """One document with its version, or None."""
        async with self._statement("reading configuration") as connection:
            return await documents.read(connection, key)

    async def get_workload(self, uid: str) -> Entry | None:
        """The workload with this uid, Finished or not; or None."""
        async with self._snapshot("reading a workload") as connection:
            return await reads.one_entry(connection, uid)

    async def commands(self) -> tuple[Command, ...]:
        """Commands without a result, oldest first; not necessarily all of them."""
        async with self._statement("reading commands") as connection:
            return await commands.unanswered(connection)

    async def past_use(self) -> tuple[Used, ...]:
        """Past use as last sampled, by account."""
        async with self._statement("reading past use") as connection:
            return await pastuse.load(connection)

    async def put_config(self, document: Document, if_match: int | None = None) -> int:
        """Create or replace a document; see :func:`queuectl.db.documents.write`."""
        async with self._transaction("writing the configuration") as connection:
            return await documents.write(connection, document, if_match)
