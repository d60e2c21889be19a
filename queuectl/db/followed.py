"""The writes of a leader that follows configuration in objects of the cluster, its report, and the confirmation of a person.

A batch of documents is one transaction, fenced by the leader's epoch as a commit is, under one new revision, with a line of the audit log
for each object.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from sqlalchemy import delete, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db import documents
from queuectl.db.bulk import arrays, insert_rows
from queuectl.db.engine import decode_json, storable
from queuectl.db.ports import ConfigurationBatch
from queuectl.db.tables import audit, configuration, followed_objects
from queuectl.db.tables import documents as rows
from queuectl.db.writes import fence, require_epoch
from queuectl.domain.errors import StaleConfiguration
from queuectl.domain.followed import FollowedReport
from queuectl.domain.queries import DocumentKey

_COLUMNS: Final = tuple(rows.c)
_NEW: Final = insert_rows(rows, _COLUMNS)
_UPSERT: Final = _NEW.on_conflict_do_update(
    index_elements=[rows.c.kind, rows.c.namespace, rows.c.name],
    set_={"document": _NEW.excluded.document, "version": _NEW.excluded.version},
)
_LINE_COLUMNS: Final = tuple(column for column in audit.c if column is not audit.c.id)
_LINES: Final = insert_rows(audit, _LINE_COLUMNS)


async def write(connection: AsyncConnection, batch: ConfigurationBatch, *, epoch: int) -> int:
    """Write and delete documents; see the Protocol."""
    await fence(connection, epoch)
    present = await connection.scalar(select(configuration.c.revision).with_for_update())
    if present != batch.revision:
        raise StaleConfiguration(f"the configuration is no longer at revision {batch.revision}")
    version = await documents.raise_revision(connection)
    written = [
        {
            "kind": key.kind,
            "namespace": key.namespace,
            "name": key.name,
            "document": document,
            "version": version,
        }
        for document in batch.written
        for key in [DocumentKey.of(document)]
    ]
    if written:
        await connection.execute(_UPSERT, arrays(_COLUMNS, written))
    if batch.removed:
        identity = tuple_(rows.c.kind, rows.c.namespace, rows.c.name)
        gone = [(key.kind, key.namespace, key.name) for key in batch.removed]
        await connection.execute(delete(rows).where(identity.in_(gone)))
        await connection.execute(update(followed_objects).values(confirmed=""))
    lines = [
        {**asdict(line), "groups": list(line.groups), "detail": storable(line.detail)}
        for line in batch.lines
    ]
    if lines:
        await connection.execute(_LINES, arrays(_LINE_COLUMNS, lines))
    return version


async def keep_report(connection: AsyncConnection, report: FollowedReport, *, epoch: int) -> None:
    """Replace the report. It does not lock the leader's epoch, so no commit waits.

    Raises:
        Fenced: another leader has taken over.
    """
    await require_epoch(connection, epoch)
    await connection.execute(update(followed_objects).values(report=report))


async def load_report(connection: AsyncConnection) -> FollowedReport:
    """The last report of a leader."""
    return decode_json(FollowedReport, await connection.scalar(select(followed_objects.c.report)))


async def confirm(connection: AsyncConnection, deletion: str) -> None:
    """Confirm the mass deletion with this id."""
    await connection.execute(update(followed_objects).values(confirmed=storable(deletion)))


async def confirmed(connection: AsyncConnection) -> str:
    """The id of the mass deletion that a person has confirmed; empty without one."""
    return str(await connection.scalar(select(followed_objects.c.confirmed)))
