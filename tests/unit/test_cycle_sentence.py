"""The summary of a cycle counts the gangs that start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuectl.control.leader.decisions import sentence
from queuectl.domain.ledger import Entry, EntryChange, Note, State
from queuectl.domain.plan import Admission, Plan
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner import plan
from tests.planner.build import gang, node, podset, world


def _started(workload: Workload) -> EntryChange:
    reason = Reason(Code.ADMITTED)
    entry = Entry(
        workload.uid,
        workload.kind,
        workload.namespace,
        workload.name,
        State.STARTING,
        gpus=workload.gpus,
        reason=reason,
    )
    return EntryChange(None, entry, 0.0, Note("Admitted", State.PENDING, State.STARTING, reason))


def _said(snapshot: Snapshot, decided: Plan) -> str:
    asked = {p.workload.uid: p.workload for p in snapshot.pending}
    return sentence(snapshot, decided, [_started(asked[a.uid]) for a in decided.admitted])


def test_of_a_gang_that_starts_in_part_only_the_part_is_counted() -> None:
    """Four pods of 8 GPUs, at least one: two nodes are there."""
    shrinking = gang("part", replace(podset("w", 4, gpu=8), min_count=1))
    whole = gang("whole", podset("w", 1, gpu=4), queued_at=9.0)
    nodes = [node("n0", gpu=8), node("n1", gpu=8), node("n2", gpu=4)]
    snapshot = world(nodes, [shrinking, whole])
    decided = plan(snapshot)
    assert _said(snapshot, decided) == "admitted 2 (20 GPUs)"


def test_pods_that_need_no_node_are_counted_too() -> None:
    workload = gang("w0", podset("w", 2, gpu=8))
    snapshot = world([], [workload])
    placement = plan(snapshot).admitted[0].placement
    assert _said(snapshot, Plan((Admission("w0", placement),))) == "admitted 1 (16 GPUs)"


def _evicted(number: int) -> EntryChange:
    reason = Reason(Code.PREEMPTED)
    entry = Entry(f"u{number}", "Job", "a", f"g{number}", State.EVICTING, reason=reason)
    return EntryChange(None, entry, 0.0, Note("Evicted", State.RUNNING, State.EVICTING, reason))


@pytest.mark.parametrize(("count", "rest"), [(3, ""), (5, " and 2 more")])
def test_three_of_the_evicted_gangs_are_named(count: int, rest: str) -> None:
    summary = sentence(world([], []), Plan(), [_evicted(number) for number in range(count)])
    assert summary == f"evicting a/g0, a/g1, a/g2{rest}"
