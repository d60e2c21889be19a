"""From a snapshot to a plan: the problem, repairs, the admission cycle, the final check, and the answer with its proofs.

Each answer carries its own proof:

- ``optimal``: proved. The gang starts, and so does each gang considered before it that can; or it does not fit alongside them,
  wherever they are placed; or these are the least victims.
- ``feasible``: it holds, but a better answer is not ruled out: victims that are not proved to be the least, fewer pods than perhaps
  fit, or a gang considered before is undecided and could have taken the place.
- ``undecided``: a limit ended the search, or the gang was not considered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from queuectl.domain.containment import naming
from queuectl.domain.plan import Admission, Plan, Preemption, Proof, Refusal, ScheduledGang
from queuectl.domain.queues import ClusterQueue, ReclaimMode
from queuectl.domain.reasons import WAITS_FOR_ROOM
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.workload import Placement, Workload
from queuectl.planner.backfill.slips import Slips
from queuectl.planner.cache import PlannerCache
from queuectl.planner.capacity.node_counts import placement_of
from queuectl.planner.capacity.reservations import valid_leases
from queuectl.planner.capacity.state import open_state
from queuectl.planner.consolidate import consolidate
from queuectl.planner.cycle.advance import Advance, reserve_in_advance
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.cycle.defragment import defragment
from queuectl.planner.cycle.heads import HeadScheduler
from queuectl.planner.cycle.look_ahead import look_ahead
from queuectl.planner.cycle.repair_precedence import Repairs
from queuectl.planner.cycle_work import CycleWork
from queuectl.planner.model.builder import Placed
from queuectl.planner.model.counts import ShapeCounts
from queuectl.planner.order.pending_gangs import PendingGangs, pending_gangs
from queuectl.planner.order.queue_order import StrictFifoHeads, place
from queuectl.planner.placement.feasible import confirm, narrow
from queuectl.planner.placement.single import domain_counts, level_reached
from queuectl.planner.preempt.running import any_yields, yielding
from queuectl.planner.problem.flavors import flavors_of
from queuectl.planner.problem.fleet import Ints
from queuectl.planner.problem.problem import Problem, survey
from queuectl.planner.problem.request import PodSetGroup, ShapePods, as_placed, request_of
from queuectl.planner.reasons import refusals
from queuectl.planner.repair import Repaired
from queuectl.planner.search.flavor_choice import FitsAfterEviction, FlavorChooser
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
        cache: of earlier calls. The plan does not depend on it, as long as no gang is left to a later cycle: known answers cost no work.
    """
    prepared = begin(survey(snapshot, cache), stop)
    cycle, in_order = prepared.cycle, prepared.in_order
    look_ahead(cycle, in_order)
    decide_up_to(prepared)
    cleared = defragment(cycle, in_order)
    consolidated = _tidy(cycle)
    repairs = prepared.repairs.repaired
    confirmed = _confirm(cycle)
    holds = confirmed.status is Status.SOLVED
    if not holds:
        _decide_nothing(prepared, confirmed.alarm)
        cleared, repairs = replace(cleared, moves=()), []
    answer = make_plan(cycle, repairs, in_order, consolidated=consolidated)
    own_solver = Solver(cycle.solver.limits, cycle.solver.stop)
    slips = Slips(cycle.planned.timeline, cycle.planned.gangs)
    starts = slips.planned(cycle.planned.lapsed) if holds else _planned_before(in_order)
    answer = replace(
        answer,
        planned=tuple(starts),
        reserved=prepared.advance.states(),
        moved=cleared.moves,
        returning=cycle.leases.returning,
        stats={**answer.stats, "rooms_sought": cleared.sought},
        spared=tuple(dry_run(cycle, in_order, own_solver)),
        alarms=(*answer.alarms, *own_solver.alarms),
    )
    return replace(answer, uneven=tuple(uneven(cycle.problem, answer)))


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


def begin(problem: Problem, stop: StopSignal | None = None, *, limited: bool = True) -> Prepared:
    """Everything that comes before the first pending gang. ``limited``: the cycle has a limit on its work."""
    snapshot = problem.snapshot
    state = open_state(problem)
    pending = pending_gangs(snapshot, problem.cache)
    work = CycleWork(snapshot.limits, int(snapshot.now), len(pending.by_queue)) if limited else None
    solver = Solver(snapshot.limits, stop or StopSignal(), work=work)
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


def _confirm(cycle: AdmissionCycle) -> Placed:
    """Have one CP-SAT solution hold all that starts, and place the gangs as it has them."""
    stopped = cycle.solver.stop.stopped
    solver = Solver(cycle.solver.limits, cycle.solver.stop)  # with all its time
    confirmed = Placed(Status.UNKNOWN) if stopped else confirm(cycle.state, solver)
    cycle.solver.count(solver)
    cycle.solver.unknown += solver.unknown
    if confirmed.status is Status.REFUTED:
        alarm = "the solver refuted a placement that was verified node by node"
        cycle.solver.alarms.append(alarm)
        return replace(confirmed, alarm=alarm)
    if confirmed.status is Status.SOLVED:
        for admission, counts in zip(cycle.state.admissions, confirmed.node_counts, strict=True):
            if any(new is not old for new, old in zip(counts, admission.node_counts, strict=True)):
                cycle.state.move(admission, counts)
    return confirmed


