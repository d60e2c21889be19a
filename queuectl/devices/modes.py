"""Nodes that are kept for one kind of request, where several kinds of requests would lose much by sharing them.

Single GPUs can break the pairs of GPUs that another request needs. A node that holds only single GPUs holds more of them than
one that must be sure of both. Nodes with one kind of request are kept for it, and free nodes are divided by what is pending.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from queuectl.devices.rows import Group
from queuectl.devices.table import Kind, Mode

Modes: TypeAlias = Mapping[Kind, Mapping[Mode, Sequence[str]]]
"""Per kind of node, the names of the nodes in each mode."""


def modes_of(
    kind: Kind,
    nodes: Sequence[str],
    held: Mapping[str, frozenset[int]],
    demand: Mapping[frozenset[int], Mapping[int, int]],
) -> dict[Mode, list[str]]:
    """The nodes of a kind by their mode.

    Args:
        kind: of these nodes.
        nodes: names, in the order of the fleet.
        held: node to the atoms of the gangs that hold capacity of it; nodes without any are absent.
        demand: atoms of one pod to the number of each in all pending pods of this sort.
    """
    atoms = [held.get(name) for name in nodes]
    each = [_of_group(group, atoms, demand) for group in kind.groups]
    modes: dict[Mode, list[str]] = defaultdict(list)
    for name, mode in zip(nodes, zip(*each, strict=True), strict=True):
        modes[mode].append(name)
    return modes


def _of_group(
    group: Group,
    held: Sequence[frozenset[int] | None],
    demand: Mapping[frozenset[int], Mapping[int, int]],
) -> list[int | None]:
    """Per node, the first of the atoms with one need that it is kept for; None = for all atoms of the group."""
    lost = group.lost
    kept: list[int | None] = [None] * len(held)
    if not lost:
        return kept
    first = group.first_of
    places: dict[frozenset[int], list[int]] = defaultdict(list)  # atoms of the group to nodes
    of_group = {
        atoms: frozenset(first[a] for a in atoms or () if a in first) for atoms in set(held)
    }
    for i, atoms in enumerate(held):
        places[of_group[atoms]].append(i)
    wanted = _wanted(group, demand)
    for atoms, nodes in places.items():
        if len(atoms) == 1 and (atom := next(iter(atoms))) in lost:
            # Where others are pending too, they can preempt on the rest.
            alone = wanted.keys() <= {atom}
            number = len(nodes) if alone else _share(wanted, atom, len(nodes))
            for i in nodes[len(nodes) - number :]:
                kept[i] = atom
    free = places[frozenset()]
    total = len(free)
    for atom in sorted(a for a in wanted if a in lost and a is not None):
        number = total if len(wanted) == 1 else _share(wanted, atom, total)
        for _ in range(number):
            kept[free.pop()] = atom
    return kept


def _share(wanted: Mapping[int | None, int], atom: int, nodes: int) -> int:
    """The part of some nodes that an atom gets: what it needs, or else in proportion to what all need."""
    need, total = wanted.get(atom, 0), sum(wanted.values())
    return need if total <= nodes else need * nodes // total


def _wanted(
    group: Group, demand: Mapping[frozenset[int], Mapping[int, int]]
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
