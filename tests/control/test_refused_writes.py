"""Every write that the actuator can owe is refused for good: what then happens to slots, pods, and the gangs that wait.

Each story has one gang for each status with which the API server, or a webhook behind it, can say no.
"""

from __future__ import annotations

from functools import partial

import pytest

from queuectl.demo import manifests as m
from queuectl.domain.commands import Action
from queuectl.domain.ledger import Entry, Purpose, State
from queuectl.domain.reasons import Code
from queuectl.domain.records import PodPhase
from tests.control.rig import Rig, gang, live, rig
from tests.control.test_lifecycle import rules, until_reason
from tests.doubles.cluster import Moment, Written

KINDS = ("Job", "PyTorchJob")
CODES = (400, 403, 404, 409, 413, 422)


def purpose(write: Written) -> Purpose | None:
    """What a write is for, by what it changes."""
    spec = write.patch.get("spec", {})
    if write.resource == "Pod":
        return Purpose.PIN
    suspend = spec.get("suspend", spec.get("runPolicy", {}).get("suspend"))
    if suspend is not None:
        return Purpose.STOP if suspend else Purpose.START
    if "labels" in write.patch["metadata"]:
        return Purpose.MOVE
    noted = write.patch["metadata"].get("annotations", {})
    return Purpose.NOTICE if "queuectl.dev/preempt-requested" in noted else None


def refuse(world: Rig, *purposes: Purpose | None) -> None:
    """From now on, writes for these purposes (None: the status) to gangs that are named after a status get that status."""

    def answer(write: Written) -> int | None:
        head = write.name.split("-")[0]
        if purpose(write) not in purposes or not head.startswith("g"):
            return None
        return int(head[1:])

    world.cluster.refuses = answer


def accept(world: Rig) -> None:
    world.cluster.refuses = lambda _: None


async def submit(world: Rig, kind: str) -> dict[str, str]:
    """uid -> the status that its writes get."""
    return {world.cluster.submit(gang(kind, f"g{code}", 2)): str(code) for code in CODES}


def told(world: Rig, uid: str, code: Code) -> bool:
    return any(
        e.uid == uid and e.reason == code and e.kind == "Warning" for e in world.cluster.events
    )


async def says(world: Rig, uid: str, code: str, write: Purpose) -> Entry:
    """Until the workload, an Event and the gauge say that this write is refused, with this status."""
    entry = await world.until_entry(uid, lambda e: e.refused_write is write, f"{write} refused")
    assert f" {code}: " in entry.reason.message
    assert "remove the cause" in entry.reason.message
    await world.until(lambda: told(world, uid, Code.WRITE_REFUSED), "an Event says so")
    return entry


def refused_now(world: Rig, write: Purpose) -> float:
    labels = {"cluster_queue": "pool", "kind": str(write)}
    return world.metrics.registry.get_sample_value("queuectl_refused_writes", labels) or 0.0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_refused_start_gives_its_slots_back_and_says_why(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 2) as world:
        refuse(world, Purpose.START)
        refused = await submit(world, kind)
        fine = world.cluster.submit(gang(kind, "fine", 2))
        await world.until_state(fine, State.RUNNING)
        for uid, code in refused.items():
            entry = await until_reason(world, uid, State.BACKOFF, Code.BACKOFF)
            assert f" {code}: a webhook says no" in entry.reason.message
            assert (entry.placement, world.cluster.pods_of(uid)) == (None, [])
            await world.until(partial(told, world, uid, Code.START_REFUSED), "an Event")
        accept(world)
        world.cluster.finish(fine)
        first = next(iter(refused))
        await world.ask(first, Action.REQUEUE)
        await world.until_state(first, State.RUNNING)
        await world.at_rest()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_start_whose_annotations_are_full_goes_without_the_status(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 2) as world:
        world.cluster.refuses = lambda w: (
            422 if "queuectl.dev/status" in w.patch["metadata"].get("annotations", {}) else None
        )
        uid = world.cluster.submit(gang(kind, "train", 2))
        await world.until_state(uid, State.RUNNING)
        await world.until(lambda: any(e.uid == uid for e in world.cluster.events), "Events come")
        await world.ask(uid, Action.HOLD)
        await world.until_state(uid, State.HELD)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_cannot_be_stopped_counts_on_and_others_are_planned_elsewhere(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 2 * len(CODES) + 2) as world:
        refused = await submit(world, kind)
        fine = world.cluster.submit(gang(kind, "fine", 2))
        for uid in (*refused, fine):
            await world.until_state(uid, State.RUNNING)
        refuse(world, Purpose.STOP)
        for uid in refused:
            await world.ask(uid, Action.REQUEUE)
        for uid, code in refused.items():
            entry = await says(world, uid, code, Purpose.STOP)
            assert (entry.state, entry.reason.code) == (State.EVICTING, Code.REQUEUED)
            assert len(live(world.cluster.pods_of(uid))) == 2
        assert refused_now(world, Purpose.STOP) == len(CODES)
        high = world.cluster.submit(gang(kind, "high", 2, "high"))
        await world.until_state(high, State.RUNNING)
        assert live(world.cluster.pods_of(fine)) == [], "the only one that can be stopped"
        accept(world)
        world.cluster.finish(high)
        for uid in refused:
            again = await world.until_entry(
                uid, lambda e: e.state is State.RUNNING and e.attempt == 2, "it starts again"
            )
            assert again.refused_write is None
        assert refused_now(world, Purpose.STOP) == 0
        await world.at_rest()