def _decide_nothing(prepared: Prepared, alarm: str) -> None:
    """Take back all decisions about gangs, because the evictions and the leases rest on the starts; only earlier leases stand."""
    cycle, problem = prepared.cycle, prepared.cycle.problem
    cycle.leases = valid_leases(problem, open_state(problem), prepared.in_order)
    cycle.undecided = True
    cycle.starting.clear()
    cycle.holds.clear()
    cycle.preempted.clear()
    cycle.waiting_repairs.clear()
    cycle.evicted[:] = prepared.advance.evicted
    for pending in prepared.in_order:
        uid = pending.workload.uid
        refusal = cycle.refused.get(uid)
        if refusal is None or refusal.lease is not None:
            lease = pending.lease if cycle.leases.holds(uid) else None
            why = refusals.undecided(pending.budget, alarm)
            cycle.refused[uid] = Refusal(uid, (why,), lease, Proof.UNDECIDED)


def _planned_before(in_order: Sequence[Pending]) -> Iterator[ScheduledGang]:
    """The planned starts of the last plan."""
    for pending in in_order:
        if pending.planned_start is not None:
            yield ScheduledGang(pending.workload.uid, pending.planned_start, is_current=False)


# ---- The answer


def make_plan(
    cycle: AdmissionCycle, repairs: Sequence[Repaired], in_order: Sequence[Pending], **stats: float
) -> Plan:
    """The plan of a cycle; ``stats`` are added to those of the cycle."""
    problem = cycle.problem
    starting = sorted(cycle.starting.values(), key=lambda k: place(k.request.pending.workload))
    answers = cycle.refused | {uid: hold.refusal(problem) for uid, hold in cycle.holds.items()}
    started = [
        Admission(uid, placement_of(problem, k.request, k.node_counts), proof=_sure(cycle, uid))
        for k in starting
        if (uid := k.request.pending.workload.uid) not in cycle.holds
    ]
    refused = map(answers.get, (p.workload.uid for p in in_order))
    waiting = [r if r.lease is None else _waits(cycle, r) for r in refused if r is not None]
    pending = (*cycle.waiting_repairs, *waiting)
    sure = {refusal.uid: refusal.proof for refusal in pending if refusal.lease is not None}
    return Plan(
        admitted=(*(r.admission() for r in repairs), *started),
        preempted=tuple(replace(p, proof=sure[p.preemptor]) for p in cycle.preempted),
        evicted=tuple(cycle.evicted),
        pending=pending,
        proof=_whole(cycle),
        cut=cycle.solver.ended(),
        stats=_stats(cycle) | stats,
        alarms=tuple(cycle.solver.alarms),
    )


def _sure(cycle: AdmissionCycle, uid: str) -> Proof:
    """The proof of a gang that starts, or waits for its victims."""
    return Proof.FEASIBLE if uid in cycle.doubtful else Proof.OPTIMAL


def _waits(cycle: AdmissionCycle, refusal: Refusal) -> Refusal:
    if refusal.proof is Proof.UNDECIDED:
        return refusal
    return replace(refusal, proof=_sure(cycle, refusal.uid))


def _whole(cycle: AdmissionCycle) -> Proof:
    if cycle.undecided:
        return Proof.UNDECIDED
    return Proof.FEASIBLE if cycle.unproved or cycle.doubtful else Proof.OPTIMAL


def _stats(cycle: AdmissionCycle) -> dict[str, float]:
    solver = cycle.solver
    return {
        "nodes": cycle.problem.size,
        "looked_at": len(cycle.problem.snapshot.pending),
        "solves": solver.calls,
        "solver_unknown": solver.unknown,
        "solver_alarms": len(solver.alarms),
        "deterministic_time": solver.deterministic_time,
        "replaced": cycle.moves,
    }


# Balance.


def uneven(problem: Problem, plan: Plan) -> Iterator[tuple[str, str]]:
    """(uid, podset) of each podset that is placed unevenly, although it asks for an even spread.

    Balance is a preference: a podset starts unevenly where no domain holds it evenly, or where the start of another gang needs
    the even place.
    """
    snapshot = problem.snapshot
    placements = [(a.uid, a.placement) for a in plan.admitted]
    placements += [(r.uid, r.lease.placement) for r in plan.pending if r.lease is not None]
    placements += [(m.uid, m.placement) for m in plan.moved]
    leases = {a.workload.uid: a.lease for a in snapshot.admitted} if plan.returning else {}
    for uid in plan.returning:
        if (lease := leases.get(uid)) is not None:
            placements.append((uid, lease.placement))
    placements = [(uid, placement) for uid, placement in placements if placement.on_nodes]
    placed = {uid for uid, _ in placements}
    if not placed:
        return
    known = {p.workload.uid: p.workload for p in snapshot.pending if p.workload.uid in placed}
    if len(known) < len(placed):  # otherwise no running gang is looked up
        known |= {a.workload.uid: a.workload for a in snapshot.admitted if a.workload.uid in placed}
    for uid, placement in placements:
        if any(p.topology is not None and p.topology.balanced for p in known[uid].podsets):
            yield from ((uid, name) for name in _uneven(problem, known[uid], placement))


