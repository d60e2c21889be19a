"""Gangs that run although the ledger says nothing of it: started before queuectl came, or by a ledger since lost.

The cluster wins on what runs. A gang that is there whole keeps running and is charged for what it holds; anything less is
taken down and queued, because nobody would ever complete it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from queuectl.domain.fleet import Node
from queuectl.domain.queues import ClusterQueue, QueueConfig, ResourceGroup
from queuectl.domain.records import JobRecord, PodRecord
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement


def running_placement(
    job: JobRecord,
    pods: Iterable[PodRecord],
    nodes: Mapping[str, Node],
    config: QueueConfig,
) -> Placement | None:
    """The slots a running gang's pods hold, or None when it is not there whole.

    Args:
        job: resumed, with or without an attempt label.
        pods: all that it controls.
        nodes: by name.
        config: for the flavors it is charged to.
    """
    if job.suspended or job.error is not None:
        return None
    queue = config.cluster_queue_of(job.namespace, job.queue)
    own = [pod for pod in pods if pod.attempt == job.attempt and not pod.terminal]
    if any(pod.gated or pod.node not in nodes for pod in own):
        return None
    placed = []
    for podset in job.podsets:
        names = [podset.name] if len(job.podsets) > 1 else [podset.name, ""]
        held = Counter(pod.node for pod in own if pod.podset in names and pod.node is not None)
        if not held or sum(held.values()) != job.expects(podset):
            return None
        flavors = _flavors(podset, nodes[next(iter(held))], queue, config)
        placed.append(PodSetPlacement(podset.name, tuple(sorted(held.items())), flavors))
    return Placement(tuple(placed))


def _flavors(
    podset: PodSet, node: Node, queue: ClusterQueue | None, config: QueueConfig
) -> dict[str, str]:
    charged = config.rules.charged(podset.shape.requests)
    chosen = {}
    for group in queue.groups if queue is not None else ():
        for resource in group.covered:
            if charged[resource]:
                chosen[resource] = _flavor_of(group, node, config)
    return chosen


def _flavor_of(group: ResourceGroup, node: Node, config: QueueConfig) -> str:
    """The first flavor whose labels the node has; else the first, so that the use is charged somewhere."""
    for quotas in group.flavors:
        flavor = config.flavors.get(quotas.flavor)
        if flavor and all(node.labels.get(key) == value for key, value in flavor.node_labels):
            return quotas.flavor
    return group.flavors[0].flavor
