"""Devices that a Node has in its capacity and cannot allocate, and the time since when it is out of use."""

from __future__ import annotations

import msgspec
import pytest

from queuectl.domain.quantity import GPU
from queuectl.objects.errors import RequestError
from queuectl.objects.kubernetes.nodes import read_node
from queuectl.objects.kubernetes.wire import WireNode


def failed(**status: dict[str, str]) -> dict[str, int]:
    wire = msgspec.convert({"metadata": {"name": "n"}, "status": status}, WireNode)
    return dict(read_node(wire).node.failed)


@pytest.mark.parametrize(
    ("capacity", "allocatable", "expected"),
    [
        ({GPU: "8"}, {GPU: "8"}, {}),
        ({GPU: "8"}, {GPU: "6"}, {GPU: 2}),
        ({GPU: "8"}, {GPU: "0"}, {GPU: 8}),
        ({GPU: "8"}, {"cpu": "1"}, {GPU: 8}),
        ({"cpu": "96", "memory": "1Ti"}, {"cpu": "94", "memory": "1000Gi"}, {}),
        ({GPU: "4"}, {GPU: "8"}, {}),
    ],
)
def test_failed_devices_are_in_the_capacity_and_not_allocatable(
    capacity: dict[str, str], allocatable: dict[str, str], expected: dict[str, int]
) -> None:
    assert failed(capacity=capacity, allocatable=allocatable) == expected


def test_a_node_without_allocatable_amounts_has_no_failed_devices() -> None:
    assert failed(capacity={GPU: "8"}) == {}


@pytest.mark.parametrize(
    ("ready", "taint", "since"),
    [
        ("True", None, None),
        ("False", None, 60.0),
        ("True", "node.kubernetes.io/unschedulable", 30.0),
        ("False", "node.kubernetes.io/not-ready", 30.0),
        ("True", "dedicated", None),
    ],
)
def test_a_node_states_since_when_it_is_out_of_use(
    ready: str, taint: str | None, since: float | None
) -> None:
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": "1970-01-01T00:01:00Z"}
    own = {"key": taint, "effect": "NoSchedule", "timeAdded": "1970-01-01T00:00:30Z"}
    wire = {
        "metadata": {"name": "n"},
        "spec": {"taints": [own] if taint else []},
        "status": {"conditions": [condition]},
    }
    assert read_node(msgspec.convert(wire, WireNode)).node.out_since == since


def test_a_malformed_capacity_is_refused_with_its_path() -> None:
    with pytest.raises(RequestError, match=r"status\.capacity"):
        failed(capacity={GPU: "many"}, allocatable={GPU: "8"})
