"""``queuectl plan -f`` and the loop evict the same gangs from draining queues, with the same reasons."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.domain.ledger import State
from queuectl.objects.documents import as_document
from queuectl.objects.files.snapshots import read_snapshot
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.control.rig import Rig, configuration, gang, rig


def stopping(kind: str, policy: str) -> list[dict[str, Any]]:
    """The configuration with this policy in its queue of that kind."""
    documents = [dict(document) for document in configuration(16)]
    for document in documents:
        if document["kind"] == kind:
            document["spec"] = {**document["spec"], "stopPolicy": policy}
    return documents


def planned(world: Rig, queues: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Uid, code and message of each gang that ``plan -f`` evicts, for the objects of the API server and these queues."""
    versions = {"jobs": ("batch/v1", "Job"), "pods": ("v1", "Pod"), "nodes": ("v1", "Node")}
    objects = [
        {"apiVersion": version, "kind": kind, **document}
        for resource, (version, kind) in versions.items()
        for document in world.cluster.server.all(resource)
    ]
    given = read_snapshot([as_document(one) for one in (*queues, *objects)])
    made = plan(given.snapshot)
    assert verify(given.snapshot, made) == ()
    assert not made.evicted
    return [(one.uid, one.code.value, one.message) for one in given.evicted]


@pytest.mark.parametrize("kind", ["ClusterQueue", "LocalQueue"])
@pytest.mark.parametrize("policy", ["None", "Hold", "HoldAndDrain"])
async def test_plan_and_loop_drain_alike(database_url: str, kind: str, policy: str) -> None:
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        queues = stopping(kind, policy)
        foretold = planned(world, queues)
        for document in queues:
            await world.store.put_config(document)
        behind = world.cluster.submit(gang("Job", "behind", 2))
        if policy == "HoldAndDrain":
            await world.until_state(uid, State.PENDING)
        else:
            await world.until_state(behind, State.PENDING)
            await world.at_rest()
        lines = await world.store.history(uid)
        happened = [
            (uid, line.reason.code.value, line.reason.message)
            for line in lines
            if line.to_state is State.EVICTING
        ]
        assert happened == foretold
        assert bool(foretold) is (policy == "HoldAndDrain")
