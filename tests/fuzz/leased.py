"""Small clusters in which capacity is kept for gangs while others leave: leases that the plan claims, keeps or returns.

There is hardly a free GPU, quota is near what is used, and ClusterQueues reclaim from each other, so that the use of a gang with a lease
decides whose eviction is permitted. Some gangs that leave return to their queue, and some nodes are of another flavor, so that a gang can start
elsewhere than its lease is.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from queuectl.domain.fleet import Node
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import (
    ClusterQueue,
    Cohort,
    Fungibility,
    QueueingStrategy,
    ReclaimWithinCohort,
    ResourceFlavor,
    WhenCan,
    WithinClusterQueue,
)
from queuectl.domain.rules import FairStrategy, Rules
from queuectl.domain.snapshot import Admitted, CapacityLease, Pending, Snapshot
from queuectl.domain.workload import Workload
from tests.planner.build import NOW, gang, holding, node, podset, queue, with_gpus, world
from tests.planner.generate import FreeNodes

_QUEUES: Final = ("red", "blue", "green")
_FLAVORS: Final = ("one", "two")
_LABEL: Final = "flavor"
_SECONDS: Final = 60.0
"""From the start of a lease until its end."""


def leased(seed: int) -> Snapshot:
    """Two to six nodes, up to ten gangs that run or leave, leases of the places of those that leave, and up to four other pending gangs."""
    rng = random.Random(f"leased {seed}")
    names, flavors = _QUEUES[: rng.randint(2, 3)], _FLAVORS[: rng.randint(1, 2)]
    fleet = [
        node(
            f"n{i}",
            rng.choice(("b1/r1", "b1/r2")),
            labels={_LABEL: rng.choice(flavors)},
            gpu=rng.choice((4, 8)),
        )
        for i in range(rng.randint(2, 6))
    ]
    running = list(_running(rng, fleet, names))
    kept = [entry for one in running for entry in _kept(rng, one, names)]
    used = Counter[tuple[str | None, str]]()
    stays = [(one.workload, one.placement) for one in running if not one.leaving]
    leases = [(one.workload, one.lease.placement) for one in kept if one.lease is not None]
    for workload, placement in (*stays, *leases):
        used[workload.queue, placement.podsets[0].flavors[GPU]] += _gpus(workload)
    others = [Pending(_gang(rng, f"w{i}", names)) for i in range(rng.randint(1, 4))]
    pending = [*kept, *others]
    rng.shuffle(pending)
    queues = [_queue(rng, name, {each: used[name, each] for each in flavors}) for name in names]
    known = [ResourceFlavor(each, ((_LABEL, each),), topology="gpus") for each in flavors]
    made = world(fleet, pending, running, *queues, flavors=known)
    fair = rng.choice(((), (), tuple(FairStrategy)))
    config = replace(made.config, cohorts={"all": Cohort("all")}, rules=Rules(fair_sharing=fair))
    return replace(made, config=config)


def _gpus(workload: Workload) -> int:
    return sum(p.shape.requests.get(GPU, 0) * p.count for p in workload.podsets)


def _gang(rng: random.Random, uid: str, names: Sequence[str]) -> Workload:
    return gang(
        uid,
        podset(count=rng.choice((1, 1, 2)), gpu=rng.choice((1, 2, 4))),
        priority=rng.randint(0, 3),
        queued_at=float(rng.randint(0, 5)),
        queue=rng.choice(names),
        preemptible=rng.random() < 0.9,
    )


def _running(rng: random.Random, fleet: Sequence[Node], names: Sequence[str]) -> Iterator[Admitted]:
    room = FreeNodes(fleet)
    for i in range(rng.randint(3, 10)):
        workload = _gang(rng, f"r{i}", names)
        [asked] = workload.podsets
        before = dict(room.left)
        where = Counter[str]()
        flavor = rng.choice(fleet).labels[_LABEL]
        suitable = [one for one in fleet if one.labels[_LABEL] == flavor]
        for _ in range(asked.count):
            for one in rng.sample(suitable, len(suitable)):
                if room.take(one.name, asked.shape.requests):
                    where[one.name] += 1
                    break
        if where.total() < asked.count:
            room.left = before
            continue
        made = holding(workload, where, flavor=flavor, started_at=NOW - rng.choice((5, 500)))
        leaving = rng.random() < 0.35
        yield replace(made, leaving=leaving, returns=leaving and rng.random() < 0.5)


def _kept(rng: random.Random, gone: Admitted, names: Sequence[str]) -> Iterator[Pending]:
    """The gang that waits until another one has left its place."""
    if gone.leaving and rng.random() < 0.8:
        uid = f"after-{gone.workload.uid}"
        workload = replace(
            gone.workload,
            uid=uid,
            name=uid,
            queue=rng.choice(names),
            priority=rng.randint(0, 3),
            queued_at=float(rng.randint(0, 5)),
        )
        lease = CapacityLease(gone.placement, (gone.workload.uid,), NOW - 5.0, NOW - 5.0 + _SECONDS)
        yield Pending(workload, lease)


def _queue(rng: random.Random, name: str, used: Mapping[str, int]) -> ClusterQueue:
    """``used``: its GPUs of each flavor once the gangs that leave have left."""
    made = queue(
        name,
        within=rng.choice(tuple(WithinClusterQueue)),
        strategy=rng.choice((QueueingStrategy.BEST_EFFORT_FIFO, QueueingStrategy.STRICT_FIFO)),
        flavors=tuple(used),
    )
    near = {
        name: max(0, gpus + rng.choice((-4, -2, -1, 0, 2, 4, 8))) for name, gpus in used.items()
    }
    return replace(
        with_gpus(made, near),
        fungibility=Fungibility(when_can_preempt=rng.choice(tuple(WhenCan))),
        cohort="all",
        reclaim_within_cohort=rng.choice(tuple(ReclaimWithinCohort)),
        reclaim_patience=0.0,
        preempts_to_borrow=rng.random() < 0.2,
    )
