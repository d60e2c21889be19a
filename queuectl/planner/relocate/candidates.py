"""Which gangs can be moved so that another gang fits, what that loses, and what each asks of its new place.

A mover runs whole on nodes, can be restarted, and nothing protects it. It keeps its flavors and the pods it runs with now,
and its quota is the same before and after. A gang whose quota is overdrawn stays, because it could not get a lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from queuectl.domain.plan import Cost
from queuectl.domain.queues import ClusterQueue
from queuectl.domain.snapshot import Admitted, Pending
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.order.queue_order import inadmissible
from queuectl.planner.placement.feasible import place
from queuectl.planner.preempt.protections import protected_until
from queuectl.planner.preempt.running import CandidateTable, table_of
from queuectl.planner.problem.flavors import admits, flavors_of
from queuectl.planner.problem.parts import as_placed
from queuectl.planner.problem.request import GangRequest, request_of
from queuectl.planner.problem.topology import Ints
from queuectl.planner.quota.tree import QuotaRow
from queuectl.planner.solver.solver import Solver, Status


@dataclass(frozen=True, eq=False, slots=True)
class RelocationBudget:
    """The budget for moving these gangs (by number): lost work, in GPU-seconds."""

    gangs: Ints
    left: int


@dataclass(eq=False, slots=True)
class MoveCandidates:
    """The gangs that can migrate, numbered as their table has them.

    Attributes:
        table: the gangs, what each loses, what each holds of which node.
        pods: pods of each. Shape (C,).
        limits: one per ClusterQueue that has a budget.
        costs: of each restart.
    """

    state: CycleState
    table: CandidateTable
    pods: Ints
    limits: tuple[RelocationBudget, ...]
    costs: tuple[Cost, ...]
    _requests: dict[int, GangRequest] = field(default_factory=dict)
    _settled: dict[int, bool] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.table.size

    def key(self, moved: Iterable[int]) -> tuple[int, int, int]:
        """The cost of a set, layer by layer: lost work, gangs, pods."""
        chosen = list(moved)
        return int(self.table.lost[chosen].sum()), len(chosen), int(self.pods[chosen].sum())

    def allows(self, moved: Iterable[int]) -> bool:
        """Whether a set stays within every budget."""
        chosen = self.table.mask(moved)
        return all(
            int(self.table.lost[limit.gangs][chosen[limit.gangs]].sum()) <= limit.left
            for limit in self.limits
        )

    def request(self, number: int) -> GangRequest:
        """The request of a gang for its new place."""
        if number not in self._requests:
            gang = self.table.gangs[number]
            workload, problem = gang.workload, self.state.problem
            queue = problem.snapshot.queue_of(workload)
            flavors = flavors_of(workload, gang.placement)
            asking = as_placed(Pending(workload), gang.placement)
            self._requests[number] = request_of(problem, asking, queue, flavors)
        return self._requests[number]

    def settled(self, number: int, solver: Solver) -> bool:
        """Whether a gang could be placed on exactly what it holds: then moving it never takes room from others."""
        if number not in self._settled:
            rows = self.table.rows.select(self.table.rows.gang == number)
            own = np.zeros_like(self.state.later.free)
            own[:, rows.node] = rows.use
            answer = place(self.request(number), own, solver)
            self._settled[number] = answer.status is Status.FOUND
        return self._settled[number]


def move_candidates(
    state: CycleState, allowed: Callable[[Admitted], bool], budgets: Mapping[str, int]
) -> MoveCandidates:
    """Collect the candidates.

    Args:
        state: at the point of the cycle where room is needed.
        allowed: whether policy lets a gang be moved at all.
        budgets: ClusterQueue to the remaining GPU-seconds for its moves; one that is absent has no limit.
    """
    gate = _Gate(state)
    gangs = [
        gang
        for gang in state.evictable()
        if gang.restartable
        and not gang.lost
        and allowed(gang)
        and _whole(gang)
        and gate.lets_go(gang)
    ]
    table = table_of(state.problem, gangs)
    cost = tuple(table.cost(at) for at in range(table.size))
    pods = [sum(placed.count for placed in gang.placement.podsets) for gang in table.gangs]
    limits = tuple(_limits(state, table.gangs, budgets))
    return MoveCandidates(state, table, np.array(pods, dtype=np.int64), limits, cost)


def _whole(gang: Admitted) -> bool:
    """Whether its placement has one entry per podset, none of them split over flavors, some of it on nodes."""
    placed = gang.placement.podsets
    names = [p.podset for p in placed]
    if names != [p.name for p in gang.workload.podsets] or any(p.shares for p in placed):
        return False
    return any(p.nodes for p in placed)


@dataclass(slots=True)
class _Gate:
    """Which gangs no rule protects; what depends on queues alone is looked up once, as there can be many thousand gangs."""

    state: CycleState
    _queues: dict[tuple[str, str | None], ClusterQueue | None] = field(default_factory=dict)
    _closed: set[tuple[str, str | None]] = field(default_factory=set)
    _rows: dict[QuotaRow, bool] = field(default_factory=dict)

    def lets_go(self, gang: Admitted) -> bool:
        workload, snapshot = gang.workload, self.state.problem.snapshot
        key = (workload.namespace, workload.queue)
        if key not in self._queues:
            self._queues[key] = snapshot.config.cluster_queue_of(*key)
            if inadmissible(snapshot, Pending(workload)) is not None:
                self._closed.add(key)
        queue = self._queues[key]
        if key in self._closed:
            return False  # it could not start again
        if queue is None:
            return workload.preemptible and gang.evictable
        if protected_until(gang, queue, snapshot.now) is not None:
            return False
        problem = self.state.problem
        return all(self._lasts(row) for row, _ in problem.usage.charges(gang)) and admits(
            problem, workload, queue, flavors_of(workload, gang.placement)
        )

    def _lasts(self, row: QuotaRow) -> bool:
        """Whether a charge could be made again: the flavor is still there, and its quota is not overdrawn."""
        known = self._rows.get(row)
        if known is None:
            flavors = self.state.problem.snapshot.config.flavors
            left = self.state.later.quota.left(row[0], row[1:])
            known = self._rows[row] = row[1] in flavors and left >= 0
        return known


def _limits(
    state: CycleState, gangs: Sequence[Admitted], budgets: Mapping[str, int]
) -> Iterable[RelocationBudget]:
    members: dict[str, list[int]] = {}
    for number, gang in enumerate(gangs):
        queue = state.problem.snapshot.queue_of(gang.workload)
        if queue is not None and queue.name in budgets:
            members.setdefault(queue.name, []).append(number)
    for name, numbers in members.items():
        yield RelocationBudget(np.array(numbers, dtype=np.int64), budgets[name])
