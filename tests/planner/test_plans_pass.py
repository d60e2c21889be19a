"""Situations in which the planner and the verifier must apply the same rule, though neither reads the code of the other."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from queuectl.domain.budgets import units_of
from queuectl.domain.checks import EXTERNAL, AdmissionCheck, CheckRule
from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.plan import Plan
from queuectl.domain.queues import (
    ClusterQueue,
    QueueingStrategy,
    ReclaimWithinCohort,
    ResourceFlavor,
    Topology,
    WithinClusterQueue,
)
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import NO_END, Admitted, CapacityLease, Pending, Snapshot
from queuectl.domain.workload import Duration, Placement, PodSetPlacement, Workload
from queuectl.planner import plan
from queuectl.planner.verify import PlanRule, verify
from tests.planner.backfill_clock import job, line
from tests.planner.build import FLAVOR, NOW, gang, holding, node, placed, podset, queue, world
from tests.planner.queues import GPUS, cohort, cq, gpus, quota_only, running
from tests.planner.test_budgets import budget, spending
from tests.planner.test_elastic import base, rank
from tests.planner.test_repair_precedence import outcome

ANY = ReclaimWithinCohort.ANY
LOWER = WithinClusterQueue.LOWER_PRIORITY


def planned(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


def why(made: Plan, uid: str) -> Code:
    return next(r.reasons[0].code for r in made.pending if r.uid == uid)


def of_cohort(name: str, **policy: Any) -> ClusterQueue:
    """A ClusterQueue with two GPUs of its own whose gangs evict no gang of their own ClusterQueue."""
    made = queue(name, gpu=2, within=WithinClusterQueue.NEVER)
    return replace(made, cohort="all", **policy)


# Repairs that evict broken gangs.


def on_lost_node(uid: str, priority: int, where: dict[str, int], gpu: int = 4) -> Admitted:
    """Its pods on n1 are lost."""
    workload = gang(uid, podset(count=sum(where.values()), gpu=gpu), priority=priority)
    return holding(workload, where, lost=(("w", "n1", where["n1"]),))


@pytest.mark.parametrize("size", [4, 8])
def test_a_broken_gang_that_a_repair_evicts_is_not_repaired_as_well(size: int) -> None:
    nodes = [node("n0", gpu=8), node("n1", gpu=16, ready=False)]
    high = on_lost_node("high", 5, {"n1": 1}, gpu=size)
    low = on_lost_node("low", 0, {"n0": 2, "n1": 1})
    made = planned(world(nodes, [], [high, low]))
    assert outcome(made) == {"high": "leased", "low": "victim"}


def test_a_broken_gang_is_repaired_if_the_repair_that_evicted_it_is_undone() -> None:
    """``urgent`` takes the room of ``high``, alongside which the lost pod of ``low`` fits."""
    nodes = [node("n0", gpu=12), node("n1", gpu=16, ready=False)]
    high = on_lost_node("high", 5, {"n1": 1}, gpu=8)
    low = on_lost_node("low", 0, {"n0": 1, "n1": 1})
    alone = planned(world(nodes, [], [high, low]))
    assert outcome(alone) == {"high": "repaired", "low": "evicted"}
    tall = on_lost_node("high", 5, {"n1": 1}, gpu=12)
    assert outcome(planned(world(nodes, [], [tall, low]))) == {"high": "leased", "low": "victim"}
    urgent = gang("urgent", podset(gpu=4), priority=9)
    made = planned(world(nodes, [urgent], [tall, low]))
    assert outcome(made) == {"urgent": "starts", "high": "evicted", "low": "repaired"}


def test_a_repair_is_not_undone_if_another_gang_has_a_reservation_where_its_victim_runs() -> None:
    """``broken`` and ``small`` wait for the node of ``low``. ``urgent`` wants that of the other pod of ``broken``."""
    nodes = [
        node("n0", gpu=8),
        node("n1", gpu=8, ready=False),
        node("n2", gpu=4, labels={"of": "urgent"}),
    ]
    lost = on_lost_node("broken", 4, {"n1": 1, "n2": 1}, gpu=4)
    low = holding(gang("low", podset(gpu=8)), {"n0": 1})
    small = gang("small", podset(gpu=4), priority=6)
    urgent = gang("urgent", podset(gpu=4, select={"of": "urgent"}), priority=5)
    alone = planned(world(nodes, [urgent], [lost, low]))
    assert outcome(alone) == {"broken": "victim", "urgent": "leased"}
    made = planned(world(nodes, [small, urgent], [lost, low]))
    assert outcome(made) == {
        "broken": "leased",
        "low": "victim",
        "small": "leased",
        "urgent": "waits",
    }


def test_a_repair_evicts_no_gang_of_another_queue_while_its_own_borrows() -> None:
    """As a pending gang of its queue: both use more than their own."""
    nodes = [node("n0", gpu=4), node("n1", gpu=8, ready=False)]
    queues = [
        of_cohort("own", reclaim_within_cohort=ANY, preempts_to_borrow=True),
        of_cohort("other"),
        of_cohort("third"),
    ]
    lost = gang("broken", podset(gpu=4), queue="own")
    other = holding(gang("other", podset(gpu=4), queue="other"), {"n0": 1})
    snapshot = world(nodes, [], [holding(lost, {"n1": 1}, lost=(("w", "n1", 1),)), other], *queues)
    assert outcome(planned(snapshot)) == {"broken": "evicted"}


# Gangs that are held for admission checks.


def with_check(snapshot: Snapshot) -> Snapshot:
    """Each gang needs the check ``license``."""
    queues = {
        name: replace(one, admission_checks=(CheckRule("license"),))
        for name, one in snapshot.config.cluster_queues.items()
    }
    checks = {"license": AdmissionCheck("license", EXTERNAL)}
    return replace(snapshot, config=replace(snapshot.config, cluster_queues=queues, checks=checks))


def ready(workload: Workload, **options: Any) -> Pending:
    return Pending(workload, ready_checks=frozenset({"license"}), **options)


def test_a_gang_that_is_held_for_its_checks_has_no_known_end() -> None:
    first, second = job("first", 1, 100, gpu=8), job("second", 1, 100, gpu=8, queued_at=1.0)
    snapshot = world([node("n0", gpu=8)], [first, second], [], line())
    assert [p.uid for p in planned(snapshot).planned] == ["second"]
    made = planned(with_check(snapshot))
    assert (why(made, "first"), made.planned) == (Code.WAITING_FOR_CHECKS, ())
    assert [
        p.uid
        for p in planned(
            with_check(replace(snapshot, pending=(ready(first), *snapshot.pending[1:])))
        ).planned
    ] == ["second"]


def test_a_gang_is_not_held_for_its_checks_where_a_planned_start_needs_its_nodes() -> None:
    """It is shorter than the time until that start, but its checks can take longer."""
    busy = replace(
        holding(job("busy", 1, None, gpu=4), {"n0": 1}), ends_at=NOW + 1000, end_enforced=True
    )
    large, short = job("large", 1, 100, gpu=8), job("short", 1, 60, gpu=4, queued_at=1.0)
    snapshot = with_check(world([node("n0", gpu=8)], [large, short], [busy], line()))
    made = planned(snapshot)
    (refusal,) = [r for r in made.pending if r.uid == "short"]
    assert refusal.reasons[0].code is Code.WOULD_DELAY
    assert "admission checks are ready: license" in refusal.reasons[0].message
    ready_now = replace(snapshot, pending=(Pending(large), ready(short)))
    assert [a.uid for a in planned(ready_now).admitted] == ["short"]


def test_equal_gangs_differ_in_the_checks_that_are_ready() -> None:
    """The first is held, and not so the second: the refusal of a gang whose checks are not ready does not hold for it."""
    busy = replace(
        holding(job("busy", 1, None, gpu=4), {"n0": 1}), ends_at=NOW + 1000, end_enforced=True
    )
    large = job("large", 1, 100, gpu=8)
    alike = [job(f"short{i}", 1, 60, gpu=2, queued_at=float(i)) for i in (1, 2, 3)]
    pending = [Pending(large), Pending(alike[0]), ready(alike[1]), Pending(alike[2])]
    made = planned(with_check(world([node("n0", gpu=8)], pending, [busy], line())))
    assert [a.uid for a in made.admitted] == ["short2"]


@pytest.mark.parametrize("both", [False, True])
def test_a_rank_does_not_start_while_a_lower_one_is_held_for_its_checks(both: bool) -> None:
    machines = [node(f"n{i}", gpu=8) for i in range(3)]
    second = Pending(rank(2)) if both else ready(rank(2))
    snapshot = with_check(world(machines, [Pending(rank(1)), second], [holding(base(), {"n0": 1})]))
    made = planned(snapshot)
    assert made.admitted == ()
    expected = Code.WAITING_FOR_CHECKS if both else Code.WAITING_IN_ORDER
    assert [why(made, uid) for uid in ("train.001", "train.002")] == [
        Code.WAITING_FOR_CHECKS,
        expected,
    ]


# Budgets.


def test_the_last_gang_on_a_budget_can_be_one_that_waits_for_its_victims() -> None:
    """An hour is left: ``small`` uses a part, and ``large`` may exceed it because it is the last."""
    victim = holding(gang("low", podset(gpu=8), queue="main"), {"n0": 1})
    small = replace(gang("small", podset(gpu=1), priority=9), duration=Duration(600.0, True))
    large = replace(
        gang("large", podset(gpu=8), priority=5, queued_at=1.0), duration=Duration(36_000.0, True)
    )
    late = replace(gang("late", podset(gpu=1), queued_at=2.0), duration=Duration(60.0, True))
    made = spending(budget(2), [small, large, late], [replace(victim, ends_at=NOW + 1)])
    made = replace(made, fleet=world([node("n0", gpu=8), node("n1", gpu=2)]).fleet)
    found = planned(made)
    assert outcome(found) == {
        "small": "starts",
        "large": "leased",
        "low": "victim",
        "late": "waits",
    }
    assert why(found, "late") is Code.BUDGET_SPENT


def test_the_verifier_names_two_gangs_that_both_exceed_a_budget() -> None:
    """Of which one waits for its victims."""
    granted = budget(1)
    first, second = (
        replace(gang(uid, podset(gpu=8)), duration=Duration(36_000.0, True)) for uid in "ab"
    )
    snapshot = spending(granted, [first, second], spent=0.5)
    starts = planned(replace(snapshot, pending=snapshot.pending[:1])).admitted
    lease = CapacityLease(placed(second, {"n1": 1}), (), NOW, NO_END)
    refusal = planned(snapshot).pending[0]
    made = Plan(admitted=starts, pending=(replace(refusal, lease=lease),))
    assert PlanRule.BUDGET in {v.rule for v in verify(snapshot, made)}
    assert units_of(Fraction(1)) < 80 * units_of(Fraction(1))


def test_a_gang_that_migrates_is_charged_to_its_budget_once() -> None:
    """Its run until its end is counted where it runs now."""
    moving = holding(gang("moving", podset(gpu=8)), {"n0": 1}, leaving=True)
    lease = CapacityLease(placed(moving.workload, {"n1": 1}), (), NOW, NO_END)
    starts = replace(gang("starts", podset(gpu=1)), duration=Duration(3600.0, True))
    snapshot = spending(budget(2), [starts], [replace(moving, lease=lease, returns=True)])
    made = planned(snapshot)
    assert ([a.uid for a in made.admitted], made.returning) == (["starts"], ("moving",))


# Levels of topologies.


def test_a_planned_start_is_uneven_if_no_even_one_is_earlier() -> None:
    nodes = [node("n0", gpu=2), node("n1", gpu=6)]
    busy = replace(holding(job("busy", 1, None, gpu=6), {"n1": 1}), ends_at=NOW + 60)
    even = gang("even", podset(count=4, gpu=2, required="rack", balanced=True))
    even = replace(even, duration=Duration(60.0, enforced=True))
    made = planned(world(nodes, [even], [busy], line()))
    (start,) = [p.start for p in made.planned]
    assert dict(start.placement.podsets[0].nodes) == {"n0": 1, "n1": 3}


def without_rack(snapshot: Snapshot) -> Snapshot:
    topologies = {"gpus": Topology("gpus", ("block", HOSTNAME))}
    return replace(snapshot, config=replace(snapshot.config, topologies=topologies))


@pytest.mark.parametrize(
    "asked",
    [
        {"slices": (("rack", 2),)},
        {"required": "rack"},
        {"required": "rack", "balanced": True},
        {"required": "block", "slices": (("rack", 2),), "balanced": True},
    ],
    ids=["slices", "required", "balanced", "balanced slices"],
)
def test_a_gang_is_repaired_by_the_levels_that_its_topology_still_has(
    asked: dict[str, Any],
) -> None:
    """With the level ``rack`` no placement would be found: the other pods are in rack a."""
    nodes = [node(f"a{i}", "b/a", gpu=8, ready=i != 1) for i in range(4)]
    nodes.append(node("c0", "b/c", gpu=8))
    workload = gang("g", podset(count=4, gpu=8, **asked))
    running = holding(workload, {f"a{i}": 1 for i in range(4)}, lost=(("w", "a1", 1),))
    snapshot = world(nodes, [], [running])
    assert outcome(planned(snapshot)) == {"g": "evicted"}
    made = planned(without_rack(snapshot))
    assert outcome(made) == {"g": "repaired"}
    assert made.admitted[0].placement.podsets[0].by_node == {"a0": 1, "c0": 1, "a2": 1, "a3": 1}


def test_a_lease_ends_when_the_topology_of_its_flavor_loses_the_level_of_its_gang() -> None:
    workload = gang("g", podset(count=2, gpu=8, required="rack"))
    lease = CapacityLease(placed(workload, {"n0": 1, "n1": 1}), ("v",), NOW, NOW + 60)
    leaving = holding(gang("v", podset(gpu=8)), {"n0": 1}, leaving=True)
    snapshot = world([node("n0", gpu=8), node("n1", gpu=8)], [Pending(workload, lease)], [leaving])
    assert planned(snapshot).pending[0].lease == lease
    made = planned(without_rack(snapshot))
    assert (made.pending[0].lease, why(made, "g")) == (None, Code.NO_MATCHING_FLAVOR)


def test_a_lease_ends_when_its_clusterqueue_no_longer_has_its_flavor() -> None:
    workload = gang("g", podset(gpu=8))
    lease = CapacityLease(placed(workload, {"n0": 1}), ("v",), NOW, NOW + 60)
    leaving = holding(gang("v", podset(gpu=8)), {"n0": 1}, leaving=True)
    flavors = [ResourceFlavor(name, topology="gpus") for name in (FLAVOR, "other")]
    snapshot = world(
        [node("n0", gpu=8)],
        [Pending(workload, lease)],
        [leaving],
        queue(flavors=("other",)),
        flavors=flavors,
    )
    (refusal,) = planned(snapshot).pending
    assert refusal.lease is not None
    assert refusal.lease.placement.podsets[0].charged == {"other"}


def test_a_flavor_without_topology_is_not_held_back_by_a_gang_that_asks_for_a_level() -> None:
    """The head cannot use it, so that it is not a flavor on which later gangs would pass the head."""
    flavors = [ResourceFlavor(FLAVOR, topology="gpus"), ResourceFlavor("cloud")]
    both = queue(flavors=(FLAVOR, "cloud"), strategy=QueueingStrategy.STRICT_FIFO)
    busy = holding(gang("busy", podset(gpu=8), priority=9), {"n0": 1})
    head = gang("head", podset(count=1, gpu=8, preferred="rack"), priority=5)
    free = gang("free", podset(gpu=8))
    snapshot = world([node("n0", gpu=8)], [head, free], [busy], both, flavors=flavors)
    assert outcome(planned(snapshot)) == {"head": "waits", "free": "starts"}


Use = tuple[int, int]
"""GPUs and CPUs of a pod."""


@pytest.mark.parametrize(
    ("counts", "other", "running"),
    [
        ((1, 3, 1), (1, 4), [(2, 4), (2, 6), (1, 4), (2, 4)]),
        ((2, 3, 2), (0, 4), [(2, 4), (2, 1), (2, 4), (4, 6)]),
        ((3, 3, 2), (0, 4), [(4, 6), (2, 6), (1, 6), (4, 6)]),
    ],
)
def test_victims_are_found_for_a_group_of_podsets_that_prefers_one_node(
    counts: tuple[int, int, int], other: Use, running: list[Use]
) -> None:
    """Two of its three podsets have pods of one shape."""
    preferred = podset(preferred=HOSTNAME).topology
    shapes: list[Use] = [(2, 1), other, (2, 1)]
    podsets = [
        replace(podset(f"p{i}", count, gpu=gpu, cpu=cpu), topology=preferred, group="g")
        for i, (count, (gpu, cpu)) in enumerate(zip(counts, shapes, strict=True))
    ]
    busy = [
        holding(gang(f"r{i}", podset(gpu=gpu, cpu=cpu)), {f"n{i}": 1})
        for i, (gpu, cpu) in enumerate(running)
    ]
    nodes = [node(f"n{i}", gpu=4, cpu=8) for i in range(4)]
    made = planned(world(nodes, [gang("wanted", *podsets, priority=9)], busy))
    assert outcome(made)["wanted"] == "leased"


# Gangs of other ClusterQueues.


def test_a_victim_is_judged_by_the_use_before_a_later_eviction() -> None:
    """``other`` borrows while both of its gangs run; then ``room`` takes the nodes of ``broken``, which ends its repair."""
    nodes = [node("n0", gpu=4), node("n1", gpu=2, ready=False)]
    queues = [
        of_cohort("own", reclaim_within_cohort=ANY, reclaim_patience=0.0),
        of_cohort("other"),
        of_cohort("third", evicts_within_nominal=True),
    ]
    on_other = [gang(uid, podset(gpu=2), queue="other") for uid in ("broken", "runs")]
    running_gangs = [
        holding(on_other[0], {"n1": 1}, lost=(("w", "n1", 1),)),
        holding(on_other[1], {"n0": 1}),
    ]
    first = gang("first", podset(gpu=2), queue="own", priority=5)
    room = gang("room", podset(gpu=2), queue="third", priority=4)
    made = planned(world(nodes, [first, room], running_gangs, *queues))
    assert outcome(made) == {
        "first": "leased",
        "runs": "victim",
        "room": "starts",
        "broken": "evicted",
    }


def test_no_gang_is_evicted_whose_queue_has_a_reservation_that_would_yield_to_it() -> None:
    """``victim`` would return within the own quota of its queue, once it has evicted ``low``, which starts in this plan."""
    queues = [
        cq("a", 4, reclaim_within_cohort=ANY),
        cq("b", 2, reclaim_within_cohort=ANY, within_cluster_queue=LOWER),
    ]
    low = gpus("low", 2, "b", priority=-1)
    lease = CapacityLease(
        Placement((PodSetPlacement("w", (), {GPUS: FLAVOR}),)), (), NOW, NOW + 60.0
    )
    first = gpus("first", 4, "a", priority=0)
    ahead = gpus("ahead", 6, "b", priority=9)  # so that the queue of low is considered after first
    victim = running("victim", 2, "b", priority=5)
    snapshot = quota_only(
        queues, [first, ahead, Pending(low, lease)], [victim], cohorts=(cohort("all"),)
    )
    made = planned(snapshot)
    assert outcome(made) == {"first": "waits", "ahead": "waits", "low": "starts"}


def test_a_gang_that_has_waited_to_reclaim_is_not_refused_with_a_newer_equal_one() -> None:
    """Both wait for the quota that ``borrower`` has of their ClusterQueue; only ``new`` has begun now."""
    queues = [cq("a", 2, reclaim_within_cohort=ANY, reclaim_patience=30.0), cq("b", 0)]
    new = Pending(gpus("new", 2, "a", priority=5), reclaim_since=None)
    old = Pending(gpus("old", 2, "a", priority=0), reclaim_since=NOW - 100.0)
    borrower = replace(running("borrower", 2, "b", priority=5), started_at=NOW - 1000.0)
    made = planned(quota_only(queues, [new, old], [borrower], cohorts=(cohort("all"),)))
    assert outcome(made) == {"new": "waits", "old": "leased", "borrower": "victim"}
