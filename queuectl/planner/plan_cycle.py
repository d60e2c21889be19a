"""From a snapshot to a plan: the problem, repairs, the admission cycle, the final check, and the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from queuectl.domain.containment import naming
from queuectl.domain.plan import Plan, Proof, Refusal
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.planner.backfill.slips import Slips
from queuectl.planner.cache import PlannerCache
from queuectl.planner.capacity.reservations import valid_leases
from queuectl.planner.capacity.state import open_state
from queuectl.planner.consolidate import consolidate
from queuectl.planner.cycle.advance import Advance, reserve_in_advance
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.cycle.defragment import defragment
from queuectl.planner.cycle.dry_run import dry_run
from queuectl.planner.cycle.heads import HeadScheduler
from queuectl.planner.cycle.look_ahead import look_ahead
from queuectl.planner.cycle.make_plan import make_plan, uneven
from queuectl.planner.cycle.repair_precedence import Repairs
from queuectl.planner.model.builder import Placed
from queuectl.planner.order.pending_gangs import PendingGangs, pending_gangs
from queuectl.planner.order.queue_order import StrictFifoHeads
from queuectl.planner.placement.feasible import confirm, narrow
from queuectl.planner.problem.problem import Problem, survey
from queuectl.planner.reasons import refusals
from queuectl.planner.repair import Repaired
from queuectl.planner.search.gang_classes import GangClasses
from queuectl.planner.solver import Solver, Status, StopSignal


def plan(
    snapshot: Snapshot, stop: StopSignal | None = None, cache: PlannerCache | None = None
) -> Plan:
    """Decide one cycle: which gangs start and where, which are evicted, and why the others wait.

    Pure and deterministic: the same snapshot gives the same plan, byte for byte, unless it was cut (``Plan.cut``).

    Args:
        snapshot: the input of the cycle.
        stop: lets another thread end it early; the plan is then cut.
        cache: of earlier calls; the plan does not depend on it.
    """
    prepared = begin(survey(snapshot, cache), stop)
    cycle, in_order = prepared.cycle, prepared.in_order
    look_ahead(cycle, in_order)
    decide_up_to(prepared)
    cleared = defragment(cycle, in_order)
    consolidated = _tidy(cycle)
    repairs = _confirm(cycle, prepared.repairs.repaired, in_order)
    made = make_plan(cycle, repairs, in_order, consolidated=consolidated)
    own_solver = Solver(snapshot.limits, cycle.solver.stop)
    starts = Slips(cycle.planned.timeline, cycle.planned.gangs).planned(cycle.planned.lapsed)
    made = replace(
        made,
        planned=tuple(starts),
        reserved=prepared.advance.states(),
        moved=cleared.moves,
        returning=cycle.leases.returning,
        stats={**made.stats, "rooms_sought": cleared.sought},
        spared=tuple(dry_run(cycle, in_order, own_solver)),
        alarms=(*made.alarms, *own_solver.alarms),
    )
    return replace(made, uneven=tuple(uneven(cycle.problem, made)))


def decide_up_to(prepared: Prepared, last: str | None = None) -> int:
    """Decide the pending gangs one by one, up to the one with the uid ``last``; returns how many turns this took."""
    turns = 0
    for pending in HeadScheduler(prepared.cycle, prepared.pending):
        prepared.cycle.advance_to(pending)
        prepared.consider(pending)
        turns += 1
        if pending.workload.uid == last:
            break
    return turns


def _tidy(cycle: AdmissionCycle) -> int:
    """Place the gangs that start in better places; how many. As they were, if a planned start would not be kept."""
    state = cycle.state
    cycle.planned.settle()
    before = [(admission, admission.node_counts) for admission in state.admissions]
    narrow(state, cycle.moved)
    consolidated = consolidate(state, list(cycle.starting.values()), cycle.solver)
    if cycle.planned.gangs and not cycle.planned.stand():
        for admission, node_counts in before:
            if admission.node_counts is not node_counts:
                state.move(admission, node_counts)
        if not cycle.planned.stand():
            cycle.planned.plan_again()
        return 0
    return consolidated


@dataclass(frozen=True, slots=True)
class Prepared:
    """A cycle before the first pending gang: broken gangs are repaired, and leases that still stand are reserved."""

    cycle: AdmissionCycle
    repairs: Repairs
    pending: PendingGangs
    advance: Advance

    @property
    def in_order(self) -> Sequence[Pending]:
        """All pending gangs: priority, time queued, uid."""
        return self.pending.in_order

    def consider(self, pending: Pending) -> None:
        """Decide the gang whose turn it is, and repair again the broken gangs whose repairs were undone for it."""
        uid, solver = pending.workload.uid, self.cycle.solver
        if not solver.ended():
            solver.stop.turn = uid
        with naming(uid):
            self.cycle.consider(pending)
            self.repairs.resume()


def begin(problem: Problem, stop: StopSignal | None = None) -> Prepared:
    """Everything that comes before the first pending gang."""
    snapshot = problem.snapshot
    solver = Solver(snapshot.limits, stop or StopSignal())
    state = open_state(problem)
    pending = pending_gangs(snapshot, problem.cache)
    leases = valid_leases(problem, state, pending.in_order)
    advance = reserve_in_advance(problem, state, solver)
    cycle = AdmissionCycle(
        problem, state, solver, leases, GangClasses(problem, pending.keys), StrictFifoHeads(problem)
    )
    cycle.evicted.extend(advance.evicted)
    return Prepared(cycle, Repairs(cycle), pending, advance)


def one_by_one(prepared: Prepared) -> Iterator[Pending]:
    """Each pending gang, one at a time in queue order; it is decided when the next one is requested."""
    cycle = prepared.cycle
    for pending in HeadScheduler(cycle, prepared.pending, singly=True):
        cycle.advance_to(pending)
        yield pending
        prepared.consider(pending)


def _confirm(
    cycle: AdmissionCycle, repairs: list[Repaired], in_order: Sequence[Pending]
) -> list[Repaired]:
    """Admit only what one CP-SAT solution holds; without one nothing starts, and each gang that would start is undecided."""
    stopped = cycle.solver.stop.stopped
    confirmed = Placed(Status.UNKNOWN) if stopped else confirm(cycle.state, cycle.solver)
    if confirmed.status is Status.SOLVED:
        for admission, node_counts in zip(
            cycle.state.admissions, confirmed.node_counts, strict=True
        ):
            if any(
                new is not old for new, old in zip(node_counts, admission.node_counts, strict=True)
            ):
                cycle.state.move(admission, node_counts)
        return repairs
    alarm = confirmed.alarm
    if confirmed.status is Status.REFUTED:
        alarm = "the solver refuted a placement that was verified node by node"
        cycle.solver.alarms.append(alarm)
    for pending in in_order:
        uid = pending.workload.uid
        if cycle.starting.pop(uid, None) is not None:
            cycle.holds.pop(uid, None)
            why = refusals.undecided(pending.budget, alarm)
            cycle.refused[uid] = Refusal(uid, (why,), pending.lease, Proof.UNDECIDED)
    cycle.undecided = True
    return []
