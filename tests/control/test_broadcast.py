"""Standbys show the leader's latest findings that are not in the ledger, while these are fresh."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from queuectl.control.leader import periodic
from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.leader.periodic import Broadcast, share
from queuectl.domain.errors import Fenced
from queuectl.domain.estimates import NO_ESTIMATES, ExpectedStart, ExpectedStarts
from queuectl.domain.processes import LeaderFindings
from queuectl.domain.snapshot import SolverLimits
from queuectl.domain.utilization import GangUse, UseState
from queuectl.state.mirror import Mirror
from tests.doubles.store import MemoryStore

IDLE = GangUse("u1", 1, UseState.IDLE, 0.0, 5.0, 0.0, 1.0, "idle for 5 s", 0.0)
FRESH = 60.0
LATER = ExpectedStarts(
    101.0,
    {"w1": ExpectedStart(160.0, 190.0, 101.0), "w2": ExpectedStart(150.0, None, 101.0)},
    gangs=2,
    left_out=1,
)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic, "EVERY_SECONDS", 0.0)


class World:
    """The state and store of a leader, a standby, and the clock of both."""

    def __init__(self) -> None:
        self.now = 100.0
        self.store = MemoryStore()
        self.mirror, self.others = Mirror({}), Mirror({})
        self.leader_state = LeaderState(self.mirror, SolverLimits(), 10.0, self.clock, 10.0)
        self.other = Broadcast(MemoryStore(self.store.database), self.clock, FRESH)

    def clock(self) -> float:
        return self.now

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[asyncio.Task[None]]:
        epoch = await self.store.take_over("leader", 0)
        sharing = asyncio.create_task(
            share(self.leader_state, self.mirror, self.store, self.clock, epoch)
        )
        following = asyncio.create_task(self.other.follow(lambda: True, self.others))
        yield sharing
        for task in (sharing, following):
            task.cancel()
        await asyncio.wait({sharing, following})

    async def receives(self, uses: dict[str, GangUse], starts: ExpectedStarts) -> None:
        for _ in range(500):
            if (self.other.now.uses, self.other.now.starts) == (uses, starts):
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"the standby has {self.other.now}")


async def test_a_standby_receives_each_new_evaluation_and_estimate() -> None:
    world = World()
    async with world.leading():
        await world.receives({}, NO_ESTIMATES)
        world.leader_state.gang_uses = {"u1": IDLE}
        await world.receives({"u1": IDLE}, NO_ESTIMATES)
        world.now += 1
        world.leader_state.estimates.now = LATER
        await world.receives({"u1": IDLE}, LATER)
        world.now += 1
        world.leader_state.gang_uses = {}
        await world.receives({}, LATER)


async def test_a_standby_does_not_show_old_findings() -> None:
    world = World()
    world.leader_state.gang_uses = {"u1": IDLE}
    async with world.leading():
        await world.receives({"u1": IDLE}, NO_ESTIMATES)
    world.now += FRESH
    assert world.other.now.uses == {"u1": IDLE}
    world.now += 0.001
    assert world.other.now == LeaderFindings()


async def test_during_an_outage_of_the_database_findings_stay_and_the_newest_follow_afterwards() -> (
    None
):
    world = World()
    world.leader_state.gang_uses = {"u1": IDLE}
    async with world.leading() as sharing:
        await world.receives({"u1": IDLE}, NO_ESTIMATES)
        world.store.database.down = True
        world.now += 1
        world.leader_state.gang_uses = {}
        for _ in range(20):
            await asyncio.sleep(0)
        assert not sharing.done()
        assert world.other.now.uses == {"u1": IDLE}
        world.store.database.down = False
        await world.receives({}, NO_ESTIMATES)


async def test_a_deposed_leader_publishes_no_findings() -> None:
    world = World()
    async with world.leading() as sharing:
        await world.receives({}, NO_ESTIMATES)
        await world.store.take_over("another", 0)
        world.leader_state.gang_uses = {"u1": IDLE}
        with pytest.raises(Fenced):
            await sharing
        assert world.other.now.uses == {}


async def test_a_standby_receives_the_nodes_that_are_out_of_placement() -> None:
    world = World()
    async with world.leading():
        for evidence in ({"n1": "GPU 3: XID 79"}, {}):
            world.now += 1.0
            world.mirror.mark_unhealthy(evidence)
            for _ in range(500):
                if world.others.nodes.closed == evidence:
                    break
                await asyncio.sleep(0.01)
            assert world.others.nodes.closed == evidence


async def test_a_leader_does_not_read_findings() -> None:
    world = World()
    await world.store.keep_findings(LeaderFindings(100.0, {"u1": IDLE}, NO_ESTIMATES), epoch=0)
    following = asyncio.create_task(world.other.follow(lambda: False, world.others))
    for _ in range(20):
        await asyncio.sleep(0)
    assert world.other.now == LeaderFindings()
    following.cancel()
    await asyncio.wait({following})
