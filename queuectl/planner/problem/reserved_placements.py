"""Which placements of Reservations a plan can keep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from queuectl.domain.queues import domain_of
from queuectl.domain.reservations import Occurrence
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import TopologyMode


def with_valid_placements(snapshot: Snapshot) -> Snapshot:
    """The snapshot without placements that a plan cannot keep; the same object if it can keep all.

    The terms of a Reservation, its flavor, its nodes and the times of others can change after it was placed. One that has begun keeps its
    nodes. Of two that now last at one time on the same node, the first one does.
    """
    valid: list[Occurrence] = []
    for each in snapshot.reservations:
        kept = not each.placed or each.active(snapshot.now) or _is_valid(each, valid, snapshot)
        valid.append(each if kept else replace(each, placed=()))
    if all(a is b for a, b in zip(valid, snapshot.reservations, strict=True)):
        return snapshot
    return replace(snapshot, reservations=tuple(valid))


def _is_valid(each: Occurrence, before: Iterable[Occurrence], snapshot: Snapshot) -> bool:
    """``before``: the occurrences that are placed first."""
    names = {name for name, _ in each.placed}
    whole = [one for one in snapshot.reservations if one.reservation.nodes]
    taken = {
        name
        for one in (*before, *whole)
        if one.overlaps(each)
        for name in (*one.reservation.nodes, *(name for name, _ in one.placed))
    }
    return not names & taken and each.stands(snapshot.fleet) and _meets_terms(each, snapshot)


def _meets_terms(each: Occurrence, snapshot: Snapshot) -> bool:
    """Whether its nodes, which exist, have the labels, the amounts and the topology domain that it asks for."""
    capacity, config = each.reservation.capacity, snapshot.config
    if capacity is None:
        return True
    flavor = config.flavors.get(capacity.flavor or "")
    labels = (*capacity.node_labels, *(flavor.node_labels if flavor is not None else ()))
    nodes = [(snapshot.fleet.by_name[name], pods) for name, pods in each.placed]
    for node, pods in nodes:
        if any(node.labels.get(key) != value for key, value in labels):
            return False
        if not (capacity.requests * pods).fits(node.allocatable):
            return False
    asked = capacity.topology
    if asked is None or asked.mode is not TopologyMode.REQUIRED or asked.level is None:
        return True
    topologies = list(config.topologies.values())
    if flavor is not None:
        topologies = [one for one in topologies if one.name == flavor.topology]
    return len({domain_of(node, asked.level, topologies) for node, _ in nodes}) == 1
