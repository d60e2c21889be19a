"""The discrete-event simulation of jobs under one policy.

Time jumps from one event to the next, and a scheduler decides after the events of each instant. At one instant jobs end first, then
utilization changes, then nodes fail, recover and change, then alarms of the scheduler ring, then jobs are submitted, then users delete jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import partial
from typing import Final, Protocol, TypeAlias

from queuectl.domain.agenda import Agenda
from queuectl.domain.gpus import BY_NAME
from queuectl.simulate.free_gpus import FreeGpus, Placed
from queuectl.simulate.trace import NodeEvent, TraceJob

# ---- Jobs


@dataclass(slots=True, eq=False)
class Run:
    """The progress of one job. Times and work are in seconds.

    Attributes:
        saved: work that a checkpoint has saved, or that an end has completed.
        running_since: since when it runs; None while it does not.
        held_since: since when it holds GPUs; None while it holds none. A gang that lost a node holds GPUs and does not run.
        ran: for how long it has run, in all.
        held: GPU-seconds that it has held, in all.
        finished_at: None until it has ended.
        deleted_at: None if its user has not deleted it before its end.
        evictions: how often it was evicted.
        lost: GPU-seconds of work that evictions and failed nodes have cost.
    """

    job: TraceJob
    saved: float = 0.0
    running_since: float | None = None
    held_since: float | None = None
    ran: float = 0.0
    held: float = 0.0
    finished_at: float | None = None
    deleted_at: float | None = None
    evictions: int = 0
    lost: float = 0.0

    def start(self, now: float) -> float:
        """Run from now on. Returns the time of its end if nothing interrupts it."""
        assert self.running_since is None
        assert self.finished_at is None
        if self.held_since is None:
            self.held_since = now
        self.running_since = now
        left = self.job.duration - self.saved
        if self.job.limit is not None:
            left = min(left, self.job.limit - self.ran)
        return now + max(left, 0.0)

    def interrupt(self, now: float) -> None:
        """Lose the work since the last checkpoint. It keeps its GPUs."""
        if self.running_since is None:
            return
        elapsed = now - self.running_since
        interval = self.job.checkpoint
        saved = elapsed - elapsed % interval if interval is not None else 0.0
        self.lost += (elapsed - saved) * self.job.gpus
        self.saved += saved
        self.ran += elapsed
        self.running_since = None

    def evict(self, now: float) -> None:
        """Stop it. It no longer holds anything."""
        self.interrupt(now)
        self._give_back(now)
        self.evictions += 1

    def finish(self, now: float) -> None:
        """It has done its work, or has reached its limit."""
        assert self.running_since is not None
        self.ran += now - self.running_since
        self.saved = self.job.duration
        self.running_since = None
        self._give_back(now)
        self.finished_at = now

    def delete(self, now: float) -> None:
        """Its user deletes it. It no longer holds anything."""
        if self.running_since is not None:
            self.ran += now - self.running_since
            self.running_since = None
        if self.held_since is not None:
            self._give_back(now)
        self.deleted_at = now

    def waited_by(self, now: float) -> float:
        """Seconds until then in which it was submitted and did not run."""
        left = self.finished_at if self.finished_at is not None else self.deleted_at
        ran = self.ran + (now - self.running_since if self.running_since is not None else 0.0)
        return max((now if left is None else left) - self.job.submit - ran, 0.0)

    def work(self, now: float) -> float:
        """Seconds of its work that are done, the unsaved ones included; while it runs."""
        assert self.running_since is not None
        return self.saved + now - self.running_since

    def saved_at(self, now: float) -> float | None:
        """The time of its last checkpoint in this attempt; None without one."""
        interval = self.job.checkpoint
        if interval is None or self.running_since is None:
            return None
        elapsed = now - self.running_since
        return now - elapsed % interval if elapsed >= interval else None

    def saves_at(self, now: float) -> float | None:
        """The time of its next checkpoint, later than ``now``; None without one."""
        interval = self.job.checkpoint
        if interval is None or self.running_since is None:
            return None
        return now + interval - (now - self.running_since) % interval

    @property
    def waited(self) -> float:
        """Seconds in which it was submitted and did not run; of a finished job."""
        assert self.finished_at is not None
        return self.completion - self.ran

    @property
    def completion(self) -> float:
        """Seconds from its submission to its end; of a finished job."""
        assert self.finished_at is not None
        return self.finished_at - self.job.submit

    def _give_back(self, now: float) -> None:
        assert self.held_since is not None
        self.held += (now - self.held_since) * self.job.gpus
        self.held_since = None


# ---- Policies


class Order(StrEnum):
    """The strategy of the queues. SJF exists in simulations only: the job with the shortest declared run time is first."""

    STRICT_FIFO = "StrictFIFO"
    BEST_EFFORT_FIFO = "BestEffortFIFO"
    BACKFILL = "Backfill"
    SJF = "SJF"


class Durations(StrEnum):
    """The run times that the scheduler knows.

    ``DECLARED``: each job has its run time, or ``limit_s`` of the trace, as its limit. ``LEARNED``: what the trace states, and run times
    of jobs that have finished earlier. ``UNKNOWN``: none.
    """

    DECLARED = "declared"
    LEARNED = "learned"
    UNKNOWN = "unknown"


class PlacementRule(StrEnum):
    """The scheduler: the planner of the controller, or the reference rule of published simulators."""

    PLANNER = "planner"
    BEST_FIT = "best-fit"


@dataclass(frozen=True, slots=True)
class Policy:
    """``order``: of all queues; None = each ClusterQueue has its own strategy."""

    placement: PlacementRule = PlacementRule.PLANNER
    order: Order | None = None
    durations: Durations = Durations.DECLARED

    @property
    def name(self) -> str:
        return "as configured" if self.order is None else str(self.order)


# ---- Time


class Phase(IntEnum):
    """The order of events at one instant."""

    END = 0
    USE = 1
    NODE = 2
    ALARM = 3
    SUBMISSION = 4
    DELETION = 5
    STOP = 6


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
        stalled: GPUs of these whose gangs have lost a node and do not run.
        used: held GPUs, weighted with the utilization of their jobs where it is known, otherwise fully.
        waiting: jobs that are submitted and do not run.
        requested: GPUs that the jobs request which are submitted and hold nothing.
        free: GPUs that no gang holds, on nodes that take pods.
        idle: these, and GPUs of stalled gangs on such nodes.
        fragmented: free GPUs that the next pod is expected to be unable to use.
    """

    time: float
    held: int
    stalled: int
    used: float
    waiting: int
    requested: int
    free: int
    idle: int
    fragmented: float


