"""A LocalQueue is deleted, or leads to another ClusterQueue, while its gangs run: the ClusterQueue of their start is charged for them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from queuectl.control.leader.leader_state import LeaderState
from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.commands import Action
from queuectl.domain.ledger import Document, State
from queuectl.domain.queries import DocumentKey
from queuectl.domain.reasons import Code
from queuectl.domain.spending import report
from tests.control.rig import Rig, configuration, rig

GPUS = 16
QUEUES = {"pool": "second", "other": "others"}
"""LocalQueues by their ClusterQueues; ``research`` leads to ``pool`` too."""


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[Rig]:
    """Six nodes, and two ClusterQueues with quota for two nodes each. A gang of ``research`` uses all the quota of ``pool``."""
    async with rig(database_url, 6) as world:
        quota: dict[str, int | str] = {
            "nvidia.com/gpu": GPUS,
            "cpu": "1k",
            "pods": 1000,
            "memory": "1Pi",
        }
        for document in (*configuration(GPUS), m.cluster_queue("other", "gpu", quota)):
            await world.store.put_config(document)
        for cluster_queue, name in QUEUES.items():
            await world.store.put_config(m.local_queue("default", name, cluster_queue))
            await world.store.put_config(budget(cluster_queue))
        await world.until_state(submit(world, "first", "research"), State.RUNNING)
        yield world


def state_of(world: Rig) -> LeaderState:
    assert world.loop is not None
    return world.loop.leader_state


def budget(cluster_queue: str) -> Document:
    spec = {"clusterQueue": cluster_queue, "gpuHoursPerMonth": 1000}
    metadata = {"name": cluster_queue}
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Budget",
        "metadata": metadata,
        "spec": spec,
    }


def submit(world: Rig, name: str, queue: str) -> str:
    return world.cluster.submit(m.job(name, "default", queue, PodSetManifest(2, gpus=8)))


async def change(world: Rig, target: str | None) -> None:
    """Let ``research`` lead to another ClusterQueue, or delete it."""
    if target is None:
        await world.store.delete_config(DocumentKey("LocalQueue", "default", "research"))
    else:
        await world.store.put_config(m.local_queue("default", "research", target))

    def known() -> bool:
        queue = state_of(world).config.local_queues.get(("default", "research"))
        return (queue.cluster_queue if queue is not None else None) == target

    await world.until(known, "the leader knows the change")


@pytest.mark.parametrize("target", [None, "other"])
async def test_its_gangs_are_charged_to_the_cluster_queue_of_their_start(
    world: Rig, target: str | None
) -> None:
    await change(world, target)
    waits = submit(world, "of-pool", "second")
    runs = submit(world, "of-other", "others")
    await world.until_state(runs, State.RUNNING)
    entry = await world.until_entry(
        waits, lambda one: one.reason.code is not Code.QUEUED, "decided"
    )
    assert (entry.state, entry.reason.code) == (State.PENDING, Code.WAITING_FOR_QUOTA)
    state = state_of(world)
    held = {row[2:]: amount for row, amount in state.holdings.held.items()}
    assert held["pool", "gpu", "nvidia.com/gpu"] == GPUS
    assert held["other", "gpu", "nvidia.com/gpu"] == GPUS
    rates = {
        f.balance.budget.name: f.rate for f in report(state.snapshot(seek_room=False)).forecasts
    }
    assert rates == {"pool": GPUS, "other": GPUS}


async def test_an_evicted_gang_queues_where_its_local_queue_leads_then(world: Rig) -> None:
    await change(world, "other")
    await world.until_state(submit(world, "of-other", "others"), State.RUNNING)
    [first] = [entry.uid for entry in state_of(world).ledger if entry.name == "first"]
    await world.ask(first, Action.HOLD)
    await world.until_state(first, State.HELD)
    await world.until_state(submit(world, "of-pool", "second"), State.RUNNING)
    await world.ask(first, Action.RELEASE)
    entry = await world.until_entry(
        first, lambda one: one.reason.code is Code.WAITING_FOR_QUOTA, "decided"
    )
    assert entry.cluster_queue == "other"
