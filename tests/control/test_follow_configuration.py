"""A leader follows the configuration: it reads one change at once and a burst in a few batches, without a loss."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from queuectl.control import supervisor
from queuectl.control.leader.loop import Loop
from queuectl.control.progress import SteadyClock
from queuectl.control.settings import Settings
from queuectl.control.supervisor import Supervisor
from queuectl.db.ports import Commit
from queuectl.demo import scenario as m
from queuectl.domain.ledger import Document, Loaded, State
from queuectl.domain.queries import DocumentKey
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code
from queuectl.objects.configuration.links import MAX_COHORTS
from queuectl.objects.configuration.owners import FOLLOWED, Owner
from queuectl.objects.kinds import KINDS
from queuectl.ownership.status_forms import FORMS
from queuectl.telemetry.metrics import MetricsRecorder
from tests.control.rig import Rig, configuration, gang, rig
from tests.control.test_idle_reclaim import one_idle, reclaiming
from tests.control.test_lifecycle import rules, until_reason
from tests.doubles.cluster import FakeCluster
from tests.doubles.objects import MemoryObjects
from tests.doubles.store import MemoryDatabase, MemoryStore
from tests.support import followed as f
from tests.support.polling import until


class Follower(Supervisor):
    """Records the queues of the leader each time they change."""

    taken: list[QueueConfig]

    async def _lead_until_lost(self, loop: Loop, epoch: int) -> None:
        self.taken = []
        take_in = loop.configuration_changed

        async def noted() -> None:
            await take_in()
            self.taken.append(loop.leader_state.config)

        loop.configuration_changed = noted  # type: ignore[method-assign]
        await super()._lead_until_lost(loop, epoch)


@asynccontextmanager
async def following(
    store: MemoryStore, settings: Settings | None = None, objects: MemoryObjects | None = None
) -> AsyncIterator[Follower]:
    supervisor = Follower(
        store=store,
        cluster=FakeCluster([]),
        metrics=MetricsRecorder(),
        settings=settings or Settings(debounce_seconds=0.0),
        clock=SteadyClock(),
        kinds=KINDS,
        objects=objects,
    )
    stop = asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop))
    try:
        await until(lambda: hasattr(supervisor, "taken"))
        yield supervisor
    finally:
        stop.set()
        await running


async def test_a_burst_of_writes_is_read_in_a_few_batches_and_the_first_write_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "MERGE_SECONDS", 1.0)
    store = MemoryStore(MemoryDatabase())
    async with following(store) as leader:
        first, *others = configuration(8)
        await store.put_config(first)
        await until(lambda: len(leader.taken) == 1)
        assert list(leader.taken[0].topologies) == ["gpus"]
        for document in others:
            await store.put_config(document)
        await store.delete_config(DocumentKey("WorkloadPriorityClass", "", "low"))
        revision = len(others) + 2
        await until(lambda: leader.taken[-1].revision == revision)
        assert len(leader.taken) == 2
        last = leader.taken[-1]
        assert (list(last.cluster_queues), list(last.priority_classes)) == (["pool"], ["high"])


async def test_a_change_that_is_written_during_a_load_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loaded state is older than the change, and replaces the configuration that the leader has read."""
    monkeypatch.setattr(supervisor, "MERGE_SECONDS", 0.0)
    store = MemoryStore(MemoryDatabase())
    topology, *others = configuration(8)
    await store.put_config(topology)
    load = store.load

    async def slow() -> Loaded:
        loaded = await load()
        if len(loaded.documents) == 1:
            for document in others:
                await store.put_config(document)
            for _ in range(200):  # enough time to read the change
                await asyncio.sleep(0)
        return loaded

    monkeypatch.setattr(store, "load", slow)
    async with following(store) as leader:
        await until(
            lambda: (
                (leader_state := leader._leader_state()) is not None
                and leader_state.config.revision == len(others) + 1
            )
        )


