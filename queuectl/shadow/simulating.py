"""The simulated report: what the same arrivals would have met under queuectl, in one continued simulation from the first moment.

Both sides run in the simulator, with the run times that the records permit: the shortest, the usual and the longest ones. A figure is the
interval of these results. The interval of queuectl's side is wider by the time between two moments, because the simulation starts gangs at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
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
from queuectl.simulate.setting import Setting, make_setting
from queuectl.simulate.simulation import Durations, Policy, Run, Sample, Scheduler, World

_POLICY: Final = Policy(durations=Durations.LEARNED)
"""The planner knows what jobs state, and what earlier gangs have shown, as in the controller."""


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
        setting: configuration and namespaces of the last moment.
        begin: unix seconds of its begin, at the earliest.
        resolution: seconds between two moments.
        seconds: for each of the three simulations. The time that one of them does not reach is left out of all.
        clock: seconds, of any begin.
        now: unix seconds.
    """
    started = clock()
    begin = max(begin, trace.span.began)
    jobs = TraceJobs(trace, setting.config, begin)
    fleet, events = nodes_of(trace, begin)
    snapshot = simulated_setting(setting, fleet, jobs.gangs)
    # The longest run times are first: most gangs wait then, so that they mostly decide how far the others run.
    order = (RunTimeCase.LONGEST, RunTimeCase.USUAL, RunTimeCase.SHORTEST)
    gangs = {times: jobs.under(times) for times in order}
    settings = {
        times: make_setting(
            snapshot, "the records", [one.job for one in gangs[times]], events, begins=begin
        )
        for times in order
    }
    until = jobs.seconds
    planned: dict[RunTimeCase, _Side] = {}
    for times in order:
        late = partial(_is_late, clock, clock() + seconds)
        planned[times] = _planned(settings[times], gangs[times], until, late)
        until = planned[times].until
    for (
        times
    ) in order:  # those that went further end earlier, too: they have done so much in their time
        if planned[times].until > until:
            planned[times] = _planned(settings[times], gangs[times], until, _in_time)
    bounds = (RunTimeCase.SHORTEST, RunTimeCase.LONGEST)
    observed = [_replayed(settings[times], gangs[times], until) for times in bounds]
    usual, taking_part = (
        gangs[RunTimeCase.USUAL],
        {one.rank for one in settings[RunTimeCase.USUAL].jobs},
    )
    arrived = [one for one in usual if one.job.submit <= until and one.job.rank in taking_part]
    return SimulatedReport(
        began=begin,
        until=begin + until,
        made_at=now,
        took=clock() - started,
        gangs=len(arrived),
        arrived=_counts(one for one in arrived if not one.ran_before),
        running_at_begin=sum(one.ran_before for one in arrived),
        unfinished=sum(jobs.gangs[one.job.rank].state is not TracedState.GONE for one in arrived),
        left_out=jobs.left_out + len(settings[RunTimeCase.USUAL].skipped),
        resized=sum(jobs.gangs[one.job.rank].resized for one in arrived),
        gaps=_overlap(trace.span.gaps, begin, begin + until),
        whole=until >= jobs.seconds,
        observed=_figures(observed, 0.0),
        simulated=_figures(list(planned.values()), resolution),
    )


# ---- One simulation


@dataclass(frozen=True, slots=True)
class _Side:
    """A simulation that has ended.

    Attributes:
        runs: of all gangs but those that ran at the begin.
        samples: the state over time.
        until: seconds after the begin.
        started: GPUs of the gangs that started, summed over their starts.
        evictions: of all gangs.
    """

    runs: Sequence[Run]
    samples: Sequence[Sample]
    until: float
    started: float
    evictions: int


def _planned(
    setting: Setting, gangs: Sequence[ObservedJob], until: float, late: Callable[[], bool]
) -> _Side:
    world = World(_free(setting))

    def stop_if_late(world: World) -> None:
        if late():
            world.stop()

    before = {one.job.rank for one in gangs if one.ran_before}
    runs = [Run(job) for job in setting.jobs]
    return _ran(world, runs, before, setting, Planned(setting, _POLICY, world), until, stop_if_late)


