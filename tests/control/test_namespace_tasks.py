"""Writes in a namespace whose webhook does not answer delay no write in another one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import pytest

from queuectl.control.leader import namespace_tasks
from queuectl.control.leader.commands import ForceDeletion
from queuectl.control.leader.namespace_tasks import WRITERS, NamespaceTasks, NamespaceWrite
from queuectl.control.leader.periodic import keep_labels
from queuectl.demo import scenario as m
from queuectl.domain.containment import Boundary, Containment
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import Entry, Intent, State
from queuectl.domain.queues import LocalQueue, QueueConfig
from queuectl.domain.records import NamespaceRecord, Upserted
from queuectl.objects.keys import DEFAULT_QUEUE_LABEL
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from tests.control.rig import gang, rig
from tests.control.test_provisioning import provisions
from tests.doubles.cluster import NAMESPACES, FakeCluster
from tests.support.polling import until

HANGS = "hangs"


class Recorded:
    """Writes of namespaces by name. Those of the namespace ``hangs`` are never answered."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.sent: list[str] = []
        self.failing: set[str] = set()

    def write(self, namespace: str, name: str) -> NamespaceWrite:
        return NamespaceWrite(namespace, name, name, partial(self._send, namespace, name))

    async def _send(self, namespace: str, name: str) -> None:
        self.begun.append(name)
        if namespace == HANGS:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        if name in self.failing:
            raise RuntimeError(name)
        self.sent.append(name)


async def while_running(task: Callable[[asyncio.TaskGroup], Awaitable[None]]) -> None:
    """Run this, then cancel everything that it has started."""

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            await task(group)
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await run()


async def some_turns() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


async def test_each_namespace_has_one_write_at_a_time_and_all_are_sent() -> None:
    written, tasks = Recorded(), NamespaceTasks(Boundary.TASK, Containment(time.time))
    names = [(f"n{n}", f"n{n}-{w}") for n in range(3 * WRITERS) for w in range(2)]

    async def send(group: asyncio.TaskGroup) -> None:
        tasks.start_due(group, [written.write(HANGS, "first"), written.write(HANGS, "second")])
        await some_turns()
        tasks.start_due(group, [written.write(HANGS, "third")])
        tasks.start_due(group, [written.write(*each) for each in names])
        await some_turns()

    await while_running(send)
    assert written.begun[0] == "first"
    assert not {"second", "third"} & set(written.begun)
    assert sorted(written.sent) == sorted(name for _, name in names)


async def test_namespaces_take_turns() -> None:
    """Each call allows some tasks to begin, and repeats all writes."""
    written, tasks = Recorded(), NamespaceTasks(Boundary.TASK, Containment(time.time))
    names = [f"n{number:02}" for number in range(3 * WRITERS)]

    async def send(group: asyncio.TaskGroup) -> None:
        for _ in range(3):
            tasks.start_due(group, [written.write(name, name) for name in names])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            tasks.start_due(group, ())
            await some_turns()

    await while_running(send)
    assert set(written.sent) == set(names)


@pytest.mark.sets_aside
async def test_an_unexpected_error_concerns_one_write() -> None:
    now = [1000.0]
    containment = Containment(lambda: now[0])
    written, tasks = Recorded(), NamespaceTasks(Boundary.TASK, containment)
    written.failing = {"a-0"}
    writes = [written.write("a", "a-0"), written.write("a", "a-1"), written.write("b", "b-0")]

    async def send(group: asyncio.TaskGroup) -> None:
        for _ in range(2):
            tasks.start_due(group, writes)
            await some_turns()

    await while_running(send)
    assert written.begun.count("a-0") == 1, "it waits for the end of its back-off"
    assert sorted(written.sent) == ["a-1", "a-1", "b-0", "b-0"]
    assert [(one.key, one.namespace) for one in containment] == [("a-0", "a")]
    now[0] += 3600.0
    written.failing.clear()
    written.sent.clear()
    await while_running(send)
    assert "a-0" in written.sent
    assert containment.empty


