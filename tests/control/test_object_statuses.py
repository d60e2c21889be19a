"""A leader writes the statuses of objects: at its rate, past refusals and outages, and without blocking its loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import structlog

from queuectl.domain.errors import ClusterBusy, WriteRefused
from queuectl.domain.ledger import Entry
from queuectl.domain.queries import DocumentKey
from queuectl.objects.configuration.owners import FOLLOWED, Owner
from queuectl.objects.configuration.queue_config import build
from queuectl.objects.configuration.status_wire import QueueStatus
from queuectl.ownership import follower as following_objects
from queuectl.ownership import status_writer as writing
from queuectl.ownership import unowned
from queuectl.ownership.follower import ObjectFollower
from queuectl.ownership.own_status import UnownedStatusForm
from queuectl.ownership.status_form import QueuesNow, QueueUse, StatusForm
from queuectl.ownership.status_forms import FORMS
from queuectl.ownership.status_writer import StatusWriter, WriteRate
from queuectl.ownership.unowned import UnownedObjects
from tests.doubles.objects import MemoryObjects
from tests.doubles.store import MemoryStore
from tests.support import followed as f
from tests.support import polling

until = partial(polling.until, seconds=10.0)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following_objects, "_BURST_SECONDS", 0.001)
    monkeypatch.setattr(writing, "_TICK_SECONDS", 0.005)
    monkeypatch.setattr(writing, "WRITE_SECONDS", 0.001)
    monkeypatch.setattr(writing, "_FIRST_PAUSE", 0.02)


class Leader:
    """Follows objects and writes their statuses. Its clock can be turned forward."""

    def __init__(self, objects: MemoryObjects) -> None:
        self.objects = objects
        self.store = MemoryStore()
        self.later = 0.0
        self.entries: list[Entry] = []

    def clock(self) -> float:
        return time.time() + self.later

    def queues(self) -> QueuesNow:
        database = self.store.database
        documents = [one.document for one in database.documents.values()]
        config = build(documents, database.revision)
        return QueuesNow(config, lambda _: {}, lambda: QueueUse(list(self.entries)))


@asynccontextmanager
async def leading(
    objects: MemoryObjects, form: StatusForm = FORMS[Owner.KUBERNETES]
) -> AsyncIterator[Leader]:
    leader = Leader(objects)
    epoch = await leader.store.take_over("leader", 0)
    writer = StatusWriter(objects, form, leader.queues, leader.clock, WriteRate())
    follower = ObjectFollower(
        objects,
        leader.store,
        Owner.KUEUE,
        0.0,
        leader.clock,
        lambda _: None,
        epoch,
        writer.decided,
        form,
    )
    tasks = [asyncio.create_task(follower.run()), asyncio.create_task(writer.run())]
    try:
        yield leader
        for task in tasks:
            assert not task.done(), task.result()
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def ready(objects: MemoryObjects, kind: str, name: str, namespace: str = "") -> str:
    """The status of the condition Ready; empty = it has none."""
    conditions = objects.status(kind, name, namespace).get("conditions", [])
    return next((one["status"] for one in conditions if one["type"] == "Ready"), "")


async def test_each_object_has_its_status_and_the_writes_are_not_revisions() -> None:
    objects = MemoryObjects()
    objects.apply(f.flavor("gpu"), f.queue("a"), f.local_queue("team", "l", "a"))
    async with leading(objects) as leader:
        await until(lambda: len(objects.writes) == 3)
        assert ready(objects, "ClusterQueue", "a") == "True"
        assert ready(objects, "LocalQueue", "l", "team") == "True"
        objects.apply(f.queue("a", "much"))
        await until(lambda: ready(objects, "ClusterQueue", "a") == "False")
        status = objects.status("ClusterQueue", "a")
        assert status["observedGeneration"] == 2
        [active, invalid] = status["conditions"]
        assert active["status"] == "True", "the last valid version acts"
        assert "nominalQuota" in invalid["message"]
        objects.apply(f.queue("a"))
        await until(lambda: ready(objects, "ClusterQueue", "a") == "True")
        await asyncio.sleep(0.1)
        assert len(objects.writes) == 5, "nothing else differs"
        assert leader.store.database.revision == 1


async def test_a_refused_write_stops_no_other() -> None:
    objects = MemoryObjects()
    objects.refusals["a"] = WriteRefused("PATCH a: 403: forbidden")
    objects.apply(f.flavor("gpu"), *(f.queue(name) for name in "abc"))
    with structlog.testing.capture_logs() as logs:
        async with leading(objects):
            await until(lambda: len(objects.writes) == 3)
            del objects.refusals["a"]
            await asyncio.sleep(0.05)
            assert not ready(objects, "ClusterQueue", "a"), "it is not due again yet"
            objects.apply(f.queue("a", 16))
            await until(lambda: ready(objects, "ClusterQueue", "a") == "True")
    [line] = [one for one in logs if one["event"] == "status_not_written"]
    assert (line["object"], line["count"]) == ("ClusterQueue a", 1)


async def test_writes_go_on_after_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_RECKON_SECONDS", 0.01)
    objects = MemoryObjects()
    objects.apply(f.flavor("gpu"), f.queue("a"))
    objects.refusals |= dict.fromkeys(("a", "gpu"), ClusterBusy("PATCH: 429: too many requests"))
    async with leading(objects) as leader:
        await until(lambda: leader.store.database.revision == 1)
        await asyncio.sleep(0.1)
        assert objects.writes == []
        objects.refusals.clear()
        leader.later = 3600.0
        await until(lambda: len(objects.writes) == 2)


async def test_many_objects_are_written_at_the_rate_and_the_newest_edit_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing, "WRITE_SECONDS", 0.1)
    objects = MemoryObjects()
    objects.apply(f.flavor("gpu"), *(f.queue(f"q{number}") for number in range(300)))
    async with leading(objects):
        await until(lambda: objects.writes)
        before, began = len(objects.writes), time.monotonic()
        objects.apply(f.queue("q7", 16))
        await until(
            lambda: objects.status("ClusterQueue", "q7").get("observedGeneration") == 2, seconds=5
        )
        written = len(objects.writes) - before
        assert written <= (time.monotonic() - began) / 0.1 + 1


async def test_the_statuses_are_left_to_another_controller_that_writes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing, "_BATCH_SECONDS", 0.0)
    monkeypatch.setattr(writing, "_OTHER_SECONDS", 0.02)
    objects = MemoryObjects(form=FORMS[Owner.KUEUE])
    objects.other = "a Kueue"
    objects.apply(f.flavor("gpu"), f.queue("a"), f.local_queue("team", "l", "a"))
    with structlog.testing.capture_logs() as logs:
        async with leading(objects, FORMS[Owner.KUEUE]) as leader:
            await until(lambda: leader.store.database.revision == 1)
            await asyncio.sleep(0.1)
            assert objects.writes == []
            objects.other = ""
            await until(lambda: len(objects.writes) == 2)
            [active] = objects.status("LocalQueue", "l", "team")["conditions"]
            assert (active["type"], active["status"]) == ("Active", "True")
            objects.other = "a Kueue"
            objects.apply(f.queue("a", stopPolicy="Hold"))
            await asyncio.sleep(0.1)
            assert len(objects.writes) == 2
    left = [one["reason"] for one in logs if one["event"] == "statuses_left"]
    assert left == ["a Kueue", "a Kueue"]


async def test_objects_that_do_not_own_the_configuration_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unowned, "_BURST_SECONDS", 0.001)
    kinds, form = FOLLOWED[Owner.KUBERNETES], UnownedStatusForm(Owner.DATABASE)
    objects = MemoryObjects(kinds)
    objects.unknown["cohorts"] = "404"
    objects.apply(f.queue("a"), f.cohort("c"))
    await objects.write_status(
        DocumentKey("ClusterQueue", "", "a"), QueueStatus(1, [], 1, 1, 1)
    )  # of the time in which they owned it
    queues = QueuesNow(build([], 0), lambda _: {})
    writer = StatusWriter(objects, form, lambda: queues, time.time, WriteRate())
    watching = UnownedObjects(objects, kinds, time.time, writer.decided)
    tasks = [asyncio.create_task(watching.run()), asyncio.create_task(writer.run())]
    try:
        await until(lambda: len(objects.writes) == 2)
        status = objects.status("ClusterQueue", "a")
        [not_owner] = status.pop("conditions")
        assert status == {"observedGeneration": 1}, "and no counts"
        assert (not_owner["type"], not_owner["status"], not_owner["reason"]) == (
            "Ready",
            "False",
            "NotOwner",
        )
        assert "the database" in not_owner["message"]
        objects.apply(f.queue("a", 16), f.flavor("gpu"))
        await until(lambda: objects.status("ClusterQueue", "a").get("observedGeneration") == 2)
        await until(lambda: ready(objects, "ResourceFlavor", "gpu"))
        assert objects.status("Cohort", "c") == {}, "its kind cannot be read"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
