"""Each GPU of the cluster is in one part, and the parts add up to all GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.fleet import HOSTNAME, Fleet
from queuectl.domain.quantity import GPU, PODS, Resources
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.usage_reports import PARTS, GpuParts
from queuectl.domain.utilization import GangUse, UseState
from queuectl.domain.workload import PodSet, PodShape
from queuectl.reports.cluster_map import efficiency_of
from tests.planner.build import gang, holding, node, podset, resources, world
from tests.planner.generate import snapshots
from tests.support.counted import map_of


def used(state: UseState, utilization: float | None) -> dict[str, GangUse]:
    return {"g": GangUse("g", 1, state, 0.0, 0.0, utilization, 1.0, "")}


def on(name: str, gpus: int, uid: str = "g") -> Admitted:
    """A gang of one pod."""
    return holding(gang(uid, podset(count=1, gpu=gpus)), {name: 1})


def parts(
    snapshot: Snapshot, uses: Mapping[str, GangUse] | None = None, label: str | None = None
) -> dict[str, GpuParts]:
    found = map_of(snapshot, uses or {})
    return dict(efficiency_of(found.gangs, found.occupancies, label))


def gpus(**amounts: Fraction | float) -> GpuParts:
    return GpuParts(**{name: Fraction(amount) for name, amount in amounts.items()})


def sevenths(uid: str) -> Admitted:
    """A gang of three instances of a GPU."""
    shape = PodShape(Resources({"nvidia.com/mig-1g.10gb": 1, PODS: 1}))
    return holding(gang(uid, PodSet("w", 3, shape)), {"n": 3})


EIGHT = node("n", gpu=8)
FAILED_TWO = replace(node("n", gpu=6), failed=resources(gpu=2))
INSTANCES = replace(node("n"), allocatable=Resources({"nvidia.com/mig-1g.10gb": 7, PODS: 110}))
MEASURED = used(UseState.ACTIVE, 0.75)
LARGE = gang("large", podset(count=1, gpu=8))

CASES: dict[str, tuple[Snapshot, dict[str, GangUse], GpuParts]] = {
    "free": (world([EIGHT]), {}, gpus(unallocated=8)),
    "held and measured": (
        world([EIGHT], [], [on("n", 4)]), MEASURED, gpus(effective=3, idle=1, unallocated=4),
    ),
    "warming up, with samples": (
        world([EIGHT], [], [on("n", 8)]), used(UseState.WARMUP, 0.25), gpus(effective=2, idle=6),
    ),
    "stuck": (world([EIGHT], [], [on("n", 8)]), used(UseState.STUCK, 1.0), gpus(idle=8)),
    "held without samples": (
        world([EIGHT], [], [on("n", 8)]), used(UseState.UNKNOWN, None), gpus(unknown=8),
    ),
    "held by pods of no gang": (
        world([EIGHT], other_pods={"n": resources(gpu=3)}), {}, gpus(unknown=3, unallocated=5),
    ),
    "too few for the one shape": (
        world([EIGHT], [LARGE], other_pods={"n": resources(gpu=3)}), {}, gpus(unknown=3, fragmented=5),
    ),
    "too few for half of the pods": (
        world([EIGHT], [LARGE], [on("n", 4)]), MEASURED, gpus(effective=3, idle=1, fragmented=2, unallocated=2),
    ),
    "cordoned": (world([replace(EIGHT, unschedulable=True)]), {}, gpus(unhealthy=8)),
    "not ready": (world([replace(EIGHT, ready=False)]), {}, gpus(unhealthy=8)),
    "held on a cordoned node": (
        world([replace(EIGHT, unschedulable=True)], [], [on("n", 4)]), MEASURED, gpus(effective=3, idle=1, unhealthy=4),
    ),
    "failed": (world([FAILED_TWO]), {}, gpus(unhealthy=2, unallocated=6)),
    "failed while a gang holds all": (
        world([FAILED_TWO], [], [on("n", 8)]), MEASURED, gpus(effective=6, idle=2),
    ),
    "instances of GPUs": (
        world([INSTANCES], [], [sevenths("g"), sevenths("h")]), MEASURED, gpus(effective=Fraction(9, 28), idle=Fraction(3, 28), unknown=Fraction(3, 7), unallocated=Fraction(1, 7)),
    ),
    "no GPUs": (world([node("n", cpu=8)]), {}, gpus()),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_gpu_is_in_one_part(case: str) -> None:
    snapshot, uses, expected = CASES[case]
    found = parts(snapshot, uses)
    assert found == ({"": expected} if expected.total else {})


def test_the_value_of_a_node_label_divides_the_gpus() -> None:
    nodes = [
        node("a", gpu=8, labels={"model": "h100"}),
        node("b", gpu=4, labels={"model": "a100"}, ready=False),
        node("c", gpu=2),
    ]
    found = parts(world(nodes, [], [on("a", 8)]), MEASURED, "model")
    assert found == {
        "": gpus(fragmented=2),  # the only pod shape has 8 GPUs
        "a100": gpus(unhealthy=4),
        "h100": gpus(effective=6, idle=2),
    }


def test_what_is_unknown_is_the_distance_between_the_two_efficiencies() -> None:
    found = gpus(effective=3, idle=1, unallocated=4, unknown=8)
    assert (found.total, found.wasted) == (Fraction(16), Fraction(5))
    assert (found.efficiency, found.highest_efficiency) == (3 / 16, 11 / 16)
    assert (gpus().efficiency, gpus().highest_efficiency) == (None, None)


SHARES = st.none() | st.floats(0, 1)


@given(
    snapshot=snapshots(),
    failed=st.lists(st.integers(0, 3), min_size=5, max_size=5),
    shares=st.lists(SHARES, min_size=8, max_size=8),
    states=st.lists(st.sampled_from(UseState), min_size=8, max_size=8),
)
def test_the_parts_add_up_to_all_gpus_of_the_nodes(
    snapshot: Snapshot, failed: list[int], shares: list[float | None], states: list[UseState]
) -> None:
    nodes = [
        replace(each, failed=resources(gpu=lost))
        for each, lost in zip(snapshot.fleet.nodes, failed, strict=False)
    ]
    given_uses = zip(snapshot.admitted, shares, states, strict=False)
    uses = {
        gang.workload.uid: GangUse(gang.workload.uid, 1, state, 0.0, 0.0, share, 1.0, "")
        for gang, share, state in given_uses
    }
    found = parts(replace(snapshot, fleet=Fleet(tuple(nodes))), uses, HOSTNAME)
    for each in nodes:
        capacity = sum(by[GPU] for by in (each.allocatable, each.failed))
        mine = found.pop(each.labels.get(HOSTNAME, ""), gpus()) if capacity else gpus()
        assert mine.total == capacity
        assert min(getattr(mine, name) for name in PARTS) >= 0
    assert found == {}


NODES = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from([1, 4, 7]), st.integers(1, 12), st.integers(0, 5)),
    min_size=1,
    max_size=4,
)


@given(nodes=NODES, shares=st.lists(SHARES, min_size=4, max_size=4))
def test_instances_and_replicas_add_up_to_physical_gpus_exactly(
    nodes: list[tuple[int, int, int, int]], shares: list[float | None]
) -> None:
    """Each node: physical GPUs, MIG instances of each, replicas of each instance, and pods with one replica."""
    profiles = {1: "", 4: "-MIG-1g.6gb", 7: "-MIG-1g.5gb"}
    fleet, gangs, uses = [], [], {}
    for i, (physical, cut, replicas, pods) in enumerate(nodes):
        product = {4: "NVIDIA-A30"}.get(cut, "NVIDIA-A100") + profiles[cut]
        labels = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.replicas": str(replicas)}
        units = physical * cut * replicas
        fleet.append(node(f"n{i}", gpu=units, labels=labels))
        if pods:
            uid = f"g{i}"
            gangs.append(
                holding(
                    gang(uid, podset(count=min(pods, units), gpu=1)), {f"n{i}": min(pods, units)}
                )
            )
            uses[uid] = GangUse(uid, 1, UseState.ACTIVE, 0.0, 0.0, shares[i], 1.0, "")
    found = parts(world(fleet, [], gangs), uses, HOSTNAME)
    for i, (physical, cut, replicas, pods) in enumerate(nodes):
        mine = found[f"n{i}"]
        held = Fraction(min(pods, physical * cut * replicas), cut * replicas)
        assert mine.total == physical
        assert mine.effective + mine.idle + mine.unknown == held
        assert min(getattr(mine, name) for name in PARTS) >= 0
