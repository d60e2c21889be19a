"""Each suggested fix is planned before it is shown: the planner must start the gang on the changed snapshot, or free its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from queuectl.domain.changes import apply_all
from queuectl.domain.diagnosis import SuggestedFix
from queuectl.domain.snapshot import Snapshot
from queuectl.planner.cache import PlannerCache
from queuectl.planner.plan_cycle import decided_up_to
from queuectl.planner.solver.solver import StopSignal

_TURNS: Final = (
    4000  # of gangs, in all checks of one diagnosis: a bound that does not depend on the load
)


@dataclass(eq=False, slots=True)
class FixChecks:
    """The checks of the fixes of one gang.

    Attributes:
        snapshot: that was planned.
        uid: of the gang.
        turns: turns of gangs that are left for further checks.
    """

    snapshot: Snapshot
    uid: str
    stop: StopSignal
    cache: PlannerCache
    turns: int = _TURNS

    @property
    def over(self) -> bool:
        """Whether no further fix is checked."""
        return self.turns <= 0 or self.stop.stopped

    def passed(self, fixes: Iterable[SuggestedFix]) -> Iterator[SuggestedFix]:
        """Those after which the planner starts the gang, or evicts others or requests nodes for it."""
        for fix in fixes:
            if self.over:
                return
            if self._helps(fix) and not self.stop.stopped:
                yield fix

    def _helps(self, fix: SuggestedFix) -> bool:
        changed = apply_all(fix.changes, self.snapshot)
        cycle, turns = decided_up_to(self.uid, changed, self.stop, self.cache)
        self.turns -= max(1, turns)
        refusal = cycle.refused.get(self.uid)
        return self.uid in cycle.starting or (refusal is not None and refusal.lease is not None)
