"""Running gangs as arrays, for the search for victims.

*RunningGangs* are the gangs of some ClusterQueues that are not protected; the list is built once per problem; the *CandidateTable* of one blocked gang
is the part of it that the rules (:mod:`queuectl.planner.preempt.rules`) and this plan leave, with costs. Rows are (gang, node) pairs:
what leaves a node with which gang.

Idle gangs yield their GPUs to a gang that waits (``idleReclaim``). Whether a gang is idle was judged before the snapshot was made
(``Admitted.idle_since``); nothing of metrics is known here. The idle gang's own ClusterQueue decides: a gang of higher priority may
get its GPUs, or one of equal priority where the queue has ``toEqual``, from anywhere in the cohort tree, and whatever the preemption
policies of either queue are. In a dry run the queues count that only report which gangs would be evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf
from typing import Final, TypeAlias

import numpy as np

from queuectl.domain.plan import Cost
from queuectl.domain.queues import ClusterQueue, ReclaimMode
from queuectl.domain.snapshot import Admitted
from queuectl.domain.workload import Workload
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.preempt.cost import Ages, ages_of, cost_of
from queuectl.planner.preempt.protections import opts_out, protected_until
from queuectl.planner.preempt.sizes import Sizes, sizes_of
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.topology import Ints, Mask
from queuectl.planner.quota.tree import QuotaRow


class EvictionScope(Enum):
    """Which gangs are asked to leave for a gang that waits."""

    LEGAL = auto()  # gangs that the preemption policies name, and idle gangs
    IDLE = auto()  # idle gangs alone
    DRY_RUN = auto()  # the same, with those of queues that only report what they would reclaim


_TAKEN: Final = frozenset((ReclaimMode.ON_DEMAND, ReclaimMode.ALWAYS))
_REPORTED: Final = _TAKEN | {ReclaimMode.DRY_RUN}


def yielding(problem: Problem, *, dry: bool = False) -> Mapping[str, Mapping[str, int]]:
    """The idle gangs that yield their GPUs: ClusterQueue to uid to the least priority that the gang yields to.

    Args:
        problem: of the cycle.
        dry: count ClusterQueues that do a dry run, too.
    """
    return problem.once(_yielding, dry)


def _yielding(problem: Problem, dry: bool) -> Mapping[str, Mapping[str, int]]:
    snapshot = problem.snapshot
    found: dict[str, dict[str, int]] = {}
    for gang in problem.usage.idle:
        queue = snapshot.queue_of(gang.workload)
        if queue is None or queue.idle_reclaim.mode not in (_REPORTED if dry else _TAKEN):
            continue
        if protected_until(gang, queue, snapshot.now) is None:
            least = gang.workload.priority + (0 if queue.idle_reclaim.to_equal else 1)
            found.setdefault(queue.name, {})[gang.workload.uid] = least
    return found


def in_reach(
    problem: Problem, workload: Workload, queue: ClusterQueue | None, *, dry: bool = False
) -> Iterator[str]:
    """ClusterQueues, of the cohort tree of a gang that waits or its own, with an idle gang that yields to it."""
    least = problem.once(_least, dry)
    for name in problem.pools[queue.name].root.queues if least and queue is not None else ():
        if least.get(name, inf) <= workload.priority:
            yield name


def _least(problem: Problem, dry: bool) -> Mapping[str, int]:
    """ClusterQueue to the least priority that some idle gang of it yields to."""
    return {name: min(gangs.values()) for name, gangs in yielding(problem, dry=dry).items()}


def any_yields(
    problem: Problem, workload: Workload, queue: ClusterQueue | None, *, dry: bool = False
) -> bool:
    """Whether some idle gang yields to one that waits."""
    return any(True for _ in in_reach(problem, workload, queue, dry=dry))


def may_evict(problem: Problem, workload: Workload, queue: ClusterQueue | None) -> bool:
    """Whether a gang that waits may evict any gang at all: by its queue's policies, or an idle one."""
    return queue is not None and (queue.preempts or any_yields(problem, workload, queue))


Floats: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]
Charges: TypeAlias = Mapping[
    int, tuple[tuple[QuotaRow, int], ...]
]  # gang of a table to what it is charged


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """Use of nodes by gangs: gang index (K,), node index (K,), amounts (R, K); each pair once."""

    gang: Ints
    node: Ints
    use: Ints

    def select(self, mask: Mask) -> Rows:
        return Rows(self.gang[mask], self.node[mask], self.use[:, mask])

    def sums(self, nodes: int) -> Ints:
        """Their use of each of ``nodes`` nodes, (R, N)."""
        sums = np.zeros((len(self.use), nodes), dtype=np.int64)
        for into, amounts in zip(sums, self.use, strict=True):
            np.add.at(into, self.node, amounts)
        return sums


