"""Suggested fixes: each makes the planner start the gang, and one that is marked least cannot be smaller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from queuectl.domain.diagnosis import (
    AddNodes,
    AddQuota,
    Diagnosis,
    FewerPods,
    HealNodes,
    Leave,
    RaisePriority,
    RelaxLevel,
    Remedy,
    SuggestedChange,
    SuggestedFix,
    Withdraw,
    apply_all,
)
from queuectl.domain.fleet import Effect, Taint
from queuectl.domain.queues import (
    Protection,
    QueueingStrategy,
    ReclaimWithinCohort,
    ResourceFlavor,
    WithinClusterQueue,
)
from queuectl.domain.snapshot import CapacityLease, Pending, Snapshot
from queuectl.planner import StopSignal, plan
from queuectl.planner.explain import diagnose, diagnose_those
from tests.planner.build import NOW, gang, holding, node, placed, podset, queue, world
from tests.planner.generate import contested, snapshots
from tests.planner.relaxed import helped, starts

_SLOW = settings(deadline=None, suppress_health_check=list(HealthCheck))


@_SLOW
@given(snapshots(gangs=3) | contested())
def test_every_suggested_fix_makes_the_planner_start_the_gang_or_evict_others_for_it(
    snapshot: Snapshot,
) -> None:
    for diagnosis in diagnose_those(snapshot, _uids(snapshot)):
        for way in diagnosis.suggested_fixes:
            assert helped(apply_all(way.changes, snapshot), diagnosis.uid), way


@_SLOW
@given(snapshots(gangs=2) | contested())
def test_no_smaller_change_than_the_least_is_enough(snapshot: Snapshot) -> None:
    for diagnosis in diagnose_those(snapshot, _uids(snapshot)):
        for way in diagnosis.suggested_fixes:
            for smaller in _smaller(way) if way.least else ():
                assert not starts(apply_all(smaller, snapshot), diagnosis.uid), (way, smaller)


def _uids(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(p.workload.uid for p in snapshot.pending)


def _smaller(way: SuggestedFix) -> Iterator[tuple[SuggestedChange, ...]]:
    """The same changes, one of them a little smaller."""
    for at, change in enumerate(way.changes):
        for less in _less(change):
            yield (*way.changes[:at], *less, *way.changes[at + 1 :])


def _less(change: SuggestedChange) -> Iterator[list[SuggestedChange]]:
    match change:
        case AddQuota():
            yield [replace(change, amount=change.amount - 1)]
        case AddNodes():
            yield [replace(change, count=change.count - 1)]
        case FewerPods():
            yield [replace(change, count=change.count + 1)]
        case HealNodes():
            for name in change.names:
                yield [replace(change, names=tuple(n for n in change.names if n != name))]
        case RaisePriority():
            yield [replace(change, priority=change.priority - 1)]
        case Leave():
            for uid in change.uids:
                yield [replace(change, uids=tuple(u for u in change.uids if u != uid))]


def _way(diagnosis: Diagnosis, remedy: Remedy) -> SuggestedFix:
    (found,) = [w for w in diagnosis.suggested_fixes if w.remedy is remedy]
    return found


def _remedies(diagnosis: Diagnosis) -> list[Remedy]:
    return [w.remedy for w in diagnosis.suggested_fixes]


RACKS = [node(f"{rack}-{i}", rack, gpu=8) for rack in ("r1", "r2") for i in range(4)]


def test_a_gang_too_large_for_the_free_part_of_a_rack_gets_every_fix_by_its_size() -> None:
    running = [
        holding(gang("a", podset("w", 2, gpu=8), priority=1), {"r1-0": 1, "r1-1": 1}),
        holding(gang("b", podset("w", 1, gpu=8)), {"r2-0": 1}),
    ]
    blocked = gang("w0", podset("w", 4, gpu=8, required="rack"))
    diagnosis = diagnose(world(RACKS, [blocked], running), "w0")
    assert [o.limit.value for o in diagnosis.conflict] == ["Topology", "Running"]
    assert _way(diagnosis, Remedy.RELAX_TOPOLOGY).changes == (RelaxLevel("w0", {"w": "block"}),)
    assert _way(diagnosis, Remedy.FEWER_PODS).changes == (FewerPods("w0", "w", 3),)
    nodes = _way(diagnosis, Remedy.ADD_NODES)
    assert (nodes.details["count"], nodes.details["domain"], nodes.least) == (1, "r2", True)
    assert _way(diagnosis, Remedy.END_OTHERS).changes == (Leave(("b",)),)


def test_the_missing_quota_is_exact() -> None:
    running = [holding(gang("a", podset("w", 3, gpu=8)), {"r1-0": 1, "r1-1": 1, "r1-2": 1})]
    blocked = gang("w0", podset("w", 2, gpu=8))
    diagnosis = diagnose(world(RACKS, [blocked], running, queue(gpu=32)), "w0")
    assert [o.limit.value for o in diagnosis.conflict] == ["Quota", "Running"]
    way = _way(diagnosis, Remedy.ADD_QUOTA)
    assert way.changes == (AddQuota("main", "default", "nvidia.com/gpu", 8),)
    assert way.least
    assert way.message == (
        "add 8 nvidia.com/gpu of flavor default to the nominal quota of ClusterQueue main"
    )


def test_quota_that_earlier_gangs_would_take_is_counted() -> None:
    first = gang("w0", podset("w", 4, gpu=8), queued_at=1.0)
    second = gang("w1", podset("w", 2, gpu=8), queued_at=2.0)
    diagnosis = diagnose(world(RACKS, [first, second], [], queue(gpu=8)), "w1")
    way = _way(diagnosis, Remedy.ADD_QUOTA)
    assert [c.amount for c in way.changes if isinstance(c, AddQuota)] in ([8], [40])
    assert starts(apply_all(way.changes, world(RACKS, [first, second], [], queue(gpu=8))), "w1")


@pytest.mark.parametrize(
    ("pods", "offered"),
    [
        (4, True),  # the gang before it lacks one node more than is added
        (3, False),  # it takes what is added
    ],
)
def test_nodes_that_an_earlier_gang_would_take_are_not_offered(pods: int, offered: bool) -> None:
    """Two of four nodes of each rack are taken; two gangs are pending, the later one for three nodes of one rack."""
    running = [
        holding(gang(f"a{rack}", podset("w", 2, gpu=8)), {f"{rack}-0": 1, f"{rack}-1": 1})
        for rack in ("r1", "r2")
    ]
    nodes = [node(f"{rack}-{i}", rack, gpu=8) for rack in ("r1", "r2") for i in range(4)]
    first = gang("w0", podset("w", pods, gpu=8, required="rack"))
    later = gang("w1", podset("w", 3, gpu=8, required="rack"), queued_at=9.0)
    snapshot = world(nodes, [first, later], running, queue(within=WithinClusterQueue.NEVER))
    diagnosis = diagnose(snapshot, "w1", plan=plan(snapshot))
    assert any(way.remedy is Remedy.ADD_NODES for way in diagnosis.suggested_fixes) is offered


def test_a_cordoned_node_is_offered_by_name() -> None:
    nodes = [*RACKS[:3], replace(RACKS[3], unschedulable=True)]
    diagnosis = diagnose(world(nodes, [gang("w0", podset("w", 4, gpu=8))]), "w0")
    way = _way(diagnosis, Remedy.HEAL_NODES)
    assert way.changes == (HealNodes("w0", ("r1-3",)),)
    assert "r1-3 (cordoned)" in way.message


def test_a_blocking_node_selector_is_named() -> None:
    blocked = gang("w0", podset("w", 2, gpu=8, select={"zone": "b"}))
    nodes = [
        replace(n, labels={**n.labels, "zone": "b" if n.name == "r1-0" else "a"}) for n in RACKS
    ]
    diagnosis = diagnose(world(nodes, [blocked]), "w0")
    assert [o.limit.value for o in diagnosis.conflict] == ["NodeRules"]
    assert _way(diagnosis, Remedy.RELAX_RULES).details == {"selector": "zone=b"}


def test_a_taint_that_no_pod_tolerates_is_named() -> None:
    nodes = [replace(n, taints=(Taint("team", Effect.NO_SCHEDULE, "x"),)) for n in RACKS]
    diagnosis = diagnose(world(nodes, [gang("w0", podset("w", 2, gpu=8))]), "w0")
    assert _way(diagnosis, Remedy.RELAX_RULES).message == "add a toleration for the taint team"


def test_a_flavor_that_the_queue_lacks_is_offered() -> None:
    nodes = [replace(n, labels={**n.labels, "model": "a100"}) for n in RACKS]
    flavors = [
        ResourceFlavor("h100", (("model", "h100"),), topology="gpus"),
        ResourceFlavor("a100", (("model", "a100"),), topology="gpus"),
    ]
    blocked = gang("w0", podset("w", 2, gpu=8))
    snapshot = world(nodes, [blocked], [], queue(flavors=["h100"]), flavors=flavors)
    way = _way(diagnose(snapshot, "w0"), Remedy.ALLOW_FLAVOR)
    assert way.details["flavor"] == "a100"
    assert starts(apply_all(way.changes, snapshot), "w0")


def test_behind_the_head_of_a_strict_queue_only_a_higher_priority_helps() -> None:
    strict = queue(strategy=QueueingStrategy.STRICT_FIFO, gpu=64)
    head = gang("w0", podset("w", 9, gpu=8), queued_at=1.0)
    head = replace(head, podsets=(podset("w", 5, gpu=8, required="rack"),))
    running = [holding(gang("a", podset("w", 1, gpu=8)), {"r1-0": 1})]
    small = gang("w1", podset("w", 1, gpu=8), queued_at=2.0)
    nodes = [*RACKS, node("r1-4", "r1", gpu=8)]
    diagnosis = diagnose(world(nodes, [head, small], running, strict), "w1")
    assert [o.limit.value for o in diagnosis.conflict] == ["Order"]
    assert _remedies(diagnosis) == [Remedy.RAISE_PRIORITY]
    assert _way(diagnosis, Remedy.RAISE_PRIORITY).changes == (RaisePriority("w1", 1),)


@pytest.mark.parametrize("most", [None, 5])
@pytest.mark.parametrize(
    ("queued_at", "priority"),
    [
        pytest.param(1.0, 5, id="queued first: an equal priority is enough"),
        pytest.param(3.0, 6, id="queued later"),
    ],
)
def test_the_priority_that_is_suggested_is_the_least(
    queued_at: float, priority: int, most: int | None
) -> None:
    own = gang("w", podset("w", 1, gpu=8), queued_at=queued_at)
    other = gang("x", podset("w", 1, gpu=8), priority=5, queued_at=2.0)
    snapshot = world(
        [node("n", "r1", gpu=8)], [own, other], [], replace(queue(gpu=64), max_priority=most)
    )
    diagnosis = diagnose(snapshot, "w")
    if most is not None and priority > most:
        assert Remedy.RAISE_PRIORITY not in _remedies(diagnosis)
        return
    fix = _way(diagnosis, Remedy.RAISE_PRIORITY)
    assert fix.changes == (RaisePriority("w", priority),)
    assert fix.least
    assert fix.message == f"raise the priority to {priority} or more, to come before team/x (5)"


@pytest.mark.parametrize(
    ("within", "said"),
    [
        (WithinClusterQueue.NEVER, "withinClusterQueue of ClusterQueue main is Never"),
        (WithinClusterQueue.LOWER_PRIORITY, "its priority 5 is not below 0"),
    ],
)
def test_gangs_that_policy_protects_are_named_with_the_policy(
    within: WithinClusterQueue, said: str
) -> None:
    running = [holding(gang("a", podset("w", 8, gpu=8), priority=5), {n.name: 1 for n in RACKS})]
    snapshot = world(RACKS, [gang("w0", podset("w", 1, gpu=8))], running, queue(within=within))
    way = _way(diagnose(snapshot, "w0"), Remedy.END_OTHERS)
    assert way.details["gangs"] == [{"workload": "team/a", "policy": said}]


@pytest.mark.parametrize(
    ("priority", "queued_at", "said"),
    [
        (0, 50.0, "policy allows its eviction, but that alone is not enough"),
        (0, 0.5, "it has the same priority 0 and is not newer"),
        (1, 50.0, "its priority 1 is not below 0"),
    ],
)
def test_an_equal_gang_is_protected_only_if_it_is_not_newer(
    priority: int, queued_at: float, said: str
) -> None:
    policy = queue(within=WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY)
    running = [
        holding(gang("a", podset(gpu=8), priority=priority, queued_at=queued_at), {"r1-0": 1}),
        holding(gang("high", podset("w", 7, gpu=8), priority=9), {n.name: 1 for n in RACKS[1:]}),
    ]
    blocked = gang("w0", podset("w", 8, gpu=8), queued_at=1.0)
    way = _way(diagnose(world(RACKS, [blocked], running, policy), "w0"), Remedy.END_OTHERS)
    assert {"workload": "team/a", "policy": said} in way.details["gangs"]


@pytest.mark.parametrize(
    ("nominal", "theirs", "reclaim", "said"),
    [
        pytest.param(
            64, 64, ReclaimWithinCohort.ANY,
            "ClusterQueue theirs uses no more than its nominal quota", id="within its own",
        ),
        pytest.param(
            64, 32, ReclaimWithinCohort.NEVER, "reclaimWithinCohort of ClusterQueue ours is Never", id="never"
        ),
        pytest.param(
            64, 32, ReclaimWithinCohort.LOWER_PRIORITY, "its priority 5 is not below 0", id="higher"
        ),
        pytest.param(
            0, 32, ReclaimWithinCohort.ANY,
            "ClusterQueue ours would borrow, and must not evict it while borrowing", id="to borrow",
        ),
    ],
)  # fmt: skip
def test_a_gang_of_another_queue_is_named_with_the_rule_that_protects_it(
    nominal: int, theirs: int, reclaim: ReclaimWithinCohort, said: str
) -> None:
    ours = replace(queue("ours", gpu=nominal), cohort="c", reclaim_within_cohort=reclaim)
    others = replace(queue("theirs", gpu=theirs), cohort="c")
    spare = replace(queue("spare", gpu=64), cohort="c")
    low = gang("a", podset("w", 8, gpu=8), priority=5, queue="theirs")
    running = [holding(low, {n.name: 1 for n in RACKS})]
    blocked = gang("w0", podset("w", 1, gpu=8), queue="ours")
    snapshot = world(RACKS, [blocked], running, ours, others, spare)
    way = _way(diagnose(snapshot, "w0"), Remedy.END_OTHERS)
    assert way.details["gangs"] == [{"workload": "team/a", "policy": said}]


def test_a_gang_that_runs_too_short_is_named_with_the_time_its_protection_ends() -> None:
    shielded = replace(queue(), protection=Protection(min_runtime=3600))
    running = [holding(gang("a", podset("w", 8, gpu=8)), {n.name: 1 for n in RACKS})]
    blocked = gang("w0", podset("w", 1, gpu=8), priority=1)
    way = _way(diagnose(world(RACKS, [blocked], running, shielded), "w0"), Remedy.END_OTHERS)
    assert "protected until 1970-01-12T14:46:40Z" in way.message


def test_it_waits_for_gangs_that_leave_anyway() -> None:
    leaving = holding(gang("a", podset("w", 8, gpu=8)), {n.name: 1 for n in RACKS}, leaving=True)
    snapshot = world(RACKS, [gang("w0", podset("w", 8, gpu=8))], [leaving])
    way = diagnose(snapshot, "w0").suggested_fixes[0]
    assert (way.remedy, way.changes) == (Remedy.WAIT, (Leave(("a",)),))


def test_a_gang_for_which_freed_capacity_is_held_is_named() -> None:
    leaving = holding(
        gang("a", podset("w", 4, gpu=8)), {f"r1-{i}": 1 for i in range(4)}, leaving=True
    )
    holder = gang("w0", podset("w", 8, gpu=8), priority=9)
    lease = CapacityLease(placed(holder, {n.name: 1 for n in RACKS}), ("a",), NOW, NOW + 600)
    blocked = gang("w1", podset("w", 4, gpu=8))
    snapshot = world(RACKS, [Pending(holder, lease), blocked], [leaving])
    diagnosis = diagnose(snapshot, "w1")
    assert [o.limit.value for o in diagnosis.conflict] == ["Lease"]
    assert diagnosis.conflict[0].message == "reservations: freed capacity is reserved for team/w0"
    way = _way(diagnosis, Remedy.END_OTHERS)
    assert way.changes == (Withdraw(("w0",)),)
    assert starts(apply_all(way.changes, snapshot), "w1")


def test_a_pod_larger_than_any_node_is_its_own_conflict() -> None:
    diagnosis = diagnose(world(RACKS, [gang("w0", podset("w", 1, gpu=16))]), "w0")
    assert [o.limit.value for o in diagnosis.conflict] == ["Shape"]
    assert diagnosis.suggested_fixes == ()


def test_a_request_beyond_the_whole_fleet_is_stated_with_both_numbers() -> None:
    diagnosis = diagnose(world(RACKS, [gang("w0", podset("w", 9, gpu=8))]), "w0")
    (obstacle,) = diagnosis.conflict
    assert obstacle.message == ("cluster size: 72 nvidia.com/gpu are needed, 8 nodes have 64")
    assert _way(diagnosis, Remedy.ADD_NODES).details["count"] == 1


def test_a_gang_that_starts_or_is_held_has_no_conflict() -> None:
    assert diagnose(world(RACKS, [gang("w0", podset("w", 1, gpu=8))]), "w0") == Diagnosis("w0")
    assert diagnose(world(RACKS), "nobody") == Diagnosis("nobody")


def test_a_stopped_diagnosis_is_marked_as_cut() -> None:
    stop = StopSignal()
    stop.stop()
    blocked = gang("w0", podset("a", 2, gpu=3), podset("b", 30, gpu=5))
    diagnosis = diagnose(world(RACKS, [blocked]), "w0", stop)
    assert diagnosis.cut
    assert diagnosis.suggested_fixes == ()


def test_the_gangs_that_hold_a_quota_without_nodes_are_counted() -> None:
    runs = holding(gang("b0", podset("w", 1, gpu=8)), {})
    blocked = gang("w0", podset("w", 1, gpu=8))
    diagnosis = diagnose(world([], [blocked], [runs], queue("main", gpu=8)), "w0")
    said = "running: 1 gang holds quota of the ClusterQueue and its cohort"
    assert said in [obstacle.message for obstacle in diagnosis.conflict]
