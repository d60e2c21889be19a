"""Robust capacity: the numbers of atoms that fit a node in every order and with every choice of devices, as rows of linear inequalities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from math import gcd
from operator import or_
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from queuectl.devices.allocation import Allocator, TooMuchWork
from queuectl.devices.needs import ABSENT, DeviceState, Need, NodeNeeds, Share

# ---- Robust capacity
#
# The set of such count vectors is downward closed: each part of a robust set of pods is robust. Running pods hold devices that are one
# of the choices, so they count like pods that start.

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

    Each atom alone has its own steps, so that a limit costs combinations before it costs these.
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
            tuple(v if used >> d & 1 else ABSENT for d, v in enumerate(node.attribute_values[row]))
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
    level: dict[Counts, dict[Any, DeviceState]] = {
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
    level: dict[Counts, dict[Any, DeviceState]],
) -> Iterator[tuple[Counts, dict[Any, DeviceState]]]:
    """Robust vectors with one atom more, each with the states that its allocations can lead to."""
    atoms = range(len(allocator.node.needs))
    larger = sorted({_plus(point, atom) for point in level for atom in atoms})
    for point in larger:
        states: dict[Any, DeviceState] = {}
        for atom in (a for a in atoms if point[a]):
            before = level.get(_plus(point, atom, -1))
            if before is None or not _all_fit(allocator, before, atom, states):
                break
        else:
            if len(states) > MOST_STATES:
                raise TooMuchWork
            yield point, states


def _all_fit(
    allocator: Allocator, before: dict[Any, DeviceState], atom: int, states: dict[Any, DeviceState]
) -> bool:
    """Whether an atom fits each of these states; adds the states that follow."""
    for state in before.values():
        outcomes = allocator.outcomes(state, atom)
        if not outcomes:
            return False
        for result in outcomes:
            states.setdefault(allocator.key(result), result)
    return True


def _plus(point: Counts, atom: int, amount: int = 1) -> Counts:
    return (*point[:atom], point[atom] + amount, *point[atom + 1 :])


# ---- Rows of linear inequalities

Weights: TypeAlias = tuple[tuple[int, int], ...]  # (atom, weight), by atom
Ints: TypeAlias = npt.NDArray[np.int64]

MOST_WEIGHTS: Final = 5_000  # weight vectors that are tried for one group of atoms


@dataclass(frozen=True, slots=True)
class AtomGroup:
    """Atoms of a node that compete for the same devices or counters, with their rows.

    Attributes:
        atoms: numbers.
        limits: weights, over all atoms of the node, to the largest sum.
        alone: per atom of the group, how many fit if no other atom of the group is on the node.
        first: per atom of the group, the first one with the same need on the node. Their pods can share a node without a loss.
        exact: whether all robust numbers of pods fulfill the limits.
    """

    atoms: tuple[int, ...]
    limits: tuple[tuple[Weights, int], ...]
    alone: tuple[int, ...]
    first: tuple[int, ...]
    exact: bool = True

    @property
    def lost(self) -> dict[int, int]:
        """Atoms of which more fit alone than the limits permit, with that number. Of atoms with the same need, the first one."""
        return {
            atom: most
            for atom, most, first in zip(self.atoms, self.alone, self.first, strict=True)
            if atom == first
            and any(dict(weights).get(atom, 0) * most > limit for weights, limit in self.limits)
        }

    @property
    def first_of(self) -> dict[int, int]:
        """Atom to the first one with the same need."""
        return dict(zip(self.atoms, self.first, strict=True))

    def like(self, atom: int) -> list[int]:
        """The atoms with the same need as a first one, itself included."""
        return [other for other, first in self.first_of.items() if first == atom]


def groups_of(node: NodeNeeds) -> tuple[AtomGroup, ...]:
    """The groups of atoms that a node can serve. An atom of administration is in none: it takes nothing."""
    return tuple(_group(node, atoms) for atoms in _competing(node))


def _competing(node: NodeNeeds) -> Iterator[tuple[int, ...]]:
    """Atoms in groups that share devices, or counters of devices."""
    users: dict[int, int] = {}
    for device, consumed in enumerate(node.consumes):
        for counter, _ in consumed:
            users[counter] = users.get(counter, 0) | 1 << device
    reach: list[tuple[int, set[int]]] = []
    for atom, need in enumerate(node.needs):
        if not isinstance(need, Need) or not need.requests:
            continue
        bits = need.devices
        wide = reduce(or_, (u for u in users.values() if u & bits), bits)
        near = [group for group in reach if group[0] & wide]
        reach = [group for group in reach if not group[0] & wide]
        near.sort(key=lambda group: -len(group[1]))
        atoms = near[0][1] if near else set[int]()
        atoms.update((atom,), *(own for _, own in near[1:]))  # the largest one is not copied
        reach.append((reduce(or_, (bits for bits, _ in near), wide), atoms))
    for _, atoms in reach:
        yield tuple(sorted(atoms))


def _group(node: NodeNeeds, atoms: tuple[int, ...]) -> AtomGroup:
    """Atoms with equal needs have equal weights."""
    alike: dict[Need | str, list[int]] = {}
    for atom in atoms:
        alike.setdefault(node.needs[atom], []).append(atom)
    region = explore(only(node, [same[0] for same in alike.values()]))
    rows, exact = inner_rows(region)
    alone = {
        atom: region.corner(number) for number, same in enumerate(alike.values()) for atom in same
    }
    limits = tuple(
        (
            tuple(
                sorted(
                    (a, w)
                    for same, w in zip(alike.values(), weights, strict=True)
                    if w
                    for a in same
                )
            ),
            limit,
        )
        for weights, limit in rows
    )
    first = {atom: same[0] for same in alike.values() for atom in same}
    return AtomGroup(
        atoms,
        limits,
        tuple(alone[atom] for atom in atoms),
        tuple(first[atom] for atom in atoms),
        exact and region.complete,
    )


def inner_rows(region: Region) -> tuple[list[tuple[Counts, int]], bool]:
    """Weights and limits whose solutions are all in the region, and whether they are the whole region.

    First rows that no point of the region breaks. For what these do not exclude, one row more. It leaves room for each atom,
    then for as many combinations of atoms as possible.
    """
    points = np.array(sorted(region.points), dtype=np.int64)
    outside = np.array(sorted(_just_outside(region.points)), dtype=np.int64)
    weights = _weights(points)
    sums = weights @ points.T
    limits: Ints = sums.max(axis=1)
    cut = weights @ outside.T > limits[:, None]
    rows: list[tuple[Counts, int]] = []
    open_points = np.ones(len(outside), dtype=np.bool_)
    while open_points.any():
        gain = (cut & open_points).sum(axis=1)
        best = int(np.argmax(gain))
        if not gain[best]:
            rows.append(_costly(region, weights, sums, weights @ outside[open_points].T))
            return _needed(rows, outside), False
        rows.append((_counts(weights[best]), int(limits[best])))
        open_points &= ~cut[best]
    return _needed(rows, outside), True


def _just_outside(points: Iterable[Counts]) -> set[Counts]:
    """The smallest vectors that are not in a downward closed set."""
    inside = set(points)
    outside = set()
    for point in inside:
        for atom in range(len(point)):
            larger = (*point[:atom], point[atom] + 1, *point[atom + 1 :])
            if larger not in inside and all(
                (*larger[:i], n - 1, *larger[i + 1 :]) in inside for i, n in enumerate(larger) if n
            ):
                outside.add(larger)
    return outside


def _weights(points: Ints) -> Ints:
    """Weight vectors to try, small ones first."""
    size = points.shape[1]
    largest = max(1, int(points.max()))
    most = next(
        m for m in range(min(largest, 16), 0, -1) if m == 1 or (m + 1) ** size <= MOST_WEIGHTS
    )
    if 2**size > MOST_WEIGHTS:
        found = [tuple(int(i == j) for j in range(size)) for i in range(size)] + [(1,) * size]
    else:
        found = [w for w in product(range(most + 1), repeat=size) if gcd(*w) == 1]
    return np.array(sorted(found, key=lambda w: (sum(w), w)), dtype=np.int64)


def _costly(region: Region, weights: Ints, sums: Ints, outside: Ints) -> tuple[Counts, int]:
    """The row that excludes all these vectors, at the least cost."""
    limits: Ints = outside.min(axis=1) - 1
    corners = np.array([region.corner(i) for i in range(weights.shape[1])], dtype=np.int64)
    whole = weights * corners > limits[:, None]
    none = ((weights > limits[:, None]) & (corners > 0)).sum(axis=1)
    mixed = np.array([sum(point) > max(point) for point in sorted(region.points)])
    broken = sums > limits[:, None]
    best = int(
        np.lexsort((broken.sum(axis=1), whole.sum(axis=1), broken[:, mixed].sum(axis=1), none))[0]
    )
    return _counts(weights[best]), int(limits[best])


def _needed(rows: list[tuple[Counts, int]], outside: Ints) -> list[tuple[Counts, int]]:
    """The rows without those that exclude nothing that the others do not."""
    unique = list(dict.fromkeys(rows))
    if len(unique) < 2:
        return unique
    weights = np.array([row for row, _ in unique], dtype=np.int64)
    limits = np.array([limit for _, limit in unique], dtype=np.int64)
    excluded = weights @ outside.T > limits[:, None]
    rows_of_vector = excluded.sum(axis=0)
    kept: list[tuple[Counts, int]] = []
    for number, (row, own) in enumerate(zip(unique, excluded, strict=True)):
        last = not kept and number == len(unique) - 1
        if not last and (rows_of_vector - own > 0).all():
            rows_of_vector = rows_of_vector - own
        else:
            kept.append(row)
    return kept


def _counts(vector: Ints) -> Counts:
    return tuple(int(n) for n in vector)
