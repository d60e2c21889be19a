"""Quota that follows the nodes: nominal quota of ClusterQueues with ``policy.quotaFromNodes``.

The capacity of a flavor is the sum of allocatable over the nodes that are ready, not cordoned and have its labels. The nominal
quota of Cohorts, and of ClusterQueues without the policy, is subtracted, so that no capacity is given out twice. The ClusterQueues
with the policy share the rest in proportion to their nominal quota, or equally if all are 0. Each subtracts its own headroom
and rounds down. A node with the labels of two flavors counts for both.

A flavor without node labels has no known nodes, and keeps its nominal quota. While no node is known, all flavors do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.queues import (
    ClusterQueue,
    FlavorQuotas,
    LaterQuota,
    QueueConfig,
    ResourceFlavor,
    ResourceGroup,
)

_Row: TypeAlias = tuple[str, str]  # flavor, resource


@dataclass
class NodeQuota:
    """Caches its last result, and returns the same object until an input changes."""

    _stated: QueueConfig | None = None
    _fleet: Fleet | None = None
    _answer: QueueConfig | None = None

    def of(self, config: QueueConfig, fleet: Fleet) -> QueueConfig:
        """The configuration with the quota that these nodes give."""
        if config is not self._stated:
            self._answer = None
        elif fleet is self._fleet and self._answer is not None:
            return self._answer
        derived = quota_from_nodes(config, fleet)
        known = self._answer
        if known is None or _quota(known) != _quota(derived):
            self._answer = known = derived
        self._stated, self._fleet = config, fleet
        return known


def quota_from_nodes(config: QueueConfig, fleet: Fleet) -> QueueConfig:
    """The configuration with nominal quota from the nodes, or ``config`` itself if no queue has the policy.

    ``later`` has the quota of the nodes as they can be (:attr:`~queuectl.domain.fleet.Node.recovered`). A configuration with the quota
    of other nodes gives the same result as the one that it was made from.
    """
    if not fleet.nodes or all(q.headroom is None for q in config.cluster_queues.values()):
        return config
    queues = _following(config, config.cluster_queues, _all_offered(config, fleet))
    offered = _all_offered(config, fleet.recovered)
    then = [LaterQuota(None, {}), *(later for later in config.later if later.at is not None)]
    later = []
    for each in then:
        derived = _following(config, {**config.cluster_queues, **each.queues}, offered)
        changed = {name: queue for name, queue in derived.items() if queue != queues[name]}
        later += [replace(each, queues=changed)] if changed else []
    return replace(config, cluster_queues=queues, later=tuple(later))


def _all_offered(config: QueueConfig, fleet: Fleet) -> dict[str, dict[str, int]]:
    """The capacity of each flavor that follows the nodes, by name."""
    following = (q for q in config.cluster_queues.values() if q.headroom is not None)
    named = {quotas.flavor for queue in following for quotas in _quotas(queue.groups)}
    flavors = [config.flavors[name] for name in sorted(named & config.flavors.keys())]
    return {f.name: _offered(f, fleet.nodes) for f in flavors if f.node_labels}


def _following(
    config: QueueConfig,
    queues: Mapping[str, ClusterQueue],
    offered: Mapping[str, Mapping[str, int]],
) -> dict[str, ClusterQueue]:
    """The ClusterQueues, those with the policy with nominal quota from the capacity of the flavors."""
    following = [
        replace(queue, groups=queue.stated_groups or queue.groups)
        for queue in queues.values()
        if queue.headroom is not None
    ]
    fixed = _stated(
        [
            *(queue.groups for queue in queues.values() if queue.headroom is None),
            *(cohort.groups for cohort in config.cohorts.values()),
        ]
    )
    shares = _Shares(offered, fixed, following)
    return {**queues, **{queue.name: shares.derived(queue) for queue in following}}


def _quota(config: QueueConfig) -> tuple[object, ...]:
    return config.cluster_queues, config.later


def _quotas(groups: Iterable[ResourceGroup]) -> Iterator[FlavorQuotas]:
    for group in groups:
        yield from group.flavors


def _stated(of: Iterable[Iterable[ResourceGroup]]) -> dict[_Row, int]:
    """The sum of the nominal quota."""
    stated: dict[_Row, int] = {}
    for groups in of:
        for quotas in _quotas(groups):
            for resource, amount in quotas.nominal.items():
                row = quotas.flavor, resource
                stated[row] = stated.get(row, 0) + amount
    return stated


def _offered(flavor: ResourceFlavor, nodes: Iterable[Node]) -> dict[str, int]:
    """The capacity of the usable nodes of a flavor, by resource."""
    offered: dict[str, int] = {}
    for node in nodes:
        if not node.ready or node.unschedulable:
            continue
        if node.has_labels(flavor.node_labels):
            for resource, amount in node.allocatable.items():
                offered[resource] = offered.get(resource, 0) + amount
    return offered


class _Shares:
    """Divides the capacity of the flavors among the queues."""

    def __init__(
        self,
        offered: Mapping[str, Mapping[str, int]],
        fixed: Mapping[_Row, int],
        following: Iterable[ClusterQueue],
    ) -> None:
        queues = list(following)
        self._offered = offered
        self._fixed = fixed
        self._stated = _stated(queue.groups for queue in queues)
        self._askers: dict[_Row, int] = {}
        for queue in queues:
            for row in _stated([queue.groups]):
                self._askers[row] = self._askers.get(row, 0) + 1

    def derived(self, queue: ClusterQueue) -> ClusterQueue:
        assert queue.headroom is not None
        given = 1 - Fraction(str(queue.headroom))
        groups = tuple(
            replace(group, flavors=tuple(self._flavor(q, given) for q in group.flavors))
            for group in queue.groups
        )
        return replace(queue, groups=groups, stated_groups=queue.groups)

    def _flavor(self, quotas: FlavorQuotas, share: Fraction) -> FlavorQuotas:
        if quotas.flavor not in self._offered:
            return quotas
        nominal = {
            resource: int(self._part((quotas.flavor, resource), stated) * share)
            for resource, stated in quotas.nominal.items()
        }
        return replace(quotas, nominal=nominal)

    def _part(self, row: _Row, stated: int) -> Fraction:
        """The part of a flavor's capacity for a queue with this nominal quota."""
        flavor, resource = row
        left = max(0, self._offered[flavor].get(resource, 0) - self._fixed.get(row, 0))
        total = self._stated[row]
        return left * (Fraction(stated, total) if total else Fraction(1, self._askers[row]))
