"""Single pods and groups of pods: they wait with their gate, start together, are deleted by an eviction and queue again when replaced."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from queuectl.domain.commands import Action
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import Entry, State
from queuectl.domain.reasons import Code
from queuectl.objects import keys
from tests.control.rig import Rig, rig
from tests.control.test_crash_matrix import survives
from tests.doubles.apiserver import Document
from tests.support.postgres import TestPostgres

Q = keys.KUEUE_PREFIX


def pod(name: str, group: str = "", total: int = 0, *, gpus: int = 8, **more: Any) -> Document:
    """A pod as users of Kueue write it. ``more``: annotations by their suffix, with _ for -; ``queue``, ``priority``."""
    labels = {Q + "queue-name": more.pop("queue", "research")}
    labels |= {Q + "priority-class": more.pop("priority", "low")}
    annotations = {Q + key.replace("_", "-"): str(value) for key, value in more.items()}
    if group:
        labels[Q + "pod-group-name"] = group
        annotations[Q + "pod-group-total-count"] = str(total)
    amounts = {"nvidia.com/gpu": str(gpus), "cpu": "1"}
    container = {
        "name": "main",
        "image": "i",
        "resources": {"limits": amounts, "requests": amounts},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }


class Maker:
    """Creates the pods of a group, and creates those again that are deleted."""

    def __init__(self, world: Rig, group: str, total: int, **more: Any) -> None:
        self._world, self._group, self._total, self._more = world, group, total, more
        self._made = 0
        self.active = True
        self.make()

    def make(self) -> None:
        present = [p for p in of_group(self._world, self._group) if p.phase != "Failed"]
        for _ in range(self._total - len(present)):
            self._made += 1
            name = f"{self._group}-{self._made}"
            self._world.cluster.submit_pod(pod(name, self._group, self._total, **self._more))

    def turn(self) -> None:
        if self.active:
            self.make()


def of_group(world: Rig, group: str) -> list[PodRecord]:
    return [p for p in world.cluster.all_pods() if p.name.rpartition("-")[0] == group]


def running(world: Rig, group: str) -> list[PodRecord]:
    return [p for p in of_group(world, group) if p.ready and not p.terminating]


async def group_entry(world: Rig, name: str, state: State) -> Entry:
    """Run until the group, or the pod, of this name is in the state."""

    async def read() -> Entry | None:
        for kind in ("PodGroup", "Pod"):
            entry = await world.store.find_workload(kind, "default", name)
            if entry is not None:
                return entry
        return None

    return await world.until_found(read, lambda entry: entry.state is state, f"{name}: {state}")


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[Rig]:
    async with rig(database_url, 2) as world:
        yield world


def succeed(world: Rig, group: str) -> None:
    for record in running(world, group):
        document = world.cluster.server.get("pods", "default", record.name)
        world.cluster.controllers.set_phase(document, "Succeeded")


async def test_a_single_pod_is_a_gang_of_one(world: Rig) -> None:
    world.cluster.submit_pod(pod("alone-1"))
    entry = await group_entry(world, "alone-1", State.RUNNING)
    assert (entry.kind, entry.pods, entry.gpus) == ("Pod", 1, 8)
    [record] = running(world, "alone")
    assert (record.attempt, record.pin) == (1, record.node)
    succeed(world, "alone")
    done = await group_entry(world, "alone-1", State.FINISHED)
    assert done.reason.code is Code.SUCCEEDED


async def test_a_group_starts_when_all_its_pods_exist(world: Rig) -> None:
    world.cluster.submit_pod(pod("g-1", "g", 2))
    waits = await group_entry(world, "g", State.PENDING)

    async def says() -> bool:
        entry = await world.store.get_workload(waits.uid)
        return entry is not None and entry.reason.code is Code.WAITING_FOR_PODS

    await world.until(says, "the reason is the missing pod")
    assert running(world, "g") == []
    world.cluster.submit_pod(pod("g-2", "g", 2))
    entry = await group_entry(world, "g", State.RUNNING)
    assert (entry.kind, entry.pods, entry.uid) == ("PodGroup", 2, waits.uid)
    assert {p.node for p in running(world, "g")} == {"n0", "n1"}
    succeed(world, "g")
    assert (await group_entry(world, "g", State.FINISHED)).reason.code is Code.SUCCEEDED
    await world.at_rest()


async def test_a_group_with_fast_admission_reserves_capacity_for_pods_that_do_not_exist(
    world: Rig,
) -> None:
    fast: dict[str, Any] = {"pod_group_fast_admission": "true"}
    world.cluster.submit_pod(pod("g-1", "g", 2, **fast))
    await world.until(lambda: len(running(world, "g")) == 1, "the first pod runs")
    world.cluster.submit_pod(pod("other-1"))
    other = await group_entry(world, "other-1", State.PENDING)
    world.cluster.submit_pod(pod("g-2", "g", 2, **fast))
    assert (await group_entry(world, "g", State.RUNNING)).pods == 2
    assert (await world.store.get_workload(other.uid)).state is State.PENDING  # type: ignore[union-attr]


async def story(world: Rig) -> None:
    """A group runs, is preempted, is created again by its maker, runs again and ends; another group runs in between."""
    low = Maker(world, "low", 2)
    world.each_turn = low.turn
    first = await group_entry(world, "low", State.RUNNING)
    high = Maker(world, "high", 2, priority="high")
    high.active = False
    await group_entry(world, "high", State.RUNNING)
    assert running(world, "low") == [], "the pods of the victim end before the start"
    succeed(world, "high")
    done = await group_entry(world, "high", State.FINISHED)
    assert done.reason.code is Code.SUCCEEDED
    again = await group_entry(world, "low", State.RUNNING)
    assert (again.uid, again.evictions) == (first.uid, 1)
    low.active = False
    succeed(world, "low")
    await group_entry(world, "low", State.FINISHED)
    await world.at_rest()


async def test_an_evicted_group_queues_again_when_its_pods_are_created_again(world: Rig) -> None:
    await story(world)


@pytest.mark.timeout(600)
async def test_a_kill_at_any_step_changes_no_outcome_for_groups(postgres: TestPostgres) -> None:
    await survives(postgres, story)


async def test_a_pod_that_its_maker_creates_again_takes_the_place_of_a_failed_one(
    world: Rig,
) -> None:
    maker = Maker(world, "g", 2)
    maker.active = False
    before = await group_entry(world, "g", State.RUNNING)
    lost = running(world, "g")[0]
    world.cluster.fail_pod(lost.name)
    maker.make()
    await world.until(lambda: len(running(world, "g")) == 2, "the replacement runs")
    assert {p.node for p in running(world, "g")} == {"n0", "n1"}
    after = await world.entry(before.uid)
    assert (after.attempt, after.evictions) == (1, 0)


async def test_a_group_whose_pods_its_user_deletes_ends(world: Rig) -> None:
    maker = Maker(world, "g", 2)
    maker.active = False
    await group_entry(world, "g", State.RUNNING)
    for record in of_group(world, "g"):
        world.cluster.delete_pod_of_user(record.name)
    done = await group_entry(world, "g", State.FINISHED)
    assert done.reason.code is Code.DELETED


async def test_a_pod_of_a_statefulset_that_is_created_again_takes_its_place_before_others(
    world: Rig,
) -> None:
    # The double knows no StatefulSets: a pod that runs elsewhere has the uid of this one.
    stands_in = world.cluster.submit_pod(pod("uid-of-the-set"))
    await group_entry(world, "uid-of-the-set", State.RUNNING)
    owner = {"kind": "StatefulSet", "name": "store", "uid": stands_in, "controller": True}
    template = pod("store-0", "store", 1)
    template["metadata"]["ownerReferences"] = [owner]
    template["spec"]["restartPolicy"] = "Always"
    world.cluster.submit_pod(template)
    before = await group_entry(world, "store", State.RUNNING)
    world.cluster.submit_pod(pod("later-1"))
    await group_entry(world, "later-1", State.PENDING)
    world.cluster.delete_pod_of_user("store-0")
    await world.until(lambda: not of_group(world, "store"), "it is deleted")
    await world.until_entry(
        before.uid, lambda e: e.reason.code is Code.WAIT_FOR_RECOVERY, "its pod is missing"
    )
    world.cluster.submit_pod(template)
    await world.until(lambda: len(running(world, "store")) == 1, "the new pod runs")
    after = await world.entry(before.uid)
    assert (after.attempt, after.evictions, after.placement) == (1, 0, before.placement)


async def test_a_failed_pod_that_is_not_retriable_ends_its_group(world: Rig) -> None:
    for number in (1, 2):
        world.cluster.submit_pod(pod(f"g-{number}", "g", 2, retriable_in_group="false"))
    await group_entry(world, "g", State.RUNNING)
    for record in running(world, "g"):
        world.cluster.fail_pod(record.name)
    assert (await group_entry(world, "g", State.FINISHED)).reason.code is Code.FAILED


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({"queue": "research"}, {"queue": "other"}, "different queues: other, research"),
        ({"total": 2}, {"total": 3}, "different values of pod-group-total-count: 2, 3"),
        ({"total": 2}, {"total": "two"}, "pod g-2: metadata.annotations: pod-group-total-count"),
    ],
)
async def test_pods_of_a_group_that_contradict_each_other_do_not_start(
    world: Rig, first: dict[str, Any], second: dict[str, Any], text: str
) -> None:
    for number, given in ((1, first), (2, second)):
        more = {"total": 2, **given}
        world.cluster.submit_pod(pod(f"g-{number}", "g", **more))
    waits = await group_entry(world, "g", State.PENDING)
    entry = await world.until_entry(
        waits.uid, lambda e: e.reason.code is Code.MISCONFIGURED, "is misconfigured"
    )
    assert text in entry.reason.message
    assert running(world, "g") == []


async def test_a_group_with_too_many_pods_leaves_the_last_ones_gated(world: Rig) -> None:
    """When the group has ended, they wait as a new group."""
    for number in (1, 2, 3):
        world.cluster.submit_pod(pod(f"g-{number}", "g", 2, gpus=1))
    first = await group_entry(world, "g", State.RUNNING)
    assert [p.gated for p in of_group(world, "g")] == [False, False, True]
    succeed(world, "g")
    done = await world.until_state(first.uid, State.FINISHED)
    assert done.reason.code is Code.SUCCEEDED
    assert (await group_entry(world, "g", State.PENDING)).uid != first.uid


async def test_a_group_of_the_same_name_in_another_namespace_is_another_group(world: Rig) -> None:
    world.cluster.submit_pod(pod("g-1", "g", 2))
    forged = pod("g-2", "g", 2)
    forged["metadata"]["namespace"] = "queuectl-system"
    world.cluster.submit_pod(forged)
    entry = await group_entry(world, "g", State.PENDING)
    await world.until_entry(
        entry.uid, lambda e: e.reason.code is Code.WAITING_FOR_PODS, "waits for its own pod"
    )


async def test_a_pod_that_is_deleted_while_its_group_waits_keeps_the_group_waiting(
    world: Rig,
) -> None:
    world.cluster.submit_pod(pod("busy-1", priority="high"))
    world.cluster.submit_pod(pod("busy-2", priority="high"))
    await group_entry(world, "busy-2", State.RUNNING)
    maker = Maker(world, "g", 2)
    maker.active = False
    waits = await group_entry(world, "g", State.PENDING)
    world.cluster.delete_pod_of_user("g-1")
    await world.until_entry(
        waits.uid, lambda e: e.reason.code is Code.WAITING_FOR_PODS, "waits for its pod"
    )
    succeed(world, "busy")
    maker.make()
    assert (await group_entry(world, "g", State.RUNNING)).uid == waits.uid


async def test_a_group_without_pods_keeps_its_request_and_can_be_held_after_a_restart(
    world: Rig,
) -> None:
    maker = Maker(world, "low", 2)
    maker.active = False
    first = await group_entry(world, "low", State.RUNNING)
    high = Maker(world, "high", 2, priority="high")
    high.active = False
    await group_entry(world, "high", State.RUNNING)
    await world.until_state(first.uid, State.PENDING)
    await world.restart()

    def awaits_pods(entry: Entry) -> bool:
        return entry.reason.message.endswith("none of its 2 pods exists")

    await world.until_entry(first.uid, awaits_pods, "the missing pods are named")
    for action, state in ((Action.HOLD, State.HELD), (Action.RELEASE, State.PENDING)):
        await world.ask(first.uid, action)
        entry = await world.until_state(first.uid, state)
        assert request_of(entry) == request_of(first)
    await world.until_entry(first.uid, awaits_pods, "the missing pods are named")
    succeed(world, "high")
    await group_entry(world, "high", State.FINISHED)
    maker.make()
    again = await group_entry(world, "low", State.RUNNING)
    assert (again.uid, request_of(again)) == (first.uid, request_of(first))


def request_of(entry: Entry) -> tuple[object, ...]:
    return entry.queue, entry.cluster_queue, entry.priority, entry.gpus, entry.pods, entry.user


@pytest.mark.parametrize("again", ["the leader starts again", "the leader reads its state again"])
async def test_a_pod_that_succeeded_and_was_deleted_stays_counted(world: Rig, again: str) -> None:
    for number in (1, 2, 3):
        world.cluster.submit_pod(pod(f"g-{number}", "g", 3, gpus=1))
    entry = await group_entry(world, "g", State.RUNNING)
    document = world.cluster.server.get("pods", "default", "g-1")
    world.cluster.controllers.set_phase(document, "Succeeded")

    def slots(entry: Entry) -> int:
        podsets = entry.placement.podsets if entry.placement is not None else ()
        return sum(podset.pods or podset.count for podset in podsets)

    await world.until_entry(entry.uid, lambda e: slots(e) == 2, "its slot is free")
    world.cluster.delete_pod_of_user("g-1")
    await world.until(lambda: len(of_group(world, "g")) == 2, "it is deleted")
    if again == "the leader starts again":
        await world.restart()
    else:
        assert world.loop is not None
        await world.loop._reload()
    world.cluster.submit_pod(pod("other-1", gpus=1))
    await group_entry(world, "other-1", State.RUNNING)
    assert len(running(world, "g")) == 2, "no pod is deleted"
    succeed(world, "g")
    done = await group_entry(world, "g", State.FINISHED)
    assert (done.reason.code, done.evictions) == (Code.SUCCEEDED, 0)
