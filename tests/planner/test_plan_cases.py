"""Small clusters with a known best answer: which gangs start, and how close together their pods are."""

from __future__ import annotations

import pytest

from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.plan import Plan, Proof
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner import cases
from tests.planner.build import gang, node, podset, world


def planned(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


def starting(made: Plan) -> list[str]:
    return [a.uid for a in made.admitted]


def nodes_of(made: Plan, uid: str) -> list[dict[str, int]]:
    """Node to pods, per podset."""
    (admission,) = [a for a in made.admitted if a.uid == uid]
    return [dict(p.nodes) for p in admission.placement.podsets]


@pytest.mark.parametrize("case", cases.BATCH, ids=lambda c: c.name)
def test_the_greatest_set_in_queue_order_starts(case: cases.Batch) -> None:
    made = planned(case.snapshot)
    started = set(starting(made))
    assert tuple(f"g{i}" in started for i in range(len(case.gangs))) == case.starts
    assert made.proof is Proof.OPTIMAL


def test_every_start_is_on_a_solution_of_the_solver() -> None:
    made = planned(world([node("a0", gpu=8)], [gang("g", podset(gpu=8))]))
    assert starting(made) == ["g"]
    assert made.stats["solves"] == 1


# Cases that a placement of podset after podset, domain by domain, misses.


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_podsets_in_either_order_find_their_racks(order: tuple[int, int]) -> None:
    """Both fit the rack with the GPU node; only the second has to be there."""
    nodes = [node("n1", "r1", cpu=8, gpu=4), node("n2", "r2", cpu=9)]
    podsets = [
        podset("a", 8, cpu=1, required="rack"),
        podset("b", 4, cpu=1, gpu=1, required="rack"),
    ]
    made = planned(world(nodes, [gang("g", *(podsets[i] for i in order))]))
    placed = dict(zip(order, nodes_of(made, "g"), strict=True))
    assert placed == {0: {"n2": 8}, 1: {"n1": 4}}


def test_of_two_blocks_the_one_with_fewer_racks_is_used() -> None:
    """Eight pods fit block a over eight racks, block b in a single one, though b leaves more over."""
    nodes = [node(f"a{i}", f"a/r{i}", gpu=1) for i in range(8)]
    nodes += [node(f"b{i}", "b/r0", gpu=1) for i in range(9)]
    made = planned(world(nodes, [gang("g", podset(count=8, gpu=1, preferred="block"))]))
    assert set(nodes_of(made, "g")[0]) <= {f"b{i}" for i in range(9)}


def test_an_earlier_gang_is_moved_for_a_later_one() -> None:
    """Two single-GPU pods prefer the 2-GPU node, the only one for the gang behind them."""
    nodes = [node("n0", gpu=2), node("n1", gpu=1), node("n2", gpu=1)]
    gangs = [
        gang("pair", podset(count=2, gpu=1, preferred="rack"), queued_at=1.0),
        gang("whole", podset(gpu=2), queued_at=2.0),
    ]
    made = planned(world(nodes, gangs))
    assert starting(made) == ["pair", "whole"]
    assert nodes_of(made, "whole") == [{"n0": 1}]


# How close together the pods are.


def test_a_preferred_level_relaxes_to_the_finest_that_holds_the_gang() -> None:
    nodes = [node(f"a{i}", f"a/r{i // 2}", gpu=8) for i in range(4)]
    nodes += [node(f"b{i}", f"b/r{i // 2}", gpu=8) for i in range(4)]
    for count, racks, blocks in ((2, 1, 1), (4, 2, 1), (8, 4, 2)):
        made = planned(world(nodes, [gang("g", podset(count=count, gpu=8, preferred="rack"))]))
        used = nodes_of(made, "g")[0]
        assert len({(n[0], int(n[1:]) // 2) for n in used}) == racks
        assert len({n[0] for n in used}) == blocks


def test_without_a_topology_request_pods_are_still_close_together() -> None:
    nodes = [node(f"{r}{i}", r, gpu=8) for r in "abc" for i in range(4)]
    made = planned(world(nodes, [gang("g", podset(count=4, gpu=8))]))
    assert len({n[0] for n in nodes_of(made, "g")[0]}) == 1


def test_the_tightest_domain_is_used_and_whole_nodes_are_spared() -> None:
    nodes = [node("a0", "a", gpu=8), node("b0", "b", gpu=3), node("b1", "b", gpu=8)]
    made = planned(world(nodes, [gang("g", podset(gpu=2))]))
    assert nodes_of(made, "g") == [{"a0": 1}]  # rack a leaves less over than rack b
    made = planned(world(nodes[1:], [gang("g", podset(gpu=2))]))
    assert nodes_of(made, "g") == [{"b0": 1}]


def test_podsets_of_a_group_share_their_domain_and_are_adjacent() -> None:
    nodes = [node(f"{r}{i}", r, gpu=8, cpu=16) for r in "ab" for i in range(4)]
    workers = podset("worker", 2, gpu=8, cpu=4, required="rack", group="job")
    master = podset("master", 1, cpu=4, required="rack", group="job")
    made = planned(world(nodes, [gang("g", master, workers)]))
    where_master, where_workers = nodes_of(made, "g")
    assert set(where_master) <= set(where_workers)


def test_one_node_can_be_required() -> None:
    nodes = [node("a0", "a", gpu=4, cpu=8), node("a1", "a", gpu=8, cpu=4), node("b0", "b", gpu=8)]
    group = (
        podset("x", 2, gpu=3, required=HOSTNAME, group="g"),
        podset("y", 1, cpu=4, required=HOSTNAME, group="g"),
    )
    made = planned(world(nodes, [gang("g", *group)]))
    assert nodes_of(made, "g") == [{"a1": 2}, {"a1": 1}]


def test_ranks_follow_the_topology_in_natural_order() -> None:
    nodes = [node(f"n{i}", f"b{i % 2}/r{i % 3}", gpu=8) for i in range(12)]
    made = planned(world(nodes, [gang("g", podset(count=12, gpu=8))]))
    (admission,) = made.admitted
    names = [name for name, _ in admission.placement.podsets[0].nodes]
    assert names == sorted(names, key=lambda n: (int(n[1:]) % 2, int(n[1:]) % 3, int(n[1:])))


def test_nodes_outside_the_topology_are_invisible_to_its_gangs() -> None:
    lost = node("a1", "a", gpu=8)
    labels = {k: v for k, v in lost.labels.items() if k != "rack"}
    nodes = [node("a0", "a", gpu=8), type(lost)(lost.name, labels, lost.allocatable)]
    made = planned(world(nodes, [gang("g", podset(count=2, gpu=8))]))
    assert starting(made) == []
