"""The observed side: a scheduler that starts and stops each gang when the cluster did, in the clock of the simulation.

The figures of both sides are made by the same code, from the same clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop

from queuectl.domain.workload import Placement
from queuectl.simulate.simulation import Run, World
from queuectl.simulate.trace import NodeEvent, TraceJob


@dataclass(frozen=True, slots=True)
class ReplayedAttempt:
    """Seconds after the begin.

    Attributes:
        end: None = the gang runs until it is deleted, or at the end of the simulation.
        interrupted: at its end, the gang loses a node. Otherwise it is evicted.
    """

    start: float
    end: float | None
    placement: Placement
    interrupted: bool


_Step = tuple[float, int, int, int]
"""Time, 0 for an end and 1 for a start, rank of the job, number of the attempt."""


class TraceReplay:
    """Obeys the attempts of each job."""

    def __init__(
        self,
        world: World,
        attempts: Mapping[int, tuple[ReplayedAttempt, ...]],
        nodes: Iterable[str],
    ) -> None:
        """``attempts``: by the rank of the job. ``nodes``: names of those that exist at some time."""
        self._world = world
        self._attempts = attempts
        self._nodes = frozenset(nodes)
        self._runs: dict[int, Run] = {}
        self._steps: list[_Step] = []
        for rank, of_job in attempts.items():
            for number, one in enumerate(of_job):
                self._steps.append((one.start, 1, rank, number))
                if one.end is not None:
                    self._steps.append((one.end, 0, rank, number))
        heapify(self._steps)
        self._wake()

    def never_fits(self, job: TraceJob) -> bool:
        """See :class:`queuectl.simulate.simulation.Scheduler`."""
        del job
        return False

    def submitted(self, run: Run) -> None:
        """See :class:`queuectl.simulate.simulation.Scheduler`."""
        self._runs[run.job.rank] = run

    def ended(self, run: Run) -> None:
        """See :class:`queuectl.simulate.simulation.Scheduler`."""
        del self._runs[run.job.rank]

    def node_changed(self, event: NodeEvent) -> None:
        """The records have what the cluster did then."""

    def decide(self) -> None:
        """See :class:`queuectl.simulate.simulation.Scheduler`."""
        while self._steps and self._steps[0][0] <= self._world.now:
            _, starts, rank, number = heappop(self._steps)
            run = self._runs.get(rank)
            if run is not None:
                self._step(run, self._attempts[rank][number], starts=bool(starts))
        self._wake()

    def _step(self, run: Run, attempt: ReplayedAttempt, *, starts: bool) -> None:
        if starts and run.running_since is None:
            placed = run.job.held_on(attempt.placement)
            self._world.start(run, [one for one in placed if one[0] in self._nodes])
        elif not starts and run.running_since is not None:
            stop = self._world.interrupt if attempt.interrupted else self._world.evict
            stop(run)

    def _ring(self) -> None:
        """The records have something at this time."""

    def _wake(self) -> None:
        self._world.wake(self._ring, self._steps[0][0] if self._steps else None)