_LATEST: Final = 1e12
"""Seconds after which nothing happens: a job without an end never ends."""
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
    requested: int = 0
    finished: int = 0
    samples: list[Sample] = field(default_factory=list)
    placed: dict[Run, list[tuple[str, int]]] = field(default_factory=dict)
    _agenda: Agenda[_Event] = field(default_factory=Agenda)
    _shares: dict[Run, float] = field(default_factory=dict)
    _stalled: set[Run] = field(default_factory=set)
    _stopped: bool = False

    @property
    def now(self) -> float:
        """The time, in seconds."""
        return self._agenda.now

    def start(self, run: Run, placed: Placed) -> None:
        """A waiting job starts now, or one that has lost a node continues on these nodes."""
        if run.held_since is None:
            self._hold(run, 1)
        self.waiting -= 1
        self._stalled.discard(run)
        end = run.start(self.now)
        if end < _LATEST:
            self._add((Phase.END, run), end)
        self._place(run, placed)
        self._measure(run)

    def interrupt(self, run: Run) -> None:
        """A running job loses its work since its last checkpoint and keeps its GPUs."""
        if run.running_since is not None:
            run.interrupt(self.now)
            self._agenda.remove((Phase.END, run))
            self._agenda.remove((Phase.USE, run))
            self._stalled.add(run)
            self.waiting += 1

    def evict(self, run: Run) -> None:
        """A job that holds GPUs stops and waits again."""
        self.interrupt(run)
        self._stalled.remove(run)
        run.evict(self.now)
        self._hold(run, -1)
        self._place(run, ())

    def wake(self, ring: Callable[[], None], at: float | None) -> None:
        """Call ``ring`` and let the scheduler decide at a time (seconds), instead of the time before; None = not at all."""
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
        until: float | None = None,
    ) -> None:
        """Simulate until no event is left, or until a time.

        Args:
            runs: the jobs.
            events: of nodes.
            scheduler: decides.
            progress: is called after each instant.
            until: seconds, at which the last sample is taken; None = until no event is left.
        """
        for run in runs:
            self._add((Phase.SUBMISSION, run), run.job.submit)
            if run.job.deleted is not None:
                self._add((Phase.DELETION, run), run.job.deleted)
        if until is not None:
            self._add((Phase.STOP, self.stop), until)
        for change in events:
            self._add((Phase.NODE, partial(self._change, change, scheduler)), change.time)
        while self._agenda and not self._stopped:
            for event in self._agenda.due():
                self._happen(event, scheduler)
            scheduler.decide()
            self.samples.append(self._sample())
            progress(self)

    def stop(self) -> None:
        """Nothing happens after the current instant."""
        self._stopped = True

    def _happen(self, event: _Event, scheduler: Scheduler) -> None:
        match event:
            case Phase.END, Run() as run:
                run.finish(self.now)
                self._agenda.remove((Phase.USE, run))
                self._hold(run, -1)
                self._place(run, ())
                self.finished += 1
                self._leave(run, scheduler)
            case Phase.DELETION, Run() as run:
                self._delete(run, scheduler)
            case Phase.USE, Run() as run:
                self._measure(run)
            case Phase.SUBMISSION, Run() as run:
                self.waiting += 1
                self.requested += run.job.gpus
                self._want(run, 1)
                scheduler.submitted(run)
            case _, call:
                assert not isinstance(call, Run)
                call()

    def _delete(self, run: Run, scheduler: Scheduler) -> None:
        if run.finished_at is not None:
            return
        if run.running_since is None:
            self.waiting -= 1
        held = run.held_since is not None
        self._stalled.discard(run)
        run.delete(self.now)
        if held:
            self._agenda.remove((Phase.END, run))
            self._agenda.remove((Phase.USE, run))
            self._hold(run, -1)
            self._place(run, ())
        self._leave(run, scheduler)

    def _leave(self, run: Run, scheduler: Scheduler) -> None:
        """A job that no longer holds anything waits for nothing either."""
        self.requested -= run.job.gpus
        self._agenda.remove((Phase.DELETION, run))
        self._want(run, -1)
        scheduler.ended(run)

    def _want(self, run: Run, sign: int) -> None:
        for pods, gpus in run.job.sizes:
            self.free.want(pods, gpus, sign)

    def _change(self, event: NodeEvent, scheduler: Scheduler) -> None:
        if event.record is not None:
            self.free.resize(event.node, int(BY_NAME.counted(event.record.allocatable)))
        self.free.set_up(event.node, up=event.takes_pods)
        scheduler.node_changed(event)

    def _sample(self) -> Sample:
        parts = (part for run in self._stalled for part in self.placed.get(run, ()))
        stalled_free = sum(gpus for node, gpus in parts if self.free.takes_pods(node))
        return Sample(
            self.now,
            self.held,
            sum(run.job.gpus for run in self._stalled),
            self.used,
            self.waiting,
            self.requested,
            self.free.total,
            self.free.total + stalled_free,
            self.free.fragmented,
        )

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
        self.requested -= sign * run.job.gpus
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
