"""MIG configurations of nodes: the instances that each cuts the GPUs into, and a node under another configuration.

The MIG manager of NVIDIA's GPU operator cuts the GPUs of a node as the configuration in the label ``nvidia.com/mig.config`` states,
and reports in ``nvidia.com/mig.config.state``. A configuration has the form of its file (mig-parted).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from queuectl.domain.fleet import Node
from queuectl.domain.gpus import MIG_STRATEGY, model_of, unit_of
from queuectl.domain.mig_reconfiguration import MigGeometry
from queuectl.domain.quantity import GPU, Resources

CONFIG: Final = "nvidia.com/mig.config"
STATE: Final = "nvidia.com/mig.config.state"
SUCCESS: Final = "success"
FAILED: Final = "failed"
_CAPABLE: Final = "nvidia.com/mig.capable"
_PRODUCT: Final = "nvidia.com/gpu.product"
_COUNT: Final = "nvidia.com/gpu.count"
_INSTANCE: Final = "nvidia.com/mig-"
_MOST_GPUS: Final = 32
_WHOLE: Final = ""


class MigMode(StrEnum):
    """Whether queuectl changes the configuration of nodes itself."""

    PLAN = "Plan"  # it suggests changes
    EXECUTE = "Execute"


@dataclass(frozen=True, slots=True)
class MigDevices:
    """Some GPUs of a node.

    Attributes:
        indexes: of the GPUs; None = all.
        profiles: instances of each GPU by profile; None = MIG is disabled, and the GPU is whole.
    """

    indexes: tuple[int, ...] | None = None
    profiles: tuple[tuple[str, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class MigConfig:
    """One configuration by its name. Later entries replace earlier ones for the same GPU."""

    name: str
    devices: tuple[MigDevices, ...]

    def instances(self, gpus: int) -> Counter[str] | None:
        """Instances of a node with this many GPUs, by profile, whole GPUs under the empty profile.

        None = the configuration does not state each GPU of such a node, or states one that it does not have.
        """
        of: dict[int, tuple[tuple[str, int], ...] | None] = {}
        for entry in self.devices:
            indexes = range(gpus) if entry.indexes is None else entry.indexes
            of.update(dict.fromkeys(indexes, entry.profiles))
        if of.keys() != set(range(gpus)):
            return None
        found: Counter[str] = Counter()
        for profiles in of.values():
            found.update({_WHOLE: 1} if profiles is None else dict(profiles))
        return found


@dataclass(frozen=True, slots=True)
class MigPool:
    """The nodes with some labels, and the configurations that are allowed for them."""

    node_labels: tuple[tuple[str, str], ...]
    configs: tuple[MigConfig, ...]


def geometry_of(node: Node) -> MigGeometry:
    """The GPUs that a node offers, and the configuration that its label names."""
    gpus = sorted((name, n) for name, n in node.allocatable.items() if nvidia_gpus(name))
    return MigGeometry(node.labels.get(CONFIG, ""), node.labels.get(_PRODUCT, ""), tuple(gpus))


def applied(node: Node, geometry: MigGeometry) -> bool:
    """Whether the MIG manager reports that it has applied the configuration, and the node offers its GPUs."""
    return node.labels.get(STATE) == SUCCESS and geometry_of(node) == geometry


def nvidia_gpus(resource: str) -> bool:
    """Whether MIG changes how many of a resource a node has."""
    return resource == GPU or resource.startswith(_INSTANCE)


def gpus_of(node: Node, configs: Sequence[MigConfig]) -> int | None:
    """The number of physical GPUs; None if the node cannot be reconfigured, or its geometry is not one of ``configs``.

    Whole GPUs are counted. A node with MIG instances must offer exactly the instances of the configuration in its label.
    """
    labels = node.labels
    if labels.get(STATE, SUCCESS) != SUCCESS or labels.get(_CAPABLE) == "false":
        return None
    if labels.get(MIG_STRATEGY) not in ("single", "mixed"):
        return None
    if any(map(nvidia_gpus, node.failed)):
        return None
    offered = _offered(node)
    if offered is None:
        return None
    if offered.keys() == {_WHOLE}:
        return offered[_WHOLE]
    present = next((c for c in configs if c.name == labels.get(CONFIG)), None)
    if present is None:
        return None
    counts = [n for n in range(1, _MOST_GPUS + 1) if present.instances(n) == offered]
    return counts[0] if len(counts) == 1 else None


def _offered(node: Node) -> Counter[str] | None:
    """Instances by profile, whole GPUs under the empty profile; None if there are none, or pods share them."""
    model = model_of(node.labels)
    if model is None or model.invalid or model.shared:
        return None
    found: Counter[str] = Counter()
    for resource, amount in node.allocatable.items():
        unit = unit_of(resource, node.labels) if resource.startswith("nvidia.com/") else None
        if unit is None:
            continue
        if unit.shared:
            return None
        found[model.profile if resource == GPU else _profile(resource)] += amount
    return found or None


def reconfigured(node: Node, config: MigConfig, gpus: int) -> Node | None:
    """The node with ``gpus`` GPUs after its MIG manager has applied a configuration; None if no pod could use its GPUs.

    Labels that describe instances otherwise than by their number and product are left out.
    """
    instances, model = config.instances(gpus), model_of(node.labels)
    if not instances or model is None:
        return None
    labels = {k: v for k, v in node.labels.items() if not k.startswith(_INSTANCE)}
    labels |= {CONFIG: config.name, STATE: SUCCESS}
    amounts = {r: n for r, n in node.allocatable.items() if not nvidia_gpus(r)}
    if node.labels.get(MIG_STRATEGY) == "single":
        if len(instances) != 1:
            return None  # the device plugin offers no GPU of a node with several kinds of instances
        ((profile, count),) = instances.items()
        labels[_PRODUCT] = f"{model.name}-MIG-{profile}" if profile else model.name
        labels[_COUNT] = str(count)
        amounts[GPU] = count
    else:
        labels[_COUNT] = str(instances[_WHOLE])
        for profile, count in instances.items():
            resource = resource_of(profile)
            amounts[resource] = count
            if profile:
                labels[f"{resource}.count"] = str(count)
                labels[f"{resource}.product"] = f"{model.name}-MIG-{profile}"
    return replace(node, labels=labels, allocatable=Resources(amounts))


def resource_of(profile: str) -> str:
    """The resource of a profile under the strategy ``mixed``; of the empty profile, whole GPUs."""
    return _INSTANCE + profile.replace("+", ".") if profile else GPU


def _profile(resource: str) -> str:
    """The profile of a resource: the attributes after ``gb`` follow a plus sign (``1g.10gb+me``)."""
    size, gb, attributes = resource.removeprefix(_INSTANCE).partition("gb")
    return (
        f"{size}{gb}+{attributes[1:]}" if attributes.startswith(".") else f"{size}{gb}{attributes}"
    )


def choices(node: Node, pools: Iterable[MigPool]) -> Iterator[tuple[MigConfig, Node]]:
    """Each configuration that a node could get, and the node under it, without the present one.

    Args:
        node: it can be unready or in use; neither is judged.
        pools: where two of them allow a configuration of the same name for the node, the first counts.
    """
    allowed: dict[str, MigConfig] = {}
    for pool in pools:
        if node.has_labels(pool.node_labels):
            for config in pool.configs:
                allowed.setdefault(config.name, config)
    gpus = gpus_of(node, tuple(allowed.values())) if allowed else None
    if gpus is None:
        return
    for config in allowed.values():
        after = reconfigured(node, config, gpus)
        if after is not None and config.instances(gpus) != _offered(node):
            yield config, after
