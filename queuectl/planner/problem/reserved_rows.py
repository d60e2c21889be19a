"""Reservations in advance as ordinary resources of nodes and pods.

For each resource that a Reservation keeps, each node offers one more resource, *beside* the Reservation, of which it has as much as
of the resource itself. A gang that the Reservation does not admit, and that would run at a time of the Reservation, requests both.
Capacity is kept for the Reservation in the second resource alone (:mod:`queuectl.planner.cycle.advance`). So the gangs that it admits, and
the gangs that end before it starts, can use all of its nodes, and the searches place, move and refuse all others beside it.

The verifier does not see these resources: it counts pods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import inf
from typing import Final, TypeVar

from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.quantity import NOTHING, PODS, Resources
from queuectl.domain.reservations import Occurrence
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import PodSet, Workload
from queuectl.planner.cache import PlannerCache

_BESIDE: Final = " beside Reservation "
_Rows = tuple[tuple[str, tuple[str, ...]], ...]
"""Names of Reservations, and the resources that each keeps."""

_Gangs = dict[int, tuple[object, _Rows, object]]
"""By id, a gang that is beside Reservations, the rows, and the gang with them."""

Gang = TypeVar("Gang", Pending, Admitted)


def reserved_row(resource: str, name: str) -> str:
    """The resource beside a Reservation."""
    return f"{resource}{_BESIDE}{name}"


def is_reserved_row(resource: str) -> bool:
    """Whether it is a resource beside a Reservation."""
    return _BESIDE in resource


def reservation_of_row(resource: str) -> str | None:
    """The name of the Reservation beside which it is; None for all other resources."""
    return resource.partition(_BESIDE)[2] or None


def rows_beside(requests: Resources, among: Iterable[Occurrence]) -> Resources:
    """The request of a pod beside each of these Reservations."""
    return Resources(
        {
            reserved_row(resource, each.name): requests[resource]
            for each in among
            for resource in resources_of(each)
        }
    )


def resources_of(occurrence: Occurrence) -> tuple[str, ...]:
    """The resources that it keeps; of named nodes it keeps all room for pods."""
    capacity = occurrence.reservation.capacity
    return (PODS,) if capacity is None else tuple(sorted(set(capacity.requests) - {PODS}))


def plain(requests: Resources) -> Resources:
    """The request without what is beside Reservations."""
    if not any(map(is_reserved_row, requests)):
        return requests
    return Resources({n: amount for n, amount in requests.items() if not is_reserved_row(n)})


# Which gangs.


def beside(
    snapshot: Snapshot, workload: Workload, until: float, at: float | None = None
) -> tuple[Occurrence, ...]:
    """The Reservations that must leave a gang out, if it holds capacity from ``at`` (None = now) until ``until``, unix seconds."""
    begins = snapshot.now if at is None else at
    queue = snapshot.queue_of(workload)
    name = queue.name if queue is not None else None
    return tuple(
        each
        for each in snapshot.reservations
        if each.begins < until
        and begins < each.ends
        and not each.reservation.admits(workload, name)
    )


def end_of(snapshot: Snapshot, gang: Pending | Admitted) -> float:
    """The unix seconds at which a gang leaves; a pending one starts now. Infinite if unknown."""
    if isinstance(gang, Pending):
        duration = gang.workload.duration
        return inf if duration is None else snapshot.now + duration.seconds
    return inf if gang.ends_at is None else max(gang.ends_at, snapshot.now + 1)


# The snapshot.


@dataclass(eq=False)
class _Lowered:
    """Of one fleet.

    Attributes:
        fleets: rows of Reservations to the fleet with their resources.
        gangs: of the last snapshot.
    """

    fleets: dict[_Rows, Fleet] = field(default_factory=dict)
    gangs: _Gangs = field(default_factory=dict)


def with_reservations(snapshot: Snapshot, cache: PlannerCache) -> Snapshot:
    """The snapshot with the resources beside its Reservations; the same one without any, or if it has them already."""
    rows = _rows(snapshot.reservations)
    if not rows or any(
        is_reserved_row(n) for node in snapshot.fleet.nodes[:1] for n in node.allocatable
    ):
        return snapshot
    known = cache.get(snapshot.fleet, _Lowered) or cache.keep(snapshot.fleet, _Lowered())
    if rows not in known.fleets:
        known.fleets = {rows: _fleet(snapshot.fleet, rows)}
    made: _Gangs = {}
    pending = tuple(_beside(gang, snapshot, known.gangs, made) for gang in snapshot.pending)
    admitted = tuple(_beside(gang, snapshot, known.gangs, made) for gang in snapshot.admitted)
    known.gangs = made
    return replace(
        snapshot,
        fleet=known.fleets[rows],
        pending=pending,
        admitted=admitted,
        other_pods=_other_pods(snapshot),
    )


def _rows(occurrences: Iterable[Occurrence]) -> _Rows:
    return tuple((each.name, resources_of(each)) for each in occurrences)


def _fleet(fleet: Fleet, rows: _Rows) -> Fleet:
    @cache
    def extended(amounts: Resources) -> Resources:
        return amounts + Resources(
            {
                reserved_row(resource, name): amounts[resource]
                for name, resources in rows
                for resource in resources
            }
        )

    return Fleet(tuple(node.with_rows(extended) for node in fleet.nodes))


def _other_pods(snapshot: Snapshot) -> Mapping[str, Resources]:
    """The amounts in use on each node beside the gangs, with those kept on nodes that no search can change."""
    used = {
        name: amounts + rows_beside(amounts, snapshot.reservations)
        for name, amounts in snapshot.other_pods.items()
    }
    for occurrence in snapshot.reservations:
        for name, amounts in fixed(occurrence, snapshot):
            row = rows_beside(amounts, (occurrence,))
            used[name] = used.get(name, NOTHING) + row
    return used


def fixed(occurrence: Occurrence, snapshot: Snapshot) -> Iterable[tuple[str, Resources]]:
    """Nodes on which an occurrence stays, and what is kept there: named nodes, or its placement once it has begun."""
    reservation = occurrence.reservation
    if reservation.capacity is None:
        nodes: Mapping[str, Node] = snapshot.fleet.by_name
        return [(name, nodes[name].allocatable) for name in reservation.nodes if name in nodes]
    return list(occurrence.held_amounts()) if stays(occurrence, snapshot) else ()


def stays(occurrence: Occurrence, snapshot: Snapshot) -> bool:
    """Whether its placement no longer changes: it has begun, or gangs are evicted for it from these nodes."""
    if not occurrence.placed:
        return False
    if occurrence.active(snapshot.now):
        return True
    return occurrence.reservation.evicts and occurrence.stands(snapshot.fleet)


def _beside(gang: Gang, snapshot: Snapshot, known: _Gangs, made: _Gangs) -> Gang:
    """The gang with its requests beside Reservations; the same object for the same gang and Reservations."""
    among = beside(snapshot, gang.workload, end_of(snapshot, gang))
    if not among:
        return gang
    rows = _rows(among)
    last = known.get(id(gang))
    if last is None or last[0] is not gang or last[1] != rows:
        last = gang, rows, replace(gang, workload=asking_beside(gang.workload, among))
    made[id(gang)] = last
    lowered = last[2]
    assert isinstance(lowered, type(gang))
    return lowered


def asking_beside(workload: Workload, among: Collection[Occurrence]) -> Workload:
    """The gang with its requests beside these Reservations and no others."""
    podsets = tuple(_requesting(podset, among) for podset in workload.podsets)
    return replace(workload, podsets=podsets)


def _requesting(podset: PodSet, among: Collection[Occurrence]) -> PodSet:
    shape = podset.shape
    requests = plain(shape.requests)
    more = rows_beside(requests, among)
    shape = replace(shape, requests=requests + more, incidental=shape.incidental | frozenset(more))
    return replace(podset, shape=shape)
