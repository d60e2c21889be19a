"""Gangs that run split over flavors: charged, repaired and kept in place share by share; and the changes that no plan may make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuectl.domain.plan import Plan
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import (
    FlavorQuotas,
    QueueingStrategy,
    WithinClusterQueue,
)
from queuectl.domain.snapshot import Admitted, MakeRoom, Snapshot
from queuectl.domain.workload import (
    Placement,
    PodSetPlacement,
)
from queuectl.planner import plan
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import gang, podset, world
from tests.planner.splits import A, B, by_flavor, charged, on, splitting, started
from tests.support.examples import examples

MANY = settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))

# Running gangs that are split.

KINDS = {"n0": "a", "n1": "a", "n2": "b", "n3": "b"}


def running_split(*lost: tuple[str, int]) -> Admitted:
    """Six pods: ranks 0 to 2 of flavor a on n0, 3 to 5 of flavor b on n2."""
    shares = charged((3, "a"), (3, "b"))
    placed = PodSetPlacement("w", (("n0", 3), ("n2", 3)), shares[0].flavors, shares=shares)
    return Admitted(
        gang("g", podset(count=6, required="rack", gpu=1)),
        Placement((placed,)),
        lost=tuple(("w", *pair) for pair in lost),
    )


def repaired(nodes: Mapping[str, int], *lost: tuple[str, int]) -> PodSetPlacement | None:
    """The placement of the gang after its lost pods are placed again; nodes by name and GPUs, those that lost pods are deleted."""
    gone = {name for name, _ in lost}
    fleet = [on(KINDS[n], n, gpu=gpu, ready=n not in gone) for n, gpu in nodes.items()]
    main = splitting(within=WithinClusterQueue.NEVER)
    snapshot = world(fleet, [], [running_split(*lost)], main, flavors=(A, B))
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made.admitted[0].placement.podsets[0] if made.admitted else None


def test_lost_pods_keep_the_flavor_of_their_share() -> None:
    placed = repaired({"n0": 8, "n1": 8, "n2": 4, "n3": 4}, ("n2", 3))
    assert placed is not None
    assert placed.nodes == (("n0", 3), ("n3", 3))
    assert by_flavor(placed) == {"a": 3, "b": 3}


def test_shares_on_one_node_lose_no_more_pods_than_the_node_did() -> None:
    """Flavor b has no labels, and both shares are on n0, which keeps two of six pods."""
    shares = charged((3, "a"), (3, "b"))
    placed = PodSetPlacement("w", (("n0", 3), ("n0", 3)), shares[0].flavors, shares=shares)
    running = Admitted(
        gang("g", podset(count=6, gpu=1)), Placement((placed,)), lost=(("w", "n0", 4),)
    )
    fleet = [on("a", "n0", ready=False), on("a", "n1")]
    known = (A, replace(B, node_labels=()))
    snapshot = world(fleet, [], [running], splitting(), flavors=known)
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    (after,) = made.admitted[0].placement.podsets
    assert after.by_node == {"n0": 2, "n1": 4}
    assert by_flavor(after) == {"a": 3, "b": 3}


def test_a_lost_share_is_not_repaired_with_another_flavor() -> None:
    assert repaired({"n0": 8, "n1": 8, "n2": 4}, ("n2", 3)) is None


def test_both_shares_can_lose_pods() -> None:
    placed = repaired({"n0": 4, "n1": 4, "n2": 4, "n3": 4}, ("n0", 3), ("n2", 3))
    assert placed is not None
    assert placed.nodes == (("n1", 3), ("n3", 3))


@settings(MANY)
@given(
    st.dictionaries(st.sampled_from(["n1", "n3"]), st.integers(0, 4)),
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from(["n0", "n2", ""]),
)
def test_it_is_repaired_exactly_if_each_share_has_room(
    spare: dict[str, int], beside_a: int, beside_b: int, lost: str
) -> None:
    """``beside``: GPUs free on the nodes that it uses; ``spare``: on another node of either flavor."""
    sizes = {"n0": 3 + beside_a, "n2": 3 + beside_b, **spare}
    gone = [name for name in ("n0", "n2") if lost in (name, "")]
    placed = repaired(sizes, *((name, 3) for name in gone))
    room = {"n0": spare.get("n1", 0), "n2": spare.get("n3", 0)}
    assert (placed is not None) == all(room[name] >= 3 for name in gone)
    if placed is not None:
        assert by_flavor(placed) == {"a": 3, "b": 3}
        assert all(
            KINDS[n] == f for f, p in zip("ab", placed.by_share(), strict=True) for n, _ in p.nodes
        )


def test_a_running_split_gang_is_charged_share_by_share() -> None:
    fleet = [on("a", "n0", gpu=8), on("b", "n2", gpu=8)]
    for pods, expected in ((1, {"a": 1}), (2, {"b": 2}), (3, None)):
        main = splitting(within=WithinClusterQueue.NEVER, split=False)
        (group,) = main.groups
        tight = (
            FlavorQuotas("a", {**group.flavors[0].nominal, GPU: 4}),
            FlavorQuotas("b", {**group.flavors[1].nominal, GPU: 5}),
        )
        main = replace(main, groups=(replace(group, flavors=tight),))
        new = gang("new", podset(count=pods, gpu=1))
        snapshot = world(fleet, [new], [running_split()], main, flavors=(A, B))
        assert started(snapshot, "new") == expected


@pytest.mark.parametrize("split", [True, False])
def test_a_split_gang_is_not_moved_for_another(split: bool) -> None:
    """One of two pods blocks four; it could move to n1, if its gang had all pods of one flavor."""
    fleet = [on("a", "n0"), on("a", "n1", gpu=2), on("b", "n2")]
    shares = charged((1, "a"), (1, "b"))
    placed = PodSetPlacement("w", (("n0", 1), ("n2", 1)), shares[0].flavors, shares=shares)
    whole = PodSetPlacement("w", (("n0", 2),), shares[0].flavors)
    running = Admitted(
        gang("old", podset(count=2, gpu=1)), Placement((placed if split else whole,))
    )
    big = gang("g", podset(count=1, gpu=4, select={"model": "a"}))
    main = splitting(within=WithinClusterQueue.NEVER)
    snapshot = replace(world(fleet, [big], [running], main, flavors=(A, B)), make_room=MakeRoom())
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    assert [m.uid for m in made.moved] == ([] if split else ["old"])


def test_a_strict_queue_keeps_the_place_of_a_requeued_split_gang_in_both_flavors() -> None:
    """Its first share is on a, so no later gang may start on a; its second is on b, so no later gang may start there."""
    running = replace(running_split(), leaving=True, returns=True)
    fleet = [on("a", "n0", gpu=8), on("b", "n2", gpu=8)]
    new = gang("g", podset(count=1, gpu=1, select={"model": "b"}), queued_at=9)
    main = splitting(strategy=QueueingStrategy.STRICT_FIFO)
    assert started(world(fleet, [new], [running], main, flavors=(A, B))) is None
    assert started(world(fleet, [new], [replace(running, returns=False)], main, flavors=(A, B)))


# The verifier.


def split_plan(**changes: Any) -> tuple[Snapshot, Plan]:
    """Six pods in slices of two over flavors a and b: four on n0, two on n2. ``changes`` are made to its placement."""
    fleet = [on("a", "n0"), on("b", "n2"), on("b", "n3")]
    asked = podset(count=6, required="rack", slices=[("kubernetes.io/hostname", 2)], gpu=1)
    snapshot = world(fleet, [gang("g", asked)], (), splitting(gpu=4), flavors=(A, B))
    made = plan(snapshot)
    (admitted,) = made.admitted
    placed = replace(admitted.placement.podsets[0], **changes)
    return snapshot, replace(made, admitted=(replace(admitted, placement=Placement((placed,))),))


MUTANTS: list[tuple[str, dict[str, Any], PlanRule]] = [
    ("shares do not make up the pods", {"shares": charged((4, "a"), (1, "b"))}, PlanRule.WHOLE),
    ("a share of no pods", {"shares": charged((4, "a"), (2, "b"), (0, "b"))}, PlanRule.WHOLE),
    ("only one share", {"shares": charged((6, "a"))}, PlanRule.WHOLE),
    ("the same flavor twice", {"shares": charged((4, "a"), (1, "b"), (1, "b"))}, PlanRule.WHOLE),
    ("flavors of another share", {"flavors": charged((6, "b"))[0].flavors}, PlanRule.WHOLE),
    ("a share ends within a slice", {"shares": charged((3, "a"), (3, "b"))}, PlanRule.TOPOLOGY),
    ("pods on nodes of another flavor", {"shares": charged((2, "a"), (4, "b"))}, PlanRule.ELIGIBLE),
    ("a flavor the queue does not have", {"shares": charged((4, "a"), (2, "c"))}, PlanRule.FLAVOR),
    ("not split at all", {"shares": ()}, PlanRule.ELIGIBLE),
    ("more than the flavor's quota", {"nodes": (("n2", 4), ("n3", 2)), "shares": (),
                                      "flavors": charged((6, "b"))[0].flavors}, PlanRule.QUOTA),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "rule"), [row[1:] for row in MUTANTS], ids=[row[0] for row in MUTANTS]
)
def test_the_verifier_rejects_a_wrong_split(changes: dict[str, Any], rule: PlanRule) -> None:
    assert verify(*split_plan()) == ()
    assert rule in {v.rule for v in verify(*split_plan(**changes))}


def test_the_verifier_rejects_a_split_that_the_queue_does_not_allow() -> None:
    snapshot, made = split_plan()
    forbidden = replace(
        snapshot,
        config=replace(snapshot.config, cluster_queues={"main": splitting(gpu=4, split=False)}),
    )
    assert {v.rule for v in verify(forbidden, made)} == {PlanRule.FLAVOR}


def test_the_verifier_rejects_a_repair_that_changes_a_share() -> None:
    fleet = [on(model, name, ready=name != "n2") for name, model in KINDS.items()]
    snapshot = world(fleet, [], [running_split(("n2", 3))], splitting(), flavors=(A, B))
    made = plan(snapshot)
    (admitted,) = made.admitted
    (placed,) = admitted.placement.podsets
    moved = replace(placed, nodes=(("n0", 3), ("n1", 3)), shares=charged((6, "a")))
    mutated = replace(admitted, placement=Placement((moved,)))
    assert verify(snapshot, made) == ()
    assert PlanRule.REPAIR in {v.rule for v in verify(snapshot, replace(made, admitted=(mutated,)))}
