"""The view of the cluster in a process: the leader's state, and the same from watch and database in a standby."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from queuectl.cluster.resources import watched
from queuectl.control.questions import viewer as viewing
from queuectl.control.questions.throttle import PlannerThrottle
from queuectl.control.questions.viewer import Viewer
from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.commands import Action
from queuectl.domain.errors import StoreUnavailable
from queuectl.domain.ledger import State
from queuectl.domain.queries import UnmanagedPod
from queuectl.domain.records import Delta
from queuectl.domain.utilization import GangUse, UseState
from queuectl.objects.configuration.queue_config import build
from queuectl.objects.kinds import KINDS
from queuectl.planner.cache import PlannerCache
from queuectl.state.mirror import Mirror
from tests.control.rig import Rig, configuration, gang, rig


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep nothing between requests."""
    monkeypatch.setattr(viewing, "MAX_AGE_SECONDS", 0.0)
    monkeypatch.setattr(viewing, "PLAN_SECONDS", 0.0)


@asynccontextmanager
async def watching_too(world: Rig) -> AsyncIterator[Mirror]:
    """The watch of another process on the same cluster."""
    mirror = Mirror.of(KINDS)
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
        yield mirror
    finally:
        watching.cancel()
        await asyncio.wait({watching})


@asynccontextmanager
async def standby(world: Rig) -> AsyncIterator[Viewer]:
    """Another process on the same cluster and database, which does not lead."""
    async with watching_too(world) as mirror:
        yield made(world, mirror, leads=False)


def made(
    world: Rig,
    mirror: Mirror,
    *,
    leads: bool,
    watches: bool = True,
    leader_uses: Mapping[str, GangUse] | None = None,
) -> Viewer:
    loop = world.loop
    return Viewer(
        world.store,
        mirror,
        lambda: world.new_state(mirror),
        world.clock,
        leading=lambda: loop.leader_state if leads and loop is not None else None,
        watching=lambda: watches,
        leader_uses=lambda: leader_uses or {},
        throttle=PlannerThrottle(1.0),
        cache=PlannerCache(),
    )


def leader(world: Rig) -> Viewer:
    assert world.loop is not None
    return made(world, world.loop._mirror, leads=True)


def without_time(cluster_map: ClusterMap | None) -> ClusterMap:
    assert cluster_map is not None
    return replace(cluster_map, at=0.0)


async def test_a_standby_shows_the_same_as_the_leader(database_url: str) -> None:
    async with rig(database_url, 8) as world:
        big = world.cluster.submit(gang("Job", "big", 3))
        small = world.cluster.submit(gang("PyTorchJob", "small", 2))
        await world.until_state(big, State.RUNNING)
        await world.until_state(small, State.RUNNING)
        async with standby(world) as other:
            shown = without_time(await other.cluster_map())
            assert shown == without_time(await leader(world).cluster_map())
    assert [(g.workload.name, float(g.gpus), g.cluster_queue) for g in shown.gangs] == [
        ("big", 24, "pool"),
        ("small", 16, "pool"),
    ]
    assert sum(occupancy.free_gpus for occupancy in shown.occupancies) == 24


async def test_a_standby_shows_the_gpu_use_that_the_leader_found(database_url: str) -> None:
    """Findings of an earlier attempt, or of a gang that has ended, are left out."""
    async with rig(database_url, 4) as world, watching_too(world) as mirror:
        uids = [world.cluster.submit(gang("Job", name, 1)) for name in ("works", "again")]
        for uid in uids:
            await world.until_state(uid, State.RUNNING)
        works, again = (
            GangUse(uid, attempt, UseState.ACTIVE, 0.0, 1.0, 0.75, 1.0, "busy", 0.75)
            for uid, attempt in zip(uids, (1, 0), strict=True)
        )
        leader_uses = {works.uid: works, again.uid: again, "gone": replace(works, uid="gone")}
        seen = await made(world, mirror, leads=False, leader_uses=leader_uses).latest()
        assert seen is not None
        assert seen.uses == {works.uid: works}


