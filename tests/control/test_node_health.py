"""A node fails while a gang runs on it: by the policy of its queue the gang stays, or it is requeued and starts on other nodes."""

from __future__ import annotations

import pytest

from queuectl.domain.events import Evict
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Document, Entry, State
from queuectl.domain.node_health import Straggler
from queuectl.domain.reasons import Code
from queuectl.lifecycle.nodes import LostDevices
from tests.control.rig import Rig, configuration, gang, live, rig

EVIDENCE = "GPU 3: XID 79"


@pytest.mark.parametrize("drains", [False, True])
async def test_a_gang_leaves_a_failing_node_if_its_queue_drains_such_nodes(
    database_url: str, *, drains: bool
) -> None:
    async with rig(database_url, 4) as world:
        for document in configuration(32):
            if document["kind"] == "ClusterQueue" and drains:
                document["spec"]["policy"] = {"unhealthyNodes": "Drain"}
                await world.store.put_config(document)
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        failing = str(live(world.cluster.pods_of(uid))[0].node)
        assert world.loop is not None
        world.loop.judged({failing: EVIDENCE})
        if drains:
            await world.until_entry(uid, lambda e: e.evictions == 1, "it is requeued")
        else:
            await world.at_rest()
        entry = await world.until_state(uid, State.RUNNING)
        assert (failing in nodes_of(entry)) is not drains
        events = [line.event for line in await world.store.history(uid)]
        assert ("NodeUnhealthy" in events) is drains


