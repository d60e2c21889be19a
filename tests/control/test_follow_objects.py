"""A leader follows objects of the cluster: the catalog, its revision, the audit log and the report, without an API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest

from queuectl.db.ports import ConfigurationBatch
from queuectl.domain.audit import LEADER, AuditFilter
from queuectl.domain.errors import Fenced
from queuectl.domain.queries import ConfigChanges, DocumentKey
from queuectl.domain.queues import StopPolicy
from queuectl.objects.configuration.owners import Owner
from queuectl.objects.configuration.queue_config import build
from queuectl.objects.configuration.stops import stop_of, with_operation
from queuectl.ownership import follower as following_objects
from queuectl.ownership import reducer
from queuectl.ownership.follower import ObjectFollower
from queuectl.ownership.status_forms import FORMS
from queuectl.telemetry.metrics import MetricsRecorder
from tests.doubles.objects import MemoryObjects
from tests.doubles.store import MemoryStore
from tests.support import followed as f
from tests.support import polling

FORM = FORMS[Owner.KUEUE]
until = partial(polling.until, seconds=10.0)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following_objects, "_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(following_objects, "_CONFIRMATION_SECONDS", 0.02)
    monkeypatch.setattr(following_objects, "_BURST_SECONDS", 0.001)


@asynccontextmanager
async def following(
    objects: MemoryObjects, store: MemoryStore, settle: float = 0.0
) -> AsyncIterator[MetricsRecorder]:
    metrics = MetricsRecorder()
    epoch = await store.take_over("leader", 0)
    follower = ObjectFollower(
        objects,
        store,
        Owner.KUEUE,
        settle,
        time.time,
        metrics.followed.show,
        epoch,
        lambda _: None,
        FORM,
    )
    task = asyncio.create_task(follower.run())
    try:
        yield metrics
        assert not task.done(), task.result()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Fenced):
            await task


def names(store: MemoryStore, kind: str) -> set[str]:
    return {key.name for key in store.database.documents if key.kind == kind}


def queue_of(store: MemoryStore, name: str) -> Any:
    return store.database.documents[DocumentKey("ClusterQueue", "", name)].document


async def test_objects_become_documents_under_few_revisions_with_lines_in_the_audit_log() -> None:
    objects, store = MemoryObjects(), MemoryStore()
    objects.apply(f.flavor("gpu"), f.queue("a"), f.queue("b"), f.local_queue("team", "l", "a"))
    async with following(objects, store):
        await until(lambda: names(store, "LocalQueue"))
        assert store.database.revision == 1, "one batch"
        config = build([one.document for one in store.database.documents.values()], 1)
        assert config.cluster_queues.keys() == {"a", "b"}
        objects.apply(f.queue("a", 16))
        await until(lambda: store.database.revision == 2)
    lines = await store.audit.lines(AuditFilter(caller=LEADER), 10)
    assert [(line.method, line.path) for line in lines[:1]] == [("PUT", "/api/v1/clusterqueues/a")]
    assert "nominalQuota: 8 -> 16" in lines[0].detail
    assert len(lines) == 5


async def test_writes_of_status_raise_no_revision() -> None:
    objects, store = MemoryObjects(), MemoryStore()
    objects.apply(f.flavor("gpu"), f.queue("a"))
    async with following(objects, store):
        await until(lambda: store.database.revision == 1)
        before = store.database.revision
        for number in range(100):
            body = {**f.queue("a"), "status": {"pendingWorkloads": number}}
            objects.apply(body, status_only=True)
            await asyncio.sleep(0.001)
        objects.apply(f.queue("b"))
        await until(lambda: "b" in names(store, "ClusterQueue"))
        assert store.database.revision == before + 1


async def test_an_edit_is_written_without_a_read_of_the_catalog_unless_another_has_changed_it() -> (
    None
):
    objects, store = MemoryObjects(), MemoryStore()
    read, reads = store.config_changes, []

    async def counted(since: int, known: Collection[DocumentKey]) -> ConfigChanges:
        reads.append(since)
        return await read(since, known)

    store.config_changes = counted  # type: ignore[method-assign]
    objects.apply(f.flavor("gpu"), f.queue("a"))
    async with following(objects, store):
        for quota in range(1, 4):
            revision = store.database.revision
            objects.apply(f.queue("a", 8 + quota))
            await until(lambda: store.database.revision > revision)  # noqa: B023
        assert reads == [0]
        await store.put_config(with_operation(queue_of(store, "a"), StopPolicy.HOLD))
        objects.apply(f.queue("a", 16))
        await until(lambda: "16" in str(queue_of(store, "a")["spec"]))
        assert stop_of(queue_of(store, "a")) is StopPolicy.HOLD
        assert len(reads) == 2


async def test_a_restart_decides_the_same_and_writes_nothing() -> None:
    objects, store = MemoryObjects(), MemoryStore()
    objects.apply(f.flavor("gpu"), f.queue("a"), f.queue("b"))
    async with following(objects, store):
        await until(lambda: names(store, "ClusterQueue") == {"a", "b"})
        objects.apply(f.queue("a", "much"))
        await until(lambda: store.database.followed.faulty_count == 1)
    revision, documents = store.database.revision, dict(store.database.documents)
    store.database.followed = type(store.database.followed)()
    async with following(objects, store):
        await until(lambda: store.database.followed.faulty_count == 1)
    assert (store.database.revision, store.database.documents) == (revision, documents)
    [faulty] = store.database.followed.faulty
    assert (faulty.name, faulty.acts) == ("a", True)


async def test_what_the_database_owns_stays() -> None:
    objects, store = MemoryObjects(), MemoryStore()
    budget = {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Budget",
        "metadata": {"name": "year"},
        "spec": {"clusterQueue": "a", "gpuHoursPerMonth": 1},
    }
    await store.put_config(budget)
    objects.apply(f.flavor("gpu"), f.queue("a"))
    async with following(objects, store):
        await until(lambda: names(store, "ClusterQueue"))
        objects.delete("ClusterQueue", "a")
        await until(lambda: store.database.followed.deletion)
    assert names(store, "Budget") == {"year"}


async def test_a_kind_without_an_answer_is_reported_and_its_documents_stay() -> None:
    objects, store = MemoryObjects(), MemoryStore()
    objects.apply(f.flavor("gpu"), f.queue("a"), f.cohort("all"))
    async with following(objects, store):
        await until(lambda: names(store, "Cohort"))
    objects.unknown["cohorts"] = "GET cohorts: 403: forbidden"
    objects.apply(f.queue("b"))
    async with following(objects, store) as metrics:
        await until(lambda: "b" in names(store, "ClusterQueue"))
        assert names(store, "Cohort") == {"all"}
        await until(lambda: any(one.fault for one in store.database.followed.sources))
        [fault] = [one for one in store.database.followed.sources if one.fault]
        assert (fault.resource, fault.fault) == (
            "cohorts.kueue.x-k8s.io",
            "GET cohorts: 403: forbidden",
        )
        unknown = "queuectl_followed_kind_unknown"
        labels = {"resource": "cohorts.kueue.x-k8s.io"}
        assert metrics.registry.get_sample_value(unknown, labels) == 1.0
        objects.list_again("cohorts")
        await until(lambda: metrics.registry.get_sample_value(unknown, labels) == 0.0)
        metrics.following()
        assert metrics.registry.get_sample_value(unknown, labels) is None


async def test_the_removal_of_a_definition_deletes_nothing() -> None:
    objects, store = MemoryObjects(), MemoryStore()
    objects.apply(f.flavor("gpu"), f.queue("a"), *(f.local_queue("n", x, "a") for x in "xyz"))
    async with following(objects, store):
        await until(lambda: len(names(store, "LocalQueue")) == 3)
        objects.doubts["localqueues"] = "it is being deleted"
        objects.delete("LocalQueue", "x", "y", "z", namespace="n")
        await until(lambda: any(one.fault for one in store.database.followed.sources))
        objects.apply(f.queue("b"))
        await until(lambda: "b" in names(store, "ClusterQueue"))
        assert names(store, "LocalQueue") == {"x", "y", "z"}
        objects.doubts.clear()
        objects.apply(f.local_queue("n", "x", "a"))
        objects.list_again("localqueues")
        await until(lambda: names(store, "LocalQueue") == {"x"})


async def test_a_mass_deletion_waits_for_its_confirmation() -> None:
    objects, store = MemoryObjects(), MemoryStore()
    objects.apply(f.flavor("gpu"), *(f.queue(name) for name in "abc"))
    async with following(objects, store):
        await until(lambda: len(names(store, "ClusterQueue")) == 3)
        objects.delete("ClusterQueue", "a", "b")
        await until(lambda: store.database.followed.deletion)
        waits = store.database.followed.deletion
        assert waits is not None
        assert (waits.objects, waits.count) == (("ClusterQueue a", "ClusterQueue b"), 2)
        await store.confirm_deletion("something else")
        await asyncio.sleep(0.1)
        assert len(names(store, "ClusterQueue")) == 3
        await store.confirm_deletion(waits.id)
        await until(lambda: names(store, "ClusterQueue") == {"c"})
        await until(lambda: store.database.followed.deletion is None)
        assert not store.database.confirmed


async def test_a_confirmed_mass_deletion_happens_in_the_longest_wait_although_edits_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reducer, "LONGEST_WAIT", 0.5)
    objects, store = MemoryObjects(), MemoryStore()
    objects.apply(f.flavor("gpu"), *(f.queue(name) for name in "abc"))
    async with following(objects, store, settle=0.3):
        await until(lambda: len(names(store, "ClusterQueue")) == 3)
        objects.delete("ClusterQueue", "a", "b")
        await until(lambda: store.database.followed.deletion)
        waits = store.database.followed.deletion
        assert waits is not None
        await store.confirm_deletion(waits.id)
        for number in range(60):
            objects.apply(f.queue("c", 8 + number % 2))
            await asyncio.sleep(0.05)
            if names(store, "ClusterQueue") == {"c"}:
                break
        assert names(store, "ClusterQueue") == {"c"}


async def test_another_leader_ends_it() -> None:
    objects, store = MemoryObjects(), MemoryStore()
    objects.apply(f.flavor("gpu"))
    epoch = await store.take_over("old", 0)
    follower = ObjectFollower(
        objects, store, Owner.KUEUE, 0.0, time.time, lambda _: None, epoch, lambda _: None, FORM
    )
    await store.take_over("new", 0)
    with pytest.raises(Fenced):
        await follower.run()
    assert not store.database.documents


async def test_it_continues_after_an_outage_of_the_database() -> None:
    objects, store = MemoryObjects(), MemoryStore()
    async with following(objects, store):
        await until(lambda: store.database.followed.at)
        store.database.down = True
        objects.apply(f.flavor("gpu"), f.queue("a"))
        await asyncio.sleep(0.1)
        assert not store.database.documents
        store.database.down = False
        await until(lambda: names(store, "ClusterQueue"))


async def test_a_stop_between_the_read_and_the_write_is_kept() -> None:
    """The batch is written over the revision that it was made from, or made again."""
    objects, store = MemoryObjects(), MemoryStore()
    objects.apply(f.flavor("gpu"), f.queue("a"))
    write = store.write_configuration
    raced: list[int] = []

    async def stop_first(batch: ConfigurationBatch, *, epoch: int) -> int:
        if batch.revision and not raced:
            raced.append(batch.revision)
            await store.put_config(with_operation(queue_of(store, "a"), StopPolicy.HOLD))
        return await write(batch, epoch=epoch)

    store.write_configuration = stop_first  # type: ignore[method-assign]
    async with following(objects, store):
        await until(lambda: names(store, "ClusterQueue"))
        objects.apply(f.queue("a", 16))
        await until(lambda: "16" in str(queue_of(store, "a")))
    assert raced
    assert stop_of(queue_of(store, "a")) is StopPolicy.HOLD


async def test_thousands_of_objects_are_followed_in_one_batch() -> None:
    objects, store = MemoryObjects(), MemoryStore()
    objects.apply(f.flavor("gpu"), f.queue("a"))
    objects.apply(*(f.local_queue("team", f"l{n}", "a") for n in range(2000)))
    async with following(objects, store):
        await until(lambda: store.database.revision, seconds=60.0)
    assert (store.database.revision, len(store.database.documents)) == (1, 2002)