async def test_a_gang_that_the_last_plan_started_counts_in_the_check_for_gangs_over_quota(
    database_url: str,
) -> None:
    async with rig(database_url, 4) as world, standby(world) as other:
        uid = world.cluster.submit(gang("Job", "last", 2))
        await world.until_state(uid, State.RUNNING)
        revision, _ = await world.store.configuration()
        less = build(configuration(8), revision)
        for viewer in (leader(world), other):
            (excess,) = await viewer.over_quota(less) or ()
            assert (excess.used, excess.allowed, excess.gangs) == (16, 8, ("default/last",))


async def test_a_standby_follows_the_commits_of_the_leader(database_url: str) -> None:
    async with rig(database_url, 4) as world, standby(world) as other:
        assert without_time(await other.cluster_map()).gangs == ()
        uid = world.cluster.submit(gang("Job", "late", 2))
        await world.until_state(uid, State.RUNNING)
        assert [g.workload.uid for g in without_time(await other.cluster_map()).gangs] == [uid]


async def test_a_standby_that_follows_shows_the_same_as_a_new_one(
    database_url: str,
) -> None:
    """Compared after starts, a hold, a leadership of the standby itself, an end and a change of quota."""
    async with (
        rig(database_url, 4) as world,
        watching_too(world) as mirror,
        watching_too(world) as another,
    ):
        leads = False
        follower = Viewer(
            world.store,
            mirror,
            lambda: world.new_state(mirror),
            world.clock,
            leading=lambda: world.loop.leader_state if leads and world.loop is not None else None,
            watching=lambda: True,
            leader_uses=dict,
            throttle=PlannerThrottle(1.0),
            cache=PlannerCache(),
        )
        views = []

        async def read() -> None:
            seen = await follower.latest()
            begun = await made(world, another, leads=False).latest()
            assert seen is not None
            assert begun is not None
            ours, theirs = seen.snapshot.config, begun.snapshot.config
            assert (ours.revision, ours.cluster_queues) == (theirs.revision, theirs.cluster_queues)
            fleet = seen.snapshot.fleet
            assert fleet.nodes == begun.snapshot.fleet.nodes
            same = replace(begun.snapshot, now=seen.snapshot.now, config=ours, fleet=fleet)
            assert seen.snapshot == same
            views.append(seen.snapshot)

        await read()
        first = world.cluster.submit(gang("Job", "first", 2))
        second = world.cluster.submit(gang("PyTorchJob", "second", 2))
        third = world.cluster.submit(gang("Job", "third", 4))
        await world.until_state(second, State.RUNNING)
        await world.until_state(third, State.PENDING)
        await read()
        await world.ask(first, Action.HOLD)
        await world.until_state(first, State.HELD)
        await read()
        leads = True
        assert await follower.latest() is not None
        leads = False
        await read()
        world.cluster.finish(second)
        await world.until_state(third, State.RUNNING)
        await read()
        for document in configuration(8):
            await world.store.put_config(document)
        await read()
    held = [{a.workload.name for a in view.admitted} for view in views]
    assert held == [set(), {"first", "second"}, *[{"second"}] * 2, *[{"third"}] * 2]
    quotas = [next(iter(p.config.cluster_queues.values())).groups for p in views]
    assert quotas[4] != quotas[5]


async def test_a_standby_reuses_unchanged_views(database_url: str) -> None:
    async with rig(database_url, 2) as world, standby(world) as other:
        runs = world.cluster.submit(gang("Job", "runs", 2))
        await world.until_state(runs, State.RUNNING)
        waits = world.cluster.submit(gang("Job", "waits", 2))
        await world.until_state(waits, State.PENDING)
        first, second = await other.latest(), await other.latest()
        assert first is not None
        assert second is not None
        assert first is not second
        assert first.snapshot.admitted[0] is second.snapshot.admitted[0]
        assert first.snapshot.pending[0] is second.snapshot.pending[0]
        assert first.snapshot.config is second.snapshot.config


async def test_a_standby_shows_the_reason_of_a_pending_gang(database_url: str) -> None:
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


