"""Running gangs as arrays, for the search for victims.

*RunningGangs* are the gangs of some ClusterQueues that are not protected; the list is built once per problem; the *CandidateTable* of one blocked gang
is the part of it that the rules (:mod:`queuectl.planner.preempt.rules`) and this plan leave, with costs. Rows are (gang, node) pairs:
what leaves a node with which gang.

Idle gangs yield their GPUs to a gang that waits (``idleReclaim``). Whether a gang is idle was judged before the snapshot was made
(``Admitted.idle_since``); nothing of metrics is known here. The idle gang's own ClusterQueue decides: a gang of higher priority may
have its GPUs, or one of equal priority where the queue says ``toEqual``, from anywhere in the cohort tree, and whatever the preemption
policies of either queue say. In a dry run the queues count that only report which gangs would be evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, TypeAlias

import numpy as np

from queuectl.domain.plan import Cost
from queuectl.domain.queues import ClusterQueue, ReclaimMode
from queuectl.domain.snapshot import Admitted
from queuectl.domain.workload import Workload
from queuectl.planner.capacity.state import State
from queuectl.planner.preempt.cost import Ages, ages_of
from queuectl.planner.preempt.protections import opts_out, protected_until
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.topology import Ints, Mask
from queuectl.planner.quota.tree import QuotaRow


class EvictionScope(Enum):
    """Which gangs are asked to leave for a gang that waits."""

    LEGAL = auto()  # gangs that the preemption policies name, and idle gangs
    IDLE = auto()  # idle gangs alone
    DRY_RUN = auto()  # the same, with those of queues that only report what they would reclaim


NO_PRIORITY: Final = 2**62
"""Higher than any: of a gang that yields to no other."""

_TAKEN: Final = frozenset((ReclaimMode.ON_DEMAND, ReclaimMode.ALWAYS))
_REPORTED: Final = _TAKEN | {ReclaimMode.DRY_RUN}


def yields_to(gang: Admitted, queue: ClusterQueue, *, dry: bool = False) -> int:
    """The least priority of a gang that this one yields to for being idle; ``NO_PRIORITY`` if to none.

    Args:
        gang: it runs; what shields it from every eviction is not looked at.
        queue: the ClusterQueue it is charged to.
        dry: count queues that do a dry run, too.
    """
    rule = queue.idle_reclaim
    if gang.idle_since is None or rule.mode not in (_REPORTED if dry else _TAKEN):
        return NO_PRIORITY
    return gang.workload.priority + (0 if rule.to_equal else 1)


def least_priorities(problem: Problem, *, dry: bool = False) -> Mapping[str, int]:
    """ClusterQueue to the least priority that some idle gang of it yields to; without queues where no gang yields."""
    return problem.once(_least, dry)


def _least(problem: Problem, dry: bool) -> Mapping[str, int]:
    snapshot = problem.snapshot
    least: dict[str, int] = {}
    modes = _REPORTED if dry else _TAKEN
    if not any(q.idle_reclaim.mode in modes for q in snapshot.config.cluster_queues.values()):
        return least
    for gang in problem.usage.idle:
        queue = snapshot.queue_of(gang.workload)
        if queue is not None and protected_until(gang, queue, snapshot.now) is None:
            priority = yields_to(gang, queue, dry=dry)
            if priority < least.get(queue.name, NO_PRIORITY):
                least[queue.name] = priority
    return least


def in_reach(
    problem: Problem, workload: Workload, queue: ClusterQueue | None, *, dry: bool = False
) -> Iterator[str]:
    """ClusterQueues, of the cohort tree of a gang that waits or its own, with an idle gang that yields to it."""
    least = least_priorities(problem, dry=dry)
    if not least or queue is None:
        return
    queues = problem.pools[queue.name].root.queues
    yield from (n for n in queues if least.get(n, NO_PRIORITY) <= workload.priority)


def anybody_yields(
    problem: Problem, workload: Workload, queue: ClusterQueue | None, *, dry: bool = False
) -> bool:
    """Whether some idle gang yields to one that waits."""
    return any(True for _ in in_reach(problem, workload, queue, dry=dry))


def may_evict(problem: Problem, workload: Workload, queue: ClusterQueue | None) -> bool:
    """Whether a gang that waits may evict any gang at all: by its queue's policies, or an idle one."""
    return queue is not None and (queue.preempts or anybody_yields(problem, workload, queue))