async def test_a_namespace_pauses_after_a_slow_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace_tasks, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(namespace_tasks, "SLOW_PAUSE", 0.05)
    written, tasks = Recorded(), NamespaceTasks(Boundary.TASK, Containment(time.time))
    writes = [written.write("a", "a-0"), written.write("a", "a-1")]

    async def send(group: asyncio.TaskGroup) -> None:
        tasks.start_due(group, writes)
        await some_turns()
        assert written.sent == ["a-0"]
        assert tasks.barred() == {"a"}
        tasks.start_due(group, writes)
        await some_turns()
        assert written.sent == ["a-0"]
        await asyncio.sleep(0.06)
        tasks.start_due(group, writes[1:])
        await some_turns()

    await while_running(send)
    assert written.sent == ["a-0", "a-1"]


async def running_until(task: Coroutine[Any, Any, None], reached: Callable[[], bool]) -> None:
    """Run this until it has the effect."""
    running = asyncio.create_task(task)
    try:
        await until(lambda: reached() or running.done())
        assert not running.done()
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


class Hanging(FakeCluster):
    """No write in one namespace is ever answered."""

    def __init__(self) -> None:
        super().__init__(namespaces=(*NAMESPACES, HANGS))

    async def delete_pod(self, namespace: str, name: str, uid: str, version: int) -> None:
        await self._answered(namespace)
        await super().delete_pod(namespace, name, uid, version)

    async def patch_namespace(self, name: str, patch: Mapping[str, Any]) -> None:
        await self._answered(name)
        await super().patch_namespace(name, patch)

    async def create_object(self, resource: str, document: Mapping[str, Any]) -> None:
        await self._answered(document["metadata"]["namespace"])
        await super().create_object(resource, document)

    async def _answered(self, namespace: str) -> None:
        if namespace == HANGS:
            await asyncio.Event().wait()


async def test_a_pod_that_cannot_be_deleted_delays_no_forced_deletion_in_other_namespaces() -> None:
    mirror, entries, deleted = Mirror({"jobs": "Job"}), list[Entry](), list[str]()
    for namespace in (HANGS, "team"):
        uid = f"of {namespace}"
        entries.append(
            Entry(uid, "Job", namespace, "train", State.EVICTING, attempt=1, intent=Intent.STOP)
        )
        pod = PodRecord(
            namespace,
            "train-0",
            f"pod of {namespace}",
            5,
            owner=uid,
            owner_kind="Job",
            attempt=1,
            node="gone",
            terminating=True,
        )
        mirror.apply([Upserted(pod)])

    class Cluster(Hanging):
        async def delete_pod(self, namespace: str, name: str, uid: str, version: int) -> None:
            await self._answered(namespace)
            deleted.append(namespace)

    ledger = Ledger(entries)
    force = ForceDeletion(Cluster(), mirror, lambda: ledger, 0.0)
    await running_until(force.run(), lambda: deleted == ["team"])


async def test_a_namespace_that_cannot_be_labeled_delays_no_label_of_others() -> None:
    cluster, mirror = Hanging(), Mirror({"jobs": "Job"})
    for name in (HANGS, "default"):
        mirror.apply([Upserted(NamespaceRecord(name, 1))])
    config = QueueConfig(
        local_queues={
            (name, "default"): LocalQueue(name, "default", "cq") for name in (HANGS, "default")
        }
    )

    def labeled() -> bool:
        labels = cluster.server.get("namespaces", "", "default")["metadata"].get("labels", {})
        return bool(labels.get(DEFAULT_QUEUE_LABEL) == "true")

    await running_until(keep_labels(cluster, mirror, lambda: config), labeled)


async def test_a_request_for_nodes_that_hangs_delays_no_request_of_other_namespaces(
    database_url: str,
) -> None:
    async with rig(database_url, 0, cluster=Hanging()) as world:
        await provisions(world)
        await world.store.put_config(m.local_queue(HANGS, "research", "pool"))
        hanging = gang("Job", "first", 1)
        hanging["metadata"]["namespace"] = HANGS
        first = world.cluster.submit(hanging)
        await world.until_state(first, State.RESERVED)
        await world.until_state(world.cluster.submit(gang("Job", "second", 1)), State.RUNNING)
