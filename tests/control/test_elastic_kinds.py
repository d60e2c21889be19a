"""Elastic jobs of other kinds on a real Postgres and the double of the cluster: pods above the minimum start and leave one by one."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import pytest

from queuectl.domain.arrays import index_uid, parted
from queuectl.domain.commands import Action
from queuectl.domain.errors import ClusterUnavailable
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import Document, State
from queuectl.domain.reasons import Code
from tests.control.alike import first_alone
from tests.control.rig import Rig, configuration, gang, live, rig
from tests.control.test_crash_matrix import ENDLESS, survives
from tests.control.test_lifecycle import rules
from tests.support.elastic import GROWING, elastic_of
from tests.support.postgres import TestPostgres

KINDS = pytest.mark.parametrize("kind", first_alone(GROWING))


def elastic(kind: str, least: int, most: int) -> Document:
    """A job of 8-GPU pods, with one more pod of another podset than those that are added, if the kind has several."""
    return elastic_of(kind, dict(gang(kind, "train", most + (kind in GROWING))), least)


def places(pods: list[PodRecord], podset: str) -> list[int]:
    return sorted(p.rank for p in pods if p.rank is not None and p.podset == podset)


def ranks(world: Rig, uid: str, kind: str) -> list[int]:
    return places(live(world.cluster.pods_of(uid)), GROWING[kind])


def gated(world: Rig, uid: str, kind: str) -> list[int]:
    pods = [p for p in world.cluster.pods_of(uid) if p.gated and not p.terminal]
    return places(pods, GROWING[kind])


@KINDS
async def test_it_starts_with_its_minimum_number_and_grows_as_far_as_there_is_room(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 3) as world:
        uid = world.cluster.submit(elastic(kind, 1, 3))
        base = await world.until_state(uid, State.RUNNING)
        assert base.pods == 2
        await world.until_state(index_uid(uid, 1), State.RUNNING)
        waits = await world.until_entry(
            index_uid(uid, 2), lambda e: e.reason.code is not Code.WAITING_FOR_PODS, "waits"
        )
        assert (waits.state, waits.name) == (State.PENDING, "train_2")
        assert (ranks(world, uid, kind), gated(world, uid, kind)) == ([0, 1], [2])
        assert world.cluster.job(uid).array is not None


def notice(world: Rig, uid: str) -> str:
    """The notice on the pod of a rank that runs."""
    [pod] = [p for p in world.cluster.pods_of(uid) if not p.gated]
    return pod.preempt_requested


@pytest.mark.parametrize("kind", ["Job", *first_alone(GROWING)])
async def test_a_rank_has_its_own_notice_and_leaves_when_its_pod_is_ready(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 3 + (kind in GROWING)) as world:
        await world.store.put_config(rules(queuectl={"evictionGrace": "1h"}))
        uid = world.cluster.submit(elastic(kind, 1, 3))
        last = index_uid(uid, 2)
        await world.until_state(last, State.RUNNING)
        high = world.cluster.submit(gang("Job", "high", 1, "high"))
        await world.until(lambda: notice(world, last), "its pod has a notice")
        leaving = await world.until_state(last, State.EVICTING)
        assert leaving.stop_at is not None
        assert notice(world, last) == time.strftime("%FT%TZ", time.gmtime(leaving.stop_at))
        assert notice(world, index_uid(uid, 1)) == ""
        assert world.cluster.job(uid).preempt_requested == "", "its gang runs on"
        [pod] = live(world.cluster.pods_of(last))
        ready = {"metadata": {"annotations": {"queuectl.dev/preempt-ready": "true"}}}
        world.cluster.user_patch("Pod", "default", pod.name, ready)
        await world.until_state(high, State.RUNNING)
        again = await world.until_state(last, State.PENDING)
        assert again.stop_at is None
        assert (await world.entry(uid)).evictions == 0


async def shrunk(world: Rig, kind: str) -> None:
    """On 4 nodes, a gang of 2 to 4 pods shrinks for another gang after a notice, and grows again after it."""
    await world.store.put_config(rules(queuectl={"evictionGrace": "50ms"}))
    uid = world.cluster.submit(elastic(kind, 1, 3))
    grown = [index_uid(uid, 1), index_uid(uid, 2)]
    for one in (uid, *grown):
        await world.until_state(one, State.RUNNING)
    high = world.cluster.submit(gang("Job", "high", 1, "high"))
    await world.until_state(high, State.RUNNING)
    assert ranks(world, uid, kind) == [0, 1], "the highest rank leaves"
    entries = [await world.entry(one) for one in (uid, *grown)]
    assert [entry.evictions for entry in entries] == [0, 0, 1]
    world.cluster.finish(high)
    await world.until_state(high, State.FINISHED)
    await world.until_state(grown[1], State.RUNNING)
    assert (await world.entry(uid)).attempt == 1, "its gang ran on"
    end = world.cluster.delete_job if kind in ENDLESS else world.cluster.finish
    end(uid)
    for one in (uid, *grown):
        await world.until_state(one, State.FINISHED)
    await world.at_rest()


@KINDS
async def test_its_gang_is_evicted_after_all_pods_above_it_and_returns_before_them(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 3) as world:
        uid = world.cluster.submit(elastic(kind, 1, 2))
        grown = index_uid(uid, 1)
        await world.until_state(grown, State.RUNNING)
        high = world.cluster.submit(gang("Job", "high", 2, "high"))
        await world.until_state(high, State.RUNNING)
        assert ranks(world, uid, kind) == []
        assert [(await world.entry(one)).evictions for one in (uid, grown)] == [1, 1]
        world.cluster.finish(high)
        await world.until_state(uid, State.RUNNING)
        again = await world.until_state(grown, State.RUNNING)
        assert again.attempt == 2
        assert ranks(world, uid, kind) == [0, 1]


@KINDS
async def test_a_rank_that_is_held_leaves_alone_and_returns(database_url: str, kind: str) -> None:
    async with rig(database_url, 4) as world:
        uid = world.cluster.submit(elastic(kind, 1, 3))
        last = index_uid(uid, 2)
        await world.until_state(last, State.RUNNING)
        await world.ask(last, Action.HOLD)
        await world.until_state(last, State.HELD)
        await world.until(lambda: gated(world, uid, kind) == [2], "its pod is created again")
        assert ranks(world, uid, kind) == [0, 1]
        await world.ask(last, Action.RELEASE)
        await world.until_state(last, State.RUNNING)
        assert (await world.entry(uid)).evictions == 0


Stop = Callable[[Rig, str], Awaitable[Callable[[], Awaitable[object]]]]
"""Stops the gang of a job. The result lets it start again."""


async def held(world: Rig, uid: str) -> Callable[[], Awaitable[object]]:
    await world.ask(uid, Action.HOLD)
    return lambda: world.ask(uid, Action.RELEASE)


async def requeued(world: Rig, uid: str) -> Callable[[], Awaitable[object]]:
    await world.ask(uid, Action.REQUEUE)
    return nothing


async def drained(world: Rig, uid: str) -> Callable[[], Awaitable[object]]:
    (before,) = [one for one in configuration(16) if one["kind"] == "ClusterQueue"]
    stopped = {**before, "spec": {**before["spec"], "stopPolicy": "HoldAndDrain"}}
    await world.store.put_config(stopped)
    return lambda: world.store.put_config(before)


async def preempted(world: Rig, uid: str) -> Callable[[], Awaitable[object]]:
    high = world.cluster.submit(gang("Job", "high", 4, "high"))

    async def over() -> None:
        await world.until_state(high, State.RUNNING)
        world.cluster.finish(high)

    return over


async def suspended(world: Rig, uid: str) -> Callable[[], Awaitable[object]]:
    world.cluster.user_patch("Job", "default", "train", {"spec": {"suspend": True}})
    return nothing


async def nothing() -> None:
    """It starts again by itself."""


@pytest.mark.parametrize(
    ("kind", "stop"),
    [
        *(("Job", stop) for stop in (held, requeued, drained, preempted, suspended)),
        # `make test-kinds` runs the kinds after the first.
        *(
            pytest.param(kind, held, marks=pytest.mark.kinds if number else ())
            for number, kind in enumerate(GROWING)
        ),
    ],
)
async def test_a_job_is_resumed_for_its_gang_only_while_the_release_of_an_added_pod_has_no_answer(
    database_url: str, monkeypatch: pytest.MonkeyPatch, kind: str, stop: Stop
) -> None:
    async with rig(database_url, 4) as world:
        cluster = world.cluster
        send, answers, resumed = (cluster.patch_pod, cluster.patch_job), [False], []

        async def patch_pod(namespace: str, name: str, patch: Document) -> int:
            labels = patch["metadata"].get("labels", {})
            if parted(labels.get("queuectl.dev/workload", "")) and not answers[0]:
                raise ClusterUnavailable("no answer in 15 s")
            return await send[0](namespace, name, patch)

        async def patch_job(kind: str, namespace: str, name: str, patch: Document) -> int:
            if name == "train" and resumes(patch):
                resumed.append((await world.entry(uid)).attempt)
            return await send[1](kind, namespace, name, patch)

        monkeypatch.setattr(cluster, "patch_pod", patch_pod)
        monkeypatch.setattr(cluster, "patch_job", patch_job)
        uid = cluster.submit(elastic(kind, 1, 2))
        await world.until_state(uid, State.RUNNING)
        added = index_uid(uid, 1)
        await world.until_state(added, State.STARTING)
        again = await stop(world, uid)
        await world.until_entry(uid, lambda e: e.evictions == 1, "its gang stops")
        left = await world.until_entry(added, lambda e: e.evictions == 1, "the pod stops as well")
        assert left.failures == 0
        answers[0] = True
        stopped = "its gang has stopped, and possibly runs again"
        await world.until_entry(uid, lambda e: not e.state.live or e.attempt == 2, stopped)
        await again()
        for one in (uid, added):
            await world.until_entry(
                one, lambda e: e.attempt == 2 and e.state is State.RUNNING, "runs again"
            )
        assert resumed == [1, 2]
        assert (await world.entry(uid)).evictions == 1


def resumes(patch: Document) -> bool:
    """Whether a patch of a job resumes it."""
    spec = patch.get("spec", {})
    return any(one.get("suspend") is False for one in (spec, spec.get("runPolicy", {})))


@pytest.mark.faults
@pytest.mark.parametrize("kind", GROWING)
@pytest.mark.timeout(600)
async def test_a_kill_at_any_step_of_an_elastic_job_changes_no_outcome(
    postgres: TestPostgres, kind: str
) -> None:
    await survives(postgres, lambda one: shrunk(one, kind), lambda url: rig(url, 4))
