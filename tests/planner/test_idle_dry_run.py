"""A dry run names the idle gangs that would be evicted, and their preemptors, and counts no GPU twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from queuectl.domain.diagnosis import ReclaimIdle, Remedy
from queuectl.domain.plan import PreemptionReason
from queuectl.domain.queues import Protection, QueueingStrategy, ReclaimWithinCohort
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import plan, plan_cycle
from queuectl.planner.explain import diagnose
from queuectl.planner.model.builder import Placed
from queuectl.planner.solver import Status
from queuectl.planner.verify import verify
from tests.planner.build import gang, node, podset, queue, world
from tests.planner.queues import cq, gpus, quota_only, running
from tests.planner.test_idle import DRY_RUN, NEVER, ON_DEMAND, evicted, idler, on, spared, yields


def dry(*waiting: Any, there: Any, **policy: Any) -> Snapshot:
    queues = [cq("a", 8, **(yields(DRY_RUN) | policy)), cq("b", 8, **yields(ON_DEMAND))]
    return quota_only(queues, list(waiting), list(there))


def test_a_dry_run_names_the_gang_that_would_be_evicted_and_its_loss() -> None:
    snapshot = dry(
        gpus("in", 8, "a", 9.0, 5),
        there=[idler("idle", 8, "a", utilization=0.0), running("busy", 8, "b")],
    )
    made = plan(snapshot)
    (one,) = made.spared
    assert (one.victim, one.preemptor, one.reason) == ("idle", "in", PreemptionReason.IDLE)
    assert (one.cost.priority, int(one.cost.gpus)) == (1, 8)
    assert made.preempted == ()
    assert [r.reasons[0].code for r in made.pending] == [Code.WAITING_FOR_QUOTA]
    assert verify(snapshot, made) == ()


def test_legal_victims_are_named_alongside_it_where_both_are_needed() -> None:
    there = [idler("dry", 8, "a"), idler("real", 8, "b")]
    both = dry(gpus("in", 16, "a", 9.0, 5), there=there)
    assert spared(plan(both)) == [("dry", "in"), ("real", "in")]
    made = plan(dry(gpus("in", 8, "a", 9.0, 5), there=there))
    assert evicted(made) == {"real": "IdleReclaim"}
    assert spared(made) == []


def test_no_gpu_is_counted_twice_in_a_dry_run() -> None:
    there = [idler("i1", 4, "a", 1), idler("i2", 4, "a", 2), running("busy", 8, "b")]
    waiting = [gpus(name, 4, "a", float(at), 5) for at, name in enumerate(("p", "q", "r"))]
    assert spared(plan(dry(*waiting, there=there))) == [("i1", "p"), ("i2", "q")]


def test_capacity_that_the_first_leaves_over_is_for_the_next() -> None:
    there = [idler("i1", 8, "a", 1), running("busy", 8, "b")]
    waiting = [gpus(name, 4, "a", float(at), 5) for at, name in enumerate(("p", "q"))]
    assert spared(plan(dry(*waiting, there=there))) == [("i1", "p")]


def test_no_gang_is_named_for_one_that_would_not_fit_then_either() -> None:
    there = [idler("i1", 4, "a"), running("busy", 12, "b")]
    assert spared(plan(dry(gpus("in", 8, "a", 9.0, 5), there=there))) == []


def test_the_head_of_a_strict_queue_gets_a_dry_run_and_no_gang_behind_it() -> None:
    """Its own quota, which is kept from borrowers for it, does not block it."""
    strict = {
        "strategy": QueueingStrategy.STRICT_FIFO,
        "protection": Protection(min_runtime=1.0),
        "reclaim_within_cohort": ReclaimWithinCohort.NEVER,
    }
    there = [idler("idle", 6, "a", started_at=0.0), running("busy", 8, "b")]
    waiting = [gpus("head", 8, "a", 1.0, 5), gpus("next", 8, "a", 2.0, 5)]
    assert spared(plan(dry(*waiting, there=there, **strict))) == [("idle", "head")]


def test_a_dry_run_on_nodes_counts_the_starts_of_the_plan() -> None:
    """Capacity that a gang of this plan uses is not counted as free."""
    nodes = [node(f"a{i}", "a", gpu=8) for i in range(3)]
    starts = gang("starts", podset(gpu=8), priority=9)
    waiting = gang("in", podset(count=2, required="rack", gpu=8), priority=5, queued_at=9.0)
    main = replace(queue(within=NEVER), **yields(DRY_RUN))
    one = (on("i1", "a0", idle=True), on("busy", "a1"))
    assert spared(plan(world(nodes, [starts, waiting], one, main))) == []
    two = (on("i1", "a0", idle=True), on("i2", "a1", idle=True))
    made = plan(world(nodes, [starts, waiting], two, main))
    assert spared(made) == [("i1", "in"), ("i2", "in")]
    assert [a.uid for a in made.admitted] == ["starts"]


def test_a_dry_run_counts_the_final_placements(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last solve can place gangs elsewhere than the walk did."""
    nodes = [node("a0", "a", gpu=8), node("a1", "a", gpu=8), node("b0", "b", gpu=8)]
    starts = gang("starts", podset(gpu=8), priority=9)
    waiting = gang("in", podset(count=2, required="rack", gpu=8), priority=5, queued_at=9.0)
    main = replace(queue(within=NEVER), **yields(DRY_RUN))
    snapshot = world(nodes, [starts, waiting], (on("idle", "a0", idle=True),), main)
    places = {}
    for name in ("a1", "b0"):
        node_counts = ((np.array([["a0", "a1", "b0"].index(name)]), np.array([1])),)
        found = Placed(Status.SOLVED, (node_counts,))
        monkeypatch.setattr(plan_cycle, "confirm", lambda state, solver, found=found: found)
        places[name] = spared(plan(snapshot))
    assert places == {"a1": [], "b0": [("idle", "in")]}


def test_the_end_of_the_dry_run_is_a_suggested_fix() -> None:
    there = [idler("idle", 8, "a"), running("busy", 8, "b")]
    found = diagnose(dry(gpus("in", 8, "a", 9.0, 5), there=there), "in")
    way, *_ = [way for way in found.suggested_fixes if way.remedy is Remedy.ALLOW_PREEMPTION]
    assert way.changes == (ReclaimIdle("a"),)
    assert way.details["policy"] == [
        {"clusterQueue": "a", "field": "idleReclaim", "value": "OnDemand"}
    ]
    assert [g["workload"] for g in way.details["gangs"]] == ["team/idle"]
    equal = dry(gpus("in", 8, "a", 9.0, 1), there=there)
    assert ReclaimIdle("a") not in [
        c for way in diagnose(equal, "in").suggested_fixes for c in way.changes
    ]
