"""Several blocked gangs in one cycle: each gets the least victims given those before it, and nothing is counted twice."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from queuectl.domain.plan import Plan, Proof
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.workload import Placement, Workload
from queuectl.planner import plan
from queuectl.planner.preempt.cost import costs, sizes_of
from queuectl.planner.verify import verify
from tests.planner import generate
from tests.planner.build import gang, podset
from tests.planner.oracle import layers, least_victims, legal_victims, queue_order
from tests.support.examples import examples


def jammed(seed: int) -> Snapshot:
    """A crowded cluster, one flavor, and three gangs that each need victims."""
    rng = random.Random(seed)
    snapshot = generate.crowded(seed, mixed=seed % 2 == 0)
    more = [
        gang(
            f"w{i}",
            podset("w", rng.randint(1, 2), gpu=rng.choice((2, 4, 4, 8)), cpu=rng.choice((0, 1, 4))),
            priority=rng.randint(1, 5),
            queued_at=float(i),
        )
        for i in (1, 2)
    ]
    return replace(snapshot, pending=(*snapshot.pending, *map(Pending, more)))


@pytest.mark.seeds
@pytest.mark.parametrize("block", range(examples(8)))
def test_each_gang_in_order_gets_the_least_victims_given_those_before(block: int) -> None:
    evicting = 0
    for seed in range(40 * block, 40 * (block + 1)):
        snapshot = jammed(seed)
        made = plan(snapshot)
        assert verify(snapshot, made) == ()
        assert made.proof is Proof.OPTIMAL
        if (
            not made.admitted
        ):  # gangs that start can be placed again for later ones: another question
            in_turn(snapshot, made)
            evicting += len({p.preemptor for p in made.preempted}) > 1
    assert evicting, "some of these plans evict for more than one gang"


def in_turn(snapshot: Snapshot, made: Plan) -> None:
    """Walk the gangs in queue order alongside brute force with the leases and the leaving gangs so far."""
    refused = {r.uid: r for r in made.pending}
    order = snapshot.config.cluster_queues["main"].victim_order
    promised: list[tuple[Workload, Placement]] = []
    for entry in sorted(snapshot.pending, key=queue_order):
        uid = entry.workload.uid
        priced = costs(legal_victims(snapshot, entry.workload), snapshot.now, sizes_of(snapshot))
        best = least_victims(snapshot, entry, priced, promised)
        taken = [p for p in made.preempted if p.preemptor == uid]
        lease = refused[uid].lease
        assert (lease is None) == (best is None)
        if lease is not None and best is not None:
            assert layers(order, [p.cost for p in taken]) == best[0]
            promised.append((entry.workload, lease.placement))
        snapshot = without(snapshot, {p.victim for p in taken})


def without(snapshot: Snapshot, victims: set[str]) -> Snapshot:
    """The same, with some gangs evicted."""
    admitted = [
        replace(a, leaving=a.leaving or a.workload.uid in victims) for a in snapshot.admitted
    ]
    return replace(snapshot, admitted=tuple(admitted))
