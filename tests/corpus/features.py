"""Features of a snapshot and of its plan, which show the coverage of the corpus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from queuectl.domain.plan import Plan, Proof
from queuectl.domain.queues import (
    Defragment,
    Fungibility,
    OptOut,
    Protection,
    QueueingStrategy,
    ReclaimMode,
)
from queuectl.domain.snapshot import Snapshot, SolverLimits
from queuectl.domain.workload import PodSet

SHORT_SEARCH: Final = "short search"
"""The limit of the solver ends most searches: any other model may find more or less."""


def features_of(snapshot: Snapshot, plan: Plan) -> tuple[str, ...]:
    """In alphabetical order."""
    parts = (_of_queues, _of_gangs, _of_running, _of_scene)
    found = {name for part in parts for name, holds in part(snapshot) if holds}
    found |= {name for name, holds in _of_plan(plan) if holds}
    found |= {f"code {r.code.value}" for refusal in plan.pending for r in refusal.reasons}
    found |= {f"proof {proof.value}" for proof in _proofs(plan)}
    found |= {f"eviction {p.reason}" for p in plan.preempted}
    return tuple(sorted(found))


def _proofs(plan: Plan) -> Iterator[Proof]:
    yield from (admission.proof for admission in plan.admitted)
    yield from (refusal.proof for refusal in plan.pending)


def _of_queues(snapshot: Snapshot) -> Iterator[tuple[str, bool]]:
    config, queues = snapshot.config, tuple(snapshot.config.cluster_queues.values())
    yield "cohorts", any(q.cohort is not None for q in queues)
    yield "cohort trees", any(c.parent is not None for c in config.cohorts.values())
    yield "fair sharing", bool(config.rules.fair_sharing)
    yield "past use", config.rules.usage_fairness is not None and snapshot.past_use.users != {}
    yield "StrictFIFO", any(q.strategy is QueueingStrategy.STRICT_FIFO for q in queues)
    yield "flavors", any(len(g.flavors) > 1 for q in queues for g in q.groups)
    yield "fungibility", any(q.fungibility != Fungibility() for q in queues)
    yield "split flavors", any(q.split_flavors for q in queues)
    yield "maxPerUser", any(q.max_per_user for q in queues)
    yield "preempts to borrow", any(q.preempts_to_borrow for q in queues)
    yield "evicts within nominal", any(q.evicts_within_nominal for q in queues)
    yield "protection", any(q.protection != Protection() for q in queues)
    yield "opt-out", any(q.preemption_opt_out is not OptOut.WITHIN_NOMINAL for q in queues)
    yield "defragmentation", any(q.defragment is not Defragment.OFF for q in queues)
    waits = any(q.reclaim_patience > 0 for q in queues)
    yield "reclaim wait", waits and any(p.reclaim_since != 0.0 for p in snapshot.pending)
    idle = any(a.idle_since is not None for a in snapshot.admitted)
    modes = {q.idle_reclaim.mode for q in queues}
    yield "idle reclaim", idle and bool(modes - {ReclaimMode.OFF, ReclaimMode.DRY_RUN})
    yield "idle reclaim, dry run", idle and ReclaimMode.DRY_RUN in modes
    levels = max((len(t.levels) for t in config.topologies.values()), default=0)
    yield f"topology of {levels} levels", levels > 0


def _of_gangs(snapshot: Snapshot) -> Iterator[tuple[str, bool]]:
    podsets: list[PodSet] = [s for p in snapshot.pending for s in p.workload.podsets]
    requests = [p.topology for p in podsets if p.topology is not None]
    for mode in sorted({request.mode for request in requests}):
        yield f"topology {mode.value}", True
    yield "slices", any(r.slices for r in requests)
    yield "slices of several layers", any(len(r.slices) > 1 for r in requests)
    yield "balanced", any(r.balanced for r in requests)
    yield "groups", any(p.group is not None for p in podsets)
    yield "several podsets", any(len(p.workload.podsets) > 1 for p in snapshot.pending)
    yield "partial admission", any(p.min_count is not None for p in podsets)
    yield "many pending", len(snapshot.pending) >= 50
    yield "standing leases", any(p.lease is not None for p in snapshot.pending)
    yield "borrow back-off", any(p.borrows_at is not None for p in snapshot.pending)
    yield "excluded nodes", any(p.excluded for p in snapshot.pending)
    yield "budget", any(p.budget for p in snapshot.pending)
    yield "blocked", any(p.blocked is not None for p in snapshot.pending)


def _of_running(snapshot: Snapshot) -> Iterator[tuple[str, bool]]:
    running = snapshot.admitted
    yield "leaving gangs", any(a.leaving for a in running)
    yield "lost pods", any(a.lost for a in running)
    yield "moved gangs", any(a.lease is not None for a in running)
    yield "earlier evictions", any(a.evictions for a in running)
    yield "not preemptible", any(not a.workload.preemptible for a in running)
    yield "running splits", any(p.shares for a in running for p in a.placement.podsets)


def _of_scene(snapshot: Snapshot) -> Iterator[tuple[str, bool]]:
    nodes = len(snapshot.fleet.nodes)
    yield "quota only", nodes == 0
    yield "500 nodes and more", nodes >= 500
    yield "5,000 nodes and more", nodes >= 5000
    yield "unmanaged pods", bool(snapshot.other_pods)
    yield "ResourceQuota", bool(snapshot.allowances)
    yield "make room", snapshot.make_room is not None
    yield SHORT_SEARCH, snapshot.limits.deterministic_time < SolverLimits().deterministic_time / 10


def _of_plan(plan: Plan) -> Iterator[tuple[str, bool]]:
    yield "starts", any(not a.repaired for a in plan.admitted)
    yield "repairs", any(a.repaired for a in plan.admitted)
    yield "preemption", bool(plan.preempted)
    yield "moves", bool(plan.moved)
    yield "returning", bool(plan.returning)
    yield "evicted", bool(plan.evicted)
    yield "leases", any(r.lease is not None for r in plan.pending)
    yield "uneven", bool(plan.uneven)
    yield "spared", bool(plan.spared)
    smaller = (p.pods for a in plan.admitted for p in a.placement.podsets)
    yield "starts smaller", any(pods is not None for pods in smaller)
    yield "splits", any(p.shares for a in plan.admitted for p in a.placement.podsets)