async def stood_by(
    monkeypatch: pytest.MonkeyPatch,
    *,
    recent: Callable[[float], object],
    planned: Callable[[float], bool],
    until: float,
) -> dict[float, bool]:
    """Whether a standby shows that it is ready, by time, until it is canceled; ``recent`` and ``planned`` are called with the time."""
    now, shown = 0.0, dict[float, bool]()
    follower: Any = Viewer.__new__(Viewer)
    follower._standby = SimpleNamespace(ledger=())

    async def recent_now() -> object:
        return recent(now)

    async def planned_now() -> bool:
        return planned(now)

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now > until:
            raise asyncio.CancelledError

    follower.recent, follower._planned = recent_now, planned_now
    monkeypatch.setattr(viewing, "_now", lambda: now)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await follower.stand_by(lambda ready: shown.update({now: ready}))
    return shown


async def test_a_standby_whose_plans_are_unusable_plans_no_more_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans: list[float] = []

    def planned(now: float) -> bool:
        plans.append(now)
        return False

    shown = await stood_by(
        monkeypatch,
        recent=lambda now: object() if now > 25 else None,
        planned=planned,
        until=200.0,
    )
    assert plans == [31.0, 91.0, 151.0]
    assert set(shown.values()) == {False}


async def test_a_standby_is_ready_once_it_has_planned_while_the_database_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def recent(now: float) -> object:
        if 50 < now < 70:
            raise StoreUnavailable("down")
        return object()

    monkeypatch.setattr(viewing, "REPLAN_SECONDS", 20.0)
    shown = await stood_by(monkeypatch, recent=recent, planned=lambda now: now > 10, until=100.0)
    ready = [at for at, is_ready in shown.items() if is_ready]
    assert ready == [21.0, 31.0, 41.0, 71.0, 81.0, 91.0]
    assert shown[101.0] is False


async def test_nothing_is_known_before_the_watch_has_listed_everything(database_url: str) -> None:
    async with rig(database_url, 1) as world:
        early = made(world, Mirror({}), leads=False, watches=False)
        assert await early.cluster_map() is None
        assert await early.diagnose("anybody") is None


async def test_requests_within_a_second_get_the_same_view(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewing, "MAX_AGE_SECONDS", 60.0)
    async with rig(database_url, 2) as world, standby(world) as other:
        first, second = await asyncio.gather(other.cluster_map(), other.cluster_map())
        assert first is second


@pytest.mark.parametrize("leads", [True, False])
async def test_a_what_if_plan_uses_the_newest_state_while_pages_show_the_last_view(
    database_url: str, monkeypatch: pytest.MonkeyPatch, leads: bool
) -> None:
    monkeypatch.setattr(viewing, "MAX_AGE_SECONDS", 60.0)
    async with rig(database_url, 2) as world, standby(world) as other:
        early, late = (world.cluster.submit(gang("Job", name, 1)) for name in ("early", "late"))
        await world.until_state(early, State.RUNNING)
        await world.until_state(late, State.RUNNING)
        viewer = leader(world) if leads else other
        before = await viewer.recent()
        world.cluster.finish(late)
        await world.until_state(late, State.FINISHED)
        assert await viewer.recent() is before
        latest = await viewer.latest()
        assert latest is not None
        assert [a.workload.uid for a in latest.snapshot.admitted] == [early]
        assert await viewer.recent() is latest


async def test_concurrent_requests_for_the_latest_view_get_the_same(database_url: str) -> None:
    async with rig(database_url, 2) as world, standby(world) as other:
        first, *more = await asyncio.gather(*(other.latest() for _ in range(4)))
        assert len({id(seen) for seen in more}) == 1
        assert first is not None


async def test_a_standby_and_the_leader_know_unmanaged_pods(database_url: str) -> None:
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
            (occupancy,) = without_time(await other.cluster_map()).occupancies
            await world.until(
                lambda: (
                    world.loop is not None
                    and world.loop.loaded
                    and world.loop.leader_state.unmanaged()
                ),
                "the leader has counted it",
            )
            listed = [await other.unmanaged(), await leader(world).unmanaged()]
        early = made(world, Mirror({}), leads=False, watches=False)
        assert await early.unmanaged() is None
    held = UnmanagedPod("default", "notebook", "n0", Fraction(3), None)
    assert listed == [(held,), (held,)]
    assert (float(occupancy.free_gpus), occupancy.other_pods["nvidia.com/gpu"]) == (5, 3)
