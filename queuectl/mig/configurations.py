"""The MIG configurations that a node can get, and the node under each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from queuectl.domain.diagnosis import with_fleet
from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.gpus import MIG_STRATEGY, model_of, unit_of
from queuectl.domain.mig import CONFIG, STATE, SUCCESS, WHOLE, MigConfig, MigGeometry, MigPool
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.snapshot import Snapshot

_CAPABLE: Final = "nvidia.com/mig.capable"
_PRODUCT: Final = "nvidia.com/gpu.product"
_COUNT: Final = "nvidia.com/gpu.count"
_INSTANCE: Final = "nvidia.com/mig-"
_MOST_GPUS: Final = 32


def geometry_of(node: Node) -> MigGeometry:
    """The GPUs that a node offers, and the configuration that its label names."""
    gpus = sorted((name, n) for name, n in node.allocatable.items() if nvidia_gpus(name))
    return MigGeometry(node.labels.get(CONFIG, ""), node.labels.get(_PRODUCT, ""), tuple(gpus))


def applied(node: Node, geometry: MigGeometry) -> bool:
    """Whether the MIG manager reports that it has applied the configuration, and the node offers its GPUs."""
    return node.labels.get(STATE) == SUCCESS and geometry_of(node) == geometry


def relabeled(node: Node) -> bool:
    """Whether the label of a node that changes names another configuration: another user or program has set it."""
    return node.mig is not None and node.labels.get(CONFIG, "") != node.mig.geometry.config


def nvidia_gpus(resource: str) -> bool:
    """Whether MIG changes how many of a resource a node has."""
    return resource == GPU or resource.startswith(_INSTANCE)


def gpus_of(node: Node, configs: Sequence[MigConfig]) -> int | None:
    """The number of physical GPUs; None if the node cannot be reconfigured, or its geometry is not one of ``configs``.

    A node with the label of a configuration must offer exactly its instances. Without the label, only whole GPUs are counted.
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
    if CONFIG not in labels:
        whole = offered.keys() == {WHOLE} and offered[WHOLE] <= _MOST_GPUS
        return offered[WHOLE] if whole else None
    present = next((c for c in configs if c.name == labels.get(CONFIG)), None)
    if present is None:
        return None
    counts = [n for n in range(1, _MOST_GPUS + 1) if _instances(present, n) == offered]
    return counts[0] if len(counts) == 1 else None


def _offered(node: Node) -> Counter[str] | None:
    """Instances by profile, whole GPUs under the empty profile; None if it has neither, or pods share them."""
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
        profile = model.profile if resource == GPU else resource.removeprefix(_INSTANCE)
        found[_plain(profile)] += amount
    return found or None


def _instances(config: MigConfig, gpus: int) -> Counter[str] | None:
    """Those under a configuration, as :func:`_offered` returns them."""
    instances = config.instances(gpus)
    if instances is None:
        return None
    return Counter({_plain(profile): count for profile, count in instances.items()})


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
        labels[_PRODUCT] = f"{model.name}-MIG-{_labeled(profile)}" if profile else model.name
        labels[_COUNT] = str(count)
        amounts[GPU] = count
    else:
        labels[_COUNT] = str(instances[WHOLE])
        for profile, count in instances.items():
            resource = resource_of(profile)
            amounts[resource] = count
            if profile:
                labels[f"{resource}.count"] = str(count)
                labels[f"{resource}.product"] = f"{model.name}-MIG-{_labeled(profile)}"
    return replace(node, labels=labels, allocatable=Resources(amounts))


def resource_of(profile: str) -> str:
    """The resource of a profile under the strategy ``mixed``; of the empty profile, whole GPUs."""
    return _INSTANCE + profile.replace("+", ".") if profile else GPU


def _labeled(profile: str) -> str:
    """The profile in a label, which has no plus sign: ``1g.10gb+me`` is ``1g.10gbme``."""
    return profile.replace("+", "")


def _plain(profile: str) -> str:
    """One form for the profile of a configuration, of a label, and of a resource (``1g.10gb.me``)."""
    size, gb, attributes = profile.partition("gb")
    return f"{size}{gb}{attributes.lstrip('+.')}"


def choices(node: Node, pools: Iterable[MigPool]) -> Iterator[tuple[MigConfig, Node]]:
    """Each configuration that a node could get, and the node under it, without the current one.

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
        if after is not None and _instances(config, gpus) != _offered(node):
            yield config, after


@dataclass(frozen=True, slots=True)
class ReconfigureMig:
    """These nodes (by name) have other MIG configurations, which their flavors allow. No pod holds their GPUs."""

    configs: Mapping[str, str]

    def apply(self, snapshot: Snapshot) -> Snapshot:
        pools = snapshot.config.mig_pools

        def after(node: Node) -> Node:
            wanted = self.configs.get(node.name)
            if wanted is None:
                return node
            return next(other for config, other in choices(node, pools) if config.name == wanted)

        return with_fleet(snapshot, Fleet(tuple(map(after, snapshot.fleet.nodes))))
