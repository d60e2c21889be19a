"""Each group of a LeaderWorkerSet is a gang, on the double: whole at each start, and in its places when its operator creates it again."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.commands import Action
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import Entry, State
from queuectl.domain.reasons import Code
from queuectl.objects.kinds.leaderworkerset import KIND, PLURAL
from tests.control.rig import Rig, rig
from tests.control.test_crash_matrix import survives
from tests.doubles import lws_operator
from tests.doubles.apiserver import Document
from tests.support.leaderworkersets import leaderworkerset
from tests.support.postgres import TestPostgres


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[Rig]:
    async with rig(database_url, 2) as world:
        yield world


def submitted(world: Rig, name: str, priority: str, replicas: int = 1) -> Document:
    """A set of groups of two pods, each of which takes a node."""
    return world.cluster.submit_set(
        leaderworkerset(
            name,
            "default",
            PodSetManifest(2, gpus=8),
            replicas=replicas,
            queue="research",
            priority_class=priority,
        )
    )


def removed(world: Rig, document: Document) -> None:
    world.cluster.server.remove(PLURAL, document)


def running(world: Rig, group: str) -> list[PodRecord]:
    found = (pod for pod in world.cluster.all_pods() if f"{pod.name}-".startswith(f"{group}-"))
    return [pod for pod in found if pod.ready and not pod.terminating]


async def entry_of(world: Rig, group: str, state: State) -> Entry:
    """Run until a group is in the state."""

    async def read() -> Entry | None:
        return await world.store.find_workload(KIND, "default", group)

    return await world.until_found(read, lambda entry: entry.state is state, f"{group}: {state}")


async def story(world: Rig) -> None:
    """A group runs, is created again after the loss of a pod, is preempted, runs again and ends with its set."""
    low = submitted(world, "low", "low")
    first = await entry_of(world, "low-0", State.RUNNING)
    before = {(pod.rank, pod.node) for pod in running(world, "low-0")}
    old = {pod.uid for pod in running(world, "low-0")}
    world.cluster.fail_pod("low-0-1")
    await world.until(
        lambda: len({pod.uid for pod in running(world, "low-0")} - old) == 2, "it is created again"
    )
    assert {(pod.rank, pod.node) for pod in running(world, "low-0")} == before

    high = submitted(world, "high", "high")
    await entry_of(world, "high-0", State.RUNNING)
    assert running(world, "low-0") == [], "the pods of the victim end before the start"
    removed(world, high)
    assert (await entry_of(world, "high-0", State.FINISHED)).reason.code is Code.DELETED
    again = await entry_of(world, "low-0", State.RUNNING)
    assert (again.uid, again.attempt, again.evictions) == (first.uid, 2, 1)
    removed(world, low)
    await entry_of(world, "low-0", State.FINISHED)
    await world.at_rest()


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_a_kill_at_any_step_changes_no_outcome_for_groups_of_a_set(
    postgres: TestPostgres,
) -> None:
    await survives(postgres, story)


async def test_the_groups_of_a_set_start_one_by_one(world: Rig) -> None:
    """Both nodes are taken by the first group."""
    submitted(world, "serve", "low", replicas=2)
    await entry_of(world, "serve-0", State.RUNNING)
    waits = await entry_of(world, "serve-1", State.PENDING)
    assert running(world, "serve-1") == []
    world.cluster.server.edit(
        PLURAL,
        world.cluster.server.get(PLURAL, "default", "serve"),
        lambda one: one["spec"].update(replicas=1),
    )
    assert (await world.until_state(waits.uid, State.FINISHED)).reason.code is Code.DELETED


async def test_a_group_without_pods_can_be_held_and_released_after_a_restart(
    world: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    high = submitted(world, "high", "high")
    await entry_of(world, "high-0", State.RUNNING)
    submitted(world, "low", "low")
    first = await entry_of(world, "low-0", State.PENDING)
    with monkeypatch.context() as without_operator:
        without_operator.setattr(lws_operator, "sync", lambda *_: None)
        for name in ("low-0", "low-0-1"):
            world.cluster.server.remove("pods", world.cluster.server.get("pods", "default", name))
        await world.restart()
        for action, state in ((Action.HOLD, State.HELD), (Action.RELEASE, State.PENDING)):
            await world.ask(first.uid, action)
            entry = await world.until_state(first.uid, state)
            assert (entry.pods, entry.gpus, entry.priority) == (2, 16, first.priority)
        await world.until_entry(
            first.uid, lambda e: e.reason.code is Code.WAITING_FOR_PODS, "waits for its pods"
        )
    removed(world, high)
    assert (await entry_of(world, "low-0", State.RUNNING)).uid == first.uid
