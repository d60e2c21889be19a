"""``policy.maxPerUser`` in the loop, on a real Postgres with the API server double."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.demo.scenario import Document
from queuectl.domain.ledger import State
from queuectl.domain.queries import WorkloadFilter
from queuectl.domain.reasons import Code
from tests.control.alike import ALIKE
from tests.control.rig import Rig, configuration, gang, rig
from tests.control.test_lifecycle import rules, until_reason
from tests.doubles.admission import born

LABEL = "example.com/user"


async def cap(world: Rig, gpus: int) -> None:
    usage = {"usageHalfLifeTime": "1h", "usageSamplingInterval": "5m"}
    await world.store.put_config(
        rules(
            admissionFairSharing=usage,
            queuectl={"userLabel": LABEL, "trustedSubmitters": ["alice"]},
        )
    )
    for document in configuration(32):
        if document["kind"] == "ClusterQueue":
            spec = {**document["spec"], "policy": {"maxPerUser": {"nvidia.com/gpu": gpus}}}
            await world.store.put_config({**document, "spec": spec})


def asked_by(user: str, kind: str, name: str) -> Document:
    document: dict[str, Any] = dict(gang(kind, name, 2))
    document["metadata"]["labels"][LABEL] = user
    return document


@pytest.mark.parametrize("kind", ALIKE)
async def test_a_gang_waits_for_gangs_of_its_own_user_and_those_of_others_start(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 4) as world:
        await cap(world, 16)
        first, second = (world.cluster.submit(asked_by("ann", kind, n)) for n in ("a1", "a2"))
        await world.until_state(first, State.RUNNING)
        held = await until_reason(world, second, State.PENDING, Code.MAX_PER_USER)
        assert (held.reason.details["user"], held.reason.details["held"]) == ("ann", 16)
        other = world.cluster.submit(asked_by("ben", kind, "b"))
        await world.until_state(other, State.RUNNING)
        page = await world.store.list_workloads(WorkloadFilter(user="alice"))
        assert {e.uid for e in page.entries} == {first, second, other}  # users who created them
        world.cluster.finish(first)
        await world.until_state(second, State.RUNNING)


async def test_a_larger_limit_admits_it(database_url: str) -> None:
    async with rig(database_url, 4) as world:
        await cap(world, 8)
        uid = world.cluster.submit(asked_by("ann", "Job", "train"))
        held = await until_reason(world, uid, State.PENDING, Code.MAX_PER_USER)
        assert "8 more than user ann may ever hold" in held.reason.message
        await cap(world, 16)
        await world.until_state(uid, State.RUNNING)


def of_cron_job(user: str, name: str) -> Document:
    """A Job as admission stores it for the controller of CronJobs: it counts for the user of the CronJob."""
    document: dict[str, Any] = dict(gang("Job", name, 2))
    return born(document, user=user)


async def test_jobs_of_cronjobs_count_for_the_users_of_the_cronjobs(database_url: str) -> None:
    async with rig(database_url, 4) as world:
        await cap(world, 16)

        def created(user: str, name: str) -> str:
            stored = world.cluster.server.create("jobs", of_cron_job(user, name))
            return str(stored["metadata"]["uid"])

        first, second = created("alice", "nightly-1"), created("alice", "nightly-2")
        await world.until_state(first, State.RUNNING)
        held = await until_reason(world, second, State.PENDING, Code.MAX_PER_USER)
        assert (held.reason.details["user"], held.reason.details["held"]) == ("alice", 16)
        other = created("bob", "weekly-1")
        await world.until_state(other, State.RUNNING)
        world.cluster.finish(first)
        await world.until_state(second, State.RUNNING)
