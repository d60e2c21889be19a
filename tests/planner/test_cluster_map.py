"""The cluster map: each GPU of a node is free or held by a gang, and a domain is the sum of its nodes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given

from queuectl.domain.cluster_map import ClusterMap, MapDomain, NodeOccupancy
from queuectl.domain.gpus import rounded
from queuectl.domain.quantity import GPU
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.utilization import GangUse, UseState
from tests.planner.build import FLAVOR, gang, holding, node, podset, queue, resources, world
from tests.planner.generate import snapshots
from tests.support.counted import free_of, map_of

BIG = gang("big", podset(count=3, gpu=4))
SMALL = gang("small", podset(count=1, gpu=2))
NODES = [node("a1", "a", gpu=8), node("a2", "a", gpu=8), node("b1", "b", gpu=8)]


def measured(uid: str, utilization: float | None) -> GangUse:
    state = UseState.UNKNOWN if utilization is None else UseState.ACTIVE
    return GangUse(uid, 1, state, 0.0, 0.0, utilization, 1.0, "")


def seen(**changes: object) -> Snapshot:
    admitted = [holding(BIG, {"a1": 2, "b1": 1}), holding(SMALL, {"b1": 1})]
    return replace(world(NODES, [], admitted), **changes)  # type: ignore[arg-type]


def occupancies(cluster_map: ClusterMap) -> dict[str, NodeOccupancy]:
    return {occupancy.node.name: occupancy for occupancy in cluster_map.occupancies}


def racks(cluster_map: ClusterMap) -> dict[str, MapDomain]:
    (layout,) = cluster_map.layouts
    return {domain.path[-1]: domain for domain in layout.levels[1].domains}


def test_each_node_lists_its_tenants_and_its_free_capacity() -> None:
    cluster_map = map_of(seen(), {})
    found = occupancies(cluster_map)
    listed = {
        name: [
            (cluster_map.gangs[t.gang].workload.uid, t.pods, rounded(t.gpus))
            for t in occupancy.tenants
        ]
        for name, occupancy in found.items()
    }
    assert listed == {
        "a1": [("big", 2, 8.0)],
        "a2": [],
        "b1": [("big", 1, 4.0), ("small", 1, 2.0)],
    }
    assert {name: occupancy.free_gpus for name, occupancy in found.items()} == {
        "a1": 0,
        "a2": 8,
        "b1": 2,
    }
    assert found["b1"].free["pods"] == 108


def test_each_gang_is_listed_once_with_all_that_it_holds() -> None:
    gangs = map_of(seen(), {}).gangs
    assert [(g.workload.uid, g.cluster_queue, rounded(g.gpus), g.pods) for g in gangs] == [
        ("big", "main", 12.0, 3),
        ("small", "main", 2.0, 1),
    ]


def test_a_gang_is_listed_with_the_cluster_queue_that_is_charged_for_it() -> None:
    """Its LocalQueue leads to another one since its start."""
    moved = replace(seen().admitted[1], workload=replace(SMALL, charged_queue="first"))
    snapshot = world(NODES, [], [moved], queue("main"), queue("first"))
    assert [g.cluster_queue for g in map_of(snapshot, {}).gangs] == ["first"]


def test_unmanaged_pods_are_counted_as_use() -> None:
    cluster_map = map_of(seen(other_pods={"a2": resources(gpu=3)}), {})
    assert occupancies(cluster_map)["a2"].free_gpus == 5
    assert occupancies(cluster_map)["a2"].other_pods == resources(gpu=3)


def test_a_domain_is_the_sum_of_its_nodes() -> None:
    cluster_map = map_of(seen(), {})
    a, b = racks(cluster_map)["a"], racks(cluster_map)["b"]
    assert (a.path, a.nodes, a.gangs) == (("b", "a"), 2, 1)
    assert (a.gpus, a.free, a.largest) == (Fraction(16), Fraction(8), ("a2", Fraction(8)))
    assert (b.nodes, b.gangs) == (1, 2)
    assert (b.gpus, b.free, b.largest) == (Fraction(8), Fraction(2), ("b1", Fraction(2)))


@pytest.mark.parametrize(("ready", "cordoned"), [(False, False), (True, True)])
def test_free_capacity_of_a_node_that_takes_no_pods_is_not_free_in_its_domain(
    ready: bool, cordoned: bool
) -> None:
    closed = replace(NODES[1], ready=ready, unschedulable=cordoned)
    nodes = [NODES[0], closed, NODES[2]]
    a = racks(map_of(world(nodes, [], []), {}))["a"]
    assert (a.nodes, a.open, rounded(a.gpus), rounded(a.free)) == (2, 1, 16, 8)


def test_a_domain_without_an_open_node_has_no_largest_node() -> None:
    (closed,) = [replace(n, ready=False) for n in NODES if n.name == "b1"]
    assert racks(map_of(world([closed]), {}))["b"].largest is None


def test_utilization_is_weighted_by_gpus_and_leaves_out_unknown_values() -> None:
    uses = {"big": measured("big", 0.5), "small": measured("small", 0.8)}
    assert racks(map_of(seen(), uses))["b"].utilization == pytest.approx(0.6)
    uses["small"] = measured("small", None)
    assert racks(map_of(seen(), uses))["b"].utilization == pytest.approx(0.5)
    assert racks(map_of(seen(), {}))["b"].utilization is None


def test_a_node_that_lacks_a_level_is_in_no_domain() -> None:
    bare = replace(node("c1", gpu=8), labels={"kubernetes.io/hostname": "c1"})
    cluster_map = map_of(world([*NODES, bare]), {})
    (layout,) = cluster_map.layouts
    at = [occupancy.node.name for occupancy in cluster_map.occupancies].index("c1")
    assert [level.of[at] for level in layout.levels] == [-1, -1]


def test_instances_of_gpus_count_as_parts_of_one() -> None:
    slices = resources(**{"nvidia.com/mig-3g.40gb": 2, "nvidia.com/mig-1g.10gb": 1})
    cluster_map = map_of(world([replace(node("m"), allocatable=slices)]), {})
    assert occupancies(cluster_map)["m"].gpus == 1.0


@given(snapshots(gangs=2))
def test_everything_adds_up(snapshot: Snapshot) -> None:
    cluster_map = map_of(snapshot, {})
    for occupancy in cluster_map.occupancies:
        held = sum(tenant.gpus for tenant in occupancy.tenants) + occupancy.other_pods[GPU]
        assert occupancy.free_gpus == max(occupancy.gpus - held, 0)
        assert 0 <= occupancy.fragmented <= occupancy.free_gpus
    for gang_ in cluster_map.gangs:
        assert gang_.gpus <= gang_.workload.gpus
    for layout in cluster_map.layouts:
        for level in layout.levels:
            inside = [
                occupancy
                for occupancy, of in zip(cluster_map.occupancies, level.of, strict=True)
                if of >= 0
            ]
            assert sum(d.nodes for d in level.domains) == len(inside)
            assert sum(d.gpus for d in level.domains) == sum(occupancy.gpus for occupancy in inside)
            free = sum(occupancy.free_gpus for occupancy in inside if occupancy.open)
            assert sum(d.free for d in level.domains) == free


def test_fragments_of_nodes_are_those_of_their_flavor() -> None:
    nodes = [node(f"n{i}", gpu=8) for i in range(4)]
    waiting = [gang("w8", podset(count=2, gpu=8)), gang("w1", podset(count=1, gpu=1))]
    running = [holding(gang(f"r{i}", podset(gpu=i + 2)), {f"n{i}": 1}) for i in range(3)]
    snapshot = world(nodes, waiting, running)
    fragments = sum(occupancy.fragmented for occupancy in map_of(snapshot, {}).occupancies)
    assert fragments == pytest.approx(free_of(snapshot)[FLAVOR].fragmented)
