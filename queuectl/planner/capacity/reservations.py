"""Reservations: capacity and quota that are kept for pending gangs until gangs that leave have left.

A reservation waits for its *victims*. When they have left, its gang can start, whatever else still leaves. So a reservation
has now the part kept that it needs beyond the capacity that its victims still hold, on each node and in each pool of quota. Without this, other
gangs could take what the victims leave, and the reservation would wait for the slowest of all gangs that leave.

If the victims' leaving would not let its gang start, because something outside changed, nothing is kept now for a reservation,
and waits until everything that leaves has left. If even that is not enough, it ends. Among reservations the earlier one in
the queue order is first.

The CapacityLeases of a snapshot are the reservations of earlier plans.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

import numpy as np

from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, CapacityLease, Pending, Snapshot
from queuectl.domain.words import counted
from queuectl.domain.workload import Placement, PodSet
from queuectl.planner.capacity.node_counts import (
    NodeCounts,
    Reservation,
    TentativeAdmission,
    add_at,
    fits,
    node_counts_of,
    nodes_of,
    use_of_counts,
)
from queuectl.planner.capacity.state import CycleState, HeldCapacity, Undo
from queuectl.planner.order.queue_order import QueueOrder, inadmissible, place
from queuectl.planner.problem.flavors import admits, flavors_of
from queuectl.planner.problem.fleet import Ints
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import (
    GangRequest,
    as_placed,
    in_parts,
    quota_only,
    request_of,
    starting_at,
)
from queuectl.planner.quota import QuotaUse


def reserve(
    state: CycleState,
    request: GangRequest,
    node_counts: NodeCounts,
    victims: Iterable[str],
    until: float = inf,
) -> Undo:
    """Keep capacity and quota for a gang: all of it later, and a part of it now.

    Args:
        state: of the cycle.
        request: of the gang.
        node_counts: where its pods go.
        victims: uids of the gangs it waits for; those that do not leave hold nothing.
        until: unix seconds at which it ends unless the gang has started.
    """
    state.hold(HeldCapacity(request, node_counts, until))
    named = tuple(dict.fromkeys(victims))
    state.awaited[request.pending.workload.uid] = named
    still = [state.leaving[uid] for uid in named if uid in state.leaving]
    room = RoomAfter(state, request, node_counts)
    if room.enough(still):
        state.keep(room.reservation(still))
    return partial(release, state, request, node_counts)


def release(state: CycleState, request: GangRequest, node_counts: NodeCounts) -> None:
    """End a reservation."""
    state.give_up(request, node_counts)
    state.awaited.pop(request.pending.workload.uid, None)
    state.disown(request.pending.workload.uid)


def awaited(
    state: CycleState, request: GangRequest, node_counts: NodeCounts, evicted: Sequence[Admitted]
) -> tuple[str, ...]:
    """Uids of the victims of a new reservation: those evicted for it, sorted, and those leaving already that it needs besides.

    No more of the latter than it takes, and first those that no other reservation waits for.
    """
    named = tuple(sorted(gang.workload.uid for gang in evicted))
    room = RoomAfter(state, request, node_counts)

    def enough(more: Sequence[Admitted]) -> bool:
        return room.enough([*evicted, *more])

    # With more gangs gone, no room is lost: most sets need no test.
    leaving = list(_others(state, request, node_counts, named))
    count = bisect_left(range(len(leaving)), True, key=lambda n: enough(leaving[:n]))
    needed, rest = leaving[:count][-1:], leaving[:count][-2::-1]
    while rest:
        left_out = 0
        if enough([*needed, *rest[1:]]):
            sizes = range(2, len(rest) + 1)
            left_out = 1 + bisect_left(sizes, True, key=lambda n: not enough([*needed, *rest[n:]]))
        needed += rest[left_out : left_out + 1]
        rest = rest[left_out + 1 :]
    uids = {gang.workload.uid for gang in needed}
    return (*named, *(gang.workload.uid for gang in leaving if gang.workload.uid in uids))


def waits_for_victims(victims: Sequence[str]) -> Reason:
    """Its capacity is leased; the gangs that hold it are leaving."""
    whom = counted(len(victims), "evicted gang") if victims else "gangs that are already evicted"
    text = f"waits for {whom} to stop; the freed capacity is reserved for this gang"
    return Reason(Code.WAITING_FOR_PREEMPTED, text, {"victims": sorted(victims)})


def lease_end(snapshot: Snapshot) -> float:
    """The end of a lease given now: its time starts once the longest notice of its victims is over."""
    return snapshot.now + snapshot.config.rules.eviction_grace + snapshot.limits.lease_seconds


def with_lease(problem: Problem, request: GangRequest) -> GangRequest:
    """The request of a gang that gets a lease now: it starts at the end of the lease at the latest."""
    snapshot = problem.snapshot
    return starting_at(problem, request, snapshot.now, lease_end(snapshot))


@dataclass(frozen=True, slots=True)
class _ValidLease:
    lease: CapacityLease
    request: GangRequest
    node_counts: NodeCounts


@dataclass(slots=True)
class Leases:
    """The valid leases of the snapshot; each is reserved until it is claimed or released."""

    state: CycleState
    _valid: dict[str, _ValidLease] = field(default_factory=dict)

    def holds(self, uid: str) -> bool:
        return uid in self._valid

    def awaits_nodes(self, uid: str) -> bool:
        """Whether a lease is for quota only, because the nodes of its gang do not exist yet."""
        return self._valid[uid].lease.placement.awaits_nodes

    def request(self, uid: str) -> GangRequest:
        """The request of the gang on its leased nodes, with as many pods as its lease is for."""
        return self._valid[uid].request

    def held(self) -> Iterator[tuple[str, GangRequest, NodeCounts]]:
        """Every lease: uid of its gang, and what it holds."""
        for uid, held in self._valid.items():
            yield uid, held.request, held.node_counts

    def behind(self, pending: Pending, queue: ClusterQueue, order: QueueOrder) -> list[GangRequest]:
        """Of gangs that wait in its queue and are always behind it; the place of a gang that migrates is kept."""
        return [
            request
            for uid, request, _ in self.held()
            if uid not in self.state.leaving
            and request.queue == queue.name
            and order.always_before(pending.workload, request.pending.workload, queue)
        ]

    @property
    def returning(self) -> tuple[str, ...]:
        """Gangs that migrate, whose new place is kept."""
        migrating = _migrating(self.state.problem)
        return tuple(p.workload.uid for p in migrating if self.holds(p.workload.uid))

    def claim(self, uid: str) -> TentativeAdmission | None:
        """The gang on its leased placement if all of it is free now, in capacity and quota; otherwise None."""
        held = self._valid[uid]
        if not _claimable(self.state, held.request, held.node_counts):
            return None
        self.give_up(uid)
        return TentativeAdmission(held.request, held.node_counts, fixed=True)

    @contextmanager
    def without(self, uid: str) -> Iterator[GangRequest]:
        """For the time of a ``with`` block, nothing is reserved for a lease. The value: its request."""
        held = self._valid[uid]
        with self.state.without_reservation(held.request, held.node_counts):
            yield held.request

    def give_up(self, uid: str) -> None:
        """Return the leased capacity and quota."""
        held = self._valid.pop(uid)
        release(self.state, held.request, held.node_counts)

    def reason(self, uid: str) -> Reason:
        return waits_for_victims(self._valid[uid].lease.victims)


def valid_leases(problem: Problem, state: CycleState, in_order: Iterable[Pending]) -> Leases:
    """Reserve what every lease holds that would fit once everything that leaves has left, in queue order."""
    leases = Leases(state)
    leased = [pending for pending in in_order if pending.lease is not None]
    for pending in sorted([*leased, *_migrating(problem)], key=lambda p: place(p.workload)):
        lease = pending.lease
        now = problem.snapshot.now
        if lease is None or lease.expires_at <= now:
            continue
        # A gang whose pods are to be created again keeps its place.
        asking = replace(pending, blocked=None) if pending.returns(now) else pending
        if inadmissible(problem.snapshot, asking) is not None:
            continue
        held = _read(problem, pending, lease)
        if (
            held is not None
            and fits(state.later.free, held.request.pods, held.node_counts)
            and state.quota.allows(held.request, state.later.quota)
        ):
            uid = pending.workload.uid
            # A gang that migrates also leaves its own place before it can start.
            victims = (*lease.victims, uid)
            reserve(state, held.request, held.node_counts, victims, lease.expires_at)
            leases._valid[uid] = held
    return leases


def _claimable(state: CycleState, request: GangRequest, node_counts: NodeCounts) -> bool:
    """Whether a gang with a reservation can start now, alongside the use and the parts kept for other reservations."""
    uid = request.pending.workload.uid
    if not (
        fits(state.now.free, request.pods, node_counts)
        and state.quota.allows(request, state.now.quota)
    ):
        return False
    others = [known for name, known in state.reservations.items() if name != uid]
    if not others:
        return True
    room = RoomAfter(state, request, node_counts)
    own = state.reservations.get(uid)
    free = room.open + (own.kept_now if own is not None else 0)
    return _covers(free, room.need) and state.quota.allows(request, state.quota.open_beside(others))


def _others(
    state: CycleState, request: GangRequest, node_counts: NodeCounts, named: tuple[str, ...]
) -> Iterator[Admitted]:
    """Gangs that leave and hold something of what a reservation needs."""
    usage, nodes = state.problem.usage, nodes_of(node_counts)
    rows = {row for row, amount in request.charges.items() if amount and request.queue is not None}
    taken = {g.workload.uid for known in state.reservations.values() for g in known.victims}
    for uid in sorted(state.leaving.keys() - named, key=lambda uid: (uid in taken, uid)):
        gang = state.leaving[uid]
        charged = any(row[1:] in rows for row, _ in usage.charges(gang))
        if charged or np.isin(usage.slots(gang)[0], nodes).any():
            yield gang


@dataclass(slots=True)
class RoomAfter:
    """Whether a gang can start on its nodes once some gangs have left.

    Attributes:
        nodes: of its placement. Shape (K,).
        need: what it asks there. Shape (R, K).
        open: free there now, and kept for no reservation. Shape (R, K).
    """

    state: CycleState
    request: GangRequest
    node_counts: NodeCounts
    nodes: Ints = field(init=False)
    need: Ints = field(init=False)
    open: Ints = field(init=False)
    _held: dict[str, tuple[Ints, Ints]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = nodes_of(self.node_counts)
        self.need = np.zeros((len(self.state.problem.resources), len(self.nodes)), dtype=np.int64)
        for at, used in use_of_counts(self.request.pods, self.node_counts):
            add_at(self.need, np.searchsorted(self.nodes, at), used)
        self.open = self.state.open_now(self.nodes)

    def enough(self, victims: Sequence[Admitted]) -> bool:
        """Whether it can start then, alongside all that is used now and kept for others.

        For quota this is the rule of :meth:`QuotaUse.keep`: alongside the kept quota, and alongside the use alone.
        """
        if not _covers(self.open + self.held(victims), self.need):
            return False
        quota = self.state.quota
        views: tuple[QuotaUse, ...] = (quota.open, self.state.now.quota)
        with quota.without(victims, *views):
            return all(quota.allows(self.request, use) for use in views)

    def reservation(self, victims: Sequence[Admitted]) -> Reservation:
        """A reservation, and the part that is kept for it now while these victims still hold what they hold."""
        kept_now = np.maximum(self.need - self.held(victims), 0)
        return Reservation(self.request, self.node_counts, tuple(victims), self.nodes, kept_now)

    def held(self, victims: Iterable[Admitted]) -> Ints:
        """The use of the nodes by these gangs. Shape (R, K)."""
        held = np.zeros_like(self.need)
        for gang in victims:
            places, used = self._held_by(gang)
            if places.size:
                add_at(held, places, used)
        return held

    def _held_by(self, gang: Admitted) -> tuple[Ints, Ints]:
        """The places among the nodes where a gang holds something, and how much."""
        uid = gang.workload.uid
        if uid not in self._held:
            at, used = self.state.problem.use_of(gang)
            inside = np.isin(at, self.nodes)
            self._held[uid] = np.searchsorted(self.nodes, at[inside]), used[:, inside]
        return self._held[uid]


def _covers(free: Ints, need: Ints) -> bool:
    return bool(np.all((need <= free) | (need == 0)))


def _migrating(problem: Problem) -> Iterator[Pending]:
    """Gangs that leave only to start again elsewhere, as they will queue."""
    for gang in problem.usage.leaving:
        if gang.lease is not None:
            yield Pending(gang.workload, gang.lease, excluded=gang.excluded)


def _read(problem: Problem, pending: Pending, lease: CapacityLease) -> _ValidLease | None:
    """A lease as a request confined to its own nodes; None when a node is lost or no longer allowed."""
    pending = as_placed(pending, lease.placement)
    if any(not _whole(podset, lease.placement) for podset in pending.workload.podsets):
        return None  # the gang has changed since the lease was given
    config, queue = problem.snapshot.config, problem.snapshot.queue_of(pending.workload)
    workload, placement, cut = in_parts(pending.workload, lease.placement, config)
    flavors = flavors_of(workload, placement)
    split_refused = cut is not None and queue is not None and not queue.split_flavors
    if split_refused or not admits(problem, workload, queue, flavors):
        return None  # the configuration has changed since then
    position = problem.index.position
    within = {
        number: problem.mask_of([position[name] for name, _ in p.nodes if name in position])
        for number, podset in enumerate(workload.podsets)
        if (p := placement.of(podset.name)) is not None and p.nodes
    }
    pending = replace(pending, workload=workload)
    request = replace(request_of(problem, pending, queue, flavors, within=within), cut=cut)
    if lease.placement.awaits_nodes:
        return _ValidLease(lease, quota_only(request), ())
    node_counts = node_counts_of(problem, request, placement)
    return None if node_counts is None else _ValidLease(lease, request, node_counts)


def _whole(podset: PodSet, placement: Placement) -> bool:
    """Whether the placement has the podset, and if it is split, all its pods."""
    placed = placement.of(podset.name)
    shares = placed.shares if placed is not None else ()
    return placed is not None and sum(s.pods for s in shares) in (0, podset.count)