Charges: TypeAlias = Mapping[
    int, tuple[tuple[QuotaRow, int], ...]
]  # gang of a table to what it is charged


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """What gangs hold of nodes: gang index (K,), node index (K,), amounts (R, K); each pair stands once."""

    gang: Ints
    node: Ints
    use: Ints

    def select(self, mask: Mask) -> Rows:
        return Rows(self.gang[mask], self.node[mask], self.use[:, mask])

    def sums(self, nodes: int) -> Ints:
        """What they hold of each of ``nodes`` nodes, (R, N)."""
        sums = np.zeros((len(self.use), nodes), dtype=np.int64)
        for into, amounts in zip(sums, self.use, strict=True):
            np.add.at(into, self.node, amounts)
        return sums


@dataclass(frozen=True, eq=False, slots=True)
class RunningGangs:
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


@dataclass(frozen=True, eq=False, slots=True)
class CandidateTable:
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
    _charges: list[Charges] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.gangs)

    @property
    def charges(self) -> Charges:
        """What each gang is charged."""
        if not self._charges:
            found: list[list[tuple[QuotaRow, int]]] = [[] for _ in self.gangs]
            for row, amounts in sorted(self.quota.items()):
                charged = amounts.nonzero()[0]
                for gang, amount in zip(charged.tolist(), amounts[charged].tolist(), strict=True):
                    found[gang].append((row, amount))
            self._charges.append(dict(enumerate(map(tuple, found))))
        return self._charges[0]

    def cost(self, at: int) -> Cost:
        gang = self.gangs[at]
        return Cost(gang.workload.priority, int(self.lost[at]), gang.gpus)

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
            self.rows.select(self.rows.gang < size),
            {row: frees[:size] for row, frees in self.quota.items()},
        )

    def mask(self, victims: Iterable[int]) -> Mask:
        chosen = np.zeros(self.size, dtype=np.bool_)
        chosen[list(victims)] = True
        return chosen


def staying(state: State, running: RunningGangs) -> Mask:
    """Those of a list of running gangs whom this plan has not evicted or repaired."""
    if not state.gone:
        return np.ones(len(running.gangs), dtype=np.bool_)
    return np.array([g.workload.uid not in state.gone for g in running.gangs], dtype=np.bool_)


def table_of(running: RunningGangs, legal: Mask, now: float) -> CandidateTable:
    """Those of a list of running gangs whom one gang may evict; they keep their order."""
    if not legal.any():
        none = np.zeros(0, dtype=np.int64)
        rows = Rows(none, none, np.zeros((len(running.rows.use), 0), dtype=np.int64))
        return CandidateTable((), none, none, rows, dict.fromkeys(running.quota, none))
    chosen = np.flatnonzero(legal)
    number = np.cumsum(legal) - 1
    rows = running.rows.select(legal[running.rows.gang])
    _, rank = np.unique(running.priority[chosen], return_inverse=True)
    present = set(running.owner[chosen].tolist())
    owners = {name for name, at in running.queues.items() if at in present}
    return CandidateTable(
        tuple(running.gangs[i] for i in chosen),
        rank.astype(np.int64) + 1,
        running.ages.lost_work(now, legal)[chosen],
        Rows(number[rows.gang], rows.node, rows.use),
        {row: amounts[chosen] for row, amounts in running.quota.items() if row[0] in owners},
    )


def running_gangs(problem: Problem, queues: tuple[str, ...]) -> RunningGangs:
    """The running gangs of some ClusterQueues, built once per problem."""
    return problem.once(_enroll, queues)


def _enroll(problem: Problem, queues: tuple[str, ...]) -> RunningGangs:
    numbered = {name: at for at, name in enumerate(queues)}
    found = sorted(
        _candidates(problem, numbered),
        key=lambda pair: (pair[0].workload.priority, pair[0].workload.uid),
    )
    gangs = [gang for gang, _ in found]
    known = problem.snapshot.config.cluster_queues
    return RunningGangs(
        numbered,
        tuple(gangs),
        np.array([owner for _, owner in found], dtype=np.int64),
        np.array([g.workload.priority for g in gangs], dtype=np.int64),
        np.array([g.workload.queued_at for g in gangs], dtype=np.float64),
        ages_of(gangs),
        rows_of(problem, gangs),
        charges_of(problem, gangs),
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


def charges_of(problem: Problem, gangs: list[Admitted]) -> dict[QuotaRow, Ints]:
    """Quota row to what each of some gangs is charged, shape (C,)."""
    charged: dict[QuotaRow, list[tuple[int, int]]] = {}
    for at, gang in enumerate(gangs):
        for row, amount in problem.usage.charges(gang):
            charged.setdefault(row, []).append((at, amount))
    quota = {row: np.zeros(len(gangs), dtype=np.int64) for row in charged}
    for row, entries in charged.items():
        at_gang, amounts = np.array(entries, dtype=np.int64).T
        np.add.at(quota[row], at_gang, amounts)
    return quota


def rows_of(problem: Problem, gangs: list[Admitted]) -> Rows:
    """What some gangs hold of which node."""
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
