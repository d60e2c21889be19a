"""Snapshots with devices: placement, quota, and nodes that other pods use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from queuectl.devices.lower import DeviceCache, with_devices
from queuectl.devices.modes import modes_of, places_of
from queuectl.devices.needs import atoms_of
from queuectl.devices.reading import needs_of
from queuectl.devices.table import kind_of
from queuectl.domain.devices import (
    DEVICE_ROW,
    IMPLICIT_RESOURCE,
    NOT_SURE,
    AllocatedDevice,
    DeviceEffect,
    DeviceInventory,
    DeviceTaint,
    DeviceToleration,
    NodeDevices,
    PodDevices,
)
from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.quantity import GPU
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import PodSet, TopologyMode, TopologyRequest, Workload
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.devices import build
from tests.devices.build import ROOT, option, pod
from tests.devices.test_rows import ONE, PAIR, TWO, WITH_NIC, gpus
from tests.planner.build import gang, holding, node, podset, world
from tests.support.work import lines_run

OF_MODEL = f"device.attributes['{build.DRIVER}'].model == 'm{{}}'"
ON_ONE_NODE = TopologyRequest(TopologyMode.REQUIRED, HOSTNAME)


def claiming(count: int, devices: PodDevices, **options: object) -> PodSet:
    """Pods with claims."""
    made = podset("w", count, **options)  # type: ignore[arg-type]
    return replace(made, shape=replace(made.shape, devices=devices))


def cluster(
    devices: Mapping[str, NodeDevices],
    gangs: Sequence[Workload],
    admitted: Sequence[Admitted] = (),
    plugin: Mapping[str, int] | None = None,
) -> Snapshot:
    """Nodes with devices, and nodes of a device plugin with GPUs."""
    nodes = [node(name) for name in devices]
    nodes += [node(name, gpu=count) for name, count in (plugin or {}).items()]
    nodes.sort(key=lambda one: one.name)
    made = world(nodes, gangs, admitted)
    return replace(made, devices=DeviceInventory(devices, build.CLASSES))


def lowered(snapshot: Snapshot) -> Snapshot:
    return with_devices(snapshot, DeviceCache())


def starts(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    """The gangs that start, with the pods on each node."""
    taken = lowered(snapshot)
    made = plan(taken)
    assert verify(taken, made, build.matching) == ()
    return {a.uid: dict(a.placement.podsets[0].by_node) for a in made.admitted}


def test_a_snapshot_without_requests_for_devices_stays_the_same_object() -> None:
    snapshot = cluster({"a": build.node(*gpus(8))}, [gang("g", podset(cpu=1))])
    assert lowered(snapshot) is snapshot


def test_claims_and_extended_resources_share_the_devices_of_a_node() -> None:
    gangs = [
        gang("a", claiming(3, TWO), queue=None),
        gang("b", podset("w", 1, gpu=2), queue=None, queued_at=1),
    ]
    snapshot = cluster({"n": build.node(*gpus(8))}, gangs)
    assert starts(snapshot) == {"a": {"n": 3}, "b": {"n": 1}}
    more = [*gangs, gang("c", claiming(1, ONE), queue=None, queued_at=2)]
    assert starts(cluster({"n": build.node(*gpus(8))}, more)) == {"a": {"n": 3}, "b": {"n": 1}}


def test_plain_counts_need_no_row_alongside_the_charged_resource() -> None:
    taken = lowered(cluster({"n": build.node(*gpus(8))}, [gang("a", claiming(3, TWO), queue=None)]))
    assert not any(name.startswith(DEVICE_ROW) for name in taken.fleet.nodes[0].allocatable)
    assert taken.fleet.nodes[0].allocatable[GPU] == 8
    assert taken.pending[0].workload.podsets[0].shape.requests[GPU] == 2


def test_a_node_with_a_device_plugin_serves_extended_resources_from_it() -> None:
    gangs = [gang("a", podset("w", 2, gpu=8), queue=None)]
    assert starts(cluster({"d": build.node(*gpus(8))}, gangs, plugin={"p": 8})) == {
        "a": {"d": 1, "p": 1}
    }
    claims = [gang("a", claiming(2, build.pod(build.option(count=8))), queue=None)]
    assert starts(cluster({"d": build.node(*gpus(8))}, claims, plugin={"p": 8})) == {}


def test_pods_of_one_root_are_placed_only_where_that_is_sure() -> None:
    gangs = [gang("a", claiming(4, PAIR), queue=None)]
    assert starts(cluster({"n": build.node(*gpus(8, roots=4))}, gangs)) == {"a": {"n": 4}}
    assert starts(cluster({"n": build.node(*gpus(8, roots=3))}, gangs)) == {}


def test_running_pods_hold_devices() -> None:
    running = holding(gang("r", claiming(1, ONE), queue=None), {"n": 1}, flavor=None)
    gangs = [
        gang("a", claiming(4, PAIR), queue=None),
        gang("b", claiming(3, PAIR), queue=None, queued_at=1),
    ]
    snapshot = cluster({"n": build.node(*gpus(8, roots=4))}, gangs, [running])
    assert starts(snapshot) == {"b": {"n": 3}}


def test_devices_of_unmanaged_pods_are_taken() -> None:
    gangs = [gang("a", claiming(4, PAIR), queue=None)]
    devices = build.node(*gpus(8, roots=4))
    snapshot = cluster({"n": devices}, gangs)
    held = AllocatedDevice(devices.devices[0].id, "r")
    assert starts(replace(snapshot, other_devices={"n": (held,)})) == {}
    admin = replace(held, admin=True)
    assert starts(replace(snapshot, other_devices={"n": (admin,)})) == {"a": {"n": 4}}


def test_a_node_is_kept_for_single_devices_where_only_these_are_pending() -> None:
    pair = gang("p", claiming(1, PAIR), queue=None)
    single = gang("s", claiming(8, ONE), queue=None, queued_at=1)
    devices = {name: build.node(*gpus(8, roots=4)) for name in "ab"}
    assert starts(cluster(devices, [single], [holding(pair, {"a": 1}, flavor=None)])) == {
        "s": {"b": 8}
    }
    assert starts(cluster(devices, [pair, single])).keys() == {"p", "s"}


def test_a_node_that_is_kept_for_one_request_serves_all_that_need_the_same_of_it() -> None:
    claims = holding(gang("c", claiming(1, ONE), queue=None), {"n": 1}, flavor=None)
    pairs = holding(gang("p", claiming(4, PAIR), queue=None), {"m": 4}, flavor=None)
    extended = gang("e", podset("w", 1, gpu=7), queue=None)
    devices = {name: build.node(*gpus(8, roots=4)) for name in "mn"}
    assert starts(cluster(devices, [extended], [claims, pairs])) == {"e": {"n": 1}}


@pytest.mark.timeout(60)
def test_many_sorts_of_requests_are_planned() -> None:
    """For each sort one node has its devices."""
    sorts = 45
    devices = {f"n{i:02}": build.node(build.device("gpu", model=f"m{i}")) for i in range(sorts)}
    gangs = [
        gang(f"g{i:02}", claiming(1, build.pod(build.option(selectors=(OF_MODEL.format(i),)))))
        for i in range(sorts)
    ]
    gangs = [replace(one, queue=None) for one in gangs]
    assert starts(cluster(devices, gangs)) == {f"g{i:02}": {f"n{i:02}": 1} for i in range(sorts)}


def test_a_second_snapshot_has_the_same_objects() -> None:
    cache = DeviceCache()
    snapshot = cluster(
        {"n": build.node(*gpus(8, roots=4))}, [gang("a", claiming(4, PAIR), queue=None)]
    )
    first = with_devices(snapshot, cache)
    second = with_devices(replace(snapshot, now=snapshot.now + 1), cache)
    assert second.fleet is first.fleet
    assert second.pending[0] is first.pending[0]


@pytest.mark.parametrize(("kind", "resource"), [("gpu", GPU), ("nic", f"{IMPLICIT_RESOURCE}nic")])
def test_quota_is_charged_for_the_resource_of_the_class(kind: str, resource: str) -> None:
    asked = claiming(2, build.pod(build.option(kind, 2)))
    taken = lowered(cluster({"n": build.node(*gpus(4, kind=kind))}, [gang("a", asked, queue=None)]))
    shape = taken.pending[0].workload.podsets[0].shape
    assert shape.requests[resource] == 2
    assert resource not in shape.incidental


def test_isomorphic_nodes_have_equal_rows() -> None:
    left = build.node(*gpus(4, roots=2), *gpus(2, roots=2, kind="nic"))
    right = build.node(
        *(build.device(f"x{i}", root="r1" if i < 2 else "r2") for i in range(4)),
        *(build.device(f"y{i}", "nic", root=f"r{i + 1}") for i in range(2)),
    )
    taken = lowered(
        cluster({"a": left, "b": right}, [gang("a", claiming(1, WITH_NIC), queue=None)])
    )
    assert taken.fleet.nodes[0].allocatable == taken.fleet.nodes[1].allocatable


def test_a_request_for_an_unknown_class_is_refused_with_the_reason() -> None:
    asked = claiming(1, build.pod(build.option("tpu")))
    (refusal,) = plan(
        lowered(cluster({"n": build.node(*gpus(2))}, [gang("a", asked, queue=None)]))
    ).pending
    assert refusal.reasons[0].code is Code.UNSUPPORTED
    assert "DeviceClass tpu does not exist" in refusal.reasons[0].message


@pytest.mark.parametrize(
    ("held", "wanted", "expected"),
    [
        ({}, {ONE: 40}, {ONE: 10}),
        ({}, {ONE: 40, PAIR: 20}, {ONE: 5}),
        ({}, {ONE: 8, PAIR: 4}, {ONE: 1}),
        ({ONE: 4}, {PAIR: 4}, {}),
        ({ONE: 4}, {}, {ONE: 4}),
        ({ONE: 4}, {ONE: 80}, {ONE: 10}),
        ({ONE: 10}, {ONE: 80, PAIR: 40}, {ONE: 5}),
        ({PAIR: 10}, {ONE: 80}, {}),
    ],
)
def test_nodes_are_divided_among_requests_by_what_is_pending(
    held: dict[PodDevices, int], wanted: dict[PodDevices, int], expected: dict[PodDevices, int]
) -> None:
    """Of ten nodes: some hold one sort of pods, and pods of some sorts are pending."""
    needs = needs_of(build.node(*gpus(8, roots=4)), (), ATOMS, build.matching)
    kind = kind_of(needs, (None, None))
    names = [f"n{i}" for i in range(10)]
    on = [atom for pod, number in held.items() for atom in [_atom(pod)] * number]
    holders = {name: frozenset((atom,)) for name, atom in zip(names, on, strict=False)}
    demand = {frozenset((_atom(pod),)): {_atom(pod): n} for pod, n in wanted.items()}
    modes = modes_of(kind, names, places_of(names, holders), demand)
    kept = {mode[0]: len(nodes) for mode, nodes in modes.items() if mode != (None,)}
    assert kept == {_atom(pod): number for pod, number in expected.items()}


ATOMS = [atom for pod in (ONE, PAIR) for atom in atoms_of(pod).counts]


def _atom(pod: PodDevices) -> int:
    return (ONE, PAIR).index(pod)


def test_a_gang_that_fits_by_number_only_is_refused_with_the_reason() -> None:
    parts = (replace(claiming(4, WITH_NIC), name="nics"), replace(claiming(2, ONE), name="single"))
    mixed = [replace(p, topology=ON_ONE_NODE, group="g") for p in parts]
    on = build.node(*gpus(8, roots=4), *gpus(4, roots=4, kind="nic"))
    (refusal,) = plan(lowered(cluster({"n": on}, [gang("a", *mixed, queue=None)]))).pending
    assert refusal.reasons[0].code is Code.UNSUPPORTED
    assert refusal.reasons[0].message == (
        "one node with room for 4 pods × 1 deviceclass.resource.kubernetes.io/nic + 1 nvidia.com/gpu "
        "and 2 pods × 1 nvidia.com/gpu is needed; even if all nodes were empty, "
        f"none of 1 eligible node has it: {NOT_SURE}"
    )


def on_one_node(singles: int, pairs: int) -> list[PodSet]:
    parts = replace(claiming(singles, ONE), name="s"), replace(claiming(pairs, PAIR), name="p")
    return [replace(part, topology=ON_ONE_NODE, group="g") for part in parts]


def in_one_pod(singles: int, pairs: int) -> list[PodSet]:
    return [claiming(1, PodDevices((*pod(option(count=singles)).claims, *PAIR.claims * pairs)))]


@pytest.mark.parametrize("asked", [on_one_node, in_one_pod])
@pytest.mark.parametrize(("singles", "pairs", "sure"), [(3, 1, True), (4, 1, False), (4, 2, False)])
def test_devices_that_are_sure_in_no_division_of_a_node_are_refused_with_the_reason(
    asked: Callable[[int, int], list[PodSet]], singles: int, pairs: int, sure: bool
) -> None:
    """The node can be kept for single devices, or for all requests."""
    on = build.node(*gpus(8, roots=4))
    asks = gang("a", *asked(singles, pairs), queue=None)
    made = plan(lowered(cluster({"n": on}, [asks])))
    assert len(made.admitted) == sure
    for refusal in made.pending:
        assert refusal.reasons[0].code is Code.UNSUPPORTED
        assert NOT_SURE in refusal.reasons[0].message


def test_a_node_with_more_divisions_than_are_planned_serves_all_its_requests() -> None:
    """The GPUs of each of five models can be kept for pairs, or not."""
    models = range(5)
    own = [
        build.device(f"{model}-{i}", root=f"{model}-{i // 2}", model=f"m{model}")
        for model in models
        for i in range(4)
    ]
    one = [option(selectors=(OF_MODEL.format(model),)) for model in models]
    pairs = [
        gang(f"p{i}", claiming(1, pod(replace(each, count=2), match=ROOT)), queue=None, queued_at=i)
        for i, each in enumerate(one)
    ]
    singles = [gang(f"s{i}", claiming(1, pod(each)), queue=None) for i, each in enumerate(one)]
    running = [holding(single, {"m": 1}, flavor=None) for single in singles]
    nodes = dict.fromkeys("mn", build.node(*own))
    assert starts(cluster(nodes, pairs, running)).keys() == {pair.uid for pair in pairs}


def test_a_gang_that_waits_for_sure_devices_shows_that_their_number_is_enough() -> None:
    running = holding(gang("r", claiming(1, ONE), queue=None), {"n": 1}, flavor=None)
    waits = gang("a", claiming(4, PAIR), queue=None)
    snapshot = cluster({"n": build.node(*gpus(9, roots=4))}, [waits], [running])
    (refusal,) = plan(lowered(snapshot)).pending
    assert refusal.reasons[0].code is Code.TOPOLOGY_PLACEMENT_FAILED
    assert refusal.reasons[0].message == (
        "room for 1 more pod × 2 nvidia.com/gpu is needed; at most 3 of 4 fit on 1 eligible node: "
        f"{NOT_SURE}"
    )


def test_a_request_that_no_node_can_ever_serve_never_fits() -> None:
    snapshot = cluster(
        {"n": build.node(*gpus(4, roots=4))}, [gang("a", claiming(1, PAIR), queue=None)]
    )
    (refusal,) = plan(lowered(snapshot)).pending
    assert refusal.reasons[0].code is Code.SHAPE_NEVER_FITS


def test_a_gang_is_not_refused_for_the_selectors_of_gangs_that_have_left() -> None:
    """They were cheaper than its own, and all selectors of one plan have a limit."""

    def waits(number: int, selector: str) -> Workload:
        asked = build.pod(build.option(selectors=(selector,)))
        return gang(f"g{number}", claiming(1, asked), queue=None, queued_at=number)

    alone = cluster({"n0": build.node(*gpus(2))}, [waits(0, "device.driver != ''" + " " * 300)])
    others = [waits(number, f"device.driver != '{number:0200}'") for number in range(1, 1400)]
    crowded = replace(alone, pending=(*alone.pending, *map(Pending, others)))
    cache = DeviceCache()
    first = with_devices(alone, cache)
    selects = cache.selects
    assert with_devices(crowded, cache).pending[0].blocked is not None
    again = with_devices(alone, cache)
    for taken in (first, again):
        assert taken.pending[0].blocked is None
        made = plan(taken)
        assert [one.uid for one in made.admitted] == ["g0"]
        for each in (selects, cache.selects):
            assert verify(taken, made, each) == ()


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        (podset("w", 1, gpu=32), True),
        (podset("w", 1, gpu=33), False),
        (podset("w", 1, gpu=20, **{f"{IMPLICIT_RESOURCE}nic": 20}), False),  # type: ignore[arg-type]
        (claiming(1, pod(option("nic", None), option("gpu", 12))), True),
        (claiming(1, pod(option("nic", None), option("gpu", 13))), False),
        (claiming(1, pod(option("nic", None), option("gpu", None))), False),
        (claiming(1, pod(option("nic", None, admin=True))), True),
        (claiming(1, pod(option("gpu", None, admin=True))), False),
    ],
)
def test_a_claim_has_at_most_32_devices_however_they_are_requested(
    asked: PodSet, fits: bool
) -> None:
    """kube-scheduler refuses more on each node. It makes one claim for all extended resources of a pod."""
    devices = build.node(*gpus(40), *gpus(20, kind="nic"))
    snapshot = cluster({"n": devices}, [gang("a", asked, queue=None)])
    assert starts(snapshot) == ({"a": {"n": 1}} if fits else {})
    reasons = [one.reasons[0] for one in plan(lowered(snapshot)).pending]
    assert [one.code for one in reasons] == [Code.UNSUPPORTED] * (not fits)
    assert all("a claim can have at most 32 devices" in one.message for one in reasons)


def test_a_device_plugin_serves_more_devices_than_a_claim_can_have() -> None:
    gangs = [gang("a", podset("w", 2, gpu=40), queue=None)]
    assert starts(cluster({"d": build.node(*gpus(80))}, gangs, plugin={"p": 80})) == {"a": {"p": 2}}


def test_pods_whose_request_their_node_cannot_serve_any_more_keep_their_devices() -> None:
    """A DeviceClass is deleted, a selector fails on a new device, a device has a taint, or the selectors of a plan are too many."""
    rooted = option("any", 2, selectors=(f'device.attributes["{build.DRIVER}"].root == "r0"',))
    key, effect = "xid", DeviceEffect.NO_EXECUTE
    tolerant = option("any", 2, tolerations=(DeviceToleration(key, "Exists", "", effect, 600),))
    own = [build.device(f"g{i}", root=f"r{i // 2}") for i in range(4)]
    tainted = build.device("g0", taints=(DeviceTaint(key, effect),))
    deleted = {name: each for name, each in build.CLASSES.items() if name != "any"}
    waits = gang("new", claiming(1, pod(option("gpu", 3))), queue=None)
    for asked, devices, classes in (
        (option("any", 2), own, deleted),
        (rooted, [*own, build.device("x", "nic")], build.CLASSES),
        (tolerant, [tainted, *own[1:]], build.CLASSES),
    ):
        running = holding(gang("r", claiming(1, pod(asked)), queue=None), {"n": 1}, flavor=None)
        snapshot = cluster({"n": build.node(*devices), "m": build.node(*own)}, [waits], [running])
        inventory = replace(snapshot.devices, classes=classes)
        assert starts(replace(snapshot, devices=inventory)) == {"new": {"m": 1}}
        alone = replace(snapshot, devices=inventory, admitted=())
        assert starts(alone).keys() == {"new"}


@pytest.mark.timeout(60)
def test_a_claim_with_32_sorts_of_requests_for_the_devices_of_a_node_takes_seconds() -> None:
    of_index = f"device.attributes['{build.DRIVER}'].index in {{}}"
    sets = [[i for i in range(8) if number >> i & 1] for number in range(1, 33)]
    sorts = [option(selectors=(of_index.format(own),)) for own in sets]
    devices = build.node(*(build.device(f"g{i}", root=f"r{i // 2}", index=i) for i in range(8)))
    gangs = [gang("a", claiming(1, pod(*sorts)), queue=None)]
    taken = lowered(cluster({"n": devices}, [*gangs, gang("b", claiming(4, PAIR), queue=None)]))
    assert len(taken.pending) == 2


def test_the_work_for_many_sorts_of_requests_grows_with_their_number() -> None:
    """And not with its square."""

    def work(number: int) -> int:
        keys = [f"key{each}" for each in range(number)]
        sorts = [option(tolerations=(DeviceToleration(key, "Exists"),)) for key in keys]
        asked = [claiming(1, pod(*sorts[at : at + 32])) for at in range(0, number, 32)]
        named = [replace(own, name=f"w{at}") for at, own in enumerate(asked)]
        snapshot = cluster({"n": build.node(*gpus(8))}, [gang("a", *named, queue=None)])
        return lines_run(lambda: lowered(snapshot))

    assert work(1600) < 2.5 * work(800)
