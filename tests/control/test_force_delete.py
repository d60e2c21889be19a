"""If an administrator enables it, a pod that stays Terminating on a dead node is deleted by force. No other pod is."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from queuectl.control.leader.commands import AGAIN_SECONDS, POLL_SECONDS, ForceDeletion
from queuectl.domain.commands import Action
from queuectl.domain.errors import ClusterBusy, ClusterError, WriteRefused
from queuectl.domain.fleet import Node
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import Entry, EntryChange, Intent, State
from queuectl.domain.records import Deleted, NodeRecord, Upserted
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from tests.control.alike import ALIKE
from tests.control.rig import gang, live, rig
from tests.doubles.cluster import FakeCluster
from tests.support.virtualtime import run

LEAVING = Entry("u1", "Job", "a", "train", State.EVICTING, attempt=1, intent=Intent.STOP)
STUCK = PodRecord(
    *("a", "train-0", "p1", 5),
    owner="u1",
    owner_kind="Job",
    attempt=1,
    node="n1",
    terminating=True,
)


@pytest.mark.parametrize("kind", ALIKE)
async def test_only_pods_of_an_evicted_gang_on_a_dead_node_are_deleted(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 4) as world:
        world.settings = world.settings.model_copy(update={"force_delete_seconds": 0.1})
        uid = world.cluster.submit(gang(kind, "train", 2))
        other = world.cluster.submit(gang(kind, "other", 2))
        for one in (uid, other):
            await world.until_state(one, State.RUNNING)
        first, second = live(world.cluster.pods_of(uid))
        assert first.node is not None
        world.cluster.set_ready(first.node, ready=False)
        world.cluster.controllers.hold_ends = True
        await world.ask(uid, Action.DEACTIVATE)
        await world.until(lambda: first.name in world.cluster.deleted, "it is deleted")
        await world.until(
            lambda: any(e.reason == "PodForceDeleted" for e in world.cluster.events), "an Event"
        )
        assert world.cluster.deleted == [first.name], "the other ends in its own time"
        entry = await world.until_state(uid, State.EVICTING)
        assert entry.placement is not None
        world.cluster.controllers.hold_ends = False
        await world.until_state(uid, State.DEACTIVATED)
        assert world.cluster.deleted == [first.name]
        assert len(live(world.cluster.pods_of(other))) == 2
        assert second.name not in world.cluster.deleted


def test_a_node_must_be_dead_for_the_whole_period_without_interruption() -> None:
    mirror = Mirror({"jobs": "Job"})
    ledger = Ledger([LEAVING])
    force = ForceDeletion(FakeCluster(), mirror, lambda: ledger, 300.0)

    def due(now: float, version: int, *, ready: bool) -> list[str]:
        mirror.apply([Upserted(NodeRecord(Node("n1", ready=ready), version)), Upserted(STUCK)])
        return [pod.name for _, pod in force.due(now)]

    assert due(0.0, 1, ready=False) == []
    assert due(299.0, 2, ready=False) == []
    assert due(310.0, 3, ready=True) == []
    assert due(320.0, 4, ready=False) == []
    assert due(619.0, 5, ready=False) == []
    assert due(620.0, 6, ready=False) == ["train-0"]
    mirror.apply([Deleted("nodes", "n1", 7)])
    assert [pod.name for _, pod in force.due(621.0)] == ["train-0"]
    ledger.apply([EntryChange(LEAVING, replace(LEAVING, state=State.RUNNING, intent=None), 1.0)])
    assert list(force.due(9e9)) == []


class Keeping(FakeCluster):
    """Accepts deletions of pods that a finalizer keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.accepted = 0

    async def delete_pod(self, namespace: str, name: str, uid: str, version: int) -> None:
        self.accepted += 1


async def test_a_pod_that_a_finalizer_keeps_is_not_deleted_each_second() -> None:
    mirror, cluster = Mirror({"jobs": "Job"}), Keeping()
    mirror.apply([Upserted(NodeRecord(Node("n1", ready=False), 1)), Upserted(STUCK)])
    ledger = Ledger([LEAVING])
    force = ForceDeletion(cluster, mirror, lambda: ledger, 0.0)
    with suppress(TimeoutError):
        async with asyncio.timeout(2 * POLL_SECONDS + 0.5):
            await force.run()
    assert cluster.accepted == 1
    now = asyncio.get_running_loop().time()
    assert list(force.due(now + AGAIN_SECONDS)) == [(LEAVING, STUCK)], "it is deleted again later"


class Refusing(FakeCluster):
    """Notes the times of deletions of pods, and refuses them."""

    def __init__(self, error: ClusterError) -> None:
        super().__init__()
        self.error = error
        self.asked: list[float] = []

    async def delete_pod(self, namespace: str, name: str, uid: str, version: int) -> None:
        self.asked.append(asyncio.get_running_loop().time())
        raise self.error


def refused(error: ClusterError, seconds: float) -> list[float]:
    """The times at which the deletion of a pod that is refused is sent within this time."""
    mirror, cluster = Mirror({"jobs": "Job"}), Refusing(error)
    mirror.apply([Upserted(NodeRecord(Node("n1", ready=False), 1)), Upserted(STUCK)])
    ledger = Ledger([LEAVING])

    async def main() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await ForceDeletion(cluster, mirror, lambda: ledger, 0.0).run()

    run(main())
    return cluster.asked


def test_a_refused_deletion_is_sent_again_after_pauses_that_double_and_logged_once() -> None:
    with capture_logs() as logged:
        times = refused(WriteRefused("pods is forbidden"), 600.0)
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[:6] == pytest.approx([1.0, 2.0, 4.0, 8.0, 16.0, 32.0], abs=POLL_SECONDS)
    assert pauses[6:] == pytest.approx([AGAIN_SECONDS] * len(pauses[6:]), abs=POLL_SECONDS)
    assert pauses[6:]
    assert [line["event"] for line in logged] == ["pod_not_force_deleted"]


def test_a_deletion_waits_as_long_as_the_api_server_asks_for() -> None:
    first, second, *_ = refused(ClusterBusy("429", 30.0), 60.0)
    assert second - first >= 30.0
