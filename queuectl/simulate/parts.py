"""The independent parts of a setting: no plan for one of them depends on the gangs and nodes of another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from queuectl.domain.budgets import Budget, BudgetScope
from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.quantity import GPU, PODS, Resources
from queuectl.domain.queues import ClusterQueue, QueueConfig
from queuectl.domain.reservations import AdvanceReservation
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import PodSet, PodShape, TopologyMode, TopologyRequest
from queuectl.simulate.trace import NodeEvent, TraceJob

# ---- Parts


@dataclass(frozen=True, slots=True)
class Part:
    """``queues``: names of ClusterQueues; ``snapshot``: their configuration and their nodes."""

    queues: frozenset[str]
    snapshot: Snapshot


def parts(snapshot: Snapshot, events: Iterable[NodeEvent] = ()) -> list[Part]:
    """ClusterQueues are in one part if they have a common cohort, node, Budget or Reservation.

    With fairness by past use there is one part. A node also counts with the labels that it gets in one of the ``events``.
    """
    config = snapshot.config
    changed = (event.record for event in events if event.record is not None)
    shown = (*snapshot.fleet.nodes, *changed)
    nodes = {n: _nodes(queue, config, shown) for n, queue in sorted(config.cluster_queues.items())}
    if config.rules.usage_fairness is not None:
        return [Part(frozenset(nodes), snapshot)]
    reserved = {r.name: _reservable(r, config, shown) for r in config.reservations.values()}
    leader_of: dict[
        str, str
    ] = {}  # of each thing that queues can share, the first queue that has it
    groups = {name: {name} for name in nodes}
    for name, queue in sorted(config.cluster_queues.items()):
        for thing in _shared(queue, nodes[name], reserved, config):
            other = groups[leader_of.setdefault(thing, name)]
            if other is not groups[name]:
                other |= groups[name]
                for member in groups[name]:
                    groups[member] = other
    separate = {min(group): group for group in groups.values()}.values()
    return [_part(frozenset(group), snapshot, nodes, reserved) for group in separate]


def _shared(
    queue: ClusterQueue,
    nodes: AbstractSet[str],
    reserved: Mapping[str, AbstractSet[str]],
    config: QueueConfig,
) -> Iterator[str]:
    """Names of what other queues can also have."""
    yield from (f"node {name}" for name in sorted(nodes))
    if (root := config.root_cohort(queue)) is not None:
        yield f"cohort {root}"
    yield from (f"Budget {b.name}" for b in config.budgets.values() if _spends(b, queue, config))
    for name, among in reserved.items():
        if nodes & among:
            yield f"Reservation {name}"


def _spends(budget: Budget, queue: ClusterQueue, config: QueueConfig) -> bool:
    """Whether gangs of a ClusterQueue can spend a budget."""
    local = [q for q in config.local_queues.values() if q.cluster_queue == queue.name]
    match budget.scope:
        case BudgetScope.CLUSTER_QUEUE:
            return budget.holder == queue.name
        case BudgetScope.LOCAL_QUEUE:
            return any(budget.holder == f"{q.namespace}/{q.name}" for q in local)
        case BudgetScope.NAMESPACE:
            return any(budget.holder == q.namespace for q in local)
        case BudgetScope.USER:
            return True


def _nodes(queue: ClusterQueue, config: QueueConfig, shown: Sequence[Node]) -> AbstractSet[str]:
    """The names of the nodes of all its flavors."""
    labels = [
        config.flavors[quotas.flavor].node_labels
        for group in queue.groups
        for quotas in group.flavors
        if quotas.flavor in config.flavors
    ]
    return {node.name for node in shown if any(map(node.has_labels, labels))}


def _reservable(
    reservation: AdvanceReservation, config: QueueConfig, shown: Sequence[Node]
) -> AbstractSet[str]:
    """The names of the nodes on which a Reservation can keep capacity."""
    capacity = reservation.capacity
    if capacity is None:
        return {node.name for node in shown if node.name in reservation.nodes}
    flavor = config.flavors.get(capacity.flavor or "")
    labels = (*capacity.node_labels, *(flavor.node_labels if flavor is not None else ()))
    return {node.name for node in shown if node.has_labels(labels)}


def _part(
    queues: frozenset[str],
    snapshot: Snapshot,
    nodes: Mapping[str, AbstractSet[str]],
    reserved: Mapping[str, AbstractSet[str]],
) -> Part:
    """A part with its nodes, and all nodes of its Reservations."""
    config = snapshot.config
    own = [config.cluster_queues[name] for name in sorted(queues)]
    mine = frozenset[str]().union(*(nodes[queue.name] for queue in own))
    advance = {
        name: reservation
        for name, reservation in config.reservations.items()
        if mine & reserved[name]
    }
    mine = mine.union(*(reserved[name] for name in advance))
    budgets = {
        n: b for n, b in config.budgets.items() if any(_spends(b, queue, config) for queue in own)
    }
    narrowed = replace(
        config,
        cluster_queues={n: q for n, q in config.cluster_queues.items() if n in queues},
        local_queues={k: q for k, q in config.local_queues.items() if q.cluster_queue in queues},
        budgets=budgets,
        reservations=advance,
    )
    fleet = Fleet(tuple(snapshot.fleet.by_name[name] for name in sorted(mine)))
    return Part(queues, replace(snapshot, config=narrowed, fleet=fleet))


# ---- Requests of jobs

PODSET: Final = "main"


def podsets_of(job: TraceJob) -> tuple[PodSet, ...]:
    """The request of a job."""
    if job.podsets:
        return job.podsets
    level = job.topology_level
    topology = TopologyRequest(TopologyMode.REQUIRED, level) if level else None
    shape = PodShape(Resources({GPU: job.gpus_per_pod, PODS: 1}))
    return (PodSet(PODSET, job.pods, shape, topology),)
