"""Rows of devices against kube-scheduler's allocator, pod by pod in each order with each choice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.devices.needs import atoms_of
from queuectl.devices.reading import needs_of
from queuectl.devices.rows import groups_of
from queuectl.domain.devices import (
    CapacityPolicy,
    Device,
    DeviceEffect,
    DeviceTaint,
    DeviceToleration,
    NodeDevices,
    PodDevices,
)
from tests.devices.build import (
    HAS_ROOT,
    ROOT,
    device,
    matching,
    node,
    option,
    pod,
    request,
    selected,
)
from tests.devices.oracle import robust


class Capacity:
    """The rows of a node for some pods."""

    def __init__(self, on: NodeDevices, pods: Sequence[PodDevices]) -> None:
        self.pods = [atoms_of(each).counts for each in pods]
        self.atoms = list(dict.fromkeys(atom for counts in self.pods for atom in counts))
        self.needs = needs_of(on, (), self.atoms, matching)
        self.groups = groups_of(self.needs)

    def accepts(self, numbers: Sequence[int]) -> bool:
        """Whether so many of each pod fulfill the rows."""
        total: Counter[int] = Counter()
        for counts, number in zip(self.pods, numbers, strict=True):
            for atom, amount in counts.items():
                total[self.atoms.index(atom)] += amount * number
        return not any(isinstance(self.needs.needs[atom], str) for atom in +total) and all(
            sum(total[atom] * weight for atom, weight in weights) <= limit
            for group in self.groups
            for weights, limit in group.limits
        )


def largest(on: NodeDevices, *pods: PodDevices) -> set[tuple[int, ...]]:
    """The largest accepted numbers of each pod."""
    capacity = Capacity(on, pods)
    box = [c for c in product(range(10), repeat=len(pods)) if capacity.accepts(c)]
    return {c for c in box if not any(d != c and all(map(int.__le__, c, d)) for d in box)}


def gpus(number: int, roots: int = 0, kind: str = "gpu") -> list[Device]:
    return [
        device(f"{kind}{i}", kind, root=f"root{i % roots}" if roots else None)
        for i in range(number)
    ]


ONE, TWO = pod(option()), pod(option(count=2))
PAIR = pod(option(count=2), match=ROOT)
WITH_NIC = pod(option(), option("nic"), match=ROOT)

CASES = {
    "devices are counted": (node(*gpus(8)), (ONE, TWO), {(8, 0), (6, 1), (4, 2), (2, 3), (0, 4)}),
    "classes without common devices do not interfere": (
        node(*gpus(2), *gpus(3, kind="nic")),
        (ONE, pod(option("nic"))),
        {(2, 3)},
    ),
    "a pod of two classes takes of both": (
        node(*gpus(2), *gpus(3, kind="nic")),
        (pod(option(), option("nic")), pod(option("nic"))),
        {(2, 1), (1, 2), (0, 3)},
    ),
    "two devices of one root": (node(*gpus(8, roots=4)), (PAIR,), {(4,)}),
    "a GPU and a NIC of one root alongside single GPUs": (
        node(*gpus(4, roots=4), *gpus(4, roots=4, kind="nic")),
        (WITH_NIC, ONE),
        {(4, 0), (3, 1), (2, 2), (1, 3), (0, 4)},
    ),
    "single GPUs can take both GPUs of a root with a NIC": (
        node(*gpus(8, roots=4), *gpus(4, roots=4, kind="nic")),
        (WITH_NIC, ONE),
        {(4, 1), (3, 3), (2, 5), (1, 7), (0, 8)},
    ),
    "different roots": (
        node(*gpus(4, roots=2)),
        (pod(option(), option(), distinct=ROOT),),
        {(2,)},
    ),
    "a device without the attribute fails a constraint": (
        node(*gpus(2)),
        (pod(option(), option(), distinct=ROOT),),
        {(0,)},
    ),
    "a taint that is not tolerated": (
        node(device("a"), device("b", taints=[DeviceTaint("bad", DeviceEffect.NO_SCHEDULE)])),
        (ONE, pod(option(tolerations=(DeviceToleration(operator="Exists"),)))),
        {(1, 0), (0, 2)},
    ),
    "all devices": (node(*gpus(3)), (pod(option(count=None)), ONE), {(1, 0), (0, 3)}),
    "a tainted device prevents a request for all": (
        node(device("a"), device("b", taints=[DeviceTaint("bad", DeviceEffect.NO_EXECUTE)])),
        (pod(option(count=None)),),
        {(0,)},
    ),
    "all devices, of which one has no attribute of a constraint and one has a taint": (
        node(
            device("a"),
            device("b", root="x", taints=[DeviceTaint("bad", DeviceEffect.NO_SCHEDULE)]),
        ),
        (pod(request("r", option(count=None), option()), match=ROOT),),
        {(0,)},
    ),
    "administration takes nothing": (
        node(*gpus(2)),
        (pod(option(count=None, admin=True)), TWO),
        {(9, 1)},
    ),
    "the second alternative where the first is in use": (
        node(*gpus(1), *gpus(2, kind="old")),
        (pod(request("r", option(), option("old"))),),
        {(3,)},
    ),
    "shares of the memory of a device": (
        node(device("a", memory=40, shared=True), device("b", memory=40, shared=True)),
        (pod(option(capacity=(("gpu.example.com/memory", 15),))),),
        {(4,)},
    ),
    "a share is rounded up by the policy": (
        node(
            device(
                "a",
                memory=40,
                shared=True,
                policy=CapacityPolicy(Fraction(10), (Fraction(10), Fraction(20))),
            )
        ),
        (pod(option(capacity=(("gpu.example.com/memory", 15),))), pod(option())),
        {(2, 0), (1, 2), (0, 4)},
    ),
    "parts of a GPU": (
        node(
            device("whole", consumes={"slices": 4}),
            *(device(f"part{i}", "part", consumes={"slices": 1}) for i in range(4)),
            slices=4,
        ),
        (pod(option("part")),),
        {(4,)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_known_capacity(name: str) -> None:
    on, pods, expected = CASES[name]
    assert largest(on, *pods) == expected


EXACT = {
    "plain devices": (node(*gpus(4)), (ONE, TWO)),
    "disjoint classes": (node(*gpus(2), *gpus(2, kind="nic")), (ONE, pod(option("nic")))),
    "two of one root": (node(*gpus(5, roots=2)), (PAIR,)),
    "a NIC alongside each GPU": (
        node(*gpus(2, roots=2), *gpus(2, roots=2, kind="nic")),
        (WITH_NIC, ONE),
    ),
    "fewer NICs than GPUs": (
        node(*gpus(4, roots=2), *gpus(1, roots=2, kind="nic")),
        (WITH_NIC, ONE),
    ),
    "different roots": (node(*gpus(4, roots=2)), (pod(option(), option(), distinct=ROOT),)),
    "parts and counters": (
        node(*(device(f"d{i}", consumes={"x": 1 + i % 2}) for i in range(5)), x=4),
        (ONE,),
    ),
    "shares": (
        node(*(device(f"d{i}", memory=40, shared=True) for i in range(2))),
        (pod(option(capacity=(("gpu.example.com/memory", 15),))),),
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_rows_are_the_whole_capacity_in_families_without_choice(name: str) -> None:
    on, pods = EXACT[name]
    capacity = Capacity(on, pods)
    for counts in product(range(6), repeat=len(pods)):
        asked = tuple(p for p, n in zip(pods, counts, strict=True) for _ in range(n))
        assert capacity.accepts(counts) == robust(on, asked, selected), counts


def test_whole_pairs_and_single_devices_share_a_node_only_as_far_as_it_is_sure() -> None:
    on = node(*gpus(6, roots=3))
    assert largest(on, PAIR) == {(3,)}
    assert largest(on, PAIR, ONE) == {(3, 0), (2, 1), (1, 2), (0, 4)}
    (group,) = Capacity(on, (PAIR, ONE)).groups
    assert not group.exact
    assert group.lost == {1: 6}


@st.composite
def small_nodes(draw: st.DrawFn) -> NodeDevices:
    devices = []
    for number in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["gpu", "nic"]))
        root = draw(st.sampled_from([None, "a", "b"]))
        shared = draw(st.integers(0, 4)) == 0
        consumes = draw(st.sampled_from([None, None, {"x": 1}, {"x": 2}, {"x": 1, "y": 1}]))
        memory = 2 if shared else draw(st.sampled_from([None, 1, 2]))
        devices.append(
            device(f"d{number}", kind, root=root, consumes=consumes, memory=memory, shared=shared)
        )
    return node(*devices, x=draw(st.integers(1, 4)), y=draw(st.integers(0, 2)))


OPTIONS = st.builds(
    option,
    st.sampled_from(["gpu", "nic", "any"]),
    st.sampled_from([1, 1, 2, None]),
    selectors=st.sampled_from([(), (HAS_ROOT,)]),
    capacity=st.sampled_from([(), (("gpu.example.com/memory", 1),)]),
)


@st.composite
def pods_of(draw: st.DrawFn) -> PodDevices:
    requests = []
    for number in range(draw(st.integers(1, 2))):
        options = draw(st.lists(OPTIONS, min_size=1, max_size=2))
        requests.append(request(f"r{number}", *options))
    constraint = draw(st.sampled_from(["", "", "match", "distinct"]))
    return pod(
        *requests,
        match=ROOT if constraint == "match" else None,
        distinct=ROOT if constraint == "distinct" else None,
    )


@given(small_nodes(), st.lists(pods_of(), min_size=1, max_size=2, unique=True))
def test_each_combination_that_the_rows_accept_is_sure(
    on: NodeDevices, pods: list[PodDevices]
) -> None:
    capacity = Capacity(on, pods)
    for counts in product(range(4), repeat=len(pods)):
        if sum(counts) and capacity.accepts(counts):
            asked = tuple(p for p, n in zip(pods, counts, strict=True) for _ in range(n))
            assert robust(on, asked, selected), counts
