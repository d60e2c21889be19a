"""Priorities change while gangs wait: the gangs have the new priority, and start."""

from __future__ import annotations

import pytest

from queuectl.demo import scenario as m
from queuectl.domain.ledger import State
from tests.control.rig import Rig, gang, rig


async def until_priority(world: Rig, uid: str, priority: int) -> None:
    async def known() -> bool:
        entry = await world.store.get_workload(uid)
        return entry is not None and entry.priority == priority

    await world.until(known, f"{uid} has the priority {priority}")


async def test_waiting_gangs_follow_the_default_priority_class(database_url: str) -> None:
    async with rig(database_url, 1) as world:
        server = world.cluster.server
        runs = world.cluster.submit(gang("Job", "runs", 1))
        await world.until_state(runs, State.RUNNING)
        document = gang("Job", "waits", 1)
        del document["metadata"]["labels"]["queuectl.dev/priority-class"]
        waits = world.cluster.submit(document)
        await until_priority(world, waits, 0)
        for value in (5, 7):  # a value can only change with another object
            made = server.create(
                "priorityclasses",
                {"metadata": {"name": "d"}, "value": value, "globalDefault": True},
            )
            await until_priority(world, waits, value)
            server.remove("priorityclasses", made)
            await until_priority(world, waits, 0)
        server.create(
            "priorityclasses", {"metadata": {"name": "d"}, "value": 9, "globalDefault": True}
        )
        world.cluster.finish(runs)
        await world.until_state(waits, State.RUNNING)
        await until_priority(world, waits, 9)


async def test_waiting_gangs_follow_their_workload_priority_class_and_the_limit_of_their_queue(
    database_url: str,
) -> None:
    async with rig(database_url, 1) as world:
        runs = world.cluster.submit(gang("Job", "runs", 1))
        await world.until_state(runs, State.RUNNING)
        waits = world.cluster.submit(gang("Job", "waits", 1))
        await until_priority(world, waits, 10)
        await world.store.put_config(m.priority_class("low", 20))
        await until_priority(world, waits, 20)
        (queue,) = await world.store.list_config("ClusterQueue")
        document = dict(queue.document)
        policy = {**document["spec"].get("policy", {}), "maxPriority": 15}
        await world.store.put_config(
            {
                **document,
                "apiVersion": "queuectl.dev/v1",
                "spec": {**document["spec"], "policy": policy},
            }
        )
        await until_priority(world, waits, 15)
        world.cluster.finish(runs)
        await world.until_state(waits, State.RUNNING)


async def test_a_gang_starts_in_the_cluster_queue_to_which_its_local_queue_leads(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is made before the last of its gangs is observed in the new one."""
    monkeypatch.setattr("queuectl.control.leader.loop.MOST_OBSERVED", 1)
    async with rig(database_url, 1) as world:
        runs = world.cluster.submit(gang("Job", "runs", 1))
        await world.until_state(runs, State.RUNNING)
        waiting = [world.cluster.submit(gang("Job", f"waits-{n}", 1)) for n in range(4)]
        waiting.append(world.cluster.submit(gang("Job", "last", 1, "high")))
        for uid in waiting:
            await world.until_state(uid, State.PENDING)
        (queue,) = await world.store.list_config("ClusterQueue")
        other = {**queue.document, "metadata": {"name": "other"}}
        await world.store.put_config(other)
        world.cluster.finish(runs)
        await world.store.put_config(m.local_queue("default", "research", "other"))
        entry = await world.until_state(waiting[-1], State.RUNNING)
        assert entry.cluster_queue == "other"
