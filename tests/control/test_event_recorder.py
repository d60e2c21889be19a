"""The status and Events of a job, when changes are faster than they can be published."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from queuectl.control.leader import events as leader_events
from queuectl.control.leader.events import EventRecorder
from queuectl.domain.containment import Containment
from queuectl.domain.errors import ObjectGone
from queuectl.domain.events import Event, NoteAdded, PodsReady, Refuse
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import EntryChange
from queuectl.domain.reasons import Code, Reason
from queuectl.objects.kinds import KINDS
from tests.api.support import LIVES, live_through
from tests.doubles.cluster import FakeCluster
from tests.support.jobs import batch_job

FASTER = 10_000.0  # Events per second


def published(changes: Iterable[EntryChange], cluster: FakeCluster) -> list[str]:
    """Reasons of the Events on a job if all these changes precede the first Event."""
    publish(changes, cluster)
    return [event.reason for event in cluster.events]


def publish(changes: Iterable[EntryChange], cluster: FakeCluster) -> None:
    run(recorder(cluster), changes)


def recorder(cluster: FakeCluster, *, after: float = 0.0) -> EventRecorder:
    return EventRecorder(
        cluster,
        cluster.job,
        lambda: True,
        lambda: {"default", "team-a"},
        KINDS,
        per_second=FASTER,
        after=after,
        containment=Containment(time.time),
    )


def run(event_recorder: EventRecorder, changes: Iterable[EntryChange]) -> None:
    async def write() -> None:
        event_recorder.add(changes)
        task = asyncio.create_task(event_recorder.run())
        await asyncio.sleep(0.05)
        task.cancel()

    asyncio.run(write())


def lived(*events: Event) -> tuple[list[EntryChange], FakeCluster]:
    cluster = FakeCluster()
    record = cluster.job(cluster.submit(batch_job("train")))
    return live_through(record, *events), cluster


def test_only_the_newest_pending_reason_and_the_newest_start_are_published() -> None:
    assert published(*lived(*LIVES["pending"], *LIVES["running"])) == ["PodsReady"]


class ReplacedPod(FakeCluster):
    """A StatefulSet replaces the pod with the Events before the watch reports it. ``meanwhile`` happens during the write."""

    meanwhile: Callable[[], None] | None = None

    async def patch_job(
        self, kind: str, namespace: str, name: str, patch: Mapping[str, Any]
    ) -> int:
        if self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            happens()
            raise ObjectGone(f"{name}: uid is another")
        return await super().patch_job(kind, namespace, name, patch)


@pytest.mark.parametrize(
    ("life", "then", "events"),
    [
        ("running", (), ["PodsReady"]),
        ("evicting", (), ["Preempted"]),
        ("evicting", ("requeued",), ["Queued", "Preempted"]),
    ],
)
def test_an_event_is_written_again_if_its_object_was_replaced(
    monkeypatch: pytest.MonkeyPatch, life: str, then: tuple[str, ...], events: list[str]
) -> None:
    monkeypatch.setattr(leader_events, "AGAIN", 0.0)
    cluster = ReplacedPod()
    record = cluster.job(cluster.submit(batch_job("train")))
    changes = live_through(record, *LIVES[life])
    later = [change for name in then for change in live_through(record, *LIVES[name])]
    event_recorder = recorder(cluster)
    cluster.meanwhile = lambda: event_recorder.add(later[len(changes) :])
    run(event_recorder, changes)
    assert [event.reason for event in cluster.events] == events


def test_the_reason_of_an_eviction_is_published_after_the_requeue() -> None:
    assert published(*lived(*LIVES["requeued"])) == ["Queued", "Preempted"]


def test_the_reason_of_an_eviction_is_published_after_a_change_without_a_line_of_history() -> None:
    changes, cluster = lived(*LIVES["evicting"])
    silent = replace(changes[-1], before=changes[-1].after, note=None)
    assert published([*changes, silent], cluster) == ["Preempted"]


def test_a_change_without_a_line_of_history_keeps_the_pending_event_and_updates_its_text() -> None:
    changes, cluster = lived(*LIVES["pending"])
    waits = changes[-1].after
    newer = replace(waits, reason=replace(waits.reason, message="needs 8 more GPUs"))
    publish([*changes, replace(changes[-1], before=waits, after=newer, note=None)], cluster)
    assert [(event.reason, event.message) for event in cluster.events] == [
        ("WaitingForQuota", "needs 8 more GPUs")
    ]
    assert "needs 8 more GPUs" in str([write.patch for write in cluster.writes])


def test_pods_that_are_lost_before_the_event_of_their_start_do_not_replace_it() -> None:
    """The loss and the recovery have no separate Event."""
    lost = LIVES["unready"]
    assert published(*lived(*lost)) == ["PodsReady"]
    assert published(*lived(*lost, PodsReady())) == ["PodsReady"]


def test_a_change_without_a_line_of_history_does_not_delay_the_pending_event() -> None:
    changes, cluster = lived(*LIVES["pending"])
    silent = replace(changes[-1], before=changes[-1].after, note=None)
    event_recorder = recorder(cluster, after=0.1)

    async def write() -> None:
        event_recorder.add(changes)
        task = asyncio.create_task(event_recorder.run())
        for _ in range(8):
            await asyncio.sleep(0.05)
            event_recorder.add([silent])
        task.cancel()

    asyncio.run(write())
    assert [event.reason for event in cluster.events] == ["WaitingForQuota"]


def test_a_warning_replaces_no_other_event_and_is_not_replaced() -> None:
    warned = NoteAdded(Reason(Code.IDLE_GPUS, "does nothing"))
    assert published(*lived(*LIVES["running"], warned)) == ["PodsReady", "IdleGPUs"]


def test_a_workload_that_is_set_aside_has_a_warning() -> None:
    cluster = FakeCluster()
    record = cluster.job(cluster.submit(batch_job("train")))
    event_recorder = recorder(cluster)
    event_recorder.note(record.uid, Reason(Code.INTERNAL_ERROR, "it cannot be observed"))
    run(event_recorder, ())
    assert [(e.kind, e.reason) for e in cluster.events] == [("Warning", "InternalError")]


NAMING = "behind team-a/secret and default/mine; runs pytorch/pytorch"


@pytest.mark.parametrize(
    ("life", "event"),
    [
        ("pending", Refuse(Reason(Code.WAITING_IN_ORDER, NAMING))),
        ("running", NoteAdded(Reason(Code.IDLE_GPUS, NAMING))),
    ],
)
def test_gangs_of_other_namespaces_are_not_named(life: str, event: Event) -> None:
    changes, cluster = lived(*LIVES[life], event)
    publish(changes, cluster)
    said = NAMING.replace("team-a/secret", "another team")
    assert said in [event.message for event in cluster.events]
    assert "secret" not in str([write.patch for write in cluster.writes])


class HangingNamespace(FakeCluster):
    """No Event of one namespace is ever answered: a webhook of the namespace is unreachable."""

    async def create_event(self, job: JobRecord, kind: str, reason: str, message: str) -> None:
        if job.namespace == "hangs":
            await asyncio.Event().wait()
        await super().create_event(job, kind, reason, message)


def test_a_namespace_in_which_writes_hang_delays_no_event_of_another_one() -> None:
    cluster = HangingNamespace()
    changes: list[EntryChange] = []
    for number in range(20):
        namespace = "hangs" if number < 19 else "default"
        document = batch_job(f"train-{number}", namespace=namespace)
        changes += live_through(cluster.job(cluster.submit(document)), *LIVES["running"])
    publish(changes, cluster)
    assert [event.reason for event in cluster.events] == ["PodsReady"]
