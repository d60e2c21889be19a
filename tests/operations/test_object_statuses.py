"""A leader writes the statuses of objects of ``queuectl.dev/v1`` on a real API server, with the CRDs and the rights of the chart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml

from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.domain.containment import Containment
from queuectl.domain.errors import ObjectGone
from queuectl.domain.queries import DocumentKey
from queuectl.objects.configuration.owners import FOLLOWED, Owner
from queuectl.objects.configuration.queue_config import build
from queuectl.objects.configuration.status_wire import ObjectStatus, QueueStatus
from queuectl.ownership.follower import ObjectFollower
from queuectl.ownership.own_status import UnownedStatusForm
from queuectl.ownership.source import KubernetesObjects
from queuectl.ownership.status_form import QueuesNow
from queuectl.ownership.status_forms import FORMS
from queuectl.ownership.status_writer import StatusWriter, WriteRate
from queuectl.ownership.statuses import REPEAT_SECONDS
from queuectl.ownership.unowned import UnownedObjects
from tests.doubles.store import MemoryStore
from tests.operations.custom import CustomCluster
from tests.support import followed as f
from tests.support.chart import documents
from tests.unit.test_argocd_health import health

pytestmark = pytest.mark.operations

OURS = {"apiVersion": "queuectl.dev/v1"}
KINDS = FOLLOWED[Owner.KUBERNETES]
FORM = FORMS[Owner.KUBERNETES]
VALUES = {"image": {"repository": "queuectl"}, "configuration": {"owner": "kubernetes"}}


class Leader:
    """Follows the objects and writes their statuses."""

    def __init__(self, source: KubernetesObjects) -> None:
        self.source, self.store = source, MemoryStore()
        self.writer = StatusWriter(
            source, FORM, self._queues, time.time, WriteRate(), Containment(time.time)
        )

    def _queues(self) -> QueuesNow:
        database = self.store.database
        stored = [one.document for one in database.documents.values()]
        return QueuesNow(build(stored, database.revision), lambda _: {})


@asynccontextmanager
async def leading(api: CustomCluster) -> AsyncIterator[Leader]:
    client = await Api.connect(Connection(api.cluster.kubeconfig), watches=len(KINDS))
    leader = Leader(KubernetesObjects(client, KINDS, Containment(time.time), FORM))
    epoch = await leader.store.take_over("leader", 0)
    follower = ObjectFollower(
        leader.source,
        leader.store,
        Owner.KUBERNETES,
        0.2,
        time.time,
        lambda _: None,
        epoch,
        leader.writer.decided,
        FORM,
    )
    tasks = [asyncio.create_task(follower.run()), asyncio.create_task(leader.writer.run())]
    try:
        yield leader
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await client.close()


async def until(condition: Callable[[], Any], seconds: float) -> float:
    """Wait until a condition holds. Returns the seconds that it took."""
    began = time.monotonic()
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - the API server has no event
            await asyncio.sleep(0.02)
    return time.monotonic() - began


def read(api: CustomCluster, plural: str, name: str) -> dict[str, Any]:
    body: dict[str, Any] = api.cluster.client.get(f"/apis/queuectl.dev/v1/{plural}/{name}")
    return body


def shows(body: dict[str, Any], **conditions: str) -> bool:
    """Whether the conditions are about this generation, and have these statuses."""
    status = body.get("status", {})
    current = status.get("observedGeneration") == body["metadata"]["generation"]
    found = {one["type"]: one["status"] for one in status.get("conditions", [])}
    return current and found == conditions


async def test_conditions_follow_an_edit_within_two_seconds(api: CustomCluster) -> None:
    def queue() -> dict[str, Any]:
        return read(api, "clusterqueues", "a")

    def apply(body: f.Object) -> None:
        api.apply({**body, **OURS}, manager="git")

    async with leading(api) as leader:
        await asyncio.to_thread(apply, f.flavor("gpu"))
        await until(lambda: shows(read(api, "resourceflavors", "gpu"), Ready="True"), 20.0)
        await asyncio.to_thread(apply, f.queue("a"))
        assert await until(lambda: shows(queue(), Ready="True", Active="True"), 20.0) < 2.0
        assert health(queue())[0] == "Healthy"
        line = api.done("get", "qcq", "a").splitlines()
        assert line[0].split() == ["NAME", "COHORT", "PENDING", "ADMITTED", "READY", "AGE"]
        assert line[1].split()[1:4] == ["0", "0", "True"]

        await asyncio.to_thread(apply, f.queue("a", flavor="absent"))
        assert await until(lambda: shows(queue(), Ready="False", Active="True"), 20.0) < 2.0
        broken = queue()
        assert health(broken)[0] == "Degraded"
        assert "ResourceFlavor absent does not exist" in health(broken)[1]

        await asyncio.to_thread(apply, f.queue("a", stopPolicy="Hold"))
        await until(lambda: shows(queue(), Ready="True", Active="False"), 20.0)
        assert health(queue())[0] == "Suspended"
        revision, generation = leader.store.database.revision, queue()["metadata"]["generation"]
        await _others(api, queue)
        assert leader.store.database.revision == revision + 1, "of the edit alone"
        assert queue()["metadata"]["generation"] == generation + 1
        await _replaced(api, leader)


async def _others(api: CustomCluster, queue: Callable[[], dict[str, Any]]) -> None:
    """The condition of another field manager stays over an edit."""
    condition = {
        "type": "Billed",
        "status": "True",
        "reason": "Paid",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    body = {**OURS, "kind": "ClusterQueue", "metadata": {"name": "a"}}
    text = yaml.safe_dump({**body, "status": {"conditions": [condition]}})
    options = ("--server-side", "--subresource=status", "--field-manager=billing", "-f", "-")
    await asyncio.to_thread(lambda: api.done("apply", *options, stdin=text))
    api.apply({**f.queue("a", 16), **OURS}, manager="git", force=True)
    await until(lambda: shows(queue(), Ready="True", Active="True", Billed="True"), 20.0)


async def _replaced(api: CustomCluster, leader: Leader) -> None:
    """A status is not written to a deleted object. That of an old object is corrected on a new one of its name."""
    key = DocumentKey("ClusterQueue", "", "a")
    await asyncio.to_thread(lambda: api.done("delete", "qcq", "a"))
    with pytest.raises(ObjectGone):
        await leader.source.write_status(key, ObjectStatus(1, []))
    await asyncio.to_thread(lambda: api.apply({**f.queue("a"), **OURS}, manager="git"))
    await leader.source.write_status(key, ObjectStatus(77, []))
    await until(
        lambda: shows(read(api, "clusterqueues", "a"), Ready="True", Active="True"),
        REPEAT_SECONDS + 15,
    )


async def test_objects_that_do_not_own_the_configuration_say_so_without_counts(
    api: CustomCluster,
) -> None:
    await asyncio.to_thread(lambda: api.apply({**f.queue("idle"), **OURS}, manager="git"))
    client = await Api.connect(Connection(api.cluster.kubeconfig), watches=len(KINDS))
    form = UnownedStatusForm(Owner.DATABASE)
    source = KubernetesObjects(client, KINDS, Containment(time.time), form)
    queues = QueuesNow(build([], 0), lambda _: {})
    writer = StatusWriter(
        source, form, lambda: queues, time.time, WriteRate(), Containment(time.time)
    )
    unowned = UnownedObjects(source, KINDS, time.time, writer.decided)
    tasks = [asyncio.create_task(unowned.run())]
    try:
        await until(lambda: "clusterqueues" in source.versions, 20.0)
        key = DocumentKey("ClusterQueue", "", "idle")
        await source.write_status(key, QueueStatus(1, [], 1, 2, 3))  # of an earlier owner
        tasks.append(asyncio.create_task(writer.run()))
        await until(lambda: shows(read(api, "clusterqueues", "idle"), Ready="False"), 60.0)
        body = read(api, "clusterqueues", "idle")
        assert "admittedWorkloads" not in body["status"]
        assert body["status"]["conditions"][0]["reason"] == "NotOwner"
        assert health(body)[0] == "Degraded"
        assert "the database" in health(body)[1]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await client.close()


def test_the_chart_gives_the_right_to_write_statuses_and_no_other_write(
    api: CustomCluster,
) -> None:
    name = "queuectl-configuration-owner"
    rights = [one for one in documents(VALUES) if one["metadata"]["name"] == name]
    assert len(rights) == 2
    api.done("apply", "-f", "-", stdin=yaml.safe_dump_all(rights))
    namespace = rights[1]["subjects"][0]["namespace"]
    account = f"--as=system:serviceaccount:{namespace}:queuectl"

    def can(verb: str, resource: str, *options: str) -> bool:
        return api.kubectl("auth", "can-i", verb, resource, account, *options).returncode == 0

    for kind in KINDS:
        assert can("patch", kind.definition, "--subresource=status")
        assert not can("patch", kind.definition)
        assert not can("update", kind.definition, "--subresource=status")
