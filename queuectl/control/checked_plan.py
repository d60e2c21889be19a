"""From a snapshot to a plan that is checked: the leader, standbys, what-ifs, previews and ``queuectl plan`` all plan with this module.

Devices are added to the snapshot as amounts, the planner decides, independent code verifies the decisions, and the podsets that
stand for shared claims are removed from them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum

from queuectl.control.device_rows import DeviceRows
from queuectl.devices.reading import Selects
from queuectl.devices.shared import snapshot_without_claim_podsets, without_claim_podsets
from queuectl.domain.pending_limits import with_reasons
from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import StopSignal, plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.verify import PlanViolation, verify


class PlanStep(StrEnum):
    """The steps of a plan, in order."""

    PLAN = "plan"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class CheckedPlan:
    """A plan with its input.

    Attributes:
        original: the snapshot as users know it.
        snapshot: the snapshot that was planned: with device rows, and with podsets for shared claims.
        decided: the decisions for ``snapshot``. Questions to the planner about it use them.
        plan: the same decisions as users know them. Everything that leaves the planner uses them.
        violations: what is wrong in the decisions.
        selects: the devices that requests select; None if the decisions are not verified.
    """

    original: Snapshot
    snapshot: Snapshot
    decided: Plan
    plan: Plan
    violations: tuple[PlanViolation, ...]
    selects: Selects | None = None

    @property
    def usable(self) -> bool:
        """Whether it is complete and correct."""
        return not self.decided.cut and not self.violations


def checked_plan(
    original: Snapshot,
    stop: StopSignal | None = None,
    cache: PlannerCache | None = None,
    within: Callable[[PlanStep], AbstractContextManager[object]] = nullcontext,
) -> CheckedPlan:
    """Plan a snapshot.

    Args:
        original: without device rows.
        stop: lets another thread end the planning early.
        cache: of the process.
        within: the context of each step.
    """
    cache = cache if cache is not None else PlannerCache()
    with within(PlanStep.PLAN):
        snapshot, selects = DeviceRows.of(cache).lowered(with_reasons(original))
        decided = plan(snapshot, stop, cache)
    with within(PlanStep.VERIFY):
        violations = verify(snapshot, decided, selects)
        known = without_claim_podsets(decided)
        return CheckedPlan(original, snapshot, decided, known, violations, selects)


def planned_again(snapshot: Snapshot) -> CheckedPlan:
    """Plan the snapshot of a :class:`CheckedPlan` once more, without verification."""
    decided = plan(snapshot)
    original = snapshot_without_claim_podsets(snapshot)
    return CheckedPlan(original, snapshot, decided, without_claim_podsets(decided), ())
