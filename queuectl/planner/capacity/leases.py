"""CapacityLeases of the snapshot: which still stand, and which can be claimed now.

A lease stands while its placement would fit once everything leaving has left. Then its capacity and quota are kept from
all others, and what it is owed of what is free already (:mod:`queuectl.planner.capacity.credit`); else it is dropped and its gang
planned anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import CapacityLease, Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner.capacity import credit
from queuectl.planner.capacity.node_counts import NodeCounts, TentativeAdmission, fits
from queuectl.planner.capacity.placing import node_counts_of
from queuectl.planner.capacity.state import State
from queuectl.planner.order.order import QueueOrder, barred, place
from queuectl.planner.problem.partial import as_placed
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.requests import request_of
from queuectl.planner.problem.topology import Mask


@dataclass(frozen=True, slots=True)
class _Standing:
    lease: CapacityLease
    request: GangRequest
    node_counts: NodeCounts


@dataclass(slots=True)
class Leases:
    """The standing leases; each is taken off the ledger until claimed or given up."""

    state: State
    _standing: dict[str, _Standing] = field(default_factory=dict)

    def holds(self, uid: str) -> bool:
        return uid in self._standing

    def workload(self, uid: str) -> Workload:
        """The gang with as many pods as its lease is for."""
        return self._standing[uid].request.pending.workload

    def held(self) -> Iterator[tuple[str, GangRequest, NodeCounts]]:
        """Every lease that stands: whose, and what it holds."""
        for uid, standing in self._standing.items():
            yield uid, standing.request, standing.node_counts

    def behind(self, pending: Pending, queue: ClusterQueue, order: QueueOrder) -> list[GangRequest]:
        """Of gangs that wait in its queue at later places; of those on the move the place is kept."""
        here = order.within(pending.workload, queue)
        later = []
        for uid, request, _ in self.held():
            waits = uid not in self.state.leaving and request.queue == queue.name
            if waits and order.within(request.pending.workload, queue) > here:
                later.append(request)
        return later

    @property
    def returning(self) -> tuple[str, ...]:
        """Gangs on the move whose new place is kept."""
        moving = on_the_move(self.state.problem)
        return tuple(p.workload.uid for p in moving if self.holds(p.workload.uid))

    def claim(self, uid: str) -> TentativeAdmission | None:
        """The gang on its leased placement if all of it is free now, in capacity and quota; else None.

        What other leases are owed is not free for it.
        """
        standing = self._standing[uid]
        request, node_counts = standing.request, standing.node_counts
        if not credit.claimable(self.state, request, node_counts):
            return None
        self.give_up(uid)
        return TentativeAdmission(request, node_counts, fixed=True)

    def give_up(self, uid: str) -> None:
        """Return the leased capacity and quota."""
        standing = self._standing.pop(uid)
        credit.release(self.state, standing.request, standing.node_counts)

    def reason(self, uid: str) -> Reason:
        return waits_for_victims(self._standing[uid].lease.victims)


def standing_leases(problem: Problem, state: State, in_order: Iterable[Pending]) -> Leases:
    """Take every lease that still stands off the ledger, in queue order."""
    leases = Leases(state)
    leased = [pending for pending in in_order if pending.lease is not None]
    for pending in sorted([*leased, *on_the_move(problem)], key=lambda p: place(p.workload)):
        lease = pending.lease
        if lease is None or lease.expires_at <= problem.snapshot.now:
            continue
        if barred(problem.snapshot, pending) is not None:
            continue
        standing = _read(problem, pending, lease)
        if (
            standing is not None
            and fits(state.later, standing.request.pods, standing.node_counts)
            and state.quota_allows(standing.request, state.quota_after)
        ):
            uid = pending.workload.uid
            # One that is moved leaves its own place, too, before it can start.
            credit.lease(state, standing.request, standing.node_counts, (*lease.victims, uid))
            leases._standing[uid] = standing
    return leases


def waits_for_victims(victims: Sequence[str]) -> Reason:
    """Its capacity is leased; those who hold it are leaving."""
    whom = f"{len(victims)} workload{'s' if len(victims) != 1 else ''}"
    text = f"waits for {whom} to leave; their capacity is leased to it"
    if not victims:
        text = "waits for workloads that are leaving already; their capacity is leased to it"
    return Reason(Code.WAITING_FOR_PREEMPTED, text, {"victims": sorted(victims)})


def lease_end(snapshot: Snapshot) -> float:
    """When a lease given now ends: its time starts once the notice is over that its victims may be given."""
    return snapshot.now + snapshot.config.rules.eviction_grace + snapshot.limits.lease_seconds


def on_the_move(problem: Problem) -> Iterator[Pending]:
    """Gangs that leave only to start again elsewhere, as they will queue."""
    for gang in problem.usage.leaving:
        if gang.lease is not None:
            yield Pending(gang.workload, gang.lease)


def _read(problem: Problem, pending: Pending, lease: CapacityLease) -> _Standing | None:
    """A lease as demand and spots, confined to its own nodes; None when a node is lost or no longer allowed."""
    pending = as_placed(pending, lease.placement)
    workload = pending.workload
    placed = [lease.placement.of(podset.name) for podset in workload.podsets]
    if any(p is None for p in placed):
        return None
    flavors = tuple(dict(p.flavors) for p in placed if p is not None)
    within = {
        number: _mask(problem, [name for name, _ in p.nodes])
        for number, p in enumerate(placed)
        if p is not None and p.nodes
    }
    queue = problem.snapshot.config.cluster_queue_of(workload.namespace, workload.queue)
    if not _known(problem, workload, flavors):
        return None
    request = request_of(problem, pending, queue, flavors, within=within)
    node_counts = node_counts_of(problem, request, lease.placement)
    return None if node_counts is None else _Standing(lease, request, node_counts)


def _known(problem: Problem, workload: Workload, flavors: tuple[dict[str, str], ...]) -> bool:
    """Whether the flavors still exist; configuration may have changed since the lease was given."""
    known = problem.snapshot.config.flavors
    return len(flavors) == len(workload.podsets) and all(
        name in known for row in flavors for name in row.values()
    )


def _mask(problem: Problem, names: list[str]) -> Mask:
    mask = np.zeros(problem.size, dtype=np.bool_)
    mask[[problem.index.position[n] for n in names if n in problem.index.position]] = True
    return mask
