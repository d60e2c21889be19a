"""Ways out by others leaving: those that leave already, and those that policy lets nobody evict.

The set of gangs to end is the one the planner would evict if it were free to: the same search, over everybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from math import isinf
from operator import itemgetter
from typing import Final

import numpy as np

from queuectl.domain.changes import Leave, Withdraw
from queuectl.domain.diagnosis import Limit, Remedy, Way
from queuectl.domain.queues import (
    ClusterQueue,
    ReclaimWithinCohort,
    WithinClusterQueue,
)
from queuectl.domain.snapshot import Admitted
from queuectl.domain.words import counted
from queuectl.domain.workload import Workload
from queuectl.planner.capacity.state import State
from queuectl.planner.explain.held import HOLDERS
from queuectl.planner.explain.offer import Idea, finish, offer
from queuectl.planner.explain.trial import ask, books, past_heads, requests
from queuectl.planner.explain.turn import Turn
from queuectl.planner.preempt.cost import ages_of
from queuectl.planner.preempt.find import Blocked
from queuectl.planner.preempt.goal import layers
from queuectl.planner.preempt.policy import allowed, within_nominal, would_return
from queuectl.planner.preempt.roster import Bench, rows_of
from queuectl.planner.preempt.search import Found
from queuectl.planner.preempt.shield import opts_out, protected_until
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.quota.tree import QuotaRow
from queuectl.planner.reasons.words import some
from queuectl.planner.solver.solver import Model, Outcome, Solver, Status

_SHARE: Final = 0.05  # of a solve's limit, for each
_ALL: Final = 0.1  # and for all together
_NOT_ALONE: Final = "policy allows it, but it alone is not enough"


def those_leaving(turn: Turn) -> Iterator[Way]:
    """Nothing to do: it fits when those that are being evicted have left."""
    leaving = [g for g in turn.snapshot.admitted if g.leaving]
    if not leaving:
        return
    uids = tuple(g.workload.uid for g in leaving)
    names = [g.workload.ref for g in leaving]
    message = f"wait: it fits once {some(names)} {'has' if len(names) == 1 else 'have'} left"
    world = replace(past_heads(turn), gone=tuple(leaving))
    if ask(turn, world).fits:
        details = {"leaving": names}
        yield from offer(turn, world, Idea(Remedy.WAIT, message, details, (Leave(uids),)))


def others_end(turn: Turn) -> Iterator[Way]:
    """The least set of gangs whose end would let it start, and what keeps each of them from being evicted for it.

    Least in the layers of its ClusterQueue, over all that runs and all choices of flavors, as if no policy protected anybody.
    """
    if not turn.staying:
        return
    world = past_heads(turn)
    state = books(turn, world)
    queue = turn.queue or ClusterQueue("")
    least, proved = None, True
    for request in requests(turn, world, state.problem):
        bench, found = _exits(turn, state, request, queue)
        proved &= found.proved
        if found.victims:
            chosen = [bench.gangs[v] for v in sorted(found.victims)]
            loss = layers(queue.victim_order, [bench.cost(v) for v in found.victims])
            least = min(least or (loss, chosen), (loss, chosen), key=itemgetter(0))
    if least is not None:
        yield from _ending(turn, least[1], least=proved)


def _exits(
    turn: Turn, state: State, request: GangRequest, queue: ClusterQueue
) -> tuple[Bench, Found]:
    """The search for them under one choice of flavors; equal gangs share it."""
    key = (request.units, request.pending.budget, queue.name, *sorted(request.charges.items()))
    known = turn.shared.exits.get(key)
    if known is None:
        bench, solver = _everyone(turn), _Patient(turn.solver.limits, turn.solver.stop)
        known = bench, Blocked(state, request, queue, solver, bench).solve()
        if not solver.cut:
            turn.shared.exits[key] = known
    return known


def holders_withdraw(turn: Turn) -> Iterator[Way]:
    """Gangs for which freed capacity is held, if they gave up waiting for it."""
    waiting = {p.workload.uid: p for p in turn.snapshot.pending}
    uids = [uid for uid, _, _ in turn.cycle.leases.held() if uid != turn.uid]
    if not uids or not waiting.keys() >= set(uids):
        return
    world = past_heads(turn)
    names = [waiting[uid].workload.ref for uid in uids]
    message = f"withdraw {some(names)}, for which freed capacity is held"
    idea = Idea(Remedy.END_OTHERS, message, {"heldFor": names}, (Withdraw(tuple(uids)),))
    yield from offer(turn, replace(world, holders=world.holders - {Limit.LEASE}), idea)


def _ending(turn: Turn, chosen: list[Admitted], *, least: bool) -> Iterator[Way]:
    """The way, with those that leave anyway where it takes them too."""
    leaving = [g for g in turn.snapshot.admitted if g.leaving]
    for gone in (chosen, [*chosen, *leaving]):
        if ask(turn, replace(past_heads(turn), gone=tuple(gone))).fits:
            break
    else:
        return
    why = {g.workload.ref: shield(turn, g) for g in chosen}
    message = f"end {counted(len(chosen), 'gang')}: {some([f'{r} ({w})' for r, w in why.items()])}"
    if len(gone) > len(chosen):
        message += f", and wait for {some([g.workload.ref for g in leaving])} to leave"
    details = {
        "gangs": [{"workload": ref, "policy": policy} for ref, policy in why.items()],
        "gpus": sum(g.gpus for g in chosen),
    }
    change = Leave(tuple(g.workload.uid for g in gone))
    least &= not turn.movable and gone is chosen  # moved, they might spare a gang
    idea = Idea(Remedy.END_OTHERS, message, details, (change,), least)
    yield from finish(turn, idea, {})


def _everyone(turn: Turn) -> Bench:
    """All that runs, as if every one of them might be evicted; made once for as long as the same gangs stay."""
    known = turn.window.everyone
    if known is None or known[0] != turn.staying:
        known = turn.window.everyone = turn.staying, bench_of_all(turn.problem, turn.staying)
    return known[1]


def bench_of_all(problem: Problem, staying: Iterable[Admitted]) -> Bench:
    """Candidates without a policy."""
    gangs = sorted(staying, key=lambda g: (g.workload.priority, g.workload.uid))
    priorities = np.array([g.workload.priority for g in gangs], dtype=np.int64)
    _, rank = np.unique(priorities, return_inverse=True)
    everyone = np.ones(len(gangs), dtype=np.bool_)
    charged: dict[QuotaRow, list[int]] = {}
    for i, gang in enumerate(gangs):
        for row, amount in problem.usage.charges(gang):
            charged.setdefault(row, [0] * len(gangs))[i] += amount
    quota = {row: np.array(amounts, dtype=np.int64) for row, amounts in charged.items()}
    return Bench(
        tuple(gangs),
        rank.astype(np.int64) + 1,
        ages_of(gangs).lost_work(problem.snapshot.now, everyone),
        rows_of(problem, gangs),
        quota,
    )


class _Patient(Solver):
    """For a question that nothing hangs on: a share of the limit for each solve, and for all of them together."""

    def solve(self, model: Model, budget: int = 0) -> Outcome:
        most = self.limits.deterministic_time
        left = min(most * _SHARE, most * _ALL - self.deterministic_time)
        if left <= 0:
            return Outcome(Status.UNKNOWN)
        limits = replace(self.limits, deterministic_time=left, growth=1.0)
        once = Solver(limits, self.stop, light=True)
        outcome = once.solve(model, budget)
        self.deterministic_time += once.deterministic_time
        self.cut |= once.cut
        return outcome


def shield(turn: Turn, gang: Admitted) -> str:
    """Which policy keeps a gang from being evicted for ours."""
    config, own = turn.snapshot.config, turn.pending.workload
    theirs = config.cluster_queue_of(gang.workload.namespace, gang.workload.queue)
    if theirs is None:
        return "it is in no ClusterQueue"
    reclaimed = turn.queue is not None and theirs.name != turn.queue.name
    until = protected_until(gang, theirs, turn.snapshot.now, reclaimed=reclaimed)
    if until is not None:
        if not gang.evictable:
            return "the API server refuses to suspend its job"
        if opts_out(gang.workload, theirs, reclaimed=reclaimed):
            policy = (
                f"preemptionOptOut of ClusterQueue {theirs.name} is {theirs.preemption_opt_out}"
            )
            return f"it is not preemptible, and {policy}"
        if isinf(until):
            return f"maxEvictionsPerDay of ClusterQueue {theirs.name} is 0"
        return f"protected until {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if turn.queue is None:
        return f"ClusterQueue {theirs.name} is not its own"
    return (
        _within(turn.queue, gang, own)
        if theirs.name == turn.queue.name
        else _across(turn, turn.queue, theirs, gang)
    )


def _within(queue: ClusterQueue, gang: Admitted, own: Workload) -> str:
    policy, priority = queue.within_cluster_queue, gang.workload.priority
    if policy is WithinClusterQueue.NEVER:
        return f"withinClusterQueue of {queue.name} is Never"
    if policy is WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY and priority == own.priority:
        newer = gang.workload.queued_at > own.queued_at
        return _NOT_ALONE if newer else f"it has the same priority {priority} and is not newer"
    if priority >= own.priority:
        return f"its priority {priority} is not below {own.priority}"
    return _NOT_ALONE


def _across(turn: Turn, queue: ClusterQueue, theirs: ClusterQueue, gang: Admitted) -> str:
    """The same for a gang of another ClusterQueue."""
    priority = turn.pending.workload.priority
    if (
        queue.cohort is None
        or turn.problem.pools[queue.name].root is not turn.problem.pools[theirs.name].root
    ):
        return f"ClusterQueue {theirs.name} shares no cohort with {queue.name}"
    if queue.reclaim_within_cohort is ReclaimWithinCohort.NEVER:
        return f"reclaimWithinCohort of {queue.name} is Never"
    lower = queue.reclaim_within_cohort is ReclaimWithinCohort.LOWER_PRIORITY
    if lower and gang.workload.priority >= priority:
        return f"its priority {gang.workload.priority} is not below {priority}"
    state = turn.state(HOLDERS, turn.snapshot.config)
    asked = list(requests(turn, past_heads(turn), turn.problem))
    if any(gang.workload.uid in allowed(state, request, queue) for request in asked):
        return _NOT_ALONE
    within = (within_nominal(state, request, queue, theirs.name) for request in asked)
    pool = next(filter(None, within), None)
    if pool is not None:
        kind = "ClusterQueue" if pool == theirs.name else "cohort"
        return f"{kind} {pool} uses no more than its nominal quota"
    if any(would_return(state, request, queue, gang) for request in asked):
        return f"it is within the nominal quota of ClusterQueue {theirs.name} before lower gangs of that queue"
    return f"{queue.name} would have to borrow, and may not evict it then"
