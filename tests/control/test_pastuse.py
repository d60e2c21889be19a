"""Queues with less past use are first, over days of a simulated clock, over half-lives, and after a kill."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from queuectl.demo import scenario as m
from queuectl.domain.ledger import State
from queuectl.domain.pastuse import PastUseAccount, Used
from tests.control.rig import Rig, gang, rig

DAY = 86400.0
USER = "example.com/user"
QUEUES = ("busy", "idle")


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def settings(**own: Any) -> dict[str, Any]:
    """Only GPUs count. The half-life is one day."""
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Configuration",
        "metadata": {"name": "default"},
        "admissionFairSharing": {
            "usageHalfLifeTime": "24h",
            "usageSamplingInterval": "5m",
            "resourceWeights": {"cpu": 0, "memory": 0, "pods": 0},
        },
        "queuectl": own,
    }


@asynccontextmanager
async def shared_pool(url: str, clock: Clock, **own: Any) -> AsyncIterator[Rig]:
    """One node of 8 GPUs behind two LocalQueues that share it by past use."""
    async with rig(url, 1, clock=clock) as world:
        pool = m.cluster_queue("pool", "gpu", {"nvidia.com/gpu": 8, "cpu": "1k", "pods": 1000})
        pool["spec"]["admissionScope"] = {"admissionMode": "UsageBasedAdmissionFairSharing"}
        queues = [m.local_queue("default", name, "pool") for name in QUEUES]
        for document in (pool, *queues, settings(**own)):
            await world.store.put_config(document)
        yield world


def submit(world: Rig, name: str, queue: str, **labels: str) -> str:
    document = dict(gang("Job", name, 1))
    document["metadata"]["labels"] |= {"queuectl.dev/queue-name": queue} | labels
    return world.cluster.submit(document)


def shown(world: Rig, queue: str) -> float | None:
    """The past use in the metric, at the last sample."""
    return world.metrics.registry.get_sample_value(
        "queuectl_local_queue_admission_fair_sharing_usage",
        {"name": queue, "namespace": "default", "cluster_queue": "pool"},
    )


async def sampled(world: Rig, queue: str, now: float) -> float:
    """The past use of a LocalQueue in the database, once it is sampled at ``now``."""
    account = PastUseAccount.of_local_queue("default", queue)

    async def known() -> bool:
        return any(u.account == account and u.at == now for u in await world.store.past_use())

    await world.until(known, f"a sample of {queue}")
    (used,) = (u for u in await world.store.past_use() if u.account == account)
    return used.amounts["nvidia.com/gpu"]


async def used_for_a_day(world: Rig, clock: Clock, queue: str) -> str:
    """A gang of a queue holds all 8 GPUs for a day."""
    uid = submit(world, f"yesterday-{queue}", queue)
    await world.until_state(uid, State.RUNNING)
    clock.now += DAY
    assert await sampled(world, queue, clock.now) == pytest.approx(4.0, rel=0.01)
    return uid


async def test_a_queue_without_past_use_is_first(database_url: str) -> None:
    clock = Clock()
    async with shared_pool(database_url, clock) as world:
        yesterday = await used_for_a_day(world, clock, "busy")
        earlier = submit(world, "earlier", "busy")
        await world.until_state(earlier, State.PENDING)
        clock.now += 1.0
        later = submit(world, "later", "idle")
        await world.until_state(later, State.PENDING)
        world.cluster.finish(yesterday)
        await world.until_state(later, State.RUNNING)
        await world.until_state(earlier, State.PENDING)


async def test_after_a_half_life_past_use_is_halved(database_url: str) -> None:
    clock = Clock()
    async with shared_pool(database_url, clock) as world:
        world.cluster.finish(uid := await used_for_a_day(world, clock, "busy"))
        await world.until_state(uid, State.FINISHED)
        await world.until(lambda: shown(world, "busy"), "the metric")
        before = shown(world, "busy")
        clock.now += DAY
        await world.until(lambda: shown(world, "busy") != before, "the next sample")
        assert shown(world, "busy") == pytest.approx((before or 0.0) / 2)


async def test_without_the_setting_no_past_use_is_shown(database_url: str) -> None:
    clock = Clock()
    async with shared_pool(database_url, clock) as world:
        await used_for_a_day(world, clock, "busy")
        await world.until(lambda: shown(world, "busy"), "the metric")
        off = settings()
        del off["admissionFairSharing"]
        await world.store.put_config(off)
        await world.until(lambda: shown(world, "busy") is None, "the end of the metric")


@pytest.mark.parametrize("away", [0.0, DAY])
async def test_past_use_survives_a_kill_and_decays_during_the_outage(
    database_url: str, away: float
) -> None:
    clock = Clock()
    async with shared_pool(database_url, clock) as world:
        world.cluster.finish(uid := await used_for_a_day(world, clock, "busy"))
        await world.until_state(uid, State.FINISHED)
        clock.now += 300.0
        await sampled_idle(world, clock)
        before = shown(world, "busy")
        await world.stop()
        clock.now += away
        world.metrics.used_lately({}, {})
        world.running, world._task = True, None
        await world.until(lambda: shown(world, "busy"), "the new controller has sampled")
        assert shown(world, "busy") == pytest.approx((before or 0.0) * 0.5 ** (away / DAY))


async def sampled_idle(world: Rig, clock: Clock) -> None:
    """Wait for a sample at the current time, through a gang that holds nothing."""
    seen = shown(world, "busy")
    clock.now += 300.0
    await world.until(lambda: shown(world, "busy") != seen, "a sample")


async def test_users_of_one_local_queue_alternate_by_past_use(database_url: str) -> None:
    clock = Clock()
    async with shared_pool(
        database_url, clock, userLabel=USER, trustedSubmitters=["alice"]
    ) as world:
        first = submit(world, "first", "busy", **{USER: "ann"})
        await world.until_state(first, State.RUNNING)
        clock.now += DAY
        await sampled(world, "busy", clock.now)
        again = submit(world, "again", "busy", **{USER: "ann"})
        await world.until_state(again, State.PENDING)
        clock.now += 1.0
        other = submit(world, "other", "busy", **{USER: "ben"})
        await world.until_state(other, State.PENDING)
        world.cluster.finish(first)
        await world.until_state(other, State.RUNNING)
        await world.until_state(again, State.PENDING)


async def test_a_local_queue_from_kueue_starts_with_its_usage_there(database_url: str) -> None:
    clock = Clock()
    async with shared_pool(database_url, clock) as world:
        await world.until(
            lambda: world.loop and world.loop.leader_state.config.revision, "the controller leads"
        )
        late = PastUseAccount.of_local_queue("default", "late")
        used = [Used(late, clock.now, {"nvidia.com/gpu": 6.0})]
        await world.store.put_config(m.local_queue("default", "late", "pool"), None, used)
        await world.until(lambda: shown(world, "late") == 6.0, "it is known")


async def test_without_the_rule_nothing_is_stored(database_url: str) -> None:
    clock = Clock()
    async with rig(database_url, 1, clock=clock) as world:
        uid = world.cluster.submit(gang("Job", "train", 1))
        await world.until_state(uid, State.RUNNING)
        clock.now += DAY
        await asyncio.sleep(1.2)  # two samples
        assert await world.store.past_use() == ()
