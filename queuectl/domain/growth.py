"""The pods above the gang of an elastic job: what they have in common with that gang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from queuectl.domain.fleet import Fleet
from queuectl.domain.queues import QueueConfig
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, TopologyMode


def beside(
    podsets: Sequence[PodSet], placement: Placement, config: QueueConfig, fleet: Fleet
) -> tuple[PodSet, ...]:
    """The podsets of one pod, restricted to the nodes on which it can be a pod of a gang with this placement.

    These nodes have the labels of the gang's flavors. If the gang requires a topology, they are in its domain.
    """
    return tuple(_beside(podset, placement.of(podset.name), config, fleet) for podset in podsets)


def _beside(
    podset: PodSet, placed: PodSetPlacement | None, config: QueueConfig, fleet: Fleet
) -> PodSet:
    if placed is None:
        return podset
    rules = podset.shape.rules
    wanted = {**_labels(podset, placed, config, fleet), **dict(rules.selector)}
    selector = tuple(sorted(wanted.items()))
    return replace(podset, shape=replace(podset.shape, rules=replace(rules, selector=selector)))


def _labels(
    podset: PodSet, placed: PodSetPlacement, config: QueueConfig, fleet: Fleet
) -> dict[str, str]:
    names = sorted(set(placed.flavors.values()))  # of several shares, those of the first ranks
    flavors = [config.flavors[name] for name in names if name in config.flavors]
    labels = {key: value for flavor in flavors for key, value in flavor.node_labels}
    request = podset.topology
    if request is None or request.mode is not TopologyMode.REQUIRED or request.level is None:
        return labels
    nodes = [fleet.by_name[name] for name, _ in placed.nodes if name in fleet.by_name]
    for topology in {flavor.topology for flavor in flavors if flavor.topology is not None}:
        levels = config.topologies[topology].levels if topology in config.topologies else ()
        if request.level in levels and nodes:
            above = levels[: levels.index(request.level) + 1]
            labels |= {key: nodes[0].labels[key] for key in above if key in nodes[0].labels}
    return labels
