"""Idle gangs that yield their GPUs: which gangs, to which preemptors, and before which other victims.

The queues here allow no preemption unless a test sets it: each eviction is for idleness.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from queuectl.domain.diagnosis import Remedy
from queuectl.domain.plan import Plan
from queuectl.domain.queues import (
    IdleReclaim,
    Protection,
    QueueingStrategy,
    ReclaimMode,
    ReclaimWithinCohort,
    WithinClusterQueue,
)
from queuectl.domain.reasons import Code
from queuectl.domain.rules import Rules
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.planner import plan
from queuectl.planner.explain import diagnose
from queuectl.planner.verify import verify
from tests.planner.build import NOW, gang, holding, node, podset, queue, world
from tests.planner.generate_cohorts import BOTH
from tests.planner.queues import cohort, cq, gpus, quota_only, quotas, running
from tests.planner.test_refuted import again, searched

__all__ = ["searched"]  # a fixture

OFF, DRY_RUN = ReclaimMode.OFF, ReclaimMode.DRY_RUN
ON_DEMAND, ALWAYS = ReclaimMode.ON_DEMAND, ReclaimMode.ALWAYS
IDLE = NOW - 60.0
NEVER = WithinClusterQueue.NEVER


def yields(mode: ReclaimMode = ON_DEMAND, *, to_equal: bool = False) -> dict[str, Any]:
    return {"idle_reclaim": IdleReclaim(mode=mode, to_equal=to_equal)}


def idler(name: str, amount: int, home: str, priority: int = 1, **rest: Any) -> Admitted:
    return running(name, amount, home, priority=priority, **({"idle_since": IDLE} | rest))


def evicted(made: Plan) -> dict[str, str]:
    """The victims, and the reasons."""
    return {p.victim: p.reason for p in made.preempted}


def spared(made: Plan) -> list[tuple[str, str]]:
    return [(p.victim, p.preemptor) for p in made.spared]


# Victims for idleness: one gang is idle, another one is pending, and no other capacity is free.


class Row(NamedTuple):
    """The idle gang's queue, priority, ...; ``goes``: whether it is evicted."""

    why: str
    goes: bool
    mode: ReclaimMode = ON_DEMAND
    home: str = "a"  # a: the preemptor's own ClusterQueue; b: of its cohort; c: of none
    priority: int = 1
    wants: int = 5  # the preemptor's priority
    asks: int = 8
    to_equal: bool = False
    idle: bool = True
    preemptible: bool = True
    protection: Protection = Protection()
    borrowing: int | None = None  # borrowing limit of a
    lending: int | None = None  # lending limit of b


VICTIMS = [
    Row("an idle gang of the own queue goes", True),
    Row("under Always as well", True, ALWAYS),
    Row("in a dry run no gang is evicted", False, DRY_RUN),
    Row("nor where reclaim is off", False, OFF),
    Row("one that works stays", False, idle=False),
    Row("it yields to a higher priority", True, priority=4),
    Row("not to an equal one", False, priority=5),
    Row("but where its queue allows it", True, priority=5, to_equal=True),
    Row("never to a lower one", False, priority=6),
    Row("whatever its queue allows", False, priority=6, to_equal=True),
    Row("one that asked to be left alone stays", False, preemptible=False),
    Row("so does one that has not run long enough", False, protection=Protection(min_runtime=1e9)),
    Row("and one that must not be evicted again today", False, protection=Protection(max_evictions_per_day=0)),
    Row("an idle gang of the cohort goes, though its queue uses no more than its own", True, home="b"),
    Row("not in a dry run of its own queue", False, DRY_RUN, home="b"),
    Row("not for its equal", False, home="b", priority=5),
    Row("but where its own queue allows it", True, home="b", priority=5, to_equal=True),
    Row("not one of another tree", False, home="c"),
    Row("as much as the borrowing limit allows", True, home="b", borrowing=8),
    Row("not more", False, home="b", borrowing=7),
    Row("as much as the lending limit allows", True, home="b", lending=8),
    Row("not more", False, home="b", lending=7),
    Row("no gang is evicted for one that would still not fit", False, asks=16),
]  # fmt: skip


