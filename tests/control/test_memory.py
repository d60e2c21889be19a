"""The leader remembers nothing of workloads that have ended."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from queuectl.control.leader.planning import MOST_KEPT, Planning
from queuectl.domain.arrays import index_uid
from queuectl.domain.ledger import State
from queuectl.planner.verify import PlanRule, PlanViolation
from tests.control.rig import gang, live, rig
from tests.control.test_arrays import array
from tests.control.test_elastic import elastic


async def test_nothing_is_kept_of_workloads_that_failed_succeeded_or_were_deleted(
    database_url: str,
) -> None:
    async with rig(database_url, 6) as world:
        fails = world.cluster.submit(gang("PyTorchJob", "fails", 1))
        succeeds = world.cluster.submit(gang("Job", "succeeds", 1))
        deleted = world.cluster.submit(array("deleted", 1, 1))
        grown = world.cluster.submit(elastic("grown", 1, 2))
        done = world.cluster.submit(array("done", 1, 1))
        indexes = [index_uid(deleted, 0), index_uid(grown, 1), index_uid(done, 0)]
        for uid in (fails, succeeds, *indexes):
            await world.until_state(uid, State.RUNNING)
        for uid in (succeeds, grown, done):
            world.cluster.finish(uid)
        world.cluster.fail_pod(live(world.cluster.pods_of(fails))[0].name)
        world.cluster.delete_job(deleted)
        for uid in (fails, succeeds, grown, *indexes):
            await world.until_state(uid, State.FINISHED)
        await world.until(
            lambda: any((e.uid, e.reason) == (fails, "Failed") for e in world.cluster.events),
            "an Event reports the failure",
        )
        loop: Any = world.loop
        for uid in (grown, done):
            world.cluster.delete_job(uid)
        await world.until(lambda: not loop._mirror.arrays, "the arrays are deleted")
        assert loop._mirror._arrays._known == {}
        assert loop._writer._recorder._last == {}
        assert loop._actuator._retries._failed == loop._actuator._timers == {}
        assert loop.leader_state.refusals._unknown == {}


def test_the_violations_of_saved_plans_are_forgotten_beyond_a_limit() -> None:
    saved = []

    class Writer:
        async def keep_refused(self, *_: Any) -> None:
            saved.append(1)

    planning: Any = object.__new__(Planning)
    planning._kept, planning._writer = {}, Writer()
    plans = [
        [PlanViolation(PlanRule.WHOLE, f"gang-{n}", "1 of 2 pods")] for n in range(3 * MOST_KEPT)
    ]

    async def keep() -> None:
        for violations in plans:
            for _ in range(2):
                await planning._keep(cast(Any, None), cast(Any, None), violations)

    asyncio.run(keep())
    assert len(saved) == len(plans), "each is saved once"
    assert len(planning._kept) == MOST_KEPT
