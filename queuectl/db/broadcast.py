"""Results of the leader that are not in the ledger: one row, which each write replaces.

The write does not lock the leader's epoch, so no commit waits for it. A leader that was deposed a moment ago can still write; its
successor writes soon after.
"""

from __future__ import annotations

from sqlalchemy import exists, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.engine import decode_json
from queuectl.db.tables import findings, leadership
from queuectl.domain.errors import Fenced
from queuectl.domain.estimates import ExpectedStarts
from queuectl.domain.processes import LeaderFindings
from queuectl.domain.utilization import GangUse


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
    uses = decode_json(dict[str, GangUse], row.uses or {})
    starts = decode_json(ExpectedStarts, row.expected_starts or {})
    return LeaderFindings(row.at, uses, starts, row.unhealthy)
