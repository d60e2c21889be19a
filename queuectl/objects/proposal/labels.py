"""The node labels that name GPU models, node pools and network domains, by vendor and by cloud.

Sources: GPU Feature Discovery, the node labeler of AMD, the rules of Intel for Node Feature Discovery, Topograph, and the pages of
the clouds about their node labels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.gpus import Vendor, vendor_of

INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"


@dataclass(frozen=True, slots=True)
class VendorLabels:
    """The labels of nodes with GPUs of one vendor.

    Attributes:
        products: labels with the GPU model, the best first.
        divisions: labels that differ between nodes of one model whose GPUs are divided in different ways.
        hardware: labels of Node Feature Discovery that show a device of the vendor, whether a device plugin runs or not.
    """

    products: tuple[str, ...]
    divisions: tuple[str, ...]
    hardware: tuple[str, ...]


_CLOUD_PRODUCTS: Final = (
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "eks.amazonaws.com/instance-gpu-name",
    INSTANCE_TYPE,
)
"""Labels that clouds set where no agent of the vendor labels nodes."""

LABELS: Final[Mapping[Vendor, VendorLabels]] = {
    Vendor.NVIDIA: VendorLabels(
        ("nvidia.com/gpu.product", *_CLOUD_PRODUCTS),
        (
            "nvidia.com/gpu.sharing-strategy",
            "nvidia.com/gpu.replicas",
            "nvidia.com/mig.config",
            "nvidia.com/mig.strategy",
            "nvidia.com/device-plugin.config",
            "cloud.google.com/gke-gpu-partition-size",
            "cloud.google.com/gke-gpu-sharing-strategy",
            "cloud.google.com/gke-max-shared-clients-per-gpu",
        ),
        ("feature.node.kubernetes.io/pci-10de.present", "nvidia.com/gpu.present"),
    ),
    Vendor.AMD: VendorLabels(
        ("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name", *_CLOUD_PRODUCTS),
        ("amd.com/gpu.compute-memory-partition", "dcm.amd.com/gpu-config-profile"),
        ("feature.node.kubernetes.io/amd-gpu", "feature.node.kubernetes.io/pci-1002.present"),
    ),
    Vendor.INTEL: VendorLabels(
        ("gpu.intel.com/product", "gpu.intel.com/family", *_CLOUD_PRODUCTS),
        (),
        ("intel.feature.node.kubernetes.io/gpu",),
    ),
}
NODE_POOLS: Final = (
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "karpenter.sh/nodepool",
    "kubernetes.azure.com/agentpool",
    "oke.oraclecloud.com/pool.name",
    "compute.coreweave.com/node-pool",
    INSTANCE_TYPE,
    "node-role.kubernetes.io/worker",
)
"""Labels that divide the nodes of a cluster."""

REGION: Final = "topology.kubernetes.io/region"
ZONE: Final = "topology.kubernetes.io/zone"

NETWORKS: Final = (
    ("nvidia.com/gpu.clique",),
    (
        "cloud.google.com/gce-topology-block",
        "cloud.google.com/gce-topology-subblock",
        "cloud.google.com/gce-topology-host",
    ),
    (
        "topology.k8s.aws/network-node-layer-1",
        "topology.k8s.aws/network-node-layer-2",
        "topology.k8s.aws/network-node-layer-3",
        "topology.k8s.aws/network-node-layer-4",
        "topology.k8s.aws/ultraserver-id",
    ),
    (
        "oci.oraclecloud.com/rdma.hpc_island_id",
        "oci.oraclecloud.com/rdma.network_block_id",
        "oci.oraclecloud.com/rdma.local_block_id",
        "oci.oraclecloud.com/rdma.host_id",
    ),
    (
        "ib.coreweave.cloud/fabric",
        "ib.coreweave.cloud/superpod",
        "ib.coreweave.cloud/leafgroup",
        "ds.coreweave.com/nvlink.domain",
    ),
    ("backend.coreweave.cloud/fabric", "backend.coreweave.cloud/leafgroup"),
    (
        "topology.nebius.com/gpu-cluster-id",
        "topology.nebius.com/tier-2",
        "topology.nebius.com/tier-1",
        "topology.nebius.com/tier-0",
    ),
    ("kubernetes.azure.com/ppg",),
    (
        "fabric.topograph.run/tier-3",
        "fabric.topograph.run/tier-2",
        "fabric.topograph.run/tier-1",
        "fabric.topograph.run/tier-0",
        "accelerator.topograph.run/domain",
        "accelerator.topograph.run/sub-domain",
    ),
    (
        "network.topology.nvidia.com/datacenter",
        "network.topology.nvidia.com/core",
        "network.topology.nvidia.com/spine",
        "network.topology.nvidia.com/block",
        "network.topology.nvidia.com/leaf",
        "network.topology.nvidia.com/accelerator",
    ),
)
"""Labels of the network, each family from coarse to fine. An earlier family is preferred."""

_PLACES: Final = (
    "datacenter",
    "data-center",
    "hall",
    "room",
    "superpod",
    "spine",
    "block",
    "row",
    "subblock",
    "sub-block",
    "leaf",
    "leafgroup",
    "rack",
    "nvlink-domain",
    "chassis",
)
"""Words for places, from coarse to fine."""
_PLACE: Final = re.compile(rf"(?:.*[/_.-])?({'|'.join(_PLACES)})")


def gpu_resources(node: Node) -> tuple[str, ...]:
    """The GPU resources that a node has, even if all its devices are unhealthy. Sorted."""
    named = {*node.allocatable, *node.failed}
    return tuple(sorted(name for name in named if vendor_of(name) is not None))


def has_hardware(labels: Mapping[str, str]) -> str | None:
    """The vendor of the GPUs that the labels of a node show, or None."""
    for vendor, known in LABELS.items():
        if any(labels.get(key) == "true" for key in known.hardware):
            return vendor.name
    return None


def place_rank(key: str) -> int | None:
    """The rank of a label whose name ends with a word for a place, such as ``example.com/rack``: coarse places first."""
    found = _PLACE.fullmatch(key)
    return _PLACES.index(found[1]) if found is not None and key != HOSTNAME else None
