"""Elastic Jobs on a real Postgres and the double of the cluster: they start with their minimum number of pods, grow and shrink."""

from __future__ import annotations

import time
from typing import Any

import pytest

from queuectl.demo import scenario as m
from queuectl.domain.arrays import index_uid
from queuectl.domain.commands import DONE, Action
from queuectl.domain.jobs import JobOutcome
from queuectl.domain.ledger import Document, State
from queuectl.domain.reasons import Code
from tests.control.rig import Rig, gang, live, rig
from tests.control.test_by_hand import answered
from tests.control.test_crash_matrix import survives
from tests.support.postgres import TestPostgres

ELASTIC = {"queuectl.dev/elastic-job": "true"}


def elastic(name: str, least: int | None, most: int, **options: Any) -> Document:
    """An elastic Job of 8-GPU pods."""
    at_least = {"queuectl.dev/job-min-parallelism": str(least)} if least is not None else {}
    document = gang("Job", name, most, annotations={**ELASTIC, **at_least}, **options)
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    more: dict[str, Any] = {"podFailurePolicy": {"rules": [ignored]}}
    if least is not None:
        more["successPolicy"] = {"rules": [{"succeededIndexes": f"0-{least - 1}"}]}
    return {**document, "spec": {**document["spec"], **more}}


def ranks(world: Rig, uid: str) -> list[int]:
    """The ranks of the pods that are released."""
    return sorted(p.rank for p in live(world.cluster.pods_of(uid)) if p.rank is not None)


def gated(world: Rig, uid: str) -> list[int]:
    pods = world.cluster.pods_of(uid)
    return sorted(p.rank for p in pods if p.gated and not p.terminal and p.rank is not None)


def succeed(world: Rig, uid: str, index: int) -> None:
    """Let the running pod of an index succeed."""
    [pod] = [p for p in live(world.cluster.pods_of(uid)) if p.rank == index]
    world.cluster.controllers.set_phase(
        world.cluster.server.get("pods", pod.namespace, pod.name), "Succeeded"
    )


def withdrawn(world: Rig, name: str, index: int) -> bool:
    """Whether the status of a Job does not list an index as completed."""
    status = world.cluster.server.get("jobs", "default", name)["status"]
    return str(index) not in status["completedIndexes"].split(",")


def resize(world: Rig, name: str, pods: int) -> None:
    world.cluster.user_patch(
        "Job", "default", name, {"spec": {"parallelism": pods, "completions": pods}}
    )


async def test_it_starts_with_its_minimum_number_and_grows_as_far_as_there_is_room(
    database_url: str,
) -> None:
    async with rig(database_url, 3) as world:
        uid = world.cluster.submit(elastic("train", 2, 4))
        base = await world.until_state(uid, State.RUNNING)
        assert base.pods == 2
        await world.until_state(index_uid(uid, 2), State.RUNNING)
        waits = await world.until_entry(
            index_uid(uid, 3), lambda e: e.reason.code is not Code.WAITING_FOR_PODS, "waits"
        )
        assert (waits.state, waits.name) == (State.PENDING, "train_3")
        assert (ranks(world, uid), gated(world, uid)) == ([0, 1, 2], [3])
        world.cluster.finish(uid)
        for one in (uid, index_uid(uid, 2), index_uid(uid, 3)):
            done = await world.until_state(one, State.FINISHED)
            assert done.reason.code is Code.SUCCEEDED
        await world.at_rest()


async def test_a_pod_is_added_in_the_topology_domain_of_its_gang(database_url: str) -> None:
    async with rig(database_url, 5) as world:
        document = elastic("train", 2, 5)
        rack = {"queuectl.dev/podset-required-topology": "topology.queuectl.dev/rack"}
        meta = document["spec"]["template"].setdefault("metadata", {})
        meta["annotations"] = {**meta.get("annotations", {}), **rack}
        uid = world.cluster.submit(document)
        await world.until_state(index_uid(uid, 3), State.RUNNING)
        waits = await world.until_entry(
            index_uid(uid, 4), lambda e: e.reason.code is not Code.WAITING_FOR_PODS, "was planned"
        )
        assert waits.state is State.PENDING, "the node of the other rack is free"
        assert ranks(world, uid) == [0, 1, 2, 3]
        await world.at_rest()


async def test_the_success_of_its_minimum_number_completes_it(database_url: str) -> None:
    async with rig(database_url, 1) as world:
        uid = world.cluster.submit(elastic("train", 1, 3))
        await world.until_state(uid, State.RUNNING)
        assert gated(world, uid) == [1, 2]
        succeed(world, uid, 0)
        await world.until_state(uid, State.FINISHED)
        assert world.cluster.job(uid).outcome is JobOutcome.SUCCEEDED


