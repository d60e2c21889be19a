"""Results of the leader that are not in the ledger: one row, which each write replaces.

The write does not lock the leader's epoch, so no commit waits for it. A leader that was deposed a moment ago can still write; its
successor writes soon after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

from sqlalchemy import exists, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from queuectl.db.tables import findings, leadership
from queuectl.domain.broadcast import LeaderFindings
from queuectl.domain.errors import Fenced
from queuectl.domain.estimates import (
    NO_ESTIMATES,
    ExpectedRunTime,
    ExpectedStart,
    ExpectedStarts,
    RunTimeSource,
)
from queuectl.domain.utilization import GangUse, UseState


async def keep(connection: AsyncConnection, found: LeaderFindings, *, epoch: int) -> None:
    """Replace the results.

    Raises:
        Fenced: the epoch is no longer the caller's.
    """
    mine = exists(select(leadership.c.epoch).where(leadership.c.epoch == epoch))
    uses = [astuple(use) for use in found.uses.values()]
    row = {"at": found.at, "uses": uses, "expected_starts": _starts_row(found.starts)}
    row["unhealthy"] = dict(found.unhealthy)
    if (await connection.execute(update(findings).where(mine).values(row))).rowcount != 1:
        raise Fenced(f"epoch {epoch} is over: another leader has taken over")


async def load(connection: AsyncConnection, known: float) -> LeaderFindings | None:
    """The last results; None if they are of the time ``known``, unix seconds."""
    row = (await connection.execute(select(findings).where(findings.c.at != known))).one_or_none()
    if row is None:
        return None
    uses = (
        GangUse(uid, attempt, UseState(state), *rest) for uid, attempt, state, *rest in row.uses
    )
    starts = _starts(row.expected_starts)
    return LeaderFindings(row.at, {use.uid: use for use in uses}, starts, row.unhealthy)


def _starts_row(starts: ExpectedStarts) -> dict[str, Any]:
    ranges = {uid: [start.median, start.p90] for uid, start in starts.by_uid.items()}
    return {
        "computedAt": starts.computed_at,
        "starts": ranges,
        "gangs": starts.gangs,
        "leftOut": starts.left_out,
        "runTimes": {uid: astuple(each) for uid, each in starts.run_times.items()},
    }


def _starts(row: Mapping[str, Any]) -> ExpectedStarts:
    """``row``: empty until a leader has written it."""
    if not row:
        return NO_ESTIMATES
    at = row["computedAt"]
    ranges = {uid: ExpectedStart(median, p90, at) for uid, (median, p90) in row["starts"].items()}
    run_times = {
        uid: ExpectedRunTime(RunTimeSource(source), *rest)
        for uid, (source, *rest) in row["runTimes"].items()
    }
    return ExpectedStarts(at, ranges, row["gangs"], row["leftOut"], run_times)
