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
from queuectl.planner.capacity import reservations
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.preempt.running import any_yields, yielding
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.search.flavor_choice import FitsAfterEviction, FlavorChooser
from queuectl.planner.search.gang_classes import GangClass
from queuectl.planner.solver import Solver

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
    chooser = FlavorChooser(cycle.problem, cycle.state, solver, dry=True)
    hopeless: set[int] = set()  # classes, by id: gangs that come later yield no more to them
    asked = 0
    for pending, queue in _blocked(cycle, in_order):
        kind = cycle.classes.of(pending, queue)
        if id(kind) in hopeless:
            continue
        cycle.stop_withholding(pending.workload.uid)
        outcome = chooser.choose(pending, queue, _open_choices(cycle, pending, queue, kind))
        asked += 1
        if solver.ended():
            return
        if isinstance(outcome, FitsAfterEviction):
            yield from outcome.victims.victims
            _hold(cycle, outcome)
        else:
            hopeless.add(id(kind))
        if asked == _MOST:
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


def _open_choices(
    cycle: AdmissionCycle, pending: Pending, queue: ClusterQueue, kind: GangClass
) -> Iterator[GangRequest]:
    """Its requests under the choices of flavors that no gang before it in a StrictFIFO queue holds back."""
    for choice, request in kind.requests:
        head = cycle.heads.ahead(queue, choice)
        if head is None or head.ref == pending.workload.ref:
            yield request


def _hold(cycle: AdmissionCycle, cleared: FitsAfterEviction) -> None:
    """From here on its victims count as leaving, and the capacity that they free as reserved."""
    request, node_counts = cleared.request, cleared.victims.node_counts
    gangs = cycle.problem.snapshot.admitted_of({v.victim for v in cleared.victims.victims})
    victims = reservations.awaited(cycle.state, request, node_counts, gangs)
    for gang in gangs:
        cycle.state.evict(gang)
    reservations.reserve(cycle.state, request, node_counts, victims)
