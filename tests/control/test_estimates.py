"""The loop estimates the start of pending gangs, learns from gangs that ended, and counts the error."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from queuectl.control.leader.estimates import StartEstimator
from queuectl.control.leader.schedule import supervised
from queuectl.db.usage import UsageLedger
from queuectl.domain.containment import Containment
from queuectl.domain.errors import StoreUnavailable, TookTooLong
from queuectl.domain.ledger import Document, State
from queuectl.domain.queries import QueuePosition
from queuectl.domain.workload import Duration
from queuectl.durations.expectations import ENOUGH
from queuectl.estimates.expected_starts import expected_starts
from queuectl.planner.cache import PlannerCache
from tests.control.rig import Rig, gang, rig
from tests.control.test_pastuse import Clock


def limited(name: str, seconds: int, pods: int = 2) -> Document:
    document = gang("Job", name, pods)
    document["metadata"]["labels"]["queuectl.dev/max-exec-time-seconds"] = str(seconds)
    return document


async def estimates(world: Rig) -> dict[str, float]:
    """The medians of estimates that are made now: the leader makes them too rarely for a test."""
    assert world.loop is not None
    leader_state, metrics = world.loop.leader_state, world.metrics.estimates
    between_plans = threading.Event()
    between_plans.set()
    maker = StartEstimator(leader_state, world.store.usage, metrics, PlannerCache(), between_plans)
    await maker.estimate()
    return {uid: start.median for uid, start in leader_state.estimates.now.by_uid.items()}


async def dismiss(world: Rig) -> None:
    """Restart the leader: the next one has only the database and the watch."""
    await world.stop()
    world.running, world.loop, world._task = True, None, None


def counted(world: Rig, name: str) -> float:
    labels = {"cluster_queue": "pool"}
    found = world.metrics.registry.get_sample_value(f"queuectl_{name}", labels)
    return 0.0 if found is None else found


async def test_the_estimate_of_a_pending_gang_is_the_time_limit_of_the_running_gang(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        runs = world.cluster.submit(limited("runs", 600))
        entry = await world.until_state(runs, State.RUNNING)
        waits = world.cluster.submit(gang("Job", "waits", 2))

        async def queued() -> bool:
            return await world.store.positions([waits]) == {waits: QueuePosition(1, 1)}

        await world.until(queued, "it waits")
        assert entry.started_at is not None
        found = await estimates(world)
        assert found.keys() == {waits}
        assert abs(found[waits] - (entry.started_at + 600.0)) < 0.001
        assert await estimates(world) == found
        assert counted(world, "estimated_wait_seconds_count") == 1, "each gang once"
        world.cluster.finish(runs)
        started = (await world.until_state(waits, State.RUNNING)).started_at
        assert started is not None
        assert counted(world, "estimate_error_seconds_count") == 1
        off = counted(world, "estimate_error_seconds_sum")
        assert abs(off - (found[waits] - started)) < 0.001


@pytest.mark.sets_aside
async def test_estimates_go_on_after_one_that_fails_or_does_not_end(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [RuntimeError("fails"), TookTooLong("does not end")]
    reads, past_runs = 0, UsageLedger.past_runs

    def failing(*args: Any) -> Any:
        if errors:
            raise errors.pop(0)
        return expected_starts(*args)

    async def counting(*args: Any) -> Any:
        nonlocal reads
        reads += 1
        if reads == 1:
            raise StoreUnavailable("no connection")
        return await past_runs(*args)

    async with rig(database_url, 2) as world:
        runs = world.cluster.submit(limited("runs", 600))
        await world.until_state(runs, State.RUNNING)
        waits = world.cluster.submit(gang("Job", "waits", 2))
        await world.until_state(waits, State.PENDING)
        assert world.loop is not None
        monkeypatch.setattr("queuectl.control.leader.estimates.expected_starts", failing)
        monkeypatch.setattr(UsageLedger, "past_runs", counting)
        for name in (
            "queuectl.control.leader.estimates._SOONER_SECONDS",
            "queuectl.control.leader.estimates.EVERY_SECONDS",
            "queuectl.control.leader.schedule.FIRST_PAUSE",
        ):
            monkeypatch.setattr(name, 0.01)
        state, between_plans = world.loop.leader_state, threading.Event()
        between_plans.set()
        maker = StartEstimator(
            state, world.store.usage, world.metrics.estimates, PlannerCache(), between_plans
        )
        task = asyncio.create_task(
            supervised("estimate", lambda: maker.run(lambda: None), Containment(time.time))
        )
        await world.until(lambda: waits in state.estimates.now.by_uid, "it has an estimate")
        await world.until(lambda: reads > 1, "the run times are read again")
        await asyncio.sleep(0.1)
        task.cancel()
        assert not errors
        assert reads == 2


async def test_a_new_leader_uses_the_durations_of_gangs_that_ended_before(
    database_url: str,
) -> None:
    clock = Clock()
    async with rig(database_url, 2, clock=clock) as world:
        for number in range(ENOUGH):
            uid = world.cluster.submit(gang("Job", f"done-{number}", 2))
            await world.until_state(uid, State.RUNNING)
            clock.now += 100.0
            world.cluster.finish(uid)
            await world.until_state(uid, State.FINISHED)
        runs = world.cluster.submit(gang("Job", "runs", 2))
        entry = await world.until_state(runs, State.RUNNING)
        waits = world.cluster.submit(gang("Job", "waits", 2))
        await world.until_state(waits, State.PENDING)
        await dismiss(world)

        def estimated() -> bool:
            return world.loop is not None and waits in world.loop.leader_state.estimates.now.by_uid

        await world.until(estimated, "the new leader estimates")
        assert world.loop is not None
        assert entry.started_at is not None
        start = world.loop.leader_state.estimates.now.by_uid[waits]
        assert entry.started_at <= start.median <= entry.started_at + 100.0


async def test_a_new_leader_plans_with_the_run_times_that_running_gangs_were_expected_to_have(
    database_url: str,
) -> None:
    clock = Clock()
    async with rig(database_url, 2, clock=clock) as world:
        for number in range(ENOUGH):
            uid = world.cluster.submit(gang("Job", f"done-{number}", 1))
            await world.until_state(uid, State.RUNNING)
            clock.now += 100.0
            world.cluster.finish(uid)
            await world.until_state(uid, State.FINISHED)
        uids = [
            world.cluster.submit(one) for one in (limited("runs", 600, 1), gang("Job", "likely", 1))
        ]
        for uid in uids:
            await world.until_state(uid, State.RUNNING)

        def expected() -> dict[str, Duration | None]:
            assert world.loop is not None
            running = world.loop.leader_state.snapshot(seek_room=False).admitted
            return {gang.workload.name: gang.workload.duration for gang in running}

        before = expected()
        assert before == {
            "runs": Duration(600.0, enforced=True),
            "likely": Duration(100.0, longest=100.0),
        }
        clock.now += 90.0
        await dismiss(world)
        await world.until(
            lambda: world.loop is not None and expected() == before, "the new leader knows them"
        )
