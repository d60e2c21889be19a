"""How slices and even spreads are read from Jobs, PyTorchJobs and Workloads, and which requests are refused by which name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from queuectl.domain.workload import PodSet, Slice, TopologyMode, TopologyRequest
from queuectl.objects.documents import Document
from queuectl.objects.errors import Address
from queuectl.objects.files.workloads import read_workload
from queuectl.objects.kinds import KINDS

BLOCK, RACK, HOST = "example.com/block", "example.com/rack", "kubernetes.io/hostname"
OURS, KUEUE = "queuectl.dev/podset", "kueue.x-k8s.io/podset"


def template(annotations: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "a"}]}}


def job(pods: int, **annotations: str) -> dict[str, Any]:
    """``queuectl.dev/podset-<suffix>`` by keyword; Kueue's with ``kueue_`` before."""
    written = {}
    for key, value in annotations.items():
        prefix = KUEUE if key.startswith("kueue_") else OURS
        written[f"{prefix}-{key.removeprefix('kueue_').replace('_', '-')}"] = value
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"parallelism": pods, "suspend": True, "template": template(written)},
    }


def read(body: dict[str, Any]) -> tuple[tuple[PodSet, ...], str | None]:
    document = Document(Address(), body)
    if body["kind"] == "Workload":
        record = read_workload(document)[0].record
        return record.podsets, record.error
    kind = KINDS[body["kind"]]
    record = kind.read(document.convert(kind.wire))
    return record.podsets, record.error


def topology(body: dict[str, Any]) -> TopologyRequest | None:
    (podset,), error = read(body)
    assert error is None
    return podset.topology


LAYERS = json.dumps([{"topology": BLOCK, "size": 8}, {"topology": RACK, "size": 4}])
NESTED = (Slice(BLOCK, 8), Slice(RACK, 4))


@pytest.mark.parametrize("prefix", ["", "kueue_"])
@pytest.mark.parametrize(
    ("annotations", "asked"),
    [
        (
            {"slice_required_topology": RACK, "slice_size": "4", "required_topology": BLOCK},
            TopologyRequest(TopologyMode.REQUIRED, BLOCK, (Slice(RACK, 4),)),
        ),
        (
            {"slice_required_topology": RACK, "slice_size": "16", "preferred_topology": BLOCK},
            TopologyRequest(TopologyMode.PREFERRED, BLOCK, (Slice(RACK, 16),)),
        ),
        (
            {"slice_required_topology": HOST, "slice_size": "2"},
            TopologyRequest(TopologyMode.UNCONSTRAINED, None, (Slice(HOST, 2),)),
        ),
        (
            {"slice_required_topology_constraints": LAYERS, "required_topology": BLOCK},
            TopologyRequest(TopologyMode.REQUIRED, BLOCK, NESTED),
        ),
    ],
    ids=["required", "preferred", "alone", "layers"],
)
def test_slices_are_read_under_either_prefix(
    prefix: str, annotations: dict[str, str], asked: TopologyRequest
) -> None:
    assert topology(job(16, **{prefix + k: v for k, v in annotations.items()})) == asked


def test_an_even_spread_is_asked_by_our_annotation_alone() -> None:
    asked = topology(job(4, preferred_topology=RACK, balanced="true"))
    assert asked == TopologyRequest(TopologyMode.PREFERRED, RACK, balanced=True)
    assert topology(job(4, balanced="true")) == TopologyRequest(
        TopologyMode.UNCONSTRAINED, balanced=True
    )
    assert topology(job(4, balanced="false")) is None
    assert topology(job(4, kueue_balanced="true")) is None


def test_each_replica_type_has_its_own_slices() -> None:
    group = {f"{OURS}-required-topology": BLOCK, f"{OURS}-group-name": "all"}
    sliced = {
        **group,
        f"{KUEUE}-slice-required-topology": RACK,
        f"{KUEUE}-slice-size": "4",
    }
    body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "p"},
        "spec": {
            "pytorchReplicaSpecs": {
                "Master": {"replicas": 1, "template": template(group)},
                "Worker": {"replicas": 8, "template": template(sliced)},
            }
        },
    }
    podsets, error = read(body)
    assert error is None
    assert [p.group for p in podsets] == ["all", "all"]
    assert [p.topology and p.topology.slices for p in podsets] == [(), (Slice(RACK, 4),)]


def workload(pods: int, request: dict[str, Any], **annotations: str) -> dict[str, Any]:
    written = {f"{OURS}-{k.replace('_', '-')}": v for k, v in annotations.items()}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "w"},
        "spec": {
            "podSets": [{"count": pods, "template": template(written), "topologyRequest": request}]
        },
    }


