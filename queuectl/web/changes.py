"""Who changed a configuration object, as the audit log has it: by the REST API and the command line, or by the pages."""

from __future__ import annotations

from typing import Final

from queuectl.api.ports import AuditStore
from queuectl.domain.audit import AuditFilter, AuditLine
from queuectl.domain.queries import DocumentKey
from queuectl.web.configuration import address_of, kind_of

SHOWN: Final = 5
_LOOKED_AT: Final = 200  # lines; those of objects with a longer name are among them


async def changes_of(book: AuditStore, key: DocumentKey) -> list[AuditLine]:
    """The latest requests that changed an object, or may have, newest first. May raise StoreUnavailable."""
    found: list[AuditLine] = []
    for path in (kind_of(key).path(key.namespace, key.name), address_of(key)):
        lines = await book.lines(AuditFilter(path=path), _LOOKED_AT)
        found += [line for line in lines if _changed(line, path)]
    found.sort(key=lambda line: -line.id)
    return found[:SHOWN]


def _changed(line: AuditLine, path: str) -> bool:
    """Whether a line tells of a change of this very object; of one whose outcome is not known, it may."""
    given, _, query = line.path.partition("?")
    refused = line.status is not None and line.status >= 400
    return given == path and not refused and "dry_run=" not in query and line.detail != "unchanged"