async def test_gangs_of_queues_that_are_created_later_are_considered_again(
    database_url: str,
) -> None:
    """Each change concerns some gangs: the gangs that wait for it are considered again."""
    async with rig(database_url, 4) as world:
        queue, local = (d for d in configuration(32) if d["kind"] in ("ClusterQueue", "LocalQueue"))
        await world.store.delete_config(DocumentKey.of(local))
        uid = world.cluster.submit(gang("Job", "train", 2))
        await until_reason(world, uid, State.PENDING, Code.MISCONFIGURED)
        elsewhere = {**local, "spec": {"clusterQueue": "later"}}
        await world.store.put_config(elsewhere)
        held = await until_reason(world, uid, State.PENDING, Code.MISCONFIGURED)
        assert held.cluster_queue == ""
        await world.store.put_config({**queue, "metadata": {"name": "later"}})
        entry = await world.until_state(uid, State.RUNNING)
        assert entry.cluster_queue == "later"
        stopped = {**queue["spec"], "stopPolicy": "HoldAndDrain"}
        await world.store.put_config({**queue, "spec": stopped})
        await world.store.put_config({**queue, "metadata": {"name": "later"}, "spec": stopped})
        await until_reason(world, uid, State.PENDING, Code.QUEUE_STOPPED)


async def test_a_new_leader_decides_nothing_before_it_can_read_the_configuration(
    database_url: str,
) -> None:
    """A document has a field of a newer release."""
    async with rig(database_url, 2) as world:
        await world.store.put_config(rules(waitForPodsReady={"timeout": "2h"}))
        world.cluster.controllers.hold_starts = True
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.STARTING)
        await world.stop()
        starting = await world.entry(uid)
        local = next(d for d in configuration(16) if d["kind"] == "LocalQueue")
        other = {**local, "metadata": {"name": "other", "namespace": "default"}}
        newer = {**other, "spec": {**other["spec"], "fieldOfTheNextRelease": 1}}
        await world.store.put_config(newer)
        waits = world.cluster.submit(gang("Job", "waits", 1))
        world.clock = lambda: time.time() + 3600  # the default timeout is 30 minutes
        world.running = True
        with capture_logs() as logs:
            await world.until(lambda: unreadable_in(logs), "the configuration is read")
            for _ in range(20):
                await world.until(lambda: True, "a pass")
        assert await world.entry(uid) == starting
        assert await world.store.get_workload(waits) is None
        await world.store.put_config(other)
        await until_reason(world, waits, State.PENDING, Code.WAITING_FOR_QUOTA)
        assert (await world.entry(uid)).state is State.STARTING
        assert unreadable_in(logs)[0]["previous_in_force"] is False