@pytest.mark.parametrize(
    ("request_of", "slices"),
    [
        ({"podSetSliceRequiredTopology": RACK, "podSetSliceSize": 4}, (Slice(RACK, 4),)),
        ({"podsetSliceRequiredTopologyConstraints": json.loads(LAYERS)}, NESTED),
        ({"podSetSliceRequiredTopologyConstraints": json.loads(LAYERS)}, NESTED),
    ],
    ids=["one layer", "two layers", "the other spelling"],
)
def test_the_topology_request_of_a_workload_gives_its_slices(
    request_of: dict[str, Any], slices: tuple[Slice, ...]
) -> None:
    asked = topology(workload(16, {"required": BLOCK, **request_of}))
    assert asked == TopologyRequest(TopologyMode.REQUIRED, BLOCK, slices)


def test_a_workload_keeps_the_even_spread_of_its_template() -> None:
    body = workload(4, {"preferred": RACK}, balanced="true", required_topology=BLOCK)
    asked = topology(body)
    assert asked == TopologyRequest(TopologyMode.PREFERRED, RACK, balanced=True)


AT = "spec.template.metadata.annotations: "
MULTI = "podset-slice-required-topology-constraints"


def layers(*sizes: tuple[str, int]) -> str:
    return json.dumps([{"topology": level, "size": size} for level, size in sizes])


@pytest.mark.parametrize(
    ("annotations", "sentence"),
    [
        ({"slice_size": "4"}, "podset-slice-required-topology: is required with podset-slice-size"),
        ({"slice_required_topology": RACK}, "podset-slice-size: is required with podset-slice-required-topology"),
        ({"slice_required_topology": RACK, "slice_size": "3"}, "podset-slice-size: 3 does not divide the podset's count 16"),
        ({"slice_required_topology": RACK, "slice_size": "32"}, "podset-slice-size: 32 does not divide the podset's count 16"),
        ({"slice_required_topology": RACK, "slice_size": "0"}, "podset-slice-size: 0 is not a positive number of pods"),
        ({"slice_required_topology": RACK, "slice_size": "-4"}, "podset-slice-size: '-4' is not a whole number of pods"),
        ({"slice_required_topology": "a rack", "slice_size": "4"}, "podset-slice-required-topology: 'a rack' is not a node label key"),
        ({"slice_required_topology": RACK, "slice_size": "4", "required_topology": HOST},
         f"podset-required-topology: '{RACK}' is coarser than the podset's own {HOST}"),
        ({"slice_required_topology_constraints": LAYERS, "slice_size": "4"},
         f"podset-slice-size and {MULTI} contradict each other: keep one of them"),
        ({"slice_required_topology_constraints": "rack:4"}, f"{MULTI}: 'rack:4' is not a JSON list of layers"),
        ({"slice_required_topology_constraints": "[]"}, f"{MULTI}: 0 layers are not 1 to 3"),
        ({"slice_required_topology_constraints": layers(*((f"l{i}", 2) for i in range(4)))}, f"{MULTI}: 4 layers are not 1 to 3"),
        ({"slice_required_topology_constraints": '[{"topology": "a", "size": "4"}]'}, f"{MULTI}[0].size: expected `int`, got `str`"),
        ({"slice_required_topology_constraints": '[{"topology": "a", "sizes": [4]}]'}, f"{MULTI}[0].sizes: unknown field"),
        ({"slice_required_topology_constraints": layers((BLOCK, 8), (RACK, 3))},
         f"{MULTI}[1].size: 3 does not divide the size 8 of the layer before it"),
        ({"slice_required_topology_constraints": layers((BLOCK, 5))}, f"{MULTI}[0].size: 5 does not divide the podset's count 16"),
        ({"slice_required_topology_constraints": layers((RACK, 8), (RACK, 4))}, f"{MULTI}[1].topology: '{RACK}' occurs twice"),
        ({"slice_required_topology_constraints": layers((HOST, 8), (RACK, 4))},
         f"{MULTI}[1].topology: '{RACK}' is coarser than {HOST} before it"),
        ({"balanced": "yes"}, "podset-balanced: 'yes' is not \"true\""),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_names_the_field(annotations: dict[str, str], sentence: str) -> None:
    _, error = read(job(16, **annotations))
    assert error == AT + sentence


def test_a_workloads_mistake_names_its_own_field() -> None:
    wrong = {"podsetSliceRequiredTopologyConstraints": json.loads(layers((BLOCK, 8), (RACK, 3)))}
    _, error = read(workload(16, wrong))
    assert error == (
        "spec.podSets[0].topologyRequest.podsetSliceRequiredTopologyConstraints[1].size: "
        "3 does not divide the size 8 of the layer before it"
    )