def scene(row: Row) -> Snapshot:
    """Queues of 8 GPUs each, all of them in use; ``a`` and ``b`` are in one cohort."""
    rule = yields(row.mode, to_equal=row.to_equal)
    there = {row.home: {**rule, "protection": row.protection}}
    made = idler("idle", 8, row.home, row.priority, idle_since=IDLE if row.idle else None)
    made = replace(made, workload=replace(made.workload, preemptible=row.preemptible))
    others = [running(f"busy-{q}", 8, q) for q in "abc" if q != row.home]
    queues = [
        cq("a", quotas(8, borrowing=row.borrowing), **there.get("a", {})),
        cq("b", quotas(8, lending=row.lending), **there.get("b", {})),
        cq("c", 8, None, **there.get("c", {})),
    ]
    return quota_only(queues, [gpus("in", row.asks, "a", 9.0, row.wants)], [made, *others])


@pytest.mark.parametrize("row", VICTIMS, ids=lambda row: row.why)
def test_which_idle_gang_is_evicted(row: Row) -> None:
    snapshot = scene(row)
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    assert evicted(made) == ({"idle": "IdleReclaim"} if row.goes else {})
    (refusal,) = made.pending
    code = Code.WAITING_FOR_PREEMPTED if row.goes else Code.WAITING_FOR_QUOTA
    assert refusal.reasons[0].code is code
    assert (refusal.lease is not None) == row.goes


@pytest.mark.parametrize("strategies", [(), BOTH], ids=["classic", "fair"])
def test_idleness_respects_quota_and_ignores_preemption_policies(strategies: Any) -> None:
    """A queue that must not reclaim, a victim within its nominal quota, and shares that would forbid the eviction."""
    queues = [cq("a", 2, **yields()), cq("b", 8, weight=9000, **yields())]
    there = [running("busy", 2, "a"), idler("idle", 8, "b")]
    rule = Rules(fair_sharing=strategies)
    made = plan(quota_only(queues, [gpus("in", 8, "a", 9.0, 5)], there, rules=rule))
    assert evicted(made) == {"idle": "IdleReclaim"}
    snapshot = quota_only(queues, [gpus("in", 9, "a", 9.0, 5)], there, rules=rule)
    assert evicted(plan(snapshot)) == {}
    (end,) = (
        fix for fix in diagnose(snapshot, "in").suggested_fixes if fix.remedy is Remedy.END_OTHERS
    )
    assert [gang["policy"] for gang in end.details["gangs"]] == [
        "withinClusterQueue of ClusterQueue a is Never",
        "policy allows its eviction, but that alone is not enough",
    ]


# No gang is evicted that could take its capacity back as soon as it is queued again.

ANY = ReclaimWithinCohort.ANY
NEWER = WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY


@pytest.mark.parametrize(
    ("reclaims", "own", "goes"),
    [(ReclaimWithinCohort.NEVER, 0, True), (ANY, 0, False), (ANY, 8, True)],
    ids=["lent quota stays lent", "a borrower would lose it at once", "own quota can be evicted"],
)
def test_a_borrower_evicts_no_idle_gang_whose_queue_reclaims(
    reclaims: ReclaimWithinCohort, own: int, goes: bool
) -> None:
    queues = [
        cq("a", own),
        cq("b", 8, reclaim_within_cohort=reclaims, **yields()),
        cq("c", 0),
    ]
    there = [idler("idle", 8, "b")] + ([running("lender", 8, "c", priority=9)] if own else [])
    snapshot = quota_only(queues, [gpus("in", 8, "a", 9.0, 5)], there)
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    assert evicted(made) == ({"idle": "IdleReclaim"} if goes else {})


@pytest.mark.parametrize(("asked_at", "goes"), [(9.0, False), (-9.0, True)], ids=["older", "newer"])
@pytest.mark.parametrize(
    "first",
    [{"within_cluster_queue": NEWER}, {"strategy": QueueingStrategy.STRICT_FIFO}],
    ids=["evicts", "strict"],
)
def test_an_equal_gang_yields_only_where_it_would_not_start_first_again(
    first: dict[str, Any], asked_at: float, goes: bool
) -> None:
    queues = [cq("a", 8, **first, **yields(to_equal=True))]
    idle = idler("idle", 8, "a", 5)
    within = quota_only(queues, [gpus("in", 8, "a", asked_at, 5)], [idle])
    made = plan(within)
    assert verify(within, made) == ()
    assert evicted(made) == ({"idle": "IdleReclaim"} if goes else {})


