"""Gangs as ordinary objects, alongside Kueue's result for them.

Each case states in how many domains of each level Kueue's placement is, or that Kueue refuses: measured with its own snapshot
of the topology (v1beta2, August 2026) on the same nodes. The clusters are ours. Where a placement exists ours is found,
and it is in no more domains than the peer's, at any level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.planner.documents import Doc, Planned, planned

BLOCK, RACK, HOST = "topo/block", "topo/rack", "kubernetes.io/hostname"
LEVELS = (BLOCK, RACK, HOST)

Widths = tuple[int, ...]  # domains at each level, coarse to fine


def document(kind: str, name: str, spec: Doc, **metadata: Any) -> Doc:
    meta = {"name": name, **metadata}
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": meta, "spec": spec}


def node(name: str, cpu: int, gpu: int = 0, *, pods: int = 110, **more: Any) -> Doc:
    """A node named ``<block>-<rack>-<number>``; ``more``: labels, taints, ready."""
    block, rack, _ = name.split("-")
    labels = {BLOCK: block, RACK: f"{block}-{rack}", HOST: name, **more.get("labels", {})}
    ready = "True" if more.get("ready", True) else "False"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {k: v for k, v in labels.items() if k not in more.get("without", ())},
        },
        "spec": {"taints": more.get("taints", [])},
        "status": {
            "allocatable": {"cpu": str(cpu), "gpu": str(gpu), "pods": str(pods)},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def nodes(racks: Mapping[str, tuple[int, ...]]) -> list[Doc]:
    """Rack (``b0-r0``) to the cpus of its nodes."""
    return [node(f"{r}-{i}", cpu) for r, cpus in racks.items() for i, cpu in enumerate(cpus)]


def podset(count: int, cpu: int = 1, gpu: int = 0, name: str = "main", **asked: Any) -> Doc:
    """``asked``: ``required``, ``preferred``, ``group``, ``slices`` as (level, size) coarse to fine; ``spec`` of its pods."""
    requests = {"cpu": str(cpu)} | ({"gpu": str(gpu)} if gpu else {})
    pod = {"containers": [{"name": "c", "resources": {"requests": requests}}]}
    request: Doc = {mode: asked[mode] for mode in ("required", "preferred") if mode in asked}
    if asked.get("group"):
        request["podSetGroupName"] = asked["group"]
    if asked.get("slices"):
        layers = [{"topology": level, "size": size} for level, size in asked["slices"]]
        request["podsetSliceRequiredTopologyConstraints"] = layers
    body: Doc = {
        "name": name,
        "count": count,
        "template": {"spec": pod | asked.get("spec", {})},
    }
    return body | ({"topologyRequest": request} if request else {})


def other_pod(name: str, on: str, cpu: int, phase: str = "Running") -> Doc:
    container = {"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {"nodeName": on, "containers": [container]},
        "status": {"phase": phase},
    }


@dataclass(frozen=True)
class Case:
    """One gang on one cluster.

    Attributes:
        kueue: domains that its placement uses, per level; None = it refuses the gang.
        ours: where ours differs, which is never more.
    """

    name: str
    nodes: list[Doc]
    podsets: list[Doc]
    kueue: Widths | None
    ours: Widths | None = None
    pods: list[Doc] = field(default_factory=list)
    levels: tuple[str, ...] = LEVELS

    @property
    def expected(self) -> Widths | None:
        return self.kueue if self.ours is None else self.ours


ONE_BLOCK = {"b0-r0": (2, 2), "b0-r1": (3, 1), "b0-r2": (1, 1)}
SPOT = [{"key": "spot", "effect": "NoSchedule"}]
NOT_OLD = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "gen", "operator": "NotIn", "values": ["old"]}]}
            ]
        }
    }
}

CASES: list[Case] = [
    # one podset, one level
    Case("the rack that fits it tightest", nodes(ONE_BLOCK), [podset(4, required=RACK)], (1, 1, 2)),
    Case("no rack holds it", nodes(ONE_BLOCK), [podset(5, required=RACK)], None),
    Case("a whole block of racks", nodes(ONE_BLOCK), [podset(10, required=BLOCK)], (1, 3, 6)),
    Case("one node", nodes(ONE_BLOCK), [podset(3, required=HOST)], (1, 1, 1)),
    Case("no node holds it", nodes(ONE_BLOCK), [podset(4, required=HOST)], None),
    Case(
        "total room is not enough: every pod needs a node",
        nodes({"b0-r0": (3, 3, 3)}),
        [podset(4, cpu=2, required=RACK)],
        None,
    ),
    Case(
        "a preferred rack too small, so the block",
        nodes(ONE_BLOCK),
        [podset(6, preferred=RACK)],
        (1, 2, 4),
    ),
    Case(
        "a preferred block too small, so all blocks",
        nodes({"b0-r0": (2, 2), "b1-r0": (3,)}),
        [podset(6, preferred=BLOCK)],
        (2, 2, 3),
    ),
    Case(
        "of two blocks the tighter one has its slots in more racks",
        nodes({**{f"b0-r{i}": (1,) for i in range(4)}, "b1-r0": (5,)}),
        [podset(4, preferred=BLOCK)],
        (1, 4, 4),
        ours=(1, 1, 1),
    ),
    Case(
        "nothing asked: still few nodes",
        nodes({"b0-r0": (1, 1), "b1-r0": (1, 2)}),
        [podset(3)],
        (2, 2, 3),
        ours=(1, 1, 2),
    ),
    Case("nothing asked and no room", nodes({"b0-r0": (1, 1)}), [podset(3)], None),
    # Capacity that a node offers.
    Case(
        "GPUs are where they are",
        [node("b0-r0-0", 8), node("b0-r0-1", 4, gpu=2), node("b0-r1-0", 4, gpu=1)],
        [podset(2, gpu=1, required=RACK)],
        (1, 1, 1),
    ),
    Case(
        "as many pods as kubelet takes",
        [node("b0-r0-0", 8, pods=2), node("b0-r0-1", 8, pods=1)],
        [podset(3, required=RACK)],
        (1, 1, 2),
    ),
    Case(
        "others' pods count until they have ended",
        nodes({"b0-r0": (2, 2)}),
        [podset(3, required=RACK)],
        (1, 1, 2),
        pods=[other_pod("runs", "b0-r0-0", 1), other_pod("ended", "b0-r0-1", 2, "Succeeded")],
    ),
    Case(
        "nodes that are not ready offer nothing",
        [node("b0-r0-0", 4, ready=False), node("b0-r1-0", 1), node("b0-r1-1", 1)],
        [podset(2, required=RACK)],
        (1, 1, 2),
    ),
    Case(
        "a taint that no pod tolerates",
        [node("b0-r0-0", 4, taints=SPOT), node("b0-r1-0", 2)],
        [podset(3, required=RACK)],
        None,
    ),
    Case(
        "a taint that is tolerated",
        [node("b0-r0-0", 4, taints=SPOT), node("b0-r1-0", 2)],
        [podset(3, required=RACK, spec={"tolerations": [{"key": "spot", "operator": "Exists"}]})],
        (1, 1, 1),
    ),
    Case(
        "selected nodes only",
        [node("b0-r0-0", 4), node("b0-r1-0", 2, labels={"gen": "new"}), node("b0-r1-1", 2)],
        [podset(3, required=RACK, spec={"nodeSelector": {"gen": "new"}})],
        None,
    ),
    Case(
        "not the old nodes",
        [node("b0-r0-0", 4, labels={"gen": "old"}), node("b0-r1-0", 2), node("b0-r1-1", 1)],
        [podset(3, required=RACK, spec={"affinity": NOT_OLD})],
        (1, 1, 2),
    ),
    Case(
        "a node that lacks a level is in no domain",
        [node("b0-r0-0", 4, without=(RACK,)), node("b0-r1-0", 2)],
        [podset(3, required=BLOCK)],
        None,
    ),
    # slices
    Case(
        "slices stay whole in a rack",
        nodes({"b0-r0": (3,), "b0-r1": (3,), "b0-r2": (2,)}),
        [podset(6, required=BLOCK, slices=[(RACK, 2)])],
        (1, 3, 3),
    ),
    Case(
        "room for the pods but not for whole slices",
        nodes({"b0-r0": (3,), "b0-r1": (3,)}),
        [podset(6, required=BLOCK, slices=[(RACK, 2)])],
        None,
    ),
    Case(
        "slices that need no domain together",
        nodes({"b0-r0": (2,), "b1-r0": (2,), "b2-r0": (1,)}),
        [podset(4, slices=[(RACK, 2)])],
        (2, 2, 2),
    ),
    Case(
        "two layers: four in a rack, two on a node",
        nodes({"b0-r0": (3, 3), "b0-r1": (2, 1, 1)}),
        [podset(4, required=BLOCK, slices=[(RACK, 4), (HOST, 2)])],
        (1, 1, 2),
    ),
    Case(
        "two layers that only seem to fit",
        nodes({"b0-r0": (3, 1), "b0-r1": (2, 1, 1)}),
        [podset(4, required=BLOCK, slices=[(RACK, 4), (HOST, 2)])],
        None,
    ),
    # leader and workers
    Case(
        "a leader alongside its workers",
        nodes({"b0-r0": (2, 2), "b0-r1": (3, 2)}),
        [
            podset(1, name="leader", required=RACK, group="g"),
            podset(4, name="workers", required=RACK, group="g"),
        ],
        (1, 1, 2),
    ),
    Case(
        "workers alone would fit the tighter rack",
        [node("b0-r0-0", 4), node("b0-r1-0", 4, gpu=1), node("b0-r1-1", 1)],
        [
            podset(1, gpu=1, name="leader", required=RACK, group="g"),
            podset(4, name="workers", required=RACK, group="g"),
        ],
        (1, 1, 2),
    ),
    Case(
        "no rack holds both",
        [node("b0-r0-0", 4), node("b0-r1-0", 3, gpu=1)],
        [
            podset(1, gpu=1, name="leader", required=RACK, group="g"),
            podset(4, name="workers", required=RACK, group="g"),
        ],
        None,
    ),
    # their own podsets
    Case(
        "the first podset takes the second one's only rack",
        [node("b0-r0-0", 8, gpu=4), node("b0-r1-0", 9)],
        [podset(8, name="a", required=RACK), podset(4, gpu=1, name="b", required=RACK)],
        None,
        ours=(1, 2, 2),
    ),
    Case(
        "the same two the other way round",
        [node("b0-r0-0", 8, gpu=4), node("b0-r1-0", 9)],
        [podset(4, gpu=1, name="b", required=RACK), podset(8, name="a", required=RACK)],
        (1, 2, 2),
    ),
    # other topologies
    Case(
        "nodes are the only level",
        nodes({"b0-r0": (2, 3), "b0-r1": (1,)}),
        [podset(5, preferred=HOST)],
        (2,),
        levels=(HOST,),
    ),
]


def gang_of(case: Case) -> list[Doc]:
    quotas = [{"name": r, "nominalQuota": "1000"} for r in ("cpu", "gpu")]
    flavors = [{"name": "default", "resources": quotas}]
    groups = [{"coveredResources": ["cpu", "gpu"], "flavors": flavors}]
    return [
        document("Topology", "topo", {"levels": [{"nodeLabel": level} for level in case.levels]}),
        document("ResourceFlavor", "default", {"topologyName": "topo"}),
        document("ClusterQueue", "q", {"namespaceSelector": {}, "resourceGroups": groups}),
        document("LocalQueue", "q", {"clusterQueue": "q"}, namespace="default"),
        *case.nodes,
        *case.pods,
        document("Workload", "g", {"queueName": "q", "podSets": case.podsets}, namespace="default"),
    ]


def widths(case: Case, made: Planned) -> Widths:
    """Distinct domains of all its pods at each level."""
    labels = {n["metadata"]["name"]: n["metadata"]["labels"] for n in case.nodes}
    (admitted,) = made.document["admitted"]
    used = {name for placed in admitted["podSets"] for name in placed["nodes"]}
    return tuple(len({labels[name][level] for name in used}) for level in case.levels)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_placement_is_found_wherever_kueue_finds_one_and_in_no_more_domains(case: Case) -> None:
    made = planned(gang_of(case))
    assert (widths(case, made) if made.started else None) == case.expected
    if case.kueue is not None:
        assert case.expected is not None
        assert all(o <= k for o, k in zip(case.expected, case.kueue, strict=True))
