"""Arrays on a real Postgres and the double of the cluster: each index starts, is evicted, queues again and ends for itself."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.arrays import index_uid
from queuectl.domain.commands import DONE, Action
from queuectl.domain.jobs import JobOutcome
from queuectl.domain.ledger import Document, State
from queuectl.domain.reasons import Code
from tests.control.rig import Rig, configuration, gang, live, rig
from tests.control.test_by_hand import answered
from tests.control.test_crash_matrix import survives
from tests.control.test_elastic import withdrawn
from tests.control.test_moves import (
    PLENTY,
    allow_moves,
    defragmenting,
    small,
    until_reason,
    whole,
)
from tests.support.postgres import TestPostgres


def array(name: str, indexes: int, at_once: int, gpus: int = 8, **spec: Any) -> Document:
    """An array of indexes with one pod each."""
    marked, shape = {"queuectl.dev/array": "true"}, PodSetManifest(count=indexes, gpus=gpus)
    document = m.job(
        name, "default", "research", shape, priority_class="low", retries=6, annotations=marked
    )
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    more = {"parallelism": at_once, "podFailurePolicy": {"rules": [ignored]}, **spec}
    return {**document, "spec": {**document["spec"], **more}}


def indexes(uid: str, count: int) -> list[str]:
    return [index_uid(uid, number) for number in range(count)]


async def states(world: Rig, uids: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for uid in uids:
        entry = await world.store.get_workload(uid)
        state = str(entry.state) if entry is not None else "unknown"
        found[state] = found.get(state, 0) + 1
    return found


def finish(world: Rig, uid: str) -> None:
    """Let the running pod of an index succeed."""
    (pod,) = live(world.cluster.pods_of(uid))
    world.cluster.controllers.set_phase(
        world.cluster.server.get("pods", pod.namespace, pod.name), "Succeeded"
    )


def set_size(world: Rig, name: str, **numbers: int) -> None:
    world.cluster.user_patch("Job", "default", name, {"spec": numbers})


def annotate(world: Rig, name: str, text: str) -> None:
    """Let its user change the version of an array and nothing else that queuectl reads."""
    metadata = {"annotations": {"example.com/note": text}}
    world.cluster.user_patch("Job", "default", name, {"metadata": metadata})


async def test_indexes_start_as_far_as_there_is_room_and_the_rest_stays_gated(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(array("sweep", 4, 3))
        first = indexes(uid, 4)
        await world.until_state(first[0], State.RUNNING)
        await world.until_state(first[1], State.RUNNING)
        waits = await world.until_state(first[2], State.PENDING)
        assert waits.name == "sweep_2"
        assert [pod.rank for pod in world.cluster.pods_of(uid) if pod.gated] == [2]
        assert await world.store.get_workload(first[3]) is None, "parallelism is the limit"

        finish(world, first[1])
        done = await world.until_state(first[1], State.FINISHED)
        assert done.reason.code is Code.SUCCEEDED
        await world.until_state(first[2], State.RUNNING)
        finish(world, first[0])
        await world.until_state(first[3], State.RUNNING)
        finish(world, first[2])
        finish(world, first[3])
        await world.until_state(first[3], State.FINISHED)
        await world.until_state(first[2], State.FINISHED)
        assert await states(world, first) == {"Finished": 4}
        await world.at_rest()


async def test_one_index_is_preempted_alone_and_returns(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        await evicted_alone(world)


async def evicted_alone(world: Rig) -> None:
    """One of two indexes makes room for another gang, and runs again after it."""
    uid = world.cluster.submit(array("sweep", 2, 2))
    both = indexes(uid, 2)
    for one in both:
        await world.until_state(one, State.RUNNING)
    high = world.cluster.submit(gang("Job", "high", 1, "high"))
    await world.until_state(high, State.RUNNING)
    entries = [await world.store.get_workload(one) for one in both]
    assert sorted(entry.evictions for entry in entries if entry is not None) == [0, 1]
    assert len(live(world.cluster.pods_of(uid))) == 1
    world.cluster.finish(high)
    await world.until_state(high, State.FINISHED)
    for one in both:
        await world.until_state(one, State.RUNNING)
    world.cluster.finish(uid)
    for one in both:
        done = await world.until_state(one, State.FINISHED)
        assert done.reason.code is Code.SUCCEEDED
    assert [holds(world, uid, kind) for kind in ("Complete", "Failed")] == [True, False]
    await world.at_rest()


def holds(world: Rig, uid: str, kind: str) -> bool:
    outcome = world.cluster.job(uid).outcome
    return outcome is (JobOutcome.SUCCEEDED if kind == "Complete" else JobOutcome.FAILED)


async def test_a_deleted_pod_queues_its_index_again(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(array("sweep", 2, 2))
        both = indexes(uid, 2)
        for one in both:
            await world.until_state(one, State.RUNNING)
        (pod,) = live(world.cluster.pods_of(both[0]))
        server = world.cluster.server
        server.delete("pods", server.get("pods", pod.namespace, pod.name))
        again = await world.until_entry(
            both[0], lambda e: e.attempt == 2 and e.state is State.RUNNING, "runs again"
        )
        other = await world.store.get_workload(both[1])
        assert (again.evictions, other and other.attempt) == (1, 1)


async def test_an_index_whose_pod_does_not_exist_again_yet_keeps_its_place_in_a_strict_queue(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(database_url, 1) as world:
        for document in configuration(8, strategy="StrictFIFO"):
            await world.store.put_config(document)
        (index,) = indexes(world.cluster.submit(array("sweep", 1, 1)), 1)
        await world.until_state(index, State.RUNNING)
        later = world.cluster.submit(gang("Job", "later", 1))
        await world.until_state(later, State.PENDING)
        (pod,) = live(world.cluster.pods_of(index))
        with monkeypatch.context() as stopped:
            stopped.setattr(world.cluster.controllers, "_make_job_pods", lambda *_: None)
            server = world.cluster.server
            server.delete("pods", server.get("pods", pod.namespace, pod.name))
            await world.until_entry(
                index, lambda e: e.reason.code is Code.WAITING_FOR_PODS, "waits for its pod"
            )
            waits = await world.until_state(later, State.PENDING)
            assert waits.reason.details["behind"] == "default/sweep_0"
        await world.until_entry(
            index, lambda e: e.attempt == 2 and e.state is State.RUNNING, "runs again"
        )
        finish(world, index)
        await world.until_state(later, State.RUNNING)


async def test_an_index_that_migrates_keeps_its_new_place_until_its_pod_exists_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with defragmenting(database_url) as world:
        await allow_moves(world, "Execute", PLENTY, gpus=64)
        opted_out, one = {"queuectl.dev/preemptible": "false"}, PodSetManifest(count=1, gpus=4)
        document = m.job("stays", "default", "research", one, annotations=opted_out)
        stays, other = world.cluster.submit(document), whole(world, "other")
        fills = small(world, "fills")
        for uid in (stays, other, fills):
            await world.until_state(uid, State.RUNNING)
        world.cluster.finish(other)
        (index,) = indexes(world.cluster.submit(array("sweep", 1, 1, gpus=4)), 1)
        await world.until_state(index, State.RUNNING)
        (at,) = live(world.cluster.pods_of(index))
        world.cluster.finish(fills)
        with monkeypatch.context() as stopped:
            stopped.setattr(world.cluster.controllers, "_make_job_pods", lambda *_: None)
            third = whole(world)
            await world.until_state(third, State.RESERVED)
            thief = small(world, "thief")
            await world.until_entry(index, lambda e: e.state.waiting, "has left its node")
            await until_reason(world, thief, Code.TOPOLOGY_PLACEMENT_FAILED)
        await world.until_state(third, State.RUNNING)
        assert (await world.until_state(index, State.RUNNING)).attempt == 2
        (now,) = live(world.cluster.pods_of(index))
        assert now.node != at.node
        assert (await world.entry(thief)).state is State.PENDING


async def test_an_index_that_fails_for_good_ends_and_the_others_run_on(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(array("sweep", 3, 2, backoffLimitPerIndex=0))
        first, second, third = indexes(uid, 3)
        await world.until_state(first, State.RUNNING)
        await world.until_state(second, State.RUNNING)
        (pod,) = live(world.cluster.pods_of(first))
        world.cluster.fail_pod(pod.name)
        failed = await world.until_state(first, State.FINISHED)
        assert failed.reason.code is Code.FAILED
        await world.until_state(third, State.RUNNING)
        finish(world, second)
        finish(world, third)
        assert (await world.until_state(third, State.FINISHED)).reason.code is Code.SUCCEEDED


async def test_a_held_index_stops_alone(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(array("sweep", 2, 2))
        first, second = indexes(uid, 2)
        await world.until_state(first, State.RUNNING)
        await world.until_state(second, State.RUNNING)
        await world.ask(first, Action.HOLD)
        await world.until_state(first, State.HELD)
        assert len(live(world.cluster.pods_of(second))) == 1
        await world.ask(first, Action.RELEASE)
        await world.until_state(first, State.RUNNING)


@pytest.mark.parametrize("held", [0, 1])
async def test_an_index_that_is_held_before_the_array_begins_holds_back_no_other(
    database_url: str, held: int
) -> None:
    async with rig(database_url, 2) as world:
        first = world.cluster.submit(gang("Job", "first", 2))
        await world.until_state(first, State.RUNNING)
        uid = world.cluster.submit(array("sweep", 3, 3))
        all_of = indexes(uid, 3)
        for one in all_of:
            await world.until_state(one, State.PENDING)
        await world.ask(all_of[held], Action.HOLD)
        await world.until_state(all_of[held], State.HELD)
        world.cluster.finish(first)
        for one in all_of:
            if one != all_of[held]:
                await world.until_state(one, State.RUNNING)
        assert await states(world, all_of) == {"Held": 1, "Running": 2}
        finish(world, all_of[2])
        await world.ask(all_of[held], Action.RELEASE)
        await world.until_state(all_of[held], State.RUNNING)


async def test_one_write_resumes_an_array(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(database_url, 4) as world:
        send, sent = world.cluster.patch_job, []

        async def patch_job(kind: str, namespace: str, name: str, patch: Document) -> int:
            sent.append(patch.get("spec", {}).get("suspend"))
            return await send(kind, namespace, name, patch)

        monkeypatch.setattr(world.cluster, "patch_job", patch_job)
        uid = world.cluster.submit(array("sweep", 4, 4))
        for one in indexes(uid, 4):
            await world.until_state(one, State.RUNNING)
        assert sent.count(False) == 1


async def test_a_new_leader_keeps_an_index_above_the_parallelism_held(database_url: str) -> None:
    async with rig(database_url, 3) as world:
        uid = world.cluster.submit(array("sweep", 3, 3))
        all_of = indexes(uid, 3)
        for one in all_of:
            await world.until_state(one, State.RUNNING)
        await world.ask(all_of[2], Action.HOLD)
        await world.until_state(all_of[2], State.HELD)
        set_size(world, "sweep", parallelism=2)
        await world.at_rest()
        await world.stop()
        world._task, world.running = None, True
        second = world.cluster.submit(gang("Job", "second", 1))
        await world.until_state(second, State.RUNNING)
        entry = await world.until_state(all_of[2], State.HELD)
        assert entry.parked is not None


async def test_an_index_moves_with_its_array_and_only_while_none_of_its_indexes_runs(
    database_url: str,
) -> None:
    async with rig(database_url, 1) as world:
        await world.store.put_config(m.local_queue("default", "second", "pool"))
        first = world.cluster.submit(gang("Job", "first", 1))
        await world.until_state(first, State.RUNNING)
        uid = world.cluster.submit(array("sweep", 2, 2))
        both = indexes(uid, 2)
        for one in both:
            await world.until_state(one, State.PENDING)
        annotate(world, "sweep", "before the move")
        assert await answered(world, both[1], Action.MOVE, queue="second") == DONE
        for one in both:
            await world.until_entry(one, lambda e: e.queue == "second", "is in the other queue")
        annotate(world, "sweep", "before the start")
        world.cluster.finish(first)
        await world.until_state(both[0], State.RUNNING)
        refused = await answered(world, both[1], Action.MOVE, queue="research")
        assert refused == (
            "all indexes of default/sweep are in one queue, and default/sweep_0 is Running"
        )
        assert world.cluster.job(uid).queue == "second"


async def test_a_job_after_an_array_waits_for_all_its_indexes(database_url: str) -> None:
    async with rig(database_url, 4) as world:
        uid = world.cluster.submit(array("sweep", 2, 2))
        after = {"queuectl.dev/after": "job/sweep"}
        then = world.cluster.submit(gang("Job", "then", 1, annotations=after))
        await world.until_state(then, State.HELD)
        first, second = indexes(uid, 2)
        await world.until_state(first, State.RUNNING)
        await world.until_state(second, State.RUNNING)
        finish(world, first)
        await world.until_state(first, State.FINISHED)
        await world.until_state(then, State.HELD)
        finish(world, second)
        await world.until_state(then, State.RUNNING)


async def test_an_array_that_its_user_suspends_stops_and_continues(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(array("sweep", 2, 2))
        both = indexes(uid, 2)
        for one in both:
            await world.until_state(one, State.RUNNING)
        world.cluster.user_patch("Job", "default", "sweep", {"spec": {"suspend": True}})
        for one in both:
            await world.until_entry(
                one, lambda e: e.attempt == 2 and e.state is State.RUNNING, "runs again"
            )
        world.cluster.delete_job(uid)
        for one in both:
            done = await world.until_state(one, State.FINISHED)
            assert done.reason.code is Code.DELETED


async def test_the_parallelism_of_an_array_changes_while_it_runs(database_url: str) -> None:
    async with rig(database_url, 3) as world:
        uid = world.cluster.submit(array("sweep", 3, 1))
        first, second, third = indexes(uid, 3)
        await world.until_state(first, State.RUNNING)
        assert await world.store.get_workload(second) is None
        set_size(world, "sweep", parallelism=3)
        await world.until_state(second, State.RUNNING)
        await world.until_state(third, State.RUNNING)


async def test_an_array_of_no_parallel_tasks_waits_and_keeps_its_attempts(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(array("sweep", 3, 0))
        both = indexes(uid, 2)
        await world.until(lambda: world.loop is not None and world.cluster.job(uid), "is known")
        set_size(world, "sweep", parallelism=2)
        for one in both:
            await world.until_state(one, State.RUNNING)
        set_size(world, "sweep", parallelism=0)
        for one in both:
            waits = await world.until_entry(
                one, lambda e: e.reason.code is Code.WAITING_FOR_PODS, "waits"
            )
            assert (waits.state, waits.reason.message) == (State.PENDING, "spec.parallelism is 0")
        assert not world.cluster.job(uid).suspended
        assert live(world.cluster.pods_of(uid)) == []
        set_size(world, "sweep", parallelism=2)
        for one in both:
            again = await world.until_state(one, State.RUNNING)
            assert again.attempt == 2
        await world.at_rest()


async def test_an_index_that_succeeded_runs_again_when_its_user_adds_it_again(
    database_url: str,
) -> None:
    async with rig(database_url, 3) as world:
        uid = world.cluster.submit(array("sweep", 3, 3))
        *_, last = all_of = indexes(uid, 3)
        for one in all_of:
            await world.until_state(one, State.RUNNING)
        finish(world, last)
        await world.until_state(last, State.FINISHED)
        set_size(world, "sweep", parallelism=2, completions=2)
        await world.until(lambda: withdrawn(world, "sweep", 2), "its success does not count")
        set_size(world, "sweep", parallelism=3, completions=3)
        again = await world.until_state(last, State.RUNNING)
        assert again.attempt == 2
        world.cluster.finish(uid)
        for one in all_of:
            assert (await world.until_state(one, State.FINISHED)).reason.code is Code.SUCCEEDED
        await world.at_rest()


@pytest.mark.timeout(600)
async def test_a_kill_at_any_step_of_an_array_changes_no_outcome(postgres: TestPostgres) -> None:
    await survives(postgres, evicted_alone)