def _uneven(problem: Problem, workload: Workload, placement: Placement) -> Iterator[str]:
    pending = as_placed(Pending(workload), placement)
    flavors = flavors_of(workload, placement)
    request = request_of(problem, pending, None, flavors, lasting=True)
    for podset_group in request.podset_groups:
        rows = {
            pods.podset: _per_node(problem, placement, workload.podsets[pods.podset].name)
            for pods in podset_group.pods
        }
        nodes = np.flatnonzero(sum(rows.values()))
        level = level_reached(podset_group, domain_counts(podset_group, ((nodes, nodes),)))
        for pods in podset_group.pods:
            if pods.balanced and not _even(podset_group, level, pods, rows[pods.podset]):
                yield workload.podsets[pods.podset].name


def _per_node(problem: Problem, placement: Placement, podset: str) -> Ints:
    row = np.zeros(problem.size, dtype=np.int64)
    placed = placement.of(podset)
    for name, count in placed.nodes if placed is not None else ():
        if name in problem.index.position:
            row[problem.index.position[name]] += count
    return row


def _even(podset_group: PodSetGroup, level: int, pods: ShapePods, per_node: Ints) -> bool:
    tree, below = podset_group.tree, level + 1
    if level == tree.depth:
        return True
    sums = per_node if below == tree.depth else tree.sums(below, per_node)
    used = sums[sums > 0]
    grain = ShapeCounts(tree, per_node, pods.slices).grains[below] * pods.size
    return bool((used % grain == 0).all() and (used.max() - used.min() <= grain))


# ---- The dry run
#
# Which gangs would be evicted for not using their GPUs, and for which, were it not only a dry run in their ClusterQueues. It runs last, when
# the plan is made and nothing depends on the state from then on: for gangs that neither start nor wait for victims, in the order of priority,
# time queued and uid, alongside all that the plan starts and leases. The room that one of them would get is held for it before the next one, so
# no GPU counts twice. The solver's work is not counted with the plan's, and where the wall clock cuts it, no gang is named from there on: a
# dry run changes nothing else of a plan. A gang is asked for whole, also where it may start with fewer pods.


_MOST_TRIED: Final = 16  # gangs asked for in one plan: a long queue costs no more than a short one


def dry_run(
    cycle: AdmissionCycle, in_order: Sequence[Pending], solver: Solver
) -> Iterator[Preemption]:
    """The evictions that do not happen; the state cannot be used afterwards.

    Args:
        cycle: it is over.
        in_order: all pending gangs: priority, time queued, uid.
        solver: another one than the cycle's, which counts this work and what breaks in it.
    """
    if cycle.solver.ended() or not _somewhere(cycle):
        return
    snapshot = cycle.problem.snapshot
    chooser = FlavorChooser(cycle.problem, cycle.state, solver, dry=True)
    hopeless: set[int] = set()  # classes, by id: gangs that come later yield no more to them
    gangs_tried = 0
    for pending, queue in _blocked(cycle, in_order):
        kind = cycle.classes.of(pending, queue)
        if id(kind) in hopeless:
            continue
        cycle.state.quota.stop_withholding(pending.workload.uid)
        outcome = chooser.choose(pending, queue, cycle.open_requests(pending, queue))
        gangs_tried += 1
        if solver.ended():
            return
        if isinstance(outcome, FitsAfterEviction):
            yield from outcome.victims.victims
            gangs = snapshot.admitted_of({v.victim for v in outcome.victims.victims})
            cycle.reserve_after(outcome.request, outcome.victims.node_counts, gangs)
        else:
            hopeless.add(id(kind))
        if gangs_tried == _MOST_TRIED:
            return


def _somewhere(cycle: AdmissionCycle) -> bool:
    """Whether some idle gang is in a queue that does a dry run."""
    queues = cycle.problem.snapshot.config.cluster_queues
    return any(
        queues[name].idle_reclaim.mode is ReclaimMode.DRY_RUN
        for name in yielding(cycle.problem, dry=True)
    )


def _blocked(
    cycle: AdmissionCycle, in_order: Sequence[Pending]
) -> Iterator[tuple[Pending, ClusterQueue]]:
    """Gangs that were refused for want of room or quota, and to which an idle gang yields."""
    for pending in in_order:
        workload = pending.workload
        refusal = cycle.refused.get(workload.uid)
        if refusal is None or refusal.reasons[0].code not in WAITS_FOR_ROOM:
            continue
        queue = cycle.problem.snapshot.queue_of(workload)
        if queue is not None and any_yields(cycle.problem, workload, queue, dry=True):
            yield pending, queue
