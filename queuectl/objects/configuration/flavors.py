"""Parses ResourceFlavors and Topologies."""

from __future__ import annotations

from typing import Final

from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.queues import ResourceFlavor, Topology
from queuectl.objects.configuration import wire
from queuectl.objects.configuration.groups import once, refuse_more
from queuectl.objects.configuration.mig_configs import read_mig_configs, read_mig_mode
from queuectl.objects.configuration.node_templates import read_node_template
from queuectl.objects.errors import RequestError
from queuectl.objects.kubernetes.nodes import read_taints
from queuectl.objects.kubernetes.pods import read_tolerations
from queuectl.objects.names import is_label_key

_MOST_ENTRIES: Final = 8  # node labels, taints, tolerations, as in Kueue


def read_flavor(document: wire.ResourceFlavorDocument) -> ResourceFlavor:
    """Raises RequestError naming field and value."""
    spec = document.spec
    for field, entries in (
        ("nodeLabels", spec.node_labels),
        ("nodeTaints", spec.node_taints),
        ("tolerations", spec.tolerations),
    ):
        refuse_more(len(entries or ()), _MOST_ENTRIES, "entries", f"spec.{field}")
    for key in spec.node_labels or {}:
        if not is_label_key(key):
            raise RequestError(f"spec.nodeLabels: {key!r} is not a node label key")
    for i, toleration in enumerate(spec.tolerations or ()):
        path = f"spec.tolerations[{i}]"
        if not toleration.key and toleration.operator != "Exists":
            raise RequestError(f"{path}.operator: must be Exists without a key")
        if toleration.operator == "Exists" and toleration.value:
            raise RequestError(f"{path}.value: must be empty with the operator Exists")
        if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
            raise RequestError(f"{path}.effect: must be NoExecute with tolerationSeconds")
    once(
        (f"{taint.key}:{taint.effect}" for taint in spec.node_taints or ()),
        "spec.nodeTaints: taint",
    )
    return ResourceFlavor(
        name=document.metadata.name,
        node_labels=tuple(sorted((spec.node_labels or {}).items())),
        node_taints=read_taints([t.loose() for t in spec.node_taints or ()], "spec.nodeTaints"),
        tolerations=read_tolerations([t.loose() for t in spec.tolerations or ()]),
        topology=spec.topology_name or None,
        mig_configs=read_mig_configs(spec),
        mig_reconfiguration=read_mig_mode(spec),
        node_template=read_node_template(spec),
    )


def read_topology(document: wire.TopologyDocument) -> Topology:
    """Raises RequestError naming field and value."""
    levels = tuple(level.node_label for level in document.spec.levels)
    if not 1 <= len(levels) <= 16:
        raise RequestError(f"spec.levels: {len(levels)} levels; 1 to 16 are allowed")
    for i, level in enumerate(levels):
        path = f"spec.levels[{i}].nodeLabel"
        if not is_label_key(level):
            raise RequestError(f"{path}: {level!r} is not a node label key")
        if level == HOSTNAME and i + 1 < len(levels):
            raise RequestError(f"{path}: {HOSTNAME} can only be the last level")
    once(levels, "spec.levels: node label")
    return Topology(document.metadata.name, levels)
