"""A standby whose connections to the API server are silent becomes the leader: it acts only on what the cluster shows now."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from queuectl.cluster.resources import watched
from queuectl.control.leader.loop import Loop
from queuectl.control.questions.throttle import PlannerThrottle
from queuectl.domain.ledger import State
from queuectl.domain.records import Delta
from queuectl.planner.cache import PlannerCache
from queuectl.state.mirror import Mirror
from queuectl.telemetry.metrics import MetricsRecorder
from tests.control.alike import ALIKE
from tests.control.rig import Rig, gang, live, rig
from tests.doubles.apiserver import Watcher

GATED = {"queuectl.dev/admission-gated-by": "example.com/go"}
NO_GATES = {"metadata": {"annotations": {"queuectl.dev/admission-gated-by": None}}}


class Standby:
    """A process that has listed all objects. Its watch can be silenced, and it can lead."""

    def __init__(self, world: Rig) -> None:
        self._world = world
        self._mirror = Mirror.of(world.cluster.kinds)
        self._loop = Loop(
            store=world.leader_store,
            cluster=world.cluster,
            mirror=self._mirror,
            metrics=MetricsRecorder(),
            settings=world.settings,
            clock=world.clock,
            cache=PlannerCache(),
            throttle=PlannerThrottle(1.0),
            leader_state=world.new_state(self._mirror),
        )
        self._listed: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def watch(self) -> Watcher:
        """Watch, and return the connection when all objects are listed."""
        leader = self._world
        await leader.until(lambda: leader.loop is not None and leader.loop.loaded, "the leader")
        self._tasks.append(
            asyncio.create_task(self._world.cluster.watch(self._sink, self._listed.add))
        )
        everything = {resource.name for resource in watched(kinds=self._world.cluster.kinds)}
        await self._world.until(lambda: self._listed >= everything, "the lists of the standby")
        return self._world.cluster.server.watchers[-1]

    def _sink(self, deltas: Sequence[Delta]) -> None:
        self._loop.react(self._mirror.apply(deltas))

    async def lead(self) -> None:
        """The other process has ended in an orderly way."""
        await self._world.stop()
        epoch = await self._world.leader_store.take_over("standby", 0)
        self._tasks.append(asyncio.create_task(self._loop.run(epoch)))

    @property
    def leads(self) -> bool:
        return self._loop.loaded

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def standby_of(world: Rig) -> AsyncIterator[Standby]:
    standby = Standby(world)
    try:
        yield standby
    finally:
        await standby.stop()


@pytest.mark.parametrize("kind", ALIKE)
@pytest.mark.parametrize("outage", [False, True])
async def test_what_a_silent_watch_did_not_show_is_neither_deleted_nor_stopped(
    database_url: str, kind: str, outage: bool
) -> None:
    async with rig(database_url, 6) as world, standby_of(world) as standby:
        known = world.cluster.submit(gang(kind, "known", 2, annotations=GATED))
        await world.until_state(known, State.HELD)
        connection = await standby.watch()
        connection.hold(True)
        new = world.cluster.submit(gang(kind, "new", 2))
        held = world.cluster.submit(gang(kind, "held", 1, annotations=GATED))
        world.cluster.user_patch(kind, "default", "known", NO_GATES)
        before = [await world.until_state(uid, State.RUNNING) for uid in (known, new)]
        before.append(await world.until_state(held, State.HELD))
        if outage:
            world.cluster.down = True
        await standby.lead()
        later = world.cluster.submit(gang(kind, "later", 2))
        if outage:
            for _ in range(50):
                await asyncio.sleep(0.002)
            assert not standby.leads, "it does not know what the cluster shows"
            world.cluster.down = False
        await world.until_state(later, State.RUNNING)
        for entry in before:
            now = await world.entry(entry.uid)
            assert (now.state, now.attempt, now.evictions) == (entry.state, entry.attempt, 0)
            assert now.queued_at == entry.queued_at
        assert len(live(world.cluster.all_pods())) == 6
        await world.at_rest()


async def test_pods_that_a_silent_watch_did_not_show_take_their_nodes(database_url: str) -> None:
    """A pod of no queue was created in the meantime, and a node was cordoned."""
    async with rig(database_url, 3) as world, standby_of(world) as standby:
        connection = await standby.watch()
        connection.hold(True)
        other = world.cluster.submit(gang("Job", "other", 1))
        running = await world.until_state(other, State.RUNNING)
        [pod] = live(world.cluster.pods_of(other))
        free = sorted({"n0", "n1", "n2"} - {str(pod.node)})
        world.cluster.cordon(free[0])
        await standby.lead()
        uid = world.cluster.submit(gang("Job", "train", 1))
        await world.until_state(uid, State.RUNNING)
        assert [p.node for p in live(world.cluster.pods_of(uid))] == [free[1]]
        now = await world.entry(other)
        assert now.placement == running.placement
