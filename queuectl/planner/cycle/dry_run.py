"""Which gangs would be evicted for not using their GPUs, and for which, were it not only a dry run in their ClusterQueues.

It runs last, when the plan is made and nothing depends on the state any more: for gangs that neither start nor wait for victims,
in the order of priority, time queued and uid, beside all that the plan starts and leases. The room that one of them would get is held
for it before the next one, so no GPU counts twice. The solver's work is not counted with the plan's, and where the
wall clock cuts it, no gang is named from there on: a dry run changes nothing else of a plan.

A gang is asked for whole, also where it may start with fewer pods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from queuectl.domain.plan import Preemption
from queuectl.domain.queues import ClusterQueue, ReclaimMode
from queuectl.domain.reasons import WAITS_FOR_ROOM
from queuectl.domain.snapshot import Pending
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.preempt.running import any_yields, yielding
from queuectl.planner.search.flavor_choice import FitsAfterEviction, FlavorChooser
from queuectl.planner.solver.solver import Solver

_MOST: Final = 16  # gangs asked for in one plan: a long queue costs no more than a short one


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
        cycle.stop_withholding(pending.workload.uid)
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
        if gangs_tried == _MOST:
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
