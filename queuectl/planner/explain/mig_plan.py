"""The answer of ``queuectl plan --mig``: for the first pending gang that other MIG configurations help, which nodes get which.

The plan is carried out first, so no node that a gang starts on, or that is reserved, is reconfigured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from queuectl.domain.changes import ReconfigureMig, Relocate
from queuectl.domain.diagnosis import SuggestedFix
from queuectl.domain.mig import MigMode
from queuectl.domain.plan import Move, Plan
from queuectl.domain.queues import QueueConfig
from queuectl.domain.snapshot import Admitted, CapacityLease, Snapshot
from queuectl.planner.cache import PlannerCache
from queuectl.planner.capacity.reservations import lease_end
from queuectl.planner.explain.change_queue import over_caps
from queuectl.planner.explain.context import Context, context_of
from queuectl.planner.explain.fix_checks import FixChecks
from queuectl.planner.explain.mig_moves import MigScope, moves_off
from queuectl.planner.explain.reconfigure_mig import reconfigured_nodes
from queuectl.planner.order.queue_order import inadmissible
from queuectl.planner.plan_cycle import begin, one_by_one
from queuectl.planner.problem.parts import smallest
from queuectl.planner.problem.problem import survey
from queuectl.planner.solver.solver import StopSignal


def plan_mig(
    snapshot: Snapshot,
    plan: Plan,
    stop: StopSignal | None = None,
    scope: MigScope | None = None,
) -> tuple[str, SuggestedFix] | None:
    """The uid of the gang, and the nodes to reconfigure for it; None if this helps no pending gang.

    Args:
        snapshot: the input of the plan.
        plan: the decisions of the cycle.
        stop: lets another thread end it early.
        scope: what queuectl can change itself; None = all that policy permits.
    """
    if scope is not None:
        snapshot = replace(snapshot, config=_executing(snapshot.config))
    if not snapshot.config.mig_pools:
        return None
    for ctx in _waiting(carried_out(snapshot, plan), stop):
        if scope is not None and ctx.uid not in scope.gangs:
            continue
        for fix in reconfigured_nodes(ctx, scope):
            nodes = sum(len(c.configs) for c in fix.changes if isinstance(c, ReconfigureMig))
            if scope is not None and nodes > scope.most:
                continue
            if all(isinstance(change, (Relocate, ReconfigureMig)) for change in fix.changes):
                return ctx.uid, fix
    return None


def plan_moves(
    snapshot: Snapshot, plan: Plan, uid: str, nodes: Sequence[str], stop: StopSignal | None = None
) -> tuple[Move, ...] | None:
    """The migrations that empty the GPUs of nodes for a pending gang; None if it is not pending, or some find no place.

    Args:
        snapshot: the input of the plan. The nodes are cordoned.
        plan: the decisions of the cycle.
        uid: of the gang.
        nodes: by name.
        stop: lets another thread end it early.
    """
    for ctx in _waiting(carried_out(snapshot, plan), stop):
        if ctx.uid == uid:
            return moves_off(ctx, nodes)
    return None


def _executing(config: QueueConfig) -> QueueConfig:
    """The configuration in which only flavors with ``Execute`` have MIG configurations."""
    flavors = {
        name: flavor
        if flavor.mig_reconfiguration is MigMode.EXECUTE
        else replace(flavor, mig_configs=())
        for name, flavor in config.flavors.items()
    }
    return replace(config, flavors=flavors)


def _waiting(snapshot: Snapshot, stop: StopSignal | None) -> Iterator[Context]:
    """The pending gangs that only nodes keep waiting, in queue order."""
    cache = PlannerCache()
    prepared = begin(survey(snapshot, cache), stop)
    for pending in one_by_one(prepared):
        least = smallest(pending.workload)
        if pending.lease is not None or inadmissible(snapshot, pending) is not None:
            continue
        if prepared.cycle.limits.stated_in_full(least):
            continue
        checks = FixChecks(
            snapshot, least.uid, prepared.cycle.solver.stop, cache, turns=sys.maxsize
        )
        ctx = context_of(prepared.cycle, pending, checks)
        if not over_caps(ctx):
            yield ctx


def carried_out(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """The snapshot once gangs have started as planned; evicted gangs have not stopped yet."""
    admitted = {admission.uid: admission for admission in plan.admitted}
    leases = {refusal.uid: refusal.lease for refusal in plan.pending}
    out = {victim.victim for victim in plan.preempted} | {e.uid for e in plan.evicted}
    moved = {move.uid: move for move in plan.moved}
    until = lease_end(snapshot)

    def running(gang: Admitted) -> Admitted:
        uid = gang.workload.uid
        if uid in admitted:
            return replace(gang, placement=admitted[uid].placement, lost=())
        if uid in moved:
            lease = CapacityLease(moved[uid].placement, (), snapshot.now, until)
            return replace(gang, leaving=True, lease=lease)
        return replace(gang, leaving=True) if uid in out else gang

    started = [
        Admitted(p.workload, admitted[p.workload.uid].placement, started_at=snapshot.now)
        for p in snapshot.pending
        if p.workload.uid in admitted
    ]
    pending = (
        replace(p, lease=leases.get(p.workload.uid))
        for p in snapshot.pending
        if p.workload.uid not in admitted
    )
    return replace(
        snapshot,
        admitted=(*map(running, snapshot.admitted), *started),
        pending=tuple(pending),
        make_room=None,
    )
