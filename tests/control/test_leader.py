"""A leader stops before a standby can take its Lease, whatever happens to the renewals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from queuectl.control.leader.election import POLL_SECONDS, Leadership
from queuectl.control.progress import SteadyClock
from queuectl.domain.errors import (
    ClusterUnavailable,
    LeadershipLost,
    StoreUnavailable,
    WriteRefused,
)
from queuectl.domain.records import LeaderRecord
from tests.doubles.cluster import FakeCluster
from tests.doubles.store import MemoryDatabase, MemoryStore
from tests.support.virtualtime import run

DURATION, RENEW = 15.0, 3.0
TWICE = 2  # writes of the lease before its holder leads
Write = Callable[[], Awaitable[LeaderRecord]]
Answer = Callable[[int, Write], Awaitable[LeaderRecord]]


class SlowServer(FakeCluster):
    """``answer`` decides the outcome of each write of the lease, numbered from 1."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self._answer = answer
        self._number = 0
        self.landed = 0.0  # time of the last write that had an effect

    async def write_leader(self, record: LeaderRecord, over: LeaderRecord | None) -> LeaderRecord:
        self._number += 1

        async def write() -> LeaderRecord:
            written = await FakeCluster.write_leader(self, record, over)
            self.landed = now()
            return written

        return await self._answer(self._number, write)


def now() -> float:
    return asyncio.get_running_loop().time()


async def hangs() -> None:
    await asyncio.sleep(15.0)  # the timeout of a request
    raise ClusterUnavailable("no answer in 15 s")


async def never_answered(number: int, write: Write) -> LeaderRecord:
    if number > TWICE:
        await hangs()
    return await write()


async def answered_too_late(number: int, write: Write) -> LeaderRecord:
    """The write has its effect; its answer is lost."""
    written = await write()
    if number > TWICE:
        await hangs()
    return written


async def forbidden(number: int, write: Write) -> LeaderRecord:
    if number > TWICE:
        raise WriteRefused("403: not with these rights")
    return await write()


async def refused_at_once(number: int, write: Write) -> LeaderRecord:
    if number > TWICE:
        raise ClusterUnavailable("connection refused")
    return await write()


def leadership(
    cluster: FakeCluster, holder: str = "a", clock: SteadyClock | None = None, renew: float = RENEW
) -> Leadership:
    """``clock``: None = a clock with the time of the database."""
    store = MemoryStore(MemoryDatabase())
    clock = clock or SteadyClock(now)
    return Leadership(cluster, store, clock, holder=holder, duration=DURATION, renew=renew)


@pytest.mark.parametrize("answer", [never_answered, forbidden, refused_at_once, answered_too_late])
def test_a_leader_whose_renewals_fail_ends_before_its_lease(answer: Answer) -> None:
    async def story() -> None:
        server = SlowServer(answer)
        leader = leadership(server)
        await leader.acquire()
        with pytest.raises(LeadershipLost):
            async with asyncio.timeout(100.0):
                await leader.keep()
        assert now() <= server.landed + DURATION

    run(story())


class CutOff(MemoryStore):
    """A database that does not answer."""

    async def now(self) -> float:
        raise StoreUnavailable("no answer")

    async def take_over(self, holder: str, floor: int, accounted: int = 0) -> int:
        raise StoreUnavailable("no answer")


class RefusesWrites(MemoryStore):
    """A database that answers reads, as a standby of Postgres."""

    async def take_over(self, holder: str, floor: int, accounted: int = 0) -> int:
        raise StoreUnavailable("cannot execute UPDATE in a read-only transaction")


@pytest.mark.parametrize("kind", [CutOff, RefusesWrites])
def test_a_replica_without_the_database_leaves_the_lease_to_another_one(
    kind: type[MemoryStore],
) -> None:
    async def story() -> None:
        server, clock = FakeCluster(), SteadyClock(now)
        without = Leadership(
            server, kind(MemoryDatabase()), clock, holder="b", duration=DURATION, renew=RENEW
        )
        tries = asyncio.create_task(without.acquire())
        await asyncio.sleep(10 * RENEW)
        async with asyncio.timeout(RENEW):
            await leadership(server, "c").acquire()
        tries.cancel()

    run(story())


async def every_other_hangs(number: int, write: Write) -> LeaderRecord:
    if number > TWICE and number % 2:
        await hangs()
    return await write()


