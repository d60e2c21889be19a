"""Suggested fixes by policy: each makes the planner evict exactly the gangs that it names; none changes more than it needs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuectl.domain.diagnosis import (
    AllowPreemption,
    LiftProtection,
    MakePreemptible,
    PolicyField,
    Remedy,
    SuggestedChange,
    SuggestedFix,
    apply_all,
)
from queuectl.domain.queues import (
    ClusterQueue,
    Protection,
    WithinClusterQueue,
)
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner import plan
from queuectl.planner.explain import diagnose
from tests.planner.build import gang, holding, node, podset, queue, world
from tests.planner.generate_cohorts import cohorts
from tests.planner.relaxed import helped

_SLOW = settings(deadline=None, suppress_health_check=list(HealthCheck))
RACKS = [node(f"n{i}", "r", gpu=8) for i in range(4)]


def _ways(snapshot: Snapshot, uid: str = "w0") -> list[SuggestedFix]:
    return [
        w for w in diagnose(snapshot, uid).suggested_fixes if w.remedy is Remedy.ALLOW_PREEMPTION
    ]


def _shielded(snapshot: Snapshot, seed: int) -> Snapshot:
    """The same, where some gangs are protected by their own setting or by their queue."""
    rng = random.Random(seed)
    admitted = tuple(
        replace(a, workload=replace(a.workload, preemptible=rng.random() < 0.7))
        for a in snapshot.admitted
    )
    protections = (
        Protection(),
        Protection(),
        Protection(min_runtime=50),
        Protection(min_runtime=500),
    )
    queues = {
        name: replace(q, protection=rng.choice(protections))
        for name, q in snapshot.config.cluster_queues.items()
    }
    return replace(
        snapshot, admitted=admitted, config=replace(snapshot.config, cluster_queues=queues)
    )


@_SLOW
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_every_change_of_policy_makes_the_planner_evict_those_it_names(
    seed: int, fair: bool, nodes: bool
) -> None:
    snapshot = _shielded(cohorts(seed, fair=fair, nodes=nodes), seed)
    refs = {a.workload.uid: a.workload.ref for a in snapshot.admitted}
    for way in _ways(snapshot, "blocked"):
        changed = apply_all(way.changes, snapshot)
        assert helped(changed, "blocked"), way
        victims = plan(changed).preempted
        named = {row["workload"]: row["gpus"] for row in way.details["gangs"]}
        assert named == {refs[v.victim]: v.cost.gpus for v in victims}
        assert (way.details["count"], way.details["gpus"]) == (len(named), sum(named.values()))


@_SLOW
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_no_change_of_policy_can_be_left_out(seed: int, fair: bool, nodes: bool) -> None:
    snapshot = _shielded(cohorts(seed, fair=fair, nodes=nodes), seed)
    for way in _ways(snapshot, "blocked"):
        for change in way.changes:
            rest = [c for c in way.changes if c != change]
            if _counts_only_beside(change, way):
                continue
            assert not helped(apply_all(rest, snapshot), "blocked"), (way, change)


def _counts_only_beside(change: SuggestedChange, way: SuggestedFix) -> bool:
    """``borrowWithinCohort`` is valid only with ``reclaimWithinCohort``, whether or not that is needed."""
    fields = {c.field for c in way.changes if isinstance(c, AllowPreemption)}
    return (
        isinstance(change, AllowPreemption)
        and change.field is PolicyField.RECLAIM
        and PolicyField.BORROW in fields
    )


# One case per field. Four nodes of 8 GPUs; main has half of the quota by default.

ASKS = podset("w", 1, gpu=8)


def _full(queue_name: str = "main", **about: object) -> list[Admitted]:
    """Four gangs of a node each: b0 in place 0, b1 in place 1, ..."""
    given_ = {"priority": 0, "preemptible": True, "queued_at": 5.0} | about
    return [
        holding(replace(gang(f"b{i}", ASKS, queue=queue_name), **given_), {f"n{i}": 1})  # type: ignore[arg-type]
        for i in range(4)
    ]


def _in_cohort(name: str, gpus: int, **policy: object) -> ClusterQueue:
    return replace(queue(name, gpu=gpus, within=WithinClusterQueue.NEVER), cohort="all", **policy)  # type: ignore[arg-type]


def _blocked(priority: int) -> Workload:
    return gang("w0", ASKS, priority=priority)


@pytest.mark.parametrize(
    ("priority", "value"), [(1, "LowerPriority"), (0, "LowerOrNewerEqualPriority")]
)
def test_a_queue_that_never_evicts_its_own_gets_the_smallest_change(
    priority: int, value: str
) -> None:
    closed = queue(within=WithinClusterQueue.NEVER)
    (way,) = _ways(world(RACKS, [_blocked(priority)], _full(), closed))
    assert way.changes == (AllowPreemption("main", PolicyField.WITHIN, value),)
    assert way.message == (
        f"set withinClusterQueue of ClusterQueue main to {value}; the gang then evicts 1 gang "
        "(8 GPUs, 60 GPU-seconds of lost work): team/b0"
    )
    assert way.details["policy"] == [
        {"clusterQueue": "main", "field": "withinClusterQueue", "value": value}
    ]


@pytest.mark.parametrize(("priority", "value"), [(1, "LowerPriority"), (0, "Any")])
def test_quota_that_others_borrowed_can_be_reclaimed(priority: int, value: str) -> None:
    queues = [_in_cohort("main", 16), _in_cohort("lab", 16)]
    (way,) = _ways(world(RACKS, [_blocked(priority)], _full("lab"), *queues))
    assert way.changes == (AllowPreemption("main", PolicyField.RECLAIM, value),)
    assert (way.details["count"], way.details["gpus"]) == (1, 8)


def test_each_field_that_is_enough_alone_is_suggested() -> None:
    own = holding(gang("b0", ASKS), {"n0": 1})
    borrowing = [holding(gang(f"b{i}", ASKS, queue="lab"), {f"n{i}": 1}) for i in (1, 2, 3)]
    queues = [_in_cohort("main", 24), _in_cohort("lab", 8)]
    assert [
        way.changes for way in _ways(world(RACKS, [_blocked(1)], [own, *borrowing], *queues))
    ] == [
        (AllowPreemption("main", PolicyField.WITHIN, "LowerPriority"),),
        (AllowPreemption("main", PolicyField.RECLAIM, "LowerPriority"),),
    ]


def test_a_gang_that_must_borrow_itself_needs_borrow_within_cohort() -> None:
    queues = [_in_cohort("main", 0), _in_cohort("lab", 0), _in_cohort("spare", 32)]
    (way,) = _ways(world(RACKS, [_blocked(1)], _full("lab"), *queues))
    assert way.changes == (
        AllowPreemption("main", PolicyField.RECLAIM, "LowerPriority"),
        AllowPreemption("main", PolicyField.BORROW, "LowerPriority"),
    )


def test_gangs_within_their_own_quota_are_evicted_only_for_nodes() -> None:
    queues = [_in_cohort("main", 8), _in_cohort("lab", 32)]
    (way,) = _ways(world(RACKS, [_blocked(1)], _full("lab"), *queues))
    assert way.changes == (AllowPreemption("main", PolicyField.ROOM, "true"),)
    assert way.details["policy"] == [
        {"clusterQueue": "main", "field": "evictWithinNominal", "value": True}
    ]


def test_no_change_of_policy_allows_a_gang_to_take_own_quota_of_others() -> None:
    queues = [_in_cohort("main", 0), _in_cohort("lab", 32)]
    snapshot = world(RACKS, [_blocked(9)], _full("lab"), *queues)
    assert _ways(snapshot) == []


def test_a_queue_outside_every_cohort_evicts_no_gang_elsewhere() -> None:
    queues = [queue(within=WithinClusterQueue.NEVER), queue("lab")]
    snapshot = world(RACKS, [_blocked(9)], _full("lab"), *queues)
    assert _ways(snapshot) == []
    (end,) = [w for w in diagnose(snapshot, "w0").suggested_fixes if w.remedy is Remedy.END_OTHERS]
    assert (
        end.details["gangs"][0]["policy"]
        == "ClusterQueue lab shares no cohort with ClusterQueue main"
    )


def test_the_protections_of_the_victims_queue_are_named() -> None:
    shielding = replace(queue(), protection=Protection(min_runtime=3600))
    (way,) = _ways(world(RACKS, [_blocked(1)], _full(), shielding))
    assert way.changes == (LiftProtection("main"),)
    assert way.details["policy"] == [{"clusterQueue": "main", "field": "protection", "value": None}]


def test_only_gangs_that_would_be_evicted_are_named() -> None:
    (way,) = _ways(world(RACKS, [_blocked(1)], _full(preemptible=False)))
    assert way.changes == (MakePreemptible(("b0",)),)
    assert way.details["policy"] == [{"workload": "team/b0", "field": "preemptible", "value": True}]


def test_several_fields_are_named_where_one_is_not_enough() -> None:
    closed = queue(within=WithinClusterQueue.NEVER)
    (way,) = _ways(world(RACKS, [_blocked(1)], _full(preemptible=False), closed))
    assert set(way.changes) == {
        AllowPreemption("main", PolicyField.WITHIN, "LowerPriority"),
        MakePreemptible(("b0",)),
    }


def test_a_gang_that_runs_in_part_frees_only_what_it_holds() -> None:
    """It requests four nodes and runs on three: 24 GPUs, not 32."""
    wide = gang("b0", replace(ASKS, count=4, min_count=1))
    running = holding(wide, {f"n{i}": 1 for i in range(3)})
    (part,) = running.placement.podsets
    running = replace(
        running, placement=replace(running.placement, podsets=(replace(part, pods=3),))
    )
    other_pods = {"n3": RACKS[3].allocatable}
    closed = queue(within=WithinClusterQueue.NEVER)
    snapshot = world(RACKS, [_blocked(1)], [running], closed, other_pods=other_pods)
    (way,) = _ways(snapshot)
    assert way.details["gpus"] == 24
    (end,) = [w for w in diagnose(snapshot, "w0").suggested_fixes if w.remedy is Remedy.END_OTHERS]
    assert end.details["gpus"] == 24
    (preemption,) = plan(apply_all(way.changes, snapshot)).preempted
    assert preemption.cost.gpus == 24
