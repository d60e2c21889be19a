"""Limits for gangs on nodes with shared GPUs, as ordinary resources of nodes and pods.

Where the device plugin offers a GPU several times, two replicas of one pod, or of two pods, can be the same GPU: the kubelet
chooses. A gang therefore has at most one pod with one replica on such a node, unless it or its ClusterQueue asks otherwise
(:class:`SharedGpus`). The planner knows amounts only, so each limit is a resource that nodes offer and pods request:

- ``nvidia.com/gpu (not shared)``: nodes with shared GPUs offer none of it;
- ``nvidia.com/gpu (one pod per shared node)#i``: nodes with shared GPUs offer 1 of it, for the gang with number i.

Other nodes offer as much of both as of the GPU itself, so that it never limits anything there. The verifier does not see these
resources: it counts pods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Final, TypeVar

from queuectl.domain.fleet import Fleet, Node, NodeRules
from queuectl.domain.gpus import GpuWeights, SharedGpus
from queuectl.domain.quantity import Resources
from queuectl.domain.queues import ClusterQueue, QueueConfig
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import PodSet, Workload
from queuectl.planner.cache import PlannerCache

_UNSHARED: Final = " (not shared)"
_ONE_POD: Final = " (one pod per shared node)#"
_FEWEST: Final = (
    8  # gangs for which nodes have a resource of their own, so that few changes need new nodes
)
_MOST: Final = 128
"""Further gangs share the resources of others, so two of them cannot use one node with shared GPUs at the same time."""

Gang = TypeVar("Gang", Pending, Admitted)


@dataclass(eq=False)
class _SharedNodes:
    """The nodes with shared GPUs of one fleet, under one configuration.

    Attributes:
        by_resource: resource to the nodes on which a unit of it is a replica; empty = no GPU is shared.
        fleets: number of gangs to the fleet with their resources.
        usable: node rules, ClusterQueue and resource to whether such pods can run on a node with shared GPUs.
        limited: by id, each gang of the last snapshot that has limits, its number, and the gang with its limits.
    """

    config: QueueConfig
    by_resource: Mapping[str, tuple[Node, ...]]
    fleets: dict[int, Fleet] = field(default_factory=dict)
    usable: dict[tuple[NodeRules, str | None, str], bool] = field(default_factory=dict)
    limited: dict[int, tuple[object, int, object]] = field(default_factory=dict)


def with_limits(snapshot: Snapshot, cache: PlannerCache) -> Snapshot:
    """The snapshot with the limits of its gangs; the same one where no GPU is shared, or if it has them already."""
    shared = _shared_nodes(snapshot, cache)
    if not shared.by_resource:
        return snapshot
    numbers = _numbers(snapshot, shared)
    count = _FEWEST
    while count < min(len(numbers), _MOST):
        count *= 2
    if count not in shared.fleets:
        shared.fleets[count] = _with_rows(snapshot.fleet, shared, count)
    pending = [_limited(gang, numbers, shared) for gang in snapshot.pending]
    admitted = [_limited(gang, numbers, shared) for gang in snapshot.admitted]
    before: list[Pending | Admitted] = [*snapshot.pending, *snapshot.admitted]
    shared.limited = {
        id(gang): (gang, numbers.get(gang.workload.uid, 0), limited)
        for gang, limited in zip(before, (*pending, *admitted), strict=True)
        if limited is not gang
    }
    return replace(
        snapshot,
        fleet=shared.fleets[count],
        pending=tuple(pending),
        admitted=tuple(admitted),
    )


def _shared_nodes(snapshot: Snapshot, cache: PlannerCache) -> _SharedNodes:
    known = cache.get(snapshot.fleet, _SharedNodes)
    weights = snapshot.config.rules.accounting.gpus
    if known is not None and known.config.rules.accounting.gpus is not weights:
        known = None
    if known is None:
        found: dict[str, list[Node]] = {}
        offers = {id(n.allocatable): n.allocatable for n in snapshot.fleet.nodes}
        done = any(is_limit(name) for amounts in offers.values() for name in amounts)
        for node in () if done else snapshot.fleet.nodes:
            for resource in shared_on(node, weights):
                found.setdefault(resource, []).append(node)
        by_resource = {resource: tuple(nodes) for resource, nodes in found.items()}
        known = cache.keep(snapshot.fleet, _SharedNodes(snapshot.config, by_resource))
    elif known.config is not snapshot.config:
        known = _SharedNodes(snapshot.config, known.by_resource, known.fleets)
        cache.keep(snapshot.fleet, known)
    return known


def shared_on(node: Node, weights: GpuWeights) -> Iterable[str]:
    """The resources of a node of which a unit is a replica."""
    return (resource for resource in node.allocatable if weights.shared(resource, node.labels))


def _with_rows(fleet: Fleet, shared: _SharedNodes, count: int) -> Fleet:
    weights = shared.config.rules.accounting.gpus

    @cache
    def extended(amounts: Resources, here: tuple[str, ...]) -> Resources:
        return _with_limits_of(amounts, here, shared, count)

    nodes = []
    for node in fleet.nodes:
        here = tuple(r for r in shared.by_resource if weights.shared(r, node.labels))
        nodes.append(node.with_rows(partial(extended, here=here)))
    return Fleet(tuple(nodes))


def _with_limits_of(
    allocatable: Resources, here: Collection[str], shared: _SharedNodes, count: int
) -> Resources:
    """The resources of a node on which those in ``here`` are shared."""
    rows: dict[str, int] = {}
    for resource in shared.by_resource:
        amount = allocatable[resource]
        if resource in here:
            rows |= {_row(resource, i): min(amount, 1) for i in range(count)}
        else:
            rows |= {_row(resource, i): amount for i in range(count)}
            rows[resource + _UNSHARED] = amount
    return allocatable + Resources(rows)


def _row(resource: str, number: int) -> str:
    return f"{resource}{_ONE_POD}{number % _MOST}"


def is_limit(resource: str) -> bool:
    """Whether it is a limit, and not a resource of nodes."""
    return _ONE_POD in resource or resource.endswith(_UNSHARED)


def _numbers(snapshot: Snapshot, shared: _SharedNodes) -> dict[str, int]:
    """A number for each gang that can have only one pod on each node with shared GPUs; running gangs first."""
    gangs = (
        *sorted((gang.workload for gang in snapshot.admitted), key=lambda w: w.uid),
        *sorted((gang.workload for gang in snapshot.pending), key=lambda w: w.uid),
    )
    numbers: dict[str, int] = {}
    for workload in gangs:
        if _has_siblings(workload, shared):
            numbers.setdefault(workload.uid, len(numbers))
    return numbers


def _has_siblings(workload: Workload, shared: _SharedNodes) -> bool:
    """Whether several of its pods request one replica each, and can meet on a node."""
    return any(
        sum(podset.count for podset in _apart(workload, resource, shared)) > 1
        for resource in shared.by_resource
    )


def _apart(workload: Workload, resource: str, shared: _SharedNodes) -> list[PodSet]:
    """Its podsets of which at most one pod can be on each node with shared units of the resource."""
    queue = shared.config.cluster_queue_of(workload.namespace, workload.queue)
    return [
        podset
        for podset in workload.podsets
        if podset.shape.requests[resource] == 1
        and _rule(podset, queue) is SharedGpus.ONE_PER_NODE
        and _usable(podset, queue, resource, shared)
    ]


def _rule(podset: PodSet, queue: ClusterQueue | None) -> SharedGpus:
    of_queue = queue.shared_gpus if queue is not None else SharedGpus.ONE_PER_NODE
    return of_queue.unless(podset.shared_gpus)


def _usable(
    podset: PodSet, queue: ClusterQueue | None, resource: str, shared: _SharedNodes
) -> bool:
    """Whether its pods can run on any node with shared units of a resource, as far as labels and taints decide."""
    rules = podset.shape.rules
    key = (rules, queue.name if queue is not None else None, resource)
    if key not in shared.usable:
        shared.usable[key] = any(
            each.refusal(node) is None
            for each in _rules_by_flavor(rules, queue, resource, shared.config)
            for node in shared.by_resource[resource]
        )
    return shared.usable[key]


def _rules_by_flavor(
    rules: NodeRules, queue: ClusterQueue | None, resource: str, config: QueueConfig
) -> list[NodeRules]:
    """The node rules of pods with each flavor of the resource; their own without a flavor."""
    groups = [g for g in queue.groups if resource in g.covered] if queue is not None else []
    named = (config.flavors.get(quotas.flavor) for group in groups for quotas in group.flavors)
    flavors = [flavor for flavor in named if flavor is not None]
    return [
        NodeRules(
            tuple(sorted({*rules.selector, *flavor.node_labels})),
            rules.affinity,
            rules.tolerations + flavor.tolerations,
        )
        for flavor in flavors
    ] or [rules]


def _limited(gang: Gang, numbers: Mapping[str, int], shared: _SharedNodes) -> Gang:
    """The gang with its limits, the same object for the same gang and number."""
    number = numbers.get(gang.workload.uid, 0)
    known = shared.limited.get(id(gang))
    if known is not None and known[0] is gang and known[1] == number:
        limited = known[2]
        assert isinstance(limited, type(gang))
        return limited
    workload = gang.workload
    rows = {
        podset.name: rows
        for podset in workload.podsets
        if (rows := _rows(podset, workload, numbers, shared))
    }
    if not rows:
        return gang
    podsets = tuple(_requesting(podset, rows.get(podset.name, ())) for podset in workload.podsets)
    return replace(gang, workload=replace(workload, podsets=podsets))


def _rows(
    podset: PodSet, workload: Workload, numbers: Mapping[str, int], shared: _SharedNodes
) -> list[str]:
    """The resources of which each pod of a podset requests 1."""
    queue = shared.config.cluster_queue_of(workload.namespace, workload.queue)
    rule = _rule(podset, queue)
    rows = []
    for resource in shared.by_resource:
        amount = podset.shape.requests[resource]
        if not amount or rule is SharedGpus.ANY or not _usable(podset, queue, resource, shared):
            continue
        if rule is SharedGpus.NEVER or amount > 1:
            rows.append(resource + _UNSHARED)
        elif workload.uid in numbers:
            rows.append(_row(resource, numbers[workload.uid]))
    return rows


def _requesting(podset: PodSet, rows: Iterable[str]) -> PodSet:
    more = Resources(dict.fromkeys(rows, 1))
    shape = podset.shape
    shape = replace(
        shape, requests=shape.requests + more, incidental=shape.incidental | frozenset(more)
    )
    return replace(podset, shape=shape)
