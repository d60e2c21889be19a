"""Nodes get another MIG configuration for a pending gang: from the plan to the start, and when something goes wrong in between."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from queuectl.domain.accounting import HOUR
from queuectl.domain.ledger import Document, State
from queuectl.domain.mig import ANNOTATION, CONFIG, STATE, MigPhase
from queuectl.domain.queries import HistoryLine
from queuectl.domain.reasons import Code
from queuectl.domain.utilization import GangUse, UseState
from tests.control.mig import GPU, HALF, SMALL, WHOLE, MigWorld, documents, job, mig_node, mig_rig
from tests.control.rig import Rig, live
from tests.control.test_crash_matrix import dying, fresh, points, several
from tests.doubles.cluster import Moment
from tests.support.postgres import TestPostgres


async def story(mig: MigWorld, tunes: list[str]) -> None:
    """Two gangs hold half of the GPUs of each node. One migrates, its node is changed, and a gang starts on its instances."""
    world = mig.rig
    gang = mig.notebooks(3)
    entry = await world.until_state(gang, State.RUNNING)
    assert (entry.attempt, entry.evictions) == (1, 0)
    (name,) = mig.changed()
    change = mig.change(name)
    assert change is not None
    assert (change.phase, change.gang) == (MigPhase.SUCCEEDED, gang)
    assert not any(map(mig.cordoned, ("n0", "n1")))
    assert mig.manager.applied == [(name, HALF)]
    assert {p.node for p in live(world.cluster.pods_of(gang))} == {name}
    entries = [await world.until_state(uid, State.RUNNING) for uid in tunes]
    assert sorted(e.evictions for e in entries) == [0, 1], "one was migrated, once"


async def test_a_gang_starts_on_instances_of_a_node_that_is_changed_for_it(
    database_url: str,
) -> None:
    async with mig_rig(database_url) as mig:
        await story(mig, await mig.two_tunes())
        lines = await mig.rig.store.history(None, 0, 500)
        (move,) = [line for line in lines if line.event == Code.DEFRAGMENTED]
        (spent,) = (await mig.rig.store.load()).spent
        assert spent.lost_work == move.reason.details["lostGpuSeconds"]


async def test_a_failed_change_is_rolled_back_and_not_tried_again(database_url: str) -> None:
    async with mig_rig(database_url, nodes=1) as mig:
        mig.manager.fails = {HALF}
        gang = mig.notebooks()
        name = await mig.until_phase(MigPhase.FAILED)
        assert mig.manager.applied == [(name, HALF), (name, WHOLE)]
        labels = mig.node(name)["metadata"]["labels"]
        assert (labels[CONFIG], labels[STATE]) == (WHOLE, "success")
        assert not mig.cordoned(name)
        await mig.rig.until(mig.warnings, "an Event, which follows the change")
        (warned,) = mig.warnings()
        assert warned.uid == gang
        assert f"did not apply {HALF} on node {name}" in warned.message
        other = mig.rig.cluster.submit(job("train", 1, GPU, 8))
        await mig.rig.until_state(other, State.RUNNING)
        assert mig.phase(name) is MigPhase.FAILED, "within the back-off, no other change begins"
        results = mig.rig.metrics.registry.get_sample_value
        assert results("queuectl_mig_reconfigurations_total", {"result": "rolled_back"}) == 1


@pytest.mark.gpus
async def test_a_node_whose_changes_always_fail_is_changed_less_and_less_often(
    database_url: str,
) -> None:
    backoff = 1.0
    async with mig_rig(database_url, nodes=1, backoff_seconds=backoff) as mig:
        mig.manager.fails = {HALF}
        mig.notebooks()
        ends: list[float] = []

        def failed_again() -> bool:
            change = mig.change("n0")
            if change is not None and change.failures > len(ends):
                ends.append(change.since)
                return True
            return False

        for number in ("first", "second", "third"):
            await mig.rig.until(failed_again, f"the {number} failure")
        assert ends[1] - ends[0] >= backoff
        assert ends[2] - ends[1] >= 2 * backoff
        last = [e.message for e in mig.rig.cluster.events if e.kind == "Warning"][-1]
        assert "3 changes in succession failed, the next one begins after" in last


@pytest.mark.gpus
async def test_a_mig_manager_that_does_not_answer_is_a_failure(database_url: str) -> None:
    async with mig_rig(database_url, nodes=1, timeout_seconds=0.5) as mig:
        mig.manager.busy = True
        mig.notebooks()
        await mig.until_phase(MigPhase.ROLLING_BACK)
        assert mig.cordoned("n0")
        mig.manager.busy = False
        await mig.until_phase(MigPhase.FAILED)
        assert mig.manager.applied == [("n0", WHOLE)]


@pytest.mark.gpus
async def test_a_mig_manager_that_never_answers_stops_the_changes_of_its_own_node_only(
    database_url: str,
) -> None:
    async with mig_rig(database_url, timeout_seconds=0.5) as mig:
        mig.manager.busy = True
        gang = mig.notebooks()
        name = await mig.until_phase(MigPhase.ROLLING_BACK)
        mig.manager.slow, mig.manager.busy = {name}, False
        mig.rig.cluster.delete_job(gang)
        other = mig.rig.cluster.submit(job("more-notebooks", 20, SMALL, 1))
        await mig.rig.until_state(other, State.RUNNING)
        assert mig.phase(name) is MigPhase.ROLLING_BACK
        assert mig.cordoned(name)


@pytest.mark.gpus
async def test_pods_that_do_not_leave_end_the_change(database_url: str) -> None:
    async with mig_rig(database_url, timeout_seconds=2.0) as mig:
        tunes = await mig.two_tunes()
        mig.rig.cluster.controllers.hold_ends = True
        mig.notebooks()
        name = await mig.until_phase(MigPhase.NOT_EMPTIED)
        assert mig.manager.applied == []
        assert not mig.cordoned(name)
        mig.rig.cluster.controllers.hold_ends = False
        for uid in tunes:
            await mig.rig.until_state(uid, State.RUNNING)


FORBIDDEN: dict[str, dict[str, Any]] = {
    "the flavor permits no execution": {"mode": "Plan"},
    "the queue permits no migration": {"defragment": "Plan"},
    "the budget for migrations is used up": {"budget": 0},
    "the gang has not waited long enough": {"wait_seconds": 600.0},
}


@pytest.mark.gpus
@pytest.mark.parametrize("why", FORBIDDEN)
async def test_no_node_is_changed_if(why: str, database_url: str) -> None:
    async with mig_rig(database_url, **FORBIDDEN[why]) as mig:
        tunes = await mig.two_tunes()
        gang = mig.notebooks()
        other = mig.rig.cluster.submit(job("small", 1, GPU, 1))
        await mig.rig.until_state(other, State.RUNNING)  # plans were made with the gang
        await mig.rig.until_entry(gang, lambda e: e.state is State.PENDING, "it is pending")
        mig.rig.cluster.finish(other)
        await mig.rig.until_state(other, State.FINISHED)
        assert mig.changed() == []
        for uid in tunes:
            assert (await mig.rig.until_state(uid, State.RUNNING)).evictions == 0


@pytest.mark.gpus
async def test_a_node_that_a_user_has_cordoned_is_not_changed(database_url: str) -> None:
    async with mig_rig(database_url) as mig:
        mig.rig.cluster.cordon("n0")
        gang = mig.notebooks()
        await mig.rig.until_state(gang, State.RUNNING)
        assert mig.changed() == ["n1"]
        assert mig.cordoned("n0")


# ---- others change the node in the middle


def uncordoned(mig: MigWorld, name: str) -> None:
    mig.rig.cluster.cordon(name, unschedulable=False)


def relabeled(mig: MigWorld, name: str) -> None:
    labels = {CONFIG: "all-1g.10gb", STATE: "success"}
    mig.rig.cluster.user_patch("Node", "", name, {"metadata": {"labels": labels}})


def unmarked(mig: MigWorld, name: str) -> None:
    mig.rig.cluster.user_patch("Node", "", name, {"metadata": {"annotations": {ANNOTATION: None}}})


def deleted(mig: MigWorld, name: str) -> None:
    mig.rig.cluster.delete_node(name)


def created_again(mig: MigWorld, name: str) -> None:
    mig.rig.cluster.delete_node(name)
    mig.rig.cluster.add_node(mig_node(name))


@pytest.mark.gpus
@pytest.mark.parametrize("meddle", [uncordoned, relabeled])
async def test_a_node_that_a_user_takes_over_is_left_to_the_user(
    meddle: Callable[[MigWorld, str], None], database_url: str
) -> None:
    async with mig_rig(database_url, nodes=1) as mig:
        mig.manager.busy = True
        mig.notebooks()
        name = await mig.until_phase(MigPhase.APPLYING)
        meddle(mig, name)
        await mig.until_phase(MigPhase.TAKEN_OVER)
        assert not mig.cordoned(name)
        wanted = mig.node(name)["metadata"]["labels"][CONFIG]
        assert wanted == ("all-1g.10gb" if meddle is relabeled else HALF)


@pytest.mark.gpus
@pytest.mark.parametrize("meddle", [unmarked, deleted, created_again])
async def test_a_node_without_the_annotation_is_no_longer_changed(
    meddle: Callable[[MigWorld, str], None], database_url: str
) -> None:
    async with mig_rig(database_url) as mig:
        mig.manager.busy = True
        gang = mig.notebooks()
        name = await mig.until_phase(MigPhase.APPLYING)
        meddle(mig, name)
        mig.manager.busy = False
        entry = await mig.rig.until_state(gang, State.RUNNING)
        assert entry.attempt == 1
        if meddle is unmarked:
            assert mig.change(name) is None
            assert mig.cordoned(name), "its cordon is the user's now"
        assert mig.phases().count(MigPhase.SUCCEEDED) == 1


@pytest.mark.gpus
async def test_a_gang_that_is_deleted_ends_the_change(database_url: str) -> None:
    async with mig_rig(database_url) as mig:
        tunes = await mig.two_tunes()
        mig.rig.cluster.controllers.hold_ends = True
        gang = mig.notebooks()
        name = await mig.until_phase(MigPhase.EMPTYING)
        mig.rig.cluster.delete_job(gang)
        await mig.until_phase(MigPhase.WITHDRAWN)
        assert not mig.cordoned(name)
        mig.rig.cluster.controllers.hold_ends = False
        for uid in tunes:
            await mig.rig.until_state(uid, State.RUNNING)
        assert mig.manager.applied == []


@pytest.mark.gpus
async def test_two_nodes_are_changed_together(database_url: str) -> None:
    """The first is not given back before the second has the new configuration as well."""
    async with mig_rig(database_url) as mig:
        mig.manager.slow = {"n1"}
        gang = mig.notebooks(40)
        await mig.rig.until(lambda: ("n0", HALF) in mig.manager.applied, "the first is changed")
        await mig.rig.until(lambda: mig.phase("n1") is MigPhase.APPLYING, "the second is applied")
        for _ in range(3):
            await mig.rig.until(lambda: True, "a pass")
            assert mig.cordoned("n0")
        mig.manager.slow = set()
        await mig.rig.until_state(gang, State.RUNNING)
        assert mig.phases() == [MigPhase.SUCCEEDED] * 2


@pytest.mark.gpus
async def test_if_one_of_two_nodes_fails_the_other_keeps_its_configuration_for_the_next_change(
    database_url: str,
) -> None:
    async with mig_rig(database_url, backoff_seconds=3.0) as mig:
        mig.manager.broken = {"n1"}
        gang = mig.notebooks(40)
        await mig.rig.until(
            lambda: mig.phases() == [MigPhase.SUCCEEDED, MigPhase.FAILED], "both nodes have ended"
        )
        assert not any(map(mig.cordoned, ("n0", "n1")))
        await mig.rig.until_state(gang, State.PENDING)
        small = mig.rig.cluster.submit(job("small", 8, SMALL, 1))
        await mig.rig.until_state(small, State.RUNNING)
        mig.rig.cluster.finish(small)
        mig.manager.broken = set()
        await mig.rig.until_state(gang, State.RUNNING)
        assert mig.manager.applied == [("n0", HALF), ("n1", HALF), ("n1", WHOLE), ("n1", HALF)]


@pytest.mark.gpus
async def test_more_nodes_than_the_limit_are_not_changed(database_url: str) -> None:
    async with mig_rig(database_url, max_nodes=1) as mig:
        gang = mig.notebooks(40)
        other = mig.rig.cluster.submit(job("small", 1, GPU, 1))
        await mig.rig.until_state(other, State.RUNNING)
        await mig.rig.until_state(gang, State.PENDING)
        assert mig.changed() == []


# ---- a plan that decides about the gang that is moved


def evaluated(world: Rig, uses: Mapping[str, UseState]) -> None:
    """Give the leader an evaluation of these gangs."""
    assert world.loop is not None
    now, found = time.time(), {}
    for uid, state in uses.items():
        used = 0.0 if state is UseState.IDLE else 1.0
        found[uid] = GangUse(uid, 1, state, now - HOUR, now, used, 1.0, "seen", used)
    world.loop.measured(found)


def with_dry_run(gpus: int) -> Document:
    """The queue with a dry run of idle gangs, without a grace period, and a quota of so many whole GPUs."""
    (queue,) = (d for d in documents("Execute", "Execute", 10**9) if d["kind"] == "ClusterQueue")
    idle = {"mode": "DryRun", "graceSeconds": 0, "yieldsToEqualPriority": True}
    spec = copy.deepcopy(queue["spec"])
    spec["policy"]["idleReclaim"] = idle
    (flavor,) = spec["resourceGroups"][0]["flavors"]
    (quota,) = (one for one in flavor["resources"] if one["name"] == GPU)
    quota["nominalQuota"] = gpus
    return {**queue, "spec": spec}


async def lines(world: Rig, uid: str, code: Code) -> list[HistoryLine]:
    return [line for line in await world.store.history(uid, 0, 500) if line.reason.code is code]


async def until_warned(world: Rig, uids: list[str]) -> None:
    """Find these gangs idle once, so that the next evaluation finds them evictable."""
    evaluated(world, dict.fromkeys(uids, UseState.IDLE))

    async def warned() -> bool:
        return all([await lines(world, uid, Code.IDLE_GPUS) for uid in uids])

    await world.until(warned, "each is warned")


@pytest.mark.gpus
async def test_a_gang_is_moved_off_a_node_by_the_plan_that_first_names_it_in_a_dry_run(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quota is used up, so a dry run would evict an idle gang for a third one. That gang is on the node that is emptied."""
    async with mig_rig(database_url) as mig:
        world = mig.rig
        await world.store.put_config(with_dry_run(8))
        tunes = await mig.two_tunes()
        on = {live(world.cluster.pods_of(uid))[0].node: uid for uid in tunes}
        await until_warned(world, tunes)

        patch, third = world.cluster.patch_node, list[str]()

        async def empties(name: str, document: Document) -> int:
            """From the moment at which the node is cordoned, its gang can be evicted as idle, and the third one waits."""
            version = await patch(name, document)
            if not third:
                evaluated(world, dict.fromkeys(tunes, UseState.ACTIVE) | {on[name]: UseState.IDLE})
                third.append(world.cluster.submit(job("third", 1, GPU, 4)))
            return version

        monkeypatch.setattr(world.cluster, "patch_node", empties)
        gang = mig.notebooks(3)
        entry = await world.until_state(gang, State.RUNNING)
        assert entry.attempt == 1
        (name,) = mig.changed()
        moved = await world.until_state(on[name], State.RUNNING)
        assert moved.evictions == 1
        (move,) = await lines(world, on[name], Code.DEFRAGMENTED)
        (waits, *_) = await lines(world, third[0], Code.WAITING_FOR_QUOTA)
        assert move.cycle == waits.cycle, "one plan decides about both"
        assert await lines(world, on[name], Code.WOULD_RECLAIM) == []


@pytest.mark.gpus
async def test_a_kill_after_any_step_changes_no_outcome(postgres: TestPostgres) -> None:
    """After each commit and write from the submission of the gang to the start of all pods."""

    async def once(what: str, number: int, moment: Moment) -> None:
        async with fresh(postgres) as url, mig_rig(url) as mig:
            with dying(mig.rig, what, number, moment):
                await story(mig, await mig.two_tunes())

    async with fresh(postgres) as url, mig_rig(url) as mig:
        tunes = await mig.two_tunes()
        before = {"commit": mig.rig.commits.seen, "write": mig.rig.patches.seen}
        await story(mig, tunes)
        steps = mig.rig.commits.seen, mig.rig.patches.seen
    every = points(*steps, sides=(Moment.AFTER,))
    await several(once, [point for point in every if point[1] > before[point[0]]])
