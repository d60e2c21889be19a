"""Where labels, levels, nodes, quota, requests or objects are missing, each plan and each explanation is made, and the verifier accepts it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from queuectl.control.checked_plan import checked_plan, explained
from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.plan import Plan
from queuectl.domain.quantity import GPU, PODS, Resources
from queuectl.domain.queues import (
    Backfill,
    ClusterQueue,
    Cohort,
    Defragment,
    QueueingStrategy,
    ReclaimWithinCohort,
    ResourceFlavor,
    ResourceGroup,
    Topology,
)
from queuectl.domain.reasons import Code
from queuectl.domain.rules import FairStrategy, Rules
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import (
    Placement,
    PodSet,
    PodSetPlacement,
    Slice,
    TopologyMode,
    TopologyRequest,
)
from queuectl.planner import plan
from queuectl.planner.explain import diagnose
from queuectl.planner.verify import verify
from tests.planner.build import FLAVOR, LEVELS, NOW, gang, holding, node, podset, queue, world
from tests.planner.degenerate import degenerate
from tests.support.examples import EXPLORING

SEEDS = 600 if EXPLORING else 200  # each defect of a snapshot in three of them
MISSING = (
    "all nodes",
    "a level on all nodes",
    "host names",
    "a level of a node",
    "devices of a node",
    "all capacity of a node",
    "readiness of a node",
    "the node of another pod",
    "a level of a topology on all nodes",
    "host names in a topology",
    "all topologies",
    "a flavor of a queue",
    "the document of a cohort",
    "the ClusterQueue of a LocalQueue",
    "all nodes of a flavor",
    "the topology of a flavor, which names none",
    "the topology that a flavor names",
    "the node template of a flavor",
    "the resource groups of a queue",
    "a resource of a queue",
    "the quota of a flavor",
    "the nodes of a reservation",
    "the flavor of a reservation",
    "the level of a reservation",
    "the level of a request",
    "the level of slices",
    "requests",
    "a resource on all nodes",
    "a node that is large enough",
    "a node that a selector matches",
    "the requests of a claim",
    "the class of a claim",
    "the queue of a gang",
    "an excluded node",
    "the node of a lease or planned start",
    "the flavor of a lease",
    "a victim of a lease",
    "the base of a pod",
    "requests of a running gang",
    "the node of a running gang",
    "the flavor of a running gang",
    "the LocalQueue of a running gang",
    "quota of a running gang",
)


@pytest.mark.seeds
@pytest.mark.parametrize("part", range(10))
def test_each_plan_is_made_and_verified_and_each_gang_that_waits_is_explained(part: int) -> None:
    for seed in range(part, SEEDS, 10):
        snapshot, _ = degenerate(seed)
        checked = checked_plan(snapshot)
        assert checked.violations == (), seed
        assert checked.decided.alarms == (), seed
        waiting = frozenset(refusal.uid for refusal in checked.decided.pending)
        assert {one.uid for one in explained(checked, waiting)} <= waiting, seed


@pytest.mark.seeds
def test_everything_that_can_be_missing_is_missing_in_some_snapshots() -> None:
    counted = Counter(what for seed in range(SEEDS) for what in degenerate(seed)[1])
    assert counted.keys() == set(MISSING)
    assert min(counted.values()) >= 3, counted


# Levels that no node has.


def planned(snapshot: Snapshot) -> Plan:
    """The plan, verified; each gang that waits can be explained."""
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    for refusal in made.pending:
        diagnose(snapshot, refusal.uid, plan=made)
        diagnose(snapshot, refusal.uid)
    return made


def reasons(made: Plan) -> Mapping[str, Code]:
    return {refusal.uid: refusal.reasons[0].code for refusal in made.pending}


def unlabeled(made: Node, *labels: str) -> Node:
    left = {key: value for key, value in made.labels.items() if key not in labels}
    return replace(made, labels=left)


def without_requests(name: str = "p", count: int = 1, **topology: Any) -> PodSet:
    made = podset(name, count, **topology)
    return replace(made, shape=replace(made.shape, requests=Resources({PODS: 1})))


@pytest.mark.parametrize("pods", [podset(required="rack", gpu=1), podset(required="block", gpu=1)])
def test_a_required_level_that_no_node_has_never_fits(pods: PodSet) -> None:
    nodes = [unlabeled(node("n0", gpu=8), "rack"), unlabeled(node("n1", gpu=8), "rack")]
    snapshot = world(nodes, [gang("w", pods), gang("x", podset(gpu=1))])
    made = planned(snapshot)
    assert reasons(made) == {"w": Code.SHAPE_NEVER_FITS, "x": Code.SHAPE_NEVER_FITS}


def test_the_name_of_a_domain_can_have_any_number_of_digits() -> None:
    racks = ("rack-2", "rack-10", f"rack-{'9' * 5_000}")
    nodes = [node(f"n{n}", gpu=8, labels={"rack": rack}) for n, rack in enumerate(racks)]
    made = planned(world(nodes, [gang("w", podset(count=3, gpu=8, required="block"))]))
    assert [one.uid for one in made.admitted] == ["w"]


def test_a_gang_waits_where_only_the_node_group_of_its_other_flavor_is_scaled_to_zero() -> None:
    flavors = [
        ResourceFlavor("now", (("pool", "now"),), topology="gpus"),
        ResourceFlavor("later", (("pool", "later"),), topology="pools"),
    ]
    asked = gang("w", podset(required="rack", gpu=8))
    nodes = [node("n0", gpu=8, labels={"pool": "now"})]
    running = holding(gang("r", podset(gpu=1)), {"n0": 1}, flavor="now")
    main = queue(flavors=["now", "later"])
    snapshot = world(nodes, [asked], [running], main, flavors=flavors)
    pools = {"gpus": Topology("gpus", LEVELS), "pools": Topology("pools", ("zone", "rack"))}
    snapshot = replace(snapshot, config=replace(snapshot.config, topologies=pools))
    assert reasons(planned(snapshot)) == {"w": Code.TOPOLOGY_PLACEMENT_FAILED}


def ignoring(snapshot: Snapshot) -> Snapshot:
    """With a queue that ignores what it does not cover, so that pods without requests have no flavor."""
    return replace(snapshot, config=replace(snapshot.config, rules=Rules(ignore_undeclared=True)))


def of_gpus(**fields: Any) -> ClusterQueue:
    """A queue of GPUs alone."""
    made = queue(**fields)
    (group,) = made.groups
    return replace(made, groups=(ResourceGroup(("nvidia.com/gpu",), group.flavors),))


@pytest.mark.parametrize("others", [(), (podset("q", 2, gpu=1),)], ids=["alone", "beside others"])
def test_a_job_without_requests_and_with_a_misspelled_level_stops_no_other_gang(
    others: Sequence[PodSet],
) -> None:
    """Also where gangs could be moved for it."""
    wrong = gang("w", without_requests(required="rak"), *others, priority=5)
    busy = gang("r", podset(gpu=4))
    of_r = PodSetPlacement("w", (("n0", 1),), {GPU: FLAVOR})  # its queue covers no other resource
    running = Admitted(busy, Placement((of_r,)), started_at=NOW)
    nodes = [node("n0", gpu=8), node("n1", "b/r2", gpu=8)]
    main = replace(of_gpus(), defragment=Defragment.PLAN)
    made = planned(ignoring(world(nodes, [wrong, gang("x", podset(gpu=1))], [running], main)))
    assert reasons(made) == {"w": Code.SHAPE_NEVER_FITS}
    assert [start.uid for start in made.admitted] == ["x"]


@pytest.mark.parametrize("level", [HOSTNAME, "rack"])
def test_without_a_flavor_the_levels_of_a_request_count_as_one_topology(level: str) -> None:
    """No topology of the configuration has both levels, so none of them counts, as one with a level that no node has."""
    asked = TopologyRequest(TopologyMode.REQUIRED, "pod", (Slice(level, 2),), balanced=True)
    pods = replace(without_requests(count=4), topology=asked)
    nodes = [node(f"n{i}", f"b/r{i}", labels={"pod": "p0"}) for i in range(2)]
    snapshot = ignoring(world(nodes, [gang("w", pods)], [], of_gpus()))
    topologies = {"other": Topology("other", ("nowhere", "rack", HOSTNAME))}
    snapshot = replace(snapshot, config=replace(snapshot.config, topologies=topologies))
    assert [start.uid for start in planned(snapshot).admitted] == ["w"]


# Lost nodes.


def reclaiming(pending: Sequence[Any]) -> Snapshot:
    """Two gangs of a borrowing queue lost their node; the owner of the quota can evict them; two nodes are left."""
    owner = replace(
        queue("own", gpu=8), cohort="all", reclaim_within_cohort=ReclaimWithinCohort.ANY
    )
    guest = replace(queue("guest", gpu=4), cohort="all")
    nodes = [node("n1", gpu=4), node("n2", gpu=4), node("n9", gpu=8, ready=False)]
    broken = [
        holding(gang(f"r{i}", podset(gpu=4), queue="guest"), {"n9": 1}, lost=(("w", "n9", 1),))
        for i in range(2)
    ]
    snapshot = world(nodes, pending, broken, replace(owner, reclaim_patience=0.0), guest)
    return replace(snapshot, config=replace(snapshot.config, cohorts={"all": Cohort("all")}))


@pytest.mark.parametrize("first", [4.0, 6.0], ids=["before", "after"])
def test_jobs_that_match_no_flavor_stay_refused_when_repairs_are_undone_for_another_gang(
    first: float,
) -> None:
    owner = gang("owner", podset(gpu=4), priority=5, queued_at=5.0, queue="own")
    wrong = [
        gang(f"typo{at:.0f}", podset(gpu=1, fpga=1), priority=5, queued_at=at, queue="own")
        for at in (first, 9.0)
    ]
    made = planned(reclaiming([owner, *wrong]))
    assert reasons(made) == dict.fromkeys((w.uid for w in wrong), Code.NO_MATCHING_FLAVOR)
    assert {start.uid for start in made.admitted} == {"r0", "owner"}
    assert [gone.uid for gone in made.evicted] == ["r1"]


def test_a_gang_whose_nodes_are_all_gone_is_evicted() -> None:
    lost = holding(gang("r", podset(gpu=1)), {"n0": 1}, lost=(("w", "n0", 1),))
    assert [gone.uid for gone in planned(world([], [], [lost])).evicted] == ["r"]


def test_the_lost_pods_of_a_gang_get_nodes_after_its_flavor_has_become_quota_only() -> None:
    lost = holding(gang("r", podset("w", 2, gpu=1)), {"n0": 1, "n1": 1}, lost=(("w", "n0", 1),))
    flavors = [ResourceFlavor("default")]
    made = planned(world([node("n1", gpu=8)], [], [lost], flavors=flavors))
    assert made.admitted[0].placement.podsets[0].by_node == {"n1": 2}


def test_lost_pods_join_those_that_stay_after_the_labels_of_nodes_have_changed() -> None:
    """Two racks hold the gang by now, which required one when it started; the other nodes have no rack."""
    wide = gang("r", podset("w", 3, required="rack", gpu=4))
    lost = holding(wide, {"n0": 1, "n1": 1, "n9": 1}, lost=(("w", "n9", 1),))
    nodes = [node("n0", "b/r1", gpu=8), node("n1", "b/r2", gpu=4), node("n2", "b/r3", gpu=8)]
    made = planned(world(nodes, [], [lost]))
    assert made.admitted[0].placement.podsets[0].by_node == {"n0": 2, "n1": 1}


# Flavors that a queue has no longer.


def test_a_gang_is_not_moved_if_its_queue_no_longer_has_its_flavor() -> None:
    """Another queue of the cohort still has it, so that there is quota."""
    flavors = [ResourceFlavor("default", topology="gpus"), ResourceFlavor("old", topology="gpus")]
    nodes = [node("n0", "b/r0", gpu=8), node("n1", "b/r1", gpu=8)]
    wide = gang("w", podset(count=1, required=HOSTNAME, gpu=8))
    main = queue(flavors=["default"])
    main = replace(main, defragment=Defragment.EXECUTE, defragment_budget=10**9, cohort="all")
    other = replace(queue("other", flavors=["old"]), cohort="all")
    for flavor, moved in (("default", True), ("old", False)):
        small = [
            holding(gang(f"r{i}", podset(gpu=2)), {f"n{i}": 1}, flavor=flavor) for i in range(2)
        ]
        made = planned(world(nodes, [wide], small, main, other, flavors=flavors))
        assert bool(made.moved) is moved


# Fair sharing.


@pytest.mark.parametrize("strategies", [(), tuple(FairStrategy)], ids=["classic", "fair sharing"])
def test_two_queues_of_a_backfill_cohort_wait_in_one_line(
    strategies: tuple[FairStrategy, ...],
) -> None:
    queues = [
        replace(queue(name), cohort="all", strategy=QueueingStrategy.BACKFILL) for name in "ab"
    ]
    waiting = [
        gang("first", podset(gpu=8), queue="a", queued_at=1.0),
        gang("second", podset(gpu=1), queue="b", queued_at=2.0),
    ]
    running = holding(gang("r", podset(gpu=1), queue="a"), {"n0": 1})
    snapshot = world([node("n0", gpu=8)], waiting, [running], *queues)
    config = replace(
        snapshot.config,
        cohorts={"all": Cohort("all", backfill=Backfill())},
        rules=Rules(fair_sharing=strategies),
    )
    made = planned(replace(snapshot, config=config))
    assert reasons(made) == {
        "first": Code.TOPOLOGY_PLACEMENT_FAILED,
        "second": Code.WOULD_DELAY,
    }
