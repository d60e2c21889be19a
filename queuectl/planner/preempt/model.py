"""The model of who leaves, and of where the blocked gang's pods go then.

One 0-1 variable v(g) per candidate and one integer x(s,c) per shape s and *cell* c: nodes alike in what is free, in tenants and in
domains. With n nodes in a cell, f free on each, and w(g,s) pods of a shape that fit one if all candidates but g leave it:

    sum of x(s,c) over the domain that a part chooses = pods asked           each part is somewhere, slices whole
    sum of r(s) x(s,c) <= n f + sum of n use(g) v(g)                          each resource
    x(s,c) <= n w(g,s) + n (most(s) - w(g,s)) v(g)                            implied in integers; they make the relaxation tight

Cells of several nodes are a relaxation, cells of one node are exact. Quota and the rules about who may leave together are added by
:mod:`queuectl.planner.preempt.legality`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from queuectl.planner.capacity.node_counts import NodeCounts
from queuectl.planner.preempt.bounds import Deficit, Part
from queuectl.planner.preempt.candidates import CandidateTable
from queuectl.planner.preempt.cost import Goal
from queuectl.planner.problem.problem import Shape
from queuectl.planner.problem.request import ANYWHERE, GangRequest
from queuectl.planner.problem.topology import Ints, Mask, Tree
from queuectl.planner.solver.solver import Model

Key: TypeAlias = tuple[int, Shape]  # number of a part, and one of its shapes


@dataclass(eq=False)
class VictimModel:
    """Candidates as variables, what leaving costs, and the quota it frees.

    Attributes:
        gangs: candidate numbers, in the order of their variables.
        of: candidate to its variable.
    """

    table: CandidateTable
    gangs: Sequence[int]
    model: Model = field(default_factory=Model)

    def __post_init__(self) -> None:
        self.of = {gang: self.model.var(0, 1) for gang in self.gangs}

    def any_of(self, gangs: Sequence[int]) -> int:
        """A variable that is 1 if any of these candidates leaves."""
        if len(gangs) == 1:
            return self.of[gangs[0]]
        leaves = self.model.var(0, 1)
        for g in gangs:
            self.model.at_most([self.of[g], leaves], [1, -1], 0)
        return leaves

    def free_quota(self, deficits: Iterable[tuple[int, np.ndarray]]) -> None:
        """At least the missing quota must come free."""
        for amount, frees in deficits:
            able = [g for g in self.gangs if frees[g] > 0]
            coeffs = [int(frees[g]) for g in able]
            self.model.row([self.of[g] for g in able], coeffs, amount, sum(coeffs))

    def aim(self, goal: Goal, most: int | None, earlier: Iterable[tuple[Goal, int]]) -> None:
        """Minimise ``goal``, at most ``most``; keep what earlier goals reached."""
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
        variables = [self.of[g] for g in self.gangs]
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
            self.model.at_most([self.of[g], highest], [int(rank[g]), -1], 0)
        return highest

    def victims(self, values: Sequence[int]) -> frozenset[int]:
        return frozenset(g for g, v in self.of.items() if values[v])


@dataclass(frozen=True, eq=False, slots=True)
class _Cell:
    """Nodes alike, with what is free on each and what each tenant frees of it, per column."""

    nodes: tuple[int, ...]
    free: tuple[int, ...]
    tenants: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, eq=False, slots=True)
class _Pods:
    """How many pods of one shape a cell holds: a sum of variables with coefficients, and a constant."""

    variables: tuple[int, ...]
    coeffs: tuple[int, ...]
    constant: int = 0

    def value(self, values: Sequence[int]) -> int:
        return self.constant + sum(
            c * values[v] for v, c in zip(self.variables, self.coeffs, strict=True)
        )


class Room:
    """The variables and rows of where pods go, added to a model of victims.

    ``exact`` when every cell is one node: then a solution is a placement.
    """

    def __init__(
        self,
        building: VictimModel,
        parts: tuple[Part, ...],
        deficits: Mapping[Key, Deficit],
        free: Ints,
        useful: Mask,
        *,
        by_node: bool,
    ) -> None:
        self.building = building
        self.parts = parts
        self.deficits = deficits
        self.columns = sorted({c for _, shape in deficits for c in shape.columns})
        self.cells = self._cells(free, useful, by_node=by_node)
        self.exact = all(len(cell.nodes) == 1 for cell in self.cells)
        self.pods: dict[Key, dict[int, _Pods]] = {key: {} for key in deficits}
        blockers = {key: _blockers(deficit, useful) for key, deficit in deficits.items()}
        for at, cell in enumerate(self.cells):
            self._make_room(at, cell, blockers)
        for number in range(len(parts)):
            self._choose_domain(number)
        for (number, shape), row in self.pods.items():
            self._keep_slices(parts[number].tree, shape, row)

    def node_counts(self, values: Sequence[int], request: GangRequest) -> NodeCounts:
        """Read a placement out of an exact model's solution, per pods of the request."""
        left = {key: self._placed(key[0], row, values) for key, row in self.pods.items()}
        part_of = {
            podset_group: number
            for number, part in enumerate(self.parts)
            for podset_group in part.podset_groups
        }
        taken = []
        for number, podset_group in enumerate(request.podset_groups):
            part = part_of[number]
            if podset_group.on_one_node and podset_group.bundle is not None:
                node = next(iter(_take(left[part, podset_group.bundle.shape], 1)))
                taken.extend([{node: p.count} for p in podset_group.pods])
            else:
                taken.extend([_take(left[part, p.shape], p.count) for p in podset_group.pods])
        return tuple(
            (np.array(list(t), dtype=np.int64), np.array(list(t.values()), dtype=np.int64))
            for t in taken
        )

    def _placed(self, part: int, row: dict[int, _Pods], values: Sequence[int]) -> dict[int, int]:
        """Node to pods in topology order, so that slices come off it whole."""
        pods = {self.cells[at].nodes[0]: pods.value(values) for at, pods in row.items()}
        place = self.parts[part].tree.position
        return dict(sorted(pods.items(), key=lambda item: int(place[item[0]])))

    def _cells(self, free: Ints, useful: Mask, *, by_node: bool) -> list[_Cell]:
        tenants = self._tenants(useful)
        nodes = np.flatnonzero(useful)
        marks = [free[self.columns]]
        for (number, shape), deficit in self.deficits.items():
            tree = self.parts[number].tree
            marks += [
                shape.eligible[None].astype(np.int64),
                deficit.domain[None],
                deficit.delta[None],
            ]
            marks += [tree.domain[level][None] for level, _ in shape.slices]
        if by_node:
            marks.append(np.arange(free.shape[1])[None])
        alike = map(tuple, np.concatenate(marks)[:, nodes].T.tolist())
        groups: dict[object, list[int]] = {}
        for node, mark in zip(nodes.tolist(), alike, strict=True):
            there = tuple(sorted(tenants.get(node, {}).items()))
            groups.setdefault((mark, there), []).append(node)
        return [
            _Cell(
                tuple(group),
                tuple(free[self.columns, group[0]].tolist()),
                tenants.get(group[0], {}),
            )
            for group in groups.values()
        ]

    def _tenants(self, useful: Mask) -> dict[int, dict[int, tuple[int, ...]]]:
        rows = self.building.table.rows
        rows = rows.select(useful[rows.node])
        found: dict[int, dict[int, tuple[int, ...]]] = {}
        uses = rows.use[self.columns].T.tolist()
        for gang, node, use in zip(rows.gang.tolist(), rows.node.tolist(), uses, strict=True):
            if any(use):
                found.setdefault(node, {})[gang] = tuple(use)
        return found

    def _choose_domain(self, number: int) -> None:
        """All pods of the part, in one domain if it must share one."""
        part, model = self.parts[number], self.building.model
        inside: list[dict[int, list[_Pods]]] = []
        for shape, _ in part.counts:
            inside.append({})
            for at, pods in self.pods[number, shape].items():
                where = int(self.deficits[number, shape].domain[self.cells[at].nodes[0]])
                inside[-1].setdefault(where, []).append(pods)
        everywhere = sorted(set.intersection(*(set(found) for found in inside)))
        if part.level != ANYWHERE:
            chosen = {where: model.var(0, 1) for where in everywhere}
            model.equal(list(chosen.values()), [1] * len(chosen), 1)
        for (shape, count), found in zip(part.counts, inside, strict=True):
            if part.level == ANYWHERE:
                self._hold(shape, found.get(0, []), [], count)
            for where in everywhere if part.level != ANYWHERE else ():
                self._hold(shape, found[where], [chosen[where]], count)

    def _hold(
        self, shape: Shape, cells: Sequence[_Pods], chosen: Sequence[int], count: int
    ) -> None:
        """Cells hold ``count`` pods, if the variable is 1 that is ``chosen``; exactly so many where slices must be whole."""
        variables = [v for pods in cells for v in pods.variables]
        coeffs = [c for pods in cells for c in pods.coeffs]
        least = count - sum(pods.constant for pods in cells)
        if chosen:
            variables, coeffs, least = [*variables, *chosen], [*coeffs, -count], least - count
        model = self.building.model
        most = sum(c * model.bounds[v][1] for v, c in zip(variables, coeffs, strict=True) if c > 0)
        model.row(variables, coeffs, least, least if shape.slices else max(least, most))

    def _keep_slices(self, tree: Tree, shape: Shape, row: dict[int, _Pods]) -> None:
        """In each domain of a slice's level, pods make whole slices."""
        model = self.building.model
        for level, size in shape.slices:
            inside: dict[int, list[int]] = {}
            for at, pods in row.items():
                domain = int(tree.domain[level][self.cells[at].nodes[0]])
                inside.setdefault(domain, []).extend(pods.variables)
            for variables in inside.values():
                whole = model.var(0, sum(model.bounds[v][1] for v in variables) // size)
                model.equal([*variables, whole], [*[1] * len(variables), -size], 0)

    def _make_room(
        self, at: int, cell: _Cell, blockers: Mapping[Key, Mapping[int, Mapping[int, int]]]
    ) -> None:
        """What pods a cell holds: what they take is free or freed by its victims."""
        node, size = cell.nodes[0], len(cell.nodes)
        model, of = self.building.model, self.building.of
        here = [(k, d) for k, d in self.deficits.items() if d.domain[node] >= 0 and d.most(node)]
        alone = len(here) == 1
        taken: list[tuple[Shape, int]] = []
        for key, deficit in here:
            cap, delta = int(deficit.cap[node]), int(deficit.delta[node])
            needed = {g: w for g, w in blockers[key].get(node, {}).items() if w < delta}
            # The pods fit as soon as all those have left without whom nothing is gained: no row need say more.
            plain = alone and not any(needed.values())
            plain = plain and self._gain(cell, key[1], needed) >= cap + delta
            if plain and len(needed) <= 1 and not key[1].slices:
                leaving = tuple(of[g] for g in needed)
                gained = (size * delta,) * len(needed)
                self.pods[key][at] = _Pods(leaving, gained, size * cap)
                continue
            pods = model.var(0, min(size * (cap + delta), deficit.count))
            self.pods[key][at] = _Pods((pods,), (1,))
            for gang, gain in needed.items():
                coeffs = [1, -size * (delta - gain)]
                model.at_most([pods, of[gang]], coeffs, size * (cap + gain))
            if not plain:
                taken.append((key[1], pods))
        for i, column in enumerate(self.columns):
            asking = [(v, int(s.vector[column])) for s, v in taken if s.vector[column]]
            if asking:
                self._capacity(cell, i, asking)

    def _gain(self, cell: _Cell, shape: Shape, gone: Iterable[int]) -> int:
        """Pods of a shape that fit one node of a cell once these tenants have left."""
        gone = list(gone)
        return min(
            (cell.free[i] + sum(cell.tenants[g][i] for g in gone)) // int(shape.vector[column])
            for i, column in enumerate(self.columns)
            if shape.vector[column]
        )

    def _capacity(self, cell: _Cell, i: int, asking: list[tuple[int, int]]) -> None:
        """One resource of a cell."""
        of, size = self.building.of, len(cell.nodes)
        freeing = [(of[gang], -size * use[i]) for gang, use in cell.tenants.items() if use[i]]
        free = size * cell.free[i]
        if free < 0:
            freeing.append((self._opened([v for v, _ in asking]), -free))
        variables, coeffs = zip(*asking, *freeing, strict=True)
        self.building.model.at_most(variables, coeffs, max(0, free))

    def _opened(self, pods: list[int]) -> int:
        """Where a resource is over, victims must make good the excess only if a pod that asks for it goes there."""
        model = self.building.model
        opened = model.var(0, 1)
        for variable in pods:
            model.at_most([variable, opened], [1, -model.bounds[variable][1]], 0)
        return opened


def _blockers(deficit: Deficit, useful: Mask) -> dict[int, dict[int, int]]:
    """Node to the tenants without whom it gains less than it could, and what it gains without each."""
    rows = np.flatnonzero(useful[deficit.node] & (deficit.without < deficit.delta[deficit.node]))
    found: dict[int, dict[int, int]] = {}
    entries: Iterator[tuple[int, int, int]] = zip(
        deficit.node[rows].tolist(),
        deficit.gang[rows].tolist(),
        deficit.without[rows].tolist(),
        strict=True,
    )
    for node, gang, without in entries:
        found.setdefault(node, {})[gang] = without
    return found


def _take(row: dict[int, int], count: int) -> dict[int, int]:
    """Take ``count`` pods out of what a shape of a part was given, node to pods in the order of the nodes."""
    taken: dict[int, int] = {}
    for node in list(row):
        share = min(row[node], count)
        if share:
            taken[node] = share
            row[node] -= share
            count -= share
    assert not count, "the model places every pod"
    return taken
