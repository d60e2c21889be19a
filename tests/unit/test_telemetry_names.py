"""Users name queues and classes on their jobs; only names of objects that exist become series."""

from __future__ import annotations

from dataclasses import replace

from queuectl.api.app import create_metrics_app
from queuectl.control.leader.leader_state import LeaderState
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import PriorityClassRecord, Upserted
from queuectl.domain.snapshot import SolverLimits
from queuectl.objects.configuration.queue_config import build
from queuectl.state.mirror import Mirror
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.conftest import talking_to
from tests.api.support import LIVES, job, live_through
from tests.unit.test_state import CONFIG, ENTRY, JOB
from tests.unit.test_telemetry_quota import documents, holdings


def misnamed(number: int) -> list[EntryChange]:
    """The life of a job with a made-up queue, from its creation to its deletion."""
    made = Entry(
        f"uid-{number}", "Job", "team-a", "x", State.PENDING, f"nosuch-{number}", "",
        since=1.0, queued_at=0.0, version=1,
    )  # fmt: skip
    refused = replace(made, reason=Reason(Code.MISCONFIGURED, ""))
    ended = replace(refused, state=State.FINISHED, reason=Reason(Code.DELETED))
    return [
        EntryChange(None, made, 1.0),
        EntryChange(made, refused, 2.0),
        EntryChange(refused, ended, 3.0),
    ]


async def scraped(metrics: MetricsRecorder) -> list[str]:
    async with talking_to(create_metrics_app(metrics.registry)) as client:
        answer = await client.get("/metrics")
    return [line for line in answer.text.splitlines() if not line.startswith("#")]


async def test_made_up_names_make_no_series() -> None:
    metrics = MetricsRecorder()
    metrics.loaded((), holdings())
    for change in misnamed(0):  # those of no queue at all
        metrics.committed([change])
    before = len(await scraped(metrics))
    for number in range(1, 51):
        for change in misnamed(number):
            metrics.committed([change])
    lines = await scraped(metrics)
    assert not [line for line in lines if "nosuch" in line]
    assert len(lines) == before


async def test_a_waiting_job_of_a_made_up_queue_is_counted_without_its_name() -> None:
    metrics = MetricsRecorder()
    metrics.loaded((), holdings())
    created, refused, _ = misnamed(1)
    metrics.committed([created])
    metrics.committed([refused])
    lines = await scraped(metrics)
    assert not [line for line in lines if "nosuch" in line]
    assert 'queuectl_workloads{cluster_queue="",status="Pending"} 1.0' in lines


async def test_series_of_a_queue_that_was_deleted_are_removed() -> None:
    metrics, held = MetricsRecorder(), holdings()
    metrics.loaded((), held)
    for change in live_through(job("done"), *LIVES["finished"]):
        metrics.committed([change], lambda _: "")
    assert [line for line in await scraped(metrics) if 'cluster_queue="team-a"' in line]
    assert [line for line in await scraped(metrics) if 'name="default",namespace="team-a"' in line]
    rest = [one for one in documents() if one["kind"] not in ("ClusterQueue", "LocalQueue")]
    held.configure(build(rest, 2), ())
    lines = await scraped(metrics)
    assert not [line for line in lines if 'cluster_queue="team-a"' in line]
    assert not [line for line in lines if 'name="default",namespace="team-a"' in line]


def test_a_priority_class_is_named_while_it_is_a_workload_priority_class() -> None:
    mirror = Mirror({"jobs": "Job"})
    for version, name in enumerate(("high", "cluster-wide", "made-up"), 1):
        mirror.apply([Upserted(replace(JOB, uid=name, priority_class=name, version=version))])
    mirror.apply([Upserted(PriorityClassRecord("cluster-wide", 1, 4))])
    books = LeaderState(mirror, SolverLimits(), 10.0, lambda: 0.0, 10.0)
    books.planning.configure(CONFIG, 0.0)
    named = {uid: books.priority_class(replace(ENTRY, uid=uid)) for uid in mirror.jobs}
    assert named == {"high": "high", "cluster-wide": "", "made-up": ""}
