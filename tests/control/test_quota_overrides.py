"""Quota overrides in the control loop, on a real Postgres: they begin and end by the clock, and evict no gang."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.questions.diagnosis import excesses
from queuectl.control.questions.standby import Standby
from queuectl.domain.ledger import State
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import QueueConfig, QuotaOverride
from queuectl.domain.snapshot import SolverLimits
from queuectl.domain.words import format_time
from queuectl.state.mirror import Mirror
from tests.api.support import running
from tests.api.test_plans import runs, seen, tried
from tests.control.rig import Rig, configuration, gang, live, rig
from tests.control.test_over_quota import CONFIG
from tests.control.test_viewer import standby
from tests.doubles.store import MemoryStore
from tests.planner.build import NOW


def override(begins: float, ends: float, **amount: int) -> dict[str, Any]:
    spec = {"clusterQueue": "pool", "flavor": "gpu", "resource": "nvidia.com/gpu", **amount}
    spec |= {"from": format_time(begins), "until": format_time(ends)}
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": "QuotaOverride",
        "metadata": {"name": "night"},
        "spec": spec,
    }


def quota(config: QueueConfig) -> int:
    (group,) = config.cluster_queues["pool"].groups
    return group.flavors[0].nominal["nvidia.com/gpu"]


async def quota_is(world: Rig, gpus: int) -> None:
    def so() -> bool:
        assert world.loop is not None
        return quota(world.loop.leader_state.config) == gpus

    await world.until(so, f"quota {gpus}")


async def test_an_override_begins_and_ends_by_the_clock_and_running_gangs_run_on(
    database_url: str,
) -> None:
    async with rig(database_url, 4) as world:
        for document in configuration(16):
            await world.store.put_config(document)
        first = world.cluster.submit(gang("Job", "first", 2))
        await world.until_state(first, State.RUNNING)
        second = world.cluster.submit(gang("Job", "second", 2))
        await world.until_state(second, State.PENDING)
        begins = time.time() + 1.0
        await world.store.put_config(override(begins, begins + 3.0, add=16))
        await world.until_state(second, State.RUNNING)
        assert time.time() >= int(begins)
        await quota_is(world, 16)
        third = world.cluster.submit(gang("Job", "third", 1))
        await world.until_state(third, State.PENDING)
        for uid in (first, second):
            assert len(live(world.cluster.pods_of(uid))) == 2, "no gang is evicted for it"
        world.cluster.finish(first)
        await world.until_state(first, State.FINISHED)
        waits = await world.until_state(third, State.PENDING)
        assert waits.attempt == 0
        assert "of nominal quota 16 in use" in waits.reason.message, (
            "the reason has the current quota"
        )
        world.cluster.finish(second)
        await world.until_state(third, State.RUNNING)


async def test_an_override_that_began_without_a_leader_counts_for_the_next_leader(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        for document in configuration(0):
            await world.store.put_config(document)
        now = time.time()
        await world.store.put_config(override(now - 60, now + 3600, nominalQuota=16))
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        await quota_is(world, 16)


async def test_a_standby_shows_the_current_quota(database_url: str) -> None:
    async with rig(database_url, 2) as world, standby(world) as other:
        now = time.time()
        await world.store.put_config(override(now - 60, now + 3600, nominalQuota=8))
        shown = await other.recent()
        assert shown is not None
        assert quota(shown.snapshot.config) == 8


@pytest.mark.parametrize(("ends", "over"), [(100.0, False), (100.1, True)])
async def test_a_dry_run_counts_overrides_at_the_time_of_its_snapshot(
    ends: float, over: bool
) -> None:
    less = QuotaOverride("less", "team-a", "h100", GPU, begins=50.0, ends=ends, nominal=32)
    now = running(("old", 1.0), ("new", 2.0))
    found = await excesses(now, replace(CONFIG, overrides={"less": less}))
    assert [excess.allowed for excess in found] == [32] * over


@pytest.mark.parametrize(("begins", "over"), [(NOW - 60.0, True), (NOW + 60.0, False)])
async def test_a_what_if_plan_counts_present_overrides(begins: float, over: bool) -> None:
    less = override(begins, NOW + 3600.0, nominalQuota=8)
    body = await tried(seen(runs("a", "n0", "n1")), config=[less])
    assert [excess["allowed"] for excess in body["overQuota"]] == [8] * over


async def test_an_override_begins_and_ends_in_the_view_of_a_standby() -> None:
    store, at = MemoryStore(), [50.0]

    def clock() -> float:
        return at[-1]

    for document in (*configuration(0), override(100, 200, nominalQuota=16)):
        await store.put_config(document)
    state = LeaderState(Mirror({}), SolverLimits(), 10.0, clock, max_age_seconds=10.0)
    view, quotas = Standby(store, state, clock), []
    for now in (50.0, 150.0, 250.0):
        at.append(now)
        snapshot = await view.snapshot()
        assert snapshot is not None
        quotas.append(quota(snapshot.config))
    assert quotas == [0, 16, 0]


@pytest.mark.parametrize("ahead", [150.0, 250.0])
async def test_a_leader_whose_clock_was_ahead_as_a_standby_applies_no_override_early(
    ahead: float,
) -> None:
    store, at = MemoryStore(), [ahead]
    for document in (*configuration(0), override(100, 200, nominalQuota=16)):
        await store.put_config(document)
    state = LeaderState(Mirror({}), SolverLimits(), 10.0, lambda: at[-1], max_age_seconds=10.0)
    view = Standby(store, state, lambda: at[-1])
    assert await view.snapshot() is not None
    at.append(50.0)  # the time of the database
    view.hand_over().load(await store.load())
    assert quota(state.config) == 0
    assert state.configuration_turns(100.0)
    assert quota(state.config) == 16
