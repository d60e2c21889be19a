"""Time slices and budgets in the control loop, on a real Postgres: turns, holds, and top-ups."""

from __future__ import annotations

from typing import Any

from queuectl.domain.ledger import State
from queuectl.domain.queries import DocumentKey
from queuectl.domain.reasons import Code
from tests.control.rig import Rig, gang, rig

OURS = "queuectl.dev/v1"


async def with_time_slices(world: Rig, seconds: int) -> None:
    for stored in await world.store.list_config("ClusterQueue"):
        document = dict(stored.document)
        spec: dict[str, Any] = dict(document["spec"])
        spec["policy"] = {**spec.get("policy", {}), "timeSliceSeconds": seconds}
        await world.store.put_config({**document, "apiVersion": OURS, "spec": spec})


async def test_gangs_take_turns(database_url: str) -> None:
    async with rig(database_url, 1) as world:
        await with_time_slices(world, 1)
        first = world.cluster.submit(gang("Job", "first", 1))
        await world.until_state(first, State.RUNNING)
        second = world.cluster.submit(gang("Job", "second", 1))
        third = world.cluster.submit(gang("Job", "third", 1))
        for uid in (second, third, first):  # an evicted gang queues behind the others
            await world.until_state(uid, State.RUNNING)
        lines = await world.store.history(None, 0)
        starts = [line.uid for line in lines if line.to_state is State.STARTING]
        assert starts[:4] == [first, second, third, first]
        entry = await world.store.get_workload(first)
        assert entry is not None
        assert entry.attempt >= 2


async def test_a_budget_holds_a_gang_until_it_is_topped_up(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        (queue,) = await world.store.list_config("ClusterQueue")
        spec = {"clusterQueue": queue.document["metadata"]["name"], "gpuHoursPerMonth": 10}
        budget = {
            "apiVersion": OURS,
            "kind": "Budget",
            "metadata": {"name": "b"},
            "spec": {**spec, "gpuHoursPerMonth": 1},
        }
        await world.store.put_config(budget)
        first = world.cluster.submit(gang("Job", "first", 1))
        await world.until_state(first, State.RUNNING)  # 8 GPUs for the next hour are committed
        second = world.cluster.submit(gang("Job", "second", 1))

        async def held() -> bool:
            entry = await world.store.get_workload(second)
            return entry is not None and entry.reason.code is Code.BUDGET_SPENT

        await world.until(held, "the budget holds the second gang")
        await world.store.put_config({**budget, "spec": spec})
        await world.until_state(second, State.RUNNING)
        third = world.cluster.submit(gang("Job", "third", 1))
        await world.store.delete_config(DocumentKey("Budget", "", "b"))
        world.cluster.finish(first)
        await world.until_state(third, State.RUNNING)
