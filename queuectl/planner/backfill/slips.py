"""Planned starts as values of the plan: what each awaits, and why one is later than the last plan had it.

A gang for which this plan finds no time keeps its last planned start, and its number of overruns, for the plans that follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from queuectl.domain.plan import Planned, SlipCause
from queuectl.domain.snapshot import PlannedStart
from queuectl.planner.backfill.causes import Lateness
from queuectl.planner.backfill.timeline import Timeline
from queuectl.planner.capacity.node_counts import PlannedGang
from queuectl.planner.capacity.placements import placement_of
from queuectl.planner.problem.request import GangRequest

SLACK: Final = 60.0
"""Seconds by which a start can be later than planned: the gangs before it take time to stop."""
MOST_OVERRUNS: Final = 2
"""A gang that was moved so often by gangs that ran longer than expected is guarded from such gangs."""
_MOST_AWAITED: Final = 64


@dataclass(frozen=True, slots=True)
class Lapsed:
    """A gang that had a planned start, and for which this plan finds no time.

    Attributes:
        undecided: a search for a time ended without an answer.
    """

    request: GangRequest
    undecided: bool


@dataclass(eq=False)
class Slips:
    """The planned starts of one plan, compared with those of the last one.

    Attributes:
        gangs: in the order in which they were planned.
        causes: of those that are late, by uid.
    """

    timeline: Timeline
    gangs: Sequence[PlannedGang]
    causes: dict[str, SlipCause] = field(default_factory=dict)

    def planned(self, lapsed: Sequence[Lapsed]) -> Iterator[Planned]:
        """All planned starts, and those that are no longer known."""
        for number, gang in enumerate(self.gangs):
            yield self._of(gang, self.gangs[:number])
        for each in lapsed:
            yield self._lapsed(each)

    def _of(self, gang: PlannedGang, ahead: Sequence[PlannedGang]) -> Planned:
        problem = self.timeline.state.problem
        now = problem.snapshot.now
        last = gang.request.pending.planned_start
        promised = last.promised if last is not None else None
        start = PlannedStart(
            at=gang.at,
            placement=placement_of(problem, gang.request, gang.node_counts),
            promised=gang.latest,
            awaits=tuple(self._awaited(gang)),
            revision=problem.snapshot.config.revision,
            made_at=now,
            overruns=last.overruns if last is not None else 0,
        )
        if last is None or promised is None or gang.latest < promised:
            return Planned(gang.uid, start)
        if gang.at > promised:
            self.causes[gang.uid] = self._cause(gang.request, last, ahead)
        if gang.at > promised + SLACK:
            return self._slip(gang.uid, start)
        first = dict(last.awaits)
        awaits = tuple((uid, min(end, first.get(uid, end))) for uid, end in start.awaits)
        return Planned(
            gang.uid, replace(start, promised=promised, made_at=last.made_at, awaits=awaits)
        )

    def _lapsed(self, lapsed: Lapsed) -> Planned:
        uid = lapsed.request.pending.workload.uid
        last = lapsed.request.pending.planned_start
        assert last is not None
        if lapsed.undecided or last.promised is None:
            return Planned(uid, last, known=False)
        self.causes[uid] = self._cause(lapsed.request, last, self.gangs)
        return replace(self._slip(uid, replace(last, promised=None)), known=False)

    def _slip(self, uid: str, start: PlannedStart) -> Planned:
        cause = self.causes[uid]
        overruns = start.overruns + (cause is SlipCause.OVERRUN)
        return Planned(uid, replace(start, overruns=overruns), cause)

    def _cause(
        self, request: GangRequest, last: PlannedStart, ahead: Sequence[PlannedGang]
    ) -> SlipCause:
        return Lateness(self.timeline, request, last, ahead, self.causes).cause()

    def _awaited(self, gang: PlannedGang) -> Iterator[tuple[str, float]]:
        """The gangs on its nodes, or with quota that it needs, that end before it starts; those that end last, first."""
        problem = self.timeline.state.problem
        nodes = (
            np.unique(np.concatenate([at for at, _ in gang.node_counts]))
            if gang.node_counts
            else ()
        )
        rows = {row[1:] for row, _ in gang.request.rows()}
        listed = 0
        for other in reversed(self.timeline.ended(gang.at)):
            if listed == _MOST_AWAITED:
                return
            on_nodes = bool(np.isin(problem.usage.slots(other)[0], nodes).any())
            if on_nodes or any(row[1:] in rows for row, _ in problem.usage.charges(other)):
                assert other.ends_at is not None
                listed += 1
                yield other.workload.uid, other.ends_at
