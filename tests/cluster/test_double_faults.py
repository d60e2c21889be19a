"""The faults of the double have their documented effect."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from queuectl.domain.errors import ClusterUnavailable, WriteConflict
from queuectl.domain.records import ListCompleted
from queuectl.localcluster import NodeSpec
from queuectl.objects.kinds import KINDS
from queuectl.objects.kubernetes.pods import pin_patch
from tests.cluster.world import View
from tests.doubles.cluster import FakeCluster, Moment
from tests.support.jobs import batch_job

NODE = "b0-r0-h0"


class Killed(BaseException):
    """A simulated SIGKILL inside one process."""


def fake() -> FakeCluster:
    return FakeCluster(NodeSpec(racks_per_block=1, hosts_per_rack=1).documents())


def waiting(cluster: FakeCluster, **options: Any) -> str:
    uid = cluster.submit(batch_job("job", **options))
    cluster.settle()
    return uid


async def start(cluster: FakeCluster, uid: str) -> None:
    job = cluster.job(uid)
    patch = KINDS["Job"].start_patch(job, job.attempt + 1, "Starting")
    await cluster.patch_job("Job", job.namespace, job.name, patch)


@pytest.mark.parametrize("error", [None, Killed])
@pytest.mark.parametrize("moment", Moment)
async def test_a_write_fails_before_or_after_its_effect_as_configured(
    moment: Moment, error: Callable[[], BaseException] | None
) -> None:
    cluster = fake()
    uid = waiting(cluster)
    if error is None:
        cluster.fault(1, moment)
    else:
        cluster.fault(1, moment, error)
    with pytest.raises(error or ClusterUnavailable):  # type: ignore[arg-type]  # both are exceptions
        await start(cluster, uid)
    assert cluster.job(uid).suspended is (moment is Moment.BEFORE)
    assert [one.resource for one in cluster.writes] == ["Job"]


async def test_after_a_lost_answer_the_same_patch_is_a_conflict() -> None:
    cluster = fake()
    uid = waiting(cluster)
    job = cluster.job(uid)
    patch = KINDS["Job"].start_patch(job, 1, "Starting")
    cluster.fault(1, Moment.AFTER)
    with pytest.raises(ClusterUnavailable):
        await cluster.patch_job("Job", job.namespace, job.name, patch)
    with pytest.raises(WriteConflict):
        await cluster.patch_job("Job", job.namespace, job.name, patch)
    assert cluster.job(uid).attempt == 1


async def test_only_the_chosen_write_fails() -> None:
    cluster = fake()
    uid = waiting(cluster, pods=3)
    cluster.fault(3, Moment.BEFORE)
    await start(cluster, uid)
    cluster.settle()
    first, second, third = cluster.pods_of(uid)
    await cluster.patch_pod("default", first.name, pin_patch(first, NODE))
    with pytest.raises(ClusterUnavailable):
        await cluster.patch_pod("default", second.name, pin_patch(second, NODE))
    await cluster.patch_pod("default", third.name, pin_patch(third, NODE))
    assert [pod.gated for pod in cluster.pods_of(uid)] == [False, True, False]


async def test_an_outage_answers_nothing_and_is_followed_by_a_complete_list() -> None:
    cluster = fake()
    uid = waiting(cluster)
    async with watching(cluster) as view:
        cluster.down = True
        with pytest.raises(ClusterUnavailable):
            await start(cluster, uid)
        with pytest.raises(ClusterUnavailable):
            await cluster.read_leader()
        cluster.delete_job(uid)
        await settle()
        assert uid in view.jobs
        cluster.down = False
        await settle()
        assert uid not in view.jobs
    assert cluster.writes == []


async def test_a_delayed_watch_loses_nothing_and_a_cut_one_lists_again() -> None:
    cluster = fake()
    lists: list[str] = []
    async with watching(cluster, lists) as view:
        cluster.hold_watch()
        uid = waiting(cluster)
        await settle()
        assert uid not in view.jobs
        cluster.hold_watch(held=False)
        await settle()
        assert uid in view.jobs
        assert lists.count("jobs") == 1
        cluster.cut_watch()
        await settle()
        assert lists.count("jobs") == 2
        assert uid in view.jobs


async def test_pods_that_are_slow_to_start_are_bound_but_not_ready() -> None:
    cluster = fake()
    uid = waiting(cluster)
    await start(cluster, uid)
    cluster.settle()
    cluster.controllers.hold_starts = True
    [pod] = cluster.pods_of(uid)
    await cluster.patch_pod("default", pod.name, pin_patch(pod, NODE))
    cluster.settle()
    [pod] = cluster.pods_of(uid)
    assert (pod.node, pod.ready) == (NODE, False)


@pytest.mark.parametrize("why", ["no such node", "cordoned", "full"])
async def test_a_pin_that_the_scheduler_refuses_makes_the_pod_unschedulable(why: str) -> None:
    cluster = fake()
    node = NODE
    if why == "no such node":
        node = "elsewhere"
    elif why == "cordoned":
        cluster.cordon(NODE)
    uid = waiting(cluster, gpus=9 if why == "full" else 1)
    await start(cluster, uid)
    cluster.settle()
    [pod] = cluster.pods_of(uid)
    await cluster.patch_pod("default", pod.name, pin_patch(pod, node))
    cluster.settle()
    [pod] = cluster.pods_of(uid)
    assert pod.node is None
    assert pod.unschedulable


async def test_a_silent_node_keeps_its_terminating_pods() -> None:
    cluster = fake()
    uid = waiting(cluster)
    await start(cluster, uid)
    cluster.settle()
    [pod] = cluster.pods_of(uid)
    await cluster.patch_pod("default", pod.name, pin_patch(pod, NODE))
    cluster.settle()
    cluster.set_ready(NODE, ready=False)
    cluster.delete_job(uid)
    cluster.settle()
    assert [pod.terminating for pod in cluster.pods_of(uid)] == [True]
    cluster.set_ready(NODE, ready=True)
    cluster.settle()
    assert cluster.pods_of(uid) == []


async def test_two_runs_are_byte_identical() -> None:
    async def life() -> list[Any]:
        cluster = fake()
        uid = waiting(cluster, pods=4, gpus=1)
        await start(cluster, uid)
        cluster.settle()
        for pod in cluster.pods_of(uid):
            await cluster.patch_pod("default", pod.name, pin_patch(pod, NODE))
        cluster.settle()
        cluster.finish(uid)
        cluster.settle()
        return [cluster.server.objects, cluster.writes]

    assert await life() == await life()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def watching(cluster: FakeCluster, lists: list[str] | None = None) -> AsyncIterator[View]:
    view = View()

    def sink(deltas: Any) -> None:
        view.sink(deltas)
        if lists is not None:
            lists.extend(delta.resource for delta in deltas if isinstance(delta, ListCompleted))

    task = asyncio.create_task(cluster.watch(sink, view.synced.append))
    await settle()
    yield view
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
