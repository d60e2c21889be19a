"""M1 as a model: variables, rows, and the values a known placement gives them.

Per kind of pod and cell one variable counts pods; per class of equal units and domain of their required level one counts
units. Pods asked at different levels share the flow down the tree: in each domain, the pods in its cells are those asked
there and those asked above it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from queuectl.planner.capacity.node_counts import NodeCounts
from queuectl.planner.placement.cells import Cells, Class
from queuectl.planner.placement.pack import Exact, add_exact
from queuectl.planner.problem.request import ANYWHERE
from queuectl.planner.problem.topology import Ints, Mask
from queuectl.planner.solver.solver import Model

Row: TypeAlias = dict[int, int]  # cell or domain -> variable


class Built:
    """The model of some cells, and what its variables mean."""

    def __init__(self, cells: Cells, refined: set[int], *, tight: bool = True) -> None:
        self.cells = cells
        self.model = Model()
        self.pods: list[Row] = [{} for _ in cells.kinds]  # per kind: cell -> variable
        self.units: list[Row] = [{} for _ in cells.classes]  # per class: domain -> variable
        self.exact: dict[int, Exact] = {}
        # variable of pods coming from above -> what it equals
        self._flows: list[tuple[int, list[int], list[int]]] = []
        # variable of whole slices -> pods of one, and the variables of their pods
        self._slices: list[tuple[int, int, list[int]]] = []
        self._add_pods()
        for c, row in zip(cells.classes, self.units, strict=True):
            if c.level != ANYWHERE:
                self._add_units(c, row)
        for kind in range(len(cells.kinds)):
            self._add_flow(kind)
            self._add_slices(kind)
        self._add_limits(refined, tight=tight)
        for cell in sorted(refined):
            self.exact[cell] = self._add_exact(cell)

    def kinds_in(self, cell: int) -> list[int]:
        return [kind for kind, row in enumerate(self.pods) if cell in row]

    def _add_pods(self) -> None:
        cells = self.cells
        for kind, row in enumerate(self.pods):
            most = np.minimum(cells.fits[kind], cells.request[kind])
            for cell in np.flatnonzero(most).tolist():
                row[cell] = self.model.var(0, int(most[cell]))

    def _add_units(self, c: Class, row: Row) -> None:
        """Units per domain of their required level; all of them must be somewhere."""
        cells = self.cells
        domain = cells.domain_of_cells(c.tree, c.level)
        size = len(cells.trees[c.tree].starts[c.level])
        most = np.full(size, len(c.units), dtype=np.int64)
        for kind, count in c.pods:
            held = self._held(kind, c.level, _sums(domain, cells.fits[kind], size))
            np.minimum(most, held // count, out=most)
        for d in np.flatnonzero(most).tolist():
            row[d] = self.model.var(0, int(most[d]))
        self.model.equal(list(row.values()), [1] * len(row), len(c.units))

    def _held(self, kind: int, level: int, sums: Ints) -> Ints:
        """Pods of a kind each domain of a level holds at most, by its sums and by the whole slices inside."""
        shape, tree = self.cells.kinds[kind]
        starts = self.cells.trees[tree].starts
        held = sums
        for below, size in shape.slices:
            fine = self.cells.domain_of_cells(tree, below)
            floors = _sums(fine, self.cells.fits[kind], len(starts[below])) // size * size
            above = np.searchsorted(starts[level], starts[below], side="right") - 1
            held = np.minimum(held, _sums(above, floors, len(sums)))
        return held

    # Pods of one kind: in each domain, those in its cells = those asked there + those asked above it.

    def _add_flow(self, kind: int) -> None:
        asked = self._asked(kind)
        levels = sorted(asked, reverse=True)
        supply, below = self.pods[kind], None
        for level in levels:
            inside = self._group(kind, supply, below, level)
            supply = self._balance(kind, inside, asked[level], onward=level != levels[-1])
            below = level

    def _asked(self, kind: int) -> dict[int, list[tuple[Row | None, int]]]:
        """Per level, the unit variables and the pods each unit stands for; no row: that many pods, unconditionally."""
        asked: dict[int, list[tuple[Row | None, int]]] = {}
        for c, row in zip(self.cells.classes, self.units, strict=True):
            count = sum(n for k, n in c.pods if k == kind)
            if count and c.level == ANYWHERE:
                asked.setdefault(ANYWHERE, []).append((None, count * len(c.units)))
            elif count:
                asked.setdefault(c.level, []).append((row, count))
        return asked

    def _group(self, kind: int, supply: Row, below: int | None, level: int) -> dict[int, list[int]]:
        """Variables of the cells (or of the domains of level ``below``) inside each domain of ``level``."""
        tree = self.cells.kinds[kind][1]
        coarse = self.cells.domain_of_cells(tree, level)
        if below is None:
            above = dict(enumerate(coarse.tolist()))
        else:
            fine = self.cells.domain_of_cells(tree, below)
            above = dict(zip(fine.tolist(), coarse.tolist(), strict=True))
        inside: dict[int, list[int]] = {0: []} if level == ANYWHERE else {}
        for child, variable in supply.items():
            inside.setdefault(above[child], []).append(variable)
        return inside

    def _balance(
        self,
        kind: int,
        inside: Mapping[int, list[int]],
        asked: Sequence[tuple[Row | None, int]],
        *,
        onward: bool,
    ) -> Row:
        """One row per domain; what is left for coarser levels becomes their supply."""
        constant = sum(count for row, count in asked if row is None)
        passed: Row = {}
        for domain in sorted({*inside, *(d for row, _ in asked for d in row or ())}):
            variables = list(inside.get(domain, ()))
            coeffs = [1] * len(variables)
            for row, count in asked:
                if row is not None and domain in row:
                    variables.append(row[domain])
                    coeffs.append(-count)
            if onward:
                most = sum(self.model.bounds[v][1] for v in inside.get(domain, ()))
                passed[domain] = self.model.var(0, min(most, self.cells.request[kind]))
                self._flows.append((passed[domain], variables, coeffs))
                variables, coeffs = [*variables, passed[domain]], [*coeffs, -1]
            self.model.equal(variables, coeffs, constant)
        return passed

    def _add_slices(self, kind: int) -> None:
        """In each domain of a slice's level, pods make whole slices."""
        for level, size in self.cells.kinds[kind][0].slices:
            inside = self._group(kind, self.pods[kind], None, level)
            for domain in sorted(inside):
                variables = inside[domain]
                most = sum(self.model.bounds[v][1] for v in variables) // size
                whole = self.model.var(0, most)
                self._slices.append((whole, size, variables))
                self.model.equal([*variables, whole], [*[1] * len(variables), -size], 0)

    # Capacity of the cells.

    def _add_limits(self, refined: set[int], *, tight: bool) -> None:
        cells = self.cells
        most = np.minimum(cells.fits, np.array(cells.request, dtype=np.int64)[:, None])
        coeffs, limits = cells.limits(tight=tight)
        binding: Mask = coeffs @ most > limits
        for cell in np.flatnonzero(binding.any(axis=0)).tolist():
            if cell in refined:
                continue
            kinds = self.kinds_in(cell)
            rows, there = coeffs[binding[:, cell]][:, kinds], limits[binding[:, cell], cell]
            telling = _telling(rows / np.maximum(there, 0.5)[:, None])
            variables = [self.pods[k][cell] for k in kinds]
            for row, limit in zip(rows[telling].tolist(), there[telling].tolist(), strict=True):
                asked = [(v, c) for v, c in zip(variables, row, strict=True) if c]
                self.model.row([v for v, _ in asked], [c for _, c in asked], 0, limit)

    def _add_exact(self, cell: int) -> Exact:
        kinds = self.kinds_in(cell)
        vectors = [self.cells.kinds[k][0].vector for k in kinds]
        totals = [self.pods[k][cell] for k in kinds]
        free = self.cells.free[:, self.cells.members[cell]]
        return add_exact(self.model, free, vectors, totals)

    # Between placements and values.

    def values_of(self, node_counts: Sequence[NodeCounts]) -> list[int]:
        """The values all variables take under a placement of the units."""
        values = [0] * len(self.model.bounds)
        for c, row in zip(self.cells.classes, self.units, strict=True):
            for unit in c.units:
                of_unit = self._as_asked(unit, node_counts[unit])
                for (kind, _), (nodes, counts) in zip(c.pods, of_unit, strict=True):
                    for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
                        values[self.pods[kind][self.cells.cell_of(node)]] += count
                if c.level != ANYWHERE:
                    domain = self.cells.trees[c.tree].domain[c.level]
                    values[row[int(domain[of_unit[0][0][0]])]] += 1
        for variable, others, coeffs in self._flows:
            values[variable] = sum(k * values[v] for v, k in zip(others, coeffs, strict=True))
        for variable, size, others in self._slices:
            values[variable] = sum(values[v] for v in others) // size
        return values

    def _as_asked(self, unit: int, node_counts: NodeCounts) -> NodeCounts:
        if not self.cells.units[unit].on_one_node:
            return node_counts
        return ((node_counts[0][0][:1], np.ones(1, dtype=np.int64)),)


def _telling(shares: NDArray[np.float64]) -> Mask:
    """Which rows (coefficients by their limit) no other row implies; of equal rows the first.

    A row lost to rounding costs nothing but strength: what the model finds is packed on real amounts.
    """
    implied: Mask = np.all(shares >= shares[:, None], axis=2)  # of row i by row j
    equal = implied & implied.T
    others = (implied & ~equal) | np.tril(equal, -1)
    telling: Mask = ~np.any(others, axis=1)
    return telling


def _sums(domain: Ints, values: Ints, size: int) -> Ints:
    sums = np.zeros(size, dtype=np.int64)
    visible = domain >= 0
    np.add.at(sums, domain[visible], values[visible])
    return sums
