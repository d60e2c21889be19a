"""Fixes by other MIG configurations: the fewest nodes to reconfigure, which configuration each gets, and the gangs to migrate first."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np

from queuectl.domain.diagnosis import Relocate, Remedy, SuggestedChange, SuggestedFix, is_cordoned
from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.mig import CONFIG, MigPhase, MigReconfiguration
from queuectl.domain.plan import Move, Proof
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import Defragment
from queuectl.domain.words import counted, some
from queuectl.domain.workload import Placement, Workload
from queuectl.mig.configurations import ReconfigureMig, choices, nvidia_gpus, relabeled
from queuectl.planner.capacity.node_counts import placement_of
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.cycle.defragment import MigrationPolicy
from queuectl.planner.explain.context import GangContext
from queuectl.planner.explain.relaxation import past_heads, quota_alone, requests, state_under
from queuectl.planner.explain.remedy import finish, quota_short
from queuectl.planner.placement.feasible import arrange
from queuectl.planner.preempt.candidates import Rows
from queuectl.planner.problem.fleet import Ints, Mask
from queuectl.planner.problem.problem import Problem, caps, survey
from queuectl.planner.problem.request import ANYWHERE, GangRequest, PodSetGroup, ShapePods
from queuectl.planner.quota import FlavorResource
from queuectl.planner.relocate import MoveCandidates, move_candidates
from queuectl.planner.solver import Status

# ---- Nodes that can get another MIG configuration
#
# Each configuration is applied to all such nodes at once, and the planner's own code counts the pods. A node is an option only if no
# pod holds its GPUs, except pods of gangs that policy permits to migrate.


@dataclass(frozen=True, eq=False, slots=True)
class MigOptions:
    """One gang under one choice of flavors, in pods of each of its items (S).

    Attributes:
        configs: names of configurations (C).
        allowed: whether a node can get a configuration. Shape (C, N).
        counts: pods of each item. Shape (S,).
        there: pods of an item that fit a node as it is. Shape (S, N).
        under: the same under a configuration. Shape (C, S, N).
        whole: units of ``nvidia.com/gpu`` under a configuration. Shape (C, N).
        lost: GPU-seconds that the migrations off a node lose; -1 without migrations. Shape (N,).
        domains: number of the domain of each node that the hardest podset group must share; None = no domain.
        shares: whether an item is of that podset group. Shape (S,).
    """

    configs: tuple[str, ...]
    allowed: Mask
    counts: Ints
    there: Ints
    under: Ints
    whole: Ints
    lost: Ints
    domains: Ints | None
    shares: Mask


def mig_options(
    ctx: GangContext, movers: MoveCandidates | None, among: Container[str] | None = None
) -> Iterator[MigOptions]:
    """Under each choice of flavors.

    Args:
        ctx: the gang.
        movers: gangs that can migrate off a node; None = only nodes without pods on GPUs count.
        among: names of nodes; None = all count.
    """
    state = state_under(ctx, past_heads(ctx))
    free, lost = _free(state, movers)
    choosable = {name: o for name, o in _nodes(ctx, free).items() if among is None or name in among}
    names = sorted({name for options in choosable.values() for name in options})
    problems = [_under(ctx, choosable, name) for name in names]
    asked = [_by_flavors(ctx, problem) for problem in problems]
    present = _by_flavors(ctx, ctx.problem)
    for key in dict.fromkeys(key for by_flavors in asked for key in by_flavors):
        request = next(by_flavors[key] for by_flavors in asked if key in by_flavors)
        pods_by_group = _items(request)
        there = np.zeros((len(pods_by_group), ctx.problem.size), dtype=np.int64)
        if key in present:
            there = _fit(present[key], state.free())
        under = np.zeros((len(names), *there.shape), dtype=np.int64)
        for at, (problem, by_flavors) in enumerate(zip(problems, asked, strict=True)):
            if key in by_flavors:
                under[at] = _fit(by_flavors[key], _translated(ctx.problem, problem, free))
        yield MigOptions(
            tuple(names),
            _mask(ctx, choosable, names),
            np.array([pods.count for _, pods in pods_by_group], dtype=np.int64),
            there,
            under,
            np.stack([_whole(ctx.problem, problem) for problem in problems]),
            lost,
            _domains(request),
            np.array([group is request.hardest for group, _ in pods_by_group]),
        )


def _free(state: CycleState, movers: MoveCandidates | None) -> tuple[Ints, Ints]:
    """(R, N) free once the gangs that can migrate off a node's GPUs have done so, and what that loses, (N,)."""
    free, index = state.free(), state.problem.index
    lost = np.full(index.size, -1, dtype=np.int64)
    if movers is None:
        return free, lost
    on_gpus = gpus_held(state.problem, movers.table.rows)
    lost[on_gpus.node] = 0
    np.add.at(lost, on_gpus.node, movers.table.lost[on_gpus.gang])
    return free + on_gpus.sums(index.size), lost


