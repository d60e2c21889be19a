"""A pin that is sent counts on its node until the watch shows its effect, in the control loop, on a real Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from tests.control.rig import gang, nodes, rig
from tests.doubles.cluster import FakeCluster, Written


class SlowCluster(FakeCluster):
    """The API server does not handle patches of pods before ``handles`` is set. ``sent``: one has arrived."""

    sent = False
    handles: asyncio.Event

    async def _write(self, written: Written, action: Callable[[], Any]) -> Any:
        if written.resource == "Pod":
            self.sent = True
            await self.handles.wait()
        return await super()._write(written, action)


async def test_a_repaired_gang_keeps_the_node_to_which_a_pin_was_sent(database_url: str) -> None:
    cluster = SlowCluster(nodes(2))
    cluster.handles = asyncio.Event()
    async with rig(database_url, 2, cluster=cluster) as world:
        first = cluster.submit(gang("Job", "first", 1))

        async def place() -> str:
            entry = await world.entry(first)
            assert entry.placement is not None
            ((node, _),) = entry.placement.podsets[0].nodes
            return node

        await world.until(lambda: cluster.sent, "the pin is sent")
        node = await place()
        cluster.set_ready(node, ready=False)

        async def moved() -> bool:
            return await place() != node

        await world.until(moved, "the gang is repaired")
        cluster.set_ready(node, ready=True)
        second = cluster.submit(gang("Job", "second", 1))

        async def decided() -> bool:
            entry = await world.store.get_workload(second)
            return entry is not None and entry.reason.code is not Code.QUEUED

        await world.until(decided, "the second gang has an answer")
        cluster.handles.set()
        await world.until_state(first, State.RUNNING)
        cluster.finish(first)
        await world.until_state(second, State.RUNNING)
