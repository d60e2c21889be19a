"""The placement of a gang: its ranks by domain and node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.queues import QueueConfig, Topology
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import Placement, PodSetPlacement


@dataclass(frozen=True, slots=True)
class NodeRanks:
    """A node and the ranks on it, as ``0 to 7``; in rank order."""

    node: str
    pods: int
    ranks: str


@dataclass(frozen=True, slots=True)
class DomainRanks:
    """A domain, by its path from the coarsest level; an empty path where nodes are not known."""

    path: tuple[str, ...]
    nodes: tuple[NodeRanks, ...]

    @property
    def pods(self) -> int:
        return sum(node.pods for node in self.nodes)


@dataclass(frozen=True, slots=True)
class PodSetRanks:
    """A podset's pods by domain, in rank order."""

    name: str
    flavors: tuple[str, ...]
    domains: tuple[DomainRanks, ...]

    @property
    def pods(self) -> int:
        return sum(domain.pods for domain in self.domains)


def ranks_of(placement: Placement, snapshot: Snapshot | None) -> tuple[PodSetRanks, ...]:
    """The ranks of every podset; without a snapshot, domains are not known."""
    nodes = snapshot.fleet.by_name if snapshot is not None else {}
    return tuple(
        PodSetRanks(podset.podset, tuple(sorted(podset.charged)), _domains(podset, nodes, snapshot))
        for podset in placement.podsets
    )


def _domains(
    podset: PodSetPlacement, nodes: Mapping[str, Node], snapshot: Snapshot | None
) -> tuple[DomainRanks, ...]:
    levels = _levels(podset, snapshot)
    groups: list[tuple[tuple[str, ...], list[NodeRanks]]] = []
    rank = 0
    for name, pods in podset.nodes:
        node = nodes.get(name)
        path = tuple(node.labels.get(level, "") for level in levels) if node is not None else ()
        if not groups or groups[-1][0] != path:
            groups.append((path, []))
        last = rank + pods - 1
        groups[-1][1].append(NodeRanks(name, pods, str(rank) if pods == 1 else f"{rank} to {last}"))
        rank += pods
    return tuple(DomainRanks(path, tuple(found)) for path, found in groups)


def _levels(podset: PodSetPlacement, snapshot: Snapshot | None) -> tuple[str, ...]:
    """Of the topology of its flavor."""
    if snapshot is None:
        return ()
    config = snapshot.config
    flavors = (config.flavors.get(name) for name in sorted(podset.charged))
    named = next((f.topology for f in flavors if f is not None and f.topology), None)
    return tuple(x for x in _topology(config, named).levels if x != HOSTNAME)


def _topology(config: QueueConfig, named: str | None) -> Topology:
    """The one of this name, else the one with the most levels."""
    known = config.topologies
    if named is not None and named in known:
        return known[named]
    deepest = sorted(known.values(), key=lambda t: (-len(t.levels), t.name))
    return deepest[0] if deepest else Topology("")