def gpus_held(problem: Problem, rows: Rows) -> Rows:
    """Those of the rows that are of GPUs which MIG can change."""
    held: Ints = rows.use[_gpu_columns(problem)].sum(axis=0)
    return rows.select(held > 0)


def _gpu_columns(problem: Problem) -> list[int]:
    return [at for at, name in enumerate(problem.resources) if nvidia_gpus(name)]


def _nodes(ctx: GangContext, free: Ints) -> dict[str, dict[str, Node]]:
    """Node name to the node under each configuration, of nodes whose GPUs are all free."""
    index, pools = ctx.problem.index, ctx.snapshot.config.mig_pools
    gpus = _gpu_columns(ctx.problem)
    unused = (free[gpus] == index.allocatable[gpus]).all(axis=0) & index.ready
    found = {}
    for at in np.flatnonzero(unused).tolist():
        node = index.nodes[at]
        if is_cordoned(node) or node.name in ctx.pending.excluded:
            continue
        options = {config.name: after for config, after in choices(node, pools)}
        if options:
            found[node.name] = options
    return found


def _under(ctx: GangContext, choosable: Mapping[str, Mapping[str, Node]], name: str) -> Problem:
    """The problem in which every node that can have this configuration has it."""
    nodes = (choosable.get(node.name, {}).get(name, node) for node in ctx.snapshot.fleet.nodes)
    changed = replace(ctx.snapshot, fleet=Fleet(tuple(nodes)))
    return survey(changed, ctx.problem.cache.fork())


def _by_flavors(ctx: GangContext, problem: Problem) -> dict[tuple[object, ...], GangRequest]:
    return {
        tuple(tuple(sorted(flavors.items())) for flavors in request.flavors): request
        for request in requests(ctx, past_heads(ctx), problem)
        if request.podset_groups
    }


def _items(request: GangRequest) -> list[tuple[PodSetGroup, ShapePods]]:
    return [(group, pods) for group in request.podset_groups for pods in group.to_place]


def _fit(request: GangRequest, free: Ints) -> Ints:
    """(S, N) pods of each item that fit each node, where all other items are absent."""
    free = np.maximum(free, 0)
    return np.stack([np.minimum(caps(free, p.shape), p.count) for _, p in _items(request)])


def _translated(before: Problem, after: Problem, free: Ints) -> Ints:
    """The free capacity of the nodes of ``after`` with the same use: resources that a node no longer has are overdrawn."""
    translated = after.index.allocatable.copy()
    used = before.index.allocatable - free
    for at, name in enumerate(before.resources):
        column = after.index.column.get(name)
        if column is not None:
            translated[column] -= used[at]
    return translated


def _mask(ctx: GangContext, choosable: Mapping[str, Mapping[str, Node]], names: list[str]) -> Mask:
    allowed = np.zeros((len(names), ctx.problem.size), dtype=np.bool_)
    for node, options in choosable.items():
        allowed[[names.index(name) for name in options], ctx.problem.index.position[node]] = True
    return allowed


def _whole(before: Problem, after: Problem) -> Ints:
    column = after.index.column.get(GPU)
    return (
        after.index.allocatable[column] if column is not None else np.zeros(before.size, np.int64)
    )


def _domains(request: GangRequest) -> Ints | None:
    group = request.hardest
    if group.required == ANYWHERE or group.on_one_node:
        return None
    return group.tree.domain[group.required]


# ---- Gangs that must migrate first


@dataclass(frozen=True, slots=True)
class MigScope:
    """The changes that queuectl can make itself.

    Attributes:
        gangs: uids of pending gangs for which it can change nodes.
        nodes: names of nodes that it can change.
        most: how many nodes at once.
    """

    gangs: frozenset[str]
    nodes: frozenset[str]
    most: int


def movers_of(ctx: GangContext, *, execute: bool) -> MoveCandidates:
    """Gangs that policy permits to migrate.

    ``execute``: queuectl migrates them itself, so only the queues with ``Execute`` count, within what moves may cost a day.
    """
    state = state_under(ctx, past_heads(ctx))
    policy = MigrationPolicy(ctx.cycle)
    if execute:
        allowed = policy.may_move(ctx.pending, (Defragment.EXECUTE,))
        return move_candidates(state, allowed, policy.budgets())
    modes = (Defragment.PLAN, Defragment.EXECUTE)
    return move_candidates(state, policy.may_move(ctx.pending, modes), {})


