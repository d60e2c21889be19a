"""Refutations of the last plan that still hold: nothing that could change the answer has changed.

A refutation depends on the holdings of the gangs of its cohort tree and, if a place on nodes was searched for, on those of all
gangs. Most gangs that wait lack quota, and no legal eviction frees enough of it: then no place is searched for. A refutation
is kept from one plan to the next while the same gangs hold the same there, and this plan has started or reserved
nothing there yet; otherwise the gang is searched for again. Where a queue can preempt, a proof for one gang does not hold for
an equal one of another priority or age. Every reason is then word for word the one of a new search:
plans do not depend on the plans before them. That is also why a proof by the solver is not kept: its work
is part of the plan's statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import ref

from queuectl.domain.fleet import Fleet
from queuectl.domain.limits import Allowance
from queuectl.domain.quantity import Resources
from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.order.pending_gangs import ClassKey
from queuectl.planner.preempt.protections import next_change
from queuectl.planner.problem.request import shrinks
from queuectl.planner.quota import QuotaNode
from queuectl.planner.search.gang_classes import EvictionRank, Refutation

_OF_THIS_PLAN: Final = frozenset({Code.WOULD_DELAY, Code.RESERVATION_AHEAD})
"""Reasons that depend on the planned starts of this cycle or on its time: they state for how long a run fits from now."""


@dataclass(frozen=True, slots=True)
class _Refutation:
    """The result of one search. ``on_nodes``: it depends on what is free on nodes."""

    rank: EvictionRank
    why: tuple[Reason, ...]
    on_nodes: bool


@dataclass(frozen=True, slots=True)
class _Searched:
    """A gang whose turn it is, and how much the solver had done before it."""

    kind: ClassKey
    solves: int
    placements: int


@dataclass(frozen=True, eq=False, slots=True)
class _Proved:
    """The proofs of one plan, with the capacity that they depend on."""

    fleet: ref[Fleet]  # the nodes of a configuration do not outlive their last snapshot
    other_pods: Mapping[str, Resources]
    allowances: Mapping[str, tuple[Allowance, ...]]
    running: Mapping[int, Any]  # what the gangs hold, by their ids; keeps them alive
    until: float | None  # from then on time alone can change the answer
    why: Mapping[ClassKey, _Refutation]

    def stands(self, snapshot: Snapshot) -> bool:
        """Whether all around the running gangs is as it was."""
        if self.fleet() is not snapshot.fleet or (
            self.until is not None and snapshot.now >= self.until
        ):
            return False
        return (self.other_pods, self.allowances) == (snapshot.other_pods, snapshot.allowances)


@dataclass(eq=False, slots=True)
class Refutations:
    """Those of the last plan that still hold in this cycle, and those of this cycle for the next plan."""

    cycle: AdmissionCycle
    _known: Mapping[ClassKey, _Refutation] = field(default_factory=dict)
    _kept: dict[ClassKey, _Refutation] = field(default_factory=dict)
    _changed: set[QuotaNode | None] = field(
        default_factory=set
    )  # roots of trees, since the last plan
    _changed_now: set[QuotaNode | None] = field(
        default_factory=set
    )  # likewise, by this cycle or a lease
    _searched: _Searched | None = None

    def __post_init__(self) -> None:
        problem = self.cycle.problem
        last = problem.cache.get(problem.snapshot.config, _Proved)
        for _, request, _ in self.cycle.leases.held():
            self.note_change([request.queue])
        if last is None or problem.usage.broken or not last.stands(problem.snapshot):
            return
        self._known = last.why
        running = problem.usage.entries
        if running is last.running:
            return
        for gang in running.keys() ^ last.running.keys():
            entry = running.get(gang) or last.running[gang]
            rows = [row[0] for row, _ in entry.charges]
            self._changed.update(map(self._root, rows or [None]))

    def recall(self, pending: Pending, queue: ClusterQueue | None, kind: ClassKey) -> None:
        """Give the cycle what is known of the gang whose turn it is."""
        self._searched = None
        root = self._root(queue.name if queue is not None else None)
        if root in self._changed_now:
            return
        found = self.cycle.classes.of(pending, queue)
        refused = found.refused(pending.workload) is not None
        if refused or self.cycle.over or not self._lasts(pending, queue):
            return
        known = self._known.get(kind)
        rank = found.rank_of(pending.workload)
        if known is not None and known.rank == rank and self._holds(known, root):
            self._kept[kind] = known
            found.refusal = Refutation(known.why, rank)
        else:
            solver = self.cycle.solver
            self._searched = _Searched(kind, solver.calls, solver.placements)

    def _holds(self, refutation: _Refutation, root: QuotaNode | None) -> bool:
        """Whether all that it depends on is as it was."""
        if root in self._changed:
            return False
        return not (refutation.on_nodes and (self._changed or self._changed_now))

    def learn(self, pending: Pending, queue: ClusterQueue | None) -> None:
        """The gang was considered: store the proof, if later cycles can rely on it."""
        root = self._root(queue.name if queue is not None else None)
        if root in self._changed_now:
            return
        refusal = self.cycle.refused.get(pending.workload.uid)
        strict = queue is not None and queue.strict
        if refusal is None or refusal.lease is not None or strict:
            self._changed_now.add(root)
        elif self._searched is not None:
            self._keep(self._searched, pending, queue)

    def _keep(self, before: _Searched, pending: Pending, queue: ClusterQueue | None) -> None:
        """Store the proof of a search that has ended, if it is one on what was held when the cycle began."""
        found, solver = self.cycle.classes.of(pending, queue), self.cycle.solver
        why = found.refused(pending.workload)
        on_nodes = solver.placements > before.placements
        if why is None or solver.calls > before.solves:
            return
        if any(reason.code in _OF_THIS_PLAN for reason in why):
            return
        if not (on_nodes and self._changed_now):
            rank = found.rank_of(pending.workload)
            self._kept[before.kind] = _Refutation(rank, why, on_nodes)

    def note_change(self, queues: Iterable[str | None]) -> None:
        """The ClusterQueues, and gangs without one, whose holdings differ from those at the start of the cycle."""
        self._changed_now.update(map(self._root, queues))

    def keep(self) -> None:
        """Keep what was proved for the next plan, at the end of the cycle."""
        problem = self.cycle.problem
        snapshot = problem.snapshot
        if problem.usage.broken:  # repairs also search for room in this cycle
            problem.cache.drop(snapshot.config, _Proved)
            return
        proved = _Proved(
            fleet=ref(snapshot.fleet),
            other_pods=snapshot.other_pods,
            allowances=snapshot.allowances,
            running=problem.usage.entries,
            until=next_change(snapshot),
            why=self._kept,
        )
        problem.cache.keep(snapshot.config, proved)

    def _lasts(self, pending: Pending, queue: ClusterQueue | None) -> bool:
        """Whether what is proved of it depends only on what is held.

        Not if other gangs are before it in queue order, nor of a gang that can start with fewer pods, as far as a limit allows.
        """
        if queue is not None and queue.strict:
            return False
        if queue is not None and queue.time_slice is not None:
            return False  # only the first gang of the ClusterQueue that waits gets a time slice
        return not (shrinks(pending.workload) and self.cycle.limits.binds(pending.workload))

    def _root(self, queue: str | None) -> QuotaNode | None:
        """The top of a ClusterQueue's tree; None for gangs without a ClusterQueue."""
        pool = self.cycle.problem.pools.get(queue or "")
        return pool.root if pool is not None else None
