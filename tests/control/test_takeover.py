"""Migration from a Kueue that was shut down: the outcome for each of its jobs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from queuectl.control.leader.loop import Loop
from queuectl.demo import scenario as m
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.queries import DocumentKey
from queuectl.domain.reasons import Code
from queuectl.objects import keys
from queuectl.objects.kueue_names import workload_name
from queuectl.objects.times import parse_time
from tests.control.alike import ALIKE
from tests.control.rig import Rig, gang, live, nodes, rig
from tests.control.test_crash_matrix import BOTH, survives
from tests.doubles.cluster import FakeCluster
from tests.support.kueue import ADMITTED, CREATED, GPU, QUEUE_LABEL, of_kueue, workload
from tests.support.postgres import TestPostgres

PODSETS = {"Job": {"main": 2}, "PyTorchJob": {"master": 1, "worker": 1}}


def stored(
    cluster: FakeCluster, kind: str, name: str, *, running: bool, attempt: int = 0, **options: Any
) -> Any:
    """A job of Kueue that was stored before the policies of queuectl existed. ``attempt``: of queuectl."""
    document = of_kueue(dict(gang(kind, name, 2)), "research", running=running, **options)
    for template in templates(document):
        template["spec"]["priorityClassName"] = "users-own"
        if attempt:
            template["metadata"]["labels"][keys.ATTEMPT_LABEL] = str(attempt)
    return cluster.server.create("jobs" if kind == "Job" else "pytorchjobs", document)


def templates(document: Any) -> list[Any]:
    if document["kind"] == "Job":
        return [document["spec"]["template"]]
    return [replica["template"] for replica in document["spec"]["pytorchReplicaSpecs"].values()]


def now_stored(world: Rig, job: Any) -> Any:
    plural = "jobs" if job["kind"] == "Job" else "pytorchjobs"
    return world.cluster.server.get(plural, "default", job["metadata"]["name"])


async def with_two_flavors(world: Rig) -> None:
    """The node of a gang does not identify the flavor that it was charged to."""
    queue = m.cluster_queue("pool", "gpu", {GPU: 64, "cpu": "1k", "pods": 1000})
    [group] = queue["spec"]["resourceGroups"]
    group["flavors"].append({**group["flavors"][0], "name": "spot"})
    await world.store.put_config(m.flavor("spot", topology="gpus"))
    await world.store.put_config(queue)


async def adopted(world: Rig, uid: str) -> Entry:
    entry = await world.until_state(uid, State.RUNNING)
    codes = [line.reason.code for line in await world.store.history(uid)]
    assert Code.ADOPTED in codes
    return entry


@pytest.mark.parametrize("kind", ALIKE)
@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
async def test_a_running_gang_runs_on_with_the_admission_of_kueue(
    database_url: str, kind: str, version: str
) -> None:
    cluster = FakeCluster(nodes(2), clock=time.time)
    job = stored(cluster, kind, "train", running=True)
    uid = job["metadata"]["uid"]
    cluster.settle()
    before = {pod.uid: pod.node for pod in live(cluster.pods_of(uid))}
    assert len(before) == 2
    cluster.workloads.append(workload(job, PODSETS[kind], admitted="spot", version=version))
    async with rig(database_url, 2, cluster=cluster) as world:
        await with_two_flavors(world)
        entry = await adopted(world, uid)
        assert entry.placement is not None
        assert {f for p in entry.placement.podsets for f in p.flavors.values()} == {"spot"}
        assert (entry.cluster_queue, entry.started_at) == ("pool", parse_time(ADMITTED))
        assert {p.uid: p.node for p in live(cluster.pods_of(uid))} == before, "nobody restarted"
        assert not [w for w in cluster.writes if "spec" in w.patch]
        assert world.loop is not None
        assert world.loop.leader_state.planning.usage.other_pods == {}, "its pods fill its slots"
        cluster.finish(uid)
        await world.until_state(uid, State.FINISHED)


async def test_the_admission_of_kueue_does_not_count_for_an_attempt_of_queuectl(
    database_url: str,
) -> None:
    """The database was lost after queuectl had started the gang again. The Workload is of its start by Kueue."""
    cluster = FakeCluster(nodes(2), clock=time.time)
    job = stored(cluster, "Job", "train", running=True, attempt=1)
    cluster.settle()
    cluster.workloads.append(workload(job, {"main": 2}, admitted="spot"))
    began = time.time()
    async with rig(database_url, 2, cluster=cluster) as world:
        await with_two_flavors(world)
        entry = await adopted(world, job["metadata"]["uid"])
        assert entry.placement is not None
        assert {f for p in entry.placement.podsets for f in p.flavors.values()} == {"gpu"}
        assert int(entry.queued_at) == parse_time(CREATED), "it keeps its position"
        assert entry.started_at is not None
        assert entry.started_at >= began


async def test_ranks_stay_where_the_topology_assignment_put_them(database_url: str) -> None:
    cluster = FakeCluster(nodes(2), clock=time.time)
    cluster.cordon("n0")
    job = stored(cluster, "Job", "train", running=True)
    cluster.step()
    cluster.step()
    cluster.cordon("n0", unschedulable=False)
    cluster.settle()
    uid = job["metadata"]["uid"]
    ranks = {pod.rank: pod.node for pod in cluster.pods_of(uid)}
    order = [(str(ranks[0]), 1), (str(ranks[1]), 1)]
    cluster.workloads.append(workload(job, {"main": 2}, admitted="gpu", hosts={"main": order}))
    async with rig(database_url, 2, cluster=cluster) as world:
        entry = await adopted(world, uid)
        assert entry.placement is not None
        assert list(entry.placement.podsets[0].nodes) == order


@pytest.mark.parametrize("kind", ALIKE)
async def test_without_its_workload_it_is_charged_by_its_nodes(
    database_url: str, kind: str
) -> None:
    cluster = FakeCluster(nodes(2), clock=time.time)
    job = stored(cluster, kind, "train", running=True)
    cluster.settle()
    async with rig(database_url, 2, cluster=cluster) as world:
        await with_two_flavors(world)
        entry = await adopted(world, job["metadata"]["uid"])
        assert entry.placement is not None
        assert {f for p in entry.placement.podsets for f in p.flavors.values()} == {"gpu"}


async def test_a_queue_that_appears_within_a_cycle_is_not_used_before_its_running_gangs_count(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flavor has no topology, so only the quota holds the other gang back."""
    cluster = FakeCluster(nodes(4), clock=time.time)
    first = stored(cluster, "Job", "first", running=True)
    cluster.settle()
    cluster.workloads.append(workload(first, PODSETS["Job"], admitted="gpu"))
    second = stored(cluster, "Job", "second", running=False)["metadata"]["uid"]
    queue = m.local_queue("default", "research", "pool")
    carry_out = Loop._carry_out

    async def with_a_new_queue(loop: Loop, observed: list[EntryChange]) -> None:
        await carry_out(loop, observed)
        if not loop.leader_state.config.local_queues:
            await world.store.put_config(queue)
            await loop.configuration_changed()

    async with rig(database_url, 2, cluster=cluster) as world:
        await world.store.put_config(m.flavor("gpu"))
        await world.store.delete_config(DocumentKey.of(queue))
        monkeypatch.setattr(Loop, "_carry_out", with_a_new_queue)
        await adopted(world, first["metadata"]["uid"])
        entry = await world.until_entry(
            second, lambda entry: entry.reason.code is Code.WAITING_FOR_QUOTA, "no quota is left"
        )
        assert entry.attempt == 0


