"""Reservations in the control loop, on a real Postgres: they begin and end by the clock, and outlive the leader."""

from __future__ import annotations

import time
from typing import Any

import pytest

from queuectl.domain.ledger import State
from queuectl.domain.queries import DocumentKey
from queuectl.domain.reasons import Code
from queuectl.domain.words import format_time
from tests.control.kills import KillPoint
from tests.control.rig import Rig, gang, live, rig
from tests.control.test_crash_matrix import survives
from tests.doubles.cluster import Moment
from tests.support.postgres import TestPostgres


def reservation(begins: float, ends: float, name: str = "talk", **spec: Any) -> dict[str, Any]:
    """Named nodes, or two pods with 8 GPUs each for another ClusterQueue than that of the gangs."""
    if "nodes" not in spec:
        capacity = {"pods": 2, "requests": {"nvidia.com/gpu": 8}, "flavor": "gpu"}
        spec = {"clusterQueue": "other", "capacity": capacity, **spec}
    times = {"from": format_time(begins), "until": format_time(ends)}
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Reservation",
        "metadata": {"name": name},
        "spec": {**times, **spec},
    }


async def nodes_of(world: Rig) -> tuple[tuple[str, int], ...]:
    """The stored placement of the only Reservation, once it has one."""
    found: list[tuple[tuple[str, int], ...]] = []

    async def placed() -> bool:
        found[:] = [state.nodes for state in (await world.store.load()).reserved if state.nodes]
        return bool(found)

    await world.until(placed, "a placement")
    (nodes,) = found
    return nodes


async def test_a_gang_of_unknown_length_waits_until_the_reservation_ends(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        begins = time.time() + 2.0
        await world.store.put_config(reservation(begins, begins + 2.0))
        await nodes_of(world)
        uid = world.cluster.submit(gang("Job", "train", 2))
        waits = await world.until_entry(
            uid, lambda entry: entry.reason.code is Code.RESERVATION_AHEAD, "a Reservation ahead"
        )
        assert "Reservation talk keeps the nodes that it needs" in waits.reason.message
        await world.until_state(uid, State.RUNNING)
        assert time.time() >= int(begins) + 2.0


async def test_gangs_of_its_cluster_queue_use_it(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        now = time.time()
        await world.store.put_config(reservation(now - 60, now + 60, clusterQueue="pool"))
        assert len(await nodes_of(world)) == 2
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)


@pytest.mark.parametrize("evict", [False, True])
async def test_running_gangs_are_evicted_if_it_asks_for_it(database_url: str, evict: bool) -> None:
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        begins = time.time() + 1.0
        nodes = sorted({pod.node for pod in live(world.cluster.pods_of(uid)) if pod.node})
        document = reservation(begins, begins + 3600.0, nodes=nodes, evict=evict)
        await world.store.put_config(document)
        if evict:
            waits = await world.until_entry(
                uid, lambda e: e.reason.code is Code.RESERVATION_AHEAD, "an eviction"
            )
            assert waits.evictions == 1
            assert time.time() >= int(begins)
            return
        second = world.cluster.submit(gang("Job", "second", 1))
        await world.until_state(second, State.PENDING)
        while time.time() < begins + 1.0:
            assert (await world.until_state(uid, State.RUNNING)).evictions == 0


@pytest.mark.parametrize("moment", list(Moment))
async def test_the_next_leader_keeps_the_nodes(database_url: str, moment: Moment) -> None:
    async with rig(database_url, 4) as world:
        world.commits = KillPoint(1, moment)
        begins = time.time() + 3600.0
        await world.store.put_config(reservation(begins, begins + 60.0))
        nodes = await nodes_of(world)
        first = world.cluster.submit(gang("Job", "first", 2))
        await world.until_state(first, State.RUNNING)
        assert {pod.node for pod in world.cluster.pods_of(first)} & {n for n, _ in nodes} == set()
        second = world.cluster.submit(gang("Job", "second", 1))
        await world.until_state(second, State.PENDING)
        assert await nodes_of(world) == nodes
        assert world.kills == 1


async def test_a_deleted_reservation_frees_its_nodes(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        begins = time.time() + 3600.0
        await world.store.put_config(reservation(begins, begins + 60.0))
        await nodes_of(world)
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.PENDING)
        await world.store.delete_config(DocumentKey("Reservation", "", "talk"), None)
        await world.until_state(uid, State.RUNNING)


async def evicted_for_it(world: Rig) -> None:
    """A gang is evicted when a Reservation begins, waits for it, and runs again after the Reservation is deleted."""
    uid = world.cluster.submit(gang("Job", "train", 2))
    await world.until_state(uid, State.RUNNING)
    now = time.time()
    await world.store.put_config(reservation(now - 60, now + 3600, evict=True))
    waits = await world.until_entry(
        uid,
        lambda e: e.state is State.PENDING and e.reason.code is Code.RESERVATION_AHEAD,
        "a wait for the Reservation",
    )
    assert waits.evictions == 1
    assert live(world.cluster.pods_of(uid)) == []
    assert sum(pods for _, pods in await nodes_of(world)) == 2
    await world.store.delete_config(DocumentKey("Reservation", "", "talk"), None)
    again = await world.until_state(uid, State.RUNNING)
    assert again.evictions == 1, "it is evicted once"
    world.cluster.finish(uid)
    await world.until_state(uid, State.FINISHED)
    await world.at_rest()
    assert (await world.store.load()).reserved == ()


@pytest.mark.faults
@pytest.mark.timeout(300)
async def test_a_kill_at_any_step_of_a_reservation_changes_no_outcome(
    postgres: TestPostgres,
) -> None:
    await survives(postgres, evicted_for_it)


async def test_a_reservation_that_has_begun_keeps_its_nodes_if_its_end_changes(
    database_url: str,
) -> None:
    async with rig(database_url, 4) as world:
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        begins = int(time.time()) - 60
        await world.store.put_config(reservation(begins, begins + 3600.0))
        before = await nodes_of(world)
        world.cluster.finish(uid)
        await world.until_state(uid, State.FINISHED)
        await world.store.put_config(reservation(begins, begins + 7200.0))

        async def longer() -> bool:
            return [one.ends for one in (await world.store.load()).reserved] == [begins + 7200.0]

        await world.until(longer, "the later end is stored")
        assert await nodes_of(world) == before