async def test_a_gang_whose_victim_cannot_be_stopped_finds_another(database_url: str) -> None:
    async with rig(database_url, 4) as world:
        stuck = world.cluster.submit(gang("Job", "g422", 2))
        await world.until_state(stuck, State.RUNNING)
        other = world.cluster.submit(gang("Job", "other", 2))
        await world.until_state(other, State.RUNNING)
        await world.ask(other, Action.PRIORITY, 50)
        await world.until_entry(other, lambda e: e.priority == 50, "dearer than the other")
        refuse(world, Purpose.STOP)
        high = world.cluster.submit(gang("Job", "high", 2, "high"))
        victim = await says(world, stuck, "422", Purpose.STOP)
        assert victim.reason.code is Code.PREEMPTED
        await world.until_state(high, State.RUNNING)
        assert len(live(world.cluster.pods_of(stuck))) == 2
        assert live(world.cluster.pods_of(other)) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_pods_that_cannot_be_placed_fail_the_start(database_url: str, kind: str) -> None:
    async with rig(database_url, 2 * len(CODES)) as world:
        world.settings = world.settings.model_copy(update={"unschedulable_seconds": 0.2})
        refuse(world, Purpose.PIN)
        refused = await submit(world, kind)
        for uid, code in refused.items():
            entry = await until_reason(world, uid, State.BACKOFF, Code.BACKOFF)
            assert f"(StartRefused: PATCH pods default/g{code}-" in entry.reason.message
            assert f" {code}: a webhook says no" in entry.reason.message
            assert not [p for p in world.cluster.pods_of(uid) if not p.terminal]
        await world.at_rest()


async def test_a_replacement_that_cannot_be_placed_is_waited_for_aloud(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(gang("Job", "g403", 2))
        await world.until_state(uid, State.RUNNING)
        refuse(world, Purpose.PIN)
        world.cluster.fail_pod(world.cluster.pods_of(uid)[0].name)
        entry = await says(world, uid, "403", Purpose.PIN)
        assert entry.state is State.RUNNING
        assert len(live(world.cluster.pods_of(uid))) == 1
        accept(world)
        again = await world.until_entry(uid, lambda e: e.refused_write is None, "it is placed")
        assert again.reason.message == "all 2 pods are ready"
        await world.until(lambda: len(live(world.cluster.pods_of(uid))) == 2, "whole again")


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_freed_while_an_answer_is_unknown(database_url: str, kind: str) -> None:
    async with rig(database_url, 2) as world:
        refuse(world, *Purpose, None)
        refusing, answers = world.cluster.refuses, [503]  # after which a start may still arrive

        def lost_at_first(write: Written) -> int | None:
            return answers.pop() if answers and purpose(write) else refusing(write)

        world.cluster.refuses = lost_at_first
        uid = world.cluster.submit(gang(kind, "g422", 2))
        entry = await says(world, uid, "422", Purpose.STOP)
        assert "the response to its start was lost" in entry.reason.message
        other = world.cluster.submit(gang(kind, "other", 2))
        await until_reason(world, other, State.PENDING, Code.WAITING_FOR_QUOTA)
        assert world.cluster.pods_of(other) == []
        noted = {"metadata": {"annotations": {"example.com/note": "look"}}}
        world.cluster.user_patch(kind, "default", "g422", noted)
        await until_reason(world, uid, State.BACKOFF, Code.BACKOFF)
        await world.until_state(other, State.RUNNING)
        await world.at_rest()


async def test_a_refused_start_is_not_given_up_by_a_controller_that_did_not_send_it(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        refuse(world, *Purpose, None)
        world.commits.at, world.commits.moment = (
            2,
            Moment.AFTER,
        )  # it dies when the start is committed
        uid = world.cluster.submit(gang("Job", "g422", 2))
        entry = await says(world, uid, "422", Purpose.STOP)
        assert (world.deaths, entry.state) == (1, State.EVICTING)
        accept(world)
        await until_reason(world, uid, State.BACKOFF, Code.BACKOFF)


async def test_a_move_that_is_refused_is_taken_back(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        await world.store.put_config(m.local_queue("default", "spare", "pool"))
        blocks = world.cluster.submit(gang("Job", "blocks", 2))
        await world.until_state(blocks, State.RUNNING)
        refuse(world, Purpose.MOVE)
        moving = await submit(world, "Job")
        for uid in moving:
            await world.until_state(uid, State.PENDING)
            await world.ask(uid, Action.MOVE, queue="spare")
        for uid, code in moving.items():
            await world.until(partial(told, world, uid, Code.WRITE_REFUSED), "an Event")
            entry = await world.until_entry(uid, lambda e: e.queue_set is None, "it stays")
            assert (entry.queue, entry.intent) == ("research", None)
            (line,) = [n for n in await world.store.history(uid) if n.event == "WriteRefused"]
            assert f" {code}: " in line.reason.message
        await world.at_rest()


async def test_a_refused_notice_delays_nothing(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        await world.store.put_config(rules(queuectl={"evictionGrace": "1s"}))
        uid = world.cluster.submit(gang("Job", "g422", 2))
        await world.until_state(uid, State.RUNNING)
        refuse(world, Purpose.NOTICE)
        await world.ask(uid, Action.HOLD)
        await world.until_state(uid, State.HELD)
        assert not [p for p in world.cluster.pods_of(uid) if p.phase is PodPhase.RUNNING]
