"""The result of a what-if is what happens when the change is made."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queuectl.control.questions.throttle import PlannerThrottle
from queuectl.control.questions.viewer import Viewer
from queuectl.control.questions.what_if import WhatIfPlanner
from queuectl.demo import scenario as m
from queuectl.domain.errors import BadInput
from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from queuectl.domain.what_if import WhatIf, WhatIfResult
from queuectl.planner.cache import PlannerCache
from tests.control.rig import Rig, configuration, gang, rig


async def asked(world: Rig, question: WhatIf) -> WhatIfResult:
    """Ask the leader."""
    loop = world.loop
    assert loop is not None
    viewer = Viewer(
        world.store,
        loop._mirror,
        lambda: world.new_state(loop._mirror),
        world.clock,
        leading=lambda: loop.leader_state,
        watching=lambda: True,
        leader_uses=dict,
        throttle=PlannerThrottle(1.0),
        cache=PlannerCache(),
    )
    trial = await WhatIfPlanner(
        viewer.latest, world.store, loop._mirror, PlannerThrottle(1.0), PlannerCache()
    ).try_out(question)
    assert trial is not None
    return trial


async def test_a_submitted_gang_starts_on_the_nodes_of_the_what_if(database_url: str) -> None:
    async with rig(database_url, 8) as world:
        first = world.cluster.submit(gang("Job", "first", 3))
        await world.until_state(first, State.RUNNING)
        trial = await asked(world, WhatIf(submit=[gang("PyTorchJob", "second", 3)]))
        (admitted,) = trial.plan.admitted
        assert (admitted.uid,) == trial.submitted
        uid = world.cluster.submit(gang("PyTorchJob", "second", 3))
        entry = await world.until_state(uid, State.RUNNING)
        assert entry.placement is not None
        assert [p.by_node for p in entry.placement.podsets] == [
            p.by_node for p in admitted.placement.podsets
        ]


async def test_the_gang_that_the_what_if_evicts_is_evicted(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        low = world.cluster.submit(gang("Job", "low", 2))
        await world.until_state(low, State.RUNNING)
        trial = await asked(world, WhatIf(submit=[gang("Job", "urgent", 1, "high")]))
        assert [p.victim for p in trial.plan.preempted] == [low]
        urgent = world.cluster.submit(gang("Job", "urgent", 1, "high"))
        await world.until_state(urgent, State.RUNNING)
        entry = await world.entry(low)
        assert entry.evictions == 1


async def test_asking_changes_nothing(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        low = world.cluster.submit(gang("Job", "low", 2))
        await world.until_state(low, State.RUNNING)
        before = await world.store.history(None)
        question = WhatIf(submit=[gang("Job", "urgent", 1, "high")], drain=["n0"])
        await asyncio.gather(*(asked(world, question) for _ in range(3)))
        await world.until_state(low, State.RUNNING)
        assert await world.store.history(None) == before


async def test_a_question_that_cannot_be_read_does_not_end_the_others(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        running = world.cluster.submit(gang("Job", "running", 1))
        await world.until_state(running, State.RUNNING)
        wrong, right = await asyncio.gather(
            asked(world, WhatIf(drain=["nowhere"])),
            asked(world, WhatIf(drain=["n0"])),
            return_exceptions=True,
        )
        assert isinstance(wrong, BadInput)
        assert isinstance(right, WhatIfResult)


async def test_jobs_with_generated_names_are_distinct(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        running = world.cluster.submit(gang("Job", "running", 1))
        await world.until_state(running, State.RUNNING)
        job = gang("Job", "train", 1)
        del job["metadata"]["name"]
        job["metadata"]["generateName"] = "train-"
        trial = await asked(world, WhatIf(submit=[job, job]))
        names = [pending.workload.name for pending in trial.after.pending]
        assert names == ["train-1", "train-2"]


@pytest.mark.parametrize(
    ("labels", "changes"),
    [
        ({"max-exec-time-seconds": "3600"}, {"policy": {"maxExecTimeSeconds": 7200}}),
        ({"priority-class": "urgent"}, None),
    ],
    ids=["a longer run time is permitted", "its class is created"],
)
async def test_the_change_that_a_refused_gang_waits_for_starts_it(
    labels: dict[str, str], changes: dict[str, Any] | None, database_url: str
) -> None:
    async with rig(database_url, 2) as world:
        (queue,) = (d for d in configuration(16) if d["kind"] == "ClusterQueue")
        limited = {**queue["spec"], "policy": {"maxExecTimeSeconds": 60}}
        await world.store.put_config({**queue, "spec": limited})
        job = gang("Job", "refused", 1)
        job["metadata"]["labels"] |= {f"queuectl.dev/{key}": text for key, text in labels.items()}
        uid = world.cluster.submit(job)
        await world.until_entry(
            uid, lambda entry: entry.reason.code is Code.MISCONFIGURED, "refused"
        )
        change = (
            m.priority_class("urgent", 50)
            if changes is None
            else {**queue, "spec": {**queue["spec"], **changes}}
        )
        trial = await asked(world, WhatIf(config=[change]))
        assert [admitted.uid for admitted in trial.plan.admitted] == [uid]
