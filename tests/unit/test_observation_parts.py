"""One observation takes a limited number of workloads: the same number of each namespace, and those that have changed first."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.jobs import JobRecord
from queuectl.domain.queues import QueueConfig
from queuectl.domain.records import Upserted
from queuectl.lifecycle.backlog import Backlog
from queuectl.lifecycle.observations import Observer
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.usage import OtherPodUsage
from tests.control.rig import gang
from tests.doubles.cluster import FakeCluster

BUSY = 60


def observing(mirror: Mirror, ledger: Ledger) -> Observer:
    return Observer(mirror, ledger, OtherPodUsage(mirror, ledger), 30.0)


def busy_jobs() -> list[JobRecord]:
    """Jobs of one namespace, in the order of their creation."""
    cluster = FakeCluster()
    record = cluster.job(cluster.submit(gang("Job", "train", 1)))
    return [
        replace(record, uid=f"u{n}", name=f"b{n}", namespace="busy", version=10 + n)
        for n in range(BUSY)
    ]


def test_a_namespace_with_many_changes_delays_no_other() -> None:
    mirror, ledger, jobs = Mirror({"jobs": "Job"}), Ledger(), busy_jobs()
    jobs.append(replace(jobs[0], uid="quiet", name="q", namespace="quiet", version=10_000))
    mirror.apply([Upserted(job) for job in jobs])
    observer = observing(mirror, ledger)

    parts: list[list[str]] = []
    while mirror.touched or observer.backlog:
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
    mirror, ledger, jobs = Mirror({"jobs": "Job"}), Ledger(), busy_jobs()
    mirror.apply([Upserted(job) for job in jobs])
    observer = observing(mirror, ledger)
    ledger.apply(observer.observe(QueueConfig(), 100.0).changes)
    mirror.apply([Upserted(replace(jobs[0], uid="new", name="new", version=10_000))])
    for part in range(BUSY // 20 + 1):
        mirror.touched |= {f"u{n}" for n in range(BUSY)}
        ledger.apply(observer.observe(QueueConfig(), 101.0 + part, most=20).changes)
    assert ledger.get("new") is not None


def test_an_edit_that_concerns_all_workloads_delays_no_new_and_no_changed_one() -> None:
    mirror, ledger, jobs = Mirror({"jobs": "Job"}), Ledger(), busy_jobs()
    mirror.apply([Upserted(job) for job in jobs])
    observer = observing(mirror, ledger)
    ledger.apply(observer.observe(QueueConfig(), 100.0).changes)

    observer.again(mirror.jobs.keys())
    moved = replace(jobs[-1], queue="another", version=10_000)
    new = [replace(jobs[0], uid=f"n{n}", name=f"n{n}", version=10_001 + n) for n in range(2)]
    mirror.apply([Upserted(job) for job in (moved, *new)])
    changes = observer.observe(QueueConfig(), 101.0, most=20).changes
    assert [change.after.uid for change in changes] == [moved.uid, "n0", "n1"]


def test_constant_changes_leave_a_share_to_what_an_edit_concerns() -> None:
    backlog, edited = Backlog(), {f"e{n}" for n in range(BUSY)}
    for uid in sorted(edited):
        backlog.put(uid, "busy", again=True)
    for part in range(BUSY // 5):
        for number in range(20):
            backlog.put(f"c{part}-{number}", "busy", again=False)
        taken = backlog.take(20)
        assert len(taken) == 20
        edited.difference_update(taken)
    assert not edited


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.booleans()) | st.integers(0, 6),
        max_size=60,
    )
)
def test_each_workload_is_taken_once_for_all_its_marks(steps: list[tuple[int, bool] | int]) -> None:
    backlog, marked = Backlog(), set[str]()
    for step in steps:
        if isinstance(step, tuple):
            number, again = step
            backlog.put(f"u{number}", f"n{number % 3}", again=again)
            marked.add(f"u{number}")
        else:
            taken = backlog.take(step)
            assert len(taken) == len(set(taken)) == min(step, len(marked))
            assert marked >= set(taken)
            marked -= set(taken)
        assert len(backlog) == len(marked)
    assert set(backlog.take(None)) == marked
    assert not backlog
