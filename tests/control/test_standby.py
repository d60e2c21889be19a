"""A standby becomes the leader: its copy of the ledger saves work, and decides nothing."""

from __future__ import annotations

import asyncio
import gc
from types import FrameType, FunctionType, ModuleType
from typing import Any

import asyncpg
import pytest

from queuectl.control.questions.standby import Standby
from queuectl.domain.commands import Action
from queuectl.domain.errors import StoreUnavailable
from queuectl.domain.ledger import Entry, Loaded, State
from tests.control.rig import Rig, configuration, gang, rig
from tests.control.test_viewer import watching_too
from tests.support.stores import PostgresStore


class DelayedStore:
    """The real store. Its reads of changes fail or wait."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.down = False
        self.open = asyncio.Event()
        self.open.set()
        self.waits = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def follow(self, before: Loaded) -> Loaded:
        if self.down:
            raise StoreUnavailable("the connection broke")
        loaded = await self._store.follow(before)
        self.waits.set()
        await self.open.wait()
        return loaded


async def changes(world: Rig, url: str) -> None:
    """Starts, a hold, an end, another quota, and what no version of a row shows: a restored database can have it."""
    runs = world.cluster.submit(gang("Job", "runs", 1))
    ends = world.cluster.submit(gang("PyTorchJob", "ends", 1))
    await world.until_state(runs, State.RUNNING)
    await world.until_state(ends, State.RUNNING)
    await world.ask(world.cluster.submit(gang("Job", "held", 1)), Action.HOLD)
    world.cluster.finish(ends)
    await world.until_state(ends, State.FINISHED)
    await world.store.put_config(configuration(8)[2])
    connection = await asyncpg.connect(url)
    await connection.execute("UPDATE workloads SET priority = 77 WHERE name = 'early'")
    await connection.close()


@pytest.mark.parametrize("outage", [False, True])
async def test_a_leader_that_was_a_standby_begins_as_a_new_process_does(
    database_url: str, *, outage: bool
) -> None:
    """The state of the rig compares itself with that of a new process when it is loaded."""
    async with rig(database_url, 4) as world, watching_too(world) as mirror:
        early = world.cluster.submit(gang("Job", "early", 1))
        await world.until_state(early, State.RUNNING)
        store: Any = DelayedStore(world.leader_store)
        state = world.new_state(mirror)
        standby = Standby(store, state, world.clock)
        assert await standby.snapshot() is not None
        store.down = outage
        await changes(world, database_url)
        await world.stop()
        if outage:
            with pytest.raises(StoreUnavailable):
                await standby.snapshot()
            assert not mirror.moved_pods, "marks do not accumulate while the database is away"
            assert not mirror.touched
        assert standby.hand_over() is state
        state.load(await world.store.load())
        assert world.warm_starts == 1
        loaded = state.ledger.get(early)
        assert loaded is not None
        assert loaded.priority == 77
        backlog = state.observer.backlog
        assert all(uid in backlog for uid in {early, *mirror.jobs}), "everything is observed again"
        state.load(await world.store.load())
        assert world.warm_starts == 1, "a later load computes everything"


def entries_kept(state: object) -> set[str]:
    """The uids of all entries that a state keeps, however deep."""
    seen, uids, found = {id(state)}, set[str](), [state]
    while found:
        batch, found = found[:1000], found[1000:]
        for each in gc.get_referents(*batch):
            if id(each) in seen or isinstance(each, (ModuleType, type, FrameType, Rig)):
                continue
            seen.add(id(each))
            # Not the names of the module of a function, which lead to everything.
            found.append(each.__closure__ if isinstance(each, FunctionType) else each)
            if isinstance(each, Entry):
                uids.add(each.uid)
    return uids


async def test_a_standby_keeps_nothing_of_gangs_that_have_finished(database_url: str) -> None:
    """It lives for weeks, and 100,000 gangs end in a day."""
    async with rig(database_url, 4) as world, watching_too(world) as mirror:
        state = world.new_state(mirror)
        standby = Standby(world.leader_store, state, world.clock)
        runs = world.cluster.submit(gang("Job", "runs", 1))
        ends = world.cluster.submit(gang("PyTorchJob", "ends", 1))
        for uid in (runs, ends):
            await world.until_state(uid, State.RUNNING)
        await standby.snapshot()
        assert {runs, ends} <= entries_kept(state)
        world.cluster.finish(ends)
        await world.until_state(ends, State.FINISHED)
        await standby.snapshot()
        kept = entries_kept(state)
        assert runs in kept
        assert ends not in kept


async def test_a_read_that_ends_after_the_hand_over_changes_nothing(database_url: str) -> None:
    async with rig(database_url, 2) as world, watching_too(world) as mirror:
        store: Any = DelayedStore(world.leader_store)
        state = world.new_state(mirror)
        standby = Standby(store, state, world.clock)
        assert await standby.snapshot() is not None
        uid = world.cluster.submit(gang("Job", "late", 1))
        await world.until_state(uid, State.RUNNING)
        store.open.clear()
        question = asyncio.create_task(standby.snapshot())
        await store.waits.wait()
        standby.hand_over()
        store.open.set()
        assert await question is None
        assert state.ledger.get(uid) is None
        assert await standby.snapshot() is None
