"""The independent parts of a setting: no plan for one of them depends on the gangs and nodes of another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.queues import ClusterQueue
from queuectl.domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Part:
    """``queues``: names of ClusterQueues; ``snapshot``: their configuration and their nodes."""

    queues: frozenset[str]
    snapshot: Snapshot


def parts(given: Snapshot) -> list[Part]:
    """ClusterQueues are in one part if they have a common cohort or node. With fairness by past use there is one part."""
    config = given.config
    nodes = {name: _nodes(queue, given) for name, queue in sorted(config.cluster_queues.items())}
    if config.rules.usage_fairness is not None:
        return [_part(frozenset(nodes), given, given.fleet.nodes)]
    leader_of: dict[
        str, str
    ] = {}  # of each thing that queues can share, the first queue that has it
    groups = {name: {name} for name in nodes}
    for name, queue in sorted(config.cluster_queues.items()):
        shared = [f"node {node.name}" for node in nodes[name]]
        if queue.cohort is not None:
            shared.append(f"cohort {list(config.cohorts_above(queue))[-1]}")
        for thing in shared:
            other = groups[leader_of.setdefault(thing, name)]
            if other is not groups[name]:
                other |= groups[name]
                for member in groups[name]:
                    groups[member] = other
    return [
        _part(
            frozenset(group), given, {n.name: n for q in sorted(group) for n in nodes[q]}.values()
        )
        for group in {min(group): group for group in groups.values()}.values()
    ]


def _nodes(queue: ClusterQueue, given: Snapshot) -> list[Node]:
    """The nodes of all its flavors."""
    labels = [
        given.config.flavors[quotas.flavor].node_labels
        for group in queue.groups
        for quotas in group.flavors
        if quotas.flavor in given.config.flavors
    ]
    return [node for node in given.fleet.nodes if any(map(node.has_labels, labels))]


def _part(queues: frozenset[str], given: Snapshot, nodes: Iterable[Node]) -> Part:
    config = given.config
    mine = replace(
        config,
        cluster_queues={n: q for n, q in config.cluster_queues.items() if n in queues},
        local_queues={k: q for k, q in config.local_queues.items() if q.cluster_queue in queues},
    )
    fleet = Fleet(tuple(sorted(nodes, key=lambda node: node.name)))
    return Part(queues, replace(given, config=mine, fleet=fleet))
