"""The GPUs that a gang requests, before it has nodes.

One unit of a resource can be a whole GPU on some nodes and a part of one on others. The nodes of the flavors that its ClusterQueue
has for the resource decide, if a unit is the same on all of them. Otherwise the name of the resource decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import TypeAlias

from queuectl.domain.fleet import Fleet
from queuectl.domain.gpu_labels import label_keys
from queuectl.domain.gpus import summed
from queuectl.domain.queues import QueueConfig
from queuectl.domain.records import JobRecord
from queuectl.state.mirror import Mirror

_Labels: TypeAlias = Mapping[str, str]


class RequestedGpus:
    """The weights of units by ClusterQueue and resource, for the current nodes and configuration."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._fleet: Fleet | None = None
        self._config: QueueConfig | None = None
        self._weights: dict[tuple[str, str], Fraction] = {}
        self._kinds: dict[str, list[_Labels]] = {}

    def of(self, job: JobRecord, cluster_queue: str, config: QueueConfig) -> Fraction:
        """The GPUs of all pods of a job in a ClusterQueue."""
        if self._fleet is not self._mirror.fleet or self._config is not config:
            self._fleet, self._config = self._mirror.fleet, config
            self._weights, self._kinds = {}, {}
        weights = config.rules.accounting.gpus
        return summed(
            self._weight(cluster_queue, resource, config)
            * podset.shape.requests[resource]
            * podset.count
            for podset in job.podsets
            for resource, _ in weights.by_resource(podset.shape.requests)
        )

    def _weight(self, cluster_queue: str, resource: str, config: QueueConfig) -> Fraction:
        key = (cluster_queue, resource)
        if key not in self._weights:
            weights = config.rules.accounting.gpus
            found = {
                weights.of(resource, labels)
                for wanted in _flavor_labels(cluster_queue, resource, config)
                for labels in self._kinds_with(resource, config)
                if wanted.items() <= labels.items()
            }
            same = len(found) == 1
            self._weights[key] = found.pop() if same else weights.of(resource)
        return self._weights[key]

    def _kinds_with(self, resource: str, config: QueueConfig) -> list[_Labels]:
        """The different labels of the nodes that offer a resource, as far as flavors and weights read them."""
        if resource not in self._kinds:
            of_flavors = {key for f in config.flavors.values() for key, _ in f.node_labels}
            keys = sorted({*of_flavors, *label_keys(resource)})
            nodes = self._mirror.fleet.nodes
            kinds = {
                tuple(map(node.labels.get, keys)) for node in nodes if node.allocatable[resource]
            }
            self._kinds[resource] = [
                {key: value for key, value in zip(keys, kind, strict=True) if value is not None}
                for kind in kinds
            ]
        return self._kinds[resource]


def _flavor_labels(cluster_queue: str, resource: str, config: QueueConfig) -> Iterator[_Labels]:
    """The node labels of each flavor of a resource in a ClusterQueue."""
    queue = config.cluster_queues.get(cluster_queue)
    for group in queue.groups if queue is not None else ():
        for quotas in group.flavors if resource in group.covered else ():
            flavor = config.flavors.get(quotas.flavor)
            if flavor is not None:
                yield dict(flavor.node_labels)
