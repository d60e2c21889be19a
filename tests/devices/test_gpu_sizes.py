"""The GPUs of requests for devices, of nodes and of gangs that share claims."""

from __future__ import annotations

from fractions import Fraction

import pytest

from queuectl.devices.gpu_sizes import GpuSizes, NodeGpus, with_sizes
from queuectl.domain.accounting import Accounting
from queuectl.domain.devices import (
    AttributeValue,
    Claim,
    ClaimSpec,
    Device,
    DeviceClass,
    DeviceEffect,
    DeviceId,
    DeviceInventory,
    DeviceKind,
    DeviceOption,
    DeviceRequest,
    DeviceTaint,
    NodeDevices,
    PodDevices,
)
from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.gpus import GpuWeights, PodGpus
from queuectl.domain.quantity import NOTHING, Resources
from queuectl.domain.queues import QueueConfig
from queuectl.domain.rules import Rules
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.workload import PodSet, PodShape, Workload

NVIDIA, AMD, NIC = "gpu.nvidia.com", "gpu.amd.com", "nic.example.com"
BAD = DeviceTaint("bad", DeviceEffect.NO_SCHEDULE)


def device(
    name: str,
    driver: str = NVIDIA,
    *,
    counters: int = 0,
    memory: int = 0,
    taints: tuple[DeviceTaint, ...] = (),
    **attributes: AttributeValue,
) -> Device:
    values = tuple(sorted((f"{driver}/{key}", value) for key, value in attributes.items()))
    capacity = ((f"{driver}/memory", Fraction(memory)),) if memory else ()
    kind = DeviceKind(driver, values, capacity, taints, shared=bool(memory))
    consumes = ((("set", "slices"), counters),) if counters else ()
    return Device(DeviceId(driver, "pool", name), kind, consumes)


def selecting(name: str, expression: str, resource: str | None = None) -> DeviceClass:
    return DeviceClass(name, (expression,), resource)


CLASSES = {
    one.name: one
    for one in (
        selecting(NVIDIA, f"device.driver == '{NVIDIA}' && !('profile' in device.attributes['{NVIDIA}'])", "nvidia.com/gpu"),
        selecting("mig", f"device.driver == '{NVIDIA}' && 'profile' in device.attributes['{NVIDIA}']"),
        selecting(AMD, f"device.driver == '{AMD}'"),
        selecting(NIC, f"device.driver == '{NIC}'"),
    )
}  # fmt: skip
NODES = {
    "whole": NodeDevices(tuple(device(f"gpu-{n}") for n in range(4))),
    "cut": NodeDevices(
        (
            device("gpu-0", counters=7),
            device("mig-0", counters=3, profile="3g.40gb"),
            device("mig-1", counters=4, profile="4g.40gb"),
        )
    ),
    "amd": NodeDevices(tuple(device(f"x-{n}", AMD, partitionProfile="cpx_nps4") for n in range(8))),
    "shared": NodeDevices((device("gpu-0", AMD, memory=80),)),
    "bad": NodeDevices((device("gpu-0"), device("gpu-1", taints=(BAD,)))),
    "nic": NodeDevices((device("nic-0", NIC),)),
}


def sizes(*nodes: str, given: dict[str, str] | None = None) -> GpuSizes:
    weights = GpuWeights(tuple((name, Fraction(gpus)) for name, gpus in (given or {}).items()))
    config = QueueConfig(rules=Rules(accounting=Accounting(gpus=weights)))
    fleet = Fleet(tuple(Node(name, {}, NOTHING) for name in nodes))
    return GpuSizes.of(fleet, DeviceInventory({n: NODES[n] for n in nodes}, CLASSES), config)


def claim(*options: DeviceOption) -> ClaimSpec:
    names = tuple(f"s{n}" for n in range(len(options))) if len(options) > 1 else ()
    return ClaimSpec((DeviceRequest("r", options, names),))


def podset(*claims: ClaimSpec, extended: int = 0, shared: tuple[str, ...] = ()) -> PodSet:
    requests = Resources({"nvidia.com/gpu": extended})
    return PodSet("w", 2, PodShape(requests, devices=PodDevices(claims, shared)))


Opt = DeviceOption


@pytest.mark.parametrize(
    ("nodes", "asked", "gpus"),
    [
        (["whole"], podset(claim(Opt(NVIDIA, count=3))), "3"),
        (["whole"], podset(claim(Opt(NVIDIA, count=None))), "4"),
        (["whole"], podset(extended=2), "2"),
        (["whole"], podset(claim(Opt(NVIDIA, admin=True))), "0"),
        (["whole", "cut"], podset(claim(Opt("mig"))), "4/7"),
        (["cut"], podset(claim(Opt("mig", (f"device.attributes['{NVIDIA}'].profile == '3g.40gb'",)))), "3/7"),
        (["cut"], podset(claim(Opt("mig"), Opt(NVIDIA))), "1"),
        (["amd"], podset(claim(Opt(AMD, count=2))), "1/4"),
        (["shared"], podset(claim(Opt(AMD, capacity=((f"{AMD}/memory", Fraction(20)),)))), "1/4"),
        (["nic"], podset(claim(Opt(NIC, count=2))), "0"),
        ([], podset(claim(Opt(NVIDIA, count=2))), "2"),
        ([], podset(claim(Opt("mig"))), "0"),
    ],
)  # fmt: skip
def test_a_request_has_the_gpus_of_the_devices_that_it_selects(
    nodes: list[str], asked: PodSet, gpus: str
) -> None:
    (found,) = sizes(*nodes).sized((asked,), "ns", "", {})
    assert found.gpus == PodGpus(Fraction(gpus))


@pytest.mark.parametrize(
    ("name", "gpus", "failed"),
    [("whole", 4, 0), ("cut", 1, 0), ("amd", 1, 0), ("shared", 1, 0), ("bad", 1, 1), ("nic", 0, 0)],
)
def test_a_node_has_the_physical_gpus_behind_its_devices(name: str, gpus: int, failed: int) -> None:
    found = sizes(name).of_node(Node(name, {}, NOTHING))
    assert found == NodeGpus(Fraction(gpus), Fraction(failed))


def test_the_configuration_states_the_weight_of_the_charged_resource() -> None:
    mig = "deviceclass.resource.kubernetes.io/mig"
    (found,) = sizes("cut", given={mig: "1/2"}).sized((podset(claim(Opt("mig"))),), "ns", "", {})
    assert found.gpus.each == Fraction(1, 2)
    nic = f"deviceclass.resource.kubernetes.io/{NIC}"
    assert sizes("nic", given={nic: "1"}).of_node(Node("nic", {}, NOTHING)).gpus == 1


def test_a_claim_that_pods_share_counts_once() -> None:
    shared = Claim("c", "ns", "both", claim(Opt(NVIDIA, count=2)))
    podsets = (podset(shared=("both",)), podset(claim(Opt(NVIDIA)), shared=("both",)))
    workload = Workload("u", "Job", "ns", "train", podsets)
    snapshot = Snapshot(
        0.0,
        Fleet((Node("whole", {}, NOTHING),)),
        QueueConfig(),
        (Pending(workload),),
        devices=DeviceInventory({"whole": NODES["whole"]}, CLASSES),
        claims={("ns", "both"): shared},
    )
    assert with_sizes(snapshot).pending[0].workload.gpus == 2 + 2
