"""The solve every plan ends with: CP-SAT's own solution that holds every pod of every gang that starts, and quota."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from queuectl.planner.capacity.node_counts import NodeCounts, give_back
from queuectl.planner.capacity.state import State
from queuectl.planner.model.builder import ModelBuilder
from queuectl.planner.model.classes import Classes
from queuectl.planner.model.readback import values_of
from queuectl.planner.placement.joint import per_request, place_jointly
from queuectl.planner.problem.topology import Ints
from queuectl.planner.quota.tree import FlavorResource, Pool, QuotaUse
from queuectl.planner.solver.solver import Model, Solver, Status

_Terms: TypeAlias = dict[int, int]  # variable to coefficient


@dataclass(frozen=True, slots=True)
class Confirmed:
    """FOUND with node counts per admitted gang, or what went wrong."""

    status: Status
    node_counts: tuple[NodeCounts, ...] = ()
    alarm: str = ""


def confirm(state: State, solver: Solver) -> Confirmed:
    """Have CP-SAT accept the placements of all admitted gangs, which it gets as a hint.

    It may use the nodes that they are on. If its solution is another one, they are placed from the model instead. Where gangs
    take no nodes, its solution also holds the quota of all gangs.
    """
    requests = [admission.request for admission in state.admissions]
    podset_groups = [podset_group for request in requests for podset_group in request.podset_groups]
    model, classes, hint = Model(), None, list[int]()
    if podset_groups:
        used = np.unique(
            np.concatenate([nodes for k in state.admissions for nodes, _ in k.node_counts])
        )
        classes = Classes(podset_groups, _free_there(state, used), used)
        built = ModelBuilder(classes, tight=False)
        model = built.model
        hint = values_of(
            built,
            [part for admission in state.admissions for _, part in admission.per_podset_group()],
        )
    if not all(request.podset_groups for request in requests):
        _add_quota(state, model, hint)
    if model.bounds:
        model.hint = hint
        outcome = solver.solve(model)
        if outcome.status is not Status.FOUND:
            return Confirmed(outcome.status, alarm=outcome.alarm)
        if classes is not None and list(outcome.values) != hint:
            answer = place_jointly(classes, solver)
            parts = per_request(requests, answer.node_counts)
            gangs = tuple(tuple(spot for part in each for spot in part) for each in parts)
            return Confirmed(answer.status, gangs, answer.alarm)
    return Confirmed(Status.FOUND, tuple(admission.node_counts for admission in state.admissions))


def _free_there(state: State, nodes: Ints) -> Ints:
    """(R, N) free without any admitted gang on these nodes, among which are all they are on; nothing elsewhere."""
    free = np.zeros(state.now.free.shape, dtype=np.int64)
    free[:, nodes] = state.free()[:, nodes]
    for admission in state.admissions:
        give_back(free, admission.request.pods, admission.node_counts)
    return free


def _add_quota(state: State, model: Model, hint: list[int]) -> None:
    """Variables for the gangs that start, and rows of the quota that all of them need, members before their cohorts.

    With u(X) what a pool uses of one flavor and resource, and over(X) what it passes up:

        over(X) >= u(X) - local(X),   0 <= over(X) <= subtree(X) - local(X) + borrowing(X),   u(root) <= subtree(root)

    What the rest of a tree uses is a constant. A pool that is over its limit before may stay so, but nothing may be added to it.
    """
    rows = _QuotaRows(model, state.now.quota, hint)
    charged = Counter(
        (admission.request.queue, tuple(sorted(admission.request.charges.items())))
        for admission in state.admissions
        if admission.request.queue is not None
    )
    touched: dict[FlavorResource, dict[Pool, _Terms]] = {}
    for (queue, charges), gangs in sorted(charged.items()):
        number = rows.var(gangs, gangs, gangs, before=0)
        for row, amount in charges:
            if amount:
                touched.setdefault(row, {}).setdefault(rows.use.pools[queue], {})[number] = amount
    for row, waiting in touched.items():
        while waiting:
            pool = min(waiting, key=lambda p: (p.height, p.name))
            over = rows.passed_up(pool, row, waiting.pop(pool))
            if pool.parent is not None:
                waiting.setdefault(pool.parent, {})[over] = 1


@dataclass(eq=False, slots=True)
class _QuotaRows:
    """Rows of quota in a model.

    Attributes:
        use: with all gangs that start.
        hint: of every variable of the model.
        before: of every variable added here, its value if no gang started.
    """

    model: Model
    use: QuotaUse
    hint: list[int]
    before: dict[int, int] = field(default_factory=dict)

    def passed_up(self, pool: Pool, row: FlavorResource, terms: _Terms) -> int:
        """What a pool passes up, as a variable; at the root, where nothing is passed up, -1."""
        used = self.use.used_of(pool, row)
        others = used - sum(c * self.hint[v] for v, c in terms.items())
        brought = sum(c * self.before[v] for v, c in terms.items())
        subtree, local = pool.subtree.get(row, 0), pool.local.get(row, 0)
        if pool.parent is None:
            most = max(subtree - others, brought)
            self.model.at_most(list(terms), list(terms.values()), most)
            return -1
        now, before = pool.passed_up(row, used), pool.passed_up(row, others + brought)
        limit = pool.borrowing.get(row)
        most = now if limit is None else max(before, min(now, subtree - local + limit))
        over = self.var(0, most, now, before)
        self.model.at_most([*terms, over], [*terms.values(), -1], local - others)
        return over

    def var(self, low: int, high: int, hint: int, before: int) -> int:
        """A new variable with its hint."""
        number = self.model.var(low, high)
        self.hint.append(hint)
        self.before[number] = before
        return number
