"""The pods of a workload, and its ranks by node, as its page shows them.

Pods that do not run are first, and the table has a hundred rows at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.jobs import PodPhase, PodRecord
from queuectl.domain.ledger import Entry
from queuectl.domain.links import Link
from queuectl.domain.queues import QueueConfig, Topology
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import Placement, PodSetPlacement

# ---- Pods

MOST: Final = 100  # rows


@dataclass(frozen=True, slots=True)
class PodRow:
    """A pod.

    Attributes:
        phase: ``Terminating`` while the pod is being deleted.
        reason: why it does not run; "" where nothing is wrong, or its status names no reason.
        runs: it is ready, or it has succeeded.
        command: shows its logs, or why it has none.
        links: to other systems.
    """

    name: str
    uid: str
    phase: str
    node: str
    restarts: int
    reason: str
    runs: bool
    command: str
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True)
class PodTable:
    """The pods of the current attempt, and those of earlier attempts that still exist.

    Attributes:
        rows: at most :data:`MOST`.
        phases: number of pods by phase, the most frequent phase first.
        total: number of pods.
        broken: number of pods that do not run, or are not ready.
    """

    rows: tuple[PodRow, ...]
    phases: tuple[tuple[str, int], ...]
    total: int
    broken: int


PodLinks = Callable[[str, str], tuple[Link, ...]]
"""The links of a pod to other systems, by the names of the pod and of its node."""


def pod_table(entry: Entry, pods: Iterable[PodRecord], links: PodLinks = lambda *_: ()) -> PodTable:
    """The table of a workload's pods: those that do not run, then by PodSet, rank and name."""
    listed = sorted(pods, key=_order)
    phases = Counter(_phase(pod) for pod in listed)
    rows = tuple(_row(entry, pod, links) for pod in listed[:MOST])
    broken = sum(not _runs(pod) for pod in listed)
    return PodTable(rows, tuple(phases.most_common()), len(listed), broken)


def _order(pod: PodRecord) -> tuple[bool, str, bool, int, str]:
    return (_runs(pod), pod.podset, pod.rank is None, pod.rank or 0, pod.name)


def _runs(pod: PodRecord) -> bool:
    return pod.phase is PodPhase.SUCCEEDED or (pod.ready and not pod.terminating)


def _phase(pod: PodRecord) -> str:
    return "Terminating" if pod.terminating and not pod.terminal else str(pod.phase)


def _row(entry: Entry, pod: PodRecord, links: PodLinks) -> PodRow:
    reason = pod.status_reason
    if pod.attempt != entry.attempt:
        reason = f"{reason}; of start {pod.attempt}".removeprefix("; ")
    return PodRow(
        name=pod.name,
        uid=pod.uid,
        phase=_phase(pod),
        node=pod.node or "",
        restarts=pod.restarts,
        reason=reason,
        runs=_runs(pod),
        command=_command(pod),
        links=links(pod.name, pod.node or ""),
    )


def _command(pod: PodRecord) -> str:
    """A pending pod has no logs: its Events show why. A container that restarts has them from before its restart."""
    if pod.phase is PodPhase.PENDING:
        return f"kubectl describe pod -n {pod.namespace} {pod.name}"
    before = " -p" if pod.restarts and not _runs(pod) else ""
    return f"kubectl logs -n {pod.namespace} {pod.name} --all-containers{before}"


# ---- Ranks by domain and node


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
    """A podset's pods by domain, in rank order: those on the first :data:`MOST` nodes.

    Attributes:
        pods: of all nodes.
        left_out: nodes that are not in ``domains``.
    """

    name: str
    flavors: tuple[str, ...]
    domains: tuple[DomainRanks, ...]
    pods: int
    left_out: int


def ranks_of(placement: Placement, snapshot: Snapshot | None) -> tuple[PodSetRanks, ...]:
    """The ranks of every podset; without a snapshot, domains are not known."""
    nodes = snapshot.fleet.by_name if snapshot is not None else {}
    return tuple(
        PodSetRanks(
            podset.podset,
            tuple(sorted(podset.charged)),
            _domains(podset, nodes, snapshot),
            podset.count,
            len(podset.nodes[MOST:]),
        )
        for podset in placement.podsets
    )


def _domains(
    podset: PodSetPlacement, nodes: Mapping[str, Node], snapshot: Snapshot | None
) -> tuple[DomainRanks, ...]:
    levels = _levels(podset, snapshot)
    groups: list[tuple[tuple[str, ...], list[NodeRanks]]] = []
    rank = 0
    for name, pods in podset.nodes[:MOST]:
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
    """The one of this name, otherwise the one with the most levels."""
    known = config.topologies
    if named is not None and named in known:
        return known[named]
    deepest = sorted(known.values(), key=lambda t: (-len(t.levels), t.name))
    return deepest[0] if deepest else Topology("")
