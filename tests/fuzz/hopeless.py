"""Gangs that can never start, added to a snapshot: they change no decision about any other gang.

Each of them asks for more of a resource than all quotas and all nodes have, so that it takes no code of the planner to know this.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from queuectl.domain.plan import Plan
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.workload import PodSet

_AMOUNT: Final = 10**6
_PREFIX: Final = "hopeless"


def with_hopeless(rng: random.Random, snapshot: Snapshot) -> Snapshot:
    """The snapshot with one to three of them, in any queue and at any place of the queue order; unchanged if no gang is pending."""
    like = [entry for entry in snapshot.pending if entry.workload.growth is None]
    more = [
        _hopeless(rng, f"{_PREFIX}-{i}", rng.choice(like)) for i in range(rng.randint(1, 3)) if like
    ]
    pending = [*snapshot.pending, *more]
    rng.shuffle(pending)
    return replace(snapshot, pending=tuple(pending))


def _hopeless(rng: random.Random, uid: str, like: Pending) -> Pending:
    podsets = tuple(_enlarged(podset) for podset in like.workload.podsets)
    at = like.workload.queued_at + rng.choice((-100.0, 0.0, 100.0))
    priority = rng.choice((-1, 0, 2, 5, 9))
    return Pending(
        replace(like.workload, uid=uid, name=uid, podsets=podsets, priority=priority, queued_at=at)
    )


def _enlarged(podset: PodSet) -> PodSet:
    requests = Resources({**podset.shape.requests, GPU: _AMOUNT})
    return replace(podset, shape=replace(podset.shape, requests=requests))


def changes(before: Plan, after: Plan) -> Iterator[str]:
    """How the decisions about the other gangs differ."""
    old, new = _decisions(before), _decisions(after)
    for what, decided in old.items():
        if decided != new[what]:
            yield f"with gangs that never start, {what} {decided} become {new[what]}"


def _decisions(plan: Plan) -> dict[str, object]:
    others = [refusal for refusal in plan.pending if not refusal.uid.startswith(_PREFIX)]
    return {
        "starts": {admission.uid: admission.placement for admission in plan.admitted},
        "victims": sorted((gone.victim, gone.preemptor) for gone in plan.preempted),
        "evictions": sorted(gone.uid for gone in plan.evicted),
        "moves": sorted(moved.uid for moved in plan.moved),
        "leases": {refusal.uid: refusal.lease for refusal in others},
        "planned starts": {
            planned.uid: planned.start for planned in plan.planned if planned.is_current
        },
    }
