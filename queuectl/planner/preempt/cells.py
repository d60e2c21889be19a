"""Rows of the mixed victim model: pods of several shapes on cells of nodes, with the victims' room as variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from queuectl.planner.capacity.node_counts import NodeCounts
from queuectl.planner.preempt.model import VictimModel
from queuectl.planner.preempt.parts import Part
from queuectl.planner.preempt.scene import Scene, domains_of
from queuectl.planner.problem.problem import Shape
from queuectl.planner.problem.request import ANYWHERE, GangRequest
from queuectl.planner.problem.topology import Ints, Mask, Tree

_Key = tuple[int, Shape]  # part number, shape
_Row: TypeAlias = tuple[
    list[int], list[int]
]  # what each shape asks; what is free and what each tenant frees


@dataclass(frozen=True, eq=False, slots=True)
class _Cell:
    """Nodes alike: free amounts, tenants, eligibility and domains."""

    nodes: tuple[int, ...]
    free: tuple[int, ...]
    tenants: Mapping[int, tuple[int, ...]]


class MixedModel:
    """Adds its variables and rows to a victim model.

    ``exact`` when every cell is one node: then a solution is a placement.
    """

    def __init__(
        self,
        building: VictimModel,
        parts: tuple[Part, ...],
        scenes: Mapping[_Key, Scene],
        free: Ints,
        scope: int,
        *,
        by_node: bool,
    ) -> None:
        self.building = building
        self.parts = parts
        self.scenes = scenes
        self.domains = [domains_of(part)[0] for part in parts]
        self.columns = sorted({c for _, shape in scenes for c in shape.columns})
        self.cells = self._cells(free, scope, by_node=by_node)
        self.exact = all(len(cell.nodes) == 1 for cell in self.cells)
        self._told: dict[object, list[int]] = {}
        self.pods: dict[_Key, dict[int, int]] = {
            key: self._pods(scene) for key, scene in scenes.items()
        }
        for number in range(len(parts)):
            self._choose_domain(number)
        for (number, shape), row in self.pods.items():
            self._keep_slices(parts[number].tree, shape, row)
        for at, cell in enumerate(self.cells):
            self._make_room(at, cell)

    def node_counts(self, values: Sequence[int], request: GangRequest) -> NodeCounts:
        """Read a placement out of an exact model's solution, per pods of the demand."""
        left = {key: self._placed(key[0], row, values) for key, row in self.pods.items()}
        part_of = {unit: number for number, part in enumerate(self.parts) for unit in part.units}
        taken = []
        for number, unit in enumerate(request.units):
            part = part_of[number]
            if unit.on_one_node and unit.bundle is not None:
                node = next(iter(_take(left[part, unit.bundle.shape], 1)))
                taken.extend([{node: p.count} for p in unit.pods])
            else:
                taken.extend([_take(left[part, p.shape], p.count) for p in unit.pods])
        return tuple(
            (np.array(list(t), dtype=np.int64), np.array(list(t.values()), dtype=np.int64))
            for t in taken
        )

    def _placed(self, part: int, row: dict[int, int], values: Sequence[int]) -> dict[int, int]:
        """Node to pods in topology order, so that slices come off it whole."""
        pods = {self.cells[at].nodes[0]: values[v] for at, v in row.items() if values[v]}
        place = self.parts[part].tree.position
        return dict(sorted(pods.items(), key=lambda item: int(place[item[0]])))

    # Cells.

    def _cells(self, free: Ints, scope: int, *, by_node: bool) -> list[_Cell]:
        useful = useful_nodes(self.scenes.values(), self.parts, scope)
        tenants = self._tenants(useful)
        marks = [s.shape.eligible.astype(np.int64) for s in self.scenes.values()]
        marks += [d for d, p in zip(self.domains, self.parts, strict=True) if p.level != ANYWHERE]
        marks += [
            self.parts[number].tree.domain[level]
            for number, shape in self.scenes
            for level, _ in shape.slices
        ]
        marks += [scene.delta for scene in self.scenes.values()]
        amounts = free[self.columns]
        groups: dict[object, list[int]] = {}
        for node in np.flatnonzero(useful).tolist():
            there = tuple(sorted(tenants.get(node, {}).items()))
            alike = (
                tuple(amounts[:, node].tolist()),
                there,
                tuple(int(mark[node]) for mark in marks),
                node if by_node else -1,
            )
            groups.setdefault(alike, []).append(node)
        return [
            _Cell(tuple(nodes), tuple(amounts[:, nodes[0]].tolist()), tenants.get(nodes[0], {}))
            for nodes in groups.values()
        ]

    def _tenants(self, useful: Mask) -> dict[int, dict[int, tuple[int, ...]]]:
        rows = self.building.bench.rows
        rows = rows.select(useful[rows.node])
        found: dict[int, dict[int, tuple[int, ...]]] = {}
        uses = rows.use[self.columns].T.tolist()
        for gang, node, use in zip(rows.gang.tolist(), rows.node.tolist(), uses, strict=True):
            if any(use):
                found.setdefault(node, {})[gang] = tuple(use)
        return found

    # Rows.

    def _pods(self, scene: Scene) -> dict[int, int]:
        """A variable for the pods of one shape in each cell that can hold any."""
        row = {}
        for at, cell in enumerate(self.cells):
            node = cell.nodes[0]
            most = int(scene.cap[node] + scene.delta[node]) * len(cell.nodes)
            if most > 0 and scene.domain[node] >= 0:
                row[at] = self.building.var(0, min(most, scene.count))
        return row

    def _choose_domain(self, number: int) -> None:
        """All pods of the part, in one domain if it must share one."""
        part, domain = self.parts[number], self.domains[number]
        model = self.building.model
        by_domain: dict[int, list[dict[int, int]]] = {}
        for shape, count in part.counts:
            row = self.pods[number, shape]
            if part.level == ANYWHERE:
                model.equal(list(row.values()), [1] * len(row), count)
                continue
            for at, variable in row.items():
                where = int(domain[self.cells[at].nodes[0]])
                rows = by_domain.setdefault(where, [{} for _ in part.counts])
                rows[[s for s, _ in part.counts].index(shape)][at] = variable
        if part.level == ANYWHERE:
            return
        chosen = {d: self.building.var(0, 1) for d in by_domain}
        model.equal(list(chosen.values()), [1] * len(chosen), 1)
        for d, rows in by_domain.items():
            for (_, count), inside in zip(part.counts, rows, strict=True):
                variables = [*inside.values(), chosen[d]]
                model.equal(variables, [1] * len(inside) + [-count], 0)

    def _keep_slices(self, tree: Tree, shape: Shape, row: dict[int, int]) -> None:
        """In each domain of a slice's level, pods make whole slices."""
        model = self.building.model
        for level, size in shape.slices:
            inside: dict[int, list[int]] = {}
            for at, variable in row.items():
                domain = int(tree.domain[level][self.cells[at].nodes[0]])
                inside.setdefault(domain, []).append(variable)
            for variables in inside.values():
                most = sum(model.bounds[v][1] for v in variables) // size
                whole = self.building.var(0, most)
                model.equal([*variables, whole], [*[1] * len(variables), -size], 0)

    def _make_room(self, at: int, cell: _Cell) -> None:
        """What the pods take of a cell is free or freed by its victims, resource by resource."""
        here = [(shape, row[at]) for (_, shape), row in self.pods.items() if at in row]
        size = len(cell.nodes)
        for i in self._telling(tuple(shape for shape, _ in here), cell):
            column = self.columns[i]
            asking = [(v, int(shape.vector[column])) for shape, v in here if shape.vector[column]]
            freeing = [
                (self.building.of[gang], -size * use[i])
                for gang, use in cell.tenants.items()
                if use[i]
            ]
            free = size * cell.free[i]
            if free < 0:
                freeing.append((self._opened([v for v, _ in asking]), -free))
            variables, coeffs = zip(*asking, *freeing, strict=True)
            self.building.model.at_most(variables, coeffs, max(0, free))

    def _telling(self, shapes: tuple[Shape, ...], cell: _Cell) -> list[int]:
        """Positions of the resources whose rows say something, for pods of these shapes there, that no other row says."""
        key = (shapes, cell.free, tuple(cell.tenants.values()))
        known = self._told.get(key)
        if known is None:
            asked = {i: [int(s.vector[c]) for s in shapes] for i, c in enumerate(self.columns)}
            rows = {
                i: (asks, [cell.free[i], *(use[i] for use in cell.tenants.values())])
                for i, asks in asked.items()
                if any(asks)
            }
            known = self._told[key] = [
                i for i in rows if not any(_speaks_for(rows, j, i) for j in rows if j != i)
            ]
        return known

    def _opened(self, pods: list[int]) -> int:
        """Where a resource is over, victims must make good the excess only if a pod that asks for it goes there."""
        model = self.building.model
        opened = self.building.var(0, 1)
        for variable in pods:
            model.at_most([variable, opened], [1, -model.bounds[variable][1]], 0)
        return opened


