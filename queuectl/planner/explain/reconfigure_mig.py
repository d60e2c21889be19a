"""Fixes by other MIG configurations: the fewest nodes to reconfigure, which configuration each gets, and the gangs to migrate first.

A domain must gain at least what the sums of :mod:`queuectl.planner.explain.mig_options` say that it lacks. Domains are tried in the
order of that bound. In each, the nodes that help most are chosen one by one, and the planner is asked on the changed snapshot.
Nodes without pods on GPUs come first; nodes that gangs must leave count only where the others are not enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np

from queuectl.domain.changes import Change, ReconfigureMig, Relocate
from queuectl.domain.diagnosis import Remedy, SuggestedFix
from queuectl.domain.mig import CONFIG, nvidia_gpus
from queuectl.domain.mig_reconfiguration import MigPhase
from queuectl.domain.words import counted
from queuectl.domain.workload import Placement, Workload
from queuectl.planner.explain.context import Context
from queuectl.planner.explain.mig_moves import MigScope, moved_off, movers_of
from queuectl.planner.explain.mig_options import MigOptions, mig_options
from queuectl.planner.explain.relaxation import quota_alone
from queuectl.planner.explain.remedy import finish, quota_short
from queuectl.planner.problem.topology import Ints
from queuectl.planner.quota.tree import FlavorResource
from queuectl.planner.reasons.words import some
from queuectl.planner.relocate.candidates import MoveCandidates

_DOMAINS: Final = 4  # in which the planner is asked
_SPARED: Final = 16  # nodes tried one by one whether they can be left out
_NAMED: Final = 4  # nodes named in a sentence

_Picks: TypeAlias = list[tuple[int, int]]  # node, configuration


@dataclass(frozen=True, slots=True)
class _Found:
    """Nodes by name with their configurations, new places of gangs by uid, and the quota that is short then."""

    configs: Mapping[str, str]
    places: Mapping[str, Placement]
    short: Mapping[FlavorResource, int]
    least: bool

    @property
    def changes(self) -> tuple[Change, ...]:
        moves = (Relocate(self.places),) if self.places else ()
        return (*moves, ReconfigureMig(self.configs))


def reconfigured_nodes(ctx: Context, scope: MigScope | None = None) -> Iterator[SuggestedFix]:
    """The fewest nodes whose MIG configuration lets the gang start, with the gangs that migrate first.

    ``scope``: what queuectl can do itself; None = all that policy permits.
    """
    if not ctx.snapshot.config.mig_pools or not _asks(ctx.pending.workload) or quota_alone(ctx):
        return
    if any(node.reconfigured_for == ctx.uid for node in ctx.snapshot.fleet.nodes):
        return  # it is under way
    for movers in (None, movers_of(ctx, execute=scope is not None)):
        if movers is not None and not movers.size:
            continue
        found = _Search(ctx, movers, scope.nodes if scope is not None else None).run()
        if found is not None:
            fix = _fix(ctx, found, movers)
            yield from finish(ctx, fix, found.short)
            return


def under_way(ctx: Context) -> Iterator[str]:
    """The changes of MIG configurations that queuectl makes for the gang, and those that failed."""
    for node in ctx.snapshot.fleet.nodes:
        if (
            node.mig is not None
            and node.mig.gang == ctx.uid
            and node.mig.phase not in (MigPhase.SUCCEEDED, MigPhase.WITHDRAWN)
        ):
            yield node.mig.sentence(node.name)


def _asks(workload: Workload) -> bool:
    """Whether it requests resources that MIG changes, and no devices of resource claims."""
    shapes = [podset.shape for podset in workload.podsets]
    return any(nvidia_gpus(name) for shape in shapes for name in shape.requests) and not any(
        shape.incidental for shape in shapes
    )


def _fix(ctx: Context, found: _Found, movers: MoveCandidates | None) -> SuggestedFix:
    by_name = ctx.snapshot.fleet.by_name
    nodes = [
        {"node": name, "from": by_name[name].labels.get(CONFIG), "to": config}
        for name, config in sorted(found.configs.items())
    ]
    listed = some([f"{name} to {config}" for name, config in sorted(found.configs.items())], _NAMED)
    message = f"reconfigure MIG on {counted(len(nodes), 'node')}: {listed}"
    details: dict[str, Any] = {"nodes": nodes}
    if movers is not None and found.places:
        lost = dict(zip((g.workload.uid for g in movers.table.gangs), movers.costs, strict=True))
        details["gangs"] = [
            {
                "workload": ctx.refs[uid],
                "lostGpuSeconds": lost[uid].lost_work,
                "nodes": sorted({name for p in place.podsets for name, _ in p.nodes}),
            }
            for uid, place in found.places.items()
        ]
        names = [gang["workload"] for gang in details["gangs"]]
        message += f", after the migration of {counted(len(names), 'gang')}: {some(names)}"
    return SuggestedFix(Remedy.RECONFIGURE_MIG, message, details, found.changes, found.least)


@dataclass(frozen=True, eq=False, slots=True)
class _Site:
    """One domain, or all nodes.

    Attributes:
        options: of the gang under one choice of flavors.
        gains: pods of each item that a node gains under a configuration, 0 where it cannot help. Shape (C, S, N).
        lacks: pods of each item that lack room there. Shape (S,).
        bound: fewer nodes are not enough there.
    """

    options: MigOptions
    gains: Ints
    lacks: Ints
    bound: int


def _sites(options: MigOptions) -> Iterator[_Site]:
    """The domains in which some item lacks room, and enough nodes could give it."""
    if options.domains is None:
        members = [np.ones(options.there.shape[1], dtype=np.bool_)]
    else:
        inside = np.unique(options.domains[options.allowed.any(axis=0)])
        members = [options.domains == domain for domain in inside[inside >= 0].tolist()]
    for domain in members:
        mask = np.where(options.shares[:, None], domain[None, :], True)
        lacks = options.counts - (options.there * mask).sum(axis=1)
        gains = (options.under - options.there) * mask * options.allowed[:, None, :]
        bound = _bound(gains, lacks)
        if bound is not None:
            yield _Site(options, gains, lacks, bound)


def _bound(gains: Ints, lacks: Ints) -> int | None:
    """The fewest nodes by the sums of each item; None if no item lacks room, or all nodes together are not enough."""
    bound = 0
    for item in np.flatnonzero(lacks > 0).tolist():
        best = np.sort(np.maximum(gains[:, item], 0).max(axis=0))[::-1]
        fewest = int(np.searchsorted(np.cumsum(best), lacks[item])) + 1
        if fewest > len(best):
            return None
        bound = max(bound, fewest)
    return bound or None


def _picks(site: _Site, first: int | None) -> Iterator[tuple[tuple[int, int], bool]]:
    """Nodes with configurations, the most useful first, and whether those so far are enough by the sums.

    ``first``: an item that gets its nodes before the others; None = each node counts by what it gives to all items.
    """
    options, lacks = site.options, site.lacks.copy()
    left = options.allowed.copy()
    gains = np.maximum(site.gains, 0)
    while left.any():
        enough = not (lacks > 0).any()
        wanted = options.counts if enough else np.maximum(lacks, 0)
        if first is not None and lacks[first] > 0:
            wanted = np.where(np.arange(len(lacks)) == first, wanted, 0)
        useful = np.where(left, np.minimum(gains, wanted[None, :, None]).sum(axis=1), 0)
        best = _first(useful, options)
        if best is None:
            return
        config, node = best
        lacks -= site.gains[config, :, node]
        left[:, node] = False
        yield (node, config), not (lacks > 0).any()


def _first(useful: Ints, options: MigOptions) -> tuple[int, int] | None:
    """The configuration and node that help most, then lose least work, then leave most GPUs whole."""
    most = int(useful.max(initial=0))
    if not most:
        return None
    configs, nodes = np.nonzero(useful == most)
    order = np.lexsort((configs, nodes, -options.whole[configs, nodes], options.lost[nodes]))
    return int(configs[order[0]]), int(nodes[order[0]])


@dataclass(eq=False, slots=True)
class _Search:
    """For one gang; ``movers`` and ``among``: as of :func:`mig_options`."""

    ctx: Context
    movers: MoveCandidates | None
    among: frozenset[str] | None

    def run(self) -> _Found | None:
        choices = list(mig_options(self.ctx, self.movers, self.among))
        sites = sorted((s for c in choices for s in _sites(c)), key=lambda site: site.bound)
        best: _Found | None = None
        for site in sites[:_DOMAINS]:
            if best is not None and site.bound >= len(best.configs):
                break
            found = self._enough(site)
            if found is not None and (best is None or len(found.configs) < len(best.configs)):
                best = found
        if best is None:
            return None
        least = len(best.configs) == sites[0].bound and not best.places and not self.ctx.movable
        return replace(best, least=least)

    def _enough(self, site: _Site) -> _Found | None:
        """The nodes by the first order of the items that is enough."""
        orders = (None, *range(len(site.lacks))) if len(site.lacks) > 1 else (None,)
        tried = (self._chosen(site, first) for first in orders)
        return next((found for found in tried if found is not None), None)

    def _chosen(self, site: _Site, first: int | None) -> _Found | None:
        """The first picks that are enough by the sums; if the planner refuses them, more, less those it does not need."""
        picks: _Picks = []
        tried, step = 0, 1
        for pick, enough in _picks(site, first):
            picks.append(pick)
            if not enough or len(picks) < tried + step:
                continue
            found = self._settle(site, picks)
            if found is not None:
                return found if not tried else self._fewer(site, picks, found)
            tried, step = len(picks), step * 2 if tried else 1
        found = self._settle(site, picks) if len(picks) > tried > 0 else None
        return self._fewer(site, picks, found) if found is not None else None

    def _fewer(self, site: _Site, picks: _Picks, found: _Found) -> _Found:
        for pick in picks[::-1][:_SPARED]:
            without = [other for other in picks if other != pick]
            less = self._settle(site, without) if len(without) >= site.bound else None
            if less is not None:
                picks, found = without, less
        return found

    def _settle(self, site: _Site, picks: _Picks) -> _Found | None:
        """The answer of the planner for these nodes; None if the gang does not start, or others find no place."""
        ctx, nodes = self.ctx, self.ctx.problem.index.nodes
        places = self._moved([node for node, _ in picks])
        if places is None:
            return None
        configs = {nodes[node].name: site.options.configs[config] for node, config in picks}
        found = _Found(configs, places, {}, least=False)
        cycle = ctx.checks.decided(found.changes)
        if cycle is None:
            return None
        short = {} if ctx.checks.helped(cycle) else quota_short(ctx, cycle)
        return replace(found, short=short) if short is not None else None

    def _moved(self, nodes: Sequence[int]) -> dict[str, Placement] | None:
        """New places for all gangs on the GPUs of these nodes; None if they find none on the other nodes."""
        return moved_off(self.ctx, self.movers, nodes) if self.movers is not None else {}
