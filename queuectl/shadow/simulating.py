"""The simulated report: what the same arrivals would have met under queuectl, in one continued simulation from the first observation.

Both sides run in the simulator, with the run times that the records permit: the shortest, the usual and the longest ones. A figure is the
interval of these results. The interval of queuectl's side is wider by the time between two observations, because the simulation starts gangs at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from math import inf
from typing import Final

from queuectl.domain.gpus import BY_NAME
from queuectl.domain.shadow_trace import (
    Between,
    FigureInterval,
    QueueWaits,
    ShadowTrace,
    SideFigures,
    SimulatedReport,
    TracedState,
)
from queuectl.domain.snapshot import Snapshot
from queuectl.shadow.jobs import ObservedJob, RunTimeCase, TraceJobs, nodes_of, simulated_setting
from queuectl.shadow.replay import TraceReplay
from queuectl.simulate.free_gpus import FreeGpus
from queuectl.simulate.outcomes import nearest_rank
from queuectl.simulate.planned import Planned
from queuectl.simulate.setting import LocalQueueKey, Setting, make_setting
from queuectl.simulate.simulation import Durations, Policy, Run, Scheduler, World

_POLICY: Final = Policy(durations=Durations.LEARNED)
"""The planner knows what jobs state, and what earlier gangs have shown, as in the controller."""
_Wait = tuple[float, bool]
"""Seconds for which a gang has waited, and whether it still waits at the end."""


def simulated(
    trace: ShadowTrace,
    setting: Snapshot,
    *,
    begin: float,
    resolution: float,
    seconds: float,
    clock: Callable[[], float],
    now: float,
) -> SimulatedReport:
    """The report.

    Args:
        trace: of shadow mode.
        setting: configuration and namespaces of the last observation.
        begin: unix seconds of its begin, at the earliest.
        resolution: seconds between two observations.
        seconds: for each of the three simulations. The time that one of them does not reach is left out of all.
        clock: seconds, of any begin.
        now: unix seconds.
    """
    started = clock()
    begin = max(begin, trace.span.began)
    jobs = TraceJobs(trace, setting.config, begin)
    fleet, events = nodes_of(trace, begin)
    snapshot = simulated_setting(setting, fleet, jobs.gangs)

    def case(times: RunTimeCase) -> _Case:
        gangs = jobs.under(times)
        listed = [one.job for one in gangs]
        return _Case(make_setting(snapshot, "the records", listed, events, begins=begin), gangs)

    # The longest run times are first: most gangs wait then, so that the others seldom end earlier.
    order = (RunTimeCase.LONGEST, RunTimeCase.USUAL, RunTimeCase.SHORTEST)
    until = jobs.seconds
    planned: dict[RunTimeCase, _Side] = {}
    for times in order:
        late = partial(_is_late, clock, clock() + seconds)
        planned[times] = _planned(case(times), until, late)
        until = planned[times].until
    for times in order:
        if planned[times].until > until:  # it has done so much within its limit
            planned[times] = _planned(case(times), until, lambda: False)
    bounds = (RunTimeCase.SHORTEST, RunTimeCase.LONGEST)
    observed = [_replayed(case(times), until) for times in bounds]
    usual = case(RunTimeCase.USUAL)
    arrived = [one for one in usual.taking_part if one.job.submit <= until]
    return SimulatedReport(
        began=begin,
        until=begin + until,
        made_at=now,
        took=clock() - started,
        gangs=len(arrived),
        arrived=_counts(one for one in arrived if not one.ran_before),
        running_at_begin=sum(one.ran_before for one in arrived),
        unfinished=sum(jobs.gangs[one.job.rank].state is not TracedState.GONE for one in arrived),
        left_out=jobs.left_out + len(usual.setting.skipped),
        resized=sum(jobs.gangs[one.job.rank].resized for one in arrived),
        gaps=_overlap(trace.span.gaps, begin, begin + until),
        whole=until >= jobs.seconds,
        observed=_figures(observed, 0.0),
        simulated=_figures(list(planned.values()), resolution),
    )


# ---- One simulation


@dataclass(frozen=True, slots=True)
class _Case:
    """The gangs under one choice of run times. Only one case is in memory at a time: each has all gangs."""

    setting: Setting
    gangs: Sequence[ObservedJob]

    @property
    def taking_part(self) -> list[ObservedJob]:
        """The gangs whose queues exist."""
        ranks = {job.rank for job in self.setting.jobs}
        return [one for one in self.gangs if one.job.rank in ranks]


@dataclass(frozen=True, slots=True)
class _Side:
    """The sums of a simulation that has ended. Gangs that ran at the begin are in no waiting time.

    Attributes:
        waits: of the gangs of each LocalQueue.
        until: seconds after the begin.
        started: GPUs of the gangs that started, summed over their starts.
        evictions: of all gangs.
        idle: GPU-seconds of GPUs on which no gang ran while one waited that requests GPUs.
        ran: GPU-seconds of gangs that ran.
        total: these, and the GPU-seconds on which no gang ran.
    """

    waits: Mapping[LocalQueueKey, Sequence[_Wait]]
    until: float
    started: float
    evictions: int
    idle: float
    ran: float
    total: float

    @property
    def utilization(self) -> float | None:
        return self.ran / self.total if self.total else None


def _planned(case: _Case, until: float, late: Callable[[], bool]) -> _Side:
    world = World(_free(case.setting))

    def stop_if_late(world: World) -> None:
        if late():
            world.stop()

    runs = [Run(job) for job in case.setting.jobs]
    scheduler = Planned(case.setting, _POLICY, world)
    return _ran(world, runs, case, scheduler, until, stop_if_late)


def _replayed(case: _Case, until: float) -> _Side:
    world = World(_free(case.setting))
    jobs = case.taking_part
    scheduler = TraceReplay(
        world,
        {one.job.rank: one.attempts for one in jobs},
        (node.name for node in case.setting.fleet.nodes),
    )
    return _ran(world, [Run(one.replayed) for one in jobs], case, scheduler, until, lambda _: None)


def _ran(
    world: World,
    runs: Sequence[Run],
    case: _Case,
    scheduler: Scheduler,
    until: float,
    progress: Callable[[World], None],
) -> _Side:
    world.wake(_begins, 0.0)
    world.run(runs, case.setting.events, scheduler, progress, until)
    before, now = {one.job.rank for one in case.gangs if one.ran_before}, world.now
    counted = [run for run in runs if run.job.rank not in before and run.job.submit <= now]
    started = sum(
        run.job.gpus * (run.evictions + 1)
        for run in counted
        if run.ran or run.running_since is not None
    )
    waits: dict[LocalQueueKey, list[_Wait]] = {}
    for run in counted:
        waits.setdefault(run.job.queue, []).append((run.waited_by(now), _waits_at_end(run)))
    idle = ran = total = 0.0
    for sample, following in pairwise(world.samples):
        seconds, running = following.time - sample.time, sample.held - sample.stalled
        ran += running * seconds
        total += (running + sample.idle) * seconds
        if sample.requested > 0 or sample.stalled > 0:
            idle += sample.idle * seconds
    evictions = sum(run.evictions for run in runs)
    return _Side(waits, now, float(started), evictions, idle, ran, total)


def _is_late(clock: Callable[[], float], limit: float) -> bool:
    return clock() > limit


def _begins() -> None:
    """The state at the begin is also a sample."""


def _free(setting: Setting) -> FreeGpus:
    """GPUs of any vendor. Fragmentation is not measured."""
    nodes = {node.name: int(BY_NAME.counted(node.allocatable)) for node in setting.fleet.nodes}
    free = FreeGpus(nodes, {})
    for node in setting.fleet.nodes:
        free.set_up(node.name, up=node.ready and not node.unschedulable)
    return free


# ---- Figures


def _figures(sides: Sequence[_Side], resolution: float) -> SideFigures:
    """The intervals of several simulations of one side. ``resolution``: seconds by which each start can be later, with the GPUs of its gang."""
    by_queue = {
        "/".join(name): _waits([side.waits.get(name, ()) for side in sides], resolution)
        for name in sorted({name for side in sides for name in side.waits})
    }
    idle = [side.idle for side in sides]
    shares = [side.utilization for side in sides if side.utilization is not None]
    late = max(side.started for side in sides) * resolution
    total = max(side.total for side in sides)
    share = late / total if total else 0.0
    return SideFigures(
        total=_waits([list(chain(*side.waits.values())) for side in sides], resolution),
        queues=by_queue,
        idle=FigureInterval(max(min(idle) - late, 0.0), min(max(idle) + late, total)),
        utilization=FigureInterval(max(min(shares) - share, 0.0), min(max(shares) + share, 1.0))
        if shares
        else FigureInterval(None, None),
        evictions=FigureInterval(
            float(min(side.evictions for side in sides)),
            float(max(side.evictions for side in sides)),
        ),
    )


def _waits(sides: Sequence[Sequence[_Wait]], resolution: float) -> QueueWaits:
    """``sides``: of each simulation, the gangs of a queue."""
    waiting = [float(sum(waits for _, waits in side)) for side in sides]
    return QueueWaits(
        _percentile(sides, 50, resolution),
        _percentile(sides, 95, resolution),
        FigureInterval(min(waiting), max(waiting)),
    )


def _percentile(
    sides: Sequence[Sequence[_Wait]], percent: int, resolution: float
) -> FigureInterval:
    """A gang that still waits has waited at least this long."""
    least, most = list[float](), list[float]()
    for waits in sides:
        low = nearest_rank(sorted(wait for wait, _ in waits), percent)
        high = nearest_rank(sorted(inf if waiting else wait for wait, waiting in waits), percent)
        if low is None or high is None:
            return FigureInterval(None, None)
        least.append(low)
        most.append(high)
    longest = max(most) + resolution
    return FigureInterval(max(min(least) - resolution, 0.0), None if longest == inf else longest)


def _waits_at_end(run: Run) -> bool:
    return run.finished_at is None and run.deleted_at is None and run.running_since is None


def _counts(gangs: Iterable[ObservedJob]) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for one in gangs:
        name = "/".join(one.job.queue)
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def _overlap(gaps: Iterable[Between], begin: float, until: float) -> float:
    return sum(max(0.0, min(gap.most, until) - max(gap.least, begin)) for gap in gaps)