def moved_off(
    ctx: GangContext, movers: MoveCandidates, nodes: Sequence[int]
) -> dict[str, Placement] | None:
    """By uid, new places for the movers on the GPUs of these nodes; None if they find none on the others, or cost too much."""
    table = movers.table
    on_gpus = gpus_held(ctx.problem, table.rows)
    gangs = np.unique(on_gpus.gang[np.isin(on_gpus.node, nodes)]).tolist()
    if not gangs:
        return {}
    if not movers.allows(gangs):
        return None
    leaving: Mask = table.mask(gangs)
    free = state_under(ctx, past_heads(ctx)).free() + table.freed(ctx.problem.size, leaving)
    free[:, list(nodes)] = 0
    requests = [movers.request(gang) for gang in gangs]
    made = arrange((), requests, free, ctx.solver, ctx.pending.budget)
    if made.status is not Status.SOLVED:
        return None
    return {
        table.gangs[gang].workload.uid: placement_of(ctx.problem, request, counts)
        for gang, request, counts in zip(gangs, requests, made.new, strict=True)
    }


def moves_off(ctx: GangContext, nodes: Sequence[str]) -> tuple[Move, ...] | None:
    """The migrations, which queuectl makes itself, of the gangs on the GPUs of these nodes; None if some find no place."""
    movers, index = movers_of(ctx, execute=True), ctx.problem.index
    there = [index.position[name] for name in nodes if name in index.position]
    places = moved_off(ctx, movers, there)
    if places is None:
        return None
    costs = {g.workload.uid: c for g, c in zip(movers.table.gangs, movers.costs, strict=True)}
    return tuple(
        Move(uid, ctx.uid, place, costs[uid], Proof.FEASIBLE) for uid, place in places.items()
    )


# ---- Fixes
#
# A domain must gain at least what the sums above say that it lacks. Domains are tried in the
# order of that bound. In each, the nodes that help most are chosen one by one, and the planner is asked on the changed snapshot.
# Nodes without pods on GPUs come first; nodes that gangs must leave count only where the others are not enough.

_DOMAINS: Final = 4  # in which the planner is asked
_SPARED: Final = 16  # nodes tried one by one whether they can be left out
_NAMED: Final = 4  # nodes named in a sentence

_SENTENCES: Final = {
    MigPhase.EMPTYING: "pods leave node {node}, which gets the MIG configuration {target} for this gang",
    MigPhase.APPLYING: "the MIG manager applies {target} on node {node} for this gang",
    MigPhase.ROLLING_BACK: "the MIG manager did not apply {target} on node {node}, and applies {source} again",
    MigPhase.SUCCEEDED: "node {node} has got the MIG configuration {target} for this gang",
    MigPhase.FAILED: "the MIG manager did not apply {target} on node {node}, which has {source} again",
    MigPhase.NOT_EMPTIED: "pods kept GPUs of node {node}, so it did not get the MIG configuration {target}",
    MigPhase.WITHDRAWN: "node {node} keeps the MIG configuration {source}: the change to {target} is no longer needed",
    MigPhase.TAKEN_OVER: "another user changed node {node} while it was to get the MIG configuration {target}",
}

_Picks: TypeAlias = list[tuple[int, int]]  # node, configuration


@dataclass(frozen=True, slots=True)
class _Choice:
    """Nodes by name with their configurations, new places of gangs by uid, and the quota that is short then."""

    configs: Mapping[str, str]
    places: Mapping[str, Placement]
    short: Mapping[FlavorResource, int]
    least: bool

    @property
    def changes(self) -> tuple[SuggestedChange, ...]:
        moves = (Relocate(self.places),) if self.places else ()
        return (*moves, ReconfigureMig(self.configs))


def reconfigured_nodes(ctx: GangContext, scope: MigScope | None = None) -> Iterator[SuggestedFix]:
    """The fewest nodes whose MIG configuration lets the gang start, with the gangs that migrate first.

    ``scope``: what queuectl can do itself; None = all that policy permits.
    """
    if not ctx.snapshot.config.mig_pools or not _asks(ctx.pending.workload) or quota_alone(ctx):
        return
    if any(node.reconfigured_for == ctx.uid and _helps(node) for node in ctx.snapshot.fleet.nodes):
        return  # it is under way
    for movers in (None, movers_of(ctx, execute=scope is not None)):
        if movers is not None and not movers.size:
            continue
        found = _Search(ctx, movers, scope.nodes if scope is not None else None).run()
        if found is not None:
            fix = _fix(ctx, found, movers)
            yield from finish(ctx, fix, found.short)
            return


