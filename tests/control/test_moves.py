"""The loop migrates gangs of queues that allow it, within the budget. All gangs run afterwards, also after a kill."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.ledger import Entry, State
from queuectl.domain.reasons import Code
from tests.control.rig import QUICK, Rig, configuration, live, rig
from tests.control.test_crash_matrix import survives
from tests.control.test_pod_groups import group_entry, pod
from tests.support.postgres import TestPostgres

PLENTY = 10**9


@asynccontextmanager
async def defragmenting(
    url: str, mode: str = "Execute", budget: int = PLENTY
) -> AsyncIterator[Rig]:
    """Two nodes of 8 GPUs, and a queue for both that permits migration."""
    async with rig(url, 2) as world:
        await allow_moves(world, mode, budget)
        yield world


async def allow_moves(
    world: Rig, mode: str, budget: int, gpus: int = 16, **protection: int
) -> None:
    (document,) = (d for d in configuration(gpus) if d["kind"] == "ClusterQueue")
    policy = {"defragment": mode, "defragmentBudget": budget, **protection}
    spec = {**document["spec"], "policy": policy}
    await world.store.put_config({**document, "apiVersion": "queuectl.dev/v1", "spec": spec})


async def until_reason(world: Rig, uid: str, code: Code) -> Entry:
    return await world.until_entry(uid, lambda entry: entry.reason.code is code, code)


def small(world: Rig, name: str) -> str:
    return world.cluster.submit(
        m.job(name, "default", "research", PodSetManifest(count=1, gpus=4), retries=6)
    )


def whole(world: Rig, name: str = "whole") -> str:
    return world.cluster.submit(
        m.job(name, "default", "research", PodSetManifest(count=1, gpus=8), retries=6)
    )


async def half_full(world: Rig) -> list[str]:
    """Start a small gang on each node: 8 GPUs are free, but no whole node."""
    by_node: dict[str | None, list[str]] = {}
    gangs = [small(world, f"small{i}") for i in range(4)]
    for uid in gangs:
        await world.until_state(uid, State.RUNNING)
        by_node.setdefault(live(world.cluster.pods_of(uid))[0].node, []).append(uid)
    assert sorted(map(len, by_node.values())) == [2, 2]
    for _, leaver in by_node.values():
        world.cluster.finish(leaver)
        await world.until_state(leaver, State.FINISHED)
    return [stays for stays, _ in by_node.values()]


async def story(world: Rig) -> None:
    """Two gangs run on two nodes. One is migrated to the node of the other, so that a third gang gets a whole node."""
    smalls = await half_full(world)
    third = whole(world)
    started = await world.until_state(third, State.RUNNING)
    assert started.attempt == 1
    entries = [await world.until_state(uid, State.RUNNING) for uid in smalls]
    assert sorted(entry.evictions for entry in entries) == [0, 1], "one was migrated, once"
    (moved,) = [entry for entry in entries if entry.evictions]
    assert moved.attempt == 2
    assert len(moved.preempted_at) == 1, "the protections of its queue count a migration"
    nodes = {uid: [p.node for p in live(world.cluster.pods_of(uid))] for uid in (*smalls, third)}
    assert nodes[smalls[0]] == nodes[smalls[1]] != nodes[third]
    for uid in (*smalls, third):
        world.cluster.finish(uid)
        await world.until_state(uid, State.FINISHED)
    await world.at_rest()


async def test_a_gang_is_migrated_so_that_another_fits(database_url: str) -> None:
    async with defragmenting(database_url) as world:
        await story(world)
        lines = await world.store.history(None, 0, 500)
        (move,) = [line for line in lines if line.event == Code.DEFRAGMENTED]
        assert move.reason.message.startswith(
            "migrated so that default/whole fits, at the loss of "
        )
        assert move.reason.details["clusterQueue"] == "pool"
        loaded = await world.store.load()
        (spent,) = loaded.spent
        assert spent.cluster_queue == "pool"
        assert spent.lost_work == move.reason.details["lostGpuSeconds"] > 0


async def test_both_placements_are_held_during_the_eviction_of_the_migrated_gang(
    database_url: str,
) -> None:
    async with defragmenting(database_url) as world:
        smalls = await half_full(world)
        world.cluster.controllers.hold_ends = True
        third = whole(world)
        await world.until_state(third, State.RESERVED)
        other = small(world, "thief")
        entry = await world.until_state(other, State.PENDING)
        assert entry.attempt == 0
        world.cluster.controllers.hold_ends = False
        await world.until_state(third, State.RUNNING)
        for uid in smalls:
            await world.until_state(uid, State.RUNNING)
        entry = await world.until_state(other, State.PENDING)
        assert entry.attempt == 0, "neither placement was given to another gang"


@pytest.mark.parametrize(("mode", "budget"), [("Off", PLENTY), ("Plan", PLENTY), ("Execute", 59)])
async def test_no_gang_is_migrated_unless_the_queue_allows_it_and_has_the_budget(
    database_url: str, mode: str, budget: int
) -> None:
    async with defragmenting(database_url, mode, budget) as world:
        smalls = await half_full(world)
        third = whole(world)
        await until_reason(world, third, Code.TOPOLOGY_PLACEMENT_FAILED)
        later = small(world, "later")
        await world.until_state(later, State.RUNNING)  # cycles continue
        for uid in smalls:
            entry = await world.until_state(uid, State.RUNNING)
            assert entry.attempt == 1


async def test_a_single_pod_is_not_migrated_because_it_would_not_start_again(
    database_url: str,
) -> None:
    async with defragmenting(database_url) as world:
        world.cluster.submit_pod(pod("alone-0", gpus=4))
        other = whole(world, "other")
        fills = small(world, "fills")
        await world.until_state(fills, State.RUNNING)
        await world.until_state(other, State.RUNNING)
        world.cluster.finish(other)
        world.cluster.submit_pod(pod("alone-1", gpus=4))
        await group_entry(world, "alone-1", State.RUNNING)
        world.cluster.finish(fills)
        await world.until_state(fills, State.FINISHED)
        await until_reason(world, whole(world), Code.TOPOLOGY_PLACEMENT_FAILED)
        for name in ("alone-0", "alone-1"):
            assert (await group_entry(world, name, State.RUNNING)).evictions == 0


async def test_defragmentation_is_planned_again_after_a_while_without_an_event(
    database_url: str,
) -> None:
    """Both small gangs are protected when the third arrives. The protection ends by time alone."""
    async with defragmenting(database_url) as world:
        world.settings = QUICK.model_copy(update={"defragment_seconds": 0.5})
        await allow_moves(world, "Execute", PLENTY, minRuntimeSeconds=3)
        smalls = await half_full(world)
        third = whole(world)
        await until_reason(world, third, Code.TOPOLOGY_PLACEMENT_FAILED)
        await world.until_state(third, State.RUNNING)
        entries = [await world.until_state(uid, State.RUNNING) for uid in smalls]
        assert sorted(entry.evictions for entry in entries) == [0, 1]


async def test_the_spent_budget_is_known_after_a_restart(database_url: str) -> None:
    async with defragmenting(database_url) as world:
        smalls = await half_full(world)
        first = whole(world)
        await world.until_state(first, State.RUNNING)
        for uid in smalls:
            await world.until_state(uid, State.RUNNING)
        (spent,) = (await world.store.load()).spent
        await allow_moves(world, "Execute", spent.lost_work + 59)  # a restart alone costs 60
        world.commits.at = world.commits.seen + 1
        world.cluster.finish(first)
        await world.until_state(first, State.FINISHED)
        assert world.kills == 1
        await world.until_state(small(world, "extra"), State.RUNNING)
        world.cluster.finish(smalls[0])
        await world.until_state(smalls[0], State.FINISHED)
        again = whole(world, "again")
        await until_reason(world, again, Code.TOPOLOGY_PLACEMENT_FAILED)
        await allow_moves(world, "Execute", PLENTY)
        await world.until_state(again, State.RUNNING)


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_a_kill_at_any_step_of_a_migration_changes_no_outcome(postgres: TestPostgres) -> None:
    await survives(postgres, story, defragmenting)


async def test_a_gang_that_a_move_helps_is_searched_for_behind_more_shapes_than_one_plan_considers(
    database_url: str,
) -> None:
    """A search for the first gang, which no move helps, does not delay the search for the others."""
    async with rig(database_url, 2) as world:
        world.settings = QUICK.model_copy(update={"defragment_seconds": 600.0})
        await allow_moves(world, "Off", PLENTY, gpus=64)
        await half_full(world)
        shape = PodSetManifest(count=2, gpus=8)
        world.cluster.submit(m.job("wide", "default", "research", shape, retries=6))
        for number in range(300):
            waiting = PodSetManifest(cpu=f"{1000 + number}")
            world.cluster.submit(m.job(f"other-{number:03}", "default", "research", waiting))
        third = whole(world)
        await until_reason(world, third, Code.TOPOLOGY_PLACEMENT_FAILED)
        await allow_moves(world, "Execute", PLENTY, gpus=64)
        await world.until_state(third, State.RUNNING)
