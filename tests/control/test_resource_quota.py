"""ResourceQuotas of namespaces, on a real Postgres with the API server double."""

from __future__ import annotations

import pytest

from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from tests.control.alike import ALIKE
from tests.control.rig import gang, live, rig
from tests.control.test_lifecycle import document_of, until_reason

QUOTA = {
    "metadata": {"name": "team", "namespace": "default"},
    "spec": {"hard": {"requests.nvidia.com/gpu": "16"}},
}


@pytest.mark.parametrize("kind", ALIKE)
async def test_a_gang_is_pending_until_its_namespace_has_quota(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 4) as world:
        world.cluster.server.create("resourcequotas", QUOTA)
        first = world.cluster.submit(gang(kind, "first", 2))
        await world.until_state(first, State.RUNNING)
        second = world.cluster.submit(gang(kind, "second", 2))
        held = await until_reason(world, second, State.PENDING, Code.RESOURCE_QUOTA_EXCEEDED)
        assert held.reason.details["used"] == 16
        assert world.cluster.pods_of(second) == [], "none of its pods was created"
        world.cluster.finish(first)
        await world.until_state(second, State.RUNNING)


async def test_a_larger_quota_admits_it(database_url: str) -> None:
    async with rig(database_url, 4) as world:
        quota = world.cluster.server.create("resourcequotas", QUOTA)
        uid = world.cluster.submit(gang("Job", "train", 4))
        await until_reason(world, uid, State.PENDING, Code.RESOURCE_QUOTA_EXCEEDED)
        more = {"hard": {"requests.nvidia.com/gpu": "32"}}
        world.cluster.server.edit("resourcequotas", quota, lambda d: d.update(spec=more, status={}))
        await world.until_state(uid, State.RUNNING)


async def test_two_gangs_submitted_together_do_not_both_start(database_url: str) -> None:
    """Neither has a pod during the planning of the other."""
    async with rig(database_url, 4) as world:
        world.cluster.server.create("resourcequotas", QUOTA)
        uids = [world.cluster.submit(gang("Job", name, 2)) for name in ("one", "two")]
        await world.until_state(uids[0], State.RUNNING)
        await until_reason(world, uids[1], State.PENDING, Code.RESOURCE_QUOTA_EXCEEDED)
        assert document_of(world, uids[1])["spec"]["suspend"]
        assert len(live(world.cluster.pods_of(uids[0]))) == 2
