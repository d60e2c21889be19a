"""Ledger entries of plans about idle gangs: a dry run is reported once, and a gang that works again by then is not evicted."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from queuectl.control.leader.decisions import Decider
from queuectl.domain.jobs import JobOutcome
from queuectl.domain.ledger import EntryChange, State
from queuectl.domain.plan import Cost, Eviction, Plan, Preemption, PreemptionReason, Refusal
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import Upserted
from queuectl.domain.snapshot import Admitted, CapacityLease, Pending, Snapshot
from queuectl.domain.workload import Workload
from tests.unit.test_state import CONFIG, ENTRY, JOB, PLACEMENT, RESUMED, World
from tests.unit.test_use_watch import RUNNING

COST = Cost(priority=3, lost_work=60, gpus=Fraction(16))
WAITS = replace(ENTRY, uid="u2", name="waits")


def would_go(preemptor: str = "u2") -> Preemption:
    return Preemption("u1", preemptor, COST, "IdleReclaim")


class DryRunEvents:
    def __init__(self) -> None:
        waits = replace(JOB, uid="u2", name="waits", suspended=True)
        self.world = World(RUNNING, WAITS, records=[RESUMED, waits])
        self.decider = Decider(self.world.mirror, self.world.ledger)

    def by(
        self, *spared: Preemption, idle_since: float | None = 50.0, evicted: bool = False
    ) -> list[EntryChange]:
        """Changes that a plan with these dry evictions makes."""
        workload = Workload("u1", "Job", "a", "train", JOB.podsets)
        gang = Admitted(workload, PLACEMENT, idle_since=idle_since)
        snapshot = Snapshot(100.0, self.world.mirror.fleet, CONFIG, admitted=(gang,))
        goes = (Eviction("u1", Code.NODE_FAILURES, "lost"),) if evicted else ()
        changes = self.decider.changes(snapshot, Plan(spared=spared, evicted=goes), 100.0)
        self.world.ledger.apply(changes)
        return changes

    def codes(self, changes: list[EntryChange]) -> list[Code]:
        return [change.note.reason.code for change in changes if change.note is not None]


def test_a_dry_run_is_reported_with_preemptor_and_loss_and_changes_nothing_else() -> None:
    (change,) = DryRunEvents().by(would_go())
    assert change.note is not None
    assert change.note.event == "WouldReclaim"
    assert change.note.reason.message == (
        "its GPUs are idle; without idleReclaim: DryRun it would be evicted for a/waits; "
        "this loses less than 0.1 GPU-hours of work and frees 16 GPUs"
    )
    assert change.note.reason.details == {
        "preemptor": "u2",
        "why": "IdleReclaim",
        "lostGpuSeconds": 60,
        "priority": 3,
        "gpus": 16,
    }
    assert replace(change.after, version=RUNNING.version) == RUNNING


def test_a_repeated_dry_run_is_not_reported_again_whatever_was_reported_in_between() -> None:
    events = DryRunEvents()
    assert len(events.by(would_go())) == 1
    assert events.by(would_go()) == []
    assert events.by() == []
    assert len(events.by(would_go("u3"))) == 1, "another gang is news"
    assert events.by(would_go()) == events.by(would_go("u3")) == []


def test_a_gang_that_is_idle_again_is_reported_again() -> None:
    events = DryRunEvents()
    events.by(would_go(), idle_since=50.0)
    assert len(events.by(would_go(), idle_since=90.0)) == 1


def test_a_gang_that_is_evicted_anyway_is_reported_only_as_evicted() -> None:
    events = DryRunEvents()
    assert events.codes(events.by(would_go(), evicted=True)) == [Code.NODE_FAILURES]


def test_a_deleted_workload_is_forgotten() -> None:
    events = DryRunEvents()
    events.by(would_go())
    events.decider.forget("u1")
    assert len(events.by(would_go())) == 1


def preemption(victim_idles: bool, reason: PreemptionReason, **changed: Any) -> list[EntryChange]:
    """Changes by a plan that evicts u1 so that u2 fits, committed when u2's job has these fields."""
    world = DryRunEvents().world
    world.mirror.apply([Upserted(replace(world.mirror.jobs["u2"], version=9, **changed))])
    decider = Decider(world.mirror, world.ledger, lambda _: victim_idles)
    workloads = [Workload(uid, "Job", "a", uid, JOB.podsets, queue="q") for uid in ("u1", "u2")]
    snapshot = Snapshot(
        100.0,
        world.mirror.fleet,
        CONFIG,
        pending=(Pending(workloads[1]),),
        admitted=(Admitted(workloads[0], PLACEMENT, idle_since=50.0),),
    )
    lease = CapacityLease(PLACEMENT, ("u1",), 100.0, 700.0)
    refusal = Refusal("u2", (Reason(Code.WAITING_FOR_PREEMPTED),), lease)
    plan = Plan(preempted=(Preemption("u1", "u2", COST, reason.value),), pending=(refusal,))
    return decider.changes(snapshot, plan, 100.0)


def preempting(
    victim_idles: bool, reason: PreemptionReason, **changed: Any
) -> list[tuple[str, State]]:
    """Uid and state after these changes."""
    changes = preemption(victim_idles, reason, **changed)
    return [(change.after.uid, change.after.state) for change in changes]


DONE = [("u1", State.EVICTING), ("u2", State.RESERVED)]


@pytest.mark.parametrize(
    ("victim_idles", "reason", "done"),
    [
        (True, PreemptionReason.IDLE, DONE),
        (False, PreemptionReason.IDLE, []),
        (False, PreemptionReason.IN_CLUSTER_QUEUE, DONE),  # not for its idleness
    ],
)
def test_a_gang_that_works_again_before_the_commit_is_kept_and_its_preemptor_does_not_start(
    victim_idles: bool, reason: PreemptionReason, done: list[tuple[str, State]]
) -> None:
    assert preempting(victim_idles, reason) == done


@pytest.mark.parametrize(
    "changed",
    [
        {"podsets": (replace(JOB.podsets[0], count=1),)},
        {"queue": "other"},
        {"priority_class": "high"},
        {"deleting": True},
        {"suspended": False},
        {"outcome": JobOutcome.SUCCEEDED},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_no_gang_is_evicted_for_one_that_asks_for_something_else_by_then(
    changed: dict[str, Any],
) -> None:
    assert preempting(True, PreemptionReason.IN_CLUSTER_QUEUE, **changed) == []


@pytest.mark.parametrize(
    ("reason", "borrows_later"),
    [
        (PreemptionReason.IN_CLUSTER_QUEUE, True),
        (PreemptionReason.TIME_SLICE, False),
        (PreemptionReason.IDLE, False),
    ],
)
def test_a_preempted_gang_borrows_again_after_a_pause_unless_it_was_idle_or_its_time_slice_was_over(
    reason: PreemptionReason, borrows_later: bool
) -> None:
    victim = next(change for change in preemption(True, reason) if change.after.uid == "u1")
    assert ("borrowBackoffSeconds" in victim.after.reason.details) is borrows_later
    assert (victim.after.requeue_at is not None) is borrows_later
