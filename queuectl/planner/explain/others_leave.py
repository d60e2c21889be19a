"""Fixes by others that run: they leave by themselves, release what they reserve, move, or end; and devices that lose their taints.

The set of gangs to end is the one that the planner would evict if no policy protected any gang: the same search, over all
that runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final

from queuectl.devices.matching import Matching, NotMatched
from queuectl.devices.pools import effective, out_of_placement
from queuectl.domain.devices import DeviceOption
from queuectl.domain.diagnosis import (
    Leave,
    Limit,
    Obstacle,
    Relocate,
    Remedy,
    SuggestedFix,
    Withdraw,
)
from queuectl.domain.gpus import as_number, summed
from queuectl.domain.plan import Proof
from queuectl.domain.queues import ClusterQueue, Defragment
from queuectl.domain.snapshot import Admitted
from queuectl.domain.words import counted, some
from queuectl.planner.capacity.node_counts import placement_of
from queuectl.planner.capacity.reservations import with_lease
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.cycle.defragment import MigrationPolicy
from queuectl.planner.explain.context import HOLDERS, GangContext
from queuectl.planner.explain.relaxation import ask, past_heads, requests, state_under
from queuectl.planner.explain.remedy import finish, offer
from queuectl.planner.preempt.candidates import CandidateTable, table_of
from queuectl.planner.preempt.cost import layers
from queuectl.planner.preempt.find import Blocked
from queuectl.planner.preempt.rules import why_not
from queuectl.planner.preempt.search import BestVictims
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.relocate import find_moves, move_candidates
from queuectl.planner.solver import Model, Solution, Solver, Status

# ---- Fixes by others that run

_SHARE: Final = 0.05  # of a solve's limit, for each
_ALL: Final = 0.1  # and for all together


def once_left(leaving: Sequence[Admitted]) -> SuggestedFix | None:
    """Nothing to do but to wait until these have left."""
    names = [gang.workload.ref for gang in leaving]
    message = f"wait until {_stopped(names)}"
    change = Leave(tuple(gang.workload.uid for gang in leaving))
    return SuggestedFix(Remedy.WAIT, message, {"leaving": names}, (change,)) if names else None


def _stopped(names: Sequence[str]) -> str:
    return f"{some(names)} {'has' if len(names) == 1 else 'have'} stopped"


def those_leaving(ctx: GangContext) -> Iterator[SuggestedFix]:
    """Nothing to do: it fits when those that are being evicted have left."""
    relaxed, fix = replace(past_heads(ctx), gone=ctx.leaving), once_left(ctx.leaving)
    if fix is not None and ask(ctx, relaxed).fits:
        yield from offer(ctx, relaxed, fix)


def holders_withdraw(ctx: GangContext) -> Iterator[SuggestedFix]:
    """Gangs for which freed capacity is reserved, if they were held or deleted."""
    uids = [uid for uid, _, _ in ctx.cycle.leases.held() if uid != ctx.uid]
    if not uids or not {p.workload.uid for p in ctx.snapshot.pending} >= set(uids):
        return
    names = [ctx.refs[uid] for uid in uids]
    message = f"hold or delete {some(names)}, for which freed capacity is reserved"
    fix = SuggestedFix(Remedy.END_OTHERS, message, {"heldFor": names}, (Withdraw(tuple(uids)),))
    yield from offer(ctx, replace(past_heads(ctx), holders=HOLDERS - {Limit.LEASE}), fix)


def others_move(ctx: GangContext) -> Iterator[SuggestedFix]:
    """The cheapest set of running gangs to move so that it fits; what moves may cost a day does not count.

    While others leave anyway, no fix is suggested: those that move could be among those that then need not.
    """
    queues = ctx.snapshot.config.cluster_queues.values()
    if ctx.leaving or all(queue.defragment is Defragment.OFF for queue in queues):
        return
    modes = (Defragment.PLAN, Defragment.EXECUTE)
    state = state_under(ctx, past_heads(ctx))
    candidates = move_candidates(state, MigrationPolicy(ctx.cycle).may_move(ctx.pending, modes), {})
    for request in requests(ctx, past_heads(ctx)):
        solution = find_moves(state, with_lease(ctx.problem, request), candidates, ctx.solver)
        if solution is not None and solution.moved:
            break
    else:
        return
    places = {
        moved.gang.workload.uid: placement_of(ctx.problem, moved.request, moved.node_counts)
        for moved in solution.moved
    }
    gangs = [
        {
            "workload": moved.gang.workload.ref,
            "lostGpuSeconds": moved.cost.lost_work,
            "nodes": sorted({name for p in place.podsets for name, _ in p.nodes}),
        }
        for moved, place in zip(solution.moved, places.values(), strict=True)
    ]
    names = sorted(moved.gang.workload.ref for moved in solution.moved)
    message = (
        f"migrate {counted(len(names), 'gang')} ({solution.cost[0]} GPU-seconds of lost work): "
        f"{some(names)}"
    )
    least = solution.proof is Proof.OPTIMAL
    fix = SuggestedFix(Remedy.MOVE_OTHERS, message, {"gangs": gangs}, (Relocate(places),), least)
    yield from finish(ctx, fix, {})


def others_end(ctx: GangContext) -> Iterator[SuggestedFix]:
    """The least set of gangs whose end would let it start, and what keeps each of them from being evicted for it.

    Least in the layers of its ClusterQueue, over all that runs and all choices of flavors.
    """
    if not ctx.strangers:
        return
    state, queue = state_under(ctx, past_heads(ctx)), ctx.queue or ClusterQueue("")
    least, proved = None, True
    for request in requests(ctx, past_heads(ctx)):
        table, found = _exits(ctx, state, request, queue)
        proved &= found.proved
        if found.victims:
            chosen = [table.gangs[v] for v in sorted(found.victims)]
            loss = layers(queue.victim_order, [table.cost(v) for v in found.victims])
            least = min(least or (loss, chosen), (loss, chosen), key=itemgetter(0))
    if least is not None:
        yield from _ending(ctx, tuple(least[1]), least=proved)


def _ending(
    ctx: GangContext, chosen: tuple[Admitted, ...], *, least: bool
) -> Iterator[SuggestedFix]:
    """The fix, with those that leave anyway where it takes them too."""
    for gone in (chosen, (*chosen, *ctx.leaving)):
        if ask(ctx, replace(past_heads(ctx), gone=gone)).fits:
            break
    else:
        return
    why = {g.workload.ref: shield(ctx, g) for g in chosen}
    message = f"end {counted(len(chosen), 'gang')}: {some([f'{r} ({w})' for r, w in why.items()])}"
    if len(gone) > len(chosen):
        message += f", and wait until {_stopped([g.workload.ref for g in ctx.leaving])}"
    gangs = [{"workload": ref, "policy": policy} for ref, policy in why.items()]
    details = {"gangs": gangs, "gpus": as_number(summed(g.gpus for g in chosen))}
    change = Leave(tuple(g.workload.uid for g in gone))
    least &= not ctx.movable and gone is chosen  # moved, gangs before it might spare one
    yield from finish(ctx, SuggestedFix(Remedy.END_OTHERS, message, details, (change,), least), {})


def _exits(
    ctx: GangContext, state: CycleState, request: GangRequest, queue: ClusterQueue
) -> tuple[CandidateTable, BestVictims]:
    """The search for them under one choice of flavors."""
    staying = {gang.workload.uid for gang in ctx.strangers}
    gone = frozenset(g.workload.uid for g in ctx.snapshot.admitted if g.workload.uid not in staying)
    table = ctx.problem.once(table_without, gone)
    solver = _BudgetedSolver(ctx.solver.limits, ctx.solver.stop)
    found = Blocked(state, request, queue, solver, table).solve()
    ctx.solver.cut |= solver.cut
    return table, found


def table_without(problem: Problem, gone: frozenset[str]) -> CandidateTable:
    """All that runs but for these uids, as if any policy allowed to evict it."""
    running = problem.snapshot.admitted
    return table_of(problem, (gang for gang in running if gang.workload.uid not in gone))


class _BudgetedSolver(Solver):
    """For a question that no plan depends on: a share of the limit for each solve, and for all of them together."""

    def solve(self, model: Model, budget: int = 0, *, completes: bool = False) -> Solution:
        most = self.limits.deterministic_time
        left = min(most * _SHARE, most * _ALL - self.deterministic_time)
        if left <= 0:
            return Solution(Status.UNKNOWN)
        limits = replace(self.limits, deterministic_time=left, growth=1.0)
        once = Solver(limits, self.stop, light=True)
        outcome = once.solve(model, budget, completes=completes)
        self.deterministic_time += once.deterministic_time
        self.cut |= once.cut
        return outcome


def shield(ctx: GangContext, gang: Admitted) -> str:
    """Which policy keeps a gang from being evicted for the one that is diagnosed."""
    relaxed = past_heads(ctx)
    return why_not(state_under(ctx, relaxed), requests(ctx, relaxed), ctx.queue, gang)


# ---- Devices with taints

_OF_NODES: Final = (Limit.FLEET, Limit.SHAPE, Limit.TOPOLOGY, Limit.RUNNING, Limit.HEALTH)
_MOST: Final = 50  # in the details


def with_tainted_devices(ctx: GangContext, conflict: tuple[Obstacle, ...]) -> tuple[Obstacle, ...]:
    """The blocking constraints; the last one of those about nodes names the devices with taints."""
    at = next((i for i in reversed(range(len(conflict))) if conflict[i].limit in _OF_NODES), None)
    found = list(_tainted(ctx)) if at is not None else []
    if at is None or not found:
        return conflict
    are = "is" if len(found) == 1 else "are"
    listed = some(
        [f"{one['device']} on {one['node']} ({', '.join(one['taints'])})" for one in found]
    )
    text = f"{conflict[at].message}; {counted(len(found), 'device')} {are} not used because of taints: {listed}"
    details = {**conflict[at].details, "taintedDevices": found[:_MOST]}
    return (
        *conflict[:at],
        replace(conflict[at], message=text, details=details),
        *conflict[at + 1 :],
    )


def _tainted(ctx: GangContext) -> Iterator[dict[str, Any]]:
    """The devices that its requests select, with the taints that none of these requests tolerates."""
    options = dict.fromkeys(_options(ctx))
    devices = ctx.snapshot.devices
    matching = Matching(devices.classes)
    for name in out_of_placement(devices) if options else ():
        node = devices.nodes[name]
        taints: dict[int, set[str]] = {}
        for option in options:
            try:
                selected = matching(option, node)
            except NotMatched:
                continue
            for at in selected:
                bad = {
                    str(taint)
                    for taint in effective(node.devices[at])
                    if not any(one.tolerates(taint) for one in option.tolerations)
                }
                taints[at] = taints.get(at, bad) & bad
        for at in sorted(at for at, bad in taints.items() if bad):
            yield {"node": name, "device": str(node.devices[at].id), "taints": sorted(taints[at])}


def _options(ctx: GangContext) -> Iterator[DeviceOption]:
    for podset in ctx.pending.workload.podsets:
        devices = podset.shape.devices
        for claim in devices.claims if devices is not None else ():
            for request in claim.requests:
                yield from (option for option in request.options if not option.admin)
