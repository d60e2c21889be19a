"""Who would be evicted for not using his GPUs, and for whom, were it not only a dry run in his ClusterQueue.

Asked last, when the plan is made and nothing depends on the ledger any more: for gangs that neither start nor wait for victims,
in the order of priority, time queued and uid, beside all that the plan starts and leases. What one of them would get is held
for it before the next is asked, so no GPU is promised twice. The solver's work is not counted with the plan's, and where the
wall clock cuts it, nobody is named from there on: a dry run changes nothing else of a plan.

A gang is asked for whole, also where it may start with fewer pods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from queuectl.domain.plan import Preemption
from queuectl.domain.queues import ClusterQueue, ReclaimMode
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Pending
from queuectl.planner import owed
from queuectl.planner.batch import Walk
from queuectl.planner.choose import Chooser, Clearing
from queuectl.planner.classes import Class
from queuectl.planner.demand import Demand
from queuectl.planner.solve import Solver
from queuectl.planner.victims.idle import anybody_yields, least_priorities

_MOST: Final = 16  # gangs asked for in one plan: a long queue costs no more than a short one
_WAITS_FOR_ROOM: Final = frozenset((Code.WAITING_FOR_QUOTA, Code.TOPOLOGY_PLACEMENT_FAILED))


def dry_run(walk: Walk, in_order: Sequence[Pending], solver: Solver) -> Iterator[Preemption]:
    """The evictions that do not happen; the ledger is spent afterwards.

    Args:
        walk: it is over.
        in_order: all pending gangs: priority, time queued, uid.
        solver: another one than the walk's, which counts this work and what breaks in it.
    """
    if walk.solver.ended() or not _somewhere(walk):
        return
    chooser = Chooser(walk.arena, walk.ledger, solver, dry=True)
    hopeless: set[int] = set()  # classes, by id: whoever comes later yields no more to them
    asked = 0
    for pending, queue in _blocked(walk, in_order):
        kind = walk.classes.of(pending, queue)
        if id(kind) in hopeless:
            continue
        walk.give_back_reserved(pending.workload.uid)
        outcome = chooser.choose(pending, queue, _open_choices(walk, pending, queue, kind))
        asked += 1
        if solver.ended():
            return
        if isinstance(outcome, Clearing):
            yield from outcome.victims.victims
            _hold(walk, outcome)
        else:
            hopeless.add(id(kind))
        if asked == _MOST:
            return


def _somewhere(walk: Walk) -> bool:
    """Whether some idle gang is in a queue that does a dry run."""
    queues = walk.arena.snapshot.config.cluster_queues
    return any(
        queues[name].idle_reclaim.mode is ReclaimMode.DRY_RUN
        for name in least_priorities(walk.arena, dry=True)
    )


def _blocked(walk: Walk, in_order: Sequence[Pending]) -> Iterator[tuple[Pending, ClusterQueue]]:
    """Gangs that were refused for want of room or quota, and to whom somebody idle yields."""
    config = walk.arena.snapshot.config
    for pending in in_order:
        workload = pending.workload
        refusal = walk.refused.get(workload.uid)
        if refusal is None or refusal.reasons[0].code not in _WAITS_FOR_ROOM:
            continue
        queue = config.cluster_queue_of(workload.namespace, workload.queue)
        if queue is not None and anybody_yields(walk.arena, workload, queue, dry=True):
            yield pending, queue


def _open_choices(
    walk: Walk, pending: Pending, queue: ClusterQueue, kind: Class
) -> Iterator[Demand]:
    """What it asks under the choices of flavors that nobody before it in a StrictFIFO queue holds back."""
    for choice, demand in kind.demands:
        head = walk.strict.ahead(queue, choice)
        if head is None or head.ref == pending.workload.ref:
            yield demand


def _hold(walk: Walk, cleared: Clearing) -> None:
    """From here on its victims count as leaving, and what they free as promised."""
    demand, spots = cleared.demand, cleared.victims.spots
    leaving = {victim.victim for victim in cleared.victims.victims}
    gangs = [g for g in walk.arena.snapshot.admitted if g.workload.uid in leaving]
    victims = owed.awaited(walk.ledger, demand, spots, gangs)
    for gang in gangs:
        walk.ledger.evict(gang)
    owed.lease(walk.ledger, demand, spots, victims)
