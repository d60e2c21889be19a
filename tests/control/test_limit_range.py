"""LimitRanges of namespaces, on a real Postgres with the API server double."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.domain.ledger import State
from queuectl.domain.quantity import CPU
from queuectl.domain.reasons import Code
from tests.control.alike import ALIKE
from tests.control.rig import Rig, gang, live, rig
from tests.control.test_lifecycle import until_reason

KINDS = pytest.mark.parametrize("kind", ALIKE)


def limit_range(name: str = "usual", **item: Any) -> dict[str, Any]:
    item = {"type": "Container", **item}
    metadata = {"name": name, "namespace": "default"}
    return {"metadata": metadata, "spec": {"limits": [item]}}


def silent(kind: str, name: str, pods: int, gpus: int = 8) -> Any:
    """A gang whose templates have no CPU and memory."""
    document: Any = gang(kind, name, pods)
    spec = document["spec"]
    parts = [spec] if kind == "Job" else spec["pytorchReplicaSpecs"].values()
    for part in parts:
        (container,) = part["template"]["spec"]["containers"]
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return document


def cpus(world: Rig, uid: str) -> list[int]:
    return [pod.requests[CPU] for pod in live(world.cluster.pods_of(uid))]


def planned_cpu(world: Rig, uid: str) -> set[int]:
    """The planned CPU of one pod of each podset."""
    assert world.loop is not None
    snapshot = world.loop.leader_state.snapshot(seek_room=False)
    workloads = [p.workload for p in snapshot.pending] + [a.workload for a in snapshot.admitted]
    (podsets,) = (workload.podsets for workload in workloads if workload.uid == uid)
    return {podset.shape.requests[CPU] for podset in podsets}


@KINDS
async def test_a_gang_is_planned_with_the_requests_of_its_pods(
    database_url: str, kind: str
) -> None:
    """Its templates request no CPU, but the pods do, and are not larger than planned."""
    async with rig(database_url, 2) as world:
        given = limit_range(defaultRequest={"cpu": "40"}, default={"cpu": "64"})
        world.cluster.server.create("limitranges", given)
        uid = world.cluster.submit(silent(kind, "train", 2))
        entry = await world.until_state(uid, State.RUNNING)
        assert entry.attempt == 1
        assert cpus(world, uid) == [40_000, 40_000]
        assert planned_cpu(world, uid) == {40_000}


async def test_two_gangs_of_one_node_each_are_counted_with_it(database_url: str) -> None:
    """The node has 64 CPUs and 8 GPUs: by their templates two pods of 4 GPUs would share it."""
    async with rig(database_url, 1) as world:
        world.cluster.server.create("limitranges", limit_range(defaultRequest={"cpu": "40"}))
        one, two = (world.cluster.submit(silent("Job", name, 1, gpus=4)) for name in ("a", "b"))
        await world.until_state(one, State.RUNNING)
        await until_reason(world, two, State.PENDING, Code.TOPOLOGY_PLACEMENT_FAILED)
        world.cluster.finish(one)
        await world.until_state(two, State.RUNNING)


@KINDS
async def test_a_gang_waits_while_a_limit_range_forbids_its_pods(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 2) as world:
        tight = world.cluster.server.create("limitranges", limit_range(max={"nvidia.com/gpu": "4"}))
        uid = world.cluster.submit(gang(kind, "train", 2))
        held = await until_reason(world, uid, State.PENDING, Code.LIMIT_RANGE_VIOLATED)
        assert "containers[0]: the request of 8 is more than the max of nvidia.com/gpu (4)" in (
            held.reason.message
        )
        assert world.cluster.pods_of(uid) == [], "none of its pods was created"
        other = world.cluster.submit(gang(kind, "other", 2, "low"))
        await until_reason(world, other, State.PENDING, Code.LIMIT_RANGE_VIOLATED)
        world.cluster.server.remove("limitranges", tight)
        await world.until_state(uid, State.RUNNING)


async def test_a_running_gang_keeps_the_requests_of_its_creation(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        usual = world.cluster.server.create(
            "limitranges", limit_range(defaultRequest={"cpu": "40"})
        )
        uid = world.cluster.submit(silent("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        less = limit_range(defaultRequest={"cpu": "1"})["spec"]
        world.cluster.server.edit("limitranges", usual, lambda d: d.update(spec=less))
        world.cluster.server.create("limitranges", limit_range("tight", max={"cpu": "2"}))
        edited = {"metadata": {"annotations": {"example.com/note": "it is considered again"}}}
        world.cluster.user_patch("Job", "default", "train", edited)
        later = world.cluster.submit(silent("Job", "later", 1))
        await until_reason(world, later, State.PENDING, Code.WAITING_FOR_QUOTA)
        assert planned_cpu(world, uid) == {40_000}
        assert planned_cpu(world, later) == {2_000}, "tight is first by name"
        entry = await world.until_state(uid, State.RUNNING)
        assert entry.attempt == 1


async def test_a_pending_gang_is_planned_with_the_current_defaults(
    database_url: str,
) -> None:
    """Its own object does not change when the LimitRange does."""
    async with rig(database_url, 1) as world:
        usual = world.cluster.server.create(
            "limitranges", limit_range(defaultRequest={"cpu": "40"})
        )
        first = world.cluster.submit(silent("Job", "first", 1))
        await world.until_state(first, State.RUNNING)
        waits = world.cluster.submit(silent("Job", "waits", 1))
        await until_reason(world, waits, State.PENDING, Code.WAITING_FOR_QUOTA)
        assert planned_cpu(world, waits) == {40_000}
        more = limit_range(defaultRequest={"cpu": "60"})["spec"]
        world.cluster.server.edit("limitranges", usual, lambda d: d.update(spec=more))
        await world.until(lambda: planned_cpu(world, waits) == {60_000}, "the new defaults count")
        assert planned_cpu(world, first) == {40_000}, "its pods exist already"


@KINDS
async def test_a_restarted_controller_uses_the_requests_of_the_pods(
    database_url: str, kind: str
) -> None:
    """The LimitRange of their creation is deleted by then."""
    async with rig(database_url, 2) as world:
        usual = world.cluster.server.create(
            "limitranges", limit_range(defaultRequest={"cpu": "40"})
        )
        uid = world.cluster.submit(silent(kind, "train", 2))
        await world.until_state(uid, State.RUNNING)
        await world.restart()
        world.cluster.server.remove("limitranges", usual)
        later = world.cluster.submit(silent("Job", "later", 1))
        await until_reason(world, later, State.PENDING, Code.WAITING_FOR_QUOTA)
        assert planned_cpu(world, uid) == {40_000}
        assert planned_cpu(world, later) == {0}
        assert (await world.until_state(uid, State.RUNNING)).attempt == 1
