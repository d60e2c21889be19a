"""A changed system clock makes no deadline early or late, in the leader and in the next leader."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from queuectl.control.leader.loop import TICK_SECONDS
from queuectl.control.progress import SteadyClock
from queuectl.db.engine import DatabaseSettings
from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from tests.control.process import running, until
from tests.control.rig import QUICK, configuration, gang, nodes
from tests.control.test_lifecycle import rules
from tests.doubles.cluster import FakeCluster
from tests.support.stores import PostgresStore

HOUR = 3600.0
REAL_TIME = time.time


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_steady_clock_ignores_jumps_of_the_system_clock(
    jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    elapsed = 0.0
    clock = SteadyClock(lambda: 100.0 + elapsed)
    clock.set(5.0)
    monkeypatch.setattr(time, "time", lambda: REAL_TIME() + jump)
    elapsed = 2.5
    assert clock() == 7.5


def test_a_steady_clock_counts_the_time_in_which_the_machine_was_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without it, a leader that no other process replaces is late from then on."""
    clock, suspended, read = SteadyClock(), 0.0, time.clock_gettime
    monkeypatch.setattr(
        time,
        "clock_gettime",
        lambda which: read(which) + (suspended if which == time.CLOCK_BOOTTIME else 0.0),
    )
    clock.set(5.0)
    suspended = HOUR
    assert clock() == pytest.approx(5.0 + HOUR, abs=60)


@dataclass
class World:
    """One cluster and one database, with one controller after another."""

    cluster: FakeCluster
    store: PostgresStore
    uids: dict[str, str] = field(default_factory=dict)

    def submit(self, name: str, priority: str) -> None:
        self.uids[name] = self.cluster.submit(gang("Job", name, 1, priority))

    def led_by(self, holder: str) -> bool:
        leader = self.cluster.leader
        return leader is not None and leader.holder == holder

    async def states(self) -> dict[str, State]:
        entries = {e.uid: e.state for e in (await self.store.load()).entries}
        return {name: entries[uid] for name, uid in self.uids.items() if uid in entries}

    async def reach(self, wanted: Mapping[str, State]) -> None:
        async def reached() -> bool:
            return wanted.items() <= (await self.states()).items()

        await until(reached, f"{wanted}")

    async def time_outs(self, **after: float) -> None:
        """Set the seconds until a start fails, and until it is tried again."""
        waits = {"enable": True, "timeout": f"{after['start']:.0f}s"}
        strategy = {"backoffBaseSeconds": int(after["retry"])}
        document = rules(waitForPodsReady={**waits, "requeuingStrategy": strategy})
        await self.store.put_config(document)


@asynccontextmanager
async def world(url: str) -> AsyncIterator[World]:
    cluster = FakeCluster(nodes(2), clock=REAL_TIME)
    store = await PostgresStore.connect(DatabaseSettings(url))

    async def go_on() -> None:
        while True:
            cluster.step()
            await asyncio.sleep(0.01)

    going = asyncio.create_task(go_on())
    try:
        for document in configuration(16):
            await store.put_config(document)
        yield World(cluster, store)
    finally:
        going.cancel()
        await store.close()


async def waits_for_everything(found: World) -> dict[str, State]:
    """Submit a gang for each state that ends by time."""
    holds = found.cluster.controllers
    holds.hold_starts = True
    await found.time_outs(start=1.0, retry=1000.0)
    found.submit("failed", "low")
    await found.reach({"failed": State.BACKOFF})
    await found.time_outs(start=1000.0, retry=1000.0)
    holds.hold_starts = False
    found.submit("runs", "low")
    await found.reach({"runs": State.RUNNING})
    holds.hold_starts = holds.hold_ends = True
    found.submit("starts", "high")
    await found.reach({"starts": State.STARTING})
    found.submit("preempts", "high")
    wanted = {
        "failed": State.BACKOFF,
        "runs": State.EVICTING,
        "starts": State.STARTING,
        "preempts": State.RESERVED,
    }
    await found.reach(wanted)
    return wanted


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_a_jump_of_the_system_clock_ends_no_wait(
    database_url: str, jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(database_url) as found:
        async with running(database_url, found.cluster, QUICK.model_copy(update={"holder": "a"})):
            wanted = await waits_for_everything(found)
            monkeypatch.setattr(time, "time", lambda: REAL_TIME() + jump)
            await asyncio.sleep(2.5 * TICK_SECONDS)
            assert await found.states() == wanted, "in the leader"
        async with running(database_url, found.cluster, QUICK.model_copy(update={"holder": "b"})):
            await until(lambda: found.led_by("b"), "another leads")
            await asyncio.sleep(2.5 * TICK_SECONDS)
            assert await found.states() == wanted, "in the next leader"
            await found.time_outs(start=1.0, retry=1000.0)
            await found.reach({"starts": State.EVICTING})
            evicted = await found.store.get_workload(found.uids["starts"])
            assert evicted is not None
            assert evicted.reason.code is Code.PODS_READY_TIMEOUT, "timeouts still take effect"
