"""Parses the ``nodeTemplate`` of a ResourceFlavor."""

from __future__ import annotations

from typing import Final

from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.node_template import NodeTemplate
from queuectl.domain.quantity import PODS, Resources
from queuectl.objects.configuration import wire
from queuectl.objects.configuration.groups import once
from queuectl.objects.errors import RequestError, under
from queuectl.objects.kubernetes.nodes import DEFAULT_PODS, read_taints
from queuectl.objects.kubernetes.requests import read_vector
from queuectl.objects.names import is_label_key

_PATH: Final = "spec.policy.nodeTemplate"


def read_node_template(spec: wire.ResourceFlavorSpec) -> NodeTemplate | None:
    """None without one. Raises RequestError naming field and value."""
    given = spec.policy.node_template if spec.policy is not None else None
    if given is None:
        return None
    if not spec.topology_name:
        raise RequestError(f"{_PATH}: requires spec.topologyName; without it, no nodes are chosen")
    with under(f"{_PATH}.allocatable"):
        allocatable = read_vector(given.allocatable, round_up=False)
    domains = given.nodes_per_domain or {}
    for field, labels in (("labels", given.labels or {}), ("nodesPerDomain", domains)):
        for key in labels:
            if not is_label_key(key):
                raise RequestError(f"{_PATH}.{field}: {key!r} is not a node label key")
    if HOSTNAME in domains:
        raise RequestError(f"{_PATH}.nodesPerDomain: {HOSTNAME} is the level of single nodes")
    taints = given.taints or ()
    once((f"{taint.key}:{taint.effect}" for taint in taints), f"{_PATH}.taints: taint")
    return NodeTemplate(
        allocatable=Resources({PODS: DEFAULT_PODS, **allocatable}),
        maximum=given.maximum_nodes,
        labels=tuple(sorted((given.labels or {}).items())),
        taints=read_taints([taint.loose() for taint in taints], f"{_PATH}.taints"),
        domains=tuple(sorted(domains.items())),
    )
