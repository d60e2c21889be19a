"""A slow job controller creates the pods of a start after that start was reverted and another one was sent."""

from __future__ import annotations

import pytest

from queuectl.domain.commands import Action
from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from tests.control.alike import ALIKE
from tests.control.rig import QUICK, gang, live, rig
from tests.doubles.apiserver import Document
from tests.doubles.cluster import FakeCluster


def slow(cluster: FakeCluster, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the job controller act on the first start only after the job is started again."""
    name = "_sync_job" if kind == "Job" else "_sync_replicas"
    sync = getattr(cluster.controllers, name)
    read: list[Document] = []

    def late(document: Document) -> None:
        job = cluster.job(document["metadata"]["uid"])
        if job.attempt != 1:
            sync(read.pop() if job.attempt > 1 and read else document)
        elif not job.suspended:
            read[:] = [document]

    monkeypatch.setattr(cluster.controllers, name, late)


@pytest.mark.parametrize("kind", ALIKE)
async def test_a_gang_starts_although_pods_of_an_earlier_start_are_created_late(
    database_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(database_url, 2) as world:
        world.settings = QUICK.model_copy(update={"unschedulable_seconds": 0.2})
        slow(world.cluster, kind, monkeypatch)
        uid = world.cluster.submit(gang(kind, "train", 2))
        await world.until(lambda: not world.cluster.job(uid).suspended, "it is resumed")
        await world.ask(uid, Action.REQUEUE)
        await world.until(lambda: bool(world.cluster.pods_of(uid)), "its first pods are created")
        assert {pod.attempt for pod in world.cluster.pods_of(uid)} == {1}
        assert world.cluster.job(uid).attempt == 2
        entry = await world.until_state(uid, State.RUNNING)
        assert entry.attempt == 3
        assert {pod.attempt for pod in live(world.cluster.pods_of(uid))} == {3}
        history = await world.store.history(uid)
        assert [line.reason.code for line in history].count(Code.CHANGED_OUTSIDE) == 1
        await world.at_rest()
