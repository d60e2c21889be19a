"""The state of the queues at any time of a simulated trace, as the snapshot that a leader would have, and what it has learned by then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.past_jobs import FinishedRun, GangProfile
from queuectl.domain.quantity import GPU, PODS, Resources
from queuectl.domain.queues import QueueingStrategy
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import (
    Placement,
    PodSet,
    PodSetPlacement,
    PodShape,
    TopologyMode,
    TopologyRequest,
    Workload,
)
from queuectl.durations.expectations import RunTimeEstimator
from queuectl.simulate.best_fit import BestFit
from queuectl.simulate.setting import Setting
from queuectl.simulate.simulation import Order, Run, World
from queuectl.simulate.trace import TraceJob

BEGIN: Final = 1e9
"""Unix seconds of the begin of the trace."""
STRATEGIES: Final = {
    Order.STRICT_FIFO: QueueingStrategy.STRICT_FIFO,
    Order.BEST_EFFORT_FIFO: QueueingStrategy.BEST_EFFORT_FIFO,
}


@dataclass(eq=False)
class Job:
    """A job with its simulated start, in seconds of the trace."""

    run: Run
    start: float
    placement: tuple[tuple[str, int], ...]

    @property
    def job(self) -> TraceJob:
        return self.run.job

    @property
    def uid(self) -> str:
        return f"{self.job.rank:09d}"

    @property
    def end(self) -> float:
        assert self.run.finished_at is not None
        return self.run.finished_at


class _Recorder(BestFit):
    """The reference rule, which notes each start."""

    def __init__(self, setting: Setting, order: Order, world: World) -> None:
        super().__init__(setting, order, world)
        self.started: list[Job] = []
        self._known: set[Run] = set()

    def decide(self) -> None:
        super().decide()
        placed = self._world.placed
        for run in placed.keys() - self._known:
            self.started.append(Job(run, self._world.now, tuple(placed[run])))
        self._known = set(placed)


def simulated(setting: Setting, order: Order) -> list[Job]:
    """All jobs that ran, in the order of their ranks."""
    world = World(setting.free_gpus())
    recorder = _Recorder(setting, order, world)
    runs = [Run(job) for job in setting.jobs if not recorder.never_fits(job)]
    world.run(runs, (), recorder)
    return sorted(recorder.started, key=lambda job: job.job.rank)


def work_of(setting: Setting, job: TraceJob) -> GangProfile:
    """The properties by which a leader compares jobs."""
    queue = setting.cluster_queue(job.queue).name
    return GangProfile(queue, *job.queue, job.user, job.name, job.pods, job.gpus)


@dataclass(frozen=True)
class Seen:
    """The state after the submission of ``job``, at which it waits."""

    job: Job
    snapshot: Snapshot
    live: dict[str, Job]
    estimator: RunTimeEstimator
    past_waits: tuple[float, ...]
    """Of the jobs of its ClusterQueue that have started, oldest first, in seconds."""


def states(setting: Setting, order: Order, jobs: list[Job], every: int) -> Iterator[Seen]:
    """The state at every so many submissions of jobs that wait."""
    setting = setting.under(STRATEGIES[order])
    estimator, waits = RunTimeEstimator(), dict[str, list[float]]()
    by_end = sorted(jobs, key=lambda job: job.end)
    by_start = sorted(jobs, key=lambda job: job.start)
    ended = started = number = 0
    for job in (one for one in jobs if one.start > one.job.submit):
        now, number = job.job.submit, number + 1
        while ended < len(by_end) and by_end[ended].end <= now:
            over = by_end[ended]
            estimator.add(FinishedRun(work_of(setting, over.job), over.end - over.start))
            ended += 1
        while started < len(by_start) and by_start[started].start <= now:
            first = by_start[started]
            queue = setting.cluster_queue(first.job.queue).name
            waits.setdefault(queue, []).append(first.start - first.job.submit)
            started += 1
        if number % every == 0:
            queue = setting.cluster_queue(job.job.queue).name
            live = {
                one.uid: one
                for one in jobs
                if one.job.submit <= now < one.end and one.job.rank <= job.job.rank
            }
            snapshot = _snapshot(setting, live.values(), now)
            yield Seen(job, snapshot, live, estimator, tuple(waits.get(queue, ())))


def _snapshot(setting: Setting, live: Iterable[Job], now: float) -> Snapshot:
    pending, admitted = [], []
    for one in live:
        workload = _workload(one)
        if one.start > now:
            pending.append(Pending(workload))
        else:
            admitted.append(_admitted(setting, one, workload))
    return replace(
        setting.snapshot, now=BEGIN + now, pending=tuple(pending), admitted=tuple(admitted)
    )


def _workload(one: Job) -> Workload:
    """As the reference rule: a job that fits on one node is on one node."""
    job = one.job
    topology = TopologyRequest(TopologyMode.REQUIRED, HOSTNAME) if job.gpus <= 8 else None
    shape = PodShape(Resources({GPU: job.gpus_per_pod, PODS: 1}))
    podset = PodSet("main", job.pods, shape, topology)
    namespace, queue = job.queue
    at = BEGIN + job.submit
    return Workload(one.uid, "Job", namespace, one.uid, (podset,), queue, queued_at=at)


def _admitted(setting: Setting, one: Job, workload: Workload) -> Admitted:
    flavor = setting.cluster_queue(one.job.queue).groups[0].flavors[0].flavor
    nodes = tuple((name, gpus // one.job.gpus_per_pod) for name, gpus in one.placement)
    placed = PodSetPlacement("main", nodes, {GPU: flavor})
    return Admitted(workload, Placement((placed,)), started_at=BEGIN + one.start)
