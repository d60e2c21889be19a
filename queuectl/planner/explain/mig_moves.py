"""The gangs that must migrate before nodes get another MIG configuration, and what queuectl can change itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from queuectl.domain.plan import Move, Proof
from queuectl.domain.queues import Defragment
from queuectl.domain.workload import Placement
from queuectl.planner.capacity.placements import placement_of
from queuectl.planner.cycle.defragment import Policy
from queuectl.planner.explain.context import Context
from queuectl.planner.explain.mig_options import gpus_held
from queuectl.planner.explain.relaxation import past_heads, state_under
from queuectl.planner.placement.joint import arrange
from queuectl.planner.problem.topology import Mask
from queuectl.planner.relocate.candidates import MoveCandidates, move_candidates
from queuectl.planner.solver.solver import Status


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


def movers_of(ctx: Context, *, execute: bool) -> MoveCandidates:
    """Gangs that policy permits to migrate.

    ``execute``: queuectl migrates them itself, so only the queues with ``Execute`` count, within what moves may cost a day.
    """
    state = state_under(ctx, past_heads(ctx))
    policy = Policy(ctx.cycle)
    if execute:
        allowed = policy.may_move(ctx.pending, (Defragment.EXECUTE,))
        return move_candidates(state, allowed, policy.budgets())
    modes = (Defragment.PLAN, Defragment.EXECUTE)
    return move_candidates(state, policy.may_move(ctx.pending, modes), {})


def moved_off(
    ctx: Context, movers: MoveCandidates, nodes: Sequence[int]
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
    if made.status is not Status.FOUND:
        return None
    return {
        table.gangs[gang].workload.uid: placement_of(ctx.problem, request, counts)
        for gang, request, counts in zip(gangs, requests, made.new, strict=True)
    }


def moves_off(ctx: Context, nodes: Sequence[str]) -> tuple[Move, ...] | None:
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
