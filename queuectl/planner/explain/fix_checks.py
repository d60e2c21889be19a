"""Each suggested fix is planned before it is shown: the planner must start the gang on the changed snapshot, or free its place.

The gangs before it are decided again on the changed snapshot, because they can take what a change adds or frees. Where the plan
placed them is a hint, if their places decide nothing about later gangs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from queuectl.domain.changes import SuggestedChange, apply_all
from queuectl.domain.diagnosis import SuggestedFix
from queuectl.domain.plan import Proof
from queuectl.domain.snapshot import Snapshot
from queuectl.planner.cache import PlannerCache
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.explain.known import KnownAnswers, know
from queuectl.planner.order.lines import lines_of
from queuectl.planner.plan_cycle import begin, decide_up_to
from queuectl.planner.preempt.candidates import may_evict
from queuectl.planner.problem.problem import Problem, survey
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
        cache: of the plan; a check does not change it.
        known: of other gangs, from the plan.
        turns: turns of gangs that are left for further checks.
        passed_with: changes with which the gang starts.
    """

    snapshot: Snapshot
    uid: str
    stop: StopSignal
    cache: PlannerCache
    known: KnownAnswers = field(default_factory=KnownAnswers)
    turns: int = _TURNS
    passed_with: list[tuple[SuggestedChange, ...]] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Whether no further fix is checked."""
        return self.turns <= 0 or self.stop.stopped

    def decided(self, changes: Sequence[SuggestedChange]) -> AdmissionCycle | None:
        """The cycle on the changed snapshot, as soon as the gang is decided; None where no further fix is checked."""
        if self.over:
            return None
        changed = apply_all(changes, self.snapshot)
        prepared = begin(survey(changed, self.cache.fork()), self.stop)
        know(prepared, self.known if self._any_place(prepared.cycle.problem) else KnownAnswers())
        self.turns -= max(1, decide_up_to(prepared, self.uid))
        if self.stop.stopped:
            return None
        if self.helped(prepared.cycle):
            self.passed_with.append(tuple(changes))
        return prepared.cycle

    def _any_place(self, problem: Problem) -> bool:
        """Whether the same gangs start wherever those before them are placed: none evicts others, and no start is planned."""
        snapshot = problem.snapshot
        others = (p.workload for p in snapshot.pending if p.workload.uid != self.uid)
        return not lines_of(snapshot.config, problem.cache) and not any(
            may_evict(problem, workload, snapshot.queue_of(workload)) for workload in others
        )

    def helped(self, cycle: AdmissionCycle) -> bool:
        """Whether the gang starts, or the planner evicts others or requests nodes for it."""
        if self.uid in cycle.starting or any(v.preemptor == self.uid for v in cycle.preempted):
            return True
        refusal = cycle.refused.get(self.uid)
        lease = refusal.lease if refusal is not None else None
        return lease is not None and not lease.victims

    def starts(self, changes: Sequence[SuggestedChange]) -> bool:
        """Whether these changes are enough."""
        if tuple(changes) in self.passed_with:
            return True
        cycle = self.decided(changes)
        return cycle is not None and self.helped(cycle)

    def refuses(self, changes: Sequence[SuggestedChange]) -> bool:
        """Whether it is proved that these changes are not enough."""
        cycle = self.decided(changes)
        if cycle is None or self.helped(cycle):
            return False
        return cycle.refused[self.uid].proof is Proof.OPTIMAL

    def passed(self, fixes: Iterable[SuggestedFix]) -> Iterator[SuggestedFix]:
        """Those that are enough, and need all of their changes."""
        for fix in fixes:
            if self._with_less(fix.changes):
                continue
            if self.starts(fix.changes):
                yield fix
            elif self.over:
                return

    def _with_less(self, changes: Sequence[SuggestedChange]) -> bool:
        """Whether the gang is known to start with a part of these changes."""
        return any(
            len(enough) < len(changes) and all(change in changes for change in enough)
            for enough in self.passed_with
        )
