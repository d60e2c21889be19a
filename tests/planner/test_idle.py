"""Gangs that do nothing and yield their GPUs: who may be taken, by whom, and before whom.

No queue here lets anybody be preempted unless a test says so: what happens, happens for idleness.
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


def taken(made: Plan) -> dict[str, str]:
    """Who goes, and why."""
    return {p.victim: p.reason for p in made.preempted}


def spared(made: Plan) -> list[tuple[str, str]]:
    return [(p.victim, p.preemptor) for p in made.spared]


# Who may be taken: one gang does nothing, another one waits, and there is no other room.


class Row(NamedTuple):
    """The idle gang's queue, priority, ...; whether it goes."""

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
    borrowing: int | None = None  # limit of a
    lending: int | None = None  # limit of b


WHO = [
    Row("an idle gang of the own queue goes", True),
    Row("where its queue says Always, too", True, ALWAYS),
    Row("in a dry run nobody goes", False, DRY_RUN),
    Row("nor where reclaim is off", False, OFF),
    Row("one that works stays", False, idle=False),
    Row("it yields to a higher priority", True, priority=4),
    Row("not to an equal one", False, priority=5),
    Row("but where its queue says so", True, priority=5, to_equal=True),
    Row("never to a lower one", False, priority=6),
    Row("whatever its queue says", False, priority=6, to_equal=True),
    Row("one that asked to be left alone stays", False, preemptible=False),
    Row("so does one that has not run long enough", False, protection=Protection(min_runtime=1e9)),
    Row("and one that must not be evicted again today", False, protection=Protection(max_evictions_per_day=0)),
    Row("an idle gang of the cohort goes, though its queue uses no more than its own", True, home="b"),
    Row("not in a dry run of its own queue", False, DRY_RUN, home="b"),
    Row("not for its equal", False, home="b", priority=5),
    Row("but where its own queue says so", True, home="b", priority=5, to_equal=True),
    Row("not one of another tree", False, home="c"),
    Row("as much as may be borrowed", True, home="b", borrowing=8),
    Row("not more", False, home="b", borrowing=7),
    Row("as much as may be lent", True, home="b", lending=8),
    Row("not more", False, home="b", lending=7),
    Row("nobody goes for one that would still not fit", False, asks=16),
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


@pytest.mark.parametrize("row", WHO, ids=lambda row: row.why)
def test_who_is_taken_for_idleness(row: Row) -> None:
    snapshot = scene(row)
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    assert taken(made) == ({"idle": "IdleReclaim"} if row.goes else {})
    (refusal,) = made.pending
    code = Code.WAITING_FOR_PREEMPTED if row.goes else Code.WAITING_FOR_QUOTA
    assert refusal.reasons[0].code is code
    assert (refusal.lease is not None) == row.goes


@pytest.mark.parametrize("strategies", [(), BOTH], ids=["classic", "fair"])
def test_policies_have_no_say_in_it_and_quota_has(strategies: Any) -> None:
    """A queue that may reclaim nothing, a victim within its nominal quota, and shares that would forbid it."""
    queues = [cq("a", 2, **yields()), cq("b", 8, weight=9000, **yields())]
    there = [running("busy", 2, "a"), idler("idle", 8, "b")]
    rule = Rules(fair_sharing=strategies)
    made = plan(quota_only(queues, [gpus("in", 8, "a", 9.0, 5)], there, rules=rule))
    assert taken(made) == {"idle": "IdleReclaim"}
    snapshot = quota_only(queues, [gpus("in", 9, "a", 9.0, 5)], there, rules=rule)
    assert taken(plan(snapshot)) == {}
    (end,) = (fix for fix in diagnose(snapshot, "in").ways if fix.remedy is Remedy.END_OTHERS)
    assert [gang["policy"] for gang in end.details["gangs"]] == [
        "withinClusterQueue of ClusterQueue a is Never",
        "policy allows its eviction, but that alone is not enough",
    ]


# Nobody is taken who could take the place back as soon as he is queued again.

ANY = ReclaimWithinCohort.ANY
NEWER = WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY


@pytest.mark.parametrize(
    ("reclaims", "own", "goes"),
    [(ReclaimWithinCohort.NEVER, 0, True), (ANY, 0, False), (ANY, 8, True)],
    ids=["what is lent stays lent", "a borrower would lose it at once", "its own it may take"],
)
def test_a_borrower_takes_no_idle_gang_whose_queue_reclaims(
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
    assert taken(made) == ({"idle": "IdleReclaim"} if goes else {})


@pytest.mark.parametrize(("asked_at", "goes"), [(9.0, False), (-9.0, True)], ids=["older", "newer"])
@pytest.mark.parametrize(
    "first",
    [{"within_cluster_queue": NEWER}, {"strategy": QueueingStrategy.STRICT_FIFO}],
    ids=["evicts", "strict"],
)
def test_an_equal_yields_only_where_it_would_not_come_back_first(
    first: dict[str, Any], asked_at: float, goes: bool
) -> None:
    queues = [cq("a", 8, **first, **yields(to_equal=True))]
    idle = idler("idle", 8, "a", 5)
    within = quota_only(queues, [gpus("in", 8, "a", asked_at, 5)], [idle])
    made = plan(within)
    assert verify(within, made) == ()
    assert taken(made) == ({"idle": "IdleReclaim"} if goes else {})


def test_across_a_tree_of_cohorts() -> None:
    trees = [cohort("root"), cohort("left", 0, "root"), cohort("right", 0, "root")]
    queues = [cq("a", 0, "left"), cq("b", 4, "right", **yields()), cq("c", 4, "right", **yields())]
    there = [idler("ib", 4, "b"), idler("ic", 4, "c", 3)]
    made = plan(quota_only(queues, [gpus("in", 4, "a", 9.0, 5)], there, cohorts=trees))
    assert taken(made) == {"ib": "IdleReclaim"}


# Room on nodes.


def racks(*admitted: Admitted, wants: int = 2, **policy: Any) -> Snapshot:
    """Two racks of two nodes; a gang of ``wants`` whole nodes waits for one rack."""
    nodes = [node(f"{r}{i}", r, gpu=8) for r in "ab" for i in range(2)]
    waiting = gang("in", podset(count=wants, required="rack", gpu=8), priority=5, queued_at=9.0)
    main = replace(queue(within=policy.pop("within", NEVER)), **(yields() | policy))
    return world(nodes, [waiting], admitted, main)


def on(name: str, where: str, priority: int = 1, *, idle: bool = False, **rest: Any) -> Admitted:
    made = holding(gang(name, podset(gpu=8), priority=priority), {where: 1}, **rest)
    return replace(made, idle_since=IDLE if idle else None)


def test_idle_gangs_of_one_rack_go_where_that_makes_room() -> None:
    there = (on("i1", "a0", idle=True), on("i2", "b0", idle=True), on("i3", "b1", idle=True))
    made = plan(racks(*there, on("busy", "a1")))
    assert taken(made) == {"i2": "IdleReclaim", "i3": "IdleReclaim"}


def test_none_goes_where_idle_gangs_alone_do_not_make_room_and_nobody_else_may_go() -> None:
    there = (on("i1", "a0", idle=True), on("busy-a", "a1"), on("i2", "b0", idle=True))
    made = plan(racks(*there, on("busy-b", "b1")))
    assert taken(made) == {}


def test_the_idle_one_goes_before_lower_ones_that_work() -> None:
    """Even where the others would have lost less."""
    within = WithinClusterQueue.LOWER_PRIORITY
    low = on("low", "a0", 0, started_at=NOW - 1)
    idle = on("idle", "b0", 4, idle=True, started_at=0.0)
    rest = (on("x", "a1", 9), on("y", "b1", 9))
    made = plan(racks(low, idle, *rest, wants=1, within=within))
    assert taken(made) == {"idle": "IdleReclaim"}
    busy = plan(racks(low, replace(idle, idle_since=None), *rest, wants=1, within=within))
    assert taken(busy) == {"low": "InClusterQueue"}


def test_beside_others_it_is_one_more_candidate() -> None:
    """Two nodes of one rack are needed: one is an idle gang's, the other one's that policy lets go."""
    within = WithinClusterQueue.LOWER_PRIORITY
    there = (on("idle", "a0", idle=True), on("low", "a1", 0))
    made = plan(racks(*there, on("x", "b0", 9), on("y", "b1", 9), within=within))
    assert taken(made) == {"idle": "IdleReclaim", "low": "InClusterQueue"}


def test_the_cheapest_of_the_idle_ones_goes() -> None:
    there = (on("dear", "a0", 3, idle=True), on("cheap", "a1", 2, idle=True))
    made = plan(racks(*there, on("x", "b0"), on("y", "b1"), wants=1))
    assert taken(made) == {"cheap": "IdleReclaim"}


def test_a_broken_gang_takes_nobody_for_idleness() -> None:
    """Only one that waits does; this one is evicted whole, as it is without idle gangs."""
    broken = holding(
        gang("broken", podset(count=2, required="rack", gpu=8), priority=9),
        {"a0": 1, "a1": 1},
        lost=(("w", "a1", 1),),
    )
    nodes = [node("a0", "a", gpu=8), node("a1", "a", gpu=8, ready=False), node("a2", "a", gpu=8)]
    main = replace(queue(within=NEVER), **yields())
    made = plan(world(nodes, [], [broken, on("idle", "a2", idle=True)], main))
    assert taken(made) == {}
    assert [e.uid for e in made.evicted] == ["broken"]


def test_an_idle_gang_that_lost_nodes_gives_way_like_one_that_did_not() -> None:
    """It is repaired before anybody starts, unless evicting it lets somebody in."""
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
    assert taken(made) == {"broken": "IdleReclaim"}
    assert made.admitted == ()
    assert verify(snapshot, made) == ()


def test_who_has_no_claim_to_quota_takes_idle_gangs_and_nobody_else() -> None:
    """It asks for more than its own quota: policy gives it nobody, also where idle gangs alone are not enough."""
    lower = {"within_cluster_queue": WithinClusterQueue.LOWER_PRIORITY}
    queues = [cq("a", 2, **lower), cq("b", 8, **yields())]
    there = [running("low", 4, "a"), idler("idle", 4, "b")]
    assert taken(plan(quota_only(queues, [gpus("in", 8, "a", 9.0, 5)], there))) == {}
    made = plan(quota_only(queues, [gpus("in", 6, "a", 9.0, 5)], there))
    assert taken(made) == {"idle": "IdleReclaim"}


# What is known of a gang that waits, when somebody becomes idle.


@pytest.mark.parametrize("mode", list(ReclaimMode))
def test_a_refuted_gang_is_looked_at_again_when_somebody_becomes_idle(
    searched: list[str], mode: ReclaimMode
) -> None:
    queues = [cq("a", 4, "x", **yields(mode)), cq("b", 4, "y", **yields(mode))]
    waiting = [gpus("in-a", 2, "a", priority=5), gpus("in-b", 2, "b", priority=5)]
    first = quota_only(queues, waiting, [running("has-a", 3, "a"), running("has-b", 3, "b")])
    idle = replace(first.admitted[0], idle_since=IDLE)
    then = replace(first, admitted=(idle, first.admitted[1]))
    assert "in-b" not in again(searched, first, then)
    made = plan(then)
    assert taken(made) == ({"has-a": "IdleReclaim"} if mode in (ON_DEMAND, ALWAYS) else {})
    assert spared(made) == ([("has-a", "in-a")] if mode is DRY_RUN else [])
    assert taken(plan(first)) == {}  # and when it works again


def test_gangs_alike_are_looked_at_by_priority_while_somebody_is_idle(searched: list[str]) -> None:
    """What is proved of one that is no higher than the idle gang says nothing of one that is."""
    queues = [cq("a", 4, **yields())]
    there = [idler("idle", 4, "a", 3)]
    first = quota_only(queues, [gpus("low", 2, "a", 1.0, 2)], there)
    high = Pending(gpus("high", 2, "a", 2.0, 5))
    assert taken(plan(first)) == {}
    assert again(searched, first, replace(first, pending=(*first.pending, high))) == ["high", "low"]


def test_one_idle_gang_is_taken_once() -> None:
    queues = [cq("a", 4, **yields())]
    waiting = [gpus("first", 4, "a", 1.0, 5), gpus("second", 4, "a", 2.0, 5)]
    made = plan(quota_only(queues, waiting, [idler("idle", 4, "a")]))
    assert [(p.victim, p.preemptor) for p in made.preempted] == [("idle", "first")]
    assert [r.reasons[0].code for r in made.pending] == [
        Code.WAITING_FOR_PREEMPTED,
        Code.WAITING_FOR_QUOTA,
    ]
