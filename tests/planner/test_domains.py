"""Spread of gangs: domains used, alongside the fewest that suffice, against trying all sets of domains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.plan import Admission
from queuectl.domain.quantity import GPU
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import FlavorShare, Workload
from queuectl.planner import plan
from queuectl.reports.fragmentation import DomainSpread, spreads
from tests.planner import generate
from tests.planner.build import FLAVOR, gang, holding, node, placed, podset, resources, world
from tests.support.examples import examples

NODES = [node(name, where, gpu=8) for name, where in (
    ("a", "b0/r0"), ("b", "b0/r0"), ("c", "b0/r1"), ("d", "b0/r1"), ("e", "b1/r2"), ("f", "b1/r2"),
)]  # fmt: skip


def spread(
    where: Mapping[str, int], *, gpu: int = 8, nodes: Sequence[Node] = NODES
) -> dict[str, DomainSpread]:
    """The report for a gang of one podset that is started there."""
    workload = gang("w", podset(count=sum(where.values()), gpu=gpu))
    return spreads(world(nodes, [workload]), [Admission("w", placed(workload, where))])


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"a": 1}, {"block": (1, 1), "rack": (1, 1), HOSTNAME: (1, 1)}),
        ({"a": 1, "b": 1}, {"block": (1, 1), "rack": (1, 1), HOSTNAME: (2, 2)}),
        ({"a": 1, "c": 1}, {"block": (1, 1), "rack": (2, 1), HOSTNAME: (2, 2)}),
        ({"a": 1, "e": 1}, {"block": (2, 1), "rack": (2, 1), HOSTNAME: (2, 2)}),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, {"block": (1, 1), "rack": (2, 2), HOSTNAME: (4, 4)}),
        (
            {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1},
            {"block": (2, 2), "rack": (3, 3), HOSTNAME: (5, 5)},
        ),
    ],
)
def test_domains_are_counted_level_by_level(
    where: dict[str, int], expected: dict[str, tuple[int, int]]
) -> None:
    assert spread(where) == expected


def test_a_node_holds_as_many_pods_as_its_scarcest_resource_allows() -> None:
    assert spread({"a": 1, "b": 1}, gpu=4)[HOSTNAME] == (2, 1)
    narrow = [replace(one, allocatable=resources(gpu=8, pods=1)) for one in NODES]
    assert spread({"a": 1, "b": 1}, gpu=4, nodes=narrow)[HOSTNAME] == (2, 2)


def test_the_fewest_counts_only_open_nodes_that_it_may_use() -> None:
    away = [replace(one, ready=one.name not in "bdf") for one in NODES]
    assert spread({"a": 1, "c": 1}, nodes=away)["rack"] == (2, 2)
    cordoned = [replace(one, unschedulable=one.name in "bdf") for one in NODES]
    assert spread({"a": 1, "c": 1}, nodes=cordoned)["rack"] == (2, 2)
    unlabeled = [
        replace(one, labels={HOSTNAME: one.name}) if one.name in "bdf" else one for one in NODES
    ]
    assert spread({"a": 1, "c": 1}, nodes=unlabeled)[HOSTNAME] == (2, 2)
    assert spread({"a": 1, "c": 1}, nodes=unlabeled)["rack"] == (2, 2)


def test_podsets_are_counted_each_by_itself() -> None:
    workload = gang("w", podset("m", 1, gpu=8), podset("w", 2, gpu=8))
    started = [Admission("w", placed(workload, {"a": 1}, {"b": 1, "e": 1}))]
    assert spreads(world(NODES, [workload]), started)["rack"] == DomainSpread(used=3, least=2)


def test_what_is_repaired_split_or_quota_only_is_not_counted() -> None:
    workload = gang("w", podset(count=2, gpu=8))
    place = placed(workload, {"a": 1, "e": 1})
    repaired = [Admission("w", place, repaired=True)]
    assert spreads(world(NODES, [workload]), repaired) == {}
    (one,) = place.podsets
    share = FlavorShare(1, {GPU: FLAVOR})
    split = replace(place, podsets=(replace(one, shares=(share, share)),))
    assert spreads(world(NODES, [workload]), [Admission("w", split)]) == {}
    quota_only = replace(place, podsets=(replace(one, nodes=()),))
    assert spreads(world(NODES, [workload]), [Admission("w", quota_only)]) == {}


def fewest(rooms: Mapping[str, int], pods: int) -> int:
    """By trying."""
    return next(
        size
        for size in range(1, len(rooms) + 1)
        if any(sum(rooms[d] for d in some) >= pods for some in combinations(rooms, size))
    )


@given(
    st.lists(st.tuples(st.sampled_from("012"), st.integers(0, 8)), min_size=1, max_size=6),
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.integers(0, 8),
)
def test_the_fewest_is_the_result_of_enumeration_and_no_plan_needs_less(
    racks: list[tuple[str, int]], counts: list[int], taken: int
) -> None:
    nodes = [node(f"n{i}", f"b/{rack}", gpu=gpu) for i, (rack, gpu) in enumerate(racks)]
    other = [holding(gang("other", podset(count=1, gpu=min(taken, racks[0][1]))), {"n0": 1})]
    waiting: list[Workload] = [
        gang(f"g{i}", podset(count=count, gpu=2)) for i, count in enumerate(counts)
    ]
    snapshot = world(nodes, waiting, other)
    decision = plan(snapshot)
    rooms: dict[str, int] = {}
    for rack, gpu in racks:
        rooms[rack] = rooms.get(rack, 0) + gpu // 2
    started = {admission.uid for admission in decision.admitted}
    sizes = [count for i, count in enumerate(counts) if f"g{i}" in started]
    found = spreads(snapshot, decision.admitted)
    if not sizes:
        assert found == {}
        return
    assert found["rack"].least == sum(fewest(rooms, size) for size in sizes)
    assert found[HOSTNAME].least == sum(
        fewest({str(i): gpu // 2 for i, (_, gpu) in enumerate(racks)}, size) for size in sizes
    )
    assert all(one.used >= one.least >= 1 for one in found.values())


@settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
@given(generate.snapshots(gangs=3, tenants=3))
def test_a_start_never_uses_fewer_domains_than_the_fewest(snapshot: Snapshot) -> None:
    """Shapes, slices, groups, taints, several flavors, quota-only gangs: every kind of snapshot there is."""
    found = spreads(snapshot, plan(snapshot).admitted)
    assert all(spread.used >= spread.least >= 1 for spread in found.values())
