"""Every kind of write of the actuator is refused permanently: the effect on slots, pods, and pending gangs.

Each test has one gang for each status with which the API server or a webhook can refuse.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial

import pytest

from queuectl.demo import scenario as m
from queuectl.domain.arrays import index_uid
from queuectl.domain.commands import Action
from queuectl.domain.errors import WriteConflict
from queuectl.domain.jobs import PodPhase
from queuectl.domain.ledger import Entry, Purpose, State
from queuectl.domain.reasons import Code
from queuectl.lifecycle import refusals
from tests.control.alike import ALIKE
from tests.control.rig import Rig, gang, live, rig
from tests.control.test_arrays import array
from tests.control.test_elastic import elastic
from tests.control.test_lifecycle import rules, until_reason
from tests.control.work import Work
from tests.doubles.cluster import Moment, Written

CODES = (400, 403, 404, 409, 413, 422)


def purpose(write: Written) -> Purpose | None:
    """The purpose of a write, by the fields that it changes."""
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
    """Refuse writes for these purposes (None: the status). The name of each gang contains the HTTP status of its refusals."""

    def answer(write: Written) -> int | None:
        head = write.name.split("-")[0]
        if purpose(write) not in purposes or not head.startswith("g"):
            return None
        return int(head[1:])

    world.cluster.refuses = answer


def accept(world: Rig) -> None:
    world.cluster.refuses = lambda _: None


async def submit(world: Rig, kind: str) -> dict[str, str]:
    """uid -> the HTTP status of its refusals."""
    return {world.cluster.submit(gang(kind, f"g{code}", 2)): str(code) for code in CODES}


def has_event(world: Rig, uid: str, code: Code) -> bool:
    return any(
        e.uid == uid and e.reason == code and e.kind == "Warning" for e in world.cluster.events
    )


async def reported(world: Rig, uid: str, code: str, write: Purpose) -> Entry:
    """Wait until the workload, an Event and the gauge show this refused write, with this status."""
    entry = await world.until_entry(uid, lambda e: e.refused_write is write, f"{write} refused")
    assert f" {code}: " in entry.reason.message
    assert "remove the cause" in entry.reason.message
    await world.until(lambda: has_event(world, uid, Code.WRITE_REFUSED), "an Event reports it")
    return entry


def refused_now(world: Rig, write: Purpose) -> float:
    labels = {"cluster_queue": "pool", "kind": str(write)}
    return world.metrics.registry.get_sample_value("queuectl_refused_writes", labels) or 0.0


@pytest.mark.parametrize("kind", ALIKE)
async def test_a_refused_start_frees_its_slots_and_reports_the_reason(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 2) as world:
        refuse(world, Purpose.START)
        refused = await submit(world, kind)
        fine = world.cluster.submit(gang(kind, "fine", 2))
        await world.until_state(fine, State.RUNNING)
        for uid, code in refused.items():
            entry = await until_reason(world, uid, State.BACKOFF, Code.BACKOFF)
            assert f" {code}: a webhook denies it" in entry.reason.message
            assert (entry.placement, world.cluster.pods_of(uid)) == (None, [])
            await world.until(partial(has_event, world, uid, Code.START_REFUSED), "an Event")
        accept(world)
        world.cluster.finish(fine)
        first = next(iter(refused))
        await world.ask(first, Action.REQUEUE)
        await world.until_state(first, State.RUNNING)
        await world.at_rest()


@pytest.mark.parametrize("kind", ALIKE)
async def test_a_start_is_sent_without_the_status_if_the_annotations_are_full(
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


@pytest.mark.parametrize("kind", ALIKE)
async def test_a_gang_that_cannot_be_stopped_still_counts_and_others_are_placed_elsewhere(
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
            entry = await reported(world, uid, code, Purpose.STOP)
            assert (entry.state, entry.reason.code) == (State.EVICTING, Code.REQUEUED)
            assert len(live(world.cluster.pods_of(uid))) == 2
        assert refused_now(world, Purpose.STOP) == len(CODES)
        high = world.cluster.submit(gang(kind, "high", 2, "high"))
        await world.until_state(high, State.RUNNING)
        assert live(world.cluster.pods_of(fine)) == [], "the only gang that can be stopped"
        accept(world)
        world.cluster.finish(high)
        for uid in refused:
            again = await world.until_entry(
                uid, lambda e: e.state is State.RUNNING and e.attempt == 2, "it starts again"
            )
            assert again.refused_write is None
        assert refused_now(world, Purpose.STOP) == 0
        await world.at_rest()


async def test_a_gang_whose_victim_cannot_be_stopped_gets_another_victim(database_url: str) -> None:
    async with rig(database_url, 4) as world:
        stuck = world.cluster.submit(gang("Job", "g422", 2))
        await world.until_state(stuck, State.RUNNING)
        other = world.cluster.submit(gang("Job", "other", 2))
        await world.until_state(other, State.RUNNING)
        await world.ask(other, Action.PRIORITY, 50)
        await world.until_entry(other, lambda e: e.priority == 50, "costlier than the other")
        refuse(world, Purpose.STOP)
        high = world.cluster.submit(gang("Job", "high", 2, "high"))
        victim = await reported(world, stuck, "422", Purpose.STOP)
        assert victim.reason.code is Code.PREEMPTED
        await world.until_state(high, State.RUNNING)
        assert len(live(world.cluster.pods_of(stuck))) == 2
        assert live(world.cluster.pods_of(other)) == []


@pytest.mark.parametrize("kind", ALIKE)
async def test_a_gang_whose_victim_gets_no_answer_to_its_stop_gets_another_victim(
    database_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, a webhook that exists for some jobs times out."""
    monkeypatch.setattr(refusals, "UNANSWERED_SECONDS", 0.3)
    async with rig(database_url, 4) as world:
        stuck = world.cluster.submit(gang(kind, "g503", 2))
        await world.until_state(stuck, State.RUNNING)
        other = world.cluster.submit(gang(kind, "other", 2))
        await world.until_state(other, State.RUNNING)
        await world.ask(other, Action.PRIORITY, 50)
        await world.until_entry(other, lambda e: e.priority == 50, "costlier than the other")
        refuse(world, Purpose.STOP)
        high = world.cluster.submit(gang(kind, "high", 2, "high"))
        victim = await reported(world, stuck, "503", Purpose.STOP)
        assert "does not answer the request to suspend the job" in victim.reason.message
        await world.until_state(high, State.RUNNING)
        assert len(live(world.cluster.pods_of(stuck))) == 2
        assert live(world.cluster.pods_of(other)) == []
        accept(world)
        world.cluster.finish(high)
        again = await world.until_entry(
            stuck, lambda e: e.state is State.RUNNING and e.attempt == 2, "it starts again"
        )
        assert again.refused_write is None
        await world.until_state(other, State.RUNNING)
        await world.at_rest()


