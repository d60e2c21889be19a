"""A leader follows the configuration: a change at once, a burst in few pieces, and never less than all of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from queuectl.control import supervise
from queuectl.control.loop import Loop
from queuectl.control.settings import Settings
from queuectl.control.supervise import Supervisor
from queuectl.domain.ledger import State
from queuectl.domain.queries import DocumentKey
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code
from queuectl.objects.kinds import KINDS
from queuectl.telemetry.metrics import Metrics
from tests.control.rig import configuration, gang, rig
from tests.control.test_lifecycle import until_reason
from tests.doubles.cluster import FakeCluster
from tests.doubles.store import MemoryDatabase, MemoryStore


class Follower(Supervisor):
    """Keeps the queues it leads with, each time they change."""

    taken: list[QueueConfig]

    async def _reign(self, loop: Loop, epoch: int) -> None:
        self.taken = []
        take_in = loop.configuration_changed

        async def noted() -> None:
            await take_in()
            self.taken.append(loop.books.config)

        loop.configuration_changed = noted  # type: ignore[method-assign]
        await super()._reign(loop, epoch)


@asynccontextmanager
async def following(store: MemoryStore) -> AsyncIterator[Follower]:
    supervisor = Follower(
        store=store,
        cluster=FakeCluster([]),
        metrics=Metrics(),
        settings=Settings(debounce_seconds=0.0),
        clock=time.time,
        job_resources={kind.plural: kind.kind for kind in KINDS.values()},
    )
    stop = asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop))
    try:
        await until(lambda: hasattr(supervisor, "taken"))
        yield supervisor
    finally:
        stop.set()
        await running


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not done():  # noqa: ASYNC110 - a picture of somebody else's work has no event
            await asyncio.sleep(0.001)


async def test_a_burst_of_writes_is_taken_in_together_and_the_first_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervise, "MERGE_SECONDS", 1.0)
    store = MemoryStore(MemoryDatabase())
    async with following(store) as leader:
        first, *others = configuration(8)
        await store.put_config(first)
        await until(lambda: len(leader.taken) == 1)
        assert list(leader.taken[0].topologies) == ["gpus"]
        for document in others:
            await store.put_config(document)
        await store.delete_config(DocumentKey("WorkloadPriorityClass", "", "low"))
        revision = len(others) + 2
        await until(lambda: leader.taken[-1].revision == revision)
        assert len(leader.taken) == 2
        last = leader.taken[-1]
        assert (list(last.cluster_queues), list(last.priority_classes)) == (["pool"], ["high"])


async def test_gangs_of_queues_that_come_later_are_looked_at_again(database_url: str) -> None:
    """Each change concerns some gangs: those that wait for it must see it."""
    async with rig(database_url, 4) as world:
        queue, local = (d for d in configuration(32) if d["kind"] in ("ClusterQueue", "LocalQueue"))
        await world.store.delete_config(DocumentKey.of(local))
        uid = world.cluster.submit(gang("Job", "train", 2))
        await until_reason(world, uid, State.PENDING, Code.MISCONFIGURED)
        elsewhere = {**local, "spec": {"clusterQueue": "later"}}
        await world.store.put_config(elsewhere)
        held = await until_reason(world, uid, State.PENDING, Code.MISCONFIGURED)
        assert held.cluster_queue == ""
        await world.store.put_config({**queue, "metadata": {"name": "later"}})
        entry = await world.until_state(uid, State.RUNNING)
        assert entry.cluster_queue == "later"
        stopped = {**queue["spec"], "stopPolicy": "HoldAndDrain"}
        await world.store.put_config({**queue, "spec": stopped})
        await world.store.put_config({**queue, "metadata": {"name": "later"}, "spec": stopped})
        await until_reason(world, uid, State.PENDING, Code.QUEUE_STOPPED)
