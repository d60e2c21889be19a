"""Configuration documents. Each process can write them. Each write increments the revision against which plans are checked.

The version of a document (its ETag) is the revision of its last write. Writers wait for a lock on the ``configuration`` row, and a
commit of the leader that depends on the revision holds a shared lock on that row. Thus a change of quota is in force when the user
gets the response: what a plan from before decides is committed after it only if the change permits it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, delete, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db import pastuse
from queuectl.db.tables import configuration, documents
from queuectl.domain.errors import Conflict, NotFound
from queuectl.domain.ledger import Document
from queuectl.domain.pastuse import Used
from queuectl.domain.queries import ConfigChanges, ConfigDocument, DocumentKey
from queuectl.objects.documents import in_order

CHANNEL: Final = "queuectl_config"


async def revision_and_documents(connection: AsyncConnection) -> tuple[int, tuple[Document, ...]]:
    """Both as of one snapshot; the caller's transaction must be REPEATABLE READ."""
    order = (documents.c.kind, documents.c.namespace, documents.c.name)
    rows = await connection.scalars(select(documents.c.document).order_by(*order))
    return await revision(connection), tuple(rows)


async def changes(
    connection: AsyncConnection, since: int, keys: Collection[DocumentKey]
) -> ConfigChanges:
    """The documents that were written after a revision, and those that were deleted; see the Protocol.

    The caller's transaction must be REPEATABLE READ.
    """
    current, c = await revision(connection), documents.c
    if current < since:  # the database was restored from a backup: all earlier reads are invalid
        since = 0
    written = tuple(await connection.scalars(select(c.document).where(c.version > since)))
    there = {*keys, *map(DocumentKey.of, written)}
    if await connection.scalar(select(func.count()).select_from(documents)) == len(there):
        return ConfigChanges(current, written)
    rows = await connection.execute(select(c.kind, c.namespace, c.name))
    return ConfigChanges(current, written, frozenset(keys) - {DocumentKey(*row) for row in rows})


async def revision(connection: AsyncConnection) -> int:
    """The revision of the whole configuration."""
    return int((await connection.scalars(select(configuration.c.revision))).one())


def _stored(row: Any) -> ConfigDocument:
    return ConfigDocument(in_order(row.document), row.version)


async def read(connection: AsyncConnection, key: DocumentKey) -> ConfigDocument | None:
    """One document, or None."""
    found = select(documents.c.document, documents.c.version).where(_is(key))
    row = (await connection.execute(found)).one_or_none()
    return _stored(row) if row is not None else None


async def read_those(
    connection: AsyncConnection, keys: Collection[DocumentKey]
) -> tuple[ConfigDocument, ...]:
    """The documents with these keys that exist, in the order of their keys."""
    c = documents.c
    identity = tuple_(c.kind, c.namespace, c.name)
    wanted = [(key.kind, key.namespace, key.name) for key in keys]
    found = select(c.document, c.version).where(identity.in_(wanted))
    rows = await connection.execute(found.order_by(c.kind, c.namespace, c.name))
    return tuple(_stored(row) for row in rows)


async def read_kind(
    connection: AsyncConnection, kind: str, namespace: str | None = None
) -> tuple[ConfigDocument, ...]:
    """All documents of a kind, in (namespace, name) order; of one namespace if it is given."""
    found = select(documents.c.document, documents.c.version).where(documents.c.kind == kind)
    if namespace is not None:
        found = found.where(documents.c.namespace == namespace)
    rows = await connection.execute(found.order_by(documents.c.namespace, documents.c.name))
    return tuple(_stored(row) for row in rows)


async def write(
    connection: AsyncConnection,
    document: Document,
    if_match: int | None = None,
    used: Sequence[Used] = (),
) -> int:
    """Create or replace a document. Returns the new version, or the current one if nothing changes.

    ``used``: see :meth:`queuectl.db.ports.ApiStore.put_config`.

    Raises:
        BadInput: the document has no kind or name.
        Conflict: its version is not ``if_match`` (0 = it does not exist yet, None = any).
    """
    key = DocumentKey.of(document)
    if used:  # first, in the order in which the leader's commits lock rows
        await pastuse.start(connection, used)
    present = await _locked(connection, key, if_match)
    if present is not None and present.document == document:
        return present.version
    version = await raise_revision(connection)
    values = {
        "kind": key.kind,
        "namespace": key.namespace,
        "name": key.name,
        "document": document,
        "version": version,
    }
    upsert = insert(documents).values(values)
    await connection.execute(
        upsert.on_conflict_do_update(
            index_elements=[documents.c.kind, documents.c.namespace, documents.c.name],
            set_={"document": upsert.excluded.document, "version": upsert.excluded.version},
        )
    )
    return version


async def remove(
    connection: AsyncConnection, key: DocumentKey, if_match: int | None = None
) -> None:
    """Delete a document.

    Raises:
        NotFound: it does not exist.
        Conflict: its version is not ``if_match``.
    """
    if await _locked(connection, key, if_match) is None:
        raise NotFound(f"{key} does not exist")
    await raise_revision(connection)
    await connection.execute(delete(documents).where(_is(key)))


def check_version(key: DocumentKey, version: int, if_match: int | None) -> None:
    """Compare-and-swap: ``version`` 0 means that the document does not exist.

    Raises:
        Conflict: the caller expects another version.
    """
    if if_match is not None and if_match != version:
        state = f"is at version {version}" if version else "does not exist"
        raise Conflict(f"{key} {state}, not at version {if_match}", version)


async def _locked(
    connection: AsyncConnection, key: DocumentKey, if_match: int | None
) -> ConfigDocument | None:
    """The current document, with a lock against all other writers until the transaction ends."""
    await connection.execute(select(configuration.c.revision).with_for_update())
    present = await read(connection, key)
    check_version(key, present.version if present is not None else 0, if_match)
    return present


async def raise_revision(connection: AsyncConnection) -> int:
    """Raise the revision, and notify all processes. Returns the new one. The caller has locked the row."""
    raised = (
        update(configuration)
        .values(revision=configuration.c.revision + 1)
        .returning(configuration.c.revision)
    )
    version = int((await connection.scalars(raised)).one())
    await connection.execute(select(func.pg_notify(CHANNEL, str(version))))
    return version


def _is(key: DocumentKey) -> ColumnElement[bool]:
    c = documents.c
    return and_(c.kind == key.kind, c.namespace == key.namespace, c.name == key.name)