@pytest.mark.sets_aside
async def test_a_gang_whose_nodes_cannot_be_judged_keeps_no_other_on_its_failing_node(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, names = LostDevices.eviction, set[str]()

    def eviction(self: LostDevices, entry: Entry, job: JobRecord) -> Evict | None:
        if entry.name in names:
            raise RuntimeError("cannot be judged")
        return real(self, entry, job)

    monkeypatch.setattr(LostDevices, "eviction", eviction)
    async with rig(database_url, 4) as world:
        await drains(world, 32)
        first = world.cluster.submit(gang("Job", "first", 1))
        second = world.cluster.submit(gang("Job", "second", 1))
        for uid in (first, second):
            await world.until_state(uid, State.RUNNING)
        failing = {
            str(pod.node): EVIDENCE
            for u in (first, second)
            for pod in live(world.cluster.pods_of(u))
        }
        names.add("first")
        assert world.loop is not None
        world.loop.judged(failing)
        await world.until_entry(second, lambda e: e.evictions == 1, "it is requeued")
        later = world.cluster.submit(gang("Job", "later", 1))
        await world.until_state(later, State.RUNNING)
        entry = await world.entry(first)
        assert (entry.state, entry.evictions) == (State.RUNNING, 0)


def tolerant(name: str, pods: int) -> Document:
    """A gang whose pods tolerate all taints."""
    document = gang("Job", name, pods)
    template = document["spec"]["template"]
    spec = {**template["spec"], "tolerations": [{"operator": "Exists"}]}
    return {**document, "spec": {**document["spec"], "template": {**template, "spec": spec}}}


async def drains(world: Rig, gpus: int) -> None:
    for document in configuration(gpus):
        if document["kind"] == "ClusterQueue":
            document["spec"]["policy"] = {"unhealthyNodes": "Drain"}
            await world.store.put_config(document)


async def test_a_gang_that_tolerates_everything_does_not_return_to_a_failing_node(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        await drains(world, 16)
        uid = world.cluster.submit(tolerant("train", 1))
        entry = await world.until_state(uid, State.RUNNING)
        assert world.loop is not None
        (first,) = nodes_of(entry)
        world.loop.judged({first: EVIDENCE})
        moved = await world.until_entry(
            uid, lambda e: e.state is State.RUNNING and e.evictions == 1, "runs elsewhere"
        )
        (second,) = nodes_of(moved)
        assert second != first
        world.loop.judged({first: EVIDENCE, second: EVIDENCE})
        waits = await world.until_entry(
            uid,
            lambda e: e.evictions == 2 and e.reason.code is Code.TOPOLOGY_PLACEMENT_FAILED,
            "waits while both nodes fail",
        )
        assert waits.excluded == ()
        world.loop.judged({second: EVIDENCE})
        again = await world.until_state(uid, State.RUNNING)
        assert (nodes_of(again), again.evictions) == ({first}, 2)


async def test_a_gang_that_tolerates_everything_does_not_return_to_a_node_that_is_taken_away(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(tolerant("train", 1))
        (first,) = nodes_of(await world.until_state(uid, State.RUNNING))
        world.cluster.taint(first, TAKEN, "NoSchedule")
        moved = await world.until_entry(
            uid, lambda e: e.state is State.RUNNING and e.evictions == 1, "runs elsewhere"
        )
        (second,) = nodes_of(moved)
        assert second != first
        world.cluster.taint(second, TAKEN, "NoSchedule")
        await world.until_entry(
            uid,
            lambda e: e.evictions == 2 and e.reason.code is Code.TOPOLOGY_PLACEMENT_FAILED,
            "waits while both nodes are taken away",
        )


TAKEN = "cloud.google.com/impending-node-termination"


@pytest.mark.parametrize(
    ("key", "effect", "moves"),
    [
        pytest.param(TAKEN, "NoSchedule", True, id="an interruption"),
        pytest.param(TAKEN, "PreferNoSchedule", False, id="only a preference"),
        pytest.param("example.com/other", "NoSchedule", False, id="another taint"),
    ],
)
async def test_a_gang_leaves_a_node_that_the_cloud_takes_away(
    database_url: str, key: str, effect: str, *, moves: bool
) -> None:
    async with rig(database_url, 4) as world:
        await world.store.put_config(
            {"apiVersion": "queuectl.dev/v1", "kind": "Configuration", "metadata": {"name": "default"},
             "queuectl": {"evictionGrace": "1s"}}
        )  # fmt: skip
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        leaving = str(live(world.cluster.pods_of(uid))[0].node)
        world.cluster.taint(leaving, key, effect)
        if moves:
            entry = await world.until_state(uid, State.EVICTING)
            assert entry.reason.code is Code.NODE_INTERRUPTED
            assert entry.reason.message == (
                f"evicted before its nodes are taken away: {leaving}: taint {key}"
            )
            assert entry.stop_at is not None, "it has time to save its work"
            assert len(live(world.cluster.pods_of(uid))) == 2
            await world.until_state(uid, State.PENDING)
        else:
            await world.at_rest()
        entry = await world.until_state(uid, State.RUNNING)
        assert (leaving in nodes_of(entry)) is not moves


async def test_a_gang_leaves_a_node_whose_condition_announces_its_end(database_url: str) -> None:
    async with rig(database_url, 3) as world:
        await world.store.put_config(
            {"apiVersion": "queuectl.dev/v1", "kind": "Configuration", "metadata": {"name": "default"},
             "queuectl": {"evictionGrace": "1s", "interruptionConditions": {"VMEventScheduled": True}}}
        )  # fmt: skip
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        leaving = str(live(world.cluster.pods_of(uid))[0].node)
        world.cluster.set_node_condition(leaving, "VMEventScheduled", "False")
        world.cluster.set_node_condition(leaving, "Other", "True")
        await world.at_rest()
        assert (await world.until_state(uid, State.RUNNING)).evictions == 0

        world.cluster.set_node_condition(leaving, "VMEventScheduled", "True")
        entry = await world.until_state(uid, State.EVICTING)
        assert entry.reason.code is Code.NODE_INTERRUPTED
        assert entry.reason.message == (
            f"evicted before its nodes are taken away: {leaving}: condition VMEventScheduled=True"
        )
        assert entry.stop_at is not None, "it has time to save its work"
        entry = await world.until_entry(
            uid, lambda e: e.state is State.RUNNING and e.attempt == 2, "it runs again"
        )
        assert leaving not in nodes_of(entry)
        third = world.cluster.submit(gang("Job", "third", 1))
        await world.until_entry(
            third, lambda e: e.reason.code is Code.TOPOLOGY_PLACEMENT_FAILED, "no node is left"
        )
        world.cluster.set_node_condition(leaving, "VMEventScheduled", "False")
        assert nodes_of(await world.until_state(third, State.RUNNING)) == {leaving}


def nodes_of(entry: Entry) -> set[str]:
    placed = entry.placement.podsets if entry.placement is not None else ()
    return {node for podset in placed for node, _ in podset.nodes}


async def test_a_straggler_is_in_the_history_once_and_the_gang_stays(database_url: str) -> None:
    async with rig(database_url, 3) as world:
        uid = world.cluster.submit(gang("Job", "train", 2))
        entry = await world.until_state(uid, State.RUNNING)
        pod = live(world.cluster.pods_of(uid))[0]
        slow = Straggler(
            uid, entry.attempt, "pool", pod.name, str(pod.node), "GPU 3", 990.0, 1980.0
        )
        assert world.loop is not None
        for _ in range(3):
            world.loop.compared([slow])
            await world.at_rest()
        lines = [line for line in await world.store.history(uid) if line.event == "Straggler"]
        assert [str(slow)] == [line.reason.message for line in lines]
        entry = await world.until_state(uid, State.RUNNING)
        assert (entry.evictions, entry.reason.code) == (0, Code.PODS_READY)
