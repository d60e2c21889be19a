"""The nodes and queues of a published trace: each virtual cluster is a ClusterQueue with its own nodes, without a cohort."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

CLUSTER = "example.com/virtual-cluster"
GPUS = 8
HOSTNAME = "kubernetes.io/hostname"


def virtual_clusters(
    nodes: Mapping[str, int], cohort: str | None = None, everywhere: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Nodes and configuration.

    Args:
        nodes: of 8 GPUs, by name of the virtual cluster.
        cohort: of all ClusterQueues, which then have one flavor for all nodes.
        everywhere: virtual clusters that can use all nodes.
    """
    documents = [_configured("Topology", "hosts", levels=[{"nodeLabel": HOSTNAME}])]
    flavors = {name: name if cohort is None else "all" for name in nodes}
    for name in dict.fromkeys(flavors.values()):
        labels = {} if name in everywhere or cohort is not None else {CLUSTER: name}
        documents.append(
            _configured("ResourceFlavor", name, nodeLabels=labels, topologyName="hosts")
        )
    for name, count in nodes.items():
        queue: dict[str, Any] = {
            "namespaceSelector": {},
            "resourceGroups": [
                {
                    "coveredResources": ["nvidia.com/gpu"],
                    "flavors": [
                        {
                            "name": flavors[name],
                            "resources": [{"name": "nvidia.com/gpu", "nominalQuota": GPUS * count}],
                        }
                    ],
                }
            ],
        }
        if cohort is not None:
            queue["cohortName"] = cohort
        documents.append(_configured("ClusterQueue", name, **queue))
        local = _configured("LocalQueue", name, clusterQueue=name)
        local["metadata"]["namespace"] = "default"
        documents.append(local)
        documents += [_node(f"{name}-{index:03}", name) for index in range(count)]
    return documents


def _configured(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def _node(name: str, cluster: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {HOSTNAME: name, CLUSTER: cluster}},
        "status": {
            "allocatable": {"pods": "110", "nvidia.com/gpu": str(GPUS)},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
