"""What a process shows of the cluster: the leader from its books, a standby from its watch and the database, and alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from queuectl.cluster.resources import watched
from queuectl.control import viewer as viewing
from queuectl.control.viewer import Viewer
from queuectl.domain.floor import Floor
from queuectl.domain.ledger import State
from queuectl.domain.records import Delta
from queuectl.objects.kinds import KINDS
from queuectl.state.mirror import Mirror
from tests.control.rig import Rig, gang, rig


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered from one question to the next."""
    monkeypatch.setattr(viewing, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(viewing, "PLAN_SECONDS", 0.0)


@asynccontextmanager
async def standby(world: Rig) -> AsyncIterator[Viewer]:
    """Another process on the same cluster and database, which does not lead."""
    mirror = Mirror({kind.plural: kind.kind for kind in KINDS.values()})
    listed: set[str] = set()
    complete = asyncio.Event()

    def sink(deltas: Sequence[Delta]) -> None:
        mirror.apply(deltas)

    def synced(resource: str) -> None:
        listed.add(resource)
        if len(listed) == len(watched()):
            complete.set()

    watching = asyncio.create_task(world.cluster.watch(sink, synced))
    try:
        await asyncio.wait_for(complete.wait(), 10.0)
        yield made(world, mirror, leads=False)
    finally:
        watching.cancel()
        await asyncio.wait({watching})


def made(world: Rig, mirror: Mirror, *, leads: bool, watches: bool = True) -> Viewer:
    limits = world.settings.solver.limits
    loop = world.loop
    return Viewer(
        world.store,
        mirror,
        limits,
        world.clock,
        leading=lambda: loop.books if leads and loop is not None else None,
        watching=lambda: watches,
    )


def leader(world: Rig) -> Viewer:
    assert world.loop is not None
    return made(world, world.loop._mirror, leads=True)


def told(floor: Floor | None) -> Floor:
    assert floor is not None
    return replace(floor, at=0.0)


async def test_a_standby_shows_what_the_leader_shows(database_url: str) -> None:
    async with rig(database_url, 8) as world:
        big = world.cluster.submit(gang("Job", "big", 3))
        small = world.cluster.submit(gang("PyTorchJob", "small", 2))
        await world.until_state(big, State.RUNNING)
        await world.until_state(small, State.RUNNING)
        async with standby(world) as other:
            shown = told(await other.floor())
            assert shown == told(await leader(world).floor())
    assert [(g.workload.name, g.gpus, g.cluster_queue) for g in shown.gangs] == [
        ("big", 24, "pool"),
        ("small", 16, "pool"),
    ]
    assert sum(spot.free_gpus for spot in shown.spots) == 24


async def test_a_standby_follows_what_the_leader_commits(database_url: str) -> None:
    async with rig(database_url, 4) as world, standby(world) as other:
        assert told(await other.floor()).gangs == ()
        uid = world.cluster.submit(gang("Job", "late", 2))
        await world.until_state(uid, State.RUNNING)
        assert [g.workload.uid for g in told(await other.floor()).gangs] == [uid]


async def test_a_standby_says_why_a_gang_waits(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        first = world.cluster.submit(gang("Job", "first", 2))
        await world.until_state(first, State.RUNNING)
        second = world.cluster.submit(gang("Job", "second", 2))
        await world.until_state(second, State.PENDING)
        assert world.loop is not None
        lead = world.loop

        async def planned() -> bool:
            return await lead.diagnose(second) is not None

        await world.until(planned, "a plan with the second gang")
        async with standby(world) as other:
            known, expected = await other.diagnose(second), await lead.diagnose(second)
    assert known is not None
    assert expected is not None
    assert known.conflict
    assert known.conflict == expected.conflict


async def test_nothing_is_known_before_the_watch_has_listed_everything(database_url: str) -> None:
    async with rig(database_url, 1) as world:
        early = made(world, Mirror({}), leads=False, watches=False)
        assert await early.floor() is None
        assert await early.diagnose("anybody") is None


async def test_who_asks_within_the_second_gets_the_same(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewing, "LOOK_SECONDS", 60.0)
    async with rig(database_url, 2) as world, standby(world) as other:
        first, second = await asyncio.gather(other.floor(), other.floor())
        assert first is second


@pytest.mark.parametrize("leads", [True, False])
async def test_who_plans_gets_what_he_was_just_told_though_pages_show_the_last_look(
    database_url: str, monkeypatch: pytest.MonkeyPatch, leads: bool
) -> None:
    monkeypatch.setattr(viewing, "LOOK_SECONDS", 60.0)
    async with rig(database_url, 2) as world, standby(world) as other:
        early, late = (world.cluster.submit(gang("Job", name, 1)) for name in ("early", "late"))
        await world.until_state(early, State.RUNNING)
        await world.until_state(late, State.RUNNING)
        viewer = leader(world) if leads else other
        before = await viewer.seen()
        world.cluster.finish(late)
        await world.until_state(late, State.FINISHED)
        assert await viewer.seen() is before
        latest = await viewer.latest()
        assert latest is not None
        assert [a.workload.uid for a in latest.snapshot.admitted] == [early]
        assert await viewer.seen() is latest


async def test_who_asks_for_the_latest_at_the_same_time_gets_the_same(database_url: str) -> None:
    async with rig(database_url, 2) as world, standby(world) as other:
        first, *more = await asyncio.gather(*(other.latest() for _ in range(4)))
        assert len({id(seen) for seen in more}) == 1
        assert first is not None


async def test_a_standby_counts_pods_of_no_gang(database_url: str) -> None:
    async with rig(database_url, 1) as world:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "notebook", "namespace": "default"},
            "spec": {
                "nodeName": "n0",
                "containers": [
                    {"name": "main", "resources": {"requests": {"nvidia.com/gpu": "3"}}}
                ],
            },
            "status": {"phase": "Running"},
        }
        world.cluster.server.create("pods", pod)
        async with standby(world) as other:
            (spot,) = told(await other.floor()).spots
    assert (spot.free_gpus, spot.others["nvidia.com/gpu"]) == (5, 3)
