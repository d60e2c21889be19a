"""Nodes as the clouds and the agents of GPU vendors label them, for `queuectl init`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

Body = dict[str, Any]
_CPU: Final = {
    "cpu": "31850m",
    "memory": "126341504Ki",
    "ephemeral-storage": "95491281146",
    "pods": "110",
}
_NVIDIA: Final = ("nvidia.com/gpu", "present", "NoSchedule")


def node(
    name: str,
    labels: Mapping[str, str],
    allocatable: Mapping[str, str],
    *taints: tuple[str, str, str],
    **spec: Any,
) -> Body:
    """A Node that is ready."""
    known = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    listed = [{"key": key, "value": value, "effect": effect} for key, value, effect in taints]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**known, **labels}},
        "spec": {"taints": listed, **spec},
        "status": {
            "allocatable": dict(allocatable),
            "capacity": dict(allocatable),
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def gke() -> list[Body]:
    """GKE: 16 A3 Ultra nodes in two blocks, without GPU feature discovery, and a pool without GPUs."""
    zone = {
        "topology.kubernetes.io/region": "europe-west1",
        "topology.kubernetes.io/zone": "europe-west1-b",
    }
    gpus = {
        "cpu": "206860m",
        "memory": "2923Gi",
        "nvidia.com/gpu": "8",
        "pods": "110",
        "attachable-volumes-gce-pd": "127",
    }
    found = []
    for at in range(16):
        labels = zone | {
            "cloud.google.com/gke-nodepool": f"a3u-{at // 8}",
            "cloud.google.com/gke-accelerator": "nvidia-h200-141gb",
            "cloud.google.com/gke-gpu": "true",
            "node.kubernetes.io/instance-type": "a3-ultragpu-8g",
            "cloud.google.com/gce-topology-block": f"9c3f{at // 8}",
            "cloud.google.com/gce-topology-subblock": f"5b1e{at // 4}",
            "cloud.google.com/gce-topology-host": f"77aa{at:02}",
        }
        found.append(node(f"gke-a3u-{at:02}", labels, gpus, _NVIDIA))
    pool = zone | {
        "cloud.google.com/gke-nodepool": "default-pool",
        "node.kubernetes.io/instance-type": "e2-standard-32",
    }
    return found + [node(f"gke-default-{at}", pool, _CPU) for at in range(3)]


def eks() -> list[Body]:
    """EKS: 8 P5 nodes in one zone with layers of the network, 2 G6 nodes in time-slices in two zones, and Karpenter's nodes."""
    found = []
    p5 = {
        "cpu": "191450m",
        "memory": "2061373Mi",
        "nvidia.com/gpu": "8",
        "vpc.amazonaws.com/efa": "32",
        "hugepages-2Mi": "42240Mi",
        "pods": "100",
    }
    for at in range(8):
        labels = {
            "topology.kubernetes.io/region": "us-east-2",
            "topology.kubernetes.io/zone": "us-east-2b",
            "node.kubernetes.io/instance-type": "p5.48xlarge",
            "eks.amazonaws.com/nodegroup": "p5",
            "topology.k8s.aws/network-node-layer-1": "nn-1a",
            "topology.k8s.aws/network-node-layer-2": f"nn-2{at // 4}",
            "topology.k8s.aws/network-node-layer-3": f"nn-3{at // 2}",
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
            "nvidia.com/gpu.replicas": "1",
            "nvidia.com/gpu.sharing-strategy": "none",
            "nvidia.com/mig.strategy": "single",
        }
        found.append(node(f"ip-10-0-1-{at}", labels, p5))
    for at in range(2):
        labels = {
            "topology.kubernetes.io/region": "us-east-2",
            "topology.kubernetes.io/zone": f"us-east-2{'ab'[at]}",
            "node.kubernetes.io/instance-type": "g6.12xlarge",
            "karpenter.sh/nodepool": "notebooks",
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": "NVIDIA-L4-SHARED",
            "nvidia.com/gpu.replicas": "4",
            "nvidia.com/gpu.sharing-strategy": "time-slicing",
        }
        shared = {"cpu": "47810m", "memory": "180Gi", "nvidia.com/gpu": "16", "pods": "100"}
        found.append(node(f"ip-10-0-2-{at}", labels, shared))
    web = {"karpenter.sh/nodepool": "general", "node.kubernetes.io/instance-type": "m7i.8xlarge"}
    return found + [node(f"ip-10-0-3-{at}", web, _CPU) for at in range(2)]


