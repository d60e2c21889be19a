"""The queues that a leader proposes at the first start: once, never over other configuration, and safe in each unlucky moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from queuectl.control.leader import first_queues
from queuectl.control.leader.first_queues import FirstQueues
from queuectl.control.settings import Settings
from queuectl.db.ports import ConfigurationBatch
from queuectl.domain.audit import LEADER, AuditFilter
from queuectl.domain.containment import Containment
from queuectl.domain.errors import Fenced, StoreUnavailable
from queuectl.domain.queries import DocumentKey
from queuectl.domain.records import Upserted
from queuectl.objects.configuration.queue_config import build
from queuectl.objects.kinds import KINDS
from queuectl.objects.kubernetes.nodes import read_node
from queuectl.objects.kubernetes.wire import WireNode
from queuectl.state.mirror import Mirror
from tests.doubles.store import MemoryDatabase, MemoryStore
from tests.support.fleets import node
from tests.support.polling import until

GPUS = "nvidia.com/gpu"


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_queues, "SETTLED_SECONDS", 0.02)
    monkeypatch.setattr(first_queues, "LONGEST_SECONDS", 0.2)
    monkeypatch.setattr(first_queues, "_POLL_SECONDS", 0.002)


class Nodes:
    """A mirror whose nodes a test changes."""

    def __init__(self, *names: str, gpus: int = 8) -> None:
        self.mirror = Mirror.of(KINDS, Containment(lambda: 0.0))
        self._version = 0
        self.add(*names, gpus=gpus)

    def add(self, *names: str, gpus: int = 8) -> None:
        for name in names:
            self._version += 1
            amounts = {"cpu": "64", "pods": "110"} | ({GPUS: str(gpus)} if gpus else {})
            labels = {"nvidia.com/gpu.product": "H100"} if gpus else {}
            record = read_node(msgspec.convert(node(name, labels, amounts), WireNode))
            self.mirror.apply([Upserted(replace(record, version=self._version))])


@asynccontextmanager
async def leading(
    store: MemoryStore, nodes: Nodes, namespaces: Sequence[str] = ("team-a", "team-b")
) -> AsyncIterator[asyncio.Task[None]]:
    epoch = await store.take_over("leader", 0)
    task = asyncio.create_task(
        FirstQueues(store, nodes.mirror, namespaces, lambda: 5.0, epoch).run()
    )
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Fenced):
            await task


def gpu_quota(store: MemoryStore) -> int:
    """The GPUs of the only ClusterQueue, in a configuration without errors."""
    documents = [one.document for one in store.database.documents.values()]
    build(documents, store.database.revision)
    [queue] = [one for one in documents if one["kind"] == "ClusterQueue"]
    return sum(
        int(resource["nominalQuota"])
        for group in queue["spec"]["resourceGroups"]
        for flavor in group["flavors"]
        for resource in flavor["resources"]
        if resource["name"] == GPUS
    )


async def test_the_leader_proposes_the_queues_once_with_lines_in_the_audit_log() -> None:
    store, nodes = MemoryStore(), Nodes("n1", "n2")
    async with leading(store, nodes) as task:
        await asyncio.wait_for(task, 10)
    assert store.database.revision == 1, "one transaction"
    assert gpu_quota(store) == 16
    keys = {key for key in store.database.documents if key.kind == "LocalQueue"}
    assert keys == {DocumentKey("LocalQueue", name, "main") for name in ("team-a", "team-b")}
    lines = await store.audit.lines(AuditFilter(caller=LEADER), 20)
    assert len(lines) == len(store.database.documents)
    assert {line.status for line in lines} == {200}
    nodes.add("n3")
    async with leading(store, nodes) as task:
        await asyncio.wait_for(task, 10)
    assert store.database.revision == 1, "nodes that come later change nothing"


async def test_configuration_of_a_person_stays_and_deleted_queues_do_not_return() -> None:
    store = MemoryStore()
    document = {
        "apiVersion": "queuectl.dev/v1",
        "kind": "ResourceFlavor",
        "metadata": {"name": "mine"},
        "spec": {},
    }
    await store.put_config(document)
    for _ in range(2):
        revision = store.database.revision
        async with leading(store, Nodes("n1")) as task:
            await asyncio.wait_for(task, 10)
        assert store.database.revision == revision
        if revision == 1:
            await store.delete_config(DocumentKey("ResourceFlavor", "", "mine"))


async def test_it_waits_for_gpus_and_for_nodes_that_come_one_after_another() -> None:
    store, nodes = MemoryStore(), Nodes()
    async with leading(store, nodes) as task:
        await asyncio.sleep(0.06)
        nodes.add("n1", gpus=0)
        await asyncio.sleep(0.06)
        assert not task.done()
        assert store.database.revision == 0
        for number in range(4):
            nodes.add(f"g{number}")
            await asyncio.sleep(0.008)
        await asyncio.wait_for(task, 10)
    assert gpu_quota(store) == 32


async def test_nodes_that_never_stop_to_change_are_proposed_at_last() -> None:
    store, nodes = MemoryStore(), Nodes("g0")
    async with leading(store, nodes) as task:
        for number in range(2000):
            if task.done():
                break
            nodes.add("other", gpus=1 + number % 2)
            await asyncio.sleep(0.004)
        assert task.done()


class FailingStore(MemoryStore):
    """The database fails once, before or after the transaction; and reads fail before."""

    def __init__(self, database: MemoryDatabase | None = None, *, after: bool = False) -> None:
        super().__init__(database)
        self.after, self.failures = after, 2

    async def configuration(self) -> Any:
        if self.failures == 2:
            self.failures = 1
            raise StoreUnavailable("down")
        return await super().configuration()

    async def write_configuration(self, batch: ConfigurationBatch, *, epoch: int) -> int:
        if self.failures and not self.after:
            self.failures = 0
            raise StoreUnavailable("down")
        written = await super().write_configuration(batch, epoch=epoch)
        if self.failures:
            self.failures = 0
            raise StoreUnavailable("the answer is lost")
        return written


@pytest.mark.parametrize("after", [False, True], ids=["nothing written", "answer lost"])
async def test_a_database_that_fails_meanwhile_changes_nothing(after: bool) -> None:
    store = FailingStore(after=after)
    async with leading(store, Nodes("n1")) as task:
        await asyncio.wait_for(task, 10)
    assert (store.failures, store.database.revision) == (0, 1)


async def test_of_two_leaders_the_deposed_one_writes_nothing() -> None:
    store, nodes = MemoryStore(), Nodes("n1")
    async with leading(store, nodes) as deposed:
        await store.take_over("other", 0)
        with pytest.raises(Fenced):
            await asyncio.wait_for(deposed, 10)
        assert store.database.revision == 0
    async with leading(store, nodes) as first, leading(store, nodes) as second:
        await until(lambda: store.database.revision == 1)
        for task in (first, second):
            with suppress(Fenced):
                await asyncio.wait_for(task, 10)
    assert store.database.revision == 1


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"PROPOSE_FOR": "a", "CONFIGURATION_OWNER": "kueue"}, "queuectl init"),
        ({"PROPOSE_FOR": "a", "CONFIGURATION_OWNER": "kubernetes"}, "kubernetes"),
        ({"PROPOSE_FOR": "a,B"}, "'B' is not the name of a namespace"),
    ],
)
def test_another_owner_and_wrong_names_are_refused(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], message: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(f"QUEUECTL_{name}", value)
    with pytest.raises(ValueError, match=message):
        Settings()


def test_the_namespaces_are_a_list_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUECTL_PROPOSE_FOR", " team-a,team-b ,team-a")
    assert Settings().proposed_namespaces == ("team-a", "team-b")
