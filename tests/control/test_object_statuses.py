"""A leader writes the statuses of objects: at its rate, past refusals and outages, and without blocking its loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import pytest
import structlog

from queuectl.domain.containment import Containment
from queuectl.domain.errors import ClusterBusy, ClusterUnavailable, WriteConflict, WriteRefused
from queuectl.domain.ledger import Entry
from queuectl.domain.queries import DocumentKey
from queuectl.domain.queues import QueueConfig, ResourceFlavor
from queuectl.objects.configuration.owners import FOLLOWED, Owner
from queuectl.objects.configuration.queue_config import build
from queuectl.objects.configuration.status_wire import ObjectStatus, QueueStatus
from queuectl.ownership import follower as following_objects
from queuectl.ownership import status_writer as writing
from queuectl.ownership import statuses, unowned
from queuectl.ownership.follower import ObjectFollower
from queuectl.ownership.observed import FollowedObject
from queuectl.ownership.own_status import OwnStatusForm, UnownedStatusForm
from queuectl.ownership.source import ObjectWatcher
from queuectl.ownership.status_form import Decision, QueuesNow, QueueUse, StatusForm
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
    monkeypatch.setattr(writing, "_UNAVAILABLE_SECONDS", 0.02)
    monkeypatch.setattr(statuses, "SPACING_SECONDS", 0.005)


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
    writer = StatusWriter(
        objects, form, leader.queues, leader.clock, WriteRate(), Containment(time.time)
    )
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
    objects.refusals["b"] = WriteConflict("PATCH b: 409: conflict")
    objects.apply(f.flavor("gpu"), *(f.queue(name) for name in "abcd"))
    with structlog.testing.capture_logs() as logs:
        async with leading(objects):
            await until(lambda: len(objects.writes) == 3)
            objects.refusals.clear()
            await asyncio.sleep(0.05)
            refused = ("a", "b")
            assert not any(ready(objects, "ClusterQueue", name) for name in refused), "not yet"
            objects.apply(*(f.queue(name, 16) for name in refused))
            await until(lambda: all(ready(objects, "ClusterQueue", name) for name in refused))
    [line] = [one for one in logs if one["event"] == "status_not_written"]
    assert (line["object"] in ("ClusterQueue a", "ClusterQueue b"), line["count"]) == (True, 1)


async def test_writes_go_on_after_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_EXAMINE_SECONDS", 0.01)
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


async def test_a_long_outage_of_a_kind_delays_no_status_after_it() -> None:
    objects = MemoryObjects()
    names = [f"q{number}" for number in range(12)]
    objects.apply(f.flavor("gpu"), *map(f.queue, names))
    objects.refusals |= dict.fromkeys(names, ClusterBusy("PATCH: 429: storage is (re)initializing"))
    async with leading(objects):
        await until(lambda: set(objects.refused) == set(names), seconds=3.0)
        objects.refusals.clear()
        objects.apply(f.queue("q0", 16))
        await until(lambda: observed(objects, "q0") == 2, seconds=2.0)


async def test_a_kind_that_is_slow_or_not_answered_stops_no_other() -> None:
    objects = MemoryObjects()
    slow = objects.slow["LocalQueue"] = asyncio.Event()
    objects.refusals["c"] = ClusterUnavailable("PATCH c: 500: a webhook does not answer")
    locals_ = [f.local_queue("team", name, "a") for name in ("l", "m", "n")]
    objects.apply(f.flavor("gpu"), f.queue("a"), f.cohort("c"), *locals_)
    async with leading(objects):
        await until(lambda: len(objects.writes) == 2)
        for quota in range(1, 4):
            objects.apply(f.queue("a", quota))
            await until(lambda: observed(objects, "a") == quota + 1, seconds=3.0)  # noqa: B023
        assert not [kind for kind, _ in objects.writes if kind in ("LocalQueue", "Cohort")]
        objects.delete("LocalQueue", "l", "m", namespace="team")
        slow.set()
        await until(lambda: ready(objects, "LocalQueue", "n", "team") == "True")


def observed(objects: MemoryObjects, name: str) -> object:
    """The generation that the status of a ClusterQueue is about."""
    return objects.status("ClusterQueue", name).get("observedGeneration")


class CountingForm(OwnStatusForm):
    """Counts the objects that are examined."""

    def __init__(self) -> None:
        self.examined = 0

    def status(
        self,
        followed: FollowedObject,
        had: QueueStatus | None,
        decision: Decision,
        queues: QueuesNow,
        now: float,
    ) -> ObjectStatus:
        self.examined += 1
        return super().status(followed, had, decision, queues, now)


class Decisions:
    """A writer of the statuses of many ResourceFlavors, without a follower. The configuration has the decisions when a test states it."""

    def __init__(self, count: int) -> None:
        self.form = CountingForm()
        self.followed = {
            key: FollowedObject(key, key.name, 1, order, None)
            for order, key in enumerate(map(self.key, range(count)))
        }
        self.revision, self.config = 0, QueueConfig()
        self.writer = StatusWriter(
            self,
            self.form,
            lambda: QueuesNow(self.config, lambda _: {}),
            time.time,
            WriteRate(),
            Containment(time.time),
        )
        self.written: list[tuple[DocumentKey, int | None]] = []
        self.decide()
        self.act()

    # ---- The part of an ObjectSource that a writer needs

    @property
    def versions(self) -> Mapping[str, str]:
        raise NotImplementedError

    async def watch(self, observer: ObjectWatcher) -> None:
        raise NotImplementedError

    async def doubt(self, plural: str) -> str:
        raise NotImplementedError

    async def write_status(self, key: DocumentKey, status: ObjectStatus) -> None:
        await asyncio.sleep(0)
        self.written.append((key, status.observed_generation))

    async def other_writer(self) -> str:
        await asyncio.sleep(0)
        return ""

    # ---- Edits

    @staticmethod
    def key(number: int) -> DocumentKey:
        return DocumentKey("ResourceFlavor", "", str(number))

    def edit(self, number: int) -> None:
        key = self.key(number)
        one = self.followed[key]
        edited = replace(one, generation=one.generation + 1, order=one.order + 10_000)
        self.followed = {**self.followed, key: edited}
        self.decide()

    def decide(self) -> None:
        self.revision += 1
        self.writer.decided(
            Decision(
                self.followed, {"ResourceFlavor"}, {}, frozenset(), self.revision, lambda _: None
            )
        )

    def act(self, behind: int = 0) -> None:
        """The configuration has the decisions, apart from so many."""
        flavors = {key.name: ResourceFlavor(key.name) for key in self.followed}
        self.config = QueueConfig(revision=self.revision - behind, flavors=flavors)


@asynccontextmanager
async def writing_of(decisions: Decisions) -> AsyncIterator[None]:
    task = asyncio.create_task(decisions.writer.run())
    try:
        yield
        assert not task.done(), task.result()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_an_edit_among_thousands_of_due_statuses_is_the_next_write() -> None:
    decisions = Decisions(6_000)
    async with writing_of(decisions):
        for number in (7, 3_000, 4_321):
            await asyncio.sleep(0.02)
            await until(lambda: len(decisions.written) >= 3)
            written, examined = len(decisions.written), decisions.form.examined
            decisions.edit(number)
            decisions.act()
            edited = decisions.key(number), decisions.followed[decisions.key(number)].generation
            await until(lambda: edited in decisions.written)  # noqa: B023
            before = decisions.written.index(edited) - written
            assert before <= 2, "one was chosen before the edit, and one waits longest"
            assert decisions.form.examined - examined < 2_000, "not all objects"


async def test_endless_edits_are_written_though_the_configuration_is_always_behind() -> None:
    decisions = Decisions(3)
    async with writing_of(decisions), asyncio.timeout(10.0):
        await until(lambda: len(decisions.written) == 3)
        while len(decisions.written) < 6:
            decisions.edit(0)
            decisions.act(behind=1)
            await asyncio.sleep(0.001)


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
            left = ["a Kueue", "a Kueue"]
            await until(lambda: [one["reason"] for one in logs if "reason" in one] == left)
            await asyncio.sleep(0.05)
            assert len(objects.writes) == 2


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
    writer = StatusWriter(
        objects, form, lambda: queues, time.time, WriteRate(), Containment(time.time)
    )
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
