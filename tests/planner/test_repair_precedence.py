"""Broken gangs come before pending ones, but never block a pending gang that could start by evicting them.

Kueue evicts a broken gang at once and queues it again; a gang ahead of it in the queue then takes the capacity. Here the
running gang keeps its nodes against all that may not evict it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuectl.domain.plan import Plan
from queuectl.domain.queues import ClusterQueue, Protection, WithinClusterQueue
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner.build import gang, holding, node, podset, queue, world
from tests.planner.test_repair_victims import other, rack


def planned(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


def broken(priority: int = 5) -> Admitted:
    """Two pods in rack a, of which one was on a1."""
    workload = gang("broken", podset(count=2, gpu=8, required="rack"), priority=priority)
    return holding(workload, {"a0": 1, "a1": 1}, lost=(("w", "a1", 1),))


def urgent(priority: int, count: int = 1) -> Workload:
    return gang("urgent", podset(count=count, gpu=8, required="rack"), priority=priority)


NODES = rack(3, "a1")  # a2 is free
NEVER = queue(within=WithinClusterQueue.NEVER)
SHIELDED = replace(queue(), protection=Protection(min_runtime=600.0))


def outcome(made: Plan) -> dict[str, str]:
    """The outcome of each gang."""
    outcomes = {a.uid: "repaired" if a.repaired else "starts" for a in made.admitted}
    outcomes |= {r.uid: "leased" if r.lease is not None else "waits" for r in made.pending}
    outcomes |= {p.victim: "victim" for p in made.preempted}
    return outcomes | {e.uid: "evicted" for e in made.evicted}


@pytest.mark.parametrize(
    ("priority", "main", "expected"),
    [
        (4, queue(), {"broken": "repaired", "urgent": "waits"}),
        (5, queue(), {"broken": "repaired", "urgent": "waits"}),
        (9, queue(), {"broken": "evicted", "urgent": "starts"}),
        (9, NEVER, {"broken": "repaired", "urgent": "waits"}),
        (9, SHIELDED, {"broken": "repaired", "urgent": "waits"}),
    ],
    ids=["less urgent", "as urgent", "more urgent", "may evict no gang", "may not evict it yet"],
)
def test_only_a_gang_that_may_evict_a_broken_gang_takes_the_capacity_of_its_repair(
    priority: int, main: ClusterQueue, expected: dict[str, str]
) -> None:
    made = planned(world(NODES, [urgent(priority)], [broken()], main))
    assert outcome(made) == expected
    assert [e.code for e in made.evicted] in ([], [Code.NODE_FAILURES])


def test_with_capacity_for_both_the_repair_is_first_and_stays_on_its_rack() -> None:
    """Whichever node the urgent one would use by itself, the lost pod fits only a2."""
    nodes = [*NODES, node("b0", "b", gpu=9)]
    made = planned(world(nodes, [urgent(9)], [broken()]))
    assert outcome(made) == {"broken": "repaired", "urgent": "starts"}
    (repair, start) = made.admitted
    assert repair.placement.podsets[0].nodes == (("a0", 1), ("a2", 1))
    assert start.placement.podsets[0].nodes == (("b0", 1),)


def test_it_is_a_victim_in_the_same_plan_rather_than_repaired_and_evicted_in_the_next() -> None:
    made = planned(world(NODES, [urgent(9, count=2)], [broken()]))
    assert outcome(made) == {"broken": "victim", "urgent": "leased"}
    (lease,) = [r.lease for r in made.pending]
    assert lease is not None
    assert lease.placement.podsets[0].by_node == {"a0": 1, "a2": 1}


def test_a_cheaper_victim_spares_it() -> None:
    """The urgent one can use b0, where a gang of no priority runs."""
    nodes = [*NODES, node("b0", "b", gpu=8)]
    made = planned(world(nodes, [urgent(9)], [broken(), other("low", "b0")]))
    assert outcome(made) == {"broken": "repaired", "urgent": "leased", "low": "victim"}


def test_it_stays_repaired_where_evicting_it_would_not_let_the_urgent_one_start() -> None:
    made = planned(world(NODES, [urgent(9, count=3)], [broken()]))
    assert outcome(made) == {"broken": "repaired", "urgent": "waits"}


def test_capacity_that_the_urgent_one_does_not_need_repairs_it() -> None:
    """Two broken gangs, capacity for one pod alongside the urgent one: the more urgent of them is repaired."""
    nodes = [*rack(4, "a1"), node("c0", "c", gpu=8), node("c1", "c", gpu=8, ready=False)]
    second = holding(
        gang("second", podset(count=2, gpu=8), priority=4),
        {"c0": 1, "c1": 1},
        lost=(("w", "c1", 1),),
    )
    wants = gang("urgent", podset(gpu=8, required="rack", select={"rack": "a"}), priority=9)
    made = planned(world(nodes, [wants], [broken(), second]))
    assert outcome(made) == {"urgent": "starts", "broken": "repaired", "second": "evicted"}


def test_capacity_of_its_victims_is_for_a_gang_that_may_evict_it() -> None:
    """Alongside the gang that waits for its victims no capacity is left for the urgent one; those victims then serve it."""
    nodes = [*rack(3, "a1")]
    running = [broken(), other("low", "a2")]
    made = planned(world(nodes, [urgent(4)], running))
    assert outcome(made) == {"broken": "leased", "low": "victim", "urgent": "waits"}
    made = planned(world(nodes, [urgent(9)], running))
    assert outcome(made) == {"broken": "evicted", "low": "victim", "urgent": "leased"}
    assert [p.preemptor for p in made.preempted] == ["urgent"]


def test_quota_that_it_holds_is_for_a_gang_that_may_evict_it() -> None:
    """Nodes are plenty, quota is not: only the eviction of the broken gang lets the urgent one start."""
    nodes = [*NODES, *(node(f"b{i}", "b", gpu=8) for i in range(2))]
    made = planned(world(nodes, [urgent(9, count=2)], [broken()], queue(gpu=16)))
    assert outcome(made) == {"broken": "victim", "urgent": "leased"}


def test_the_next_cycle_has_nothing_to_undo() -> None:
    """A gang that starts in a plan is not evicted in the next by a gang that was pending in the first."""
    snapshot = world(NODES, [urgent(9)], [broken()])
    made = planned(snapshot)
    (started,) = made.admitted
    running = holding(urgent(9), started.placement.podsets[0].by_node)
    leaving = replace(broken(), leaving=True, returns=True)
    after = planned(world(NODES, [], [running, leaving]))
    assert (after.preempted, after.evicted) == ((), ())
