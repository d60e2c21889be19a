"""Gangs that take back the quota of their ClusterQueue, in the control loop, on a real Postgres."""

from __future__ import annotations

import time

from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from tests.control.rig import gang, rig

OURS = "queuectl.dev/v1"
SHAPES = 300
"""More than one plan considers."""


async def test_a_gang_takes_back_quota_in_time_behind_more_shapes_than_one_plan_considers(
    database_url: str,
) -> None:
    ahead = 0.0
    async with rig(database_url, 1, clock=lambda: time.time() + ahead) as world:
        guests = m.cluster_queue("guests", "gpu", {"nvidia.com/gpu": 0, "cpu": "1k"})
        guests["spec"]["cohortName"] = "all"
        (pool,) = await world.store.list_config("ClusterQueue")
        spec = {
            **pool.document["spec"],
            "cohortName": "all",
            "preemption": {"reclaimWithinCohort": "Any"},
            "policy": {"reclaimPatienceSeconds": 4},
        }
        await world.store.put_config({**pool.document, "apiVersion": OURS, "spec": spec})
        await world.store.put_config(guests)
        await world.store.put_config(m.local_queue("default", "guests", "guests"))
        shape = PodSetManifest(count=1, gpus=8)
        guest = world.cluster.submit(
            m.job("guest", "default", "guests", shape, priority_class="low")
        )
        await world.until_state(guest, State.RUNNING)
        ahead += 60.0  # so that an eviction loses work
        for number in range(SHAPES):
            waiting = PodSetManifest(cpu=f"{100 + number}")
            world.cluster.submit(
                m.job(f"other-{number:03}", "default", "research", waiting, priority_class="low")
            )
            if number == SHAPES // 3:
                owner = world.cluster.submit(gang("Job", "owner", 1))

        async def waits() -> bool:
            entry = await world.store.get_workload(owner)
            return entry is not None and entry.reason.code is Code.WAITING_TO_RECLAIM

        await world.until(waits, "the owner waits until it can evict the guest")
        await world.until_state(owner, State.RUNNING)
