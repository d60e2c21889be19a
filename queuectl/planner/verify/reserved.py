"""Reservations in advance: each has nodes that can hold it, and no gang that it does not admit starts on what it keeps there.

A gang is *beside* a Reservation that does not admit it, if it still runs when the Reservation has begun and not ended. On each node of a
Reservation, gangs beside it that start, or are planned to start, fit beside what the Reservation keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import TypeAlias

from queuectl.domain.plan import Planned
from queuectl.domain.quantity import Resources
from queuectl.domain.reservations import AdvanceReservation, Occurrence
from queuectl.domain.snapshot import Admitted
from queuectl.domain.workload import Placement, TopologyMode, Workload
from queuectl.planner.verify.planned import _length
from queuectl.planner.verify.plan_index import PlanIndex, Rule, Violation

_Kept: TypeAlias = Mapping[str, Resources | None]
"""Nodes of a Reservation, and what it keeps there; None = the whole node."""


def check_reserved(index: PlanIndex) -> Iterator[Violation]:
    """The placements of Reservations, and the gangs that start beside them."""
    known = {state.name: state for state in index.plan.reserved}
    for each in index.snapshot.reservations:
        capacity = each.reservation.capacity
        if capacity is None:
            yield from _starts(index, each, dict.fromkeys(each.reservation.nodes))
            continue
        state = known.get(each.name)
        if state is None or bool(state.nodes) == bool(state.reason):
            yield Violation(Rule.RESERVATION, each.name, "has neither nodes nor a reason")
            continue
        nodes = dict(state.nodes)
        if not nodes:
            continue
        yield from _placement(index, each, nodes)
        kept = {name: capacity.requests * pods for name, pods in nodes.items()}
        yield from _starts(index, each, kept)


def _placement(index: PlanIndex, each: Occurrence, nodes: dict[str, int]) -> Iterator[Violation]:
    capacity = each.reservation.capacity
    assert capacity is not None
    begun = each.begins <= index.snapshot.now
    if begun and each.placed:
        if nodes != dict(each.placed):
            yield Violation(Rule.RESERVATION, each.name, "moves after it has begun")
        return
    if sum(nodes.values()) != capacity.pods:
        text = f"keeps room for {sum(nodes.values())} of {capacity.pods} pods"
        yield Violation(Rule.RESERVATION, each.name, text)
    flavor = index.snapshot.config.flavors.get(capacity.flavor or "")
    labels = [*capacity.node_labels, *(flavor.node_labels if flavor is not None else ())]
    for name in nodes:
        node = index.nodes.get(name)
        if node is None or not node.ready:
            yield Violation(Rule.RESERVATION, each.name, f"keeps node {name}, which is lost")
        elif any(node.labels.get(key) != value for key, value in labels):
            yield Violation(Rule.RESERVATION, each.name, f"keeps node {name} of other labels")
    asked = capacity.topology
    if asked is not None and asked.mode is TopologyMode.REQUIRED and asked.level is not None:
        topologies = list(index.snapshot.config.topologies.values())
        if flavor is not None:
            topologies = [t for t in topologies if t.name == flavor.topology]
        here = [index.nodes[name] for name in nodes if name in index.nodes]
        if len({index.domain(node, asked.level, topologies) for node in here}) > 1:
            text = f"is in several domains of {asked.level}"
            yield Violation(Rule.RESERVATION, each.name, text)


def _starts(index: PlanIndex, each: Occurrence, kept: _Kept) -> Iterator[Violation]:
    """Gangs beside a Reservation that start on its nodes."""
    starting = [
        (claim.workload, claim.placement)
        for claim in index.claims
        if claim.running is None and _beside(index, each, claim.workload, index.snapshot.now)
    ]
    yield from _check(index, each, kept, starting, index.snapshot.now)
    for planned in index.planned:
        entry, at = index.pending[planned.uid], planned.start.at
        if _beside(index, each, entry.workload, at):
            later = [
                *starting_until(index, starting, at),
                (entry.workload, planned.start.placement),
            ]
            later += _planned_before(index, each, planned)
            yield from _check(index, each, kept, later, at)


def starting_until(
    index: PlanIndex, starting: list[tuple[Workload, Placement]], at: float
) -> list[tuple[Workload, Placement]]:
    """Of the gangs that start now, those that still run at a time."""
    return [(w, p) for w, p in starting if index.snapshot.now + _length(w) > at]


def _planned_before(
    index: PlanIndex, each: Occurrence, planned: Planned
) -> Iterator[tuple[Workload, Placement]]:
    for other in index.planned:
        entry, at = index.pending[other.uid], planned.start.at
        if other.uid == planned.uid or other.start.at > at:
            continue
        still = other.start.at + _length(entry.workload) > at
        if still and _beside(index, each, entry.workload, other.start.at):
            yield entry.workload, other.start.placement


def _check(
    index: PlanIndex,
    each: Occurrence,
    kept: _Kept,
    starting: list[tuple[Workload, Placement]],
    at: float,
) -> Iterator[Violation]:
    added = _on_nodes(starting)
    touched = added.keys() & kept.keys()
    if not touched:
        return
    staying = [
        (gang.workload, gang.placement)
        for gang in index.snapshot.admitted
        if gang.workload.uid not in index.gone_after
        and _end(index, gang) > at
        and _runs_beside(index, each, gang)
    ]
    used = _on_nodes(staying)
    for name in sorted(touched):
        whole = kept[name]
        node = index.nodes.get(name)
        if whole is None or node is None:
            text = f"a gang that runs until after its start is placed on node {name}"
            yield Violation(Rule.RESERVATION, each.name, text)
            continue
        others = index.snapshot.other_pods.get(name, Resources())
        for resource in set(whole) & set(added[name]) - {"pods"}:
            free = node.allocatable[resource] - others[resource] - whole[resource]
            asked = added[name][resource] + used.get(name, Resources())[resource]
            if asked > free:
                text = f"node {name}, {resource}: gangs beside it hold {asked}, {free} are not kept"
                yield Violation(Rule.RESERVATION, each.name, text)


def _on_nodes(gangs: list[tuple[Workload, Placement]]) -> dict[str, Resources]:
    use: dict[str, Resources] = {}
    for workload, placement in gangs:
        for podset in workload.podsets:
            placed = placement.of(podset.name)
            for name, count in placed.nodes if placed is not None else ():
                use[name] = use.get(name, Resources()) + podset.shape.requests * count
    return use


def _beside(index: PlanIndex, each: Occurrence, workload: Workload, at: float) -> bool:
    """Whether a gang that starts at a time is beside a Reservation."""
    if _admitted(index, each.reservation, workload):
        return False
    return at < each.ends and at + _length(workload) > each.begins


def _runs_beside(index: PlanIndex, each: Occurrence, gang: Admitted) -> bool:
    return not _admitted(index, each.reservation, gang.workload) and _end(index, gang) > each.begins


def _admitted(index: PlanIndex, reservation: AdvanceReservation, workload: Workload) -> bool:
    queue = index.queue_of(workload)
    if queue is None or reservation.cluster_queue != queue.name:
        return False
    by_user = not reservation.users or workload.user in reservation.users
    return by_user and (not reservation.namespaces or workload.namespace in reservation.namespaces)


def _end(index: PlanIndex, gang: Admitted) -> float:
    return inf if gang.ends_at is None else max(gang.ends_at, index.snapshot.now + 1)