def test_idleness_applies_across_a_tree_of_cohorts() -> None:
    trees = [cohort("root"), cohort("left", 0, "root"), cohort("right", 0, "root")]
    queues = [cq("a", 0, "left"), cq("b", 4, "right", **yields()), cq("c", 4, "right", **yields())]
    there = [idler("ib", 4, "b"), idler("ic", 4, "c", 3)]
    made = plan(quota_only(queues, [gpus("in", 4, "a", 9.0, 5)], there, cohorts=trees))
    assert evicted(made) == {"ib": "IdleReclaim"}


# Capacity on nodes.


def racks(*admitted: Admitted, wants: int = 2, **policy: Any) -> Snapshot:
    """Two racks of two nodes; a gang of ``wants`` whole nodes is pending for one rack."""
    nodes = [node(f"{r}{i}", r, gpu=8) for r in "ab" for i in range(2)]
    waiting = gang("in", podset(count=wants, required="rack", gpu=8), priority=5, queued_at=9.0)
    main = replace(queue(within=policy.pop("within", NEVER)), **(yields() | policy))
    return world(nodes, [waiting], admitted, main)


def on(name: str, where: str, priority: int = 1, *, idle: bool = False, **rest: Any) -> Admitted:
    made = holding(gang(name, podset(gpu=8), priority=priority), {where: 1}, **rest)
    return replace(made, idle_since=IDLE if idle else None)


def test_idle_gangs_of_one_rack_are_evicted_where_that_frees_enough() -> None:
    there = (on("i1", "a0", idle=True), on("i2", "b0", idle=True), on("i3", "b1", idle=True))
    made = plan(racks(*there, on("busy", "a1")))
    assert evicted(made) == {"i2": "IdleReclaim", "i3": "IdleReclaim"}


def test_no_gang_is_evicted_where_idle_gangs_alone_do_not_free_enough() -> None:
    there = (on("i1", "a0", idle=True), on("busy-a", "a1"), on("i2", "b0", idle=True))
    made = plan(racks(*there, on("busy-b", "b1")))
    assert evicted(made) == {}


def test_the_idle_gang_is_evicted_before_busy_ones_of_lower_priority() -> None:
    """Even where the others would have lost less."""
    within = WithinClusterQueue.LOWER_PRIORITY
    low = on("low", "a0", 0, started_at=NOW - 1)
    idle = on("idle", "b0", 4, idle=True, started_at=0.0)
    rest = (on("x", "a1", 9), on("y", "b1", 9))
    made = plan(racks(low, idle, *rest, wants=1, within=within))
    assert evicted(made) == {"idle": "IdleReclaim"}
    busy = plan(racks(low, replace(idle, idle_since=None), *rest, wants=1, within=within))
    assert evicted(busy) == {"low": "InClusterQueue"}


def test_alongside_other_victims_an_idle_gang_is_one_more_candidate() -> None:
    """Two nodes of one rack are needed: an idle gang holds one, a gang that policy lets preempt the other."""
    within = WithinClusterQueue.LOWER_PRIORITY
    there = (on("idle", "a0", idle=True), on("low", "a1", 0))
    made = plan(racks(*there, on("x", "b0", 9), on("y", "b1", 9), within=within))
    assert evicted(made) == {"idle": "IdleReclaim", "low": "InClusterQueue"}


def test_the_cheapest_idle_gang_is_evicted() -> None:
    there = (on("dear", "a0", 3, idle=True), on("cheap", "a1", 2, idle=True))
    made = plan(racks(*there, on("x", "b0"), on("y", "b1"), wants=1))
    assert evicted(made) == {"cheap": "IdleReclaim"}


def test_a_broken_gang_evicts_no_gang_for_idleness() -> None:
    """Only a pending gang does; this one is evicted whole, as it is without idle gangs."""
    broken = holding(
        gang("broken", podset(count=2, required="rack", gpu=8), priority=9),
        {"a0": 1, "a1": 1},
        lost=(("w", "a1", 1),),
    )
    nodes = [node("a0", "a", gpu=8), node("a1", "a", gpu=8, ready=False), node("a2", "a", gpu=8)]
    main = replace(queue(within=NEVER), **yields())
    made = plan(world(nodes, [], [broken, on("idle", "a2", idle=True)], main))
    assert evicted(made) == {}
    assert [e.uid for e in made.evicted] == ["broken"]