def superpod() -> list[Body]:
    """A DGX SuperPOD: two NVLink domains of 4 GB200 nodes in each of two blocks, and a control plane."""
    domain = "4f1c0a2e-8a51-4a37-9b0e-3c1f0d6f2a{:02}.{}"
    found = []
    for at in range(16):
        labels = {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": "NVIDIA-GB200",
            "nvidia.com/gpu.clique": domain.format(at // 4, 32766),
            "example.com/block": f"su-{at // 8}",
            "example.com/rack": f"r{at // 4:02}",
        }
        gpus = {
            "cpu": "144",
            "memory": "960Gi",
            "nvidia.com/gpu": "4",
            "rdma/rdma_shared_device_a": "63",
            "pods": "110",
        }
        found.append(node(f"dgx-{at:02}", labels, gpus))
    plane = {"node-role.kubernetes.io/control-plane": ""}
    taint = ("node-role.kubernetes.io/control-plane", "", "NoSchedule")
    return found + [node(f"head-{at}", plane, _CPU, taint) for at in range(3)]


def amd() -> list[Body]:
    """4 MI300X nodes in two racks, with the labels of AMD's node labeler."""
    return [
        node(
            f"mi300x-{at}",
            {
                "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM",
                "amd.com/gpu.family": "AI",
                "amd.com/gpu.device-id": "74a1",
                "amd.com/gpu.vram": "192G",
                "feature.node.kubernetes.io/amd-gpu": "true",
                "topology.example.com/rack": f"rack-{at // 2}",
            },
            {"cpu": "192", "memory": "2Ti", "amd.com/gpu": "8", "pods": "110"},
            ("amd.com/gpu", "present", "NoSchedule"),
        )
        for at in range(4)
    ]


def mixed() -> list[Body]:
    """Nodes of one model: 2 with whole GPUs, 2 with MIG instances (strategy mixed); an Intel node; OCI labels."""
    base = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/mig.strategy": "mixed"}
    found = []
    for at in range(4):
        cut = at >= 2
        labels = base | {
            "nvidia.com/mig.config": "all-1g.10gb" if cut else "all-disabled",
            "oci.oraclecloud.com/rdma.hpc_island_id": "3fk6",
            "oci.oraclecloud.com/rdma.network_block_id": f"b{at % 2}",
            "oci.oraclecloud.com/rdma.local_block_id": f"l{at}",
        }
        gpus = {"nvidia.com/mig-1g.10gb": "56"} if cut else {"nvidia.com/gpu": "8"}
        found.append(
            node(f"a100-{at}", labels, {"cpu": "128", "memory": "2Ti", "pods": "110", **gpus})
        )
    intel = {
        "gpu.intel.com/product": "Max_1550",
        "gpu.intel.com/family": "Max_Series",
        "intel.feature.node.kubernetes.io/gpu": "true",
    }
    resources = {
        "cpu": "112",
        "memory": "1Ti",
        "pods": "110",
        "gpu.intel.com/i915": "8",
        "gpu.intel.com/i915_monitoring": "1",
    }
    return [*found, node("max-0", intel, resources)]


def without_gpus() -> list[Body]:
    """Only nodes without GPUs."""
    return [
        node(f"cpu-{at}", {"topology.kubernetes.io/zone": f"z{at % 2}"}, _CPU) for at in range(4)
    ]


FLEETS: Final[Mapping[str, Callable[[], list[Body]]]] = {
    "gke": gke,
    "eks": eks,
    "superpod": superpod,
    "amd": amd,
    "mixed": mixed,
    "without-gpus": without_gpus,
}


def gang(pods: int, requests: Mapping[str, str], *, queue: str = "main", level: str = "") -> Body:
    """A Job in the queue. ``level``: the topology level whose domain holds all pods; empty = no such level."""
    annotations = {"queuectl.dev/podset-required-topology": level} if level else {}
    resources = {"cpu": "4", "memory": "16Gi", **requests}
    container = {
        "name": "main",
        "image": "registry.example.com/train:1",
        "resources": {"requests": resources, "limits": resources},
    }
    template = {
        "metadata": {"annotations": annotations},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "train",
            "namespace": "default",
            "labels": {"queuectl.dev/queue-name": queue},
        },
        "spec": {
            "completionMode": "Indexed",
            "parallelism": pods,
            "completions": pods,
            "backoffLimit": 0,
            "suspend": True,
            "template": template,
        },
    }
