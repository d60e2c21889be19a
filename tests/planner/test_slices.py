"""Gangs whose pods are in slices: complete against brute force, ranks in order, and the reason of a refusal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.plan import Plan, Proof
from queuectl.domain.queues import WithinClusterQueue
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import CapacityLease, Pending, Snapshot
from queuectl.domain.workload import PodSet
from queuectl.planner import plan
from queuectl.planner.preempt.cost import costs, sizes_of
from queuectl.planner.verify import PlanRule, verify
from tests.planner import generate
from tests.planner.build import gang, node, placed, podset, queue, world
from tests.planner.oracle import layers, least_victims, legal_victims, starts
from tests.planner.plans import rules, start
from tests.support.examples import examples

MANY = settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
LEVELS = ("block", "rack", HOSTNAME)
NEVER = WithinClusterQueue.NEVER


@st.composite
def sliced(draw: st.DrawFn, name: str, own: dict[str, Any]) -> PodSet:
    """One to three nested layers at or below the podset's own level."""
    (coarsest,) = own.values() or ("block",)
    allowed = LEVELS[LEVELS.index(coarsest) :]
    used = sorted(draw(st.sets(st.sampled_from(allowed), max_size=3)), key=LEVELS.index)
    size, layers = 1, []
    for level in reversed(used):
        size *= draw(st.sampled_from([1, 2, 2, 3])) if size == 1 else draw(st.sampled_from([1, 2]))
        layers.append((level, size))
    return podset(
        name,
        size * draw(st.integers(1, max(1, 4 // size))),
        slices=layers[::-1],
        gpu=draw(st.sampled_from([0, 1, 1, 2, 3])),
        cpu=draw(st.sampled_from([1, 2, 3])),
        **own,
    )


@st.composite
def gangs(draw: st.DrawFn, uid: str) -> Any:
    grouped = draw(st.booleans())
    mode = draw(st.sampled_from(["required", "preferred"]))
    shared = {mode: draw(st.sampled_from(LEVELS[:2]))}
    podsets = []
    for i in range(draw(st.sampled_from([1, 1, 2, 3]))):
        alone = {mode: draw(st.sampled_from(LEVELS))} if draw(st.booleans()) else {}
        made = draw(sliced(f"p{i}", shared if grouped else alone))
        podsets.append(replace(made, group="g") if grouped else made)
    return gang(uid, *podsets, queued_at=float(draw(st.integers(0, 5))))


@st.composite
def snapshots(draw: st.DrawFn, most: int = 3) -> Snapshot:
    fleet = draw(generate.nodes())
    pending = [draw(gangs(f"w{i}")) for i in range(draw(st.integers(1, most)))]
    return world(fleet, pending, (), queue(within=NEVER))


@MANY
@given(snapshots())
def test_brute_force_starts_the_same_gangs(snapshot: Snapshot) -> None:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    assert made.proof is not Proof.UNDECIDED
    started = {a.uid for a in made.admitted}
    wanted = starts(snapshot)
    assert [uid in started for uid in wanted] == list(wanted.values())


@st.composite
def contested(draw: st.DrawFn) -> Snapshot:
    """A full cluster and one sliced gang of higher priority."""
    base = draw(generate.contested())
    (entry,) = base.pending
    blocked = replace(draw(gangs("w0")), priority=draw(st.integers(2, 5)))
    return replace(base, pending=(replace(entry, workload=blocked),))


@settings(MANY, max_examples=examples(60))
@given(contested())
def test_brute_force_evicts_as_little_for_a_sliced_gang(snapshot: Snapshot) -> None:
    (entry,) = snapshot.pending
    made = planned(snapshot)
    priced = costs(legal_victims(snapshot, entry.workload), snapshot.now, sizes_of(snapshot))
    least = least_victims(snapshot, entry, priced)
    if made.admitted or least is None:
        assert not made.preempted
        assert (least is not None) == bool(made.admitted)
        return
    order = snapshot.config.cluster_queues["main"].victim_order
    assert layers(order, [p.cost for p in made.preempted]) == least[0]


def planned(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


def nodes_of(made: Plan) -> list[tuple[tuple[str, int], ...]]:
    (admission,) = made.admitted
    return [p.nodes for p in admission.placement.podsets]


def refused(made: Plan) -> Code:
    (refusal,) = made.pending
    assert refusal.proof is Proof.OPTIMAL
    return refusal.reasons[0].code


def test_a_slice_of_several_pods_shares_one_node() -> None:
    """Ten GPUs are free, but only two whole pairs of pods."""
    nodes = [node("a0", "a", gpu=3), node("a1", "a", gpu=3), node("a2", "a", gpu=4)]
    four = podset(count=4, gpu=1, slices=[(HOSTNAME, 2)])
    assert all(n % 2 == 0 for _, n in nodes_of(planned(world(nodes, [gang("g", four)])))[0])
    three = podset(count=9, gpu=1, slices=[(HOSTNAME, 3)])
    assert nodes_of(planned(world(nodes, [gang("g", three)]))) == [
        (("a0", 3), ("a1", 3), ("a2", 3))
    ]
    eight = podset(count=8, gpu=1, slices=[(HOSTNAME, 4)])
    assert refused(planned(world(nodes, [gang("g", eight)]))) is Code.SHAPE_NEVER_FITS


def test_three_layers_of_slices_nest() -> None:
    """Eight to a block, four to a rack, two to a node: b's racks hold four each, but only in threes and ones."""
    nodes = [node(f"a{i}", f"a/r{i // 2}", gpu=2) for i in range(4)]
    nodes += [node(f"b{i}", f"b/r{i // 2}", gpu=3 if i % 2 else 1) for i in range(4)]
    wanted = podset(count=8, gpu=1, slices=[("block", 8), ("rack", 4), (HOSTNAME, 2)])
    made = planned(world(nodes, [gang("g", wanted)]))
    assert nodes_of(made) == [tuple((f"a{i}", 2) for i in range(4))]
    assert refused(planned(world(nodes[4:], [gang("g", wanted)]))) is Code.SHAPE_NEVER_FITS


def test_slices_of_a_preferred_level_can_leave_it() -> None:
    nodes = [node(f"{r}0", f"{b}/{r}", gpu=5) for b in "xy" for r in (f"{b}1", f"{b}2")]
    made = planned(
        world(nodes, [gang("g", podset(count=12, gpu=1, preferred="block", slices=[("rack", 3)]))])
    )
    assert sorted(n for _, n in nodes_of(made)[0]) == [3, 3, 3, 3]


def test_each_podset_of_a_group_has_its_own_slices() -> None:
    nodes = [node(f"{r}{i}", f"b/{r}", gpu=4, cpu=8) for r in ("r1", "r2", "r3") for i in range(2)]
    nodes += [node("c0", "c/r9", gpu=4, cpu=8)]
    group: dict[str, Any] = {"required": "block", "group": "g"}
    made = planned(
        world(
            nodes,
            [
                gang(
                    "g",
                    podset("trainer", 12, gpu=1, cpu=1, slices=[("rack", 6)], **group),
                    podset("rollout", 6, gpu=1, cpu=1, slices=[("rack", 3)], **group),
                    podset("judge", 2, cpu=1, **group),
                )
            ],
        )
    )
    assert all(name[0] == "r" for row in nodes_of(made) for name, _ in row)


def test_the_solver_places_two_podsets_that_share_racks() -> None:
    """Each rack has capacity for a slice of six or two of three; the witness that fills the tightest first must be revised."""
    nodes = [node("a0", "a", gpu=6), node("b0", "b", gpu=9)]
    gangs = [
        gang("g1", podset(count=3, gpu=1, slices=[("rack", 3)]), queued_at=1.0),
        gang("g2", podset(count=12, gpu=1, slices=[("rack", 6)]), queued_at=2.0),
    ]
    made = planned(world(nodes, gangs))
    assert [a.uid for a in made.admitted] == ["g1", "g2"]
    assert made.stats["replaced"] == 1


@pytest.mark.parametrize(
    ("slices", "own", "why"),
    [
        (
            [("rack", 4), ("block", 2)],
            {},
            "slice level block is not finer than the slice level rack above it",
        ),
        (
            [("block", 2)],
            {"required": "rack"},
            "slice level block is coarser than the requested level rack",
        ),
        ([("row", 2)], {}, "topology gpus has no level row"),
    ],
)
def test_slices_that_do_not_fit_the_topology_are_reported(
    slices: list[tuple[str, int]], own: dict[str, Any], why: str
) -> None:
    asked = podset(count=4, gpu=1, slices=slices, **own)
    made = planned(world([node("a0", gpu=8)], [gang("g", asked)]))
    assert refused(made) is Code.NO_MATCHING_FLAVOR
    assert why in made.pending[0].reasons[0].message


def test_a_refusal_counts_whole_slices() -> None:
    nodes = [node("a0", "a", gpu=3), node("a1", "a", gpu=5), node("b0", "b", gpu=3)]
    wanted = podset(count=8, gpu=1, required="block", slices=[("rack", 4), (HOSTNAME, 2)])
    (refusal,) = planned(world(nodes, [gang("g", wanted)])).pending
    assert refusal.reasons[0].message == (
        "room for 4 more pods × 1 nvidia.com/gpu in slices (4 per rack, 2 per node) is needed in one block; "
        "even if all nodes were empty, at most 4 of 8 fit in whole slices (b)"
    )


# Ranks.


def test_every_slice_is_consecutive_ranks() -> None:
    nodes = [node(f"n{i}", f"b{i % 2}/r{i % 4}", gpu=(3, 5)[i % 2]) for i in range(12)]
    wanted = gang("g", podset(count=24, gpu=1, slices=[("block", 12), ("rack", 4)]))
    made = planned(world(nodes, [wanted]))
    ranks = [name for name, count in nodes_of(made)[0] for _ in range(count)]
    for size, parts in ((12, 2), (4, 4)):
        for at in range(0, 24, size):
            assert len({int(name[1:]) % parts for name in ranks[at : at + size]}) == 1


@pytest.mark.parametrize(
    "where",
    [
        {"a0": 3, "b0": 5},  # no whole slices
        {"a0": 2, "b0": 4, "a1": 2},  # whole in each rack, but ranks 0 to 3 in two
    ],
)
def test_the_verifier_rejects_torn_slices(where: dict[str, int]) -> None:
    nodes = [node(name, name[0], gpu=8) for name in ("a0", "a1", "b0")]
    wanted = gang("g", podset(count=8, gpu=1, slices=[("rack", 4)]))
    snapshot = world(nodes, [wanted])
    assert rules(snapshot, start(wanted, {"a0": 3, "a1": 1, "b0": 4})) == set()
    assert rules(snapshot, start(wanted, where)) == {PlanRule.TOPOLOGY}


# Even spreads.


def test_pods_are_spread_evenly_on_request() -> None:
    nodes = [node(f"{r}{i}", f"b/{r}", gpu=4) for r in ("r1", "r2") for i in range(3)]
    wanted = podset(count=16, gpu=1, preferred="rack")
    uneven = nodes_of(planned(world(nodes, [gang("g", wanted)])))[0]
    assert sorted(per_rack(uneven).values()) == [4, 12]
    even = podset(count=16, gpu=1, preferred="rack", balanced=True)
    made = nodes_of(planned(world(nodes, [gang("g", even)])))[0]
    assert sorted(per_rack(made).values()) == [8, 8]


def test_whole_slices_are_spread_evenly() -> None:
    nodes = [node(f"{r}{i}", f"b/{r}", gpu=4) for r in ("r1", "r2") for i in range(3)]
    even = podset(count=15, gpu=1, required="block", balanced=True, slices=[("rack", 3)])
    made = nodes_of(planned(world(nodes, [gang("g", even)])))[0]
    assert sorted(per_rack(made).values()) == [6, 9]


def test_without_an_even_spread_the_ordinary_one_is_kept() -> None:
    nodes = [node("a0", "b/r1", gpu=7), node("b0", "b/r2", gpu=1)]
    even = podset(count=8, gpu=1, required="block", balanced=True)
    assert nodes_of(planned(world(nodes, [gang("g", even)]))) == [(("a0", 7), ("b0", 1))]


def test_a_podset_of_a_group_can_be_spread_evenly() -> None:
    nodes = [node(f"{r}{i}", f"b/{r}", gpu=4, cpu=9) for r in ("r1", "r2") for i in range(3)]
    group: dict[str, Any] = {"required": "block", "group": "g"}
    workers = podset("worker", 16, gpu=1, balanced=True, **group)
    leader = podset("leader", 1, cpu=4, **group)
    made = nodes_of(planned(world(nodes, [gang("g", leader, workers)])))
    assert sorted(per_rack(made[1]).values()) == [8, 8]


def per_rack(nodes: tuple[tuple[str, int], ...]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for name, count in nodes:
        counted[name[:-1]] = counted.get(name[:-1], 0) + count
    return counted


def test_a_sliced_gang_starts_on_its_lease() -> None:
    wanted = gang("g", podset(count=4, gpu=1, slices=[("rack", 4), (HOSTNAME, 2)]))
    where = placed(wanted, {"a0": 2, "a1": 2})
    nodes = [node("a0", "a", gpu=2), node("a1", "a", gpu=2), node("b0", "b", gpu=8)]
    entry = Pending(wanted, CapacityLease(where, (), 0.0, 2_000_000.0))
    (admission,) = planned(world(nodes, [entry])).admitted
    assert admission.placement == where