async def an_answer_is_lost(number: int, write: Write) -> LeaderRecord:
    """The next write conflicts with the changed lease, and is sent again."""
    written = await write()
    if number % 3 == 0:
        await hangs()
    return written


@pytest.mark.parametrize("answer", [every_other_hangs, an_answer_is_lost])
def test_a_renewal_without_an_answer_is_retried_in_time(answer: Answer) -> None:
    async def story() -> None:
        leader = leadership(SlowServer(answer))
        await leader.acquire()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000.0):
                await leader.keep()

    run(story())


def test_a_leader_ends_without_waiting_for_a_server_that_does_not_answer() -> None:
    async def silent_at_the_end(number: int, write: Write) -> LeaderRecord:
        if number > TWICE:
            await asyncio.sleep(1e6)
        return await write()

    async def story() -> None:
        leader = leadership(SlowServer(silent_at_the_end))
        await leader.acquire()
        asked = now()
        await leader.release()
        assert now() - asked < DURATION

    run(story())


def test_a_leader_that_ends_after_a_renewal_without_an_answer_releases_its_lease() -> None:
    async def story() -> None:
        server = SlowServer(an_answer_is_lost)
        leader = leadership(server)
        await leader.acquire()
        keeps = asyncio.create_task(leader.keep())
        await asyncio.sleep(RENEW + 1.0)  # the renewal has its effect, and no answer yet
        keeps.cancel()
        await leader.release()
        assert server.leader is not None
        assert server.leader.holder == ""

    run(story())


@pytest.mark.parametrize("deleted", [True, False])
def test_a_lease_that_is_deleted_or_held_by_another_process_ends_the_leadership(
    deleted: bool,
) -> None:
    async def story() -> None:
        server = FakeCluster()
        leader = leadership(server)
        await leader.acquire()
        assert server.leader is not None
        server.leader = None if deleted else replace(server.leader, holder="b", version="stolen")
        with pytest.raises(LeadershipLost, match="another process holds the Lease"):
            await leader.keep()
        assert now() <= RENEW

    run(story())


def test_the_lease_states_until_when_usage_is_accounted_for() -> None:
    """It reveals a database that was restored from a backup. It never decreases."""
    until = [1000.75, 1100.0, 0.0]

    async def story() -> None:
        server = FakeCluster()
        leader = leadership(server)
        await leader.acquire()
        keeps = asyncio.create_task(leader.keep(accounted=lambda: until.pop(0) if until else 0.0))
        await asyncio.sleep(4.5 * RENEW)
        keeps.cancel()
        await leader.release()
        assert server.leader is not None
        assert server.leader.accounted == 1100
        given: list[int] = []

        class Restored(MemoryStore):
            async def take_over(self, holder: str, floor: int, accounted: int = 0) -> int:
                given.append(accounted)
                return await super().take_over(holder, floor, accounted)

        store = Restored(MemoryDatabase())
        clock = SteadyClock(now)
        await Leadership(server, store, clock, holder="b", duration=DURATION, renew=RENEW).acquire()
        assert given == [1100]

    run(story())


async def renewed_in_time(_number: int, write: Write) -> LeaderRecord:
    return await write()


@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
def test_a_standby_with_another_clock_takes_the_lease_only_after_it_has_expired(
    ahead: float,
) -> None:
    async def story() -> None:
        server = SlowServer(renewed_in_time)
        leaders, standbys = SteadyClock(now), SteadyClock(now)
        leader = leadership(server, "a", leaders)
        standby = leadership(
            server, "b", standbys, renew=RENEW
        )  # it reads the lease at another time than the leader writes it, and waits for its end exactly
        await leader.acquire()
        await asyncio.sleep(RENEW / 2)
        standbys.set(leaders() + ahead)
        waits = asyncio.create_task(standby.acquire())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10.5 * DURATION):
                await leader.keep()
        assert server.leader is not None
        assert (server.leader.holder, waits.done()) == ("a", False), "while it is renewed"
        assert leaders() + ahead == standbys(), "the clocks differ during the whole test"

        renewed = server.landed
        async with asyncio.timeout(10 * DURATION):
            await waits
        assert server.leader.holder == "b"
        assert DURATION <= now() - renewed <= DURATION + POLL_SECONDS
        with pytest.raises(LeadershipLost):
            await leader.keep()

    run(story())
