"""Running gangs as arrays, for the search for victims.

A *roster* holds every gang of some ClusterQueues that some gang may evict and is built once per arena; the *bench* of one
blocked gang is the part of it that policy (:mod:`queuectl.planner.preempt.policy`) and this plan leave, with costs. Rows are (gang, node)
pairs: what leaves a node with whom.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from queuectl.domain.plan import Cost
from queuectl.domain.queues import ClusterQueue
from queuectl.domain.snapshot import Admitted
from queuectl.planner.capacity.state import State
from queuectl.planner.preempt.cost import Ages, ages_of
from queuectl.planner.preempt.idle import NO_PRIORITY, least_priorities, yields_to
from queuectl.planner.preempt.shield import opts_out, protected_until
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.topology import Ints, Mask
from queuectl.planner.quota.tree import QuotaRow


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """What gangs hold of nodes: gang index (K,), node index (K,), amounts (R, K); each pair stands once."""

    gang: Ints
    node: Ints
    use: Ints

    def select(self, mask: Mask) -> Rows:
        return Rows(self.gang[mask], self.node[mask], self.use[:, mask])


@dataclass(frozen=True, eq=False, slots=True)
class Roster:
    """Staying gangs of some ClusterQueues that some gang may evict now, by priority, then uid.

    Attributes:
        queues: name to position of the ClusterQueues it is of.
        owner: the position of the one each is charged to.
        quota: what each is charged, per quota row.
        yields: the least priority that each yields to for being idle.
        yields_dry: the same where queues that do a dry run count, too.
        reclaim_only: those that opt out of preemption, which counts unless another ClusterQueue reclaims borrowed quota.
    """

    queues: dict[str, int]
    gangs: tuple[Admitted, ...]
    owner: Ints
    priority: Ints
    queued_at: np.ndarray[tuple[int], np.dtype[np.float64]]
    ages: Ages
    rows: Rows
    quota: dict[QuotaRow, Ints]
    yields: Ints
    yields_dry: Ints
    reclaim_only: Mask
    _priorities: list[int] = field(default_factory=list)
    _sums: dict[QuotaRow, list[int]] = field(default_factory=dict)

    def held(self, row: QuotaRow, below: int | None = None) -> int:
        """What its gangs are charged of a quota row, only those of a lower priority than ``below`` if that is given."""
        amounts = self.quota.get(row)
        if amounts is None:
            return 0
        sums = self._sums.get(row)
        if sums is None:
            sums = self._sums[row] = [0, *np.cumsum(amounts).tolist()]
        if below is None:
            return sums[-1]
        if not self._priorities:
            self._priorities.extend(self.priority.tolist())
        return sums[bisect_left(self._priorities, below)]


@dataclass(frozen=True, eq=False, slots=True)
class Bench:
    """The gangs one preemptor may evict, C of them, numbered by priority, then uid.

    Attributes:
        gangs: the gangs themselves.
        rank: position of a gang's priority among the distinct ones present, lowest first, from 1. Shape (C,).
        lost: GPU-seconds each would lose. Shape (C,).
        rows: what each holds of which node.
        quota: quota row to the amount each frees. Shape (C,).
    """

    gangs: tuple[Admitted, ...]
    rank: Ints
    lost: Ints
    rows: Rows
    quota: dict[QuotaRow, Ints]

    @property
    def size(self) -> int:
        return len(self.gangs)

    def cost(self, at: int) -> Cost:
        gang = self.gangs[at]
        return Cost(gang.workload.priority, int(self.lost[at]), gang.gpus)

    def freed(self, nodes: int, chosen: Mask | None = None) -> Ints:
        """(R, N) freed on each of ``nodes`` nodes when the chosen gangs (all of them by default) leave."""
        rows = self.rows if chosen is None else self.rows.select(chosen[self.rows.gang])
        sums = np.zeros((len(rows.use), nodes), dtype=np.int64)
        for into, amounts in zip(sums, rows.use, strict=True):
            np.add.at(into, rows.node, amounts)
        return sums

    def lowest(self, rank: int) -> Bench:
        """The gangs up to a rank; they keep their numbers."""
        size = int(np.searchsorted(self.rank, rank, side="right"))
        return Bench(
            self.gangs[:size],
            self.rank[:size],
            self.lost[:size],
            self.rows.select(self.rows.gang < size),
            {row: frees[:size] for row, frees in self.quota.items()},
        )

    def mask(self, victims: Iterable[int]) -> Mask:
        chosen = np.zeros(self.size, dtype=np.bool_)
        chosen[list(victims)] = True
        return chosen


def staying(state: State, roster: Roster) -> Mask:
    """Those of a roster whom this plan has not evicted or repaired."""
    if not state.gone:
        return np.ones(len(roster.gangs), dtype=np.bool_)
    return np.array([g.workload.uid not in state.gone for g in roster.gangs], dtype=np.bool_)


def bench_of(roster: Roster, legal: Mask, now: float) -> Bench:
    """Those of a roster whom one gang may evict; they keep their order."""
    if not legal.any():
        nobody = np.zeros(0, dtype=np.int64)
        rows = Rows(nobody, nobody, np.zeros((len(roster.rows.use), 0), dtype=np.int64))
        return Bench((), nobody, nobody, rows, dict.fromkeys(roster.quota, nobody))
    chosen = np.flatnonzero(legal)
    number = np.cumsum(legal) - 1
    rows = roster.rows.select(legal[roster.rows.gang])
    _, rank = np.unique(roster.priority[chosen], return_inverse=True)
    present = set(roster.owner[chosen].tolist())
    owners = {name for name, at in roster.queues.items() if at in present}
    return Bench(
        tuple(roster.gangs[i] for i in chosen),
        rank.astype(np.int64) + 1,
        roster.ages.lost_work(now, legal)[chosen],
        Rows(number[rows.gang], rows.node, rows.use),
        {row: amounts[chosen] for row, amounts in roster.quota.items() if row[0] in owners},
    )


def roster_of(problem: Problem, queues: tuple[str, ...]) -> Roster:
    """The roster of some ClusterQueues, built once per arena."""
    return problem.once(_enroll, queues)


def _enroll(problem: Problem, queues: tuple[str, ...]) -> Roster:
    numbered = {name: at for at, name in enumerate(queues)}
    found = sorted(
        _candidates(problem, numbered),
        key=lambda pair: (pair[0].workload.priority, pair[0].workload.uid),
    )
    gangs = [gang for gang, _ in found]
    known = problem.snapshot.config.cluster_queues
    charged: dict[QuotaRow, list[tuple[int, int]]] = {}
    for i, gang in enumerate(gangs):
        for row, amount in problem.usage.charges(gang):
            charged.setdefault(row, []).append((i, amount))
    return Roster(
        numbered,
        tuple(gangs),
        np.array([owner for _, owner in found], dtype=np.int64),
        np.array([g.workload.priority for g in gangs], dtype=np.int64),
        np.array([g.workload.queued_at for g in gangs], dtype=np.float64),
        ages_of(gangs),
        rows_of(problem, gangs),
        {row: _scattered(entries, len(gangs)) for row, entries in charged.items()},
        _yielding(problem, found, queues, dry=False),
        _yielding(problem, found, queues, dry=True),
        np.array([opts_out(g.workload, known[queues[at]]) for g, at in found], dtype=np.bool_),
    )


def _yielding(
    problem: Problem, found: list[tuple[Admitted, int]], queues: tuple[str, ...], *, dry: bool
) -> Ints:
    """The least priority that each gang yields to for being idle."""
    if not least_priorities(problem, dry=dry):
        return np.full(len(found), NO_PRIORITY, dtype=np.int64)
    known = problem.snapshot.config.cluster_queues
    least = [
        NO_PRIORITY
        if opts_out(gang.workload, known[queues[owner]])
        else yields_to(gang, known[queues[owner]], dry=dry)
        for gang, owner in found
    ]
    return np.array(least, dtype=np.int64)


def _candidates(problem: Problem, queues: dict[str, int]) -> Iterator[tuple[Admitted, int]]:
    """Gangs of some ClusterQueues that stay and that some gang may evict, with the position of their queue."""
    snapshot = problem.snapshot
    known: dict[tuple[str, str | None], ClusterQueue | None] = {}
    for gang in snapshot.admitted:
        key = (gang.workload.namespace, gang.workload.queue)
        if key not in known:
            known[key] = snapshot.config.cluster_queue_of(*key)
        queue = known[key]
        if queue is None or gang.leaving or queue.name not in queues:
            continue
        if protected_until(gang, queue, snapshot.now, reclaimed=True) is None:
            yield gang, queues[queue.name]


def _scattered(entries: list[tuple[int, int]], size: int) -> Ints:
    amounts = np.zeros(size, dtype=np.int64)
    at, values = np.array(entries, dtype=np.int64).T
    np.add.at(amounts, at, values)
    return amounts


def rows_of(problem: Problem, gangs: list[Admitted]) -> Rows:
    """What some gangs hold of which node."""
    slots = [problem.use_of(g) for g in gangs]
    resources = len(problem.resources)
    if not slots:
        nobody = np.zeros(0, dtype=np.int64)
        return Rows(nobody, nobody, np.zeros((resources, 0), dtype=np.int64))
    owner = np.repeat(np.arange(len(gangs)), [len(nodes) for nodes, _ in slots])
    nodes = np.concatenate([nodes for nodes, _ in slots])
    amounts = np.concatenate([amounts for _, amounts in slots], axis=1)
    pairs, at = np.unique(owner * max(problem.size, 1) + nodes, return_inverse=True)
    use = np.zeros((resources, len(pairs)), dtype=np.int64)
    for into, row in zip(use, amounts, strict=True):
        np.add.at(into, at, row)
    return Rows(pairs // max(problem.size, 1), pairs % max(problem.size, 1), use)
