"""Shows the parts of all GPUs as metrics. It runs beside the loop, and no plan waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from queuectl.control.device_rows import DeviceRows
from queuectl.control.leader.leader_state import LeaderState
from queuectl.domain.efficiency import GpuParts
from queuectl.planner.cache import PlannerCache
from queuectl.reports.efficiency import all_parts
from queuectl.state.utilization import present_uses


async def show_efficiency(
    leader_state: LeaderState,
    cache: PlannerCache,
    show: Callable[[GpuParts], None],
    seconds: float,
) -> None:
    """Show the parts every ``seconds`` seconds until cancelled."""
    while True:
        snapshot = leader_state.snapshot(seek_room=False)
        uses = present_uses(leader_state.gang_uses, leader_state.ledger)
        planned = await asyncio.to_thread(DeviceRows.of(cache).added, snapshot)
        show(await asyncio.to_thread(all_parts, planned, snapshot, uses, cache))
        await asyncio.sleep(seconds)
