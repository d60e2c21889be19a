"""From a snapshot to a plan: arena, repairs, walk, the confirming solve, and the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from queuectl.domain.plan import Plan, Proof, Refusal
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.planner.cache import PlannerCache
from queuectl.planner.capacity.reservations import standing_leases
from queuectl.planner.capacity.state import open_state
from queuectl.planner.consolidate.tidy import tidy
from queuectl.planner.cycle.ahead import look_ahead
from queuectl.planner.cycle.answer import answer
from queuectl.planner.cycle.balance import uneven
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.cycle.defragment import defragment
from queuectl.planner.cycle.dryrun import dry_run
from queuectl.planner.cycle.heads import HeadScheduler
from queuectl.planner.cycle.repair_precedence import Repairs
from queuectl.planner.order.classes import PendingGangs, pending_gangs
from queuectl.planner.order.order import StrictOrder
from queuectl.planner.placement.feasible import confirm, draw_together
from queuectl.planner.placement.unpack import Answer
from queuectl.planner.problem.problem import Problem, survey
from queuectl.planner.reasons import refusals
from queuectl.planner.repair.repair import Repaired
from queuectl.planner.search.classes import GangClasses
from queuectl.planner.solver.solver import Solver, Status, StopSignal


def plan(
    snapshot: Snapshot, stop: StopSignal | None = None, cache: PlannerCache | None = None
) -> Plan:
    """Decide one cycle: who starts where, who leaves, and why everybody else waits.

    Pure and deterministic: the same snapshot gives the same plan, byte for byte, unless it was cut (``Plan.cut``).

    Args:
        snapshot: everything the cycle may look at.
        stop: lets another thread end it early; the plan is then cut.
        cache: of earlier calls; the plan does not depend on it.
    """
    prepared = begin(survey(snapshot, cache), stop)
    look_ahead(prepared.cycle, prepared.in_order)
    for pending in HeadScheduler(prepared.cycle, prepared.lines):
        prepared.cycle.heads.advance_to(pending)
        prepared.consider(pending)
    cleared = defragment(prepared.cycle, prepared.in_order)
    draw_together(prepared.cycle.state, prepared.cycle.moved)
    tidied = tidy(
        prepared.cycle.state, list(prepared.cycle.starting.values()), prepared.cycle.solver
    )
    repairs = _confirm(prepared.cycle, prepared.mending.repaired, prepared.in_order)
    made = answer(prepared.cycle, repairs, prepared.in_order, tidied=tidied)
    stats = {**made.stats, "rooms_sought": cleared.sought}
    returning = prepared.cycle.leases.returning
    made = replace(made, moved=cleared.moves, returning=returning, stats=stats)
    aside = Solver(snapshot.limits, prepared.cycle.solver.stop)
    spared = tuple(dry_run(prepared.cycle, prepared.in_order, aside))
    made = replace(made, spared=spared, alarms=(*made.alarms, *aside.alarms))
    return replace(made, uneven=tuple(uneven(prepared.cycle.problem, made)))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A walk about to begin: broken gangs are repaired, standing leases taken off, nobody has been looked at."""

    cycle: AdmissionCycle
    mending: Repairs
    lines: PendingGangs

    @property
    def in_order(self) -> Sequence[Pending]:
        """All pending gangs: priority, time queued, uid."""
        return self.lines.in_order

    def consider(self, pending: Pending) -> None:
        """Decide the gang whose turn it is; broken gangs that gave way to it are repaired again."""
        self.cycle.consider(pending)
        self.mending.resume()


def begin(problem: Problem, stop: StopSignal | None = None) -> Prepared:
    """Everything that comes before the first pending gang."""
    snapshot = problem.snapshot
    solver = Solver(snapshot.limits, stop or StopSignal())
    state = open_state(problem)
    lines = pending_gangs(snapshot, problem.cache)
    leases = standing_leases(problem, state, lines.in_order)
    cycle = AdmissionCycle(
        problem, state, solver, leases, GangClasses(problem, lines.kinds), StrictOrder(problem)
    )
    return Prepared(cycle, Repairs(cycle), lines)


def turns(prepared: Prepared) -> Iterator[Pending]:
    """Each pending gang at a turn of its own: it is looked at when the next one is asked for."""
    cycle = prepared.cycle
    for pending in HeadScheduler(cycle, prepared.lines, singly=True):
        cycle.heads.advance_to(pending)
        yield pending
        prepared.consider(pending)


def _confirm(
    cycle: AdmissionCycle, repairs: list[Repaired], in_order: Sequence[Pending]
) -> list[Repaired]:
    """Admit only what CP-SAT holds a solution for; without one nothing starts and every starter is undecided."""
    stopped = cycle.solver.stop.stopped
    confirmed = Answer(Status.UNKNOWN) if stopped else confirm(cycle.state, cycle.solver)
    if confirmed.status is Status.FOUND:
        for kept, node_counts in zip(cycle.state.kept, confirmed.node_counts, strict=True):
            if any(new is not old for new, old in zip(node_counts, kept.node_counts, strict=True)):
                cycle.state.move(kept, node_counts)
        return repairs
    alarm = confirmed.alarm
    if confirmed.status is Status.REFUTED:
        alarm = "the solver refuted a placement that was verified node by node"
        cycle.solver.alarms.append(alarm)
    for pending in in_order:
        uid = pending.workload.uid
        if cycle.starting.pop(uid, None) is not None:
            why = refusals.undecided(pending.budget, alarm)
            cycle.refused[uid] = Refusal(uid, (why,), pending.lease, Proof.UNDECIDED)
    cycle.undecided = True
    return []