async def test_an_outage_that_leaves_many_stops_without_an_answer_evicts_few_others(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each gang is evicted instead of the one before, and all of them stop after the outage."""
    monkeypatch.setattr(refusals, "UNANSWERED_SECONDS", 0.2)
    count = refusals.MOST_UNANSWERED + 3
    async with rig(database_url, 2 * count) as world:
        gangs = [world.cluster.submit(gang("Job", f"g503-{n}", 2)) for n in range(count)]
        for uid in gangs:
            await world.until_state(uid, State.RUNNING)
        refuse(world, Purpose.STOP)
        high = world.cluster.submit(gang("Job", "high", 2, "high"))

        async def evicting() -> int:
            entries = [await world.entry(uid) for uid in gangs]
            return sum(entry.state is State.EVICTING for entry in entries)

        async def reached() -> bool:
            return await evicting() == refusals.MOST_UNANSWERED + 1

        await world.until(reached, "some are evicted")
        later = time.monotonic() + 2.0
        await world.until(lambda: time.monotonic() > later, "time passes")
        assert await reached()
        accept(world)
        await world.until_state(high, State.RUNNING)
        world.cluster.finish(high)
        for uid in gangs:
            await world.until_state(uid, State.RUNNING)
        await world.at_rest()


@pytest.mark.parametrize("kind", ALIKE)
async def test_pods_that_cannot_be_placed_fail_the_start(database_url: str, kind: str) -> None:
    async with rig(database_url, 2 * len(CODES)) as world:
        world.settings = world.settings.model_copy(update={"unschedulable_seconds": 0.2})
        refuse(world, Purpose.PIN)
        refused = await submit(world, kind)
        for uid, code in refused.items():
            entry = await until_reason(world, uid, State.BACKOFF, Code.BACKOFF)
            assert f"(StartRefused: PATCH pods default/g{code}-" in entry.reason.message
            assert f" {code}: a webhook denies it" in entry.reason.message
            assert not [p for p in world.cluster.pods_of(uid) if not p.terminal]
        await world.at_rest()


async def test_a_replacement_that_cannot_be_placed_is_reported(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(gang("Job", "g403", 2))
        await world.until_state(uid, State.RUNNING)
        refuse(world, Purpose.PIN)
        world.cluster.fail_pod(world.cluster.pods_of(uid)[0].name)
        entry = await reported(world, uid, "403", Purpose.PIN)
        assert entry.state is State.RUNNING
        assert len(live(world.cluster.pods_of(uid))) == 1
        accept(world)
        again = await world.until_entry(uid, lambda e: e.refused_write is None, "it is placed")
        starts = "1 of 2 pods is not ready: 1 not ready yet"
        assert again.reason.message in (starts, "all 2 pods are ready")
        await world.until(lambda: len(live(world.cluster.pods_of(uid))) == 2, "whole again")


@pytest.mark.parametrize("kind", ALIKE)
async def test_nothing_is_freed_while_an_answer_is_unknown(database_url: str, kind: str) -> None:
    async with rig(database_url, 2) as world:
        refuse(world, *Purpose, None)
        refusing, answers = world.cluster.refuses, [503]  # after which a start can still arrive

        def lost_at_first(write: Written) -> int | None:
            return answers.pop() if answers and purpose(write) else refusing(write)

        world.cluster.refuses = lost_at_first
        uid = world.cluster.submit(gang(kind, "g422", 2))
        entry = await reported(world, uid, "422", Purpose.STOP)
        assert "the response to its start was lost" in entry.reason.message
        other = world.cluster.submit(gang(kind, "other", 2))
        await until_reason(world, other, State.PENDING, Code.WAITING_FOR_QUOTA)
        assert world.cluster.pods_of(other) == []
        noted = {"metadata": {"annotations": {"example.com/note": "look"}}}
        world.cluster.user_patch(kind, "default", "g422", noted)
        await until_reason(world, uid, State.BACKOFF, Code.BACKOFF)
        await world.until_state(other, State.RUNNING)
        await world.at_rest()


async def test_a_controller_that_did_not_send_a_refused_start_keeps_it(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        refuse(world, *Purpose, None)
        world.commits.at, world.commits.moment = (
            2,
            Moment.AFTER,
        )  # it dies when the start is committed
        uid = world.cluster.submit(gang("Job", "g422", 2))
        entry = await reported(world, uid, "422", Purpose.STOP)
        assert (world.kills, entry.state) == (1, State.EVICTING)
        accept(world)
        await until_reason(world, uid, State.BACKOFF, Code.BACKOFF)


async def test_a_refused_move_is_reverted(database_url: str) -> None:
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
            await world.until(partial(has_event, world, uid, Code.WRITE_REFUSED), "an Event")
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


@pytest.mark.parametrize("budgets", [1, 2])
@pytest.mark.parametrize("grown", [False, True])
async def test_a_pod_that_a_disruption_budget_protects_stays_and_another_victim_is_found(
    database_url: str, budgets: int, grown: bool
) -> None:
    """Of an array, and an added pod of an elastic Job: the API server answers an Eviction with 429, or 500 for several budgets."""
    async with rig(database_url, 3 if grown else 2) as world:
        other = world.cluster.submit(gang("Job", "other", 1))
        await world.until_state(other, State.RUNNING)
        document = elastic("sweep", 1, 2) if grown else array("sweep", 1, 1)
        index = index_uid(world.cluster.submit(document), int(grown))
        await world.until_state(index, State.RUNNING)
        world.cluster.budgets = {p.name: budgets for p in live(world.cluster.pods_of(index))}
        high = world.cluster.submit(gang("Job", "high", 1, "high"))
        await world.until_state(high, State.RUNNING)
        protected = await world.entry(index)
        if protected.state is State.EVICTING:  # it was the first choice
            assert protected.refused_write is Purpose.STOP
            assert "udget" in protected.reason.message
            assert "remove the cause" in protected.reason.message
        if not grown:  # a suspension of its elastic Job stops an added pod as well
            assert len(live(world.cluster.pods_of(index))) == 1
        world.cluster.budgets = {}
        world.cluster.finish(high)
        await world.until_state(high, State.FINISHED)
        for uid in (other, index):
            await world.until_entry(
                uid, lambda e: e.state is State.RUNNING and e.refused_write is None, "it runs again"
            )
        await world.at_rest()


async def test_an_eviction_that_a_webhook_denies_is_reported(database_url: str) -> None:
    async with rig(database_url, len(CODES)) as world:
        denied = {
            index_uid(world.cluster.submit(array(f"g{code}", 1, 1)), 0): str(code) for code in CODES
        }
        for index in denied:
            await world.until_state(index, State.RUNNING)
        world.cluster.refuses = lambda write: (
            int(write.name.split("-")[0][1:]) if write.resource == "Pod" else None
        )
        for index in denied:
            await world.ask(index, Action.REQUEUE)
        for index, code in denied.items():
            await reported(world, index, code, Purpose.STOP)
        accept(world)
        for index in denied:
            await world.until_entry(
                index, lambda e: e.state is State.RUNNING and e.attempt == 2, "it starts again"
            )


@pytest.mark.parametrize("ends", ["a late release", "an edit", "a restart, then a late release"])
@pytest.mark.parametrize("kind", ["PodGroup", "Pod", "array"])
async def test_pods_whose_release_has_no_answer_keep_their_nodes_if_its_withdrawal_is_denied(
    database_url: str, kind: str, ends: str
) -> None:
    async with rig(database_url, 2 - (kind == "Pod")) as world:
        releases: list[Written] = []

        def answer(write: Written) -> int | None:
            if write.resource != "Pod" or not write.name.startswith("g-"):
                return None
            if "spec" not in write.patch:
                return 403  # a status as well: with it, the pod has a newer version than the release expects
            releases.append(write)
            return 503

        world.cluster.refuses = answer
        work = Work(world, kind, "g")
        await work.until(State.STARTING)
        await world.until(lambda: len(releases) >= len(work.pods()), "the releases were sent")
        for entry in await work.entries():
            await world.ask(entry.uid, Action.HOLD)
        await work.until(State.EVICTING, message="the response to its start was lost")
        if "restart" in ends:
            await world.restart()
            await work.until(State.EVICTING, message="the response to its start was lost")
        other = world.cluster.submit(gang("Job", "other", 1))
        await until_reason(world, other, State.PENDING, Code.WAITING_FOR_QUOTA)
        if ends == "an edit":
            for pod in work.pods():
                noted = {"metadata": {"annotations": {"example.com/note": "look"}}}
                world.cluster.user_patch("Pod", "default", pod.name, noted)
        else:
            accept(world)
            last = releases[-1]
            with contextlib.suppress(WriteConflict):  # its withdrawal was accepted before
                await world.cluster.patch_pod("default", last.name, last.patch)
        # A single pod that ran is deleted, and then its gang ends.
        if kind != "Pod" or ends == "an edit":
            await work.until(State.HELD)
        await world.until_state(other, State.RUNNING)
        assert not [pod for pod in work.pods() if not pod.gated]
