"""Searches a plan for changes of MIG configurations: for a gang that waits, and for new places of gangs on nodes that are emptied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from queuectl.control.checked_plan import CheckedPlan
from queuectl.devices.shared import without_claim_podsets
from queuectl.domain.changes import ReconfigureMig
from queuectl.domain.plan import Move, Plan
from queuectl.planner import StopSignal
from queuectl.planner.explain import MigScope, plan_mig, plan_moves
from queuectl.planner.verify import PlanViolation, verify
from queuectl.state.mig_reconfiguration import ChangeKey


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


def search(question: MigSearch, checked: CheckedPlan, stop: StopSignal) -> MigFound:
    """The answer beside a plan. A stopped search finds nothing."""
    snapshot, plan = checked.snapshot, checked.decided
    moves, violations = [], list[PlanViolation]()
    for one in question.emptied:
        found = plan_moves(snapshot, plan, one.gang, one.nodes, stop)
        if found is not None:
            wrong = verify(snapshot, _together(plan, found), checked.selects)
            violations += wrong
            found = None if wrong else without_claim_podsets(replace(plan, moved=found)).moved
        moves.append((one, found))
    fix = plan_mig(snapshot, plan, stop, question.scope) if question.scope is not None else None
    if stop.stopped:
        return MigFound()
    if fix is None:
        return MigFound(tuple(moves), None, tuple(violations))
    configs = {
        name: config
        for change in fix[1].changes
        if isinstance(change, ReconfigureMig)
        for name, config in change.configs.items()
    }
    return MigFound(tuple(moves), (fix[0], configs), tuple(violations))


def _together(plan: Plan, moves: Sequence[Move]) -> Plan:
    """The plan with migrations. A dry run does not name a gang that migrates, as for a gang that the plan itself moves."""
    moving = {move.uid for move in moves}
    spared = tuple(one for one in plan.spared if one.victim not in moving)
    return replace(plan, moved=(*plan.moved, *moves), spared=spared)
