"""Events in a generated snapshot before it is planned: nodes fail, a cycle passes, gangs are migrated.

Each returns the snapshot itself if it cannot happen there.
"""

from __future__ import annotations

import random
from dataclasses import replace

from queuectl.domain.fleet import Fleet
from queuectl.domain.queues import Defragment
from queuectl.domain.snapshot import Admitted, CapacityLease, Pending, Snapshot
from queuectl.planner import plan
from tests.planner.test_plan_properties import after


def broken_nodes(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """A node or two fail under what runs there."""
    used = sorted({n for a in snapshot.admitted for p in a.placement.podsets for n, _ in p.nodes})
    if not used:
        return snapshot
    out = set(rng.sample(used, min(len(used), rng.choice((1, 1, 2)))))

    def lose(gang: Admitted) -> Admitted:
        lost = tuple(
            (p.podset, name, count)
            for p in gang.placement.podsets
            for name, count in p.nodes
            if name in out
        )
        return gang if gang.leaving else replace(gang, lost=lost)

    nodes = tuple(replace(n, ready=n.ready and n.name not in out) for n in snapshot.fleet.nodes)
    return replace(snapshot, fleet=Fleet(nodes), admitted=tuple(map(lose, snapshot.admitted)))


def one_cycle_later(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """Time passes: started gangs run, victims are evicted, and leases hold their capacity."""
    made = plan(snapshot)
    moved = {move.uid for move in made.moved} | set(made.returning)
    if moved:
        return snapshot
    later = after(snapshot, made)
    return replace(later, now=later.now + rng.choice((0.0, 1.0, 30.0)))


def moving(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """Gangs are moved so that another fits: they leave, or have left and queue for the place that is held for them."""
    queues = {
        name: replace(queue, defragment=Defragment.EXECUTE, defragment_budget=1 << 40)
        for name, queue in snapshot.config.cluster_queues.items()
    }
    willing = replace(snapshot, config=replace(snapshot.config, cluster_queues=queues))
    made = plan(willing)
    if not made.moved:
        return snapshot
    until = willing.now + 600.0
    leases = {m.uid: CapacityLease(m.placement, (), willing.now, until) for m in made.moved}
    gone = {uid for uid in sorted(leases) if rng.random() < 0.4}

    def leaves(gang: Admitted) -> Admitted:
        lease = leases.get(gang.workload.uid)
        return gang if lease is None else replace(gang, leaving=True, returns=True, lease=lease)

    later = after(willing, made)
    back = (Pending(a.workload, leases[a.workload.uid]) for a in later.admitted if a.workload.uid in gone)  # fmt: skip
    return replace(
        later,
        now=later.now + 5.0,
        pending=(*later.pending, *back),
        admitted=tuple(leaves(a) for a in later.admitted if a.workload.uid not in gone),
    )
