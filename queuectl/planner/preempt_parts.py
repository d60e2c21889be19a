"""A demand at one step of its preferences, in the form the victim search wants: parts that share a domain.

Preferred levels are tried before cheaper victims elsewhere: all units start at the level they prefer and climb together,
one level at a time, down to what they require.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from queuectl.planner.demand import ANYWHERE, Demand, Shape, Unit
from queuectl.planner.topology import Tree
from queuectl.planner.witness import levels_to_try


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """Pods that must share one domain of ``level`` (``tree.depth`` = one node, ``ANYWHERE`` = none): count per shape."""

    tree: Tree
    level: int
    counts: tuple[tuple[Shape, int], ...]


def steps(demand: Demand) -> Iterator[Demand]:
    """The demand with ever coarser levels required in place of preferred ones."""
    tries = [list(levels_to_try(unit)) for unit in demand.units]
    for step in range(max((len(levels) for levels in tries), default=1)):
        units = [
            replace(unit, required=levels[min(step, len(levels) - 1)], preferred=ANYWHERE)
            for unit, levels in zip(demand.units, tries, strict=True)
        ]
        yield replace(demand, units=tuple(units))


def parts_of(demand: Demand) -> tuple[Part, ...]:
    """Units as parts; those free to go anywhere in the same tree become one."""
    parts: list[Part] = []
    anywhere: dict[Tree, list[tuple[Shape, int]]] = {}
    for unit in demand.units:
        level, counts = _counts(unit)
        if level == ANYWHERE:
            anywhere.setdefault(unit.tree, []).extend(counts)
        else:
            parts.append(Part(unit.tree, level, _merged(counts)))
    parts.extend(Part(tree, ANYWHERE, _merged(counts)) for tree, counts in anywhere.items())
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