def test_an_idle_gang_that_lost_nodes_yields_like_one_that_did_not() -> None:
    """It is repaired before any gang starts, unless its eviction lets a pending gang start."""
    broken = holding(
        gang("broken", podset(count=2, required="rack", gpu=8), priority=1),
        {"a0": 1, "a1": 1},
        lost=(("w", "a1", 1),),
    )
    nodes = [node("a0", "a", gpu=8), node("a1", "a", gpu=8, ready=False), node("a2", "a", gpu=8)]
    waiting = gang("in", podset(count=2, required="rack", gpu=8), priority=5, queued_at=9.0)
    main = replace(queue(within=NEVER), **yields())
    working = plan(world(nodes, [waiting], [broken], main))
    assert [(a.uid, a.repaired) for a in working.admitted] == [("broken", True)]
    snapshot = world(nodes, [waiting], [replace(broken, idle_since=IDLE)], main)
    made = plan(snapshot)
    assert evicted(made) == {"broken": "IdleReclaim"}
    assert made.admitted == ()
    assert verify(snapshot, made) == ()


def test_a_gang_beyond_its_quota_evicts_idle_gangs_only() -> None:
    """It asks for more than its own quota: policy allows it no victim, also where idle gangs alone are not enough."""
    lower = {"within_cluster_queue": WithinClusterQueue.LOWER_PRIORITY}
    queues = [cq("a", 2, **lower), cq("b", 8, **yields())]
    there = [running("low", 4, "a"), idler("idle", 4, "b")]
    assert evicted(plan(quota_only(queues, [gpus("in", 8, "a", 9.0, 5)], there))) == {}
    made = plan(quota_only(queues, [gpus("in", 6, "a", 9.0, 5)], there))
    assert evicted(made) == {"idle": "IdleReclaim"}


# Results known of a pending gang, when a running gang becomes idle.


@pytest.mark.parametrize("mode", list(ReclaimMode))
def test_a_refuted_gang_is_searched_again_when_a_gang_becomes_idle(
    searched: list[str], mode: ReclaimMode
) -> None:
    queues = [cq("a", 4, "x", **yields(mode)), cq("b", 4, "y", **yields(mode))]
    waiting = [gpus("in-a", 2, "a", priority=5), gpus("in-b", 2, "b", priority=5)]
    first = quota_only(queues, waiting, [running("has-a", 3, "a"), running("has-b", 3, "b")])
    idle = replace(first.admitted[0], idle_since=IDLE)
    then = replace(first, admitted=(idle, first.admitted[1]))
    assert "in-b" not in again(searched, first, then)
    made = plan(then)
    assert evicted(made) == ({"has-a": "IdleReclaim"} if mode in (ON_DEMAND, ALWAYS) else {})
    assert spared(made) == ([("has-a", "in-a")] if mode is DRY_RUN else [])
    assert evicted(plan(first)) == {}  # and when it works again


def test_equal_gangs_are_searched_by_priority_while_a_gang_is_idle(searched: list[str]) -> None:
    """A proof for a gang of no higher priority than the idle one does not hold for a gang of higher priority."""
    queues = [cq("a", 4, **yields())]
    there = [idler("idle", 4, "a", 3)]
    first = quota_only(queues, [gpus("low", 2, "a", 1.0, 2)], there)
    high = Pending(gpus("high", 2, "a", 2.0, 5))
    assert evicted(plan(first)) == {}
    assert again(searched, first, replace(first, pending=(*first.pending, high))) == ["high", "low"]


def test_one_idle_gang_is_evicted_once() -> None:
    queues = [cq("a", 4, **yields())]
    waiting = [gpus("first", 4, "a", 1.0, 5), gpus("second", 4, "a", 2.0, 5)]
    made = plan(quota_only(queues, waiting, [idler("idle", 4, "a")]))
    assert [(p.victim, p.preemptor) for p in made.preempted] == [("idle", "first")]
    assert [r.reasons[0].code for r in made.pending] == [
        Code.WAITING_FOR_PREEMPTED,
        Code.WAITING_FOR_QUOTA,
    ]
