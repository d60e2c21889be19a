"""Pools of two drivers with the same name and counters, which kube-scheduler mixes up in one pod."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuectl.domain.devices import Device, NodeDevices, PodDevices
from queuectl.domain.reasons import Code
from queuectl.planner import plan
from tests.devices.build import POOL, device, node, option, pod, request
from tests.devices.test_lower import claiming, cluster, lowered, starts
from tests.planner.build import gang

OTHER = "nic.example.com"


def of_other_driver(one: Device, pool: str) -> Device:
    kind = replace(one.kind, driver=OTHER)
    return replace(one, id=replace(one.id, driver=OTHER, pool=pool), kind=kind)


def two_drivers(pool: str = POOL) -> NodeDevices:
    """Two GPUs of one driver and two NICs of another, each with a counter that is enough for both."""
    gpus = [device(f"g{i}", "part", consumes={"x": 1}) for i in range(2)]
    nics = [of_other_driver(device(f"n{i}", "nic", consumes={"x": 1}), pool) for i in range(2)]
    counters = (
        *node(x=2).counters,
        ((OTHER, pool, "set", "x"), 2),
    )
    return NodeDevices((*gpus, *nics), tuple(sorted(counters)))


PART, NIC = pod(option("part")), pod(option("nic"))
BOTH = pod(option("part"), option("nic"))
EITHER = pod(request("r", option("part"), option("nic")))


def test_pods_that_use_one_driver_each_share_a_node() -> None:
    gangs = [
        gang("parts", claiming(2, PART), queue=None),
        gang("nics", claiming(2, NIC), queue=None, queued_at=1),
    ]
    assert starts(cluster({"n": two_drivers()}, gangs)) == {"parts": {"n": 2}, "nics": {"n": 2}}


@pytest.mark.parametrize("devices", [BOTH, EITHER, pod(option("any"))])
def test_a_pod_that_can_use_both_drivers_is_refused_with_the_reason(devices: PodDevices) -> None:
    asks = gang("g", claiming(1, devices), queue=None)
    (refusal,) = plan(lowered(cluster({"n": two_drivers()}, [asks]))).pending
    assert refusal.reasons[0].code is Code.UNSUPPORTED
    assert (
        "counters and the same name, and kube-scheduler mixes them up" in refusal.reasons[0].message
    )


@pytest.mark.parametrize("devices", [BOTH, EITHER, pod(option("any"))])
def test_a_pod_can_use_both_drivers_where_their_pools_have_different_names(
    devices: PodDevices,
) -> None:
    asks = gang("g", claiming(1, devices), queue=None)
    assert starts(cluster({"n": two_drivers("other")}, [asks])) == {"g": {"n": 1}}
