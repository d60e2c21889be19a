"""Nodes that are kept for one kind of request, where several kinds of requests would lose much by sharing them.

Single GPUs can break the pairs of GPUs that another request needs. A node that holds only single GPUs holds more of them than
one that must be sure of both. Nodes with one kind of request are kept for it, and free nodes are divided by what is pending.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from queuectl.devices.rows import AtomGroup
from queuectl.devices.table import Mode, NodeKind

Modes: TypeAlias = Mapping[NodeKind, Mapping[Mode, Sequence[str]]]
"""Per kind of node, the names of the nodes in each mode."""


Places: TypeAlias = Mapping[frozenset[int] | None, Sequence[int]]
"""Atoms of the gangs on a node, None for a node without any, to the numbers of these nodes."""


def places_of(nodes: Sequence[str], held: Mapping[str, frozenset[int]]) -> Places:
    """Some nodes by the atoms of the gangs that hold capacity of them."""
    places: dict[frozenset[int] | None, list[int]] = defaultdict(list)
    for i, atoms in enumerate(map(held.get, nodes)):
        places[atoms].append(i)
    return places


def modes_of(
    kind: NodeKind,
    nodes: Sequence[str],
    places: Places,
    demand: Mapping[frozenset[int], Mapping[int, int]],
) -> dict[Mode, list[str]]:
    """The nodes of a kind by their mode.

    Args:
        kind: of these nodes.
        nodes: names, in the order of the fleet.
        places: of these nodes.
        demand: atoms of one pod to the number of each in all pending pods of this sort.
    """
    each = [_of_group(group, places, len(nodes), demand) for group in kind.groups]
    modes: dict[Mode, list[str]] = defaultdict(list)
    for name, mode in zip(nodes, zip(*each, strict=True), strict=True):
        modes[mode].append(name)
    return modes


def _of_group(
    group: AtomGroup,
    held: Places,
    size: int,
    demand: Mapping[frozenset[int], Mapping[int, int]],
) -> list[int | None]:
    """Per node, of which there are ``size``, the first of the atoms with one need that it is kept for; None = for all of the group."""
    lost = group.lost
    firsts: list[int | None] = [None] * size
    if not lost:
        return firsts
    first = group.first_of
    places: dict[frozenset[int], list[int]] = defaultdict(list)  # atoms of the group to nodes
    for atoms, numbers in held.items():
        places[frozenset(first[a] for a in atoms or () if a in first)] += numbers
    for found in places.values():
        found.sort()
    needs = _wanted(group, demand)
    for own, nodes in places.items():
        if len(own) == 1 and (atom := next(iter(own))) in lost:
            # Where others are pending too, they can preempt on the rest.
            alone = needs.keys() <= {atom}
            number = len(nodes) if alone else _share(needs, atom, len(nodes))
            for i in nodes[len(nodes) - number :]:
                firsts[i] = atom
    free = places[frozenset()]
    total = len(free)
    for atom in sorted(a for a in needs if a in lost and a is not None):
        number = total if len(needs) == 1 else _share(needs, atom, total)
        for _ in range(number):
            firsts[free.pop()] = atom
    return firsts


def _share(needs: Mapping[int | None, int], atom: int, nodes: int) -> int:
    """The part of some nodes that an atom gets: what it needs, or else in proportion to what all need."""
    need, total = needs.get(atom, 0), sum(needs.values())
    return need if total <= nodes else need * nodes // total


def _wanted(
    group: AtomGroup, demand: Mapping[frozenset[int], Mapping[int, int]]
) -> dict[int | None, int]:
    """First atom of each need to the number of nodes that its pending pods need; None for pods with several needs."""
    alone = dict(zip(group.atoms, group.alone, strict=True))
    first = group.first_of
    wanted: dict[int | None, int] = {}
    for atoms, amounts in demand.items():
        ours = sorted(atoms & alone.keys())
        needs = {first[atom] for atom in ours}
        key = next(iter(needs)) if len(needs) == 1 else None
        for atom in ours:
            if alone[atom]:
                wanted[key] = wanted.get(key, 0) - -amounts[atom] // alone[atom]
    return wanted
