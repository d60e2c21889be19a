"""A gang gets GPUs of several vendors only if its requests name each of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuectl.devices.lower import DeviceCache, with_devices
from queuectl.domain.devices import (
    DeviceClass,
    DeviceInventory,
    DeviceOption,
    NodeDevices,
    PodDevices,
)
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import plan
from queuectl.planner.verify import PlanRule, verify
from tests.devices import build
from tests.devices.test_gpu_sizes import AMD, CLASSES, NIC, NVIDIA, device
from tests.devices.test_lower import claiming, cluster
from tests.planner.build import gang

ANY = DeviceClass("any-gpu", ("device.driver.startsWith('gpu.')",))
OF = "device.driver == '{}'"
NODES = {
    "amd": NodeDevices(tuple(device(f"x-{n}", AMD) for n in range(4))),
    "amd-2": NodeDevices(tuple(device(f"x-{n}", AMD) for n in range(4))),
    "nvidia": NodeDevices(tuple(device(f"gpu-{n}", NVIDIA) for n in range(4))),
    "nic": NodeDevices((device("nic-0", NIC),)),
}
EITHER = build.request("r", DeviceOption(NVIDIA), DeviceOption(AMD))
REASON = f"the request for DeviceClass any-gpu selects GPUs of the drivers {AMD} and {NVIDIA}"


def world(pods: int, asked: PodDevices, *nodes: str) -> Snapshot:
    made = cluster(
        {name: NODES[name] for name in nodes}, [gang("g", claiming(pods, asked), queue=None)]
    )
    classes = {**CLASSES, ANY.name: ANY}
    return replace(made, devices=DeviceInventory(made.devices.nodes, classes))


@pytest.mark.parametrize(
    ("asked", "nodes", "starts"),
    [
        (build.pod(DeviceOption(ANY.name)), ("amd", "nvidia"), False),
        (build.pod(DeviceOption(ANY.name)), ("amd", "nic"), True),
        (build.pod(DeviceOption(ANY.name, (OF.format(AMD),))), ("amd", "nvidia"), True),
        (build.pod(DeviceOption(NVIDIA), DeviceOption(NIC)), ("amd", "nvidia"), False),
        (build.pod(EITHER), ("amd", "nvidia"), True),
    ],
    ids=["one class for both", "one vendor", "a selector", "two drivers, one of GPUs", "alternatives"],
)  # fmt: skip
def test_a_request_that_selects_gpus_of_several_drivers_is_refused(
    asked: PodDevices, nodes: tuple[str, ...], *, starts: bool
) -> None:
    made = plan(with_devices(world(2, asked, *nodes), DeviceCache()))
    assert bool(made.admitted) is starts
    mixed = [r.reasons[0] for r in made.pending if REASON in r.reasons[0].message]
    assert len(mixed) == (asked == build.pod(DeviceOption(ANY.name)) and not starts)
    assert {reason.code for reason in mixed} <= {Code.UNSUPPORTED}


@pytest.mark.parametrize(
    ("asked", "pods", "accepted"),
    [
        (build.pod(DeviceOption(ANY.name)), 8, False),
        (build.pod(DeviceOption(ANY.name, admin=True)), 120, True),  # a node takes 110 pods
        (build.pod(EITHER), 8, True),
    ],
    ids=["one class for both", "administration", "alternatives"],
)
def test_the_verifier_finds_a_gang_that_can_get_gpus_of_several_vendors(
    asked: PodDevices, pods: int, *, accepted: bool
) -> None:
    given = world(pods, asked, "amd", "amd-2")
    cache = DeviceCache()
    snapshot = with_devices(given, cache)
    made = plan(snapshot)
    assert len(made.admitted[0].placement.podsets[0].by_node) == 2
    assert verify(snapshot, made, cache.selects) == ()
    nodes = {**snapshot.devices.nodes, "amd-2": NODES["nvidia"]}
    changed = replace(snapshot, devices=DeviceInventory(nodes, snapshot.devices.classes))
    found = verify(changed, made, cache.selects)
    assert (PlanRule.VENDORS in {v.rule for v in found}) is not accepted
    texts = [v.message for v in found if v.rule is PlanRule.VENDORS]
    assert texts == [f"a request for DeviceClass any-gpu can get GPUs of {AMD} and {NVIDIA}"] * (
        not accepted
    )
