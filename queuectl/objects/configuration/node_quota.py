"""Quota that follows the nodes: nominal quota of ClusterQueues with ``policy.quotaFromNodes``.

What a flavor offers is the sum of allocatable over the nodes that are ready, not cordoned and have its labels. From it
comes off what other ClusterQueues and Cohorts state as nominal quota of the flavor: nothing is promised twice. The rest is
shared among the ClusterQueues that ask for it, in proportion to the nominal quota they state (equally where all state 0);
each keeps its own headroom free of its share, and rounds down. A node with the labels of two flavors counts for both.

A flavor without node labels keeps its stated quota, for nothing tells its nodes; so do all, as long as no node is known.
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
    QueueConfig,
    ResourceFlavor,
    ResourceGroup,
)

_Row: TypeAlias = tuple[str, str]  # flavor, resource


@dataclass
class NodeQuota:
    """Remembers its last answer: the same object comes back while nothing it depends on has changed."""

    _stated: QueueConfig | None = None
    _fleet: Fleet | None = None
    _answer: QueueConfig | None = None

    def of(self, config: QueueConfig, fleet: Fleet) -> QueueConfig:
        """The configuration as planning sees it over these nodes."""
        if config is not self._stated:
            self._answer = None
        elif fleet is self._fleet and self._answer is not None:
            return self._answer
        derived = quota_from_nodes(config, fleet)
        known = self._answer
        if known is None or known.cluster_queues != derived.cluster_queues:
            self._answer = known = derived
        self._stated, self._fleet = config, fleet
        return known


def quota_from_nodes(config: QueueConfig, fleet: Fleet) -> QueueConfig:
    """The configuration with nominal quota taken from the nodes; ``config`` itself where no queue asks for that."""
    following = [q for q in config.cluster_queues.values() if q.headroom is not None]
    if not following or not fleet.nodes:
        return config
    named = {quotas.flavor for queue in following for quotas in _quotas(queue.groups)}
    flavors = [config.flavors[name] for name in sorted(named & config.flavors.keys())]
    offered = {f.name: _offered(f, fleet.nodes) for f in flavors if f.node_labels}
    fixed = _stated(
        [
            *(q.groups for q in config.cluster_queues.values() if q.headroom is None),
            *(cohort.groups for cohort in config.cohorts.values()),
        ]
    )
    shares = _Shares(offered, fixed, following)
    queues = {queue.name: shares.derived(queue) for queue in following}
    return replace(config, cluster_queues={**config.cluster_queues, **queues})


def _quotas(groups: Iterable[ResourceGroup]) -> Iterator[FlavorQuotas]:
    for group in groups:
        yield from group.flavors


def _stated(of: Iterable[Iterable[ResourceGroup]]) -> dict[_Row, int]:
    """Nominal quota in all of these together."""
    stated: dict[_Row, int] = {}
    for groups in of:
        for quotas in _quotas(groups):
            for resource, amount in quotas.nominal.items():
                row = quotas.flavor, resource
                stated[row] = stated.get(row, 0) + amount
    return stated


def _offered(flavor: ResourceFlavor, nodes: Iterable[Node]) -> dict[str, int]:
    """Resource to what the flavor's usable nodes have of it."""
    offered: dict[str, int] = {}
    for node in nodes:
        if not node.ready or node.unschedulable:
            continue
        if all(node.labels.get(key) == value for key, value in flavor.node_labels):
            for resource, amount in node.allocatable.items():
                offered[resource] = offered.get(resource, 0) + amount
    return offered


class _Shares:
    """Who gets which part of what the flavors offer."""

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
        return replace(queue, groups=groups)

    def _flavor(self, quotas: FlavorQuotas, given: Fraction) -> FlavorQuotas:
        if quotas.flavor not in self._offered:
            return quotas
        nominal = {
            resource: int(self._part((quotas.flavor, resource), stated) * given)
            for resource, stated in quotas.nominal.items()
        }
        return replace(quotas, nominal=nominal)

    def _part(self, row: _Row, stated: int) -> Fraction:
        """Of what the flavor offers, what falls to a queue that states so much nominal quota."""
        flavor, resource = row
        left = max(0, self._offered[flavor].get(resource, 0) - self._fixed.get(row, 0))
        total = self._stated[row]
        return left * (Fraction(stated, total) if total else Fraction(1, self._askers[row]))
