"""Robust capacity: the numbers of atoms that fit a node in every order and with every choice of devices.

The set of such count vectors is downward closed: each part of a robust set of pods is robust. Running pods hold devices that are one
of the choices, so they count like pods that start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any, Final, TypeAlias

from queuectl.devices.allocation import Allocator, TooMuchWork
from queuectl.devices.needs import ABSENT, Need, NodeNeeds
from queuectl.devices.shares import Share
from queuectl.devices.states import State

Counts: TypeAlias = tuple[int, ...]  # per atom

STEPS: Final = 24_000  # devices that are tried for one kind of node
MOST_POINTS: Final = 4_000  # count vectors
MOST_STATES: Final = 200  # kinds of allocations for one count vector
MOST_ATOMS: Final = 110  # of one kind on a node; kubelet's default number of pods


@dataclass(frozen=True, slots=True)
class Region:
    """Count vectors that are known to be robust.

    ``complete``: no other is robust. Otherwise a limit ended the search.
    """

    points: frozenset[Counts]
    complete: bool

    def corner(self, atom: int) -> int:
        """The most of an atom without others."""
        return max(point[atom] for point in self.points if sum(point) == point[atom])


def explore(node: NodeNeeds) -> Region:
    """The robust count vectors of the atoms of a node.

    Each atom alone has steps of its own, so that a limit costs combinations before it costs these.
    """
    size = len(node.needs)
    points, complete = _grow(node, STEPS // 2) if size > 1 else ({(0,) * size}, True)
    for atom in range(size):
        most, sure = _alone(only(node, (atom,)), STEPS // (2 * size))
        points |= {_plus((0,) * size, atom, number) for number in range(most + 1)}
        complete &= sure
    return Region(frozenset(points), complete)


def only(node: NodeNeeds, atoms: Sequence[int]) -> NodeNeeds:
    """The node for some of its atoms: without devices that they cannot take, and counters that are enough for them."""
    needs = tuple(node.needs[atom] for atom in atoms)
    used = reduce(or_, (need.devices for need in needs if isinstance(need, Need)), 0)
    most = [0] * len(node.counters)
    for device, consumed in enumerate(node.consumes):
        for counter, amount in consumed if used >> device & 1 else ():
            most[counter] += amount
    binding = {c for c, amount in enumerate(most) if amount > node.counters[c]}
    rows = sorted({c.attribute for n in needs if isinstance(n, Need) for c in n.constraints})
    return NodeNeeds(
        tuple(_renumbered(need, rows) for need in needs),
        tuple(
            tuple(v if used >> d & 1 else ABSENT for d, v in enumerate(node.values[row]))
            for row in rows
        ),
        node.counters,
        tuple(
            tuple(pair for pair in consumed if pair[0] in binding) if used >> device & 1 else ()
            for device, consumed in enumerate(node.consumes)
        ),
        tuple(left if used >> device & 1 else None for device, left in enumerate(node.left)),
    )


def _renumbered(need: Need | str, rows: list[int]) -> Need | str:
    if isinstance(need, str):
        return need
    constraints = (replace(c, attribute=rows.index(c.attribute)) for c in need.constraints)
    return Need(need.requests, tuple(constraints))


def _alone(node: NodeNeeds, steps: int) -> tuple[int, bool]:
    """How many of the only atom fit, and whether no more do."""
    need = node.needs[0]
    assert isinstance(need, Need)
    first = need.requests[0][0]
    single = len(need.requests) == len(need.requests[0]) == first.count == 1
    if single and not (need.constraints or first.every or any(node.consumes)):
        most = first.devices.bit_count() - len(first.shares)
        for device, share in first.shares:
            most += _shares(node.left[device] or (), share)
        return min(most, MOST_ATOMS), True
    points, complete = _grow(node, steps)
    return max(map(sum, points)), complete


def _shares(left: Share, share: Share) -> int:
    """How often a share fits a device."""
    return min((int(a // b) for a, b in zip(left, share, strict=True) if b), default=MOST_ATOMS)


def _grow(node: NodeNeeds, steps: int) -> tuple[set[Counts], bool]:
    """Robust vectors, smallest sums first, and whether they are all."""
    allocator = Allocator(node, steps)
    zero = (0,) * len(node.needs)
    level: dict[Counts, dict[Any, State]] = {
        zero: {allocator.key(allocator.start): allocator.start}
    }
    points = {zero}
    while level:
        try:
            level = dict(_next(allocator, level))
        except TooMuchWork:
            return points, False
        points |= level.keys()
        if len(points) > MOST_POINTS or (level and max(map(max, level)) >= MOST_ATOMS):
            return points, False
    return points, True


def _next(
    allocator: Allocator,
    level: dict[Counts, dict[Any, State]],
) -> Iterator[tuple[Counts, dict[Any, State]]]:
    """Robust vectors with one atom more, each with the states that its allocations can lead to."""
    atoms = range(len(allocator.node.needs))
    larger = sorted({_plus(point, atom) for point in level for atom in atoms})
    for point in larger:
        states: dict[Any, State] = {}
        for atom in (a for a in atoms if point[a]):
            before = level.get(_plus(point, atom, -1))
            if before is None or not _all_fit(allocator, before, atom, states):
                break
        else:
            if len(states) > MOST_STATES:
                raise TooMuchWork
            yield point, states


def _all_fit(
    allocator: Allocator, before: dict[Any, State], atom: int, states: dict[Any, State]
) -> bool:
    """Whether an atom fits each of these states; adds the states that follow."""
    for state in before.values():
        results = allocator.results(state, atom)
        if not results:
            return False
        for result in results:
            states.setdefault(allocator.key(result), result)
    return True


def _plus(point: Counts, atom: int, amount: int = 1) -> Counts:
    return (*point[:atom], point[atom] + amount, *point[atom + 1 :])
