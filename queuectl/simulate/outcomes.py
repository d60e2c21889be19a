"""The figures of a simulation: waits, completions, allocation, evictions and lost work, of all jobs and of each queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from queuectl.domain.quantity import GPU
from queuectl.domain.words import counted
from queuectl.simulate.setting import LocalQueueKey, Setting
from queuectl.simulate.simulation import Run, Sample, World
from queuectl.simulate.trace import TraceJob, size_class


@dataclass(frozen=True, slots=True)
class Waits:
    """Waits of finished jobs, in seconds; None if no job has finished. Percentiles are by nearest rank."""

    finished: int
    mean: float | None
    p50: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of all jobs, or of one queue. Times are in seconds; means are over finished jobs.

    Attributes:
        jobs: of the trace, with the skipped ones and those that never fit.
        completion: mean from the submission to the last end.
        begin: time of the first submission.
        makespan: from the first submission to the last end.
        held: GPU-seconds that the jobs held.
        gpus: that the jobs can use.
        lost: GPU-seconds of work since the last checkpoint, at each eviction and at each loss of a node.
        several: the jobs of more than one pod.
    """

    jobs: int
    skipped: int
    never_fit: int
    waits: Waits
    completion: float | None
    begin: float
    makespan: float
    held: float
    gpus: int
    evictions: int
    lost: float
    several: Waits
    several_jobs: int

    @property
    def allocation(self) -> float | None:
        """Held GPU-seconds as a fraction of all of them; None without GPUs or time."""
        total = self.gpus * self.makespan
        return self.held / total if total else None


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """The result of one policy.

    Attributes:
        policy: its name.
        total: figures of all jobs.
        by_queue: those of each LocalQueue of the trace that exists.
        by_size: waits by the GPUs of a job: the largest number of each class, and the waits.
        runs: of all jobs that could start.
        samples: the state over time.
        gpus: of all nodes.
        utilization: used GPU-seconds as a fraction of all during the makespan; None if the utilization of no job is known.
        fragmentation: GPU-seconds that were free and that the next pod is expected to be unable to use, as such a fraction; None
            if the nodes of a gang are not known.
        fairness: Jain's index of the queues' shares of time in which their jobs ran, 0 to 1; None without finished jobs.
        never_fit: jobs that are larger than their queue or its nodes.
    """

    policy: str
    total: Figures
    by_queue: Mapping[LocalQueueKey, Figures]
    by_size: Mapping[int, Waits]
    runs: Sequence[Run]
    samples: Sequence[Sample]
    gpus: int
    utilization: float | None
    fragmentation: float | None
    fairness: float | None
    never_fit: tuple[TraceJob, ...]


def outcome_of(
    policy: str, setting: Setting, runs: Sequence[Run], never_fit: Sequence[TraceJob], world: World
) -> PolicyOutcome:
    """The figures of a finished simulation. ``runs``: of all jobs that could start."""
    samples = world.samples
    until = samples[-1].time if samples else 0.0
    of_queue: dict[LocalQueueKey, tuple[list[Run], list[TraceJob]]] = {}
    for run in runs:
        of_queue.setdefault(run.job.queue, ([], []))[0].append(run)
    for job in never_fit:
        of_queue.setdefault(job.queue, ([], []))[1].append(job)
    by_queue = {
        queue: _figures(mine, len(larger), 0, setting.gpus_of(queue), until)
        for queue, (mine, larger) in sorted(of_queue.items())
    }
    total = _figures(runs, len(never_fit), len(setting.skipped), setting.gpus, until)
    measured = any(run.job.utilization is not None for run in runs)
    return PolicyOutcome(
        policy=policy,
        total=total,
        by_queue=by_queue,
        by_size=_by_size(runs),
        runs=runs,
        samples=samples,
        gpus=setting.gpus,
        utilization=_part(samples, lambda sample: sample.used, total) if measured else None,
        fragmentation=(
            _part(samples, lambda sample: sample.fragmented, total) if world.free.known else None
        ),
        fairness=_jain(
            [share for mine, _ in of_queue.values() if (share := _running(mine)) is not None]
        ),
        never_fit=tuple(never_fit),
    )


def _part(
    samples: Sequence[Sample], quantity: Callable[[Sample], float], total: Figures
) -> float | None:
    """A number of GPUs over the makespan, as a fraction of all GPU-seconds."""
    everything = total.gpus * total.makespan
    if not everything:
        return None
    end = total.begin + total.makespan
    sums = (
        quantity(sample) * (min(after.time, end) - max(sample.time, total.begin))
        for sample, after in pairwise(samples)
        if sample.time < end and after.time > total.begin
    )
    return sum(sums) / everything


