"""Gangs that may leave, in a model of placements: what that frees, and the rows that say what their stay costs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from queuectl.planner.model.classes import PlacementClasses
from queuectl.planner.problem.problem import most_pods_of_node
from queuectl.planner.problem.topology import Ints
from queuectl.planner.solver.solver import Model

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
        for gang, least in nodes.without_one():
            if least < most:
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

    def without_one(self) -> Iterator[tuple[int, int]]:
        """Per gang, the pods that fit once all others have left."""
        for gang in sorted(self.leaving):
            yield gang, self.holds(self.leaving - {gang})
