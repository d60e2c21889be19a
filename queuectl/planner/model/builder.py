"""The one model builder: variables and rows in named groups, the values that a known placement gives them, and the placement of a solution.

Groups of rows, each optional but the first three:

- *podset groups*: every podset group of a group class is in one domain of its required level;
- *flow*: in each domain, the pods on its nodes are those asked there and those asked above it, level by level to the root;
- *capacity*: what pods take of a node class is free there, or freed by gangs that leave;
- *blocked*: what pods a node class holds while one of the gangs that may leave stays (implied in integers);
- *slices*: pods of a domain of a slice's level make whole slices;
- *patterns*: in node classes that do not pack by sums, exact rows (:mod:`queuectl.planner.model.patterns`);
- *exits*: gangs that may leave what they hold. A podset group with an owner is placed if its owner leaves, one without in any case;
- *quota*: those of the final check (:mod:`queuectl.planner.placement.feasible`);
- *objective*: layers, first to last, as weighted sums.

An exit is an integer variable; today it is 0 or 1. The capacity of gangs that leave, and the pods that must be placed again, are multiples of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from queuectl.planner.capacity.node_counts import NodeCounts
from queuectl.planner.model.classes import GroupClass, PlacementClasses
from queuectl.planner.model.patterns import Exact, add_exact, greedy
from queuectl.planner.problem.fleet import Ints, Mask
from queuectl.planner.problem.problem import most_pods_of_node
from queuectl.planner.problem.request import ANYWHERE
from queuectl.planner.solver import LARGEST, Model, Solution, Solver, Status

Row: TypeAlias = dict[int, int]  # node class or domain -> variable


class Layer(NamedTuple):
    """One layer of an objective: a sum to be least, and how far it can reach from its least value."""

    variables: list[int]
    coeffs: list[int]
    reach: int


def stages(reaches: Sequence[int], limit: int) -> list[list[int]]:
    """Weights under which sums of layers compare as the layers do, first to last.

    Args:
        reaches: how far each layer can reach.
        limit: of one weighted sum.

    Returns:
        Per stage, the weights of its layers. A layer that exceeds the limit together with those before it is of the next stage.
    """
    found: list[list[int]] = [[]]
    reach = 1
    for each in reaches:
        if found[-1] and reach * (each + 1) >= limit:
            found.append([])
            reach = 1
        found[-1] = [weight * (each + 1) for weight in found[-1]] + [1]
        reach *= each + 1
    return found


class ModelBuilder:
    """The model of some classes, and what its variables mean.

    Attributes:
        pods: per pod class, node class to the variable that counts its pods there.
        podset_groups: per group class, domain to the variable that counts its podset groups there.
        exits: gang to the variable of its exit.
        patterns: of the node classes that have exact rows.
        derived: variables that follow from others: (variable, others, coefficients, size), the sum of the others divided by the size.
    """

    def __init__(
        self,
        classes: PlacementClasses,
        exact: Collection[int] = (),
        *,
        tight: bool = True,
        exits: Exits | None = None,
    ) -> None:
        """Build the model.

        Args:
            classes: what is placed where.
            exact: node classes that get exact rows.
            tight: with the bounds of devices.
            exits: gangs that may leave.
        """
        self.classes = classes
        self.model = Model()
        self._leaving = exits
        self.exits = {g: self.model.var(0, 1) for g in exits.gangs} if exits is not None else {}
        self.pods: list[Row] = [{} for _ in classes.pods]
        self.podset_groups: list[Row] = [{} for _ in classes.groups]
        self.patterns: dict[int, Exact] = {}
        self.derived: list[tuple[int, list[int], list[int], int]] = []
        self._add_pods()
        for group, row in zip(classes.groups, self.podset_groups, strict=True):
            if group.level != ANYWHERE:
                self._add_podset_groups(group, row)
        for number in range(len(classes.pods)):
            self._add_flow(number)
            self._add_slices(number)
        self._add_capacity(exact, tight=tight)
        for node_class in sorted(exact):
            self._add_exact(node_class)

    def pod_classes_in(self, node_class: int) -> list[int]:
        """Numbers of the pod classes that can have pods there."""
        return [number for number, row in enumerate(self.pods) if node_class in row]

    def _pods_in(self, node_class: int) -> dict[int, int]:
        """Pod class to the variable that counts its pods there."""
        return {number: self.pods[number][node_class] for number in self.pod_classes_in(node_class)}

    def most(self, variables: Sequence[int]) -> int:
        """An upper bound of the sum of these variables."""
        return sum(self.model.bounds[v][1] for v in variables)

    def _add_pods(self) -> None:
        for number, row in enumerate(self.pods):
            most = np.minimum(self.classes.fits[number], self.classes.demand[number])
            for node_class in np.flatnonzero(most).tolist():
                row[node_class] = self.model.var(0, int(most[node_class]))

    # PodSet groups, and what of them must be placed.

    def _add_podset_groups(self, group: GroupClass, row: Row) -> None:
        """PodSet groups per domain of their required level; all that must be placed are somewhere."""
        starts = self.classes.trees[group.tree].starts[group.level]
        most = np.full(len(starts), len(group.podset_groups), dtype=np.int64)
        for number, count in group.pods:
            np.minimum(most, self.classes.holding(number, group.level) // count, out=most)
        for domain in np.flatnonzero(most).tolist():
            if group.only in (ANYWHERE, domain):
                row[domain] = self.model.var(0, int(most[domain]))
        constant, terms = self._placed(group)
        variables = [*row.values(), *terms]
        self.model.equal(variables, [1] * len(row) + [-c for c in terms.values()], constant)

    def _placed(self, group: GroupClass) -> tuple[int, Terms]:
        """How many podset groups of a class are placed: so many in any case, and those of gangs that leave."""
        if self._leaving is None:
            return len(group.podset_groups), {}
        terms: Terms = {}
        owners = [self._leaving.owners[podset_group] for podset_group in group.podset_groups]
        for owner in owners:
            if owner != STAYS:
                variable = self.exits[owner]
                terms[variable] = terms.get(variable, 0) + 1
        return owners.count(STAYS), terms

    # Pods of one class: in each domain, those on its nodes = those asked there + those asked above it.

    def _add_flow(self, number: int) -> None:
        levels = sorted(
            {group.level for group in self.classes.groups if group.count(number)}, reverse=True
        )
        supply, below = self.pods[number], None
        for level in levels:
            inside = self._inside(number, supply, below, level)
            supply = self._balance(number, inside, level, onward=level != levels[-1])
            below = level

    def _inside(
        self, number: int, supply: Row, below: int | None, level: int
    ) -> dict[int, list[int]]:
        """Variables of the node classes (or of the domains of level ``below``) inside each domain of ``level``."""
        tree = self.classes.pods[number][1]
        coarse = self.classes.domains(tree, level)
        if below is None:
            above = dict(enumerate(coarse.tolist()))
        else:
            fine = self.classes.domains(tree, below)
            above = dict(zip(fine.tolist(), coarse.tolist(), strict=True))
        inside: dict[int, list[int]] = {0: []} if level == ANYWHERE else {}
        for child, variable in supply.items():
            inside.setdefault(above[child], []).append(variable)
        return inside

    def _balance(
        self, number: int, inside: Mapping[int, list[int]], level: int, *, onward: bool
    ) -> Row:
        """One row per domain; what is left for coarser levels becomes their supply."""
        asked = self._asked(number, level)
        passed: Row = {}
        for domain in sorted({*inside, *asked}):
            constant, terms = asked.get(domain, (0, {}))
            below = inside.get(domain, [])
            variables = [*below, *terms]
            coeffs = [1] * len(below) + [-c for c in terms.values()]
            if onward:
                most = min(self.most(below), self.classes.demand[number])
                passed[domain] = self.model.var(0, most)
                self.derived.append((passed[domain], variables, coeffs, 1))
                variables, coeffs = [*variables, passed[domain]], [*coeffs, -1]
            self.model.equal(variables, coeffs, constant)
        return passed

    def _asked(self, number: int, level: int) -> dict[int, tuple[int, Terms]]:
        """Pods of a class asked in each domain of a level: so many in any case, and by podset groups that choose it or are placed."""
        demand: dict[int, tuple[int, Terms]] = {}
        for group, row in zip(self.classes.groups, self.podset_groups, strict=True):
            count = group.count(number)
            if not count or group.level != level:
                continue
            if level == ANYWHERE:
                constant, terms = self._placed(group)
                before, known = demand.get(0, (0, {}))
                demand[0] = before + count * constant, known
                add_terms(known, terms, count)
            for domain, variable in row.items():
                add_terms(demand.setdefault(domain, (0, {}))[1], {variable: 1}, count)
        return demand

    def _add_slices(self, number: int) -> None:
        """In each domain of a slice's level, pods make whole slices."""
        for level, size in self.classes.pods[number][0].slices:
            inside = self._inside(number, self.pods[number], None, level)
            for domain in sorted(inside):
                variables = inside[domain]
                whole = self.model.var(0, self.most(variables) // size)
                self.derived.append((whole, variables, [1] * len(variables), size))
                self.model.equal([*variables, whole], [*[1] * len(variables), -size], 0)

    # Capacity of the node classes.

    def _add_capacity(self, exact: Collection[int], *, tight: bool) -> None:
        classes, exits = self.classes, self._leaving
        freed = exits.freed(classes, self.exits) if exits is not None else {}
        if not classes.pods:
            return
        most = np.minimum(classes.fits, np.array(classes.demand, dtype=np.int64)[:, None])
        limits = classes.limits(tight=tight)
        binding: Mask = limits.coeffs @ most > limits.most
        for node_class in freed:
            binding[limits.columns < 0, node_class] = False
        enough = {
            node_class
            for node_class, back in freed.items()
            if add_blocked(self.model, classes, node_class, back, self._pods_in(node_class))
        }
        for node_class in np.flatnonzero(binding.any(axis=0)).tolist():
            if node_class in exact or node_class in enough:
                continue
            rows = np.flatnonzero(binding[:, node_class])
            numbers = self.pod_classes_in(node_class)
            coeffs, there = limits.coeffs[rows][:, numbers], limits.most[rows, node_class]
            if node_class not in freed:
                undominated = _undominated(coeffs / np.maximum(there, 0.5)[:, None])
                rows, coeffs, there = rows[undominated], coeffs[undominated], there[undominated]
            variables = [self.pods[number][node_class] for number in numbers]
            for at, row, limit in zip(rows.tolist(), coeffs.tolist(), there.tolist(), strict=True):
                terms = {v: c for v, c in zip(variables, row, strict=True) if c}
                pods = list(terms)
                column = int(limits.columns[at])
                back = freed.get(node_class, {}).get(column, {})
                add_terms(terms, back, -1)
                low = -sum(c for c in back.values())
                over = -int(classes.free[column, classes.members[node_class][0]]) if back else 0
                if over > 0:  # it must leave before any pods are there
                    add_terms(terms, {self.any_of(pods): over}, 1)
                self.model.row(list(terms), list(terms.values()), low, limit)

    def any_of(self, variables: Sequence[int]) -> int:
        """A variable that is 1 if any of these is more than 0."""
        bounds = [self.model.bounds[variable][1] for variable in variables]
        if bounds == [1]:
            return variables[0]
        some = self.model.var(0, 1)
        for variable, most in zip(variables, bounds, strict=True):
            self.model.at_most([variable, some], [1, -most], 0)
        return some

    def _add_exact(self, node_class: int) -> None:
        numbers = self.pod_classes_in(node_class)
        vectors = [self.classes.pods[number][0].vector for number in numbers]
        totals = [self.pods[number][node_class] for number in numbers]
        free = self.classes.free[:, self.classes.members[node_class]]
        self.patterns[node_class] = add_exact(self.model, free, vectors, totals)

    def left(self, solution: Sequence[int]) -> frozenset[int]:
        """The gangs that leave in a solution."""
        return frozenset(gang for gang, variable in self.exits.items() if solution[variable])

    # Objective.

    def minimize(self, layers: Sequence[Layer]) -> None:
        """All layers in one objective; the last ones are left out where the weights would grow too large."""
        first = stages([layer.reach for layer in layers], LARGEST)[0]
        coeffs: Terms = {}
        for weight, layer in zip(first, layers, strict=False):
            for variable, coeff in zip(layer.variables, layer.coeffs, strict=True):
                add_terms(coeffs, {variable: coeff}, weight)
        self.model.minimize(list(coeffs), list(coeffs.values()))


def _undominated(shares: NDArray[np.float64]) -> Mask:
    """Which rows (coefficients by their limit) no other row implies; of equal rows the first.

    A row lost to rounding costs nothing but strength: what the model finds is packed on real amounts.
    """
    implied: Mask = np.all(shares >= shares[:, None], axis=2)  # of row i by row j
    equal = implied & implied.T
    others = (implied & ~equal) | np.tril(equal, -1)
    undominated: Mask = ~np.any(others, axis=1)
    return undominated


# ---- Gangs that may leave
#
# The capacity that their leaving frees, and the rows that say what their stay costs.


Terms: TypeAlias = dict[int, int]  # variable -> coefficient

STAYS: Final = -1  # the owner of a podset group that is placed in any case


@dataclass(frozen=True, eq=False, slots=True)
class Exits:
    """Gangs that may leave what they hold.

    Attributes:
        gangs: their numbers.
        gang: per row, whose it is. Shape (M,).
        node: per row, where. Shape (M,).
        use: per row, what it holds there. Shape (R, M).
        owners: per podset group of the model, the gang that must be placed there if it leaves; STAYS where that depends on none.
    """

    gangs: Sequence[int]
    gang: Ints
    node: Ints
    use: Ints
    owners: Sequence[int]

    def freed(
        self, classes: PlacementClasses, variables: Mapping[int, int]
    ) -> dict[int, dict[int, Terms]]:
        """Node class to resource to what exits free there; ``variables``: of the gangs."""
        freed: dict[int, dict[int, Terms]] = {}
        rows = zip(self.gang.tolist(), self.node.tolist(), self.use.T.tolist(), strict=True)
        for gang, node, use in rows:
            node_class = classes.class_of(node)
            if node_class is not None:
                of_class = freed.setdefault(node_class, {})
                for column, amount in enumerate(use):
                    if amount:
                        add_terms(of_class.setdefault(column, {}), {variables[gang]: 1}, amount)
        return freed


def add_terms(terms: Terms, more: Mapping[int, int], times: int) -> None:
    """Add a multiple of a sum to another one."""
    for variable, coeff in more.items():
        terms[variable] = terms.get(variable, 0) + coeff * times


def add_blocked(
    model: Model,
    classes: PlacementClasses,
    node_class: int,
    freed: Mapping[int, Terms],
    pods: Mapping[int, int],
) -> bool:
    """Per gang that may leave: how many pods a node class holds while it stays. In integers the rows of resources imply it.

    Args:
        model: that the rows are added to.
        classes: of the model.
        node_class: its nodes are equal.
        freed: resource to what exits free of it there.
        pods: pod class to the variable that counts its pods there.

    Returns:
        Whether these rows imply those of the resources in turn.
    """
    enough = len(pods) == 1
    for number, variable in pods.items():
        nodes = _Node(classes, node_class, number, freed)
        now, most, blocking = nodes.holds(()), nodes.holds(nodes.leaving), set()
        for gang in sorted(nodes.leaving):
            if (least := nodes.holds(nodes.leaving - {gang})) < most:
                blocking.add(gang)
                enough &= least == now
                coeffs = [1, -nodes.size * (most - least)]
                model.at_most([variable, gang], coeffs, nodes.size * least)
        enough = enough and nodes.holds(blocking) == most
    return enough


class _Node:
    """One of the equal nodes of a class, for pods of one class."""

    def __init__(
        self, classes: PlacementClasses, node_class: int, pod_class: int, freed: Mapping[int, Terms]
    ) -> None:
        members = classes.members[node_class]
        vector, free = classes.pods[pod_class][0].vector, classes.free[:, members[0]]
        columns = vector.nonzero()[0]
        self.size = len(members)
        self.leaving = {variable for terms in freed.values() for variable in terms}
        self._asked: list[int] = vector[columns].tolist()
        self._resources = [(int(free[c]), freed.get(c, {})) for c in columns.tolist()]

    def holds(self, gone: Collection[int]) -> int:
        """Pods that fit once these gangs have left."""
        free = [
            there + sum(terms.get(gang, 0) for gang in gone) // self.size
            for there, terms in self._resources
        ]
        return most_pods_of_node(free, self._asked)


# ---- Between placements and values of variables

Packing: TypeAlias = dict[int, dict[int, Ints]]  # node class -> pod class -> pods per node


@dataclass(frozen=True, slots=True)
class Placed:
    """The answer to one model. When SOLVED, ``node_counts`` and the ``domains`` of their required levels, per podset group in order."""

    status: Status
    node_counts: tuple[NodeCounts, ...] = ()
    domains: tuple[int, ...] = ()
    alarm: str = ""


def values_of(built: ModelBuilder, node_counts: Sequence[NodeCounts]) -> list[int]:
    """The values that all variables take under a placement of the podset groups, where no gang leaves."""
    classes, hint = built.classes, [0] * len(built.model.bounds)
    for group, row in zip(classes.groups, built.podset_groups, strict=True):
        for podset_group in group.podset_groups:
            placed = node_counts[podset_group]
            if classes.podset_groups[podset_group].on_one_node:
                placed = ((placed[0][0][:1], np.ones(1, dtype=np.int64)),)
            for (number, _), (nodes, counts) in zip(group.pods, placed, strict=True):
                for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
                    node_class = classes.class_of(node)
                    assert node_class is not None
                    hint[built.pods[number][node_class]] += count
            if group.level != ANYWHERE:
                domain = classes.trees[group.tree].domain[group.level]
                hint[row[int(domain[placed[0][0][0]])]] += 1
    for variable, others, coeffs, size in built.derived:
        hint[variable] = sum(k * hint[v] for v, k in zip(others, coeffs, strict=True)) // size
    return hint


def pack_all(
    built: ModelBuilder, solution: Sequence[int], solver: Solver, budget: int = 0
) -> tuple[Packing, set[int] | Solution]:
    """Pods per node of every class; with the node classes that have no packing, or the outcome that ended it."""
    packing: Packing = {}
    failed: set[int] = set()
    for node_class, nodes in enumerate(built.classes.members):
        there = built.pod_classes_in(node_class)
        totals = [solution[built.pods[number][node_class]] for number in there]
        with_pods = [number for number, count in zip(there, totals, strict=True) if count]
        if not with_pods:
            continue
        if node_class in built.patterns:
            placed = built.patterns[node_class].read(solution, totals)
            packing[node_class] = {number: placed[there.index(number)] for number in with_pods}
            continue
        vectors = [built.classes.pods[number][0].vector for number in with_pods]
        counts = [count for count in totals if count]
        packed = _pack(built.classes.free[:, nodes], vectors, counts, solver, budget)
        if isinstance(packed, Solution):
            if packed.status is not Status.REFUTED:
                return packing, packed
            failed.add(node_class)
        else:
            packing[node_class] = dict(zip(with_pods, packed, strict=True))
    return packing, failed


def _pack(
    free: Ints, vectors: Sequence[Ints], counts: Sequence[int], solver: Solver, budget: int
) -> Ints | Solution:
    """Greedily, otherwise by the solver; REFUTED when these counts have no packing."""
    placed = greedy(free, vectors, counts)
    if placed is not None:
        return placed
    model = Model()
    totals = [model.var(count, count) for count in counts]
    exact = add_exact(model, free, vectors, totals)
    outcome = solver.solve(model, budget, completes=True)
    if outcome.status is not Status.SOLVED:
        return outcome
    return exact.read(outcome.assignment, counts)


def hand_out(built: ModelBuilder, solution: Sequence[int], packing: Packing) -> Placed:
    """Give the packed pods to the podset groups, finest required level first: what they leave is enough for the coarser."""
    classes = built.classes
    left = [np.zeros(classes.free.shape[1], dtype=np.int64) for _ in classes.pods]
    for node_class, by_pod_class in packing.items():
        for number, placed in by_pod_class.items():
            left[number][classes.members[node_class]] = placed
    node_counts: dict[int, NodeCounts] = {}
    domains = [ANYWHERE] * len(classes.podset_groups)
    for at in sorted(range(len(classes.groups)), key=lambda at: -classes.groups[at].level):
        group = classes.groups[at]
        chosen = [d for d, v in built.podset_groups[at].items() for _ in range(solution[v])]
        for place, podset_group in enumerate(group.podset_groups):
            if group.level != ANYWHERE:
                domains[podset_group] = chosen[place]
            nodes = _nodes(classes, group, domains[podset_group])
            taken = tuple(_take(left[number], nodes, count) for number, count in group.pods)
            node_counts[podset_group] = _as_placed(classes, podset_group, taken)
    in_order = tuple(
        node_counts[podset_group] for podset_group in range(len(classes.podset_groups))
    )
    return Placed(Status.SOLVED, in_order, tuple(domains))


def _nodes(classes: PlacementClasses, group: GroupClass, domain: int) -> Ints:
    tree = classes.trees[group.tree]
    return tree.order if group.level == ANYWHERE else tree.nodes_in(group.level, domain)


def _take(left: Ints, nodes: Ints, count: int) -> tuple[Ints, Ints]:
    """``count`` pods from the first of ``nodes`` that have any."""
    there = left[nodes]
    with_pods = there.nonzero()[0]
    room = there[with_pods].cumsum()
    last = int(room.searchsorted(count))
    used, shares = nodes[with_pods[: last + 1]], there[with_pods[: last + 1]]
    shares[last] -= room[last] - count
    left[used] -= shares
    return used, shares


def _as_placed(classes: PlacementClasses, podset_group: int, on_nodes: NodeCounts) -> NodeCounts:
    group = classes.podset_groups[podset_group]
    if not group.on_one_node:
        return on_nodes
    node = on_nodes[0][0]
    return tuple((node, np.array([p.count], dtype=np.int64)) for p in group.pods)
