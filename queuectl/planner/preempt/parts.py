"""A demand in the form the victim search wants: parts that share a domain of what they require.

Preferred levels do not count here: nobody is evicted for a preference. Where the gang then runs they count again.
"""

from __future__ import annotations

from dataclasses import dataclass

from queuectl.planner.problem.problem import Shape
from queuectl.planner.problem.request import ANYWHERE, GangRequest, Unit
from queuectl.planner.problem.topology import Tree


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """Pods that must share one domain of ``level`` (``ANYWHERE`` = none): count per shape, and the units they are of."""

    tree: Tree
    level: int
    counts: tuple[tuple[Shape, int], ...]
    units: tuple[int, ...]


def parts_of(request: GangRequest) -> tuple[Part, ...]:
    """Units as parts; those free to go anywhere in the same tree become one."""
    parts: list[Part] = []
    anywhere: dict[Tree, list[int]] = {}
    for number, unit in enumerate(request.units):
        level, counts = _counts(unit)
        if level == ANYWHERE:
            anywhere.setdefault(unit.tree, []).append(number)
        else:
            parts.append(Part(unit.tree, level, _merged(counts), (number,)))
    for tree, units in anywhere.items():
        together = [pair for number in units for pair in _counts(request.units[number])[1]]
        parts.append(Part(tree, ANYWHERE, _merged(together), tuple(units)))
    return tuple(parts)


def _counts(unit: Unit) -> tuple[int, list[tuple[Shape, int]]]:
    """A unit on one node is one large pod that may go anywhere."""
    if unit.on_one_node and unit.bundle is not None:
        return ANYWHERE, [(unit.bundle.shape, 1)]
    return unit.required, [(p.shape, p.count) for p in unit.pods]


def _merged(counts: list[tuple[Shape, int]]) -> tuple[tuple[Shape, int], ...]:
    merged: dict[Shape, int] = {}
    for shape, count in counts:
        merged[shape] = merged.get(shape, 0) + count
    return tuple(merged.items())
