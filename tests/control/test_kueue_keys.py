"""Kueue's labels count only if no Kueue runs, or if the rules enable them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from queuectl.control import kueue
from queuectl.control.kueue import KueueDetector
from queuectl.db.engine import DatabaseSettings
from queuectl.demo import scenario as m
from queuectl.domain.errors import ClusterUnavailable
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import State
from queuectl.domain.queries import DocumentKey
from queuectl.domain.queues import QueueConfig
from queuectl.domain.records import Deleted, Delta, Upserted
from queuectl.objects.configuration import queue_config
from tests.control.rig import gang, live, rig
from tests.control.test_lifecycle import rules
from tests.doubles.cluster import FakeCluster
from tests.doubles.store import MemoryStore
from tests.support.jobs import batch_job
from tests.support.stores import PostgresStore


@pytest.mark.parametrize(
    ("rule", "kueue", "policies", "counts"),
    [
        (None, False, True, True),
        (None, True, True, False),
        (None, False, False, False),
        ("auto", False, True, True),
        ("auto", True, True, False),
        ("auto", False, False, False),
        ("on", True, False, True),
        ("off", False, True, False),
    ],
)
async def test_the_rule_decides_and_auto_detects_kueue(
    database_url: str, rule: str | None, kueue: bool, policies: bool, counts: bool
) -> None:
    store = await PostgresStore.connect(DatabaseSettings(database_url))
    cluster = FakeCluster()
    cluster.kueue = kueue
    cluster.kueue_keys = policies
    try:
        if rule is not None:
            await store.put_config(rules(queuectl={"kueueKeys": rule}))
        assert await KueueDetector(cluster, store).keys_count() is counts
    finally:
        await store.close()


@pytest.mark.parametrize("counts", [True, False])
async def test_a_refused_probe_changes_nothing(
    counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise all jobs with Kueue's keys would end for queuectl, and begin again without their holds."""
    monkeypatch.setattr(kueue, "POLL_SECONDS", 0.0)
    cluster = FakeCluster()
    detector = KueueDetector(cluster, MemoryStore())
    changed = asyncio.create_task(detector.changed(since=counts))
    cluster.kueue_keys = None
    await asyncio.sleep(0.01)
    assert not changed.done()
    cluster.kueue_keys = not counts
    assert await changed is not counts


async def test_a_change_is_noticed(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kueue, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(kueue, "RETRY_SECONDS", 0.0)
    store = await PostgresStore.connect(DatabaseSettings(database_url))
    cluster = FakeCluster()
    try:
        detector = KueueDetector(cluster, store)
        assert await detector.keys_count()
        changed = asyncio.create_task(detector.changed(since=True))
        await asyncio.sleep(0.01)
        assert not changed.done()
        cluster.kueue = True  # Kueue is installed
        assert await changed is False
        changed = asyncio.create_task(detector.changed(since=False))
        await store.put_config(rules(queuectl={"kueueKeys": "on"}))
        assert await changed is True
    finally:
        await store.close()


async def test_only_a_written_rule_is_read_again_and_nothing_else(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []

    def build(documents: list[Any], revision: int) -> QueueConfig:
        built.append(len(documents))
        return queue_config.build(documents, revision)

    monkeypatch.setattr(kueue, "build", build)
    store = await PostgresStore.connect(DatabaseSettings(database_url))
    cluster = FakeCluster()
    cluster.kueue = True
    try:
        detector = KueueDetector(cluster, store)
        await store.put_config(m.priority_class("high", 100))
        assert not await detector.keys_count()
        assert built == []
        await store.put_config(rules(queuectl={"kueueKeys": "on"}))
        assert await detector.keys_count()
        await store.put_config(m.priority_class("low", 10))
        assert await detector.keys_count()
        assert built == [1]
        await store.delete_config(DocumentKey("Configuration", "", "default"))
        assert not await detector.keys_count(), "without a rule it detects Kueue again"
    finally:
        await store.close()


async def test_without_an_answer_of_the_api_server_nothing_changes(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is unknown whether a Kueue runs, nothing changes."""
    monkeypatch.setattr(kueue, "RETRY_SECONDS", 0.0)
    store = await PostgresStore.connect(DatabaseSettings(database_url))
    cluster = FakeCluster()
    cluster.down = True
    try:
        with pytest.raises(ClusterUnavailable):
            await cluster.kueue_runs()
        asked = asyncio.create_task(KueueDetector(cluster, store).keys_count())
        await asyncio.sleep(0.05)
        assert not asked.done()
        cluster.down = False
        assert await asked
    finally:
        await store.close()


async def test_an_api_server_without_an_answer_is_asked_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, sleep, pauses = FakeCluster(), asyncio.sleep, list[float]()

    async def pause(seconds: float) -> None:
        await sleep(0)
        if seconds:
            pauses.append(seconds)
            cluster.down = False

    monkeypatch.setattr(asyncio, "sleep", pause)
    cluster.down = True
    async with asyncio.timeout(10):
        assert await KueueDetector(cluster, MemoryStore()).keys_count()
    assert pauses == [kueue.RETRY_SECONDS]


@pytest.mark.parametrize("kueue", [True, False])
async def test_the_watch_shows_kueues_jobs_only_where_its_keys_count(kueue: bool) -> None:
    cluster = FakeCluster()
    labeled = {"ours": "queuectl.dev", "theirs": "kueue.x-k8s.io"}
    for name, prefix in labeled.items():
        document: dict[str, Any] = batch_job(name, queue=None)
        document["metadata"]["labels"] = {f"{prefix}/queue-name": "main"}
        cluster.submit(document)
    seen: set[str] = set()

    def sink(deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            if isinstance(delta, Upserted) and isinstance(delta.record, JobRecord):
                seen.add(delta.record.name)

    watch = asyncio.create_task(cluster.watch(sink, lambda _: None, kueue=kueue))
    await asyncio.sleep(0.01)
    watch.cancel()
    assert seen == ({"ours", "theirs"} if kueue else {"ours"})


async def test_a_job_that_another_controller_gets_runs_on_and_can_be_returned(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        document = dict(gang("Job", "train", 2))
        document["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research"}
        uid = world.cluster.submit(document)
        await world.until_state(uid, State.RUNNING)
        assert world.loop is not None
        mirror = world.loop._mirror
        job = mirror.jobs[uid]
        world.loop.react(
            mirror.apply([Deleted("jobs", uid, job.version)])
        )  # a watch without its key
        await world.until_state(uid, State.FINISHED)
        assert len(live(world.cluster.pods_of(uid))) == 2, "it still runs"
        world.loop.react(mirror.apply([Upserted(world.cluster.job(uid))]))
        await world.until_state(uid, State.RUNNING)
        assert len(live(world.cluster.pods_of(uid))) == 2
