"""NodeResourceTopology objects, the annotation that requests one NUMA node, and both in ``queuectl plan -f``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import yaml

from queuectl.devices.numa_devices import HELD_BY_OTHERS
from queuectl.domain.devices import NodeZones
from queuectl.domain.quantity import Resources
from queuectl.domain.records import Deleted, NodeTopologyRecord
from queuectl.objects.documents import read_documents
from queuectl.objects.errors import MalformedError, RequestError
from queuectl.objects.kubernetes.nodes import WireNodeTopology, read_node_topology
from queuectl.objects.kubernetes.templates import read_numa_policy
from queuectl.offline.inputs import read_snapshot
from queuectl.state.devices import TOPOLOGIES
from tests.unit.test_state import LIVE, RESUMED, World, on

GIB = 1 << 30
KEY = "queuectl.dev/podset-numa-policy"


def zone(
    name: str, cpu: str, memory: str = "4Gi", kind: str = "Node", **more: str
) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": memory, **more}
    resources = [
        {"name": n, "capacity": "64", "allocatable": v, "available": "0"}
        for n, v in amounts.items()
    ]
    return {"name": name, "type": kind, "resources": resources}


def topology(*zones: dict[str, Any], **fields: Any) -> dict[str, Any]:
    meta = {"name": "n", "resourceVersion": "7"}
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": meta,
        "zones": list(zones),
        **fields,
    }


def attributes(**values: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def read(body: dict[str, Any]) -> NodeTopologyRecord:
    return read_node_topology(msgspec.convert(body, WireNodeTopology))


def cpu(cores: int, memory: int = 4) -> Resources:
    return Resources({"cpu": cores * 1000, "memory": memory * GIB})


def test_zones_of_the_type_node_have_their_allocatable_amounts():
    body = topology(
        zone("node-1", "3"),
        zone("socket-0", "9", kind="Socket"),
        zone("node-0", "2"),
        attributes=attributes(
            topologyManagerPolicy="single-numa-node", topologyManagerScope="pod", other="x"
        ),
    )
    expected = NodeZones((cpu(2), cpu(3)), "single-numa-node", "pod")
    assert read(body) == NodeTopologyRecord("n", 7, expected)
    assert expected.aligns


@pytest.mark.parametrize(
    ("fields", "policy", "scope"),
    [
        ({}, "none", "container"),
        ({"topologyPolicies": ["SingleNUMANodePodLevel"]}, "single-numa-node", "pod"),
        ({"topologyPolicies": ["SingleNUMANodeContainerLevel"]}, "single-numa-node", "container"),
        ({"topologyPolicies": ["BestEffort"]}, "BestEffort", "container"),
        (
            {
                "topologyPolicies": ["SingleNUMANodePodLevel"],
                "attributes": attributes(topologyManagerPolicy="restricted"),
            },
            "restricted",
            "pod",
        ),
    ],
)
def test_the_policy_of_the_kubelet_is_an_attribute_or_the_older_field(fields, policy, scope):
    found = read(topology(zone("node-0", "2"), **fields)).content
    assert (found.policy, found.scope) == (policy, scope)


def test_an_amount_that_is_not_a_quantity_is_an_error_with_its_zone():
    with pytest.raises(MalformedError, match=r"^zones\[0\].resources.*cpu: 'x' is not a quantity"):
        read(topology(zone("node-0", "x")))


def test_the_annotation_has_one_value():
    assert read_numa_policy({KEY: "single-numa-node"})
    assert not read_numa_policy({})
    with pytest.raises(RequestError, match=r"'restricted' is not \"single-numa-node\""):
        read_numa_policy({KEY: "restricted"})


def node(name: str = "n") -> dict[str, Any]:
    allocatable = {"cpu": "8", "memory": "8Gi", "pods": "110"}
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status}


def running(quality: str) -> dict[str, Any]:
    resources = {"requests": {"cpu": "1"}}
    spec = {"nodeName": "n", "containers": [{"name": "c", "resources": resources}]}
    status = {"phase": "Running", "qosClass": quality}
    meta = {"name": "p", "namespace": "a", "uid": "p"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


@pytest.mark.parametrize(
    ("quality", "held"), [("Burstable", {}), ("Guaranteed", {"n": (HELD_BY_OTHERS,)})]
)
def test_a_guaranteed_pod_of_no_gang_holds_a_part_of_a_numa_node(quality, held):
    bodies = [node(), topology(zone("node-0", "2")), running(quality)]
    snapshot = read_snapshot(read_documents(yaml.safe_dump_all(bodies), "f.yaml")).snapshot
    assert snapshot.devices.zones == {"n": NodeZones((cpu(2),))}
    assert snapshot.other_devices == held


def record(version: int, cores: int = 2) -> NodeTopologyRecord:
    return NodeTopologyRecord("n1", version, NodeZones((cpu(cores),), "single-numa-node", "pod"))


def plans_differ(world: World, *records: NodeTopologyRecord) -> bool:
    """Whether plans can differ after these objects."""
    world.mirror.planning_changed = False
    world.see(*records)
    return world.mirror.planning_changed


def test_the_watch_keeps_the_numa_nodes_of_known_nodes():
    world = World(records=[record(2), replace(record(2), name="other")])
    assert world.freeze().devices.zones == {"n1": record(2).content}
    first = world.freeze().devices
    assert not plans_differ(world, record(3), record(1, cores=1))
    assert world.freeze().devices is first
    assert plans_differ(world, record(4, cores=3))
    assert world.freeze().devices.zones == {"n1": record(4, cores=3).content}
    world.mirror.apply([Deleted(TOPOLOGIES, "n1", 9), Deleted(TOPOLOGIES, "other", 9)])
    assert world.freeze().devices.zones == {}


def test_a_guaranteed_pod_that_fills_no_slot_holds_a_part_of_a_numa_node():
    world = World(LIVE, records=[RESUMED, record(2), on("p1", "n1", guaranteed=True)])
    assert world.freeze().other_devices == {}
    world.see(on("foreign", "n1", attempt=0, guaranteed=True), on("far", "n2", guaranteed=True))
    assert world.freeze().other_devices == {"n1": (HELD_BY_OTHERS,)}
