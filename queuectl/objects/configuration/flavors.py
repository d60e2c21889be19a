"""Parses ResourceFlavors with their MIG configurations and node templates, and Topologies."""

from __future__ import annotations

import re
from typing import Final

from queuectl.domain.fleet import HOSTNAME, NodeTemplate
from queuectl.domain.mig import MigConfig, MigDevices, MigMode
from queuectl.domain.quantity import PODS, Resources
from queuectl.domain.queues import ResourceFlavor, Topology
from queuectl.objects.configuration import flavors_wire as wire
from queuectl.objects.configuration.groups import once, refuse_more
from queuectl.objects.errors import RequestError, under
from queuectl.objects.kubernetes.nodes import DEFAULT_PODS, read_taints
from queuectl.objects.kubernetes.pods import read_tolerations
from queuectl.objects.kubernetes.requests import read_vector
from queuectl.objects.names import is_label_key, is_name

# ---- MIG configurations, in the form of mig-parted's file

_PROFILE: Final = re.compile(wire.MIG_PROFILE)


def read_mig_configs(spec: wire.ResourceFlavorSpec) -> tuple[MigConfig, ...]:
    """In the order of their names. Raises RequestError naming field and value."""
    given = (spec.policy.mig_configs if spec.policy is not None else None) or {}
    if given and not spec.node_labels:
        raise RequestError("spec.policy.migConfigs: requires spec.nodeLabels, which name the nodes")
    return tuple(_read_config(name, entries) for name, entries in sorted(given.items()))


def read_mig_mode(spec: wire.ResourceFlavorSpec) -> MigMode:
    """Raises RequestError if nodes are to be changed, and no configuration is listed."""
    mode = spec.policy.mig_reconfiguration if spec.policy is not None else None
    if mode is MigMode.EXECUTE and (spec.policy is None or not spec.policy.mig_configs):
        raise RequestError(
            "spec.policy.migReconfiguration: Execute requires spec.policy.migConfigs"
        )
    return mode or MigMode.PLAN


def _read_config(name: str, entries: list[wire.MigEntry]) -> MigConfig:
    path = f"spec.policy.migConfigs.{name}"
    if not is_name(name):
        raise RequestError(f"{path}: {name!r} is not a value of a label")
    if not entries:
        raise RequestError(f"{path}: has no devices")
    devices = [_read_entry(entry, f"{path}[{i}]") for i, entry in enumerate(entries)]
    return MigConfig(name, tuple(devices))


def _read_entry(entry: wire.MigEntry, path: str) -> MigDevices:
    if entry.device_filter:
        raise RequestError(
            f"{path}.device-filter: is not supported; give the devices of the GPU model of the flavor, without a filter"
        )
    indexes = None if entry.devices == "all" else tuple(entry.devices)
    once(map(str, indexes or ()), f"{path}.devices: GPU")
    profiles = entry.mig_devices or {}
    if not entry.mig_enabled:
        if profiles:
            raise RequestError(f"{path}.mig-devices: must be empty with mig-enabled: false")
        return MigDevices(indexes)
    for profile in profiles:
        if _PROFILE.fullmatch(profile) is None:
            raise RequestError(f"{path}.mig-devices: {profile!r} is not a MIG profile like 1g.10gb")
    slices = sum(int(profile[0]) * n for profile, n in profiles.items() if profile[1] == "g")
    if slices > wire.MOST_SLICES:
        raise RequestError(
            f"{path}.mig-devices: {slices} compute slices; a GPU has {wire.MOST_SLICES} or fewer"
        )
    return MigDevices(indexes, tuple(sorted(profiles.items())))


# ---- ``nodeTemplate``

_PATH: Final = "spec.policy.nodeTemplate"


def read_node_template(spec: wire.ResourceFlavorSpec) -> NodeTemplate | None:
    """None without one. Raises RequestError naming field and value."""
    template = spec.policy.node_template if spec.policy is not None else None
    if template is None:
        return None
    if not spec.topology_name:
        raise RequestError(f"{_PATH}: requires spec.topologyName; without it, no nodes are chosen")
    with under(f"{_PATH}.allocatable"):
        allocatable = read_vector(template.allocatable, round_up=False)
    domains = template.nodes_per_domain or {}
    for field, labels in (("labels", template.labels or {}), ("nodesPerDomain", domains)):
        for key in labels:
            if not is_label_key(key):
                raise RequestError(f"{_PATH}.{field}: {key!r} is not a node label key")
    if HOSTNAME in domains:
        raise RequestError(f"{_PATH}.nodesPerDomain: {HOSTNAME} is the level of single nodes")
    taints = template.taints or ()
    once((f"{taint.key}:{taint.effect}" for taint in taints), f"{_PATH}.taints: taint")
    return NodeTemplate(
        allocatable=Resources({PODS: DEFAULT_PODS, **allocatable}),
        maximum=template.maximum_nodes,
        labels=tuple(sorted((template.labels or {}).items())),
        taints=read_taints([taint.loose() for taint in taints], f"{_PATH}.taints"),
        domains=tuple(sorted(domains.items())),
    )


# ---- ResourceFlavors and Topologies


def read_flavor(document: wire.ResourceFlavorDocument) -> ResourceFlavor:
    """Raises RequestError naming field and value."""
    spec = document.spec
    for field, entries in (
        ("nodeLabels", spec.node_labels),
        ("nodeTaints", spec.node_taints),
        ("tolerations", spec.tolerations),
    ):
        refuse_more(len(entries or ()), wire.MOST_ENTRIES, "entries", f"spec.{field}")
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
    if not 1 <= len(levels) <= wire.MOST_LEVELS:
        raise RequestError(
            f"spec.levels: {len(levels)} levels; 1 to {wire.MOST_LEVELS} are allowed"
        )
    for i, level in enumerate(levels):
        path = f"spec.levels[{i}].nodeLabel"
        if not is_label_key(level):
            raise RequestError(f"{path}: {level!r} is not a node label key")
        if level == HOSTNAME and i + 1 < len(levels):
            raise RequestError(f"{path}: {HOSTNAME} can only be the last level")
    once(levels, "spec.levels: node label")
    return Topology(document.metadata.name, levels)
