"""The verifier's check of devices: it accepts each plan, and finds each node whose devices are not sure."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import pytest

from queuectl.domain.devices import (
    AllocatedDevice,
    DeviceEffect,
    DeviceInventory,
    DeviceTaint,
    DeviceToleration,
    NodeDevices,
    PodDevices,
)
from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import plan
from queuectl.planner.verify import PlanRule, verify
from tests.devices.build import ROOT, device, matching, node, option, pod, request, selected
from tests.devices.oracle import robust
from tests.devices.test_lower import claiming, cluster, lowered
from tests.planner.build import gang

PODS = (
    pod(option()),
    pod(option(count=2)),
    pod(option(count=2), match=ROOT),
    pod(option(), option("nic"), match=ROOT),
    pod(request("r", option("nic"), option())),
    pod(option(count=2), distinct=ROOT),
    pod(option(capacity=(("gpu.example.com/memory", 1),))),
    pod(option("nic", None)),
)


def devices_of(random: Random, size: int) -> NodeDevices:
    """A node with GPUs and NICs on two roots, some of them shared or with counters."""
    made = []
    for number in range(size):
        kind = random.choice(["gpu", "gpu", "nic"])
        consumes = random.choice([None, None, {"x": 1}, {"x": 2}])
        shared = random.random() < 0.15
        memory = 2 if shared else random.choice([None, 1])
        root = random.choice("ab")
        made.append(
            device(f"d{number}", kind, root=root, consumes=consumes, memory=memory, shared=shared)
        )
    return node(*made, x=random.randint(2, 4))


@cache
def planned(seed: int) -> tuple[Snapshot, Plan]:
    """A plan of some gangs on three nodes."""
    random = Random(seed)
    nodes = {name: devices_of(random, 5) for name in "abc"}
    gangs = [
        gang(f"g{i}", claiming(random.randint(1, 3), random.choice(PODS)), queue=None, queued_at=i)
        for i in range(5)
    ]
    snapshot = lowered(cluster(nodes, gangs))
    return snapshot, plan(snapshot)


def pods_on(snapshot: Snapshot, made: Plan, name: str) -> tuple[PodDevices, ...]:
    """The claims of the pods that a plan puts on a node."""
    waiting = {p.workload.uid: p.workload for p in snapshot.pending}
    found: list[PodDevices] = []
    for admission in made.admitted:
        devices = waiting[admission.uid].podsets[0].shape.devices
        assert devices is not None
        found += [devices] * admission.placement.podsets[0].by_node.get(name, 0)
    return tuple(found)


@pytest.mark.parametrize("seed", range(20))
def test_every_plan_with_devices_is_accepted(seed: int) -> None:
    snapshot, made = planned(seed)
    assert verify(snapshot, made, matching) == ()
    for name, devices in snapshot.devices.nodes.items():
        assert robust(devices, pods_on(snapshot, made, name), selected)


def test_a_node_with_too_few_devices_is_found() -> None:
    found = 0
    for seed in range(20):
        snapshot, made = planned(seed)
        for name, devices in snapshot.devices.nodes.items():
            pods = pods_on(snapshot, made, name)
            fewer = replace(devices, devices=devices.devices[1:])
            inventory = DeviceInventory(
                {**snapshot.devices.nodes, name: fewer}, snapshot.devices.classes
            )
            rules = {v.rule for v in verify(replace(snapshot, devices=inventory), made, matching)}
            assert (PlanRule.DEVICES in rules) != robust(fewer, pods, selected), (seed, name)
            found += PlanRule.DEVICES in rules
    assert found > 10


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("toleration", "safe"),
    [
        (DeviceToleration("bad", "Exists", effect=DeviceEffect.NO_EXECUTE), True),
        (DeviceToleration("bad", "Exists", effect=DeviceEffect.NO_EXECUTE, seconds=60), False),
        (DeviceToleration("bad", "Exists"), False),
    ],
)
def test_a_device_that_a_pod_tolerates_for_a_limited_time_is_found(
    toleration: DeviceToleration, *, safe: bool, shared: bool
) -> None:
    request_ = pod(option(tolerations=(toleration,)))
    nodes = {"n": node(device("a", memory=2 if shared else None, shared=shared))}
    snapshot = lowered(cluster(nodes, [gang("g", claiming(1, request_), queue=None)]))
    made = plan(snapshot)
    assert verify(snapshot, made, matching) == ()
    (sound,) = snapshot.devices.nodes["n"].devices
    taint = DeviceTaint("bad", DeviceEffect.NO_EXECUTE)
    tainted = NodeDevices((replace(sound, kind=replace(sound.kind, taints=(taint,))),))
    devices = DeviceInventory({"n": tainted}, snapshot.devices.classes)
    rules = {v.rule for v in verify(replace(snapshot, devices=devices), made, matching)}
    assert rules == (set() if safe else {PlanRule.DEVICES})
    again = plan(lowered(cluster({"n": tainted}, [gang("g", claiming(1, request_), queue=None)])))
    assert bool(again.admitted) is safe


def test_a_device_that_another_pod_holds_is_not_free() -> None:
    snapshot = lowered(
        cluster(
            {"n": node(device("a"), device("b"))}, [gang("g", claiming(2, PODS[0]), queue=None)]
        )
    )
    made = plan(snapshot)
    held = AllocatedDevice(snapshot.devices.nodes["n"].devices[0].id, "r")
    changed = replace(snapshot, other_devices={"n": (held,)})
    assert {v.rule for v in verify(changed, made, matching)} == {PlanRule.DEVICES}