async def test_no_plan_uses_the_quota_of_a_running_gang_that_a_later_observation_adopts(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flavor has no topology, so only the quota holds the waiting gang back."""
    monkeypatch.setattr("queuectl.control.leader.loop.MOST_OBSERVED", 1)
    cluster = FakeCluster(nodes(6), clock=time.time)
    first = stored(cluster, "Job", "first", running=True)
    waits = stored(cluster, "Job", "waits", running=False)["metadata"]["uid"]
    last = stored(cluster, "Job", "last", running=True)
    cluster.settle()
    for job in (first, last):
        cluster.workloads.append(workload(job, PODSETS["Job"], admitted="gpu"))
    async with rig(database_url, 4, cluster=cluster) as world:
        await world.store.put_config(m.flavor("gpu"))
        for job in (first, last):
            await adopted(world, job["metadata"]["uid"])
        entry = await world.until_entry(
            waits, lambda entry: entry.reason.code is Code.WAITING_FOR_QUOTA, "no quota is left"
        )
        assert entry.attempt == 0


@pytest.mark.parametrize("kind", ALIKE)
async def test_a_suspended_job_is_started_with_gates_and_labels(
    database_url: str, kind: str
) -> None:
    """Gated and labeled as if the admission policies had seen it."""
    cluster = FakeCluster(nodes(2), clock=time.time)
    job = stored(cluster, kind, "train", running=False)
    uid = job["metadata"]["uid"]
    cluster.workloads.append(workload(job, PODSETS[kind]))
    async with rig(database_url, 2, cluster=cluster) as world:
        entry = await world.until_state(uid, State.RUNNING)
        assert parse_time(CREATED) <= entry.queued_at < parse_time(CREATED) + 1, (
            "its position in the queue"
        )
        document = now_stored(world, job)
        for template in templates(document):
            gates = [gate["name"] for gate in template["spec"]["schedulingGates"]]
            assert gates == [keys.GATE]
            assert template["metadata"]["labels"][keys.ATTEMPT_LABEL] == "1"
        classes = {template["spec"]["priorityClassName"] for template in templates(document)}
        kept = document["metadata"]["annotations"].get(keys.ORIGINAL_PRIORITY_CLASS)
        # It is immutable in a Job.
        expected = {"users-own"} if kind == "Job" else {keys.POD_PRIORITY_CLASS}
        assert (classes, kept) == (expected, None if kind == "Job" else "users-own")
        assert cluster.job(uid).pod_priority_class == "users-own"
        assert all(pod.attempt == 1 for pod in cluster.pods_of(uid))


async def test_a_suspended_trainjob_gets_an_entry_alongside_that_of_kueue(
    database_url: str,
) -> None:
    """Its JobSet is older than the policies of queuectl: the entry has the gate of its pods."""
    cluster = FakeCluster(nodes(2), clock=time.time)
    document = dict(gang("TrainJob", "train", 2))
    document["metadata"]["labels"] = {QUEUE_LABEL: "research"}
    kueues = {"manager": "kueue.x-k8s.io/manager", "trainingRuntimeSpec": {"template": {}}}
    document["spec"] |= {"suspend": True, "runtimePatches": [kueues]}
    job = cluster.server.create("trainjobs", document)
    uid = job["metadata"]["uid"]
    cluster.settle()
    cluster.workloads.append(workload(job, {"node": 2}))
    async with rig(database_url, 2, cluster=cluster) as world:
        entry = await world.until_state(uid, State.RUNNING)
        assert parse_time(CREATED) <= entry.queued_at < parse_time(CREATED) + 1
        stored = cluster.server.get("trainjobs", "default", "train")
        owners = [one["manager"] for one in stored["spec"]["runtimePatches"]]
        assert owners == ["kueue.x-k8s.io/manager", keys.PATCHES_OWNER]
        pods = cluster.pods_of(uid)
        assert {(pod.attempt, pod.podset) for pod in pods} == {(1, "node")}
        assert all(pod.pin for pod in pods), "each was gated until queuectl placed it"


def trainjob_of_kueue(cluster: FakeCluster, other_uid: str = "") -> Any:
    """A TrainJob that runs. Its pods name the Workload that Kueue made for it, or for a job with another uid and the same name."""
    document = dict(gang("TrainJob", "train", 2))
    document["metadata"]["labels"] = {QUEUE_LABEL: "research"}
    job = cluster.server.create("trainjobs", document)
    uid = other_uid or job["metadata"]["uid"]
    name = workload_name("TrainJob", "trainer.kubeflow.org", "train", uid)
    marks = {
        "labels": {keys.KUEUE_PODSET_LABEL: "node"},
        "annotations": {keys.KUEUE_WORKLOAD: name},
    }
    changed = {"name": "node", "template": {"spec": {"template": {"metadata": marks}}}}
    kueues = {
        "manager": "kueue.x-k8s.io/manager",
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [changed]}}},
    }
    cluster.server.edit("trainjobs", job, lambda one: one["spec"].update(runtimePatches=[kueues]))
    cluster.settle()
    cluster.workloads.append(workload(job, {"node": 2}, admitted="gpu"))
    return job


async def test_a_running_trainjob_runs_on_because_its_pods_name_its_workload(
    database_url: str,
) -> None:
    """Between the TrainJob and its pods are a JobSet and Jobs."""
    cluster = FakeCluster(nodes(2), clock=time.time)
    uid = trainjob_of_kueue(cluster)["metadata"]["uid"]
    before = {one["metadata"]["uid"] for one in cluster.server.all("pods")}
    assert len(before) == 2
    async with rig(database_url, 2, cluster=cluster) as world:
        entry = await adopted(world, uid)
        assert (entry.attempt, entry.cluster_queue) == (0, "pool")
        assert {one["metadata"]["uid"] for one in cluster.server.all("pods")} == before
        assert world.loop is not None
        assert world.loop.leader_state.planning.usage.other_pods == {}, "its pods fill its slots"
    cluster.workloads.clear()  # a step of the page
    async with rig(database_url, 2, cluster=cluster) as world:
        vip = cluster.submit(gang("Job", "vip", 2, "high"))
        await world.until_state(vip, State.RUNNING)
        codes = [line.reason.code for line in await world.store.history(uid)]
        assert Code.PREEMPTED in codes, "the next leader also found its pods"
        cluster.finish(vip)
        again = await world.until_state(uid, State.RUNNING)
        assert again.attempt == 1
        assert all(pod.pin for pod in cluster.pods_of(uid)), "each was gated"


async def test_pods_that_name_the_workload_of_an_earlier_job_are_not_adopted(
    database_url: str,
) -> None:
    """The earlier TrainJob had the same name and another uid."""
    cluster = FakeCluster(nodes(2), clock=time.time)
    job = trainjob_of_kueue(cluster, "another-uid")
    async with rig(database_url, 2, cluster=cluster) as world:
        entry = await world.until_state(job["metadata"]["uid"], State.RUNNING)
        assert entry.attempt == 1
        assert parse_time(CREATED) <= entry.queued_at < parse_time(CREATED) + 1
        assert all(pod.pin for pod in cluster.pods_of(entry.uid))


@pytest.mark.parametrize("kind", ALIKE)
async def test_an_adopted_gang_is_preempted_and_its_new_pods_are_gated(
    database_url: str, kind: str
) -> None:
    cluster = FakeCluster(nodes(2), clock=time.time)
    job = stored(cluster, kind, "train", running=True)
    uid = job["metadata"]["uid"]
    cluster.settle()
    cluster.workloads.append(workload(job, PODSETS[kind], admitted="gpu"))
    async with rig(database_url, 2, cluster=cluster) as world:
        await adopted(world, uid)
        vip = cluster.submit(gang("Job", "vip", 2, "high"))
        await world.until_state(vip, State.RUNNING)
        cluster.finish(vip)
        again = await world.until_state(uid, State.RUNNING)
        assert again.attempt == 1
        await world.at_rest()


async def test_a_job_that_kueue_deactivated_stays_deactivated_until_a_user_activates_it(
    database_url: str,
) -> None:
    cluster = FakeCluster(nodes(2), clock=time.time)
    job = stored(cluster, "Job", "train", running=False)
    cluster.workloads.append(workload(job, {"main": 2}, active=False))
    async with rig(database_url, 2, cluster=cluster) as world:
        entry = await world.until_state(job["metadata"]["uid"], State.DEACTIVATED)
        assert entry.reason.message == "deactivated by the Kueue that ran here"


async def test_a_half_admitted_gang_is_queued_at_its_place_and_started_by_queuectl(
    database_url: str,
) -> None:
    """Kueue had reserved its quota, and waited for an admission check."""
    cluster = FakeCluster(nodes(2), clock=time.time)
    job = stored(cluster, "Job", "train", running=False)
    half = workload(job, {"main": 2}, admitted="spot")
    conditions = half["status"]["conditions"]
    half["status"]["conditions"] = [one for one in conditions if one["type"] != "Admitted"]
    assert len(half["status"]["conditions"]) < len(conditions)
    cluster.workloads.append(half)
    async with rig(database_url, 2, cluster=cluster) as world:
        entry = await world.until_state(job["metadata"]["uid"], State.RUNNING)
        assert (entry.attempt, int(entry.queued_at)) == (1, parse_time(CREATED))


@pytest.mark.parametrize("claim", [{"namespace": "other"}, {"kind": "PyTorchJob"}])
async def test_a_workload_of_another_namespace_or_kind_does_not_count_for_a_job(
    database_url: str, claim: dict[str, str]
) -> None:
    """A user who can create Workloads in one namespace can name the uid of any job as the owner."""
    cluster = FakeCluster(nodes(2), clock=time.time)
    job = stored(cluster, "Job", "train", running=False)
    forged = workload(job, {"main": 2}, active=False)
    forged["metadata"]["namespace"] = claim.get("namespace", "default")
    forged["metadata"]["ownerReferences"][0]["kind"] = claim.get("kind", "Job")
    cluster.workloads += [workload(job, {"main": 2}), forged]
    async with rig(database_url, 2, cluster=cluster) as world:
        entry = await world.until_state(job["metadata"]["uid"], State.RUNNING)
        assert int(entry.queued_at) == parse_time(CREATED)


async def test_a_running_gang_of_an_unknown_queue_is_not_changed(database_url: str) -> None:
    """It is adopted once the queue exists."""
    cluster = FakeCluster(nodes(2), clock=time.time)
    job = of_kueue(dict(gang("Job", "foreign", 2)), "elsewhere", running=True)
    # Equal priority: else the queued gang would preempt it at once.
    job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "low"
    job = cluster.server.create("jobs", job)
    uid = job["metadata"]["uid"]
    cluster.settle()
    async with rig(database_url, 2, cluster=cluster) as world:
        ours = cluster.submit(gang("Job", "ours", 2))
        await world.until_state(ours, State.PENDING)
        assert await world.store.get_workload(uid) is None
        assert len(live(cluster.pods_of(uid))) == 2
        await world.store.put_config(m.local_queue("default", "elsewhere", "pool"))
        await adopted(world, uid)


@asynccontextmanager
async def one_runs_and_one_waits(url: str) -> AsyncIterator[Rig]:
    """The work of a Kueue that ran here."""
    cluster = FakeCluster(nodes(4), clock=time.time)
    runs, waits = (
        stored(cluster, "Job", name, running=running)
        for name, running in (("runs", True), ("waits", False))
    )
    cluster.settle()
    cluster.workloads += [
        workload(runs, {"main": 2}, admitted="gpu"),
        workload(waits, {"main": 2}),
    ]
    async with rig(url, 4, cluster=cluster) as world:
        yield world


async def taken_over(world: Rig) -> None:
    runs, waits = world.cluster.uids()
    before = {pod.uid for pod in live(world.cluster.pods_of(runs))}
    assert len(before) == 2
    for uid in (runs, waits):
        await world.until_state(uid, State.RUNNING)
    assert {pod.uid for pod in live(world.cluster.pods_of(runs))} == before
    await world.at_rest()


@pytest.mark.faults
async def test_a_take_over_continues_after_a_kill_at_any_step(postgres: TestPostgres) -> None:
    await survives(postgres, taken_over, one_runs_and_one_waits, sides=BOTH)
