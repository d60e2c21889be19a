"""The latest changes of a configuration object in the audit log, made through the REST API or through the pages."""

from __future__ import annotations

from typing import Final

from queuectl.db.ports import AuditStore
from queuectl.domain.audit import AuditFilter, AuditLine
from queuectl.domain.queries import DocumentKey
from queuectl.web.configuration import address_of, kind_of

SHOWN: Final = 5
_MOST_LINES: Final = 200  # lines; lines of objects with a longer name are among them


async def changes_of(audit_store: AuditStore, key: DocumentKey) -> list[AuditLine]:
    """The latest requests that changed an object, or whose result is unknown, newest first. May raise StoreUnavailable."""
    found: list[AuditLine] = []
    for path in (kind_of(key).path(key.namespace, key.name), address_of(key)):
        lines = await audit_store.lines(AuditFilter(path=path), _MOST_LINES)
        found += [line for line in lines if _changed(line, path)]
    found.sort(key=lambda line: -line.id)
    return found[:SHOWN]


def _changed(line: AuditLine, path: str) -> bool:
    """Whether a line is a change of this object. A line whose result is unknown counts."""
    given, _, query = line.path.partition("?")
    refused = line.status is not None and line.status >= 400
    changes = given in (path, f"{path}/stop", f"{path}/resume")
    done = not refused and not line.detail.startswith("unchanged")
    return changes and done and "dry_run=" not in query
