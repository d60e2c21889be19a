"""The jobs for which a job waits, and the jobs that wait for it, within a few steps: a bounded part of all dependencies.

Dependencies are as their users wrote them, satisfied or not, so the part of a job is the same before, during and after its run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from queuectl.domain.gates import Dependency, JobName
from queuectl.domain.jobs import JobOutcome
from queuectl.domain.ledger import State

LEVELS: Final = 3
MOST_RELATED: Final = 60
_EACH_WAY: Final = MOST_RELATED // 2


@dataclass(frozen=True, slots=True)
class PresentJob:
    """A job that is in the cluster.

    Attributes:
        uid: of its workload; empty if it has none, as a job without a queue.
        state: None = it has no workload that is not finished.
        outcome: None while it has not ended.
    """

    uid: str
    state: State | None
    outcome: JobOutcome | None


@dataclass(frozen=True, slots=True)
class RelatedJob:
    """A job near another one.

    Attributes:
        title: ``Kind/name``, as a user wrote it.
        level: steps from the job in question; negative for those for which it waits, 0 for itself.
        observed: None = no such job is in the cluster.
    """

    name: JobName
    title: str
    level: int
    observed: PresentJob | None = None


@dataclass(frozen=True, slots=True)
class RelatedEdge:
    """``after`` waits until ``before`` ends as required. ``ends``: ok, any or failed."""

    before: JobName
    after: JobName
    ends: str


@dataclass(frozen=True, slots=True)
class RelatedJobs:
    """The jobs near one job.

    Attributes:
        jobs: itself first; at most :data:`MOST_RELATED` others.
        edges: between these jobs.
        left_out: jobs one step from these that are not among them; counted once for each job that leads to them.
    """

    jobs: tuple[RelatedJob, ...]
    edges: tuple[RelatedEdge, ...]
    left_out: int = 0


WaitsFor = Callable[[JobName], Sequence[Dependency]]
"""The dependencies of a job."""
Dependents = Callable[[JobName], Sequence[tuple[JobName, str]]]
"""The jobs that wait for a job, with their titles."""


def related_jobs(
    root: JobName,
    title: str,
    waits_for: WaitsFor,
    dependents: Dependents,
    observed: Callable[[JobName], PresentJob | None],
) -> RelatedJobs | None:
    """The jobs near ``root``; None if it depends on no job, and no job depends on it."""

    def before(name: JobName) -> Sequence[tuple[JobName, str]]:
        return [(JobName.of(d.kind, name.namespace, d.name), d.job) for d in waits_for(name)]

    levels: dict[JobName, tuple[int, str]] = {root: (0, title)}
    left_out = _spread(root, before, -1, _EACH_WAY, levels)
    left_out += _spread(root, dependents, 1, MOST_RELATED + 1 - len(levels), levels)
    if len(levels) == 1 and not left_out and not before(root):
        return None
    edges = [
        RelatedEdge(other, name, str(dependency.ends))
        for name in levels
        for dependency in waits_for(name)
        if (other := JobName.of(dependency.kind, name.namespace, dependency.name)) in levels
    ]
    jobs = (RelatedJob(n, written, level, observed(n)) for n, (level, written) in levels.items())
    return RelatedJobs(tuple(jobs), tuple(edges), left_out)


def _spread(
    root: JobName,
    neighbors: Callable[[JobName], Sequence[tuple[JobName, str]]],
    direction: int,
    most: int,
    levels: dict[JobName, tuple[int, str]],
) -> int:
    """Add the neighbors of ``root`` and theirs, the nearest first. Returns how many are left out."""
    left_out = added = 0
    front = [root]
    for distance in range(1, LEVELS + 2):
        reached = []
        for name in front:
            for other, title in neighbors(name):
                if other in levels:
                    continue
                if distance > LEVELS or added == most:
                    left_out += 1
                    continue
                levels[other] = (direction * distance, title)
                added += 1
                reached.append(other)
        front = reached
    return left_out
