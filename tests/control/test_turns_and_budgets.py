"""Time slices and budgets in the control loop, on a real Postgres: turns, holds, and top-ups."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from queuectl.db.usage import UsageLedger
from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.budgets import Budget, SpentUnits
from queuectl.domain.errors import StoreUnavailable
from queuectl.domain.ledger import State
from queuectl.domain.queries import DocumentKey
from queuectl.domain.reasons import Code
from tests.control.rig import Rig, configuration, gang, rig
from tests.control.test_lifecycle import until_reason
from tests.control.test_usage import OFTEN

OURS = "queuectl.dev/v1"
MIDDLE_OF_A_MONTH = datetime(2026, 11, 15, tzinfo=UTC).timestamp()


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
        entry = await world.entry(first)
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


async def test_a_new_budget_counts_what_it_pays_for_if_the_database_fails(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gangs have used 16 GPU-hours when it is created. The sums cannot be read at first, neither then nor by a new leader."""
    ahead, failures, real = MIDDLE_OF_A_MONTH - time.time(), 0, UsageLedger.spent

    async def spent(self: UsageLedger, budgets: Iterable[Budget], at: float) -> SpentUnits:
        nonlocal failures
        if failures:
            failures -= 1
            raise StoreUnavailable("no answer")
        return await real(self, budgets, at)

    monkeypatch.setattr(UsageLedger, "spent", spent)
    monkeypatch.setattr("queuectl.control.leader.ledger_writer.RETRY_SECONDS", 0.01)
    async with rig(database_url, 2, clock=lambda: time.time() + ahead) as world:
        world.settings = OFTEN
        first = world.cluster.submit(gang("Job", "first", 1))
        await world.until_state(first, State.RUNNING)
        ahead += 2 * 3600.0
        world.cluster.finish(first)
        await world.until_state(first, State.FINISHED)
        failures = 2
        (queue,) = await world.store.list_config("ClusterQueue")
        spec = {"clusterQueue": queue.document["metadata"]["name"], "gpuHoursPerMonth": 10}
        await world.store.put_config(
            {"apiVersion": OURS, "kind": "Budget", "metadata": {"name": "b"}, "spec": spec}
        )
        second = world.cluster.submit(gang("Job", "second", 1))
        await until_reason(world, second, State.PENDING, Code.BUDGET_SPENT)
        assert not failures
        await world.stop()
        failures, world.running, world._task = 2, True, None
        await world.at_rest()
        third = world.cluster.submit(gang("Job", "third", 1))
        await until_reason(world, third, State.PENDING, Code.BUDGET_SPENT)
        assert not failures


async def test_gangs_behind_a_head_start_when_its_budget_is_spent(database_url: str) -> None:
    """A running gang uses the last hours. The head of a StrictFIFO queue then waits for its Budget, and holds back no gang of others."""
    ahead = MIDDLE_OF_A_MONTH - time.time()
    async with rig(database_url, 2, clock=lambda: time.time() + ahead) as world:
        world.settings = OFTEN
        for document in configuration(16, strategy="StrictFIFO"):
            await world.store.put_config(document)
        await world.store.put_config(m.local_queue("default", "others", "pool"))
        of_research = {
            "apiVersion": OURS,
            "kind": "Budget",
            "metadata": {"name": "b"},
            "spec": {"localQueue": "default/research", "gpuHoursPerMonth": 20},
        }
        await world.store.put_config(of_research)
        runs = world.cluster.submit(gang("Job", "runs", 1))
        await world.until_state(runs, State.RUNNING)
        head = world.cluster.submit(gang("Job", "head", 2))
        await world.until_state(head, State.PENDING)
        shape = PodSetManifest(count=1, gpus=8)
        other = world.cluster.submit(
            m.job("other", "default", "others", shape, priority_class="low")
        )
        await until_reason(world, other, State.PENDING, Code.WAITING_IN_ORDER)
        # 16 GPU-hours are used then. A gang without a known end counts for another hour.
        ahead += 2 * 3600.0
        await world.until_state(other, State.RUNNING)


async def test_gangs_with_the_priority_of_a_spent_budget_start_on_free_nodes(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        (queue,) = await world.store.list_config("ClusterQueue")
        spec = {
            "clusterQueue": queue.document["metadata"]["name"],
            "gpuHoursPerMonth": 1,
            "whenSpent": "LowerPriority",
            "priorityWhenSpent": -5,
        }
        await world.store.put_config(
            {"apiVersion": OURS, "kind": "Budget", "metadata": {"name": "b"}, "spec": spec}
        )
        for name in ("first", "second"):
            await world.until_state(world.cluster.submit(gang("Job", name, 1)), State.RUNNING)
