"""The model of which candidates are evicted, and of where the pods of the gang go then.

The model builder makes it (:mod:`queuectl.planner.model.builder`). Each candidate is an exit, and each podset group of the gang is placed
in any case. The nodes of one node class also have the same tenants and the same free amounts. A class of several nodes is a relaxation,
a class of one node is exact. Missing quota, and the rules about which candidates may leave together, are rows of
:mod:`queuectl.planner.preempt.exit_order`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from queuectl.planner.capacity.node_counts import NodeCounts
from queuectl.planner.model.builder import STAYS, Exits, ModelBuilder
from queuectl.planner.model.classes import PlacementClasses
from queuectl.planner.placement.feasible import arrange, refuted_by_sums
from queuectl.planner.placement.greedy import exact, find, first, on_fleet
from queuectl.planner.preempt.cost import Goal
from queuectl.planner.preempt.running import CandidateTable, Rows
from queuectl.planner.problem.fleet import Ints, Mask
from queuectl.planner.problem.problem import caps
from queuectl.planner.problem.request import GangRequest, on_nodes
from queuectl.planner.solver import Solver, Status


class VictimModel:
    """Candidates as exits, what their eviction costs, and the room and the quota that it makes.

    Attributes:
        gangs: candidate numbers, in the order of their variables.
        exits: candidate to the variable of its eviction.
    """

    def __init__(
        self,
        request: GangRequest,
        free: Ints,
        table: CandidateTable,
        gangs: Sequence[int],
        nodes: Ints,
        rows: Rows,
        by_node: bool,
    ) -> None:
        """Build the rows of placements.

        Args:
            request: of the gang to be placed.
            free: (R, N) before any candidate leaves.
            table: all candidates.
            gangs: those that may leave in this model.
            nodes: the usable nodes.
            rows: what the candidates may free of them.
            by_node: each node is a class of its own.
        """
        self.table, self.gangs = table, gangs
        marks = np.arange(free.shape[1]) if by_node else _alike(request, free, nodes, rows)
        groups = request.podset_groups
        classes = PlacementClasses(groups, free, nodes, free + rows.sums(free.shape[1]), marks)
        exits = Exits(gangs, rows.gang, rows.node, rows.use, [STAYS] * len(groups))
        self.built = ModelBuilder(classes, exits=exits)
        self.model, self.exits = self.built.model, self.built.exits

    def any_of(self, gangs: Sequence[int]) -> int:
        """A variable that is 1 if any of these candidates leaves."""
        return self.built.any_of([self.exits[g] for g in gangs])

    def free_quota(self, deficits: Iterable[tuple[int, np.ndarray]]) -> None:
        """At least the missing quota must come free."""
        for amount, frees in deficits:
            able = [g for g in self.gangs if frees[g] > 0]
            coeffs = [int(frees[g]) for g in able]
            self.model.row([self.exits[g] for g in able], coeffs, amount, sum(coeffs))

    def set_objective(
        self, goal: Goal, most: int | None, earlier: Iterable[tuple[Goal, int]]
    ) -> None:
        """Minimize ``goal``, at most ``most``; keep what earlier goals reached."""
        ranked = goal.rank_weight or any(g.rank_weight for g, _ in earlier)
        highest = self._highest() if ranked else -1
        variables, coeffs = self._terms(goal, highest)
        self.model.minimize(variables, coeffs)
        if most is not None:
            self.model.row(variables, coeffs, 0, most)
        for before, value in earlier:
            variables, coeffs = self._terms(before, highest)
            self.model.row(variables, coeffs, 0, value)

    def _terms(self, goal: Goal, highest: int) -> tuple[list[int], list[int]]:
        variables = [self.exits[g] for g in self.gangs]
        coeffs = [int(goal.weight[g]) for g in self.gangs]
        if goal.rank_weight:
            variables.append(highest)
            coeffs.append(goal.rank_weight)
        return variables, coeffs

    def _highest(self) -> int:
        """A variable no lower than the rank of any victim."""
        rank = self.table.rank
        highest = self.model.var(0, int(rank.max(initial=0)))
        for g in self.gangs:
            self.model.at_most([self.exits[g], highest], [int(rank[g]), -1], 0)
        return highest


def _alike(request: GangRequest, free: Ints, nodes: Ints, rows: Rows) -> Ints:
    """A number for each node, equal for nodes with the same free amounts and tenants. Shape (N,)."""
    columns = sorted({column for pods in request.pods for column in pods.shape.columns})
    tenants: dict[int, list[tuple[int, ...]]] = {node: [] for node in nodes.tolist()}
    for node, held in zip(
        rows.node.tolist(), np.vstack([rows.gang, rows.use[columns]]).T.tolist(), strict=True
    ):
        tenants[node].append(tuple(held))
    numbers: dict[object, int] = {}
    marks = np.zeros(free.shape[1], dtype=np.int64)
    for node, amounts in zip(nodes.tolist(), free[columns][:, nodes].T.tolist(), strict=True):
        marks[node] = numbers.setdefault((tuple(amounts), tuple(tenants[node])), len(numbers))
    return marks


@dataclass(frozen=True, eq=False)
class UsableNodes:
    """The n nodes that the gang could use, cut out of the fleet, in topology order: trying victims touches no others.

    Attributes:
        nodes: their indexes in the fleet. Shape (n,).
        request: the gang, as if there were no other nodes.
        free: (R, n) before any candidate leaves.
        table: the candidates, with what they hold of these nodes.
    """

    nodes: Ints
    request: GangRequest
    free: Ints
    table: CandidateTable

    @cached_property
    def _first_row(self) -> Ints:
        """Where the rows of each candidate begin, and where the last ones end. Shape (C + 1,)."""
        return np.searchsorted(self.table.rows.gang, np.arange(self.table.size + 1))

    def after(self, victims: Mask) -> Ints:
        """(R, n) free once these candidates (C,) have left."""
        return self.free + self.table.freed(len(self.nodes), victims)

    def without(self, free: Ints, gangs: Iterable[int]) -> Ints:
        """(R, n) what is left of a free matrix when these candidates do not leave after all."""
        left, rows = free.copy(), self.table.rows
        for gang in gangs:
            own = slice(self._first_row[gang], self._first_row[gang + 1])
            left[:, rows.node[own]] -= rows.use[:, own]
        return left

    def holds(self, free: Ints) -> bool:
        """Whether a placement is found on a free matrix (R, n); no proves nothing."""
        request = self.request
        if refuted_by_sums(request, free):
            return False
        if exact(request) and not any(pods.slices for pods in request.pods):
            return True  # of equal pods the sums are exact
        return first(request, free) is not None

    def place(self, victims: Mask) -> NodeCounts | None:
        """Where the gang runs then, by nodes of the fleet, drawn together if that is found; None when nothing is found."""
        free = self.after(victims)
        found = find(self.request, free, lambda shape: caps(free, shape))
        found = first(self.request, free) if found is None else found
        return None if found is None else on_fleet(self.nodes, found)

    def decide(self, victims: Mask, solver: Solver) -> tuple[Status, NodeCounts | None]:
        """Whether the gang fits then, by the model, and where by nodes of the fleet."""
        made = arrange((), [self.request], self.after(victims), solver, self.request.pending.budget)
        found = made.status is Status.SOLVED
        return made.status, on_fleet(self.nodes, made.new[0]) if found else None


def stage_of(request: GangRequest, free: Ints, table: CandidateTable, useful: Mask) -> UsableNodes:
    """Cut out the useful nodes (N,); all of the fleet where the gang's podset groups see it by different topologies."""
    trees = {podset_group.tree for podset_group in request.podset_groups}
    if len(trees) != 1:
        return UsableNodes(np.arange(free.shape[1]), request, free, table)
    nodes = trees.pop().order
    nodes = nodes[useful[nodes]]
    number = np.full(free.shape[1], -1, dtype=np.int64)
    number[nodes] = np.arange(len(nodes))
    rows = table.rows.select(number[table.rows.node] >= 0)
    here = Rows(rows.gang, number[rows.node], rows.use)
    cut = on_nodes(request, nodes)
    return UsableNodes(nodes, cut, free[:, nodes], replace(table, rows=here))
