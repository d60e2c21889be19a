"""Topology requests of ordinary objects, from a file to the placement: levels, slices, even spreads, groups."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from queuectl.cli.main import app
from queuectl.domain.plan import Plan
from queuectl.domain.reasons import Code
from queuectl.objects.documents import read_documents
from queuectl.offline.inputs import read_snapshot
from queuectl.planner import plan
from queuectl.planner.verify import verify

BLOCK, RACK, HOST = "example.com/block", "example.com/rack", "kubernetes.io/hostname"
QUEUES = f"""
apiVersion: kueue.x-k8s.io/v1beta1
kind: Topology
metadata: {{name: cluster}}
spec: {{levels: [{{nodeLabel: {BLOCK}}}, {{nodeLabel: {RACK}}}, {{nodeLabel: {HOST}}}]}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {{name: gpus}}
spec: {{topologyName: cluster, nodeLabels: {{pool: gpus}}}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {{name: all}}
spec:
  namespaceSelector: {{}}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{{name: gpus, resources: [{{name: nvidia.com/gpu, nominalQuota: 1000}}]}}]
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {{name: main, namespace: team}}
spec: {{clusterQueue: all}}
"""


def nodes(gpus: Mapping[str, int]) -> list[dict[str, Any]]:
    """``block/rack/host`` to its GPUs."""
    made = []
    for path, count in gpus.items():
        block, rack, host = path.split("/")
        made.append(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": host, "labels": {BLOCK: block, RACK: rack, HOST: host, "pool": "gpus"}},
                "status": {
                    "allocatable": {"nvidia.com/gpu": str(count), "cpu": "64", "memory": "1Ti", "pods": "110"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
        )  # fmt: skip
    return made


def template(gpus: int, annotations: Mapping[str, str]) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus)}
    return {
        "metadata": {"annotations": dict(annotations)},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }


def job(name: str, pods: int, gpus: int = 1, **annotations: str) -> dict[str, Any]:
    """``kueue.x-k8s.io/podset-<keyword>`` on the template."""
    written = {f"kueue.x-k8s.io/podset-{k.replace('_', '-')}": v for k, v in annotations.items()}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "main"}},
        "spec": {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "suspend": True,
                 "template": template(gpus, written)},
    }  # fmt: skip


def planned(fleet: Mapping[str, int], *gangs: dict[str, Any]) -> Plan:
    text = "---\n".join([QUEUES, *(yaml.safe_dump(d) for d in (*nodes(fleet), *gangs))])
    snapshot = read_snapshot(read_documents(text, "f.yaml"), None).snapshot
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


def nodes_of(made: Plan, podset: str = "main") -> list[str]:
    """Host of each rank of the only gang."""
    assert made.admitted, made.pending
    (admission,) = made.admitted
    placed = admission.placement.of(podset)
    assert placed is not None
    return [host for host, count in placed.nodes for _ in range(count)]


def test_of_two_blocks_that_hold_the_job_the_one_with_fewer_racks() -> None:
    fleet = {f"a/r{i}/a{i}": 1 for i in range(8)} | {f"b/r0/b{i}": 1 for i in range(9)}
    made = planned(fleet, job("j", 8, preferred_topology=BLOCK))
    assert {host[0] for host in nodes_of(made)} == {"b"}


def test_two_podsets_listed_in_the_order_that_misleads() -> None:
    """The first fits both racks and the second only one of them: the first has to leave it."""
    fleet = {"b/r1/n1": 8, "b/r2/n2": 5, "b/r2/n3": 4}
    request = {"topologyRequest": {"required": RACK}}
    podsets = [
        {"name": "small", "count": 8, "template": template(1, {}), **request},
        {"name": "large", "count": 1, "template": template(8, {}), **request},
    ]
    workload = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "w", "namespace": "team"},
        "spec": {"queueName": "main", "podSets": podsets},
    }
    made = planned(fleet, workload)
    assert set(nodes_of(made, "small")) == {"n2", "n3"}
    assert set(nodes_of(made, "large")) == {"n1"}
    podsets.reverse()
    assert set(nodes_of(planned(fleet, workload), "large")) == {"n1"}


def test_slices_of_a_job_are_whole_racks_of_consecutive_ranks() -> None:
    """Racks hold 5 and 4: two slices of three, where filling the larger first would leave one pod over."""
    fleet = {"b/r1/n1": 5, "b/r2/n2": 4}
    asked = job("j", 6, required_topology=BLOCK, slice_required_topology=RACK, slice_size="3")
    made = planned(fleet, asked)
    assert nodes_of(made) == ["n1"] * 3 + ["n2"] * 3


def test_slices_alone_ask_for_no_domain_of_the_whole_job() -> None:
    fleet = {"x/r1/n1": 4, "y/r2/n2": 4, "z/r3/n3": 3}
    made = planned(fleet, job("j", 8, slice_required_topology=HOST, slice_size="4"))
    assert nodes_of(made) == ["n1"] * 4 + ["n2"] * 4


def test_layers_of_slices_nest() -> None:
    fleet = {f"a/r{i // 4}/n{i}": 2 for i in range(8)} | {
        f"b/r{2 + i // 4}/m{i}": 3 for i in range(8)
    }
    layers = [
        {"topology": BLOCK, "size": 16},
        {"topology": RACK, "size": 8},
        {"topology": HOST, "size": 2},
    ]
    made = planned(fleet, job("j", 32, slice_required_topology_constraints=json.dumps(layers)))
    found = nodes_of(made)
    for size, domain in ((16, lambda h: h[0]), (8, lambda h: (h[0], int(h[1:]) // 4)), (2, str)):
        for at in range(0, 32, size):
            assert len({domain(host) for host in found[at : at + size]}) == 1


def test_a_slice_too_large_for_any_domain_never_fits() -> None:
    made = planned({"b/r1/n1": 5, "b/r2/n2": 4}, job("j", 6, slice_required_topology=RACK, slice_size="6"))  # fmt: skip
    (refusal,) = made.pending
    assert refusal.reasons[0].code is Code.SHAPE_NEVER_FITS


def test_an_even_spread_over_two_racks() -> None:
    fleet = {f"b/r{i // 3}/n{i}": 4 for i in range(6)}
    asked = job("j", 16, preferred_topology=RACK)
    asked["spec"]["template"]["metadata"]["annotations"]["queuectl.dev/podset-balanced"] = "true"
    found = nodes_of(planned(fleet, asked))
    assert [sum(int(host[1:]) // 3 == rack for host in found) for rack in (0, 1)] == [8, 8]


def test_a_master_and_its_sliced_workers_share_a_block() -> None:
    """Block a has more room, but only block b has it in whole slices of four per rack."""
    fleet = {f"a/r{i}/a{i}": 7 for i in range(2)} | {f"b/s{i}/b{i}": 5 - (i == 2) for i in range(3)}
    group = {"queuectl.dev/podset-required-topology": BLOCK, "queuectl.dev/podset-group-name": "g"}
    sliced = {f"queuectl.dev/podset-slice-{k}": v for k, v in (("required-topology", RACK), ("size", "4"))}  # fmt: skip
    body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "p", "namespace": "team", "labels": {"queuectl.dev/queue-name": "main"}},
        "spec": {
            "runPolicy": {"suspend": True},
            "pytorchReplicaSpecs": {
                "Master": {"replicas": 1, "template": template(1, group)},
                "Worker": {"replicas": 12, "template": template(1, {**group, **sliced})},
            },
        },
    }  # fmt: skip
    made = planned(fleet, body)
    assert nodes_of(made, "worker") == ["b0"] * 4 + ["b1"] * 4 + ["b2"] * 4
    assert nodes_of(made, "master")[0] in ("b0", "b1")


def test_racks_that_are_not_labeled_yet_keep_only_the_job_that_requires_one(tmp_path: Path) -> None:
    """As ``queuectl plan`` shows it, with the explanation. The GPU nodes are there; the agent that labels racks has not run."""
    fleet = nodes({"b/r1/n1": 8})
    del fleet[0]["metadata"]["labels"][RACK]
    plain = {**job("x", 1), "metadata": {**job("x", 1)["metadata"], "name": "x"}}
    plain["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1"}}
    ignoring = {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Configuration",
        "resources": {"quotaCheckStrategy": "IgnoreUndeclared"},
    }
    gangs = [job("w", 1, required_topology=RACK), plain]
    file = tmp_path / "in.yaml"
    file.write_text(
        "---\n".join([QUEUES, *(yaml.safe_dump(one) for one in (*fleet, ignoring, *gangs))])
    )
    command = ["plan", "-f", str(file), "-o", "json", "--explain", "2"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    assert [start["workload"] for start in made["admitted"]] == ["team/x"]
    (waits,) = made["pending"]
    assert waits["reasons"][0]["code"] == Code.SHAPE_NEVER_FITS
    assert waits["reasons"][0]["message"].endswith("no rack has an eligible node")
