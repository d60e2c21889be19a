"""Arrays: an Indexed Job whose indexes are gangs of their own, with one pod each.

The Job itself is in no queue. Each index that its controller can run now has a record like that of a job. Its uid is that of the Job
with the number of the index, and its name is ``<job>_<index>``, which no object of Kubernetes can have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from queuectl.domain.records import ArrayIndex, JobRecord, Outcome, PodPhase, PodRecord

LARGEST: Final = 1_000
"""Indexes that an array can have: the mirror keeps a record of each that has begun."""


def index_uid(uid: str, number: int) -> str:
    """The uid of an index. In the order of texts, indexes are in the order of their numbers."""
    return f"{uid}.{number:03d}"


def index_of(job: JobRecord, number: int, pods: Iterable[PodRecord]) -> JobRecord:
    """The record of one index of an array. ``pods``: those of the index."""
    known = list(pods)
    living = [pod for pod in known if not pod.terminal]
    first = next(numbers(job), None)
    opens = job.suspended and number == first
    return replace(
        job,
        uid=index_uid(job.uid, number),
        name=f"{job.name}_{number}",
        suspended=all(pod.gated for pod in living),
        drained=True,  # whether it has ended follows from its pods
        attempt=max((pod.attempt for pod in living), default=0),
        outcome=_outcome(job, number, known),
        status="",
        array=None,
        index=ArrayIndex(number, job.name, job.uid, started=not job.suspended),
        of_pods=True,
        awaits="" if living or opens else _awaits(number),
    )


def _awaits(number: int) -> str:
    return f"the Job controller has not created the pod of index {number}"


def _outcome(job: JobRecord, number: int, pods: Iterable[PodRecord]) -> Outcome | None:
    assert job.array is not None
    # The status of the Job follows its pods later.
    if number in job.array.succeeded or any(pod.phase is PodPhase.SUCCEEDED for pod in pods):
        return Outcome.SUCCEEDED
    return Outcome.FAILED if number in job.array.failed else job.outcome


def numbers(job: JobRecord) -> Iterator[int]:
    """The indexes that the job controller runs now or next: the first ones that have not ended, up to ``parallelism``."""
    assert job.array is not None
    ended = job.array.succeeded | job.array.failed
    left = (number for number in range(job.array.completions) if number not in ended)
    return islice(left, job.array.at_once)


def has_begun(array: JobRecord) -> bool:
    """Whether any index of an array has started. The gates of the array hold no later index then."""
    assert array.array is not None
    return not array.suspended or bool(array.array.succeeded or array.array.failed)


def object_of(job: JobRecord) -> JobRecord:
    """The record under the name and uid of its object: that of the array for an index, else its own."""
    if job.index is None:
        return job
    suspended = not job.index.started
    return replace(
        job,
        name=job.index.job,
        uid=job.index.job_uid,
        suspended=suspended,
        attempt=0,
        index=None,
        of_pods=False,
    )
