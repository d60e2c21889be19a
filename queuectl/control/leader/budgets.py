"""Shows budgets as metrics. It runs beside the loop, and no plan waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from queuectl.control.leader.leader_state import LeaderState
from queuectl.domain.spending import BudgetReport, report


async def show_budgets(
    leader_state: LeaderState, show: Callable[[BudgetReport], None], seconds: float
) -> None:
    """Show the report every ``seconds`` seconds until cancelled."""
    while True:
        if leader_state.config.budgets:
            snapshot = leader_state.snapshot(seek_room=False)
            show(await asyncio.to_thread(report, snapshot))
        else:
            show(BudgetReport(0.0))
        await asyncio.sleep(seconds)
