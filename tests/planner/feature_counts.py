"""How often each feature, and each pair of features, occurred in generated snapshots and their plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from queuectl.domain.plan import Plan
from queuectl.domain.queues import OptOut, QueueingStrategy, ReclaimWithinCohort, WithinClusterQueue
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import PodSet

CONFIGURED: Final = frozenset(
    (
        *("cohort", "deep cohort", "lending", "borrowing", "fair sharing", "usage fairness"),
        *("Backfill", "Backfill cohort", "StrictFIFO", "checks", "provisioning", "split"),
        *("two flavors", "quota only", "level removed", "protection", "time slice", "defragment"),
        *("max per user", "within nominal", "reclaim", "preempts to borrow", "preemption"),
    )
)
HELD: Final = frozenset(
    (
        *("balanced", "slices", "group", "partial", "elastic", "idle", "leaving", "lost node"),
        *("opt out", "blocked", "durations", "lease", "planned start"),
        *("other pods", "budget", "whole run", "reservation", "reserved nodes", "resource quota"),
        *("shared claim", "excluded nodes"),
    )
)
FEATURES: Final = CONFIGURED | HELD
"""Of snapshots."""
OUTCOMES: Final = frozenset(
    (
        *("starts", "repaired", "repair waits", "preempted", "preempted in a cohort", "moved"),
        *("evicted", "leased", "awaits checks", "awaits nodes", "is planned", "uneven"),
        *("reserved in advance", "spared"),
    )
)
"""Of plans."""


def features_of(snapshot: Snapshot) -> frozenset[str]:
    """The features that a snapshot has."""
    return frozenset((*_configured(snapshot), *_held(snapshot)))


def _configured(snapshot: Snapshot) -> Iterator[str]:
    config = snapshot.config
    queues = list(config.cluster_queues.values())
    flavors = config.flavors.values()
    quotas = [q for queue in queues for group in queue.groups for q in group.flavors]
    topologies = config.topologies.values()
    per_feature = {
        "cohort": any(q.cohort for q in queues),
        "deep cohort": any(c.parent for c in config.cohorts.values()),
        "lending": any(q.lending for q in quotas),
        "borrowing": any(q.borrowing for q in quotas),
        "fair sharing": bool(config.rules.fair_sharing),
        "usage fairness": any(q.usage_fairness for q in queues),
        "Backfill": any(q.strategy is QueueingStrategy.BACKFILL for q in queues),
        "Backfill cohort": any(c.backfill for c in config.cohorts.values()),
        "StrictFIFO": any(q.strategy is QueueingStrategy.STRICT_FIFO for q in queues),
        "checks": any(not r.provisions for q in queues for r in q.admission_checks),
        "provisioning": any(r.provisions for q in queues for r in q.admission_checks),
        "split": any(q.split_flavors for q in queues),
        "two flavors": sum(f.topology is not None for f in flavors) > 1,
        "quota only": any(f.topology is None for f in flavors),
        "level removed": all("rack" not in t.levels for t in topologies),
        "protection": any(q.protection.min_runtime or q.protection.cooldown for q in queues),
        "time slice": any(q.time_slice is not None for q in queues),
        "defragment": any(q.defragment == "Execute" for q in queues),
        "max per user": any(q.max_per_user for q in queues),
        "within nominal": any(q.evicts_within_nominal for q in queues),
        "reclaim": any(q.reclaim_within_cohort != ReclaimWithinCohort.NEVER for q in queues),
        "preempts to borrow": any(q.preempts_to_borrow for q in queues),
        "preemption": any(q.within_cluster_queue != WithinClusterQueue.NEVER for q in queues),
    }
    assert per_feature.keys() == CONFIGURED
    return (name for name, on in per_feature.items() if on)


def _held(snapshot: Snapshot) -> Iterator[str]:
    gangs: list[Admitted | Pending] = [*snapshot.admitted, *snapshot.pending]
    podsets: list[PodSet] = [p for gang in gangs for p in gang.workload.podsets]
    running, pending = snapshot.admitted, snapshot.pending
    per_feature = {
        "balanced": any(p.topology is not None and p.topology.balanced for p in podsets),
        "slices": any(p.topology is not None and p.topology.slices for p in podsets),
        "group": any(p.group for p in podsets),
        "partial": any(p.min_count is not None for p in podsets),
        "elastic": any(gang.workload.growth is not None for gang in gangs),
        "idle": any(gang.idle_since is not None for gang in running),
        "leaving": any(gang.leaving for gang in running),
        "lost node": any(gang.lost for gang in running),
        "opt out": any(not gang.workload.preemptible for gang in gangs)
        and any(
            q.preemption_opt_out is not OptOut.NEVER
            for q in snapshot.config.cluster_queues.values()
        ),
        "blocked": any(entry.blocked for entry in pending),
        "durations": any(gang.workload.duration for gang in gangs),
        "lease": any(entry.lease for entry in pending),
        "planned start": any(entry.planned_start for entry in pending),
        "other pods": bool(snapshot.other_pods),
        "budget": bool(snapshot.budgets),
        "whole run": any(b.budget.whole_run for b in snapshot.budgets),
        "reservation": any(o.reservation.capacity for o in snapshot.reservations),
        "reserved nodes": any(o.reservation.nodes for o in snapshot.reservations),
        "resource quota": bool(snapshot.allowances),
        "shared claim": any(gang.workload.claims for gang in gangs),
        "excluded nodes": any(entry.excluded for entry in pending),
    }
    assert per_feature.keys() == HELD
    return (name for name, on in per_feature.items() if on)


def outcomes_of(snapshot: Snapshot, plan: Plan) -> frozenset[str]:
    """The kinds of decisions in a plan."""
    running = {gang.workload.uid for gang in snapshot.admitted}
    leases = [r for r in plan.pending if r.lease is not None]
    per_outcome = {
        "starts": any(not a.repaired for a in plan.admitted),
        "repaired": any(a.repaired for a in plan.admitted),
        "repair waits": any(r.uid in running for r in leases),
        "preempted": bool(plan.preempted),
        "preempted in a cohort": any("Cohort" in p.reason for p in plan.preempted),
        "moved": bool(plan.moved),
        "evicted": bool(plan.evicted),
        "leased": any(not r.checks and r.uid not in running for r in leases),
        "awaits checks": any(r.checks and r.lease.placement.on_nodes for r in leases if r.lease),
        "awaits nodes": any(r.lease.placement.awaits_nodes for r in leases if r.lease),
        "is planned": any(p.is_current for p in plan.planned),
        "uneven": bool(plan.uneven),
        "reserved in advance": any(state.nodes for state in plan.reserved),
        "spared": bool(plan.spared),
    }
    assert per_outcome.keys() == OUTCOMES
    return frozenset(name for name, on in per_outcome.items() if on)


@dataclass
class FeatureCounts:
    """Counts of what occurred in some cycles, singly and in pairs."""

    cycles: int = 0
    single: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)

    def note(self, failure: Iterable[str]) -> None:
        """One cycle."""
        names = sorted(failure)
        self.cycles += 1
        self.single.update(names)
        self.pairs.update(combinations(names, 2))

    def missing(self, names: Iterable[str]) -> list[str]:
        """Of some names, those that never occurred, and the pairs that never occurred together."""
        known = sorted(names)
        never = [name for name in known if not self.single[name]]
        return never + [f"{a} and {b}" for a, b in combinations(known, 2) if not self.pairs[a, b]]

    def table(self) -> str:
        """Each name with its count, the names with which it occurred least, and how often that was."""
        rows = []
        names = sorted(self.single)
        for name in names:
            beside = {n: self.pairs[min(n, name), max(n, name)] for n in names if n != name}
            least = min(beside.values(), default=0)
            rare = ", ".join(n for n, count in beside.items() if count == least)
            rows.append(f"{name:24} {self.single[name]:6}   least: {least} with {rare}")
        return "\n".join(rows)