def useful_nodes(scenes: Iterable[Scene], parts: tuple[Part, ...], scope: int) -> Mask:
    """Nodes that hold a pod now or could after evictions, in one domain of the only part if ``scope`` names it."""
    holds = np.any(np.stack([s.cap + s.delta > 0 for s in scenes]), axis=0)
    useful: Mask = holds & (domains_of(parts[0])[0] == scope) if scope >= 0 else holds
    return useful


def _speaks_for(rows: Mapping[int, _Row], one: int, other: int) -> bool:
    """Whether row ``one`` implies row ``other``; of rows that imply each other the first does.

    Where more is used than there is, a row holds only while it is opened: it implies none, and is not implied.
    """
    if rows[one][1][0] < 0 or rows[other][1][0] < 0:
        return False
    return implies(rows[one], rows[other]) and (one < other or not implies(rows[other], rows[one]))


def implies(one: _Row, other: _Row) -> bool:
    """Whether ``asked <= room`` of one row, multiplied until it asks as much as the other, leaves no more room than that."""
    most, per = 0, 1
    for asks, of in zip(other[0], one[0], strict=True):
        if asks and not of:
            return False
        if asks * per > most * of:
            most, per = asks, of
    return all(room * per >= most * of for room, of in zip(other[1], one[1], strict=True))


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
