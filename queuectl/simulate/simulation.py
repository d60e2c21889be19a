"""The discrete-event simulation: time jumps from one event to the next, and a scheduler decides after the events of each instant.

At one instant jobs end first, then utilization changes, then nodes fail and recover, then alarms of the scheduler ring, then jobs are
submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from typing import Protocol

from queuectl.simulate.free_gpus import FreeGpus, Placed
from queuectl.simulate.run import Run
from queuectl.simulate.trace import NodeEvent, TraceJob


class Phase(IntEnum):
    """The order of events at one instant."""

    END = 0
    USE = 1
    NODE = 2
    ALARM = 3
    SUBMISSION = 4


class Scheduler(Protocol):
    """Decides which jobs start and stop."""

    def never_fits(self, job: TraceJob) -> bool:
        """Whether a job is larger than its queue or the nodes."""

    def submitted(self, run: Run) -> None:
        """A job waits."""

    def ended(self, run: Run) -> None:
        """A job has ended, and its GPUs are free."""

    def node_changed(self, event: NodeEvent) -> None:
        """A node has failed or recovered."""

    def decide(self) -> float | None:
        """Start and stop jobs after the events of an instant.

        Returns:
            When to decide again even if nothing happens (seconds); None: only after events.
        """


@dataclass(frozen=True, slots=True)
class Sample:
    """The state from a time on.

    Attributes:
        time: in seconds.
        held: GPUs that gangs hold.
        used: held GPUs, weighted with the utilization of their jobs where it is known, else fully.
        waiting: jobs that are submitted and do not run.
        fragmented: free GPUs that the next pod is expected to be unable to use.
    """

    time: float
    held: int
    used: float
    waiting: int
    fragmented: float


@dataclass(slots=True)
class World:
    """The clock, the running jobs, and how the state changes over time. ``free``: the GPUs of the nodes."""

    free: FreeGpus
    now: float = 0.0
    held: int = 0
    used: float = 0.0
    waiting: int = 0
    finished: int = 0
    samples: list[Sample] = field(default_factory=list)
    _events: list[tuple[float, Phase, int, int, object]] = field(default_factory=list)
    _order: int = 0
    _alarm: float | None = None
    _shares: dict[Run, float] = field(default_factory=dict)
    _placed: dict[Run, list[tuple[str, int]]] = field(default_factory=dict)

    def start(self, run: Run, placed: Placed) -> None:
        """A waiting job starts now, or one that has lost a node continues on these nodes."""
        if run.held_since is None:
            self._hold(run, 1)
        self.waiting -= 1
        self._add(run.start(self.now), Phase.END, run.generation, run)
        self._place(run, placed)
        self._measure(run)

    def interrupt(self, run: Run) -> None:
        """A running job loses its work since its last checkpoint and keeps its GPUs."""
        if run.running_since is not None:
            run.interrupt(self.now)
            self.waiting += 1

    def evict(self, run: Run) -> None:
        """A job that holds GPUs stops and waits again."""
        self.interrupt(run)
        run.evict(self.now)
        self._hold(run, -1)
        self._place(run, ())

    def run(
        self,
        runs: Iterable[Run],
        events: Iterable[NodeEvent],
        scheduler: Scheduler,
        progress: Callable[[World], None] = lambda _: None,
    ) -> None:
        """Simulate until no event is left. ``progress``: is called after each instant."""
        for run in runs:
            self._add(run.job.submit, Phase.SUBMISSION, 0, run)
        for event in events:
            self._add(event.time, Phase.NODE, 0, event)
        while self._events:
            self.now = self._events[0][0]
            if self._instant(scheduler):
                self._wake_at(scheduler.decide())
                self.samples.append(self._sample())
                progress(self)

    def _instant(self, scheduler: Scheduler) -> bool:
        """Handle all events of this instant. Returns whether anything has happened."""
        happened = False
        while self._events and self._events[0][0] <= self.now:
            _, phase, _, generation, what = heappop(self._events)
            match phase, what:
                case Phase.END, Run():
                    if what.generation != generation:
                        continue
                    what.finish(self.now)
                    self._hold(what, -1)
                    self._place(what, ())
                    self.free.want(what.job.pods, what.job.gpus_per_pod, -1)
                    self.finished += 1
                    scheduler.ended(what)
                case Phase.USE, Run():
                    if what.generation != generation:
                        continue
                    self._measure(what)
                case Phase.NODE, NodeEvent():
                    self.free.set_up(what.node, up=what.up)
                    scheduler.node_changed(what)
                case Phase.SUBMISSION, Run():
                    self.waiting += 1
                    self.free.want(what.job.pods, what.job.gpus_per_pod, 1)
                    scheduler.submitted(what)
                case _:
                    if self._alarm is None or self._alarm > self.now:
                        continue
                    self._alarm = None
            happened = True
        return happened

    def _wake_at(self, time: float | None) -> None:
        known, self._alarm = self._alarm, time
        if time is not None and time != known:
            self._add(time, Phase.ALARM, 0, None)

    def _sample(self) -> Sample:
        return Sample(self.now, self.held, self.used, self.waiting, self.free.fragmented)

    def _place(self, run: Run, placed: Placed) -> None:
        """The nodes of a job from now on; none = it holds none."""
        self.free.hold(self._placed.pop(run, ()), -1)
        nodes = list(placed)
        if nodes:
            self.free.hold(nodes, 1)
            self._placed[run] = nodes
        elif run.held_since is not None and run.job.gpus:
            self.free.known = False

    def _hold(self, run: Run, sign: int) -> None:
        self.held += sign * run.job.gpus
        if sign > 0:
            self._shares[run] = 1.0 if run.job.utilization is None else run.job.utilization
            self.used += self._shares[run] * run.job.gpus
        else:
            self.used -= self._shares.pop(run) * run.job.gpus

    def _measure(self, run: Run) -> None:
        """The utilization of a running job from now on, until its next change."""
        curve = run.job.curve
        if curve is None:
            return
        work = run.work(self.now)
        share = curve.at(work)
        self.used += (share - self._shares[run]) * run.job.gpus
        self._shares[run] = share
        after = curve.next_change(work)
        if after is not None:
            self._add(self.now + after - work, Phase.USE, run.generation, run)

    def _add(self, time: float, phase: Phase, generation: int, what: object) -> None:
        self._order += 1
        heappush(self._events, (time, phase, self._order, generation, what))
