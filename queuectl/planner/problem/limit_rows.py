"""Limits as ordinary resources of nodes and pods.

The planner knows amounts only. A limit for the pods of a gang on some nodes is therefore a *row*: a resource with its own name, which nodes
offer and pods request. The searches, proofs and evictions then hold for the limit too. :func:`with_limit_rows` adds all rows to a snapshot; the
verifier does not see them: it counts pods. To add such a limit, write what a node offers of its row and what a gang requests of it.

**Shared GPUs.** Where the device plugin offers a GPU several times, two replicas of one pod, or of two pods, can be the same GPU: the kubelet
chooses. A gang therefore has at most one pod with one replica on such a node, unless it or its ClusterQueue asks otherwise
(:class:`SharedGpus`):

- ``nvidia.com/gpu (not shared)``: nodes with shared GPUs offer none of it;
- ``nvidia.com/gpu (one pod per shared node)#i``: nodes with shared GPUs offer 1 of it, for the gang with number i.

Other nodes offer as much of both as of the GPU itself, so that it never limits anything there.

**Reservations in advance.** For each resource that a Reservation keeps, each node offers one more resource, *alongside* the Reservation, of which
it has as much as of the resource itself. A gang that the Reservation does not admit, and that would run at a time of the Reservation, requests
both. Capacity is kept for the Reservation in the second resource alone (:mod:`queuectl.planner.cycle.advance`). So the gangs that it admits, and
the gangs that end before it starts, can use all of its nodes, and the searches place, move and refuse all others alongside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache as memoized
from math import inf
from typing import Final, TypeVar

from queuectl.domain.bounded import BoundedCache
from queuectl.domain.fleet import Fleet, Node, NodeRules
from queuectl.domain.gpus import SharedGpus
from queuectl.domain.quantity import NOTHING, PODS, Resources
from queuectl.domain.queues import ClusterQueue, QueueConfig
from queuectl.domain.reservations import Occurrence
from queuectl.domain.snapshot import Admitted, Pending, Snapshot, queue_of
from queuectl.domain.workload import PodSet, Workload
from queuectl.planner.cache import PlannerCache
from queuectl.planner.problem.reserved_placements import with_valid_placements

_UNSHARED: Final = " (not shared)"
_ONE_POD: Final = " (one pod per shared node)#"
_FEWEST: Final = (
    8  # gangs for which nodes have their own resource, so that few changes need new nodes
)
_MOST: Final = 128
"""Further gangs share the resources of others, so two of them cannot use one node with shared GPUs at the same time."""
_BESIDE: Final = " beside Reservation "
_FLEETS: Final = 4  # kept with rows, for numbers of gangs or Reservations that alternate

Gang = TypeVar("Gang", Pending, Admitted)
_Rows = tuple[tuple[str, tuple[str, ...]], ...]
"""Names of Reservations, and the resources that each keeps."""


def with_limit_rows(snapshot: Snapshot, cache: PlannerCache) -> Snapshot:
    """The snapshot with the rows of all limits; the same one without any, or if it has them already."""
    snapshot = with_valid_placements(snapshot)
    return _with_reservations(_with_shared_gpus(snapshot, cache), cache)


def is_limit_row(resource: str) -> bool:
    """Whether it is the row of a limit, and not a resource of nodes."""
    return _ONE_POD in resource or resource.endswith(_UNSHARED) or _BESIDE in resource


@dataclass(frozen=True, eq=False)
class _Rowed:
    """One fleet, and the gangs of its last snapshot, with the rows of one kind of limit.

    Attributes:
        fleets: by what decides about the rows, the fleet with them; the last ones.
        gangs: by id, each gang that requests rows, what decides about them, and the gang with its requests.
    """

    fleets: Mapping[Hashable, Fleet] = field(default_factory=dict)
    gangs: Mapping[int, tuple[object, Hashable, object]] = field(default_factory=dict)

    def add_to(
        self,
        snapshot: Snapshot,
        cache: PlannerCache,
        rows: Hashable,
        offer: Callable[[Node], Callable[[Resources], Resources]],
        kind: Callable[[Pending | Admitted], Hashable],
        request: Callable[[Pending | Admitted], Mapping[str, Resources]],
    ) -> Snapshot:
        """The snapshot with rows. A gang of the same kind as before stays the same object.

        Args:
            snapshot: without them.
            cache: keeps the fleet and the gangs for the next snapshot.
            rows: what decides about them.
            offer: of a node, its amounts with its rows.
            kind: what decides about the rows of a gang; None if it requests none.
            request: of a gang, podset to what each pod requests of the rows; podsets that request nothing are absent.
        """
        fleets = self.fleets
        if rows not in fleets:
            nodes = (node.with_rows(offer(node)) for node in snapshot.fleet.nodes)
            fleets = dict([*fleets.items(), (rows, Fleet(tuple(nodes)))][-_FLEETS:])
        gangs: dict[int, tuple[object, Hashable, object]] = {}

        def rowed(gang: Gang) -> Gang:
            of_gang = kind(gang)
            if of_gang is None:
                return gang
            last = self.gangs.get(id(gang))
            if last is None or last[0] is not gang or last[1] != of_gang:
                requested = request(gang)
                if not requested:
                    return gang
                last = gang, of_gang, replace(gang, workload=_requesting(gang.workload, requested))
            gangs[id(gang)] = last
            assert isinstance(last[2], type(gang))
            return last[2]

        pending, admitted = map(rowed, snapshot.pending), map(rowed, snapshot.admitted)
        made = replace(
            snapshot, fleet=fleets[rows], pending=tuple(pending), admitted=tuple(admitted)
        )
        cache.keep(snapshot.fleet, replace(self, fleets=fleets, gangs=gangs))
        return made


def _requesting(workload: Workload, rows: Mapping[str, Resources]) -> Workload:
    """The gang whose pods request these rows, by podset, and none alongside Reservations besides."""

    def with_its_rows(podset: PodSet) -> PodSet:
        more, shape = rows.get(podset.name), podset.shape
        if more is None:
            return podset
        requests = plain(shape.requests) + more
        shape = replace(shape, requests=requests, incidental=shape.incidental | frozenset(more))
        return replace(podset, shape=shape)

    return replace(workload, podsets=tuple(map(with_its_rows, workload.podsets)))


# Shared GPUs.


@dataclass(frozen=True, eq=False)
class _SharedNodes(_Rowed):
    """The nodes with shared GPUs of one fleet, under one configuration.

    Attributes:
        by_resource: resource to the nodes on which a unit of it is a replica; empty = no GPU is shared.
        usable: node rules, ClusterQueue and resource to whether such pods can run on a node with shared GPUs.
    """

    config: QueueConfig = field(kw_only=True)
    by_resource: Mapping[str, tuple[Node, ...]] = field(kw_only=True)
    usable: BoundedCache[tuple[NodeRules, str | None, str], bool] = field(
        default_factory=BoundedCache
    )


def _with_shared_gpus(snapshot: Snapshot, cache: PlannerCache) -> Snapshot:
    shared = _shared_nodes(snapshot, cache)
    if not shared.by_resource:
        return snapshot
    numbers = _numbers(snapshot, shared)
    count = _FEWEST
    while count < min(len(numbers), _MOST):
        count *= 2
    return shared.add_to(
        snapshot,
        cache,
        count,
        _offer_of(shared, count),
        lambda gang: numbers.get(gang.workload.uid, -1),
        lambda gang: _limits_of(gang.workload, numbers, shared),
    )


def _shared_nodes(snapshot: Snapshot, cache: PlannerCache) -> _SharedNodes:
    shared_nodes = cache.get(snapshot.fleet, _SharedNodes)
    weights = snapshot.config.rules.accounting.gpus
    if shared_nodes is not None and shared_nodes.config.rules.accounting.gpus is not weights:
        shared_nodes = None
    if shared_nodes is None:
        by_resource: dict[str, list[Node]] = {}
        offers = {id(n.allocatable): n.allocatable for n in snapshot.fleet.nodes}
        done = any(map(is_limit_row, {name for amounts in offers.values() for name in amounts}))
        for node in () if done else snapshot.fleet.nodes:
            # The resources of which a unit is a replica.
            for resource in (r for r in node.allocatable if weights.shared(r, node.labels)):
                by_resource.setdefault(resource, []).append(node)
        shared = {resource: tuple(nodes) for resource, nodes in by_resource.items()}
        shared_nodes = _SharedNodes(config=snapshot.config, by_resource=shared)
        cache.keep(snapshot.fleet, shared_nodes)
    elif shared_nodes.config is not snapshot.config:
        shared_nodes = _SharedNodes(
            shared_nodes.fleets, config=snapshot.config, by_resource=shared_nodes.by_resource
        )
        cache.keep(snapshot.fleet, shared_nodes)
    return shared_nodes


def _offer_of(
    shared: _SharedNodes, count: int
) -> Callable[[Node], Callable[[Resources], Resources]]:
    weights = shared.config.rules.accounting.gpus

    @memoized
    def offer(here: tuple[str, ...]) -> Callable[[Resources], Resources]:
        return memoized(lambda amounts: amounts + _offered(amounts, here, shared, count))

    return lambda node: offer(
        tuple(r for r in shared.by_resource if weights.shared(r, node.labels))
    )


def _offered(
    allocatable: Resources, here: Collection[str], shared: _SharedNodes, count: int
) -> Resources:
    """The rows of a node on which the resources in ``here`` are shared."""
    rows: dict[str, int] = {}
    for resource in shared.by_resource:
        amount = allocatable[resource]
        if resource in here:
            rows |= {_row(resource, i): min(amount, 1) for i in range(count)}
        else:
            rows |= {_row(resource, i): amount for i in range(count)}
            rows[resource + _UNSHARED] = amount
    return Resources(rows)


def _row(resource: str, number: int) -> str:
    return f"{resource}{_ONE_POD}{number % _MOST}"


def _numbers(snapshot: Snapshot, shared: _SharedNodes) -> dict[str, int]:
    """A number for each gang that can have only one pod on each node with shared GPUs; running gangs first."""
    gangs = (
        *sorted((gang.workload for gang in snapshot.admitted), key=lambda w: w.uid),
        *sorted((gang.workload for gang in snapshot.pending), key=lambda w: w.uid),
    )
    numbers: dict[str, int] = {}
    for workload in gangs:
        apart = (_apart(workload, resource, shared) for resource in shared.by_resource)
        if any(sum(podset.count for podset in podsets) > 1 for podsets in apart):
            numbers.setdefault(workload.uid, len(numbers))
    return numbers


def _apart(workload: Workload, resource: str, shared: _SharedNodes) -> list[PodSet]:
    """Its podsets of which at most one pod can be on each node with shared units of the resource."""
    queue = queue_of(workload, shared.config)
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
    usable = shared.usable.get(key)
    if usable is None:
        can = (
            each.refusal(node) is None
            for each in _rules_by_flavor(rules, queue, resource, shared.config)
            for node in shared.by_resource[resource]
        )
        usable = shared.usable.keep(key, any(can))
    return usable


def _rules_by_flavor(
    rules: NodeRules, queue: ClusterQueue | None, resource: str, config: QueueConfig
) -> list[NodeRules]:
    """The node rules of pods with each flavor of the resource; their own without a flavor."""
    groups = [g for g in queue.groups if resource in g.covered] if queue is not None else []
    names = (quotas.flavor for group in groups for quotas in group.flavors)
    return [flavor.rules_of(rules) for flavor in config.flavors_named(names)] or [rules]


def _limits_of(
    workload: Workload, numbers: Mapping[str, int], shared: _SharedNodes
) -> dict[str, Resources]:
    limits = ((p.name, _limits(p, workload, numbers, shared)) for p in workload.podsets)
    return {name: Resources(dict.fromkeys(rows, 1)) for name, rows in limits if rows}


def _limits(
    podset: PodSet, workload: Workload, numbers: Mapping[str, int], shared: _SharedNodes
) -> list[str]:
    """The resources of which each pod of a podset requests 1."""
    queue = queue_of(workload, shared.config)
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


# Reservations in advance.


def reservation_of_row(resource: str) -> str | None:
    """The name of the Reservation alongside which it is; None for all other resources."""
    return resource.partition(_BESIDE)[2] or None


def rows_beside(requests: Resources, among: Iterable[Occurrence]) -> Resources:
    """The request of a pod alongside each of these Reservations."""
    return Resources(
        {
            f"{resource}{_BESIDE}{each.name}": requests[resource]
            for each in among
            for resource in resources_of(each)
        }
    )


def resources_of(occurrence: Occurrence) -> tuple[str, ...]:
    """The resources that it keeps; of named nodes it keeps all room for pods."""
    capacity = occurrence.reservation.capacity
    return (PODS,) if capacity is None else tuple(sorted(set(capacity.requests) - {PODS}))


def plain(requests: Resources) -> Resources:
    """The request without what is alongside Reservations."""
    if not any(map(reservation_of_row, requests)):
        return requests
    return Resources({n: amount for n, amount in requests.items() if not reservation_of_row(n)})


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
        return end_from(snapshot, gang, snapshot.now)
    return inf if gang.ends_at is None else max(gang.ends_at, snapshot.now + 1)


def end_from(snapshot: Snapshot, pending: Pending, at: float) -> float:
    """The unix seconds at which a gang leaves that starts then. Infinite if unknown, as for one that its checks can hold first."""
    duration, queue = pending.workload.duration, snapshot.queue_of(pending.workload)
    if duration is None or (queue is not None and _held_first(snapshot.config, pending, queue)):
        return inf
    return at + duration.seconds


def _held_first(config: QueueConfig, pending: Pending, queue: ClusterQueue) -> bool:
    """Whether checks can hold a gang on its nodes before it starts, under a flavor that it can use."""
    rules = (rule for rule in queue.admission_checks if not rule.provisions)
    awaited = [rule for rule in rules if rule.name not in pending.ready_checks]
    flavors = set(_usable_flavors(config, pending.workload, queue)) if awaited else ()
    return any(rule.applies(flavors) for rule in awaited)


def _usable_flavors(config: QueueConfig, workload: Workload, queue: ClusterQueue) -> Iterator[str]:
    """The flavors that a gang can use, as far as their labels and taints decide."""
    for podset in workload.podsets:
        charged = config.rules.charged(podset.shape.requests)
        groups = (group for group in queue.groups if not charged.keys().isdisjoint(group.covered))
        names = (quotas.flavor for group in groups for quotas in group.flavors)
        for flavor in config.flavors_named(names):
            if flavor.refusal(podset.shape.rules) is None:
                yield flavor.name


def _with_reservations(snapshot: Snapshot, cache: PlannerCache) -> Snapshot:
    reservations = snapshot.reservations
    rows = _rows(reservations)
    if not rows or any(
        reservation_of_row(n) for node in snapshot.fleet.nodes[:1] for n in node.allocatable
    ):
        return snapshot
    offer = memoized(lambda amounts: amounts + rows_beside(amounts, reservations))
    known = cache.get(snapshot.fleet, _Rowed) or _Rowed()

    def among(gang: Pending | Admitted) -> tuple[Occurrence, ...]:
        return beside(snapshot, gang.workload, end_of(snapshot, gang))

    rowed = known.add_to(
        snapshot,
        cache,
        rows,
        lambda _: offer,
        lambda gang: _rows(among(gang)) or None,
        lambda gang: _beside_of(gang.workload, among(gang)),
    )
    return replace(rowed, other_pods=_other_pods(snapshot))


def _rows(occurrences: Iterable[Occurrence]) -> _Rows:
    return tuple((each.name, resources_of(each)) for each in occurrences)


def _other_pods(snapshot: Snapshot) -> Mapping[str, Resources]:
    """The amounts in use on each node alongside the gangs, with those kept on nodes that no search can change."""
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
    return list(occurrence.held_amounts()) if begun(occurrence, snapshot) else ()


def begun(occurrence: Occurrence, snapshot: Snapshot) -> bool:
    """Whether its placement no longer changes, because it has begun."""
    return bool(occurrence.placed) and occurrence.active(snapshot.now)


def asking_beside(workload: Workload, among: Collection[Occurrence]) -> Workload:
    """The gang with its requests alongside these Reservations and no others."""
    return _requesting(workload, _beside_of(workload, among))


def _beside_of(workload: Workload, among: Collection[Occurrence]) -> dict[str, Resources]:
    return {p.name: rows_beside(plain(p.shape.requests), among) for p in workload.podsets}