@dataclass(frozen=True, eq=False, slots=True)
class GangArrays:
    """Some gangs that run, by priority, then from the newest to the oldest.

    Attributes:
        quota: what each is charged, per quota row.
    """

    gangs: tuple[Admitted, ...]
    priority: Ints
    ages: Ages
    rows: Rows
    quota: dict[QuotaRow, Ints]
    sizes: Sizes

    def table(self, chosen: Mask, now: float) -> CandidateTable:
        """Those of them that one gang may evict, in the same order."""
        number = np.cumsum(chosen) - 1
        rows = self.rows.select(chosen[self.rows.gang])
        rank = np.unique(self.priority[chosen], return_inverse=True)[1].astype(np.int64) + 1
        charged = ((row, amounts[chosen]) for row, amounts in self.quota.items())
        return CandidateTable(
            tuple(self.gangs[i] for i in np.flatnonzero(chosen)),
            rank,
            self.ages.lost_work(now, chosen)[chosen],
            self.ages.known_starts(now, chosen)[chosen],
            Rows(number[rows.gang], rows.node, rows.use),
            {row: amounts for row, amounts in charged if amounts.any()},
            self.sizes,
        )


def arrays_of(problem: Problem, gangs: Iterable[Admitted]) -> GangArrays:
    """Collect what some gangs hold and are charged."""
    ordered = sorted(gangs, key=lambda g: (g.workload.priority, -g.started_at, g.workload.uid))
    charged: dict[QuotaRow, list[tuple[int, int]]] = {}
    for i, gang in enumerate(ordered):
        for row, amount in problem.usage.charges(gang):
            charged.setdefault(row, []).append((i, amount))
    quota = {row: np.zeros(len(ordered), dtype=np.int64) for row in charged}
    for row, entries in charged.items():
        at, amounts = np.array(entries, dtype=np.int64).T
        np.add.at(quota[row], at, amounts)
    priority = np.array([gang.workload.priority for gang in ordered], dtype=np.int64)
    sizes = sizes_of(problem.snapshot, problem.cache)
    ages, rows = ages_of(ordered, sizes), rows_of(problem, ordered)
    return GangArrays(tuple(ordered), priority, ages, rows, quota, sizes)


def table_of(problem: Problem, gangs: Iterable[Admitted]) -> CandidateTable:
    """All of some gangs as candidates, whatever protects them."""
    arrays = arrays_of(problem, gangs)
    return arrays.table(np.ones(len(arrays.gangs), dtype=np.bool_), problem.snapshot.now)


@dataclass(frozen=True, eq=False, slots=True)
class RunningGangs(GangArrays):
    """Staying gangs of some ClusterQueues that some gang may evict now.

    Attributes:
        queues: name to position of the ClusterQueues it is of.
        owner: the position of the one each is charged to.
        reclaim_only: those that opt out of preemption, which counts unless another ClusterQueue reclaims borrowed quota.
    """

    queues: dict[str, int]
    owner: Ints
    queued_at: Floats
    reclaim_only: Mask


@dataclass(frozen=True, eq=False, slots=True)
class CandidateTable:
    """The gangs one preemptor may evict, C of them, numbered by priority, then from the newest to the oldest.

    Attributes:
        gangs: the gangs themselves.
        rank: position of a gang's priority among the distinct ones present, lowest first, from 1. Shape (C,).
        lost: GPU-seconds each would lose. Shape (C,).
        starts: when each started (unix seconds), to decide between equal losses; minus infinity where the loss is a guess. Shape (C,).
        rows: what each holds of which node.
        quota: quota row to the amount each frees. Shape (C,).
    """

    gangs: tuple[Admitted, ...]
    rank: Ints
    lost: Ints
    starts: Floats
    rows: Rows
    quota: dict[QuotaRow, Ints]
    sizes: Sizes
    _charges: list[Charges] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.gangs)

    @property
    def charges(self) -> Charges:
        """The charge of each gang."""
        if not self._charges:
            found: list[list[tuple[QuotaRow, int]]] = [[] for _ in self.gangs]
            for row, amounts in sorted(self.quota.items()):
                charged = amounts.nonzero()[0]
                for gang, amount in zip(charged.tolist(), amounts[charged].tolist(), strict=True):
                    found[gang].append((row, amount))
            self._charges.append(dict(enumerate(map(tuple, found))))
        return self._charges[0]

    def cost(self, at: int) -> Cost:
        return cost_of(self.gangs[at], int(self.lost[at]), self.sizes)

    def freed(self, nodes: int, chosen: Mask | None = None) -> Ints:
        """(R, N) freed on each of ``nodes`` nodes when the chosen gangs (all of them by default) leave."""
        rows = self.rows if chosen is None else self.rows.select(chosen[self.rows.gang])
        return rows.sums(nodes)

    def lowest(self, rank: int) -> CandidateTable:
        """The gangs up to a rank; they keep their numbers."""
        size = int(np.searchsorted(self.rank, rank, side="right"))
        return CandidateTable(
            self.gangs[:size],
            self.rank[:size],
            self.lost[:size],
            self.starts[:size],
            self.rows.select(self.rows.gang < size),
            {row: frees[:size] for row, frees in self.quota.items()},
            self.sizes,
        )

    def mask(self, victims: Iterable[int]) -> Mask:
        chosen = np.zeros(self.size, dtype=np.bool_)
        chosen[list(victims)] = True
        return chosen


