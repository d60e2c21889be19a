"""Fixes by those who run the nodes: the fewest nodes to repair or uncordon, and the fewest to add, and where.

To add: a domain must gain at least what the floor sums say that it lacks. Domains are tried in the order of that bound, with the
real placement on the nodes of the domain and the new ones. Where pods are all alike and no level is nested, the bound is exact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from queuectl.domain.diagnosis import AddNodes, HealNodes, Remedy, SuggestedFix
from queuectl.domain.fleet import Node
from queuectl.domain.quantity import Resources
from queuectl.domain.words import counted, some
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.explain.constraints import unhealthy, why_unavailable
from queuectl.planner.explain.context import GangContext
from queuectl.planner.explain.relaxation import (
    any_quota,
    ask,
    failed_devices,
    past_heads,
    place_on,
    quota_alone,
    requests,
    shortage,
    state_under,
)
from queuectl.planner.explain.remedy import finish, offer
from queuectl.planner.problem.fleet import Ints, Mask
from queuectl.planner.problem.problem import caps
from queuectl.planner.problem.request import ANYWHERE, GangRequest, PodSetGroup
from queuectl.planner.reasons.words import level_name
from queuectl.planner.solver import Status

_SPARED: Final = 64  # nodes tried one by one whether they can be left out
_NAMED: Final = 4  # nodes named in a sentence, each with why it is out
_DOMAINS: Final = 4  # in which the real placement is tried
_KINDS: Final = 3  # kinds of nodes to add, the most common first
_MOST: Final = 1024  # nodes to add; more is not useful advice


def repaired_nodes(ctx: GangContext) -> Iterator[SuggestedFix]:
    """A smallest set of nodes that are out, in the sense that none of them can be left out of it."""
    if quota_alone(ctx):
        return
    everywhere = ask(ctx, replace(any_quota(ctx), well=True))
    if not everywhere.fits or everywhere.request is None:
        return
    index = ctx.problem.index
    changing = np.array([node.reconfigured_for is not None for node in index.nodes], dtype=np.bool_)
    failed = failed_devices(ctx)
    out = (unhealthy(ctx) | failed.any(axis=0)) & ~changing
    free = state_under(ctx, past_heads(ctx)).free()
    for candidates in _choices(everywhere.request, out, free, free + failed):
        nodes = _needed(ctx, candidates)
        if not nodes:
            continue
        names = tuple(index.nodes[i].name for i in nodes)
        listed = some([f"{name} ({why_unavailable(ctx, name)})" for name in names], _NAMED)
        message = f"repair or uncordon {counted(len(names), 'node')}: {listed}"
        change, details = HealNodes(ctx.uid, names), {"nodes": list(names)}
        fix = SuggestedFix(Remedy.HEAL_NODES, message, details, (change,), least=len(nodes) == 1)
        yield from offer(ctx, replace(past_heads(ctx), repaired=ctx.problem.mask_of(nodes)), fix)
        return


def _choices(request: GangRequest, out: Mask, free: Ints, then: Ints) -> Iterator[list[int]]:
    """Candidate nodes, the most useful last: of the domains that need fewest first, then of the whole fleet.

    Args:
        request: of all nodes.
        out: the nodes that can be repaired, in whole or in part. Shape (N,).
        free: what is free now. Shape (R, N).
        then: what is free when they are repaired.
    """
    if not request.podset_groups:
        return
    podset_group = request.hardest
    pods = podset_group.to_place[0]
    room = caps(free, pods.shape)
    gain = np.where(out, caps(then, pods.shape), 0)
    useful = np.flatnonzero(np.where(out, sum(caps(then, p.shape) for p in request.pods), 0))

    def by_gain(nodes: Ints) -> list[int]:
        return sorted(nodes.tolist(), key=lambda i: (gain[i], -i))

    if podset_group.required != ANYWHERE and not podset_group.on_one_node:
        domain = podset_group.tree.domain[podset_group.required]

        def fewest(d: int) -> int:
            lacks = pods.count - int(room[(domain == d) & ~out].sum())
            gains = np.cumsum(np.sort(gain[domain == d])[::-1])  # the largest gains first
            return int(np.searchsorted(gains, lacks)) + 1 if lacks > 0 else 0

        inside = np.unique(domain[useful][domain[useful] >= 0]).tolist()
        for d in sorted(inside, key=fewest)[:_DOMAINS]:
            yield by_gain(useful[domain[useful] == d])
    yield by_gain(useful)


def _needed(ctx: GangContext, candidates: list[int]) -> list[int]:
    """The candidates less those that can be left out, the least useful first; none when all of them do not help."""

    def enough(nodes: list[int]) -> bool:
        return ask(ctx, replace(any_quota(ctx), repaired=ctx.problem.mask_of(nodes))).fits

    if not candidates or not enough(candidates):
        return []
    some_less = range(1, len(candidates))
    left = candidates[bisect_left(some_less, True, key=lambda n: not enough(candidates[n:])) :]
    for node in left[:_SPARED]:
        without = [n for n in left if n != node]
        if without and enough(without):
            left = without
    return sorted(left)


@dataclass(frozen=True, slots=True)
class _Site:
    """Where nodes of one kind could be added.

    Attributes:
        bound: no fewer of them can be enough there.
        members: indexes of the nodes already there that matter.
        like: a node of the kind, in the domain if it has one.
        labels: of the new nodes where they differ from ``like``.
        level: of the domain, ``ANYWHERE`` without one.
        domain: its name, None for anywhere.
    """

    bound: int
    members: Ints
    like: Node
    labels: tuple[tuple[str, str], ...] = ()
    level: int = ANYWHERE
    domain: str | None = None


def more_nodes(ctx: GangContext) -> Iterator[SuggestedFix]:
    """The fewest nodes over all domains and kinds, with the quota they need besides."""
    if quota_alone(ctx):
        return
    state = state_under(ctx, past_heads(ctx))
    choices = [request for request in requests(ctx, past_heads(ctx)) if request.podset_groups]
    for request in choices:
        best = _best(ctx, state, request)
        if best is None:
            continue
        site, count, least = best
        change = AddNodes(site.like.name, count, dict(site.labels))
        where = (
            f" in {level_name(request.hardest.tree.levels[site.level])} {site.domain}"
            if site.domain is not None
            else ""
        )
        message = f"add {counted(count, 'node')} like {site.like.name}{where}"
        details = {"count": count, "like": site.like.name, "domain": site.domain}
        least &= len(choices) == 1 and not ctx.movable  # moved, gangs before it might spare a node
        fix = SuggestedFix(Remedy.ADD_NODES, message, details, (change,), least)
        less = [(replace(change, count=count - 1),)] if count > 1 else []
        yield from finish(ctx, fix, shortage(state, request), less)
        return


def _best(
    ctx: GangContext, state: CycleState, request: GangRequest
) -> tuple[_Site, int, bool] | None:
    """Site, number of nodes, and whether no site does with fewer; None when none of those tried is enough."""
    sites = sorted(_sites(ctx, request, state.free()), key=lambda s: s.bound)
    best: tuple[_Site, int] | None = None
    for site in sites[:_DOMAINS]:
        if best is not None and site.bound >= best[1]:
            break
        count = _enough(ctx, state, request, site, best[1] if best is not None else _MOST)
        if count is not None:
            best = site, count
    return (*best, best[1] <= sites[0].bound) if best is not None else None


def _sites(ctx: GangContext, request: GangRequest, free: Ints) -> Iterator[_Site]:
    podset_group, index = request.hardest, ctx.problem.index
    tree, level = podset_group.tree, podset_group.required
    useful = np.zeros(free.shape[1], dtype=np.bool_)
    for pods in request.pods:
        columns = pods.shape.columns
        useful |= pods.shape.eligible & np.all([free[c] > 0 for c in columns], axis=0)
    anywhere = np.flatnonzero(useful)
    fits = [caps(free, pods.shape) for pods in podset_group.pods]
    for like in _kinds(ctx, podset_group):
        gains = _gains(ctx, podset_group, like)
        if gains is None:
            continue
        if len(request.podset_groups) == 1 and _completes_slices(podset_group):
            yield from _for_slices(podset_group, gains[0], fits[0], anywhere, like, index.position)
            continue
        if level == ANYWHERE or podset_group.on_one_node:
            there = [int(row.sum()) for row in fits]
            lacks = 1 if podset_group.on_one_node else _lacks(podset_group, gains, there)
            yield _Site(lacks, anywhere, like)
            continue
        own = tree.domain[level][index.position[like.name]]
        held = np.stack([tree.sums(level, row) for row in fits], axis=1)
        for domain, path in enumerate(tree.names[level]):
            labels = () if domain == own else tuple(zip(tree.levels, path, strict=False))
            inside = tree.domain[level][anywhere] == domain
            members = anywhere[inside] if len(request.podset_groups) == 1 else anywhere
            lacks = _lacks(podset_group, gains, held[domain].tolist())
            yield _Site(lacks, members, like, labels, level, path[-1])


def _completes_slices(podset_group: PodSetGroup) -> bool:
    """Whether it is one kind of pods in slices of one level below the domain that they share."""
    pods, *others = podset_group.pods
    return not others and len(pods.slices) == 1 and pods.slices[0][0] > podset_group.required


def _for_slices(
    podset_group: PodSetGroup,
    gain: int,
    fits: Ints,
    anywhere: Ints,
    like: Node,
    position: Mapping[str, int],
) -> Iterator[_Site]:
    """Each domain in which new nodes could complete the missing slices."""
    tree, required, [pods] = podset_group.tree, podset_group.required, podset_group.pods
    at, size = pods.slices[0]
    room, first = tree.sums(at, fits), tree.order[tree.starts[at]]
    above = tree.domain[required][first] if required != ANYWHERE else np.zeros_like(first)
    for domain, path in enumerate(tree.names[at]):
        there = above == above[domain]
        missing = pods.count // size - int((room[there] // size).sum())
        if missing > 0:
            more = missing * size - int(room[domain]) % size
            own = tree.domain[at][position[like.name]] == domain
            labels = () if own else tuple(zip(tree.levels, path, strict=False))
            inside = np.isin(tree.domain[at][anywhere], np.flatnonzero(there))
            yield _Site(-(-more // gain), anywhere[inside], like, labels, at, path[-1])


def _kinds(ctx: GangContext, podset_group: PodSetGroup) -> list[Node]:
    """One node of each kind that the podset group's first pods may use, the most common kinds first."""
    index = ctx.problem.index
    at = np.flatnonzero(index.lasting_mask(podset_group.pods[0].shape.rules))
    if not len(at):
        return []
    _, first, counts = np.unique(
        index.allocatable[:, at], axis=1, return_index=True, return_counts=True
    )
    order = np.lexsort((first, -counts))[:_KINDS]
    return [index.nodes[i] for i in at[first[order]].tolist()]


