"""The fewest nodes to add, and where, so that a gang fits: "2 more nodes like n-17 in rack r3".

A domain must gain at least what the floor sums say it lacks; the domains are tried in the order of that bound, with the real
placement on the nodes of the domain and the new ones. Where pods are all alike and no level is nested, the bound is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from queuectl.domain.changes import AddNodes
from queuectl.domain.diagnosis import Remedy, Way
from queuectl.domain.fleet import Node
from queuectl.domain.quantity import Resources
from queuectl.domain.words import counted
from queuectl.planner.arena import caps
from queuectl.planner.demand import ANYWHERE, Demand, Unit
from queuectl.planner.ledger import Ledger
from queuectl.planner.solve import Status
from queuectl.planner.topology import Ints
from queuectl.planner.why.merge import place_on
from queuectl.planner.why.offer import Idea, finish
from queuectl.planner.why.trial import books, demands, past_heads, quota_alone, shortage
from queuectl.planner.why.turn import Turn
from queuectl.planner.words import level_of

_KINDS: Final = 3  # kinds of nodes considered, the most common first
_DOMAINS: Final = 4  # domains in which the real placement is tried
_MOST: Final = 1024  # nodes; more is no advice


@dataclass(frozen=True, slots=True)
class _Site:
    """Where nodes of one kind could be added.

    Attributes:
        bound: no fewer of them can be enough there.
        members: node indexes already there that matter.
        like: a node of the kind, in the domain if it has one.
        labels: of the new nodes where they differ from ``like``.
        domain: its name, None for anywhere.
    """

    bound: int
    members: Ints
    like: Node
    labels: tuple[tuple[str, str], ...]
    domain: str | None


def more_nodes(turn: Turn) -> Iterator[Way]:
    """The fewest nodes over all domains and kinds, with the quota they need besides."""
    if quota_alone(turn):
        return
    ledger = books(turn, past_heads(turn))
    choices = [d for d in demands(turn, past_heads(turn), ledger.arena) if d.units]
    for demand in choices:
        best = _best(turn, ledger, demand)
        if best is not None:
            site, count, least = best
            yield from _way(turn, ledger, demand, site, count, least=least and len(choices) == 1)
            return


def _way(
    turn: Turn, ledger: Ledger, demand: Demand, site: _Site, count: int, *, least: bool
) -> Iterator[Way]:
    change = AddNodes(site.like.name, count, dict(site.labels))
    where = f" in {level_of(_unit(demand))} {site.domain}" if site.domain is not None else ""
    message = f"add {counted(count, 'node')} like {site.like.name}{where}"
    details = {"count": count, "like": site.like.name, "domain": site.domain}
    least = least and not turn.movable  # moved, they might spare a node
    idea = Idea(Remedy.ADD_NODES, message, details, (change,), least=least)
    yield from finish(turn, idea, shortage(ledger, demand))


def _best(turn: Turn, ledger: Ledger, demand: Demand) -> tuple[_Site, int, bool] | None:
    """Site, number of nodes, and whether no site does with fewer; None when none of those tried is enough."""
    free = ledger.free()
    sites = sorted(_sites(turn, demand, free), key=lambda s: s.bound)
    best: tuple[_Site, int] | None = None
    for tried, site in enumerate(sites):
        if (best is not None and site.bound >= best[1]) or tried >= _DOMAINS:
            break
        count = _enough(turn, ledger, demand, site, best[1] if best is not None else _MOST)
        if count is not None:
            best = site, count
    if best is None:
        return None
    return (*best, best[1] <= sites[0].bound)


def _unit(demand: Demand) -> Unit:
    """The unit that is hardest to place: the finest level, then the most pods."""
    return max(demand.units, key=lambda u: (u.required, sum(p.count for p in u.pods)))


def _sites(turn: Turn, demand: Demand, free: Ints) -> Iterator[_Site]:
    unit = _unit(demand)
    for kind in _kinds(turn, demand):
        like = turn.arena.index.nodes[kind]
        gains = _gains(turn, unit, like)
        if gains is None:
            continue
        if unit.required == ANYWHERE or unit.on_one_node:
            there = [int(caps(free, pods.shape).sum()) for pods in unit.pods]
            lacks = 1 if unit.on_one_node else _lacks(unit, gains, there)
            yield _Site(max(1, lacks), np.flatnonzero(_useful(demand, free)), like, (), None)
        else:
            yield from _in_domains(turn, demand, unit, like, gains, free)


def _in_domains(
    turn: Turn, demand: Demand, unit: Unit, like: Node, gains: tuple[int, ...], free: Ints
) -> Iterator[_Site]:
    tree, level = unit.tree, unit.required
    useful = _useful(demand, free)
    alone = len(demand.units) == 1
    own = tree.domain[level][turn.arena.index.position[like.name]]
    held = np.stack([tree.sums(level, caps(free, pods.shape)) for pods in unit.pods], axis=1)
    anywhere = np.flatnonzero(useful)
    for domain, path in enumerate(tree.names[level]):
        labels = () if domain == own else tuple(zip(tree.levels, path, strict=False))
        lacks = max(1, _lacks(unit, gains, held[domain].tolist()))
        members = anywhere[tree.domain[level][anywhere] == domain] if alone else anywhere
        yield _Site(lacks, members, like, labels, path[-1])


def _kinds(turn: Turn, demand: Demand) -> list[int]:
    """One node for each kind that its first pods may use, the most common kinds first."""
    pods = _unit(demand).pods[0]
    index = turn.arena.index
    usable = index.lasting_mask(pods.shape.rules)
    at = np.flatnonzero(usable)
    if not len(at):
        return []
    _, first, counts = np.unique(
        index.allocatable[:, at], axis=1, return_index=True, return_counts=True
    )
    order = sorted(range(len(first)), key=lambda i: (-counts[i], first[i]))[:_KINDS]
    return [int(at[first[i]]) for i in order]


def _gains(turn: Turn, unit: Unit, like: Node) -> tuple[int, ...] | None:
    """Of each of the unit's pods, how many fit one empty node of the kind; None when such a node could not be used."""
    new = AddNodes(like.name, 1, {}).nodes(like)[0]
    room = turn.arena.index.vector(like.allocatable)
    if room is None or any(p.shape.rules.refusal(new) is not None for p in unit.pods):
        return None
    if any(not new.labels.get(level) for level in unit.tree.levels):
        return None
    gains = []
    for pods in unit.pods:
        asked = pods.shape.vector
        fits = [int(room[c] // asked[c]) for c in pods.shape.columns]
        if not fits:
            return None
        gains.append(min(fits))
    return tuple(gains) if any(gains) else None


def _lacks(unit: Unit, gains: tuple[int, ...], held: list[int]) -> int:
    """Nodes that a domain must gain at least, by the pods of one shape it lacks; ``held``: of each, what it has room for."""
    least = 0
    for pods, gain, there in zip(unit.pods, gains, held, strict=True):
        missing = pods.count - there
        if missing > 0:
            least = max(least, -(-missing // gain) if gain else _MOST + 1)
    return least


def _useful(demand: Demand, free: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    useful = np.zeros(free.shape[1], dtype=np.bool_)
    for pods in demand.pods:
        asked = pods.shape
        with_room = np.all([free[c] > 0 for c in asked.columns], axis=0)
        useful |= asked.eligible & with_room
    return useful


def _enough(turn: Turn, ledger: Ledger, demand: Demand, site: _Site, most: int) -> int | None:
    """The fewest new nodes there, up to ``most``; galloping from the bound, then by halving."""
    if site.bound > most:
        return None
    if _sums_are_exact(demand):
        return site.bound
    if demand.units[0].on_one_node:
        most = min(most, 1)
    low, step = site.bound - 1, 1
    count = site.bound
    while not _fits(turn, ledger, demand, site, count):
        low, count, step = count, count + step, step * 2
        if count > most:
            return None
    while count - low > 1:
        middle = (low + count) // 2
        if _fits(turn, ledger, demand, site, middle):
            count = middle
        else:
            low = middle
    return count


def _sums_are_exact(demand: Demand) -> bool:
    """Pods all alike, with nothing nested in their domain: they fit wherever the floor sums do."""
    unit = demand.units[0]
    return (
        len(demand.units) == 1 and len(unit.pods) == 1 and not unit.on_one_node and not unit.sliced
    )


def _fits(turn: Turn, ledger: Ledger, demand: Demand, site: _Site, count: int) -> bool:
    """Whether the gang fits the nodes of the site, with what is free on them, and so many new ones."""
    index = ledger.arena.index
    free = np.maximum(ledger.free(), 0)
    nodes = []
    for at in site.members.tolist():
        room = Resources(zip(index.resources, free[:, at].tolist(), strict=True))
        nodes.append(replace(index.nodes[at], allocatable=room))
    new = AddNodes(site.like.name, count, dict(site.labels)).nodes(site.like, index.position)
    return place_on([*nodes, *new], ledger.arena, demand, turn.solver, well=False) is Status.FOUND
