"""Which gangs to move, as one model: a binary per gang that may leave, and room for it elsewhere on aggregated domains.

The model is a relaxation, so what it costs bounds the true cost from below and what it refutes is refuted. Nodes that
somebody may leave stand alone, with exact rows; the others are grouped by their domains and by who may use them. Whether
the set it suggests really finds a place, :mod:`queuectl.planner.relocate.settle` decides; a set that does not is cut off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from queuectl.planner.placement.bounds import LARGEST, bounds
from queuectl.planner.placement.cells import asked_pods
from queuectl.planner.problem.problem import Shape, caps
from queuectl.planner.problem.request import ANYWHERE, GangRequest, Unit
from queuectl.planner.problem.topology import Ints, Tree
from queuectl.planner.relocate.movers import Movers
from queuectl.planner.solver.solver import Model

NOBODY: Final = -1  # the blocked gang, where a mover's number would stand
_Terms: TypeAlias = dict[int, int]  # variable -> coefficient


@dataclass(eq=False)
class Nodes:
    """Nodes in groups: what the pods of each kind find there.

    Attributes:
        kinds: shapes, each in one tree; pods are counted per kind and group.
        group: of each node, -1 where no kind fits. Shape (N,).
        fits: pods of each kind per group at most, with everybody gone. Shape (K, G).
        free: what each group has now; what leaves it is added by the model. Shape (R, G).
        first: one node of each group.
        touched: whether somebody may leave it; then it is a single node. Shape (G,).
    """

    kinds: Sequence[tuple[Shape, Tree]]
    free: Ints
    emptied: Ints
    holders: Ints

    def __post_init__(self) -> None:
        size = self.free.shape[1]
        per_node = np.stack([caps(self.emptied, shape) for shape, _ in self.kinds])
        useful = per_node.any(axis=0)
        alone = np.zeros(size, dtype=np.bool_)
        alone[self.holders] = True
        columns = [np.where(alone, np.arange(size) + 1, 0)]
        columns += [tree.domain[-1] for tree in {t: None for _, t in self.kinds} if tree.depth]
        columns += [shape.eligible.astype(np.int64) for shape in {s: None for s, _ in self.kinds}]
        self.group = np.full(size, -1, dtype=np.int64)
        rows = np.stack(columns)[:, useful]
        _, first, label = np.unique(rows, axis=1, return_index=True, return_inverse=True)
        self.group[useful] = label.reshape(-1)
        self.first = np.flatnonzero(useful)[first]
        self.touched = alone[self.first]
        self.fits = np.stack([self.sums(row) for row in per_node])
        self.there = np.maximum(self.free, 0)
        self.have = np.stack([self.sums(row) for row in self.there])

    def sums(self, per_node: Ints) -> Ints:
        """A per-node quantity summed over each group."""
        totals = np.zeros(len(self.first), dtype=np.int64)
        inside = self.group >= 0
        np.add.at(totals, self.group[inside], per_node[inside])
        return totals

    def domains(self, tree: Tree, level: int) -> Ints:
        """Domain of each group at a level."""
        return tree.domain[level][self.first]


class MoveModel:
    """Rows and variables for some movers and one place for the blocked gang.

    Args:
        blocked: the gang that shall fit.
        movers: all that may be moved.
        among: numbers of those this model lets leave; the others stay.
        scope: the one domain of the blocked gang's required level to try; ANYWHERE = all of them.
    """

    def __init__(
        self, blocked: GangRequest, movers: Movers, among: Sequence[int], free: Ints, scope: int
    ) -> None:
        self.model = Model()
        self.movers = movers
        self.leaves = {number: self.model.var(0, 1) for number in among}
        self._chosen = movers.bench.mask(among)
        self._rows = movers.bench.rows.select(self._chosen[movers.bench.rows.gang])
        self._kinds: dict[tuple[Shape, Tree], int] = {}
        self._classes: dict[object, tuple[Unit, list[int]]] = {}
        self._enlist(blocked, NOBODY)
        for number in among:
            self._enlist(movers.request(number), number)
        emptied = free + movers.bench.freed(free.shape[1], self._chosen)
        self._nodes = Nodes(list(self._kinds), free, emptied, np.unique(self._rows.node))
        self._add_pods()
        self._add_units(scope)
        self._add_room()
        self._add_tight_room()
        for limit in movers.limits:
            self._add_limit(limit.gangs.tolist(), limit.left)

    # What is asked.

    def _enlist(self, request: GangRequest, owner: int) -> None:
        """Equal units of movers share their variables; the blocked gang's stand for themselves."""
        for at, unit in enumerate(request.units):
            kinds = []
            for pods in asked_pods(unit):
                kind = self._kinds.setdefault((pods.shape, unit.tree), len(self._kinds))
                kinds.append((kind, pods.count))
            level = ANYWHERE if unit.on_one_node else unit.required
            key = (level, tuple(kinds), at if owner == NOBODY else None)
            self._classes.setdefault(key, (unit, []))[1].append(owner)

    def _count(self, unit: Unit) -> dict[int, int]:
        counts: dict[int, int] = {}
        for pods in asked_pods(unit):
            kind = self._kinds[pods.shape, unit.tree]
            counts[kind] = counts.get(kind, 0) + pods.count
        return counts

    def _owed(self, owners: Iterable[int], times: int, terms: _Terms) -> int:
        """Subtract ``times`` for each owner that must be placed: terms for movers, a constant for the blocked gang."""
        constant = 0
        for owner in owners:
            if owner == NOBODY:
                constant += times
            else:
                variable = self.leaves[owner]
                terms[variable] = terms.get(variable, 0) - times
        return constant

    # Pods of each kind on groups of nodes; all that are owed are placed.

    def _add_pods(self) -> None:
        most = [0] * len(self._kinds)
        for unit, owners in self._classes.values():
            for kind, count in self._count(unit).items():
                most[kind] += count * len(owners)
        self.pods: list[dict[int, int]] = []
        for kind, fits in enumerate(self._nodes.fits):
            groups = np.flatnonzero(fits).tolist()
            self.pods.append({g: self.model.var(0, min(int(fits[g]), most[kind])) for g in groups})
            terms = dict.fromkeys(self.pods[kind].values(), 1)
            constant = 0
            for unit, owners in self._classes.values():
                count = self._count(unit).get(kind, 0)
                constant += self._owed(owners, count, terms) if count else 0
            self._row(terms, constant, constant)

    # Units with a required level choose a domain, and their pods lie in it.

    def _add_units(self, scope: int) -> None:
        inside: dict[tuple[int, int], list[tuple[Tree, int, int, int]]] = {}
        for unit, owners in self._classes.values():
            if unit.on_one_node or unit.required == ANYWHERE:
                continue
            counts = self._count(unit)
            chosen = self._choices(unit, counts, len(owners))
            if scope != ANYWHERE and owners == [NOBODY]:
                chosen = {scope: chosen[scope]} if scope in chosen else {}
            terms = dict.fromkeys(chosen.values(), 1)
            constant = self._owed(owners, 1, terms)
            self._row(terms, constant, constant)
            for domain, variable in chosen.items():
                for kind, count in counts.items():
                    entry = (unit.tree, domain, variable, count)
                    inside.setdefault((kind, unit.required), []).append(entry)
        self._add_lodging(inside)

    def _choices(self, unit: Unit, counts: Mapping[int, int], units: int) -> dict[int, int]:
        """Domain to the variable of how many of these units it holds."""
        nodes, tree, level = self._nodes, unit.tree, unit.required
        domain = nodes.domains(tree, level)
        most = np.full(len(tree.starts[level]), units, dtype=np.int64)
        for kind, count in counts.items():
            totals = np.zeros(len(most), dtype=np.int64)
            visible = domain >= 0
            np.add.at(totals, domain[visible], nodes.fits[kind][visible])
            np.minimum(most, totals // count, out=most)
        return {d: self.model.var(0, int(most[d])) for d in np.flatnonzero(most).tolist()}

    def _add_lodging(
        self, inside: Mapping[tuple[int, int], Sequence[tuple[Tree, int, int, int]]]
    ) -> None:
        """Each domain holds the pods of the units that chose it, or a domain within it."""
        for kind, level in sorted(inside):
            tree = inside[kind, level][0][0]
            rows: dict[int, _Terms] = {}
            for group, variable in self.pods[kind].items():
                domain = int(tree.domain[level][self._nodes.first[group]])
                rows.setdefault(domain, {})[variable] = 1
            for (other, finer), entries in inside.items():
                if other != kind or finer < level:
                    continue
                for _, domain, variable, count in entries:
                    above = self._above(tree, finer, domain, level)
                    row = rows.setdefault(above, {})
                    row[variable] = row.get(variable, 0) - count
            for terms in rows.values():
                if min(terms.values()) < 0:
                    self._row(terms, 0, None)

    def _above(self, tree: Tree, level: int, domain: int, coarser: int) -> int:
        node = int(tree.order[tree.starts[level][domain]])
        return int(tree.domain[coarser][node])

    # Room: what is free, and what those who leave give back.

    def _add_room(self) -> None:
        nodes = self._nodes
        vectors = np.stack([shape.vector for shape, _ in self._kinds])
        back: dict[int, list[tuple[int, Ints]]] = {}
        for at, (gang, node) in enumerate(
            zip(self._rows.gang.tolist(), self._rows.node.tolist(), strict=True)
        ):
            group = int(nodes.group[node])
            if group >= 0:
                back.setdefault(group, []).append((gang, self._rows.use[:, at]))
        for column in np.flatnonzero(vectors.any(axis=0)).tolist():
            for group in range(len(nodes.first)):
                terms = {
                    self.pods[kind][group]: int(vectors[kind, column])
                    for kind in np.flatnonzero(vectors[:, column]).tolist()
                    if group in self.pods[kind]
                }
                for gang, use in back.get(group, ()):
                    if use[column]:
                        terms[self.leaves[gang]] = -int(use[column])
                if terms:
                    self.model.at_most(
                        list(terms), list(terms.values()), int(nodes.have[column, group])
                    )

    def _add_tight_room(self) -> None:
        """Where nobody leaves, also the bounds that say how devices of several sizes pack."""
        nodes = self._nodes
        vectors = np.stack([shape.vector for shape, _ in self._kinds])
        for column in np.flatnonzero((vectors > 0).sum(axis=0) > 1).tolist():
            asked = vectors[:, column]
            quiet = np.flatnonzero(~nodes.touched)
            there = np.where(np.isin(nodes.group, quiet), nodes.there[column], 0)
            largest = int(there.max(initial=0))
            sizes = np.unique(asked[asked > 0])
            if len(sizes) < 2 or not 0 < largest <= LARGEST:
                continue
            at = np.searchsorted(sizes, asked)
            for weights, most in zip(*bounds(tuple(sizes.tolist()), largest), strict=True):
                weight = np.where(asked > 0, np.array([*weights, 0])[at], 0)
                limit = nodes.sums(most[there])
                for group in quiet.tolist():
                    kinds = [k for k in np.flatnonzero(weight).tolist() if group in self.pods[k]]
                    self.model.at_most(
                        [self.pods[k][group] for k in kinds],
                        [int(weight[k]) for k in kinds],
                        int(limit[group]),
                    )

    def _add_limit(self, gangs: Iterable[int], left: int) -> None:
        mine = [g for g in gangs if g in self.leaves]
        lost = self.movers.bench.lost
        self.model.at_most([self.leaves[g] for g in mine], [int(lost[g]) for g in mine], left)

    def _row(self, terms: _Terms, low: int, high: int | None) -> None:
        most = sum(c * self.model.bounds[v][1 if c > 0 else 0] for v, c in terms.items())
        self.model.row(list(terms), list(terms.values()), low, most if high is None else high)

    # The question, and the answer.

    def aim(self, weight: Ints, low: int, high: int | None) -> None:
        """Minimise the weight of those who leave, known to lie between two bounds."""
        variables = list(self.leaves.values())
        coeffs = [int(weight[g]) for g in self.leaves]
        self.model.minimize(variables, coeffs)
        self.hold(weight, low, sum(coeffs) if high is None else high)

    def hold(self, weight: Ints, low: int, high: int) -> None:
        """Keep the weight of those who leave between two bounds."""
        coeffs = [int(weight[g]) for g in self.leaves]
        self.model.row(list(self.leaves.values()), coeffs, low, high)

    def forbid(self, moved: frozenset[int], unsettled: Iterable[int]) -> None:
        """Cut off a set that found no place: somebody else must leave, or one whose leaving costs room must stay."""
        if any(g not in self.leaves for g in unsettled):
            return  # he stays anyway
        others = [v for g, v in self.leaves.items() if g not in moved]
        stay = [self.leaves[g] for g in sorted(unsettled)]
        coeffs = [1] * len(others) + [-1] * len(stay)
        self.model.row([*others, *stay], coeffs, 1 - len(stay), len(others))

    def moved(self, values: Sequence[int]) -> frozenset[int]:
        """Those who leave in a solution."""
        return frozenset(g for g, v in self.leaves.items() if values[v])
