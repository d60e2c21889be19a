"""``queuectl plan -f`` has the snapshot that a leader plans on, and evicts the same gangs from draining queues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from queuectl.cluster.resources import watched
from queuectl.control.questions.standby import Standby
from queuectl.domain.arrays import index_uid
from queuectl.domain.ledger import State
from queuectl.domain.records import Delta
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import Placement
from queuectl.objects.documents import as_document
from queuectl.offline.inputs import read_snapshot
from queuectl.planner import plan
from queuectl.planner.verify import verify
from queuectl.state.mirror import Mirror
from tests.control.rig import Rig, configuration, gang, rig
from tests.control.test_arrays import array
from tests.control.test_elastic import elastic
from tests.control.test_pod_groups import pod


def stopping(kind: str, policy: str) -> list[dict[str, Any]]:
    """The configuration with this policy in its queue of that kind."""
    documents = [dict(document) for document in configuration(16)]
    for document in documents:
        if document["kind"] == kind:
            document["spec"] = {**document["spec"], "stopPolicy": policy}
    return documents


VERSIONS = {"jobs": ("batch/v1", "Job"), "pods": ("v1", "Pod"), "nodes": ("v1", "Node")}


def dump(world: Rig) -> list[dict[str, Any]]:
    """The objects of the API server."""
    return [
        {"apiVersion": version, "kind": kind, **document}
        for resource, (version, kind) in VERSIONS.items()
        for document in world.cluster.server.all(resource)
    ]


def planned(world: Rig, queues: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Uid, code and message of each gang that ``plan -f`` evicts, for the objects of the API server and these queues."""
    given = read_snapshot([as_document(one) for one in (*queues, *dump(world))])
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


async def of_standby(world: Rig) -> Snapshot:
    """The snapshot of a process that reads the ledger and lists the cluster."""
    mirror, listed, complete = Mirror.of(world.cluster.kinds), set[str](), asyncio.Event()

    def sink(deltas: Sequence[Delta]) -> None:
        mirror.apply(deltas)

    def synced(resource: str) -> None:
        listed.add(resource)
        if len(listed) == len(watched(kinds=world.cluster.kinds)):
            complete.set()

    watching = asyncio.create_task(world.cluster.watch(sink, synced))
    await complete.wait()
    mirror.trust_running()
    try:
        snapshot = await Standby(world.store, world.new_state(mirror), time.time).snapshot()
        assert snapshot is not None
        return snapshot
    finally:
        watching.cancel()
        await asyncio.wait({watching})


def placed(placement: Placement) -> list[tuple[Any, ...]]:
    return [(p.podset, p.by_node, dict(p.flavors), p.pods) for p in placement.podsets]


def content(snapshot: Snapshot) -> dict[str, Any]:
    """The fields on which a plan depends, without the times of the ledger, which files do not have."""
    workloads = [gang.workload for gang in snapshot.admitted]
    workloads += [gang.workload for gang in snapshot.pending]
    asked = {
        one.uid: (one.podsets, one.queue, one.priority, one.preemptible, one.user, one.growth)
        for one in workloads
    }
    return {
        "nodes": snapshot.fleet.nodes,
        "gangs": asked,
        "held": {gang.workload.uid: placed(gang.placement) for gang in snapshot.admitted},
        "lost": {gang.workload.uid: gang.lost for gang in snapshot.admitted},
        "restartable": {gang.workload.uid: gang.restartable for gang in snapshot.admitted},
        "leaving": {gang.workload.uid: gang.leaving for gang in snapshot.admitted},
        "blocked": {gang.workload.uid: gang.blocked for gang in snapshot.pending},
        "others": dict(snapshot.other_pods),
        "flavors": snapshot.config.flavors,
    }


def jobs(world: Rig) -> list[str]:
    return [world.cluster.submit(gang("Job", "train", 1))]


def index_of_array(world: Rig) -> list[str]:
    uid = world.cluster.submit(array("sweep", 2, 1))
    return [index_uid(uid, 0)]


def elastic_job(world: Rig) -> list[str]:
    uid = world.cluster.submit(elastic("grows", 1, 2))
    return [uid, index_uid(uid, 1)]


def group(world: Rig) -> list[str]:
    return [world.cluster.submit_pod(pod(f"g-{n}", "g", 2)) for n in (1, 2)][:1]


def done_index(world: Rig) -> list[str]:
    return [world.cluster.submit(gang("Job", "half", 2))]


@pytest.mark.parametrize("submit", [jobs, index_of_array, elastic_job, group, done_index])
async def test_files_have_the_snapshot_of_a_leader(
    database_url: str, submit: Callable[[Rig], list[str]]
) -> None:
    async with rig(database_url, 2) as world:
        for uid in submit(world):
            await world.until_state(uid, State.RUNNING)
        if submit is done_index:
            name = world.cluster.server.all("pods")[0]["metadata"]["name"]
            first = world.cluster.server.get("pods", "default", name)
            world.cluster.controllers.set_phase(first, "Succeeded")
            await world.until(lambda: freed(world), "the slot of the pod that ended is free")
        behind = world.cluster.submit(gang("Job", "behind", 2))
        await world.until_state(behind, State.PENDING)
        await world.stop()
        _, queues = await world.store.configuration()
        files = read_snapshot([as_document(dict(one)) for one in (*queues, *dump(world))])
        assert content(files.snapshot) == content(await of_standby(world))
        assert files.warnings == ()


async def freed(world: Rig) -> bool:
    entries = (await world.store.load()).entries
    return any(one.placement is not None and one.placement.podsets[0].pods for one in entries)