async def test_it_does_not_start_without_room_for_its_minimum_number(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(elastic("train", 3, 4))
        waits = await world.until_entry(
            uid, lambda e: e.reason.code is not Code.QUEUED, "was planned"
        )
        assert waits.state is State.PENDING
        assert not world.cluster.pods_of(uid)
        grown = await world.entry(index_uid(uid, 3))
        assert grown.state is State.PENDING


async def shrunk(world: Rig) -> None:
    """On 4 nodes, a gang of 2 to 4 pods shrinks for another gang, and grows again after it."""
    uid = world.cluster.submit(elastic("train", 2, 4))
    grown = [index_uid(uid, 2), index_uid(uid, 3)]
    for one in (uid, *grown):
        await world.until_state(one, State.RUNNING)
    high = world.cluster.submit(gang("Job", "high", 1, "high"))
    await world.until_state(high, State.RUNNING)
    assert ranks(world, uid) == [0, 1, 2], "the highest rank leaves"
    entries = [await world.entry(one) for one in (uid, *grown)]
    assert [entry.evictions for entry in entries] == [0, 0, 1]
    world.cluster.finish(high)
    await world.until_state(high, State.FINISHED)
    await world.until_state(grown[1], State.RUNNING)
    assert (await world.entry(uid)).attempt == 1, "its gang ran on"
    world.cluster.finish(uid)
    for one in (uid, *grown):
        await world.until_state(one, State.FINISHED)
    assert world.cluster.job(uid).outcome is JobOutcome.SUCCEEDED
    await world.at_rest()


async def test_it_loses_its_highest_rank_to_a_gang_of_higher_priority(
    database_url: str,
) -> None:
    async with rig(database_url, 4) as world:
        await shrunk(world)


async def test_its_gang_is_evicted_after_all_pods_above_it_and_returns_before_them(
    database_url: str,
) -> None:
    async with rig(database_url, 3) as world:
        uid = world.cluster.submit(elastic("train", 2, 3))
        grown = index_uid(uid, 2)
        await world.until_state(grown, State.RUNNING)
        high = world.cluster.submit(gang("Job", "high", 2, "high"))
        await world.until_state(high, State.RUNNING)
        assert ranks(world, uid) == []
        assert [(await world.entry(one)).evictions for one in (uid, grown)] == [1, 1]
        world.cluster.finish(high)
        await world.until_state(uid, State.RUNNING)
        again = await world.until_state(grown, State.RUNNING)
        assert again.attempt == 2
        assert ranks(world, uid) == [0, 1, 2]


async def test_it_grows_after_a_repair_for_which_the_growth_has_waited(database_url: str) -> None:
    async with rig(database_url, 3) as world:
        other = world.cluster.submit(gang("Job", "other", 2, "high"))
        await world.until_state(other, State.RUNNING)
        uid = world.cluster.submit(elastic("train", 1, 2))
        await world.until_state(uid, State.RUNNING)
        world.cluster.finish(other)
        (lost,) = live(world.cluster.pods_of(uid))
        assert lost.node is not None
        world.cluster.delete_node(lost.node)
        await world.until_state(index_uid(uid, 1), State.RUNNING)
        assert (ranks(world, uid), (await world.entry(uid)).attempt) == ([0, 1], 1)


async def test_it_does_not_grow_while_a_gang_before_it_waits(database_url: str) -> None:
    async with rig(database_url, 3) as world:
        first = world.cluster.submit(gang("Job", "first", 2, "high"))
        await world.until_state(first, State.RUNNING)
        large = world.cluster.submit(gang("Job", "large", 3, "high"))
        uid = world.cluster.submit(elastic("train", 1, 2))
        await world.until_state(uid, State.RUNNING)
        world.cluster.finish(first)
        waits = await world.until_entry(
            index_uid(uid, 1), lambda e: e.reason.code is Code.WAITING_IN_ORDER, "waits in order"
        )
        assert "default/large is pending" in waits.reason.message
        assert ranks(world, uid) == [0]
        await world.until_entry(large, lambda e: e.state is not State.PENDING, "reserves")


async def test_its_user_changes_the_number_of_pods_while_it_runs(database_url: str) -> None:
    async with rig(database_url, 4) as world:
        uid = world.cluster.submit(elastic("train", None, 2))
        await world.until_state(uid, State.RUNNING)
        assert ranks(world, uid) == [0, 1]
        resize(world, "train", 4)
        third, fourth = index_uid(uid, 2), index_uid(uid, 3)
        await world.until_state(third, State.RUNNING)
        await world.until_state(fourth, State.RUNNING)
        resize(world, "train", 3)
        waits = await world.until_entry(
            fourth, lambda e: e.reason.code is Code.WAITING_FOR_PODS, "has no pod"
        )
        assert "spec.parallelism is 3" in waits.reason.message
        other = world.cluster.submit(gang("Job", "other", 1))
        await world.until_state(other, State.RUNNING)
        resize(world, "train", 1)
        two = world.cluster.submit(gang("Job", "two", 2))
        await world.until_state(two, State.RUNNING)
        assert ranks(world, uid) == [0], "the room of its gang's pods is free as well"
        world.cluster.finish(two)
        await world.stop()
        world._task, world.running = None, True
        resize(world, "train", 4)
        await world.until_state(third, State.RUNNING)
        assert (await world.entry(uid)).attempt == 1


async def test_an_index_that_succeeded_runs_again_when_its_user_makes_the_job_larger_again(
    database_url: str,
) -> None:
    async with rig(database_url, 4) as world:
        uid = world.cluster.submit(elastic("train", 2, 4))
        last = index_uid(uid, 3)
        await world.until_state(last, State.RUNNING)
        succeed(world, uid, 3)
        await world.until_state(last, State.FINISHED)
        resize(world, "train", 3)
        await world.until(lambda: withdrawn(world, "train", 3), "its success does not count")
        assert (await world.entry(last)).state is State.FINISHED
        resize(world, "train", 4)
        again = await world.until_state(last, State.RUNNING)
        assert again.attempt == 2
        assert ranks(world, uid) == [0, 1, 2, 3]
        world.cluster.finish(uid)
        for one in (uid, index_uid(uid, 2), last):
            assert (await world.until_state(one, State.FINISHED)).reason.code is Code.SUCCEEDED
        await world.at_rest()


async def test_it_starts_again_with_the_size_that_its_user_set_below_its_minimum_number(
    database_url: str,
) -> None:
    async with rig(database_url, 3) as world:
        uid = world.cluster.submit(elastic("train", 2, 3))
        await world.until_state(index_uid(uid, 2), State.RUNNING)
        resize(world, "train", 1)
        two = world.cluster.submit(gang("Job", "two", 2))
        await world.until_state(two, State.RUNNING)
        assert (ranks(world, uid), (await world.entry(uid)).attempt) == ([0], 1)
        high = world.cluster.submit(gang("Job", "high", 3, "high"))
        await world.until_state(high, State.RUNNING)
        assert ranks(world, uid) == []
        world.cluster.finish(high)
        again = await world.until_state(uid, State.RUNNING)
        assert (again.attempt, again.pods, ranks(world, uid)) == (2, 1, [0])
        world.cluster.finish(two)
        resize(world, "train", 3)
        await world.until_state(index_uid(uid, 2), State.RUNNING)
        assert (ranks(world, uid), (await world.entry(uid)).attempt) == ([0, 1, 2], 2)


async def test_a_pod_that_is_added_has_the_queue_of_its_gang(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        await world.store.put_config(m.local_queue("default", "second", "pool"))
        uid = world.cluster.submit(elastic("train", 2, 3))
        await world.until_state(uid, State.RUNNING)
        added = index_uid(uid, 2)
        await world.until_state(added, State.PENDING)
        refused = await answered(world, added, Action.MOVE, queue="second")
        assert refused == (
            "default/train_2 is in the queue of its gang: move default/train, when it is pending or held"
        )
        assert world.cluster.job(uid).queue == "research"
        await world.ask(uid, Action.HOLD)
        await world.until_state(uid, State.HELD)
        assert await answered(world, uid, Action.MOVE, queue="second") == DONE
        for one in (uid, added):
            await world.until_entry(one, lambda e: e.queue == "second", "is in the other queue")
        assert world.cluster.job(uid).queue == "second"


async def test_all_pods_of_a_gang_have_its_priority(database_url: str) -> None:
    async with rig(database_url, 3) as world:
        uid = world.cluster.submit(elastic("train", 2, 4))
        runs, waits = index_uid(uid, 2), index_uid(uid, 3)
        await world.until_state(runs, State.RUNNING)
        await world.until_state(waits, State.PENDING)
        refused = await answered(world, runs, Action.PRIORITY, priority=77)
        assert refused == (
            "default/train_2 has the priority of its gang: set that of default/train"
        )
        usual = (await world.entry(uid)).priority
        until = time.time() + 1.5
        assert await answered(world, uid, Action.PRIORITY, priority=77, until=until) == DONE
        for one in (uid, runs, waits):
            await world.until_entry(one, lambda e: e.priority == 77, "has the priority of its gang")
        for one in (uid, runs, waits):
            await world.until_entry(one, lambda e: e.priority == usual, "has the usual priority")
        assert (await world.entry(runs)).attempt == 1, "it runs on"


@pytest.mark.timeout(600)
async def test_a_kill_at_any_step_of_an_elastic_job_changes_no_outcome(
    postgres: TestPostgres,
) -> None:
    await survives(postgres, shrunk, lambda url: rig(url, 4))
