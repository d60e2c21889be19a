"""Broken gangs whose pods are in slices: lost pods of a slice are replaced in its domain, lost slices move whole."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.plan import Plan, Proof
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner.build import gang, holding, node, podset, resources, world
from tests.planner.oracle_fit import Oracle, SuggestedFix, Task
from tests.support.examples import examples

PAIRS = podset(count=4, gpu=8, required="block", slices=[("rack", 2)])


def planned(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    assert made.proof is Proof.OPTIMAL
    return made


def racks(out: str = "", **sizes: int) -> list[Node]:
    """8-GPU nodes of the racks of one block; ``out`` names those not ready."""
    return [
        node(f"{rack}{i}", f"b/{rack}", gpu=8, ready=f"{rack}{i}" not in out.split())
        for rack, size in sizes.items()
        for i in range(size)
    ]


def broken(*lost: str, pods=PAIRS, where: tuple[str, ...] = ("a0", "a1", "b0", "b1")) -> Admitted:
    workload = gang("g", pods, priority=9)
    return holding(workload, dict.fromkeys(where, 1), lost=tuple(("w", n, 1) for n in lost))


@pytest.mark.parametrize(
    ("nodes", "lost", "now"),
    [
        pytest.param(racks("a1", a=3, b=3), "a1", "a0 a2 b0 b1", id="back into its rack"),
        pytest.param(racks("a1", a=2, b=4, c=2), "a1", None, id="nowhere else, whatever is free"),
        pytest.param(racks("a0 a1", a=2, b=3, c=1), "a0 a1", None, id="a whole slice is not split"),
        pytest.param(racks("a0 a1", a=2, b=3, c=2), "a0 a1", "c0 c1 b0 b1", id="it moves whole"),
        pytest.param(racks("a0 a1", a=2, b=4), "a0 a1", "b2 b3 b0 b1", id="alongside the other"),
        pytest.param(racks("a1 b0", a=3, b=3), "a1 b0", "a0 a2 b2 b1", id="one of each slice"),
        pytest.param(racks("a1 b0", a=3, b=2, c=9), "a1 b0", None, id="one of them cannot"),
        pytest.param(racks("a1", a=3, b=3)[1:], "a0 a1", None, id="one node was deleted"),
        pytest.param(racks("a1", a=4, b=2)[1:], "a0 a1", "a2 a3 b0 b1", id="gone, but there is room"),
    ],
)  # fmt: skip
def test_slices_are_completed_again(nodes: list[Node], lost: str, now: str | None) -> None:
    """``now``: the node of each rank; healthy pods keep theirs."""
    made = planned(world(nodes, [], [broken(*lost.split())]))
    placed = [[name for name, _ in a.placement.podsets[0].nodes] for a in made.admitted]
    assert placed == ([now.split()] if now is not None else [])
    assert [e.code for e in made.evicted] == ([] if now is not None else [Code.NODE_FAILURES])


def test_a_slice_on_one_node_moves_to_one_node() -> None:
    """Two pods of 4 GPUs a node: the two lost ones must share a node again, here one that a victim leaves."""
    pairs = podset(count=4, gpu=4, slices=[(HOSTNAME, 2)])
    gang_there = replace(
        holding(gang("g", pairs, priority=9), {"a0": 2, "a1": 2}), lost=(("w", "a1", 2),)
    )
    half = {name: resources(gpu=4) for name in ("a2", "a3")}
    nodes = racks("a1", a=4)
    assert planned(world(nodes, [], [gang_there], other_pods=half)).evicted
    made = planned(world(racks("a1", a=5), [], [gang_there], other_pods=half))
    assert made.admitted[0].placement.podsets[0].nodes == (("a0", 2), ("a4", 2))
    low = holding(gang("low", podset(gpu=4)), {"a3": 1})
    made = planned(world(nodes, [], [gang_there, low], other_pods={"a2": resources(gpu=4)}))
    assert [p.victim for p in made.preempted] == ["low"]


def test_victims_are_in_the_rack_of_the_slice() -> None:
    low = [holding(gang(f"low-{n}", podset(gpu=8)), {n: 1}) for n in ("a2", "b2", "c0")]
    made = planned(world(racks("a1", a=3, b=3, c=1), [], [broken("a1"), *low]))
    assert [p.victim for p in made.preempted] == ["low-a2"]


def test_nested_slices_return_to_the_finest_domain_that_still_has_pods() -> None:
    """Pairs share a rack, fours a block. One pair lost both its pods: any rack of its block suffices; another lost one."""
    pods = podset(count=8, gpu=8, slices=[("block", 4), ("rack", 2)])
    nodes = [
        node(f"{block}{rack}{i}", f"{block}/{block}{rack}", gpu=8)
        for block in "pq"
        for rack in "rst"
        for i in range(3)
    ]
    where = ("pr0", "pr1", "ps0", "ps1", "qr0", "qr1", "qs0", "qs1")
    lost = {"ps0", "ps1", "qr0"}
    fleet = [replace(n, ready=n.name not in lost) for n in nodes]
    full = {"ps2": resources(gpu=8)}
    made = planned(
        world(fleet, [], [broken(*sorted(lost), pods=pods, where=where)], other_pods=full)
    )
    (admission,) = made.admitted
    names = {name for name, _ in admission.placement.podsets[0].nodes}
    assert names == {"pr0", "pr1", "pt0", "pt1", "qr1", "qr2", "qs0", "qs1"}


@pytest.mark.seeds
@pytest.mark.parametrize("seed", range(examples(200)))
def test_slices_are_repaired_exactly_when_brute_force_can(seed: int) -> None:
    snapshot = accident(random.Random(seed))
    made = planned(snapshot)
    assert bool(made.admitted) == Oracle(snapshot).fits([list(ways(snapshot))])
    assert bool(made.evicted) != bool(made.admitted)


def accident(rng: random.Random) -> Snapshot:
    """Slices of two or three pods, each in one rack, and nodes that fail under them."""
    size, racks_there = rng.choice((2, 3)), rng.choice(("ab", "abc"))
    nodes = [
        node(f"{rack}{i}", f"b/{rack}", gpu=rng.choice((2, 4, 4)))
        for rack in racks_there
        for i in range(rng.randint(1, 4))
    ]
    left = {n.name: n.allocatable["nvidia.com/gpu"] for n in nodes}
    where: dict[str, int] = {}
    for rack in racks_there:
        here = [n.name for n in nodes if n.labels["rack"] == rack for _ in range(left[n.name])]
        rng.shuffle(here)
        slices = min(len(here) // size, rng.randint(0, 2))
        for name in sorted(here[: slices * size]):
            where[name] = where.get(name, 0) + 1
    if not where:
        return accident(rng)
    lost = set(rng.sample(sorted(where), rng.randint(1, min(3, len(where)))))
    pods = podset(count=sum(where.values()), gpu=1, slices=[("rack", size)])
    taken = {n: resources(gpu=rng.randint(0, left[n] - where.get(n, 0))) for n in left}
    there = holding(gang("g", pods), where, lost=tuple(("w", n, where[n]) for n in sorted(lost)))
    fleet = [
        replace(n, ready=n.name not in lost)
        for n in nodes
        if n.name not in lost or rng.random() < 0.7
    ]
    return world(fleet, [], [there], other_pods=taken)


def ways(snapshot: Snapshot) -> Iterator[SuggestedFix]:
    """One: the lost pods of each slice that still has pods, into its rack, and whole slices anywhere."""
    (there,) = snapshot.admitted
    (pods,) = there.workload.podsets
    size = pods.topology.slices[0].size if pods.topology is not None else 1
    out = {name for _, name, _ in there.lost}
    ranks = [name for name, count in there.placement.podsets[0].nodes for _ in range(count)]
    usable = [n for n in snapshot.fleet.nodes if n.ready]
    by_rack: dict[str, frozenset[str]] = {}
    for n in usable:
        rack = n.labels["rack"]
        by_rack[rack] = by_rack.get(rack, frozenset()) | {n.name}
    need = dict(pods.shape.requests)
    tasks, whole = [], 0
    for start in range(0, len(ranks), size):
        one = ranks[start : start + size]
        gone = sum(name in out for name in one)
        if gone == len(one):
            whole += gone
        elif gone:
            rack = next(name for name in one if name not in out)[0]
            tasks.append(Task(gone, need, by_rack[rack]))
    layers = tuple((size, names) for names in by_rack.values())
    if whole:
        tasks.append(Task(whole, need, frozenset(n.name for n in usable), layers))
    yield SuggestedFix(tuple(tasks), {})
