"""Who holds what when a gang's turn comes: what runs, what is leased, and what this cycle gave to those before it.

Each part can be left out of the books by itself. Leaving a part out never makes less room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from queuectl.domain.diagnosis import Limit
from queuectl.domain.queues import QueueConfig
from queuectl.domain.snapshot import Admitted, Pending
from queuectl.planner.capacity.node_counts import NodeCounts, Reservation, add_at, use_of_counts
from queuectl.planner.capacity.state import Instant, State
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.topology import Ints
from queuectl.planner.quota.tree import QuotaRow, QuotaUse, use_of

HOLDERS: Final = frozenset({Limit.RUNNING, Limit.LEASE, Limit.ORDER})


@dataclass(frozen=True, eq=False, slots=True)
class Held:
    """What one kind of holder holds: nodes (R, N) in both views, and quota in both views; and what it is owed now besides."""

    now: Ints
    later: Ints
    quota_now: Counter[QuotaRow]
    quota_after: Counter[QuotaRow]
    owed: tuple[Reservation, ...] = ()

    def equals(self, other: Held) -> bool:
        quota = (self.quota_now, self.quota_after) == (other.quota_now, other.quota_after)
        quota &= self.owed == other.owed
        return quota and all(map(np.array_equal, (self.now, self.later), (other.now, other.later)))


def held_before(cycle: AdmissionCycle, pending: Pending) -> dict[Limit, Held]:
    """By kind of holder, what is held when the walk has come to this gang; its own lease, if any, is given back."""
    uid = pending.workload.uid
    running = _running(cycle)
    leases = _leased(cycle, (held for held in cycle.leases.held() if held[0] != uid))
    own = _leased(cycle, (held for held in cycle.leases.held() if held[0] == uid))
    order = _promised(cycle, [running, leases, own])
    return {Limit.RUNNING: running, Limit.LEASE: leases, Limit.ORDER: order}


def books_of(problem: Problem, config: QueueConfig, shown: Iterable[Held]) -> State:
    """Books in which only this is held, under a (perhaps changed) configuration."""
    now, later = problem.index.allocatable.copy(), problem.index.allocatable.copy()
    quota_now: Counter[QuotaRow] = Counter()
    quota_after: Counter[QuotaRow] = Counter()
    for held in shown:
        now -= held.now
        later -= held.later
        quota_now.update(held.quota_now)
        quota_after.update(held.quota_after)
    if config is not problem.snapshot.config:
        problem = replace(problem, snapshot=replace(problem.snapshot, config=config))
    pools = problem.pools
    return State(
        problem,
        Instant(now, use_of(pools, quota_now)),
        Instant(later, use_of(pools, quota_after)),
    )


def evicted(cycle: AdmissionCycle) -> list[Admitted]:
    """Running gangs that this walk takes down for those before."""
    gone = {v.victim for v in cycle.preempted} | {e.uid for e in cycle.evicted}
    if not gone:
        return []
    return [g for g in cycle.problem.snapshot.admitted if g.workload.uid in gone and not g.leaving]


def _running(cycle: AdmissionCycle) -> Held:
    """Gangs and strangers on nodes; victims of those before it count as leaving."""
    problem, usage = cycle.problem, cycle.problem.usage
    now, later = problem.index.allocatable - problem.now, problem.index.allocatable - problem.later
    quota_after = Counter(dict(usage.quota_staying))
    for gang in evicted(cycle):
        nodes, amounts = usage.slots(gang)
        add_at(later, nodes, -amounts)
        for quota, amount in usage.charges(gang):
            quota_after[quota] -= amount
    return Held(now, later, Counter(dict(usage.quota_held)), quota_after)


def _leased(cycle: AdmissionCycle, leases: Iterable[tuple[str, GangRequest, NodeCounts]]) -> Held:
    """What leases hold: all of it later, and now what they are owed."""
    zeros, leases = np.zeros_like(cycle.problem.now), list(leases)
    known = cycle.state.reservations
    owed = tuple(known[uid] for uid, _, _ in leases if uid in known)
    held = Held(zeros, zeros.copy(), Counter(), Counter(), owed)
    for _, request, node_counts in leases:
        for nodes, amounts in use_of_counts(request.pods, node_counts):
            add_at(held.later, nodes, amounts)
        held.quota_after.update(dict(request.rows()))
    return held


def _promised(cycle: AdmissionCycle, known: list[Held]) -> Held:
    """What this walk keeps for gangs before that do not start now: all the books hold beyond what is known and kept."""
    problem, books = cycle.problem, cycle.state
    now, later = (
        problem.index.allocatable - books.now.free,
        problem.index.allocatable - books.later.free,
    )
    quota_now, quota_after = _rows(books.now.quota), _rows(books.later.quota)
    for held in known:
        now, later = now - held.now, later - held.later
        quota_now.subtract(held.quota_now)
        quota_after.subtract(held.quota_after)
    for kept in books.kept:
        for nodes, amounts in use_of_counts(kept.request.pods, kept.node_counts):
            add_at(now, nodes, -amounts)
            add_at(later, nodes, -amounts)
        quota_now.subtract(dict(kept.request.rows()))
        quota_after.subtract(dict(kept.request.rows()))
    owed = tuple(
        p for p in books.reservations.values() if not any(p in held.owed for held in known)
    )
    return Held(now, later, +quota_now, +quota_after, owed)


def _rows(use: QuotaUse) -> Counter[QuotaRow]:
    """What each ClusterQueue itself uses."""
    rows: Counter[QuotaRow] = Counter()
    for name, pool in use.pools.items():
        for (flavor, resource), used in use.used.get(pool, {}).items():
            rows[name, flavor, resource] = used
    return rows