def _helps(node: Node) -> bool:
    """Whether a change can still end with the new configuration: it is not rolled back, and no user has set another label."""
    rolled_back = node.mig is not None and node.mig.phase is MigPhase.ROLLING_BACK
    return not (rolled_back or relabeled(node))


def under_way(ctx: GangContext) -> Iterator[str]:
    """The changes of MIG configurations that queuectl makes for the gang, and those that failed."""
    for node in ctx.snapshot.fleet.nodes:
        if (
            node.mig is not None
            and node.mig.gang == ctx.uid
            and node.mig.phase not in (MigPhase.SUCCEEDED, MigPhase.WITHDRAWN)
        ):
            yield sentence(node.mig, node.name)


def sentence(change: MigReconfiguration, node: str) -> str:
    """The phase of a change, in words for the users of the gang."""
    source, target = change.source.config, change.target.config
    text = _SENTENCES[change.phase].format(node=node, source=source, target=target)
    repeated = change.phase is MigPhase.FAILED and change.failures > 1
    return f"{text}; {change.failures} changes in succession failed" if repeated else text


def _asks(workload: Workload) -> bool:
    """Whether it requests resources that MIG changes, and no devices of resource claims."""
    shapes = [podset.shape for podset in workload.podsets]
    return any(nvidia_gpus(name) for shape in shapes for name in shape.requests) and not any(
        shape.incidental for shape in shapes
    )


def _fix(ctx: GangContext, choice: _Choice, movers: MoveCandidates | None) -> SuggestedFix:
    by_name = ctx.snapshot.fleet.by_name
    nodes = [
        {"node": name, "from": by_name[name].labels.get(CONFIG), "to": config}
        for name, config in sorted(choice.configs.items())
    ]
    listed = some(
        [f"{name} to {config}" for name, config in sorted(choice.configs.items())], _NAMED
    )
    message = f"reconfigure MIG on {counted(len(nodes), 'node')}: {listed}"
    details: dict[str, Any] = {"nodes": nodes}
    if movers is not None and choice.places:
        lost = dict(zip((g.workload.uid for g in movers.table.gangs), movers.costs, strict=True))
        details["gangs"] = [
            {
                "workload": ctx.refs[uid],
                "lostGpuSeconds": lost[uid].lost_work,
                "nodes": sorted({name for p in place.podsets for name, _ in p.nodes}),
            }
            for uid, place in choice.places.items()
        ]
        names = [gang["workload"] for gang in details["gangs"]]
        message += f", after the migration of {counted(len(names), 'gang')}: {some(names)}"
    return SuggestedFix(Remedy.RECONFIGURE_MIG, message, details, choice.changes, choice.least)


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

    ctx: GangContext
    movers: MoveCandidates | None
    among: frozenset[str] | None

    def run(self) -> _Choice | None:
        choices = list(mig_options(self.ctx, self.movers, self.among))
        sites = sorted((s for c in choices for s in _sites(c)), key=lambda site: site.bound)
        best: _Choice | None = None
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

    def _enough(self, site: _Site) -> _Choice | None:
        """The nodes by the first order of the items that is enough."""
        orders = (None, *range(len(site.lacks))) if len(site.lacks) > 1 else (None,)
        tried = (self._chosen(site, first) for first in orders)
        return next((found for found in tried if found is not None), None)

    def _chosen(self, site: _Site, first: int | None) -> _Choice | None:
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

    def _fewer(self, site: _Site, picks: _Picks, choice: _Choice) -> _Choice:
        for pick in picks[::-1][:_SPARED]:
            without = [other for other in picks if other != pick]
            less = self._settle(site, without) if len(without) >= site.bound else None
            if less is not None:
                picks, choice = without, less
        return choice

    def _settle(self, site: _Site, picks: _Picks) -> _Choice | None:
        """The answer of the planner for these nodes; None if the gang does not start, or others find no place."""
        ctx, nodes = self.ctx, self.ctx.problem.index.nodes
        places: dict[str, Placement] | None = {}
        if self.movers is not None:
            places = moved_off(ctx, self.movers, [node for node, _ in picks])
        if places is None:
            return None
        configs = {nodes[node].name: site.options.configs[config] for node, config in picks}
        found = _Choice(configs, places, {}, least=False)
        cycle = ctx.checks.decided(found.changes)
        if cycle is None:
            return None
        short = {} if ctx.checks.helped(cycle) else quota_short(ctx, cycle)
        return replace(found, short=short) if short is not None else None

    def _moved(self, nodes: Sequence[int]) -> dict[str, Placement] | None:
        """New places for all gangs on the GPUs of these nodes; None if they find none on the other nodes."""
        return moved_off(self.ctx, self.movers, nodes) if self.movers is not None else {}
