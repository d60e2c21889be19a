"""Splitting: where a ClusterQueue allows it, pods of one podset use several flavors; a single flavor is always preferred."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from queuectl.domain.fleet import HOSTNAME, Taint
from queuectl.domain.plan import Proof
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import (
    ClusterQueue,
    FlavorQuotas,
    Fungibility,
    QueueingStrategy,
    ResourceFlavor,
    ResourceGroup,
    Topology,
    WhenCan,
    WithinClusterQueue,
)
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import (
    PodSetPlacement,
    TopologyMode,
    TopologyRequest,
)
from queuectl.planner import plan
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import gang, holding, podset, queue, world
from tests.planner.documents import Doc, cluster_queue, flavor, planned, workload
from tests.planner.plans import lease
from tests.planner.splits import A, B, C, broken, by_flavor, charged, on, splitting, started

# Quota alone: no nodes are given, each pod requests one GPU.

QUOTAS: list[tuple[str, dict[str, Doc | int], dict[str, int] | None]] = [
    ("the first flavor holds it", {"a": 8, "b": 8}, {"a": 8}),
    ("a less preferred flavor holds it whole", {"a": 7, "b": 8}, {"b": 8}),
    ("no flavor holds it whole", {"a": 5, "b": 6}, {"a": 5, "b": 3}),
    ("not even together", {"a": 4, "b": 3}, None),
    ("one flavor has nothing", {"a": 0, "b": 5, "c": 4}, {"b": 5, "c": 3}),
    ("three flavors", {"a": 2, "b": 3, "c": 7}, {"a": 2, "b": 3, "c": 3}),
    ("the last flavor is not needed", {"a": 3, "b": 6, "c": 6}, {"a": 3, "b": 5}),
]


@pytest.mark.parametrize(
    ("flavors", "expected"), [row[1:] for row in QUOTAS], ids=[row[0] for row in QUOTAS]
)
def test_as_many_pods_as_possible_use_the_more_preferred_flavor(
    flavors: Mapping[str, Doc | int], expected: dict[str, int] | None
) -> None:
    made = planned(
        *map(flavor, flavors),
        cluster_queue("q", flavors=flavors, policy={"splitFlavors": True}),
        workload("g", "q", 8),
    )
    if expected is None:
        assert made.waiting == {"g": "ExceedsMaxQuota"}
        return
    podset = made.podset("g")
    whole = [{"count": 8, "flavors": podset["flavors"]}]
    written = podset.get("shares", whole)
    assert {s["flavors"][GPU]: s["count"] for s in written} == expected
    assert podset["flavors"] == written[0]["flavors"]


def test_without_the_policy_the_gang_waits() -> None:
    offered: dict[str, Doc | int] = {"a": 5, "b": 6}
    made = planned(
        *map(flavor, offered), cluster_queue("q", flavors=offered), workload("g", "q", 8)
    )
    assert made.waiting == {"g": "ExceedsMaxQuota"}


# Nodes. Each flavor has its own; a node has 4 GPUs.

EIGHT = podset(count=8, gpu=1)
RACK = podset(count=8, required="rack", gpu=1)
NODES = [
    ("whole where it fits whole", EIGHT, [("a", "r"), ("b", "r"), ("b", "r")], {"b": 8}),
    ("split where it does not", EIGHT, [("a", "r"), ("b", "r")], {"a": 4, "b": 4}),
    ("in one required rack", RACK, [("a", "r"), ("b", "r")], {"a": 4, "b": 4}),
    ("not over two required racks", RACK, [("a", "r"), ("b", "s")], None),
    (
        "the rack with more of the preferred flavor",
        replace(RACK, count=10),
        [("a", "r"), *[("b", "r")] * 2, *[("a", "s")] * 2, ("b", "s")],
        {"a": 8, "b": 2},
    ),
    (
        "another rack, when the preferred flavor's leaves too little alongside it",
        replace(RACK, count=10),
        [*[("a", "r")] * 2, ("a", "s"), *[("b", "s")] * 2],
        {"a": 4, "b": 6},
    ),
    ("a preferred rack is best effort", podset(count=8, preferred="rack", gpu=1),
     [("a", "r"), ("b", "s")], {"a": 4, "b": 4}),
    ("a slice is not cut", podset(count=9, slices=[("rack", 3)], gpu=1),
     [("a", "r"), *[("b", "s")] * 2], {"a": 3, "b": 6}),
    ("a slice on one node is not cut", podset(count=6, slices=[(HOSTNAME, 2)], gpu=1),
     [("x", "r"), ("b", "r")], {"a": 2, "b": 4}),
    ("slices leave pods over", podset(count=6, slices=[("rack", 3)], gpu=2),
     [("a", "r"), ("a", "r"), ("b", "s")], None),
    ("pods too large for the nodes of a flavor", podset(count=3, gpu=4),
     [("a", "r"), ("a", "r"), ("b", "s")], {"a": 2, "b": 1}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "where", "expected"), [row[1:] for row in NODES], ids=[row[0] for row in NODES]
)
def test_a_split_holds_the_request_of_all_pods_of_the_podset(
    asked: Any, where: Sequence[tuple[str, str]], expected: dict[str, int] | None
) -> None:
    small = {"x": ("a", 3)}  # a node of flavor a with one GPU fewer
    sizes = [(*small.get(model, (model, 4)), rack) for model, rack in where]
    fleet = [on(model, f"n{i}", rack, gpu) for i, (model, gpu, rack) in enumerate(sizes)]
    assert started(world(fleet, [gang("g", asked)], (), splitting(), flavors=(A, B))) == expected


def test_ranks_are_ordered_by_share_and_each_is_on_nodes_of_its_flavor() -> None:
    fleet = [on("b", "n0", "r1"), on("a", "n1", "r2"), on("b", "n2", "r2"), on("a", "n3", "r1")]
    snapshot = world(fleet, [gang("g", podset(count=10, gpu=1))], (), splitting(), flavors=(A, B))
    (admitted,) = plan(snapshot).admitted
    (placed,) = admitted.placement.podsets
    kinds = {n.name: n.labels["model"] for n in fleet}
    assert [kinds[name] for name, count in placed.nodes for _ in range(count)] == ["a"] * 8 + [
        "b"
    ] * 2
    assert [share.pods for share in placed.shares] == [8, 2]


def test_a_flavor_whose_taint_is_not_tolerated_gets_no_share() -> None:
    tainted = replace(B, node_taints=(Taint("spot", "", "NoSchedule"),))  # type: ignore[arg-type]
    fleet = [on("a", "n0"), on("b", "n1"), on("c", "n2")]
    snapshot = world(
        fleet, [gang("g", EIGHT)], (), splitting("a", "b", "c"), flavors=(A, tainted, C)
    )
    assert started(snapshot) == {"a": 4, "c": 4}


def test_a_required_rack_cannot_span_two_topologies() -> None:
    other = replace(B, topology="others")
    fleet = [on("a", "n0"), on("b", "n1")]
    required, free = (
        world(fleet, [gang("g", p)], (), splitting(), flavors=(A, other)) for p in (RACK, EIGHT)
    )
    levels = required.config.topologies["gpus"].levels
    known = {**required.config.topologies, "others": Topology("others", levels)}
    required, free = (
        replace(s, config=replace(s.config, topologies=known)) for s in (required, free)
    )
    assert (started(required), started(free)) == (None, {"a": 4, "b": 4})
    (placed,) = plan(free).admitted[0].placement.podsets
    assert broken(required, placed) == {PlanRule.TOPOLOGY}


def test_either_all_shares_take_nodes_or_none_does() -> None:
    quota_only = ResourceFlavor("b")
    anywhere = replace(EIGHT, topology=TopologyRequest(TopologyMode.UNCONSTRAINED))
    snapshot = world(
        [on("a", "n0")], [gang("g", anywhere)], (), splitting(gpu=4), flavors=(A, quota_only)
    )
    assert started(snapshot) is None
    mixed = PodSetPlacement(
        "w", (("n0", 4),), charged((4, "a"))[0].flavors, shares=charged((4, "a"), (4, "b"))
    )
    assert PlanRule.TOPOLOGY in broken(snapshot, mixed)


# Several podsets, several resource groups.


def test_podsets_of_a_group_share_their_flavors_even_where_splits_are_allowed() -> None:
    pods = [podset(f"p{i}", 4, required="rack", group="x", gpu=1) for i in range(2)]
    fleet = [on("a", "n0"), on("b", "n1")]
    assert started(world(fleet, [gang("g", *pods)], (), splitting(), flavors=(A, B))) is None
    alone = world(fleet, [gang("g", EIGHT)], (), splitting(), flavors=(A, B))
    (placed,) = plan(alone).admitted[0].placement.podsets
    grouped = world(fleet, [gang("g", replace(EIGHT, group="x"))], (), splitting(), flavors=(A, B))
    assert broken(grouped, placed) == {PlanRule.FLAVOR}


def test_earlier_podsets_choose_first() -> None:
    fleet = [on("a", "n0"), on("b", "n1"), on("b", "n2")]
    snapshot = world(
        fleet,
        [gang("g", podset("x", 2, gpu=1), podset("y", 9, gpu=1))],
        (),
        splitting(),
        flavors=(A, B),
    )
    (admitted,) = plan(snapshot).admitted
    assert [by_flavor(p) for p in admitted.placement.podsets] == [{"a": 2}, {"a": 2, "b": 7}]


def test_a_share_has_one_flavor_of_each_resource_group() -> None:
    """GPUs: 4 of a, 4 of b. cpu: 6 of x, 9 of y. The first four pods take (a, x), the next two (b, x), the last (b, y)."""
    groups = (
        ResourceGroup((GPU,), (FlavorQuotas("a", {GPU: 4}), FlavorQuotas("b", {GPU: 4}))),
        ResourceGroup(("cpu",), (FlavorQuotas("x", {"cpu": 6}), FlavorQuotas("y", {"cpu": 9}))),
    )
    main = replace(splitting(), groups=groups)
    known = [ResourceFlavor(name) for name in "abxy"]
    snapshot = world([], [gang("g", podset(count=8, gpu=1, cpu=1))], (), main, flavors=known)
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    (placed,) = made.admitted[0].placement.podsets
    shares = [(share.pods, share.flavors[GPU], share.flavors["cpu"]) for share in placed.shares]
    assert shares == [(4, "a", "x"), (2, "b", "x"), (2, "b", "y")]


# Splits alongside other gangs.


def test_a_split_comes_before_victims() -> None:
    running = holding(gang("low", podset(count=4, gpu=1)), {"n0": 4}, flavor="a")
    fleet = [on("a", "n0"), on("a", "n1"), on("b", "n2")]
    high = gang("g", EIGHT, priority=9)
    snapshot = world(fleet, [high], [running], splitting(), flavors=(A, B))
    assert started(snapshot) == {"a": 4, "b": 4}
    assert plan(snapshot).preempted == ()


def test_victims_make_room_for_a_whole_gang_where_no_split_fits() -> None:
    running = holding(gang("low", podset(count=4, gpu=1)), {"n0": 4}, flavor="a")
    fleet = [on("a", "n0"), on("a", "n1")]
    snapshot = world(fleet, [gang("g", EIGHT, priority=9)], [running], splitting(), flavors=(A, B))
    assert started(snapshot) is None
    assert [p.victim for p in plan(snapshot).preempted] == ["low"]


def test_all_pods_split_come_before_fewer_pods_whole() -> None:
    fleet = [on("a", "n0"), on("b", "n1")]
    shrinking = replace(EIGHT, min_count=2)
    assert started(world(fleet, [gang("g", shrinking)], (), splitting(), flavors=(A, B))) == {
        "a": 4,
        "b": 4,
    }


def test_fewer_pods_can_be_split_too() -> None:
    fleet = [on("a", "n0"), on("b", "n1")]
    shrinking = replace(EIGHT, count=11, min_count=2)
    snapshot = world(fleet, [gang("g", shrinking)], (), splitting(), flavors=(A, B))
    assert started(snapshot) == {"a": 4, "b": 4}
    assert plan(snapshot).admitted[0].placement.podsets[0].pods == 8


def test_a_gang_kept_before_is_moved_for_a_split() -> None:
    """Best fit places the first gang on the small node of rack r, which the second needs: only there it has both flavors."""
    fleet = [on("a", "n0", "r", 2), on("b", "n1", "r", 4), on("a", "n2", "s", 3)]
    first = gang("first", podset(count=2, required="rack", gpu=1, select={"model": "a"}))
    second = gang("g", podset(count=6, required="rack", gpu=1), queued_at=1)
    snapshot = world(fleet, [first, second], (), splitting(), flavors=(A, B))
    assert started(snapshot) == {"a": 2, "b": 4}
    assert started(snapshot, "first") == {"a": 2}
    assert plan(snapshot).stats["replaced"] == 1


def test_capacity_used_by_a_split_gang_is_not_given_twice() -> None:
    fleet = [on("a", "n0"), on("b", "n1")]
    gangs = [gang("g", podset(count=6, gpu=1)), gang("h", podset(count=3, gpu=1), queued_at=1)]
    snapshot = world(fleet, gangs, (), splitting(), flavors=(A, B))
    assert started(snapshot, "h") is None
    gangs[1] = gang("h", podset(count=2, gpu=1), queued_at=1)
    assert started(replace(snapshot, pending=world(fleet, gangs).pending), "h") == {"b": 2}


@pytest.mark.parametrize(
    ("requested", "main", "keeps"),
    [(6, splitting(), True), (5, splitting(), False), (6, splitting(split=False), False)],
    ids=["the same gang", "with another number of pods", "in a queue that no longer splits"],
)
def test_a_split_gang_starts_on_its_leased_capacity(
    requested: int, main: ClusterQueue, keeps: bool
) -> None:
    fleet = [on("a", "n0"), on("b", "n1")]
    asks = gang("g", podset(count=6, gpu=1))
    placement = plan(world(fleet, [asks], (), splitting(), flavors=(A, B))).admitted[0].placement
    held = Pending(gang("g", podset(count=requested, gpu=1), queued_at=1), lease(placement))
    urgent = gang("urgent", podset(count=4, gpu=1), priority=1)
    snapshot = world(fleet, [held, urgent], (), main, flavors=(A, B))
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    assert [a.uid for a in made.admitted] == (["g"] if keeps else ["urgent"])
    if keeps:
        assert made.admitted[0].placement == placement


def test_the_podsets_of_a_lease_are_found_by_name() -> None:
    """The podsets of the gang can have another order by now."""
    fleet = [on("a", "n0"), on("b", "n1")]
    first, second = (
        replace(podset(count=4, gpu=1, select={"model": model}), name=model) for model in "ab"
    )
    before = world(fleet, [gang("g", first, second)], (), splitting(), flavors=(A, B))
    placement = plan(before).admitted[0].placement
    held = Pending(gang("g", second, first, queued_at=1), lease(placement))
    urgent = gang("urgent", podset(count=1, gpu=1), priority=1)
    made = plan(world(fleet, [held, urgent], (), splitting(), flavors=(A, B)))
    assert [a.uid for a in made.admitted] == ["g"]


def test_a_strict_queue_keeps_every_flavor_of_a_pending_head_that_could_be_split() -> None:
    fleet = [on("a", "n0"), on("b", "n1")]
    gangs = [gang("head", podset(count=9, gpu=1)), gang("g", podset(count=1, gpu=1), queued_at=1)]
    running = holding(gang("old", podset(count=1, gpu=1)), {"n0": 1}, flavor="a")
    main = splitting(strategy=QueueingStrategy.STRICT_FIFO, within=WithinClusterQueue.NEVER)
    fleet.append(on("b", "n2", gpu=1))
    assert started(world(fleet, gangs, [running], main, flavors=(A, B))) is None
    assert started(world(fleet, gangs, (), main, flavors=(A, B)), "head") == {"a": 4, "b": 5}


def test_a_split_passes_a_strict_head_by_its_second_flavor_too() -> None:
    head = gang("head", podset(count=5, gpu=1, select={"model": "b"}))
    fleet = [on("a", "n0"), on("b", "n1", gpu=8)]
    old = holding(gang("old", podset(count=4, gpu=1), preemptible=False), {"n1": 4}, flavor="b")
    gangs = [head, gang("g", EIGHT, queued_at=1)]
    lenient, strict = (
        world(fleet, gangs, [old], splitting(strategy=s), flavors=(A, B))
        for s in (QueueingStrategy.BEST_EFFORT_FIFO, QueueingStrategy.STRICT_FIFO)
    )
    made = plan(lenient)
    assert started(lenient) == {"a": 4, "b": 4}
    assert started(strict) is None
    assert {v.rule for v in verify(strict, made)} == {PlanRule.ORDER}


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (WhenCan.MAY_STOP_SEARCH, {"a": 6, "b": 1}),
        (WhenCan.TRY_NEXT_FLAVOR, {"a": 4, "b": 3}),
    ],
)
def test_borrowing_for_a_split(when: WhenCan, expected: dict[str, int]) -> None:
    """4 + 4 in its quota and 2 of flavor a to borrow: borrowed at once, or only where no other flavor suffices."""
    main = splitting(gpu=4)
    main = replace(main, cohort="all", fungibility=Fungibility(when_can_borrow=when))
    lender = replace(queue("other", flavors=("a",), gpu=2), cohort="all")
    known = [ResourceFlavor("a"), ResourceFlavor("b")]
    snapshot = world([], [gang("g", podset(count=7, gpu=1))], (), main, lender, flavors=known)
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    (placed,) = made.admitted[0].placement.podsets
    assert {share.flavors[GPU]: share.pods for share in placed.shares} == expected


# Reasons.


def test_a_gang_that_only_a_split_could_ever_start_stays_pending_with_that_reason() -> None:
    running = holding(gang("old", podset(count=3, gpu=1)), {"n0": 3}, flavor="a")
    main = splitting(within=WithinClusterQueue.NEVER)
    fleet = [on("a", "n0"), on("b", "n1")]
    snapshot = world(fleet, [gang("g", EIGHT)], [running], main, flavors=(A, B))
    (refusal,) = plan(snapshot).pending
    assert refusal.proof is Proof.OPTIMAL
    assert refusal.reasons[0].code == "TopologyPlacementFailed"
    assert refusal.reasons[0].message == (
        "room for 3 more pods of podset w is needed; split over flavors, 1 with flavor a and 4 with flavor b fit"
    )
    (never,) = plan(replace(snapshot, fleet=replace(snapshot.fleet, nodes=(fleet[0],)))).pending
    assert never.reasons[0].code == "ShapeNeverFits"
