"""What was refuted in the last plan and need not be searched for again: nothing that could change the answer has changed.

A refutation counts on what the gangs of its cohort tree hold and, where the gang takes nodes, on what everybody holds. So
it is kept from one plan to the next while the same gangs hold the same there, and this plan has started or promised
nothing there yet; else the gang is searched for anew. Where a queue may preempt, what is proved of one gang says nothing of
another one that is like it but of another priority or age. Every reason is then word for word what a new search would say:
plans do not depend on the plans before them. That is also why a proof that took the solver is not kept: what it took
stands in the plan's statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from queuectl.domain.allowance import Allowance
from queuectl.domain.fleet import Fleet
from queuectl.domain.quantity import Resources
from queuectl.domain.queues import ClusterQueue, QueueingStrategy
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.planner.arena import Arena
from queuectl.planner.batch import Walk
from queuectl.planner.classes import Class
from queuectl.planner.explain import Explained
from queuectl.planner.partial import shrinks
from queuectl.planner.queueing.lines import Kind
from queuectl.planner.queueing.quota import Pool
from queuectl.planner.victims.idle import may_evict
from queuectl.planner.victims.shield import next_change

_Who: TypeAlias = tuple[int, float] | None
"""Priority and time queued of the gang that was searched for, where they say whom it may evict."""
_Why: TypeAlias = tuple[_Who, tuple[Explained, ...]]


@dataclass(frozen=True, eq=False, slots=True)
class _Proved:
    """What one plan proved, and on what."""

    fleet: Fleet
    strangers: Mapping[str, Resources]
    allowances: Mapping[str, tuple[Allowance, ...]]
    running: Mapping[int, Any]  # what the gangs hold, by their ids; keeps them alive
    until: float | None  # from then on time alone may change the answer
    why: Mapping[Kind, _Why]

    def stands(self, snapshot: Snapshot) -> bool:
        """Whether all around the running gangs is as it was."""
        in_time = self.until is None or snapshot.now < self.until
        around = (self.strangers, self.allowances) == (snapshot.strangers, snapshot.allowances)
        return in_time and around and self.fleet is snapshot.fleet


@dataclass(eq=False, slots=True)
class Refutations:
    """Those of the last plan that still hold in this walk, and those of this walk for the next plan."""

    walk: Walk
    _known: Mapping[Kind, _Why] = field(default_factory=dict)
    _kept: dict[Kind, _Why] = field(default_factory=dict)
    _changed: set[Pool | None] = field(default_factory=set)  # roots of trees, since the last plan
    _stirred: set[Pool | None] = field(default_factory=set)  # likewise, by this walk or a lease
    _searched: tuple[Kind, int] | None = None  # whose turn it is, and solves so far
    _roots: dict[str | None, Pool | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        arena = self.walk.arena
        last = arena.cache.get(arena.snapshot.config, _Proved)
        for _, demand, _ in self.walk.leases.held():
            self.stir([demand.queue])
        if last is None or arena.usage.broken or not last.stands(arena.snapshot):
            return
        self._known = last.why
        running = arena.usage.entries
        if running is last.running:
            return
        for gang in running.keys() ^ last.running.keys():
            entry = running.get(gang) or last.running[gang]
            rows = [row[0] for row, _ in entry.charges]
            self._changed.update(map(self._root, rows or [None]))

    def recall(self, pending: Pending, queue: ClusterQueue | None, kind: Kind) -> None:
        """Tell the walk what is known of the gang whose turn it is."""
        self._searched = None
        if self._root(queue.name if queue is not None else None) in self._stirred:
            return
        found = self.walk.classes.of(pending, queue)
        if found.refusal is not None or self.walk.over or not self._lasts(pending, queue, found):
            return
        known = self._known.get(kind)
        alike = known is not None and known[0] == _who(self.walk.arena, pending, queue)
        if known is not None and alike and not self._among(self._changed, queue, found):
            self._kept[kind] = known
            found.refusal = known[1]
        else:
            self._searched = kind, self.walk.solver.calls

    def learn(self, pending: Pending, queue: ClusterQueue | None) -> None:
        """Its turn is over: keep what was proved, unless it is nothing that may be kept."""
        root = self._root(queue.name if queue is not None else None)
        if root in self._stirred:
            return
        refusal = self.walk.refused.get(pending.workload.uid)
        strict = queue is not None and queue.strategy is QueueingStrategy.STRICT_FIFO
        if refusal is None or refusal.lease is not None or strict:
            self._stirred.add(root)
        elif self._searched is not None:
            kind, solves = self._searched
            why = self.walk.classes.of(pending, queue).refusal
            if why is not None and self.walk.solver.calls == solves:
                self._kept[kind] = _who(self.walk.arena, pending, queue), why

    def stir(self, queues: Iterable[str | None]) -> None:
        """What ClusterQueues, or gangs without one, hold is not what it was when the walk began."""
        self._stirred.update(map(self._root, queues))

    def keep(self) -> None:
        """The walk is over."""
        arena = self.walk.arena
        snapshot = arena.snapshot
        if arena.usage.broken:  # repairs look for room beside the walk, and give way to it
            arena.cache.drop(snapshot.config, _Proved)
            return
        proved = _Proved(
            fleet=snapshot.fleet,
            strangers=snapshot.strangers,
            allowances=snapshot.allowances,
            running=arena.usage.entries,
            until=next_change(snapshot),
            why=self._kept,
        )
        arena.cache.keep(snapshot.config, proved)

    def _lasts(self, pending: Pending, queue: ClusterQueue | None, found: Class) -> bool:
        """Whether what is proved of it now is proved on what stood when the walk began.

        Not where others are in line before it, nor of a gang that may take the part of its pods that a ResourceQuota or
        its user's cap lets in.
        """
        if queue is not None and queue.strategy is QueueingStrategy.STRICT_FIFO:
            return False
        caps = queue is not None and queue.max_per_user
        if (caps or self.walk.arena.snapshot.allowances) and shrinks(pending.workload):
            return False
        return not self._among(self._stirred, queue, found)

    def _among(self, trees: set[Pool | None], queue: ClusterQueue | None, found: Class) -> bool:
        """Whether one of these trees has a say in what is proved of such a gang."""
        if not trees:
            return False
        takes_nodes = any(demand.units for _, demand in found.demands)
        return takes_nodes or self._root(queue.name if queue is not None else None) in trees

    def _root(self, queue: str | None) -> Pool | None:
        """The top of a ClusterQueue's tree; None for gangs without a ClusterQueue."""
        if queue not in self._roots:
            pool = self.walk.arena.pools.get(queue or "")
            while pool is not None and pool.parent is not None:
                pool = pool.parent
            self._roots[queue] = pool
        return self._roots[queue]


def _who(arena: Arena, pending: Pending, queue: ClusterQueue | None) -> _Who:
    if not may_evict(arena, pending.workload, queue):
        return None
    return pending.workload.priority, pending.workload.queued_at
