"""A deleted job frees its quota at once, as in Kueue. It frees its nodes when its pods are deleted."""

from __future__ import annotations

import pytest

from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from tests.control.alike import ALIKE
from tests.control.rig import Rig, configuration, gang, live, rig
from tests.control.test_lifecycle import until_reason

KINDS = pytest.mark.parametrize("kind", ALIKE)


@KINDS
async def test_its_quota_is_free_for_others_while_its_pods_still_terminate(
    database_url: str, kind: str
) -> None:
    """There are four nodes, and quota for two."""
    async with rig(database_url, 4) as world:
        for document in configuration(16):
            await world.store.put_config(document)
        first = world.cluster.submit(gang(kind, "first", 2))
        await world.until_state(first, State.RUNNING)
        second = world.cluster.submit(gang(kind, "second", 2))
        await until_reason(world, second, State.PENDING, Code.WAITING_FOR_QUOTA)
        world.cluster.controllers.hold_ends = True
        world.cluster.delete_job(first)
        await world.until_state(second, State.RUNNING)
        ending = [pod for pod in world.cluster.pods_of(first) if pod.terminating]
        assert len(ending) == 2
        taken = {pod.node for pod in live(world.cluster.pods_of(second))}
        assert taken.isdisjoint({pod.node for pod in ending})


@KINDS
async def test_its_nodes_are_free_only_after_its_pods_are_deleted(
    database_url: str, kind: str
) -> None:
    """The rig checks at every step that no node holds more than its capacity."""
    async with rig(database_url, 2) as world:
        first = world.cluster.submit(gang(kind, "first", 2))
        await world.until_state(first, State.RUNNING)
        second = world.cluster.submit(gang(kind, "second", 2))
        await until_reason(world, second, State.PENDING, Code.WAITING_FOR_QUOTA)
        world.cluster.controllers.hold_ends = True
        world.cluster.delete_job(first)
        gone = await world.until_state(first, State.FINISHED)
        assert gone.reason.code is Code.DELETED
        await until_reason(world, second, State.PENDING, Code.TOPOLOGY_PLACEMENT_FAILED)
        assert world.cluster.pods_of(second) == []
        world.cluster.controllers.hold_ends = False
        await world.until_state(second, State.RUNNING)


def begin_deletion(world: Rig, resource: str, name: str) -> None:
    """Delete an object that has a finalizer: the API server keeps it."""
    (found,) = (d for d in world.cluster.server.all(resource) if d["metadata"]["name"] == name)
    stamp = {"deletionTimestamp": "2026-11-20T09:00:00Z"}
    world.cluster.server.edit(resource, found, lambda d: d["metadata"].update(stamp))


@KINDS
@pytest.mark.parametrize("what", ["job", "namespace"])
async def test_a_pending_gang_that_is_being_deleted_has_that_reason_and_does_not_start(
    database_url: str, kind: str, what: str
) -> None:
    async with rig(database_url, 2) as world:
        first = world.cluster.submit(gang(kind, "first", 2))
        await world.until_state(first, State.RUNNING)
        second = world.cluster.submit(gang(kind, "second", 2))
        await until_reason(world, second, State.PENDING, Code.WAITING_FOR_QUOTA)
        if what == "job":
            begin_deletion(world, f"{kind.lower()}s", "second")
        else:
            begin_deletion(world, "namespaces", "default")
        waits = await until_reason(world, second, State.PENDING, Code.TERMINATING)
        assert ("namespace default" in waits.reason.message) == (what == "namespace")
        world.cluster.finish(first)
        await world.until_state(first, State.FINISHED)
        third = world.cluster.submit(gang(kind, "third", 2))
        await world.until_state(third, State.RUNNING if what == "job" else State.PENDING)
        still = await until_reason(world, second, State.PENDING, Code.TERMINATING)
        assert still.attempt == 0


@KINDS
async def test_a_reservation_ends_when_its_gang_is_being_deleted(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 2) as world:
        low = world.cluster.submit(gang(kind, "low", 2))
        await world.until_state(low, State.RUNNING)
        world.cluster.controllers.hold_ends = True
        high = world.cluster.submit(gang(kind, "high", 2, "high"))
        await world.until_state(high, State.RESERVED)
        begin_deletion(world, f"{kind.lower()}s", "high")
        entry = await until_reason(world, high, State.PENDING, Code.TERMINATING)
        assert entry.lease is None
        world.cluster.controllers.hold_ends = False
        assert (await world.until_state(low, State.RUNNING)).attempt == 2
