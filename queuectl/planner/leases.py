"""CapacityLeases of the snapshot: which still stand, and which can be claimed now.

A lease stands while its placement would fit once everything leaving has left. Then its capacity and quota are kept from
all others, and what it is owed of what is free already (:mod:`queuectl.planner.owed`); else it is dropped and its gang
planned anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import Reason
from queuectl.domain.snapshot import CapacityLease, Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner import explain, owed
from queuectl.planner.arena import Arena
from queuectl.planner.asking import demand_of
from queuectl.planner.demand import Demand
from queuectl.planner.ledger import Ledger
from queuectl.planner.partial import as_placed
from queuectl.planner.placing import spots_of
from queuectl.planner.queueing.order import QueueOrder, barred, place
from queuectl.planner.spots import Kept, Spots, fits
from queuectl.planner.topology import Mask


@dataclass(frozen=True, slots=True)
class _Standing:
    lease: CapacityLease
    demand: Demand
    spots: Spots


@dataclass(slots=True)
class Leases:
    """The standing leases; each is taken off the ledger until claimed or given up."""

    ledger: Ledger
    _standing: dict[str, _Standing] = field(default_factory=dict)

    def holds(self, uid: str) -> bool:
        return uid in self._standing

    def workload(self, uid: str) -> Workload:
        """The gang with as many pods as its lease is for."""
        return self._standing[uid].demand.pending.workload

    def held(self) -> Iterator[tuple[str, Demand, Spots]]:
        """Every lease that stands: whose, and what it holds."""
        for uid, standing in self._standing.items():
            yield uid, standing.demand, standing.spots

    def behind(self, pending: Pending, queue: ClusterQueue, order: QueueOrder) -> list[Demand]:
        """Of gangs that wait in its queue at later places; of those on the move the place is kept."""
        here = order.within(pending.workload, queue)
        later = []
        for uid, demand, _ in self.held():
            waits = uid not in self.ledger.leaving and demand.queue == queue.name
            if waits and order.within(demand.pending.workload, queue) > here:
                later.append(demand)
        return later

    @property
    def returning(self) -> tuple[str, ...]:
        """Gangs on the move whose new place is kept."""
        moving = on_the_move(self.ledger.arena)
        return tuple(p.workload.uid for p in moving if self.holds(p.workload.uid))

    def claim(self, uid: str) -> Kept | None:
        """The gang on its leased placement if all of it is free now, in capacity and quota; else None.

        What other leases are owed is not free for it.
        """
        standing = self._standing[uid]
        demand, spots = standing.demand, standing.spots
        if not owed.claimable(self.ledger, demand, spots):
            return None
        self.give_up(uid)
        return Kept(demand, spots, fixed=True)

    def give_up(self, uid: str) -> None:
        """Return the leased capacity and quota."""
        standing = self._standing.pop(uid)
        owed.release(self.ledger, standing.demand, standing.spots)

    def reason(self, uid: str) -> Reason:
        return explain.waits_for_victims(self._standing[uid].lease.victims)


def standing_leases(arena: Arena, ledger: Ledger, in_order: Iterable[Pending]) -> Leases:
    """Take every lease that still stands off the ledger, in queue order."""
    leases = Leases(ledger)
    leased = [pending for pending in in_order if pending.lease is not None]
    for pending in sorted([*leased, *on_the_move(arena)], key=lambda p: place(p.workload)):
        lease = pending.lease
        if lease is None or lease.expires_at <= arena.snapshot.now:
            continue
        if barred(arena.snapshot, pending) is not None:
            continue
        standing = _read(arena, pending, lease)
        if (
            standing is not None
            and fits(ledger.later, standing.demand.pods, standing.spots)
            and ledger.quota_allows(standing.demand, ledger.quota_after)
        ):
            uid = pending.workload.uid
            # One that is moved leaves its own place, too, before it can start.
            owed.lease(ledger, standing.demand, standing.spots, (*lease.victims, uid))
            leases._standing[uid] = standing
    return leases


def lease_end(snapshot: Snapshot) -> float:
    """When a lease given now ends: its time starts once the notice is over that its victims may be given."""
    return snapshot.now + snapshot.config.rules.eviction_grace + snapshot.limits.lease_seconds


def on_the_move(arena: Arena) -> Iterator[Pending]:
    """Gangs that leave only to start again elsewhere, as they will queue."""
    for gang in arena.usage.leaving:
        if gang.lease is not None:
            yield Pending(gang.workload, gang.lease)


def _read(arena: Arena, pending: Pending, lease: CapacityLease) -> _Standing | None:
    """A lease as demand and spots, confined to its own nodes; None when a node is lost or no longer allowed."""
    pending = as_placed(pending, lease.placement)
    workload = pending.workload
    placed = [lease.placement.of(podset.name) for podset in workload.podsets]
    if any(p is None for p in placed):
        return None
    flavors = tuple(dict(p.flavors) for p in placed if p is not None)
    within = {
        number: _mask(arena, [name for name, _ in p.nodes])
        for number, p in enumerate(placed)
        if p is not None and p.nodes
    }
    queue = arena.snapshot.config.cluster_queue_of(workload.namespace, workload.queue)
    if not _known(arena, workload, flavors):
        return None
    demand = demand_of(arena, pending, queue, flavors, within=within)
    spots = spots_of(arena, demand, lease.placement)
    return None if spots is None else _Standing(lease, demand, spots)


def _known(arena: Arena, workload: Workload, flavors: tuple[dict[str, str], ...]) -> bool:
    """Whether the flavors still exist; configuration may have changed since the lease was given."""
    known = arena.snapshot.config.flavors
    return len(flavors) == len(workload.podsets) and all(
        name in known for row in flavors for name in row.values()
    )


def _mask(arena: Arena, names: list[str]) -> Mask:
    mask = np.zeros(arena.size, dtype=np.bool_)
    mask[[arena.index.position[n] for n in names if n in arena.index.position]] = True
    return mask
