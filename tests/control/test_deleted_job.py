"""A deleted job frees its quota at once, as in Kueue. It frees its nodes when its pods are deleted."""

from __future__ import annotations

import pytest

from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from tests.control.rig import configuration, gang, live, rig
from tests.control.test_lifecycle import until_reason

KINDS = pytest.mark.parametrize("kind", ["Job", "PyTorchJob"])


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
