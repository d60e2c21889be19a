"""The nodes that could get another MIG configuration for one gang, and how many of its pods each then has room for.

Each configuration is applied to all such nodes at once, and the planner's own code counts the pods. A node is an option only if no
pod holds its GPUs, except pods of gangs that policy permits to migrate.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from queuectl.domain.changes import is_cordoned
from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.mig import choices, nvidia_gpus
from queuectl.domain.quantity import GPU
from queuectl.planner.capacity.state import State
from queuectl.planner.explain.context import Context
from queuectl.planner.explain.relaxation import past_heads, requests, state_under
from queuectl.planner.preempt.candidates import Rows
from queuectl.planner.problem.problem import Problem, caps, survey
from queuectl.planner.problem.request import ANYWHERE, GangRequest, Pods, PodSetGroup
from queuectl.planner.problem.topology import Ints, Mask
from queuectl.planner.relocate.candidates import MoveCandidates


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
    ctx: Context, movers: MoveCandidates | None, among: Container[str] | None = None
) -> Iterator[MigOptions]:
    """Under each choice of flavors.

    Args:
        ctx: the gang.
        movers: gangs that can migrate off a node; None = only nodes without pods on GPUs count.
        among: names of nodes; None = all count.
    """
    state = state_under(ctx, past_heads(ctx))
    free, lost = _free(state, movers)
    found = {name: o for name, o in _nodes(ctx, free).items() if among is None or name in among}
    names = sorted({name for options in found.values() for name in options})
    problems = [_under(ctx, found, name) for name in names]
    asked = [_by_flavors(ctx, problem) for problem in problems]
    present = _by_flavors(ctx, ctx.problem)
    for key in dict.fromkeys(key for by_flavors in asked for key in by_flavors):
        request = next(by_flavors[key] for by_flavors in asked if key in by_flavors)
        items = _items(request)
        there = np.zeros((len(items), ctx.problem.size), dtype=np.int64)
        if key in present:
            there = _fit(present[key], state.free())
        under = np.zeros((len(names), *there.shape), dtype=np.int64)
        for at, (problem, by_flavors) in enumerate(zip(problems, asked, strict=True)):
            if key in by_flavors:
                under[at] = _fit(by_flavors[key], _translated(ctx.problem, problem, free))
        yield MigOptions(
            tuple(names),
            _mask(ctx, found, names),
            np.array([pods.count for _, pods in items], dtype=np.int64),
            there,
            under,
            np.stack([_whole(ctx.problem, problem) for problem in problems]),
            lost,
            _domains(request),
            np.array([group is hardest(request) for group, _ in items]),
        )


def _free(state: State, movers: MoveCandidates | None) -> tuple[Ints, Ints]:
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


def _nodes(ctx: Context, free: Ints) -> dict[str, dict[str, Node]]:
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


def _under(ctx: Context, found: Mapping[str, Mapping[str, Node]], name: str) -> Problem:
    """The problem in which every node that can have this configuration has it."""
    nodes = (found.get(node.name, {}).get(name, node) for node in ctx.snapshot.fleet.nodes)
    changed = replace(ctx.snapshot, fleet=Fleet(tuple(nodes)))
    return survey(changed, ctx.problem.cache)


def _by_flavors(ctx: Context, problem: Problem) -> dict[tuple[object, ...], GangRequest]:
    return {
        tuple(tuple(sorted(flavors.items())) for flavors in request.flavors): request
        for request in requests(ctx, past_heads(ctx), problem)
        if request.podset_groups
    }


def _items(request: GangRequest) -> list[tuple[PodSetGroup, Pods]]:
    return [(group, pods) for group in request.podset_groups for pods in group.items]


def hardest(request: GangRequest) -> PodSetGroup:
    """The podset group whose domain is the finest, then the one with the most pods."""
    return max(request.podset_groups, key=lambda g: (g.required, sum(p.count for p in g.pods)))


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


def _mask(ctx: Context, found: Mapping[str, Mapping[str, Node]], names: list[str]) -> Mask:
    allowed = np.zeros((len(names), ctx.problem.size), dtype=np.bool_)
    for node, options in found.items():
        allowed[[names.index(name) for name in options], ctx.problem.index.position[node]] = True
    return allowed


def _whole(before: Problem, after: Problem) -> Ints:
    column = after.index.column.get(GPU)
    return (
        after.index.allocatable[column] if column is not None else np.zeros(before.size, np.int64)
    )


def _domains(request: GangRequest) -> Ints | None:
    group = hardest(request)
    if group.required == ANYWHERE or group.on_one_node:
        return None
    return group.tree.domain[group.required]