def staying(state: CycleState, running: RunningGangs) -> Mask:
    """The running gangs that this plan has not evicted or repaired. Shape (C,)."""
    gone = state.evicted | state.repairing
    if not gone:
        return np.ones(len(running.gangs), dtype=np.bool_)
    return np.array([g.workload.uid not in gone for g in running.gangs], dtype=np.bool_)


def running_gangs(problem: Problem, queues: tuple[str, ...]) -> RunningGangs:
    """The running gangs of some ClusterQueues, built once per problem."""
    return problem.once(_enroll, queues)


def least_priorities(problem: Problem, queues: tuple[str, ...], dry: bool) -> Floats:
    """The least priority that each of the running gangs of some ClusterQueues yields to for being idle.

    Args:
        problem: of the cycle.
        queues: as of :func:`running_gangs`.
        dry: count ClusterQueues that do a dry run, too.

    Returns:
        Shape (C,); infinite for a gang that yields to no other.
    """
    return problem.once(_least_priorities, queues, dry)


def _least_priorities(problem: Problem, queues: tuple[str, ...], dry: bool) -> Floats:
    by_queue = yielding(problem, dry=dry).values()
    least = {uid: priority for gangs in by_queue for uid, priority in gangs.items()}
    gangs = running_gangs(problem, queues).gangs
    return np.array([least.get(gang.workload.uid, inf) for gang in gangs], dtype=np.float64)


def _enroll(problem: Problem, queues: tuple[str, ...]) -> RunningGangs:
    numbered = {name: at for at, name in enumerate(queues)}
    owners = {gang.workload.uid: at for gang, at in _candidates(problem, numbered)}
    admitted = (gang for gang in problem.snapshot.admitted if gang.workload.uid in owners)
    arrays = arrays_of(problem, admitted)
    known = problem.snapshot.config.cluster_queues
    owner = [owners[gang.workload.uid] for gang in arrays.gangs]
    opting = (
        opts_out(g.workload, known[queues[at]]) for g, at in zip(arrays.gangs, owner, strict=True)
    )
    return RunningGangs(
        arrays.gangs,
        arrays.priority,
        arrays.ages,
        arrays.rows,
        arrays.quota,
        arrays.sizes,
        numbered,
        np.array(owner, dtype=np.int64),
        np.array([gang.workload.queued_at for gang in arrays.gangs], dtype=np.float64),
        np.array(list(opting), dtype=np.bool_),
    )


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


def rows_of(problem: Problem, gangs: Sequence[Admitted]) -> Rows:
    """Use of nodes by some gangs."""
    slots = [problem.use_of(g) for g in gangs]
    resources = len(problem.resources)
    if not slots:
        none = np.zeros(0, dtype=np.int64)
        return Rows(none, none, np.zeros((resources, 0), dtype=np.int64))
    owner = np.repeat(np.arange(len(gangs)), [len(nodes) for nodes, _ in slots])
    nodes = np.concatenate([nodes for nodes, _ in slots])
    amounts = np.concatenate([amounts for _, amounts in slots], axis=1)
    pairs, at = np.unique(owner * max(problem.size, 1) + nodes, return_inverse=True)
    use = np.zeros((resources, len(pairs)), dtype=np.int64)
    for into, row in zip(use, amounts, strict=True):
        np.add.at(into, at, row)
    return Rows(pairs // max(problem.size, 1), pairs % max(problem.size, 1), use)