def _figures(runs: Sequence[Run], never_fit: int, skipped: int, gpus: int, until: float) -> Figures:
    finished = [run for run in runs if run.finished_at is not None]
    several = [run for run in runs if run.job.pods > 1]
    first = min((run.job.submit for run in runs), default=0.0)
    last = max((run.finished_at or 0.0 for run in finished), default=first)
    held = sum(run.held for run in runs)
    held += sum(
        (until - run.held_since) * run.job.gpus for run in runs if run.held_since is not None
    )
    return Figures(
        jobs=len(runs) + never_fit + skipped,
        skipped=skipped,
        never_fit=never_fit,
        waits=_waits(runs),
        completion=_mean([run.completion for run in finished]),
        begin=first,
        makespan=last - first,
        held=held,
        gpus=gpus,
        evictions=sum(run.evictions for run in runs),
        lost=sum(run.lost for run in runs),
        several=_waits(several),
        several_jobs=len(several),
    )


def _waits(runs: Iterable[Run]) -> Waits:
    waits = sorted(run.waited for run in runs if run.finished_at is not None)
    return Waits(len(waits), _mean(waits), nearest_rank(waits, 50), nearest_rank(waits, 99))


def _by_size(runs: Iterable[Run]) -> dict[int, Waits]:
    classes: dict[int, list[Run]] = {}
    for run in runs:
        classes.setdefault(size_class(run.job.gpus), []).append(run)
    return {size: _waits(classes[size]) for size in sorted(classes)}


def _mean(numbers: Sequence[float]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None


def nearest_rank(ordered: Sequence[float], percent: int) -> float | None:
    """The smallest value that at least this percentage of the values do not exceed; None of no values."""
    if not ordered:
        return None
    return ordered[max(1, ceil(percent * len(ordered) / 100)) - 1]


def _running(runs: Iterable[Run]) -> float | None:
    finished = [run for run in runs if run.finished_at is not None]
    time = sum(run.completion for run in finished)
    return sum(run.ran for run in finished) / time if time else None


def _jain(shares: Sequence[float]) -> float | None:
    squares = len(shares) * sum(share * share for share in shares)
    return sum(shares) ** 2 / squares if squares else None


def warnings(outcome: PolicyOutcome, trace: str) -> Iterator[str]:
    """A line for each kind of job that never fits, and one for those that had not ended. ``trace``: name of its file."""
    kinds: dict[tuple[LocalQueueKey, int, int, str], list[int]] = {}
    for job in outcome.never_fit:
        kind = (job.queue, job.pods, job.gpus_per_pod, job.topology_level)
        kinds.setdefault(kind, []).append(job.line)
    for ((namespace, name), pods, gpus, level), lines in kinds.items():
        request = f"{counted(pods, 'pod')} × {gpus} {GPU}" + (f" in one {level}" if level else "")
        what = f"{request} never fit in LocalQueue {namespace}/{name}"
        yield f"{trace}: line {min(lines)}: {what}: {counted(len(lines), 'job')}"
    if left := [run.job.line for run in outcome.runs if run.finished_at is None]:
        what = f"{counted(len(left), 'job')} did not start in the year after the last event"
        yield f"{trace}: line {min(left)}: {what}"


def series(
    samples: Sequence[Sample], quantity: Callable[[Sample], float], points: int
) -> list[tuple[float, float]]:
    """Averages of a quantity over equal intervals: (end of the interval in seconds, average)."""
    if len(samples) < 2 or samples[-1].time <= samples[0].time:
        return []
    begin, end = samples[0].time, samples[-1].time
    step = (end - begin) / points
    averages = series_between(samples, quantity, begin, end, points)
    return [(begin + (i + 1) * step, average) for i, average in enumerate(averages)]


def series_between(
    samples: Sequence[Sample],
    quantity: Callable[[Sample], float],
    begin: float,
    end: float,
    points: int,
) -> list[float]:
    """Averages of a quantity over equal intervals between two times in seconds."""
    step = (end - begin) / points
    sums = [0.0] * points
    for sample, after in pairwise(samples):
        at, last = max(sample.time, begin), min(after.time, end)
        while at < last:
            index = min(int((at - begin) / step), points - 1)
            until = last if index == points - 1 else min(last, begin + (index + 1) * step)
            if until <= at:  # rounding: the next interval begins here
                index, until = index + 1, min(last, begin + (index + 2) * step)
            sums[min(index, points - 1)] += quantity(sample) * (until - at)
            at = until
    return [total / step for total in sums]
