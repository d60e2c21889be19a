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
from queuectl.planner.capacity.state import State
from queuectl.planner.explain.merge import place_on
from queuectl.planner.explain.offer import Idea, finish
from queuectl.planner.explain.trial import (
    books,
    past_heads,
    quota_alone,
    requests,
    shortage,
)
from queuectl.planner.explain.turn import Turn
from queuectl.planner.problem.problem import caps
from queuectl.planner.problem.request import ANYWHERE, GangRequest, Unit
from queuectl.planner.problem.topology import Ints
from queuectl.planner.reasons.words import level_of
from queuectl.planner.solver.solver import Status

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
    state = books(turn, past_heads(turn))
    choices = [d for d in requests(turn, past_heads(turn), state.problem) if d.units]
    for request in choices:
        best = _best(turn, state, request)
        if best is not None:
            site, count, least = best
            yield from _way(turn, state, request, site, count, least=least and len(choices) == 1)
            return


def _way(
    turn: Turn, state: State, request: GangRequest, site: _Site, count: int, *, least: bool
) -> Iterator[Way]:
    change = AddNodes(site.like.name, count, dict(site.labels))
    where = f" in {level_of(_unit(request))} {site.domain}" if site.domain is not None else ""
    message = f"add {counted(count, 'node')} like {site.like.name}{where}"
    details = {"count": count, "like": site.like.name, "domain": site.domain}
    least = least and not turn.movable  # moved, they might spare a node
    idea = Idea(Remedy.ADD_NODES, message, details, (change,), least=least)
    yield from finish(turn, idea, shortage(state, request))


def _best(turn: Turn, state: State, request: GangRequest) -> tuple[_Site, int, bool] | None:
    """Site, number of nodes, and whether no site does with fewer; None when none of those tried is enough."""
    free = state.free()
    sites = sorted(_sites(turn, request, free), key=lambda s: s.bound)
    best: tuple[_Site, int] | None = None
    for tried, site in enumerate(sites):
        if (best is not None and site.bound >= best[1]) or tried >= _DOMAINS:
            break
        count = _enough(turn, state, request, site, best[1] if best is not None else _MOST)
        if count is not None:
            best = site, count
    if best is None:
        return None
    return (*best, best[1] <= sites[0].bound)


def _unit(request: GangRequest) -> Unit:
    """The unit that is hardest to place: the finest level, then the most pods."""
    return max(request.units, key=lambda u: (u.required, sum(p.count for p in u.pods)))


def _sites(turn: Turn, request: GangRequest, free: Ints) -> Iterator[_Site]:
    unit = _unit(request)
    for kind in _kinds(turn, request):
        like = turn.problem.index.nodes[kind]
        gains = _gains(turn, unit, like)
        if gains is None:
            continue
        if unit.required == ANYWHERE or unit.on_one_node:
            there = [int(caps(free, pods.shape).sum()) for pods in unit.pods]
            lacks = 1 if unit.on_one_node else _lacks(unit, gains, there)
            yield _Site(max(1, lacks), np.flatnonzero(_useful(request, free)), like, (), None)
        else:
            yield from _in_domains(turn, request, unit, like, gains, free)


def _in_domains(
    turn: Turn, request: GangRequest, unit: Unit, like: Node, gains: tuple[int, ...], free: Ints
) -> Iterator[_Site]:
    tree, level = unit.tree, unit.required
    useful = _useful(request, free)
    alone = len(request.units) == 1
    own = tree.domain[level][turn.problem.index.position[like.name]]
    held = np.stack([tree.sums(level, caps(free, pods.shape)) for pods in unit.pods], axis=1)
    anywhere = np.flatnonzero(useful)
    for domain, path in enumerate(tree.names[level]):
        labels = () if domain == own else tuple(zip(tree.levels, path, strict=False))
        lacks = max(1, _lacks(unit, gains, held[domain].tolist()))
        members = anywhere[tree.domain[level][anywhere] == domain] if alone else anywhere
        yield _Site(lacks, members, like, labels, path[-1])


def _kinds(turn: Turn, request: GangRequest) -> list[int]:
    """One node for each kind that its first pods may use, the most common kinds first."""
    pods = _unit(request).pods[0]
    index = turn.problem.index
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
    room = turn.problem.index.vector(like.allocatable)
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


def _useful(request: GangRequest, free: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    useful = np.zeros(free.shape[1], dtype=np.bool_)
    for pods in request.pods:
        asked = pods.shape
        with_room = np.all([free[c] > 0 for c in asked.columns], axis=0)
        useful |= asked.eligible & with_room
    return useful


def _enough(turn: Turn, state: State, request: GangRequest, site: _Site, most: int) -> int | None:
    """The fewest new nodes there, up to ``most``; galloping from the bound, then by halving."""
    if site.bound > most:
        return None
    if _sums_are_exact(request):
        return site.bound
    if request.units[0].on_one_node:
        most = min(most, 1)
    low, step = site.bound - 1, 1
    count = site.bound
    while not _fits(turn, state, request, site, count):
        low, count, step = count, count + step, step * 2
        if count > most:
            return None
    while count - low > 1:
        middle = (low + count) // 2
        if _fits(turn, state, request, site, middle):
            count = middle
        else:
            low = middle
    return count


def _sums_are_exact(request: GangRequest) -> bool:
    """Pods all alike, with nothing nested in their domain: they fit wherever the floor sums do."""
    unit = request.units[0]
    return (
        len(request.units) == 1 and len(unit.pods) == 1 and not unit.on_one_node and not unit.sliced
    )


def _fits(turn: Turn, state: State, request: GangRequest, site: _Site, count: int) -> bool:
    """Whether the gang fits the nodes of the site, with what is free on them, and so many new ones."""
    index = state.problem.index
    free = np.maximum(state.free(), 0)
    nodes = []
    for at in site.members.tolist():
        room = Resources(zip(index.resources, free[:, at].tolist(), strict=True))
        nodes.append(replace(index.nodes[at], allocatable=room))
    new = AddNodes(site.like.name, count, dict(site.labels)).nodes(site.like, index.position)
    return place_on([*nodes, *new], state.problem, request, turn.solver, well=False) is Status.FOUND
