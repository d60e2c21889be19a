"""Pods that request one NUMA node: the rows against each choice that kubelets can make, and whole snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.devices.lower import DeviceCache, with_devices
from queuectl.devices.matching import Matching
from queuectl.devices.needs import atoms_of
from queuectl.devices.numa import with_numa_nodes_of_others
from queuectl.devices.numa_devices import CLAIM_OF_OTHERS, NumaDevices, claim_of
from queuectl.devices.reading import needs_of
from queuectl.devices.rows import groups_of
from queuectl.domain.devices import ClaimSpec, DeviceInventory, NodeZones, PodDevices
from queuectl.domain.fleet import NodeTemplate
from queuectl.domain.plan import Refusal
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queues import ResourceFlavor
from queuectl.domain.reasons import Code
from queuectl.domain.request_rules import ContainerNeeds, PodNeeds, limited, requested
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import PodSet, Workload
from queuectl.planner import plan
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import (
    FLAVOR,
    config,
    gang,
    holding,
    node,
    podset,
    queue,
    resources,
    world,
)
from tests.planner.test_provisioning import checked

CPU = 1000  # millicores
GIB = 1 << 30


def container(cpu: int, memory: int, gpu: int = 0) -> ContainerNeeds:
    """Guaranteed, with whole CPUs and GiB."""
    amounts = [("cpu", cpu * CPU), ("memory", memory * GIB), *([(GPU, gpu)] if gpu else [])]
    return ContainerNeeds(tuple(amounts), tuple(amounts))


def pods(count: int, *containers: ContainerNeeds, aligned: bool = True, name: str = "w") -> PodSet:
    needs = PodNeeds(tuple(containers))
    made = podset(name, count)
    shape = replace(made.shape, requests=requested(needs))
    return replace(made, shape=shape, limits=limited(needs), needs=needs, one_numa_node=aligned)


def zones(
    *each: Mapping[str, int], policy: str = "single-numa-node", scope: str = "pod"
) -> NodeZones:
    return NodeZones(tuple(map(amounts, each)), policy, scope)


def amounts(given: Mapping[str, int]) -> Resources:
    units = {"cpu": CPU, "memory": GIB}
    return Resources(
        {GPU if n == "gpu" else n: value * units.get(n, 1) for n, value in given.items()}
    )


HALF = {"cpu": 8, "memory": 32, "gpu": 4}
TWO_ZONES = zones(HALF, HALF)


def cluster(
    nodes: Mapping[str, NodeZones | None],
    gangs: Sequence[Workload],
    admitted: Sequence[Admitted] = (),
    *,
    other_pods: Mapping[str, Resources] | None = None,
    guaranteed: Sequence[str] = (),
) -> Snapshot:
    """Nodes of 16 CPUs, 64 GiB and 8 GPUs, most of them with NUMA nodes."""
    made = world(
        [node(name, gpu=8, cpu=16 * CPU, memory=64 * GIB) for name in sorted(nodes)],
        gangs,
        admitted,
        other_pods=other_pods,
    )
    inventory = DeviceInventory(
        zones={name: each for name, each in nodes.items() if each is not None}
    )
    others = with_numa_nodes_of_others(
        {}, inventory, made.other_pods, frozenset(guaranteed).intersection
    )
    return replace(made, devices=inventory, other_devices=others)


def starts(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    """The gangs that start, with the pods on each node."""
    taken = with_devices(snapshot, DeviceCache())
    made = plan(taken)
    assert verify(taken, made, Matching({})) == ()
    return {a.uid: dict(a.placement.podsets[0].by_node) for a in made.admitted}


def why(snapshot: Snapshot) -> tuple[Code, str]:
    (refusal,) = plan(with_devices(snapshot, DeviceCache())).pending
    return refusal.reasons[0].code, refusal.reasons[0].message


def one(*podsets: PodSet, uid: str = "g", at: float = 0.0) -> Workload:
    return gang(uid, *podsets, queue=None, queued_at=at)


# ---- the oracle: each NUMA node that has room can be the choice of the kubelet, for each pod, in each order


def sure(zones_: Sequence[Mapping[str, int]], pods_: Sequence[Mapping[str, int]]) -> bool:
    """Whether each order and each choice leaves a NUMA node for each pod."""
    names = sorted({name for pod in pods_ for name in pod})
    free = tuple(tuple(zone.get(name, 0) for name in names) for zone in zones_)
    asked = tuple(tuple(pod.get(name, 0) for name in names) for pod in pods_)

    @cache
    def holds(free: tuple[tuple[int, ...], ...], left: tuple[tuple[int, ...], ...]) -> bool:
        for i, pod in enumerate(left):
            rest = left[:i] + left[i + 1 :]
            after = [
                tuple(sorted((*free[:z], tuple(map(int.__sub__, zone, pod)), *free[z + 1 :])))
                for z, zone in enumerate(free)
                if all(map(int.__le__, pod, zone))
            ]
            if not after or not all(holds(each, rest) for each in after):
                return False
        return True

    return holds(tuple(sorted(free)), tuple(sorted(asked)))


class Rows:
    """The rows of one node for some pods, the last of which does not request one NUMA node."""

    def __init__(self, on: NodeZones, shapes: Sequence[PodNeeds]) -> None:
        claims: list[ClaimSpec] = [*map(claim_of, shapes), CLAIM_OF_OTHERS]
        names = frozenset(n for needs in shapes for c in needs.containers for n, _ in c.requests)
        (made,) = NumaDevices(names).nodes(["n"], {}, {"n": on}).values()
        counts = [atoms_of(PodDevices((claim,))).counts for claim in claims]
        self.atoms = [next(iter(each)) for each in counts]
        unlike = list(dict.fromkeys(self.atoms))
        self.of = [unlike.index(atom) for atom in self.atoms]
        self.needs = needs_of(made, (), unlike, Matching({}))
        self.groups = groups_of(self.needs)

    def accepts(self, numbers: Sequence[int]) -> bool:
        total = [0] * len(self.needs.needs)
        for at, number in zip(self.of, numbers, strict=True):
            total[at] += number
        known = {atom for group in self.groups for atom in group.atoms if group.alone}
        return all(not n or at in known for at, n in enumerate(total)) and all(
            sum(total[at] * weight for at, weight in weights) <= limit
            for group in self.groups
            for weights, limit in group.limits
        )


ZONE = st.fixed_dictionaries({"cpu": st.integers(0, 4), "memory": st.integers(0, 4)})
POD = st.fixed_dictionaries({"cpu": st.integers(1, 3), "memory": st.integers(1, 3)})


@given(st.lists(ZONE, min_size=1, max_size=3), st.lists(POD, min_size=1, max_size=2))
def test_accepted_pods_fit_for_each_choice_of_the_kubelet(
    given_zones: list[dict[str, int]], shapes: list[dict[str, int]]
) -> None:
    rows = Rows(
        zones(*given_zones), [PodNeeds((container(s["cpu"], s["memory"]),)) for s in shapes]
    )
    for numbers in product(range(5), repeat=len(shapes)):
        if rows.accepts((*numbers, 0)):
            all_ = [s for s, n in zip(shapes, numbers, strict=True) for _ in range(n)]
            assert sure(given_zones, all_)
            assert not any(numbers) or not rows.accepts((*numbers, 1))
        elif sum(map(bool, numbers)) == 1 and len(shapes) == 1:
            assert not sure(given_zones, [shapes[0]] * numbers[0])


# ---- snapshots


def test_pods_take_from_one_numa_node_each() -> None:
    three = pods(4, container(3, 8))
    assert starts(cluster({"n": TWO_ZONES}, [one(three)])) == {"g": {"n": 4}}
    assert starts(cluster({"n": TWO_ZONES}, [one(replace(three, count=5))])) == {}
    plain = pods(5, container(3, 8), aligned=False)
    assert starts(cluster({"n": TWO_ZONES}, [one(plain)])) == {"g": {"n": 5}}


def test_gpus_of_a_numa_node_count() -> None:
    assert starts(cluster({"n": TWO_ZONES}, [one(pods(2, container(1, 1, 3)))])) == {"g": {"n": 2}}
    assert starts(cluster({"n": TWO_ZONES}, [one(pods(3, container(1, 1, 2)))])) == {"g": {"n": 3}}
    assert starts(cluster({"n": TWO_ZONES}, [one(pods(3, container(1, 1, 3)))])) == {}


def test_a_device_that_no_numa_node_has_is_taken_from_the_node() -> None:
    without = zones({"cpu": 8, "memory": 32}, {"cpu": 8, "memory": 32})
    assert starts(cluster({"n": without}, [one(pods(1, container(4, 4, 8)))])) == {"g": {"n": 1}}
    no_memory = zones({"cpu": 8}, {"cpu": 8})
    assert starts(cluster({"n": no_memory}, [one(pods(1, container(4, 4)))])) == {}


def test_small_pods_can_leave_no_numa_node_for_a_large_one() -> None:
    small, large = pods(2, container(1, 1)), pods(1, container(8, 8))
    gangs = [one(small, uid="a"), one(large, uid="b", at=1.0)]
    assert starts(cluster({"n": TWO_ZONES}, gangs)).keys() < {"a", "b"}
    assert starts(cluster({"n": TWO_ZONES, "m": TWO_ZONES}, gangs)).keys() == {"a", "b"}


def test_running_pods_can_be_on_each_numa_node() -> None:
    running = holding(one(pods(2, container(4, 8)), uid="r"), {"n": 2}, flavor=None)
    large = one(pods(1, container(8, 8)))
    assert starts(cluster({"n": TWO_ZONES}, [large], [running])) == {}
    assert starts(cluster({"n": TWO_ZONES}, [one(pods(2, container(4, 8)))], [running])) == {
        "g": {"n": 2}
    }


def test_guaranteed_pods_that_do_not_request_it_keep_others_off_their_node() -> None:
    aligned, plain = one(pods(2, container(4, 4))), one(pods(2, container(4, 4), aligned=False))
    ran = holding(replace(plain, uid="r"), {"n": 2}, flavor=None)
    assert starts(cluster({"n": TWO_ZONES}, [aligned], [ran])) == {}
    ran = holding(replace(aligned, uid="r"), {"n": 2}, flavor=None)
    assert starts(cluster({"n": TWO_ZONES}, [plain], [ran])) == {}
    assert starts(cluster({"n": TWO_ZONES, "m": None}, [plain], [ran])) == {"g": {"m": 2}}


def test_other_pods_share_a_node_with_pods_of_one_numa_node() -> None:
    """The kubelet gives them no exclusive CPUs."""
    needs = PodNeeds((ContainerNeeds((("cpu", 4 * CPU), ("memory", 4 * GIB))),))
    plain = replace(pods(2, container(4, 4), aligned=False), limits=limited(needs), needs=needs)
    ran = holding(one(pods(2, container(4, 4)), uid="r"), {"n": 2}, flavor=None)
    assert starts(cluster({"n": TWO_ZONES}, [one(plain)], [ran])) == {"g": {"n": 2}}


@pytest.mark.parametrize(
    ("used", "guaranteed", "fits"),
    [
        ({"cpu": 1, "memory": 1}, [], True),
        ({"cpu": 1, "memory": 1}, ["n"], False),
        ({"gpu": 1}, [], False),
    ],
)
def test_pods_of_no_gang_keep_a_node_from_gangs_only_if_they_hold_a_part_of_a_numa_node(
    used: dict[str, int], guaranteed: list[str], fits: bool
) -> None:
    snapshot = cluster(
        {"n": TWO_ZONES},
        [one(pods(2, container(4, 4)))],
        other_pods={"n": amounts(used)},
        guaranteed=guaranteed,
    )
    assert starts(snapshot) == ({"g": {"n": 2}} if fits else {})


def test_nodes_are_divided_among_pods_of_one_numa_node_and_others() -> None:
    gangs = [
        one(pods(4, container(4, 4)), uid="a"),
        one(pods(4, container(4, 4), aligned=False), uid="b", at=1.0),
    ]
    assert starts(cluster({"n": TWO_ZONES, "m": TWO_ZONES}, gangs)).keys() == {"a", "b"}


def test_several_containers_need_a_kubelet_that_chooses_for_the_whole_pod() -> None:
    two = one(pods(2, container(2, 2), container(2, 2)))
    single = one(pods(2, container(4, 4)))
    each = zones(HALF, HALF, scope="container")
    assert starts(cluster({"c": each, "p": TWO_ZONES}, [two])) == {"g": {"p": 2}}
    assert starts(cluster({"c": each}, [single])) == {"g": {"c": 2}}
    code, message = why(cluster({"c": each}, [two]))
    assert code is Code.UNSUPPORTED
    assert message == (
        "podset w requests one NUMA node for each pod: its pods have several containers, and "
        "topologyManagerScope is pod on no node"
    )


PART = ContainerNeeds((("cpu", 500), ("memory", GIB)), (("cpu", 500), ("memory", GIB)))
BURSTABLE = ContainerNeeds((("cpu", CPU), ("memory", GIB)), (("cpu", 2 * CPU), ("memory", GIB)))
ALIGNED = "the kubelet aligns only Guaranteed pods with whole CPUs, and containers[0].resources: "


@pytest.mark.parametrize(
    ("on", "asked", "message"),
    [
        (None, container(1, 1), "no node has a NodeResourceTopology object"),
        (
            zones(HALF, policy="best-effort"),
            container(1, 1),
            "topologyManagerPolicy is best-effort in 1 NodeResourceTopology object, not single-numa-node",
        ),
        (TWO_ZONES, PART, f"{ALIGNED}500m is not a whole number of CPUs"),
        (
            TWO_ZONES,
            BURSTABLE,
            f"{ALIGNED}the limit of cpu is not set, or differs from the request",
        ),
        (
            TWO_ZONES,
            ContainerNeeds((("cpu", CPU),), (("cpu", CPU),)),
            f"{ALIGNED}the limit of memory is not set, or differs from the request",
        ),
    ],
)
def test_a_request_that_no_kubelet_enforces_is_refused_with_the_reason(
    on: NodeZones | None, asked: ContainerNeeds, message: str
) -> None:
    assert why(cluster({"n": on}, [one(pods(1, asked))])) == (
        Code.UNSUPPORTED,
        f"podset w requests one NUMA node for each pod: {message}",
    )


def test_a_pod_that_is_larger_than_each_numa_node_never_fits() -> None:
    code, message = why(cluster({"n": TWO_ZONES}, [one(pods(1, container(9, 4)))]))
    assert code is Code.SHAPE_NEVER_FITS
    assert message.endswith("no node has one NUMA node with 9 cpu and 4Gi memory")


def test_a_gang_that_fits_by_the_amounts_only_waits_with_the_reason() -> None:
    running = holding(one(pods(2, container(1, 1)), uid="r"), {"n": 2}, flavor=None)
    code, message = why(cluster({"n": TWO_ZONES}, [one(pods(1, container(8, 8)))], [running]))
    assert code is Code.TOPOLOGY_PLACEMENT_FAILED
    assert message.endswith(
        "the amounts are enough, but the kubelet can choose NUMA nodes for some pods that leave "
        "none for others"
    )


def test_quota_counts_no_numa_nodes() -> None:
    taken = with_devices(cluster({"n": TWO_ZONES}, [one(pods(1, container(1, 1)))]), DeviceCache())
    shape = taken.pending[0].workload.podsets[0].shape
    assert {n for n in shape.requests if n not in shape.incidental} == {"cpu", "memory", "pods"}


def test_the_verifier_finds_pods_that_a_numa_node_does_not_hold() -> None:
    taken = with_devices(cluster({"n": TWO_ZONES}, [one(pods(4, container(3, 8)))]), DeviceCache())
    made = plan(taken)
    smaller = cluster({"n": zones(HALF, {**HALF, "cpu": 5})}, [one(pods(4, container(3, 8)))])
    changed = with_devices(smaller, DeviceCache())
    rules = {v.rule for v in verify(replace(taken, devices=changed.devices), made, Matching({}))}
    assert rules == {PlanRule.DEVICES}


def test_a_second_snapshot_has_the_same_objects() -> None:
    snapshot = cluster({"n": TWO_ZONES}, [one(pods(1, container(1, 1)))])
    cache_ = DeviceCache()
    first = with_devices(snapshot, cache_)
    second = with_devices(replace(snapshot, now=snapshot.now + 1), cache_)
    assert second.fleet is first.fleet
    assert second.pending[0] is first.pending[0]
    plain = cluster({"n": TWO_ZONES}, [one(pods(1, container(1, 1), aligned=False))])
    assert with_devices(plain, DeviceCache()) is plain


@pytest.mark.parametrize(
    "template", [None, NodeTemplate(resources(gpu=8, cpu=16 * CPU, pods=110), 9)]
)
def test_a_gang_that_requests_one_numa_node_changes_no_request_for_nodes_of_another(
    template: NodeTemplate | None,
) -> None:
    plain = gang("plain", podset(count=3, gpu=8))
    aligned = gang("aligned", pods(1, container(4, 8, 4)), queued_at=1.0)
    for gangs in ([plain], [plain, aligned]):
        waits = made_for(gangs, template)["plain"]
        assert waits.lease is not None
        assert waits.reasons[0].code is Code.WAITING_FOR_CHECKS


def test_no_nodes_are_requested_for_a_gang_that_requests_one_numa_node() -> None:
    runs = holding(gang("runs", podset(count=2, gpu=8)), {"n0": 1, "n1": 1})
    aligned = gang("aligned", pods(2, container(4, 8, 4)), queued_at=1.0)
    waits = made_for([aligned], None, [runs])["aligned"]
    assert waits.lease is None
    assert [reason.message for reason in waits.reasons][1:] == [
        "no nodes are requested, because podset w requests one NUMA node for each pod"
    ]


def made_for(
    gangs: Sequence[Workload], template: NodeTemplate | None, admitted: Sequence[Admitted] = ()
) -> dict[str, Refusal]:
    """The gangs that wait, on two nodes with NUMA nodes and with a check that makes nodes of this template."""
    flavors = [ResourceFlavor(FLAVOR, topology="gpus", node_template=template)]
    quota = config(queue(memory=64 * GIB), flavors=flavors)
    snapshot = cluster({"n0": TWO_ZONES, "n1": TWO_ZONES}, gangs, admitted)
    snapshot = checked(replace(snapshot, config=quota))
    made = plan(with_devices(snapshot, DeviceCache()))
    assert verify(snapshot, made) == ()
    return {refusal.uid: refusal for refusal in made.pending}