def unreadable_in(logs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [line for line in logs if line["event"] == "configuration_unreadable"]


@dataclass
class Overtaken:
    """The outcome of a plan when a document is written right before its commit.

    Attributes:
        plan: uid and code of its changes.
        loads: how often the whole ledger was read afterwards.
    """

    plan: set[tuple[str, Code]] = field(default_factory=set)
    loads: int = 0


def overtake(
    world: Rig, wanted: tuple[str, Code], document: Document, monkeypatch: pytest.MonkeyPatch
) -> Overtaken:
    """Write the document right before the commit of the first plan with this change."""
    commit, load = world.store.commit, world.store.load
    seen = Overtaken()

    async def overtaken(new: Commit, **place: int) -> None:
        wants = {(c.after.uid, c.note.reason.code) for c in new.changes if c.note is not None}
        if new.revision is not None and wanted in wants and not seen.plan:
            seen.plan = wants
            await world.store.put_config(document)
        await commit(new, **place)

    async def loaded() -> Loaded:
        seen.loads += 1
        return await load()

    monkeypatch.setattr(world.store, "commit", overtaken)
    monkeypatch.setattr(world.store, "load", loaded)
    return seen


def discarded(world: Rig) -> float | None:
    labels = {"reason": "stale"}
    return world.metrics.registry.get_sample_value("queuectl_discarded_plans_total", labels)


def cycles_that_admit(world: Rig) -> float | None:
    labels = {"result": "success"}
    return world.metrics.registry.get_sample_value("queuectl_admission_attempts_total", labels)


@pytest.mark.parametrize(
    ("kind", "change", "code", "plans"),
    [
        ("ClusterQueue", {"stopPolicy": "Hold"}, Code.QUEUE_STOPPED, 0.0),
        ("ResourceFlavor", {"nodeLabels": {"pool": "none"}}, Code.SHAPE_NEVER_FITS, 1.0),
    ],
)
async def test_a_decision_that_the_newest_configuration_forbids_is_dropped_and_the_ledger_stays(
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    change: dict[str, Any],
    code: Code,
    plans: float,
) -> None:
    """The whole plan is dropped only if more than queues has changed."""
    async with rig(database_url, 2) as world:
        first = world.cluster.submit(gang("Job", "first", 1))
        await world.until_state(first, State.RUNNING)
        (document,) = (d for d in configuration(16) if d["kind"] == kind)
        edited = {**document, "spec": {**document["spec"], **change}}
        second = world.cluster.submit(gang("Job", "second", 1))
        seen = overtake(world, (second, Code.ADMITTED), edited, monkeypatch)
        entry = await until_reason(world, second, State.PENDING, code)
        assert (second, Code.ADMITTED) in seen.plan
        assert entry.attempt == 0
        assert (seen.loads, discarded(world)) == (0, plans)
        assert cycles_that_admit(world) == 1, "that of the first gang"
        await world.store.put_config(document)
        await world.until_state(second, State.RUNNING)
        assert cycles_that_admit(world) == 2
        await world.at_rest()


@pytest.mark.parametrize("field", ["weight", "stopPolicy"])
async def test_edits_of_a_local_queue_at_every_plan_delay_no_other_queue(
    database_url: str, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    """Its gang is the head of the queue, and would use all nodes."""
    states: dict[str, list[dict[str, Any]]] = {
        "weight": [{"fairSharing": {"weight": "1"}}, {"fairSharing": {"weight": "2"}}],
        "stopPolicy": [{"stopPolicy": "Hold"}, {"stopPolicy": "None"}],
    }
    async with rig(database_url, 2) as world:
        await world.store.put_config(m.local_queue("default", "noisy", "pool"))
        noise: list[dict[str, Any]] = []
        editing = asyncio.Lock()
        commit = world.store.commit

        async def overtaken(new: Commit, **place: int) -> None:
            async with editing:
                if new.revision is not None and noise:
                    noise.reverse()
                    document = m.local_queue("default", "noisy", "pool")
                    document["spec"] |= noise[1]
                    await world.store.put_config(document)
            await commit(new, **place)

        monkeypatch.setattr(world.store, "commit", overtaken)
        noise += states[field]
        noisy = world.cluster.submit(in_queue("noisy", gang("Job", "noisy", 2)))
        if field == "weight":
            await world.until_state(noisy, State.RUNNING)
            world.cluster.finish(noisy)
        other = world.cluster.submit(gang("Job", "other", 2))
        await world.until_state(other, State.RUNNING)
        async with editing:  # no edit comes after the last one
            noise.clear()
        world.cluster.finish(other)
        await world.store.put_config(m.local_queue("default", "noisy", "pool"))
        done = State.FINISHED if field == "weight" else State.RUNNING
        await world.until_state(noisy, done)
        await world.at_rest()


def in_queue(queue: str, job: Any) -> dict[str, Any]:
    labels = job["metadata"]["labels"] | {"queuectl.dev/queue-name": queue}
    return {**job, "metadata": {**job["metadata"], "labels": labels}}


async def test_a_deleted_local_queue_starts_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(database_url, 2) as world:
        await world.store.put_config(m.local_queue("default", "noisy", "pool"))
        commit = world.store.commit
        deleted: list[DocumentKey] = []

        async def overtaken(new: Commit, **place: int) -> None:
            if new.revision is not None and not deleted:
                deleted.append(DocumentKey("LocalQueue", "default", "noisy"))
                await world.store.delete_config(deleted[0])
            await commit(new, **place)

        monkeypatch.setattr(world.store, "commit", overtaken)
        noisy = world.cluster.submit(in_queue("noisy", gang("Job", "noisy", 1)))
        entry = await until_reason(world, noisy, State.PENDING, Code.MISCONFIGURED)
        assert entry.attempt == 0


async def test_cohorts_in_a_circle_or_too_many_above_each_other_stop_no_queue(
    database_url: str,
) -> None:
    """The API refuses them. Two concurrent writes, or an edit of the database, can still store them."""
    circle = {"left": "right", "right": "left", "below": "left"}
    chain = {f"c-{n}": f"c-{n + 1}" for n in range(MAX_COHORTS + 3)}
    async with rig(database_url, 2) as world:
        for name, parent in (circle | chain).items():
            await world.store.put_config(m._config("Cohort", name, {"parentName": parent}))
        for queue, above in (("in-circle", "below"), ("deep", "c-0")):
            quotas: dict[str, int | str] = {"nvidia.com/gpu": 8, "cpu": "1k", "pods": 1000}
            member = m.cluster_queue(queue, "gpu", quotas)
            member["spec"]["cohortName"] = above
            await world.store.put_config(member)
            await world.store.put_config(m.local_queue("default", queue, queue))
        for queue in ("research", "in-circle", "deep"):
            job = world.cluster.submit(in_queue(queue, gang("Job", queue, 1)))
            await world.until_state(job, State.RUNNING)
            world.cluster.finish(job)
            await world.until_state(job, State.FINISHED)
        await world.at_rest()


async def test_the_reasons_of_a_dropped_plan_are_in_the_next_plan(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reclaiming(database_url, "DryRun", yieldsToEqualPriority=True) as watched:
        sleepy = await one_idle(watched)
        *_, unused = configuration(16)
        wanted = (sleepy, Code.WOULD_RECLAIM)
        seen = overtake(watched.world, wanted, {**unused, "value": 101}, monkeypatch)
        watched.world.cluster.submit(gang("Job", "waits", 2))
        await watched.until_line(sleepy, Code.WOULD_RECLAIM)
        assert (seen.loads, discarded(watched.world)) == (0, 1.0)


async def test_a_leader_plans_with_the_queues_of_objects_of_the_cluster() -> None:
    store, objects = MemoryStore(MemoryDatabase()), MemoryObjects()
    objects.apply(f.flavor("gpu"), f.queue("vision"), f.local_queue("team", "default", "vision"))
    settings = Settings(
        debounce_seconds=0.0,
        configuration_owner=Owner.KUEUE,
        configuration_settle_seconds=0.0,
    )
    async with following(store, settings, objects) as leader:
        await until(lambda: bool(leader.taken) and "vision" in leader.taken[-1].cluster_queues)
        objects.apply(f.queue("vision", 4))
        await until(lambda: "nominalQuota': 4" in str(store.database.documents))
        await until(lambda: leader.taken[-1].revision == store.database.revision)


@pytest.mark.parametrize(
    ("owner", "conditions"),
    [
        (Owner.KUBERNETES, {"Active": "Active", "Ready": "Accepted"}),
        (Owner.KUEUE, {"Active": "Ready"}),
    ],
)
async def test_a_leader_writes_the_statuses_of_objects_that_own_the_configuration(
    owner: Owner, conditions: dict[str, str]
) -> None:
    store, objects = MemoryStore(MemoryDatabase()), MemoryObjects(FOLLOWED[owner], FORMS[owner])
    objects.apply(f.flavor("gpu"), f.queue("vision"))
    settings = Settings(debounce_seconds=0.0, configuration_owner=owner)
    async with following(store, settings, objects):
        await until(lambda: "conditions" in objects.status("ClusterQueue", "vision"))
        status = objects.status("ClusterQueue", "vision")
        assert {one["type"]: one["reason"] for one in status["conditions"]} == conditions
