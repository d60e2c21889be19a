"""Searches alongside a plan: the gang for which nodes are reconfigured, and new places of the gangs on nodes that are emptied.

The plan is carried out first, so no node that a gang starts on, or that is reserved, is reconfigured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from queuectl.devices.reading import Selects
from queuectl.devices.shared import without_claim_podsets
from queuectl.domain.diagnosis import Relocate, SuggestedFix
from queuectl.domain.mig import MigMode
from queuectl.domain.plan import Move, Plan
from queuectl.domain.queues import QueueConfig
from queuectl.domain.snapshot import Admitted, CapacityLease, Snapshot
from queuectl.mig.changes import ChangeKey
from queuectl.mig.configurations import ReconfigureMig
from queuectl.mig.fixes import MigScope, moves_off, reconfigured_nodes
from queuectl.planner import StopSignal
from queuectl.planner.cache import PlannerCache
from queuectl.planner.capacity.reservations import lease_end
from queuectl.planner.explain.context import GangContext, context_of
from queuectl.planner.explain.fix_checks import FixChecks
from queuectl.planner.order.queue_order import inadmissible
from queuectl.planner.plan_cycle import begin, one_by_one
from queuectl.planner.problem.problem import survey
from queuectl.planner.problem.request import smallest
from queuectl.planner.verify import PlanViolation, verify


@dataclass(frozen=True, slots=True)
class Emptied:
    """Nodes of one change that gangs must leave."""

    change: ChangeKey
    gang: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MigSearch:
    """The question for one plan.

    Attributes:
        emptied: the changes that wait for migrations.
        scope: the changes that can begin; None = none can.
    """

    emptied: tuple[Emptied, ...] = ()
    scope: MigScope | None = None

    def answer(
        self, snapshot: Snapshot, plan: Plan, selects: Selects | None, stop: StopSignal
    ) -> MigFound:
        """The answer alongside a plan. A stopped search finds nothing.

        Args:
            snapshot: the input of the plan.
            plan: the decisions of the cycle.
            selects: the devices that requests select.
            stop: lets another thread end it early.
        """
        moves, violations = [], list[PlanViolation]()
        for emptied in self.emptied:
            places = plan_moves(snapshot, plan, emptied.gang, emptied.nodes, stop)
            if places is not None:
                wrong = verify(snapshot, _together(plan, places), selects)
                violations += wrong
                unclaimed = without_claim_podsets(replace(plan, moved=places))
                places = None if wrong else unclaimed.moved
            moves.append((emptied, places))
        fix = plan_mig(snapshot, plan, stop, self.scope) if self.scope is not None else None
        if stop.stopped:
            return MigFound()
        begins = (fix[0], reconfigured(fix[1])) if fix is not None else None
        return MigFound(tuple(moves), begins, tuple(violations))


@dataclass(frozen=True, slots=True)
class MigFound:
    """The answer.

    Attributes:
        moves: for each change of the question; None = some gangs find no place.
        begins: gang and new configuration by node; None = no change helps.
        violations: what is wrong in migrations that were found. They are left out of ``moves``.
    """

    moves: tuple[tuple[Emptied, tuple[Move, ...] | None], ...] = ()
    begins: tuple[str, dict[str, str]] | None = None
    violations: tuple[PlanViolation, ...] = ()


def _together(plan: Plan, moves: Sequence[Move]) -> Plan:
    """The plan with migrations. A dry run does not name a gang that migrates, as for a gang that the plan itself moves."""
    moving = {move.uid for move in moves}
    spared = tuple(one for one in plan.spared if one.victim not in moving)
    return replace(plan, moved=(*plan.moved, *moves), spared=spared)


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
            if scope is not None and len(reconfigured(fix)) > scope.most:
                continue
            if all(isinstance(change, (Relocate, ReconfigureMig)) for change in fix.changes):
                return ctx.uid, fix
    return None


def reconfigured(fix: SuggestedFix) -> dict[str, str]:
    """The new configuration of each node that a fix reconfigures."""
    changes = (change for change in fix.changes if isinstance(change, ReconfigureMig))
    return {name: config for change in changes for name, config in change.configs.items()}


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


def _waiting(snapshot: Snapshot, stop: StopSignal | None) -> Iterator[GangContext]:
    """The pending gangs that only nodes keep waiting, in queue order."""
    cache = PlannerCache()
    prepared = begin(survey(snapshot, cache), stop)
    for pending in one_by_one(prepared):
        least = smallest(pending.workload)
        if pending.lease is not None or inadmissible(snapshot, pending) is not None:
            continue
        if prepared.cycle.limits.short(least):
            continue
        checks = FixChecks(
            snapshot, least.uid, prepared.cycle.solver.stop, cache, turns=sys.maxsize
        )
        yield context_of(prepared.cycle, pending, checks)


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
