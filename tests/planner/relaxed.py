"""Snapshots without one kind of limit: the meaning of a blocking constraint, independent of the planner's own accounting.

For one pending gang in a queue with a single flavor, so that only the gang's own rules distinguish nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from queuectl.domain.diagnosis import HealNodes, Limit, RelaxLevel, RelaxRules
from queuectl.domain.fleet import Fleet, Node, NodeRules
from queuectl.domain.quantity import NOTHING, Resources, total
from queuectl.domain.queues import ClusterQueue, FlavorQuotas
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import Placement, PodSetPlacement
from queuectl.planner import plan
from tests.planner.build import PLENTY


def starts(snapshot: Snapshot, uid: str) -> bool:
    """Whether the planner admits a gang."""
    return any(a.uid == uid for a in plan(snapshot).admitted)


def helped(snapshot: Snapshot, uid: str) -> bool:
    """Whether the planner starts a gang, or evicts others for it and holds the capacity that they free."""
    decided = plan(snapshot)
    if any(a.uid == uid for a in decided.admitted):
        return True
    evicts = any(p.preemptor == uid for p in decided.preempted)
    return evicts and any(r.uid == uid and r.lease is not None for r in decided.pending)


def fits_without(snapshot: Snapshot, dropped: Iterable[Limit]) -> bool:
    """Whether the planner starts the one pending gang when these limits do not count."""
    limits = frozenset(dropped)
    (pending,) = snapshot.pending
    uid = pending.workload.uid
    podsets = pending.workload.podsets
    if Limit.RUNNING in limits:
        snapshot = replace(snapshot, admitted=(), other_pods={})
    if Limit.HEALTH in limits:
        every = tuple(n.name for n in snapshot.fleet.nodes)
        snapshot = HealNodes(uid, every).apply(snapshot)
    if Limit.TOPOLOGY in limits:
        snapshot = RelaxLevel(uid, {p.name: None for p in podsets}).apply(snapshot)
    if Limit.RULES in limits:
        anything = {p.name: NodeRules(tolerations=p.shape.rules.tolerations) for p in podsets}
        snapshot = RelaxRules(uid, anything).apply(snapshot)
    if Limit.QUOTA in limits:
        snapshot = _unlimited(snapshot)
    if starts(snapshot, uid):
        return True
    return Limit.SHAPE in limits and starts(_in_pieces(snapshot), uid)


def _unlimited(snapshot: Snapshot) -> Snapshot:
    def plenty(quotas: FlavorQuotas) -> FlavorQuotas:
        return replace(quotas, nominal=dict.fromkeys(quotas.nominal, PLENTY))

    def every(queue: ClusterQueue) -> ClusterQueue:
        groups = tuple(
            replace(g, flavors=tuple(plenty(q) for q in g.flavors)) for g in queue.groups
        )
        return replace(queue, groups=groups)

    queues = {name: every(queue) for name, queue in snapshot.config.cluster_queues.items()}
    return replace(snapshot, config=replace(snapshot.config, cluster_queues=queues))


def _in_pieces(snapshot: Snapshot) -> Snapshot:
    """Nodes of one rack that the gang's podsets may use alike, as one large node."""
    merged: dict[tuple[object, ...], list[Node]] = {}
    for node in snapshot.fleet.nodes:
        merged.setdefault(_alike(snapshot, node), []).append(node)
    into = {n.name: nodes[0].name for nodes in merged.values() for n in nodes}
    used = _used(snapshot)
    fleet = Fleet(
        tuple(sorted((_one(nodes, used) for nodes in merged.values()), key=lambda n: n.name))
    )
    other_pods: dict[str, Resources] = {}
    for name, amount in snapshot.other_pods.items():
        other_pods[into[name]] = other_pods.get(into[name], NOTHING) + amount
    admitted = tuple(_moved(a, into) for a in snapshot.admitted)
    return replace(snapshot, fleet=fleet, other_pods=other_pods, admitted=admitted)


def _alike(snapshot: Snapshot, node: Node) -> tuple[object, ...]:
    (pending,) = snapshot.pending
    well = node.ready and node.name not in pending.excluded
    usable = [well and p.shape.rules.refusal(node) is None for p in pending.workload.podsets]
    return (node.labels["block"], node.labels["rack"], *usable)


def _used(snapshot: Snapshot) -> Mapping[str, Resources]:
    used = dict(snapshot.other_pods)
    for gang in snapshot.admitted:
        for name, amount in gang.placement.use(gang.workload).items():
            used[name] = used.get(name, NOTHING) + amount
    return used


def _one(nodes: list[Node], used: Mapping[str, Resources]) -> Node:
    """Free capacity of each of them, and the use of all."""
    room = []
    for node in nodes:
        taken = used.get(node.name, NOTHING)
        names = sorted({*node.allocatable, *taken})
        room.append(Resources((r, max(node.allocatable[r], taken[r])) for r in names))
    return replace(nodes[0], allocatable=total(room))


def _moved(gang: Admitted, into: Mapping[str, str]) -> Admitted:
    placed = tuple(
        PodSetPlacement(p.podset, tuple((into[n], c) for n, c in p.nodes), p.flavors)
        for p in gang.placement.podsets
    )
    return replace(gang, placement=Placement(placed))
