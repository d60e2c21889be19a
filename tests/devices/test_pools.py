"""From ResourceSlices to the devices of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.devices.pools import DevicePools, defect, node_devices
from queuectl.domain.devices import DeviceKind, NodeAccess, NodeDevices, PoolSlice, PublishedDevice
from queuectl.domain.fleet import Fleet, Node, Requirement, SelectorTerm

DRIVER = "gpu.example"
KIND = DeviceKind(DRIVER)
FLEET = Fleet(tuple(Node(f"n{i}", {"rack": f"r{i // 2}"}) for i in range(4)))
RACK_0 = NodeAccess(selector=SelectorTerm((Requirement("rack", "In", ("r0",)),)))
ONLY_N1 = NodeAccess(
    selector=SelectorTerm((Requirement("metadata.name", "In", ("n1",), field=True),))
)
ALL = NodeAccess()
COUNTERS = ((("gpu-0", "slices"), 8), (("gpu-1", "slices"), 8))


def device(name: str, **fields) -> PublishedDevice:
    return PublishedDevice(name, KIND, **fields)


def one_slice(*devices: PublishedDevice, **fields) -> PoolSlice:
    fields = {"name": "s", "pool": "p", "access": NodeAccess("n0"), **fields}
    return PoolSlice(driver=DRIVER, devices=devices, **fields)


def names(slices, fleet=FLEET) -> dict[str, list[str]]:
    """Node to the names of its devices."""
    found = node_devices(slices, fleet)
    return {node: [d.id.name for d in all_.devices] for node, all_ in found.items() if all_.devices}


def sentences(slices) -> dict[str, tuple[str, ...]]:
    found = node_devices(slices, FLEET)
    return {node: all_.unsupported for node, all_ in found.items() if all_.unsupported}


@pytest.mark.parametrize(
    ("access", "nodes"),
    [
        pytest.param(NodeAccess("n2"), ["n2"], id="by the name of a node"),
        pytest.param(ONLY_N1, ["n1"], id="by a selector that one node matches"),
        pytest.param(RACK_0, [], id="by a selector that two nodes match"),
        pytest.param(ALL, [], id="on all nodes"),
        pytest.param(None, [], id="on no node"),
    ],
)
def test_a_device_counts_on_the_one_node_that_can_use_it(access, nodes):
    whole = [one_slice(device("d"), access=access)]
    each = [one_slice(device("d", access=access), access=None)]
    assert list(names(whole)) == list(names(each)) == nodes


def test_a_device_of_all_nodes_counts_if_the_cluster_has_one_node():
    assert names([one_slice(device("d"), access=ALL)], Fleet(FLEET.nodes[:1])) == {"n0": ["d"]}


def test_devices_that_several_nodes_can_use_are_left_out_on_each_of_them():
    found = node_devices([one_slice(device("a"), device("b"), access=RACK_0)], FLEET)
    text = "pool gpu.example/p: device a and 1 other device left out: several nodes can use it"
    assert {node: all_.unsupported for node, all_ in found.items()} == {
        "n0": (text,),
        "n1": (text,),
    }
    assert all(all_.left_out == (KIND,) for all_ in found.values())


def test_an_unknown_selection_of_nodes_gives_no_devices():
    assert names([one_slice(device("d"), access=None)]) == {}


@pytest.mark.parametrize(
    ("slices", "why"),
    [
        pytest.param(
            [one_slice(device("a"), slices=2)],
            "1 of 2 ResourceSlices of generation 1 exist",
            id="a ResourceSlice is missing",
        ),
        pytest.param(
            [one_slice(device("a"), name="s1"), one_slice(device("b"), name="s2")],
            "2 of 1 ResourceSlices of generation 1 exist",
            id="one too many",
        ),
        pytest.param(
            [
                one_slice(device("a"), name="s1", slices=2),
                one_slice(device("b"), name="s2", slices=3),
            ],
            "2 of 2 or 3 ResourceSlices of generation 1 exist",
            id="they do not agree on the number",
        ),
        pytest.param(
            [one_slice(device("a"), device("a"))], "device name 'a' occurs twice", id="a name twice"
        ),
        pytest.param(
            [
                one_slice(device("a"), name="s1", slices=2),
                one_slice(device("a"), name="s2", slices=2, access=NodeAccess("n1")),
            ],
            "device name 'a' occurs twice",
            id="a name on two nodes",
        ),
        pytest.param(
            [
                one_slice(device("a"), name="s1", slices=3),
                one_slice(name="s2", slices=3, counters=((("c", "m"), 1),)),
                one_slice(name="s3", slices=3, counters=((("c", "x"), 1),)),
            ],
            "counter set 'c' occurs twice",
            id="a counter set twice",
        ),
        pytest.param(
            [one_slice(device("a"), repeated="c")],
            "counter set 'c' occurs twice",
            id="a counter set twice in one ResourceSlice",
        ),
        pytest.param(
            [one_slice(device("a", consumes=((("c", "m"), 1),)))],
            "device a: counter 'm' of set 'c' does not exist",
            id="an unknown counter",
        ),
    ],
)
def test_a_pool_that_kube_scheduler_does_not_use_has_no_devices(slices, why):
    found = node_devices(slices, FLEET)
    assert not any(all_.devices for all_ in found.values())
    assert found["n0"].unsupported == (f"pool gpu.example/p: {why}",)


@pytest.mark.parametrize(
    ("slices", "used"),
    [
        pytest.param([one_slice(device("a"), slices=2)], False, id="a ResourceSlice is missing"),
        pytest.param([one_slice(device("a"), device("a"))], False, id="a name twice on the node"),
        pytest.param(
            [
                one_slice(device("a"), name="s1", slices=2),
                one_slice(device("a"), name="s2", slices=2, access=NodeAccess("n1")),
            ],
            True,
            id="a name on two nodes",
        ),
        pytest.param(
            [
                one_slice(device("a"), name="s1"),
                one_slice(device("b"), name="s2", access=NodeAccess("n1")),
            ],
            True,
            id="as many ResourceSlices for the node as the pool should have",
        ),
    ],
)
def test_devices_of_a_defective_pool_that_kube_scheduler_still_uses_are_left_out(slices, used):
    assert node_devices(slices, FLEET)["n0"].left_out == ((KIND,) if used else ())


@pytest.mark.parametrize(
    ("access", "nodes"),
    [
        pytest.param(NodeAccess("n1"), {"n0", "n1"}, id="of one node"),
        pytest.param(RACK_0, {"n0", "n1", "n2", "n3"}, id="of the nodes of a rack"),
        pytest.param(ALL, {"n0", "n1", "n2", "n3"}, id="of all nodes"),
        pytest.param(None, {"n0", "n1", "n2", "n3"}, id="of the nodes of single devices"),
    ],
)
def test_a_pool_that_is_not_complete_is_reported_on_each_node_that_reads_its_counters(
    access, nodes
):
    """There kube-scheduler refuses a request for all devices, even of another pool."""
    slices = [
        one_slice(device("a"), name="devices", slices=3),
        one_slice(name="counters", slices=3, counters=COUNTERS, access=access),
    ]
    why = "pool gpu.example/p: 2 of 3 ResourceSlices of generation 1 exist"
    assert sentences(slices) == dict.fromkeys(nodes, (why,))


def test_a_node_that_is_added_reads_the_counters_of_a_pool_that_is_not_complete():
    counters = one_slice(name="counters", slices=2, counters=COUNTERS, access=None)
    pools = DevicePools()
    assert set(pools.nodes([counters], Fleet(FLEET.nodes[:2]))) == {"n0", "n1"}
    assert set(pools.nodes([counters], FLEET)) == {"n0", "n1", "n2", "n3"}


def test_devices_of_an_older_generation_are_left_out_where_the_newest_has_nothing():
    old = one_slice(device("a"), name="old")
    new = one_slice(device("b"), name="new", generation=2, access=NodeAccess("n1"))
    found = node_devices([old, new], FLEET)
    assert found["n0"].unsupported == ("pool gpu.example/p: generation 1 is not deleted",)
    assert (found["n0"].devices, found["n0"].left_out) == ((), (KIND,))
    assert found["n1"].left_out == ()


def test_kube_scheduler_evaluates_selectors_on_devices_of_other_nodes_in_the_same_resource_slice():
    other = DeviceKind(DRIVER, ((f"{DRIVER}/a", 1),))
    far = PublishedDevice("far", other, access=NodeAccess("n1"))
    found = node_devices([one_slice(device("a", access=NodeAccess("n0")), far, access=None)], FLEET)
    assert {node: set(all_.evaluated) for node, all_ in found.items()} == {
        "n0": {KIND, other},
        "n1": {KIND, other},
    }
    assert names([one_slice(device("a", access=NodeAccess("n0")), far, access=None)]) == {
        "n0": ["a"],
        "n1": ["far"],
    }


def test_a_device_that_is_not_supported_is_left_out_alone():
    slices = [one_slice(device("a", unsupported="it waits for X"), device("b"))]
    assert names(slices) == {"n0": ["b"]}
    assert sentences(slices) == {"n0": ("pool gpu.example/p: device a left out: it waits for X",)}


def partition(name: str, gpu: str, **fields) -> PublishedDevice:
    return device(name, consumes=(((gpu, "slices"), 4),), **fields)


def partitioned(*devices: PublishedDevice, **fields) -> list[PoolSlice]:
    return [
        one_slice(name="counters", slices=2, counters=COUNTERS, **fields),
        one_slice(*devices, name="devices", slices=2, **fields),
    ]


def test_the_counters_of_a_node_are_those_that_its_devices_consume():
    found = node_devices(partitioned(partition("a", "gpu-0"), device("b")), FLEET)["n0"]
    assert found.counters == (((DRIVER, "p", "gpu-0", "slices"), 8),)
    assert [d.consumes for d in found.devices] == [((("gpu-0", "slices"), 4),), ()]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"access": NodeAccess("n1")}, id="of another node"),
        pytest.param({"access": RACK_0}, id="of several nodes"),
        pytest.param(
            {"access": NodeAccess("n0"), "unsupported": "it waits"}, id="that is left out"
        ),
    ],
)
def test_devices_that_share_counters_with_a_device_are_left_out(other):
    mine = NodeAccess("n0")
    both = partition("both", "gpu-0", access=mine)
    both = replace(both, consumes=(*both.consumes, (("gpu-1", "slices"), 1)))
    slices = partitioned(
        partition("a", "gpu-0", access=mine),
        both,
        partition("far", "gpu-1", **other),
        device("free", access=mine),
        access=None,
    )
    assert names(slices).get("n0") == ["free"]
    why = "its counters are shared with other nodes, or with devices that are left out"
    assert any(why in text for text in sentences(slices)["n0"])


def test_pools_with_counters_of_two_drivers_can_have_the_same_name():
    mine = partitioned(partition("a", "gpu-0"), device("b"))
    others = [replace(one, name=f"o{one.name}", driver="other.example") for one in mine]
    assert names([*mine, *others]) == {"n0": ["a", "b", "a", "b"]}
    assert sentences([*mine, *others]) == {}


# ---- from one revision to the next


def two_pools(generation: int = 1) -> list[PoolSlice]:
    return [
        one_slice(device("a"), name="a", pool="a"),
        one_slice(device(f"b{generation}"), name="b", pool="b", generation=generation),
        one_slice(device("c"), name="c", pool="c", access=NodeAccess("n1")),
        one_slice(device("d"), name="d", pool="d", access=ONLY_N1),
    ]


def test_nodes_whose_pools_did_not_change_keep_the_same_objects():
    pools, slices = DevicePools(), two_pools()
    first = pools.nodes(slices, FLEET)
    assert [d.id.name for d in first["n1"].devices] == ["c", "d"]
    second = pools.nodes([slices[0], two_pools(2)[1], *slices[2:]], FLEET)
    assert [d.id.name for d in second["n0"].devices] == ["a", "b2"]
    assert second["n1"] is first["n1"]


def test_a_change_of_a_node_validates_no_pool_again(monkeypatch: pytest.MonkeyPatch):
    validated = list[str]()

    def counting(slices: Sequence[PoolSlice]) -> str | None:
        validated.append(slices[0].pool)
        return defect(slices)

    monkeypatch.setattr("queuectl.devices.pools.defect", counting)
    slices = [one_slice(device("a"), access=NodeAccess("n0"))]
    pools = DevicePools()
    first = pools.inventory(slices, FLEET)
    assert validated == ["p"]
    other = Fleet((*FLEET.nodes, Node("n9", {})))
    assert pools.inventory(slices, other) == first
    assert validated == ["p"]


def test_devices_that_nodes_select_by_labels_follow_the_labels():
    pools, slices = DevicePools(), two_pools()
    pools.nodes(slices, FLEET)
    other = Fleet((FLEET.nodes[0], *FLEET.nodes[2:]))
    assert [d.id.name for d in pools.nodes(slices, other)["n1"].devices] == ["c"]
    assert pools.nodes(slices, FLEET) == node_devices(slices, FLEET)


def test_deleted_pools_have_no_devices():
    pools, slices = DevicePools(), two_pools()
    pools.nodes(slices, FLEET)
    assert pools.nodes(slices[:1], FLEET) == node_devices(slices[:1], FLEET)
    assert pools.nodes([], FLEET) == {}


# ---- pools that are deleted for a time


def of_nodes(found: Mapping[str, NodeDevices]) -> dict[str, list[str]]:
    return {node: [d.id.name for d in all_.devices] for node, all_ in found.items()}


def renewed(**fields) -> list[PoolSlice]:
    """The next generation of a pool of two ResourceSlices, of which the first one exists."""
    return [one_slice(device("new"), name="new", slices=2, generation=2, **fields)]


PAIR = [
    one_slice(device(name), name=name, slices=2, access=NodeAccess(f"n{i}"))
    for i, name in enumerate("ab")
]
BESIDE = one_slice(device("q"), name="q", pool="q")


@pytest.mark.parametrize(
    ("now", "recovered"),
    [
        pytest.param([*PAIR, BESIDE], {}, id="nothing is deleted"),
        pytest.param([BESIDE], {"n0": ["a", "q"], "n1": ["b"]}, id="the pool"),
        pytest.param([], {"n0": ["a", "q"], "n1": ["b"]}, id="all pools"),
        pytest.param([PAIR[0], BESIDE], {"n0": ["a", "q"], "n1": ["b"]}, id="one ResourceSlice"),
        pytest.param(
            renewed(), {"n0": ["a", "q"], "n1": ["b"]}, id="its next generation is partial"
        ),
        pytest.param([one_slice(device("a"), name="a"), BESIDE], {}, id="the pool is smaller"),
    ],
)
def test_a_node_has_the_devices_of_deleted_pools_when_it_has_recovered(now, recovered):
    pools = DevicePools()
    assert pools.inventory([*PAIR, BESIDE], FLEET)[1] == {}
    for _ in range(2):
        nodes, found = pools.inventory(now, FLEET)
        assert of_nodes(found) == recovered
        assert nodes == node_devices(now, FLEET)
    again = pools.inventory(now, FLEET)[1]
    assert all(again[node] is found[node] for node in found)
    assert pools.inventory([*PAIR, BESIDE], FLEET)[1] == {}


@pytest.mark.parametrize(
    ("now", "recovered"),
    [
        pytest.param([PAIR[0]], {"n0": ["a"]}, id="the ResourceSlices that exist"),
        pytest.param([*PAIR, *renewed()], {"n0": ["a"], "n1": ["b"]}, id="the last generation"),
        pytest.param([one_slice(device("a"), device("a"))], {}, id="a pool that is never complete"),
    ],
)
def test_of_a_pool_that_was_not_complete_before_a_node_recovers_what_is_published(now, recovered):
    assert of_nodes(DevicePools().inventory(now, FLEET)[1]) == recovered


def test_a_node_that_was_deleted_does_not_recover_its_devices():
    pools, without = DevicePools(), Fleet(FLEET.nodes[2:])
    pools.inventory(PAIR, FLEET)
    assert pools.inventory([], without)[1] == {}
    assert pools.inventory([], FLEET)[1] == {}


# ---- generations

_GENERATIONS = st.dictionaries(
    st.integers(1, 4), st.tuples(st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=3
)
"""Generation to (number of ResourceSlices that it needs, number that exist)."""


@given(generations=_GENERATIONS, order=st.randoms(use_true_random=False))
def test_a_pool_counts_with_its_newest_generation_and_only_if_it_is_complete(generations, order):
    slices = [
        one_slice(
            device(f"g{generation}-{i}"),
            name=f"s{generation}-{i}",
            generation=generation,
            slices=needed,
        )
        for generation, (needed, existing) in generations.items()
        for i in range(existing)
    ]
    order.shuffle(slices)
    existing = [generation for generation, (_, number) in generations.items() if number]
    if not existing:
        assert names(slices) == {}
        return
    last = max(existing)
    needed, number = generations[last]
    expected = {"n0": [f"g{last}-{i}" for i in range(number)]} if needed == number else {}
    assert names(slices) == expected


@given(
    placed=st.lists(st.tuples(st.sampled_from("pq"), st.integers(0, 3)), max_size=8),
    order=st.randoms(use_true_random=False),
)
def test_the_order_of_the_resource_slices_does_not_matter(placed, order):
    count = {pool: sum(p == pool for p, _ in placed) for pool in "pq"}
    slices = [
        one_slice(
            device(f"d{i}"),
            name=f"s{i}",
            pool=pool,
            slices=count[pool],
            access=NodeAccess(f"n{node}"),
        )
        for i, (pool, node) in enumerate(placed)
    ]
    expected = node_devices(slices, FLEET)
    order.shuffle(slices)
    assert node_devices(slices, FLEET) == expected
    assert sum(len(all_.devices) for all_ in expected.values()) == len(placed)
