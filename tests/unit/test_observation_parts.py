"""One observation takes a limited number of workloads, the same number of each namespace."""

from __future__ import annotations

from dataclasses import replace

from queuectl.domain.queues import QueueConfig
from queuectl.domain.records import Upserted
from queuectl.lifecycle.observations import Observer
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.usage import OtherPodUsage
from tests.control.rig import gang
from tests.doubles.cluster import FakeCluster

BUSY = 60


def test_a_namespace_with_many_changes_delays_no_other() -> None:
    cluster = FakeCluster()
    record = cluster.job(cluster.submit(gang("Job", "train", 1)))
    jobs = [
        replace(record, uid=f"u{n}", name=f"b{n}", namespace="busy", version=10 + n)
        for n in range(BUSY)
    ]
    jobs.append(replace(record, uid="quiet", name="q", namespace="quiet", version=10_000))
    mirror = Mirror({"jobs": "Job"})
    mirror.apply([Upserted(job) for job in jobs])
    ledger = Ledger()
    observer = Observer(mirror, ledger, OtherPodUsage(mirror, ledger), 30.0)

    parts: list[list[str]] = []
    while mirror.touched or observer.behind:
        changes = observer.observe(QueueConfig(), 100.0 + len(parts), most=20).changes
        ledger.apply(changes)
        parts.append([change.after.uid for change in changes])
        mirror.touched -= {change.after.uid for change in changes}
    assert len(parts[0]) == 20
    assert "quiet" in parts[0]
    of_busy = [uid for part in parts for uid in part if uid != "quiet"]
    assert of_busy == [f"u{n}" for n in range(BUSY)], "in the order of their creation"
    queued = [entry.queued_at for entry in ledger if entry.namespace == "busy"]
    assert queued == sorted(queued)


def test_workloads_that_are_marked_again_and_again_delay_no_other() -> None:
    cluster = FakeCluster()
    record = cluster.job(cluster.submit(gang("Job", "train", 1)))
    mirror = Mirror({"jobs": "Job"})
    mirror.apply(
        [Upserted(replace(record, uid=f"u{n}", name=f"b{n}", version=10 + n)) for n in range(BUSY)]
    )
    ledger = Ledger()
    observer = Observer(mirror, ledger, OtherPodUsage(mirror, ledger), 30.0)
    ledger.apply(observer.observe(QueueConfig(), 100.0).changes)
    mirror.apply([Upserted(replace(record, uid="new", name="new", version=10_000))])
    for part in range(BUSY // 20 + 1):
        mirror.touched |= {f"u{n}" for n in range(BUSY)}
        ledger.apply(observer.observe(QueueConfig(), 101.0 + part, most=20).changes)
    assert ledger.get("new") is not None