def _replayed(setting: Setting, gangs: Sequence[ObservedJob], until: float) -> _Side:
    world = World(_free(setting))
    taking_part = {job.rank for job in setting.jobs}
    jobs = [one for one in gangs if one.job.rank in taking_part]
    scheduler = TraceReplay(
        world,
        {one.job.rank: one.attempts for one in jobs},
        (node.name for node in setting.fleet.nodes),
    )
    before = {one.job.rank for one in jobs if one.ran_before}
    runs = [Run(one.replayed) for one in jobs]
    return _ran(world, runs, before, setting, scheduler, until, lambda _: None)


def _ran(
    world: World,
    runs: Sequence[Run],
    before: set[int],
    setting: Setting,
    scheduler: Scheduler,
    until: float,
    progress: Callable[[World], None],
) -> _Side:
    world.wake(_begins, 0.0)
    world.run(runs, setting.events, scheduler, progress, until)
    counted = [run for run in runs if run.job.rank not in before and run.job.submit <= world.now]
    started = sum(
        run.job.gpus * (run.evictions + 1)
        for run in counted
        if run.ran or run.running_since is not None
    )
    evictions = sum(run.evictions for run in runs)
    return _Side(counted, world.samples, world.now, float(started), evictions)


def _is_late(clock: Callable[[], float], limit: float) -> bool:
    return clock() > limit


def _in_time() -> bool:
    return False


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
    """The intervals of several simulations of one side. ``resolution``: seconds by which starts can be later."""
    of_queues = [_of_queues(side) for side in sides]
    by_queue = {
        "/".join(name): _waits([queues.get(name, []) for queues in of_queues], resolution)
        for name in sorted({name for queues in of_queues for name in queues})
    }
    idle = [_idle(side) for side in sides]
    use = [_utilization(side) for side in sides]
    late = max((side.started for side in sides), default=0.0) * resolution
    total = max((_gpu_seconds(side) for side in sides), default=0.0)
    share = late / total if total else 0.0
    shares = [one for one in use if one is not None]
    return SideFigures(
        total=_waits([[(run, side.until) for run in side.runs] for side in sides], resolution),
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


def _of_queues(side: _Side) -> dict[tuple[str, str], list[tuple[Run, float]]]:
    """The gangs of each LocalQueue, with the end of their simulation."""
    queues: dict[tuple[str, str], list[tuple[Run, float]]] = {}
    for run in side.runs:
        queues.setdefault(run.job.queue, []).append((run, side.until))
    return queues


def _waits(sides: Sequence[Sequence[tuple[Run, float]]], resolution: float) -> QueueWaits:
    """``sides``: of each simulation, the gangs of a queue with its end."""
    waiting = [float(sum(_waits_at_end(run) for run, _ in runs)) for runs in sides]
    return QueueWaits(
        _percentile(sides, 50, resolution),
        _percentile(sides, 95, resolution),
        FigureInterval(min(waiting), max(waiting)),
    )


def _percentile(
    sides: Sequence[Sequence[tuple[Run, float]]], percent: int, resolution: float
) -> FigureInterval:
    """A gang that still waits has waited at least so long."""
    least, most = list[float](), list[float]()
    for runs in sides:
        waits = [(run.waited_by(until), _waits_at_end(run)) for run, until in runs]
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


def _idle(side: _Side) -> float:
    """GPU-seconds of GPUs on which no gang ran while one waited that requests GPUs."""
    return sum(
        sample.idle * (after.time - sample.time)
        for sample, after in pairwise(side.samples)
        if sample.requested > 0 or sample.stalled > 0
    )


def _gpu_seconds(side: _Side) -> float:
    """GPUs over time: those of gangs that ran, and the idle ones."""
    return sum(
        (_running(sample) + sample.idle) * (after.time - sample.time)
        for sample, after in pairwise(side.samples)
    )


def _utilization(side: _Side) -> float | None:
    ran = sum(
        _running(before) * (after.time - before.time) for before, after in pairwise(side.samples)
    )
    total = _gpu_seconds(side)
    return ran / total if total else None


def _running(sample: Sample) -> int:
    return sample.held - sample.stalled


def _counts(gangs: Iterable[ObservedJob]) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for one in gangs:
        name = "/".join(one.job.queue)
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def _overlap(gaps: Iterable[Between], begin: float, until: float) -> float:
    return sum(max(0.0, min(gap.most, until) - max(gap.least, begin)) for gap in gaps)
