"""Results of the leader that are not in the ledger: one row, which each write replaces.

The write does not lock the leader's epoch, so no commit waits for it. A leader that was deposed a moment ago can still write; its
successor writes soon after.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import structlog
from sqlalchemy import exists, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.engine import decode_json
from queuectl.db.tables import findings, leadership
from queuectl.domain.errors import Fenced
from queuectl.domain.estimates import ExpectedStarts
from queuectl.domain.processes import LeaderFindings
from queuectl.domain.utilization import GangUse

log = structlog.get_logger()
_Part = TypeVar("_Part")


async def keep(connection: AsyncConnection, leader_findings: LeaderFindings, *, epoch: int) -> None:
    """Replace the results.

    Raises:
        Fenced: the epoch is no longer the caller's.
    """
    mine = exists(select(leadership.c.epoch).where(leadership.c.epoch == epoch))
    row = {
        "at": leader_findings.at,
        "uses": leader_findings.uses,
        "expected_starts": leader_findings.starts,
        "unhealthy": leader_findings.unhealthy,
    }
    if (await connection.execute(update(findings).where(mine).values(row))).rowcount != 1:
        raise Fenced(f"epoch {epoch} is over: another leader has taken over")


async def load(connection: AsyncConnection, last_at: float) -> LeaderFindings | None:
    """The last results; None if they are of the time ``last_at``, unix seconds."""
    row = (await connection.execute(select(findings).where(findings.c.at != last_at))).one_or_none()
    if row is None:
        return None
    return LeaderFindings(
        row.at,
        _part(dict[str, GangUse], row.uses),
        _part(ExpectedStarts, row.expected_starts),
        _part(dict[str, str], row.unhealthy),
    )


def _part(kind: type[_Part], document: Any) -> _Part:
    """A part of the results; empty if it cannot be read. A newer release can have written other values, and a leader writes its own soon."""
    try:
        return decode_json(kind, document or {})
    except msgspec.ValidationError as error:
        log.info("findings_not_read", error=str(error))
        return kind()
