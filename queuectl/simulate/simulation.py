"""The discrete-event simulation: time jumps from one event to the next, and a scheduler decides after the events of each instant.

At one instant jobs end first, then utilization changes, then nodes fail and recover, then alarms of the scheduler ring, then jobs are
submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Protocol, TypeAlias

from queuectl.planner.backfill.timeline import Agenda
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

    def decide(self) -> None:
        """Start and stop jobs after the events of an instant."""


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


_Event: TypeAlias = tuple[Phase, Run | Callable[[], None]]


@dataclass(slots=True)
class World:
    """The clock, the running jobs, and how the state changes over time.

    Attributes:
        free: the GPUs of the nodes.
        placed: of each job that holds GPUs, its nodes and the GPUs on each; the one that started last is the last.
    """

    free: FreeGpus
    held: int = 0
    used: float = 0.0
    waiting: int = 0
    finished: int = 0
    samples: list[Sample] = field(default_factory=list)
    placed: dict[Run, list[tuple[str, int]]] = field(default_factory=dict)
    _agenda: Agenda[_Event] = field(default_factory=Agenda)
    _shares: dict[Run, float] = field(default_factory=dict)

    @property
    def now(self) -> float:
        """The time, in seconds."""
        return self._agenda.now

    def start(self, run: Run, placed: Placed) -> None:
        """A waiting job starts now, or one that has lost a node continues on these nodes."""
        if run.held_since is None:
            self._hold(run, 1)
        self.waiting -= 1
        self._add((Phase.END, run), run.start(self.now))
        self._place(run, placed)
        self._measure(run)

    def interrupt(self, run: Run) -> None:
        """A running job loses its work since its last checkpoint and keeps its GPUs."""
        if run.running_since is not None:
            run.interrupt(self.now)
            self._agenda.remove((Phase.END, run))
            self._agenda.remove((Phase.USE, run))
            self.waiting += 1

    def evict(self, run: Run) -> None:
        """A job that holds GPUs stops and waits again."""
        self.interrupt(run)
        run.evict(self.now)
        self._hold(run, -1)
        self._place(run, ())

    def wake(self, ring: Callable[[], None], at: float | None) -> None:
        """Call ``ring`` and let the scheduler decide at a time (seconds), in place of the time before; None = not at all."""
        if at is None:
            self._agenda.remove((Phase.ALARM, ring))
        else:
            self._add((Phase.ALARM, ring), at)

    def run(
        self,
        runs: Iterable[Run],
        events: Iterable[NodeEvent],
        scheduler: Scheduler,
        progress: Callable[[World], None] = lambda _: None,
    ) -> None:
        """Simulate until no event is left. ``progress``: is called after each instant."""
        for run in runs:
            self._add((Phase.SUBMISSION, run), run.job.submit)
        for change in events:
            self._add((Phase.NODE, partial(self._change, change, scheduler)), change.time)
        while self._agenda:
            for event in self._agenda.due():
                self._happen(event, scheduler)
            scheduler.decide()
            self.samples.append(self._sample())
            progress(self)

    def _happen(self, event: _Event, scheduler: Scheduler) -> None:
        match event:
            case Phase.END, Run() as run:
                run.finish(self.now)
                self._agenda.remove((Phase.USE, run))
                self._hold(run, -1)
                self._place(run, ())
                self.free.want(run.job.pods, run.job.gpus_per_pod, -1)
                self.finished += 1
                scheduler.ended(run)
            case Phase.USE, Run() as run:
                self._measure(run)
            case Phase.SUBMISSION, Run() as run:
                self.waiting += 1
                self.free.want(run.job.pods, run.job.gpus_per_pod, 1)
                scheduler.submitted(run)
            case _, call:
                assert not isinstance(call, Run)
                call()

    def _change(self, event: NodeEvent, scheduler: Scheduler) -> None:
        self.free.set_up(event.node, up=event.up)
        scheduler.node_changed(event)

    def _sample(self) -> Sample:
        return Sample(self.now, self.held, self.used, self.waiting, self.free.fragmented)

    def _place(self, run: Run, placed: Placed) -> None:
        """The nodes of a job from now on; none = it holds none."""
        self.free.hold(self.placed.pop(run, ()), -1)
        nodes = list(placed)
        if nodes:
            self.free.hold(nodes, 1)
            self.placed[run] = nodes
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
            self._add((Phase.USE, run), self.now + after - work)

    def _add(self, event: _Event, at: float) -> None:
        self._agenda.add(at, event, phase=event[0])