def _gains(ctx: GangContext, podset_group: PodSetGroup, like: Node) -> tuple[int, ...] | None:
    """Of each of the podset group's pods, how many fit one empty node of the kind; None when such a node could not be used."""
    new = AddNodes(like.name, 1, {}).nodes(like)[0]
    room = ctx.problem.index.vector(new.allocatable)
    if room is None or any(not new.labels.get(level) for level in podset_group.tree.levels):
        return None
    shapes = [pods.shape for pods in podset_group.pods]
    if any(shape.rules.refusal(new) is not None or not shape.columns for shape in shapes):
        return None
    gains = tuple(int(caps(room[:, None], s, eligible=np.ones(1, np.bool_))[0]) for s in shapes)
    return gains if any(gains) else None


def _lacks(podset_group: PodSetGroup, gains: tuple[int, ...], held: list[int]) -> int:
    """Nodes that a domain must gain at least, by the pods of one shape it lacks; ``held``: of each, what it has room for."""
    least = 1
    for pods, gain, there in zip(podset_group.pods, gains, held, strict=True):
        missing = pods.count - there
        if missing > 0:
            least = max(least, -(-missing // gain) if gain else _MOST + 1)
    return least


def _enough(
    ctx: GangContext, state: CycleState, request: GangRequest, site: _Site, most: int
) -> int | None:
    """The fewest new nodes there, up to ``most``; galloping from the bound, then by halving."""
    podset_group = request.podset_groups[0]
    if site.bound > most:
        return None
    if (
        len(request.podset_groups) == len(podset_group.pods) == 1
        and not podset_group.on_one_node
        and not podset_group.sliced
    ):
        return site.bound  # pods all alike, nothing nested: they fit wherever the floor sums do
    if podset_group.on_one_node:
        most = min(most, 1)
    low, step = site.bound - 1, 1
    count = site.bound
    while not _fits(ctx, state, request, site, count):
        low, count, step = count, count + step, step * 2
        if count > most:
            return None
    between = range(low + 1, count)
    return low + 1 + bisect_left(between, True, key=lambda n: _fits(ctx, state, request, site, n))


def _fits(
    ctx: GangContext, state: CycleState, request: GangRequest, site: _Site, count: int
) -> bool:
    """Whether the gang fits the nodes of the site, with what is free on them, and so many new ones."""
    index = state.problem.index
    free = np.maximum(state.free(), 0)
    nodes = AddNodes(site.like.name, count, dict(site.labels)).nodes(site.like, index.position)
    for at in site.members.tolist():
        room = Resources(zip(index.resources, free[:, at].tolist(), strict=True))
        nodes.append(replace(index.nodes[at], allocatable=room))
    return place_on(nodes, state.problem, request, ctx.solver) is Status.SOLVED
