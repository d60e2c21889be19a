"""Balanced placement: even where a way exists, reported where none exists, and checked by the verifier."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import CapacityLease, Pending, Snapshot
from queuectl.objects.files.plans import plan_document
from queuectl.planner import plan
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import NOW, gang, holding, node, placed, podset, world
from tests.planner.plans import rules, start
from tests.planner.test_fill import spreads

RACKS = [node(f"{r}{i}", f"b/{r}", gpu=4) for r in ("r1", "r2") for i in range(3)]
IN_BLOCK: dict[str, Any] = {"required": "block", "balanced": True}


def planned(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


def per_rack(made: Plan, nodes: list[Node], at: int = 0) -> list[int]:
    racks = {n.name: n.labels["rack"] for n in nodes}
    counted: dict[str, int] = {}
    for name, count in made.admitted[at].placement.podsets[0].nodes:
        counted[racks[name]] = counted.get(racks[name], 0) + count
    return sorted(counted.values())


def test_an_even_plan_reports_nothing() -> None:
    made = planned(world(RACKS, [gang("g", podset(count=16, gpu=1, **IN_BLOCK))]))
    assert per_rack(made, RACKS) == [8, 8]
    assert made.uneven == ()


def test_without_an_even_placement_it_starts_unevenly_and_the_plan_reports_it() -> None:
    nodes = [node("a0", "b/r1", gpu=7), node("b0", "b/r2", gpu=1)]
    snapshot = world(nodes, [gang("g", podset(count=8, gpu=1, **IN_BLOCK))])
    made = planned(snapshot)
    assert per_rack(made, nodes) == [1, 7]
    assert made.uneven == (("g", "w"),)
    (warning,) = plan_document(snapshot, made)["warnings"]
    assert warning == "team/g: podset w is to be balanced, but its pods are spread unevenly"


def test_balance_lost_to_a_later_gang_is_reported() -> None:
    """The later one fits only rack r1; the first one moves, and has no even spread elsewhere."""
    nodes = [node("a0", "b/r1", gpu=4, cpu=8), node("b0", "b/r2", gpu=3), node("c0", "b/r3", gpu=5)]
    even = gang("even", podset(count=8, gpu=1, **IN_BLOCK), queued_at=1.0)
    picky = gang("picky", podset(count=1, gpu=4, cpu=8), queued_at=2.0)
    made = planned(world(nodes, [even, picky]))
    assert {a.uid for a in made.admitted} == {"even", "picky"}
    assert per_rack(made, nodes) == [3, 5]
    assert made.uneven == (("even", "w"),)


WHOLE = gang("g", podset(count=8, gpu=1, **IN_BLOCK))
NODES = [node("a0", "b/r1", gpu=8), node("b0", "b/r2", gpu=8), node("c0", "b/r3", gpu=8)]


@pytest.mark.parametrize(
    ("workload", "where", "even"),
    [
        (WHOLE, {"a0": 4, "b0": 4}, True),
        (WHOLE, {"a0": 3, "b0": 3, "c0": 2}, True),
        (WHOLE, {"a0": 8}, True),
        (WHOLE, {"a0": 5, "b0": 3}, False),
        (gang("g", podset(count=8, gpu=1, balanced=True)), {"a0": 5, "b0": 3}, True),
        (gang("g", podset(count=8, gpu=1, preferred="rack", balanced=True)), {"a0": 5, "b0": 3}, False),
        (gang("g", podset(count=8, gpu=1, preferred=HOSTNAME, balanced=True)), {"a0": 8}, True),
        (gang("g", podset(count=9, gpu=1, slices=[("rack", 3)], **IN_BLOCK)), {"a0": 6, "b0": 3}, True),
        (gang("g", podset(count=8, gpu=1, slices=[("rack", 2)], **IN_BLOCK)), {"a0": 6, "b0": 2}, False),
    ],
)  # fmt: skip
def test_the_verifier_checks_evenness(workload: Any, where: dict[str, int], even: bool) -> None:
    snapshot = world(NODES, [workload])
    silent = start(workload, where)
    reported = replace(silent, uneven=(("g", "w"),))
    good, bad = (silent, reported) if even else (reported, silent)
    assert rules(snapshot, good) == set()
    assert rules(snapshot, bad) == {PlanRule.TOPOLOGY}


def test_a_lease_is_checked_as_well() -> None:
    lease = CapacityLease(placed(WHOLE, {"a0": 5, "b0": 3}), ("old",), NOW, NOW + 60)
    old = holding(gang("old", podset(gpu=8)), {"a0": 1}, leaving=True)
    half = holding(gang("half", podset(gpu=5)), {"b0": 1})
    pending = Pending(WHOLE, lease, excluded=frozenset({"c0"}))
    snapshot = world(NODES, [pending], [old, half])
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    assert made.uneven == (("g", "w"),)
    assert {v.rule for v in verify(snapshot, replace(made, uneven=()))} == {PlanRule.TOPOLOGY}


def test_a_repair_that_unbalances_is_reported() -> None:
    running = holding(WHOLE, {"a0": 4, "b0": 4}, lost=(("w", "b0", 4),))
    nodes = [node("a0", "b/r1", gpu=4), *(node(f"{r}0", f"b/{r}", gpu=2) for r in "cd")]
    made = planned(world(nodes, [], [running]))
    assert per_rack(made, nodes) == [2, 2, 4]
    assert made.uneven == (("g", "w"),)


def test_several_units_are_not_packed_together_at_the_cost_of_balance() -> None:
    nodes = [node(f"{r}{i}", f"b/{r}", gpu=5) for r in ("r1", "r2") for i in range(2)]
    even = podset("even", 8, gpu=1, **IN_BLOCK)
    made = planned(world(nodes, [gang("g", even, podset("other", 2, gpu=1))]))
    assert per_rack(made, nodes) in ([8], [4, 4])
    assert made.uneven == ()


def test_pods_are_even_whenever_some_block_holds_them_evenly() -> None:
    """Against enumeration: pods per rack of one block that differ by at most one."""
    reported = 0
    for seed in range(200):
        rng = random.Random(seed)
        nodes = [
            node(f"n{i}", f"{rng.choice('xy')}/r{rng.randint(0, 2)}", gpu=rng.randint(0, 4))
            for i in range(rng.randint(2, 6))
        ]
        count = rng.randint(2, 7)
        made = planned(world(nodes, [gang("g", podset(count=count, gpu=1, **IN_BLOCK))]))
        blocks: dict[str, dict[str, int]] = {}
        for n in nodes:
            row = blocks.setdefault(n.labels["block"], {})
            row[n.labels["rack"]] = row.get(n.labels["rack"], 0) + n.allocatable["nvidia.com/gpu"]
        ways = [way for row in blocks.values() for way in spreads(tuple(row.values()), count)]
        used = [[k for k in way if k] for way in ways]
        assert bool(made.admitted) == bool(ways), seed
        if ways:
            assert (made.uneven == ()) == any(max(u) - min(u) <= 1 for u in used), seed
            reported += bool(made.uneven)
    assert reported
