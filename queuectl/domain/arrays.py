"""Jobs whose indexes are separate gangs, with one pod each: arrays, and elastic jobs.

An array is in no queue itself. Each index that its controller can run now has a record like that of a job. Its uid consists of that of the Job
with the number of the index, and its name is ``<job>_<index>``, which no object of Kubernetes can have.

An elastic job is a gang of the first indexes of one podset, and of its other podsets. Each index above them is a gang of one pod, which
starts only while that gang runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Final

from queuectl.domain.jobs import ArrayIndex, ArrayStatus, JobOutcome, JobRecord, PodPhase, PodRecord
from queuectl.domain.workload import Growth

LARGEST: Final = 1_000
"""Indexes that an array or elastic job can have: the mirror keeps a record of each that has begun."""

_DIGITS: Final = len(str(LARGEST - 1))


def index_uid(uid: str, number: int) -> str:
    """The uid of an index. In the order of texts, indexes are in the order of their numbers."""
    return f"{uid}.{number:0{_DIGITS}d}"


def parted(uid: str) -> tuple[str, int] | None:
    """The uid of the Job and the number of an index; None for the uid of an object or a group of pods.

    The uid of an object has no dot. That of a group of a LeaderWorkerSet has two.
    """
    job, _, number = uid.partition(".")
    if len(number) != _DIGITS or not (number.isascii() and number.isdecimal()):
        return None
    return job, int(number)


def gang_uid(job: JobRecord, pod: PodRecord) -> str:
    """The uid of the gang to which a pod of a job belongs."""
    array, rank = job.array, pod.rank
    if array is None or rank is None or array.podset not in ("", pod.podset):
        return job.uid
    return index_uid(job.uid, rank) if rank >= array.base else job.uid


def index_of(job: JobRecord, number: int, pods: Iterable[PodRecord]) -> JobRecord:
    """The record of one index. ``pods``: those of the index."""
    assert job.array is not None
    members = list(pods)
    living = [pod for pod in members if not pod.terminal]
    released = [pod for pod in living if not pod.gated]
    grown, barred = job.array.base > 0, _barred(job, number)
    return replace(
        _shared(job),
        uid=index_uid(job.uid, number),
        name=f"{job.name}_{number}",
        suspended=not released,
        # The attempt of a pod that has ended is not used again.
        attempt=max((pod.attempt for pod in members), default=0),
        outcome=_outcome(job, number, members),
        array=None,
        index=ArrayIndex(number, job.name, job.uid, not job.suspended, grown, barred),
        awaits=barred or _awaits(job, number, alive=bool(living)),
        preempt_requested=max((pod.preempt_requested for pod in released), default=""),
        preempt_ready=bool(released) and all(pod.preempt_ready for pod in released),
    )


def _shared(job: JobRecord) -> JobRecord:
    """The job with the fields that the records of its indexes have in common."""
    assert job.array is not None
    record = replace(
        job,
        drained=True,  # whether an index has ended follows from its pods
        status="",
        ended=frozenset(),
        of_pods=True,
    )
    if not job.array.base:
        return record
    one = replace(job.of_indexes, count=1, group=None)
    return replace(
        record,
        podsets=(one,),
        expected=(),
        gates=(),
        kept_podsets=(),
        late=(),
        unborn=(),
    )


def differing(job: JobRecord, before: JobRecord) -> frozenset[int] | None:
    """The indexes whose records differ between two records of a job, apart from the version; None if all of them can."""
    now, then = job.array, before.array
    if now is None or then is None or _without_ends(job) != _without_ends(before):
        return None
    ended = (now.succeeded ^ then.succeeded) | (now.failed ^ then.failed)
    return ended | (_current(now) ^ _current(then))


def _without_ends(job: JobRecord) -> JobRecord:
    assert job.array is not None
    array = replace(job.array, succeeded=frozenset(), failed=frozenset())
    return replace(_shared(job), version=0, array=array)


def _barred(job: JobRecord, number: int) -> str:
    """Why an index of an elastic job cannot run with its gang now; empty if it can, and for an array."""
    assert job.array is not None
    base, most = job.array.base, job.array.at_once
    if not base:
        return ""
    if number < base:
        return f"index {number} is one of the first {base} pods, which start as one gang"
    if job.suspended or job.preempt_requested:
        return f"the gang of the first {base} pods does not run"
    if number >= most:
        size = "spec.parallelism" if job.resizable else f"the number of pods of {job.array.podset}"
        return f"{size} is {most}: the {job.kind} has no index {number}"
    return ""


def _awaits(job: JobRecord, number: int, *, alive: bool) -> str:
    """The pod that must exist before an index can start; empty if it does.

    Each index whose pod the controller creates first can resume an array that is suspended.
    """
    assert job.array is not None
    if not (alive or job.array.at_once):
        return "spec.parallelism is 0"
    opens = job.suspended and number in _current(job.array)
    return "" if alive or opens else without_pod(number)


def without_pod(number: int) -> str:
    """The reason for which an index without a pod waits."""
    return f"its controller has not created the pod of index {number}"


def _outcome(job: JobRecord, number: int, pods: Iterable[PodRecord]) -> JobOutcome | None:
    assert job.array is not None
    # The status of the Job follows its pods later. The controller of another kind can create a pod again that succeeded.
    known = list(pods)
    succeeded = any(pod.phase is PodPhase.SUCCEEDED for pod in known)
    final = not job.array.podset and succeeded and not any(pod.alive for pod in known)
    if final or number in job.array.succeeded:
        return JobOutcome.SUCCEEDED
    return JobOutcome.FAILED if number in job.array.failed else job.outcome


def runs_again(job: JobRecord, number: int, pods: Iterable[PodRecord]) -> bool:
    """Whether an index that had ended is one of the job again, and has a pod: its user made the job smaller, and larger again."""
    assert job.array is not None
    return number in _current(job.array) and any(pod.alive for pod in pods)


def numbers(job: JobRecord) -> Iterator[int]:
    """The indexes with separate gangs that the job controller runs now or next.

    Of an array, the first ones that have not ended, up to ``parallelism``; of an elastic Job, all above its gang.
    """
    assert job.array is not None
    return _numbers(job.array)


def _numbers(array: ArrayStatus) -> Iterator[int]:
    ended = array.succeeded | array.failed
    left = (n for n in range(array.base, array.completions) if n not in ended)
    return left if array.base else islice(left, array.at_once)


@lru_cache(maxsize=1 << 8)
def _current(array: ArrayStatus) -> frozenset[int]:
    """The same as a set, which all indexes of the array share."""
    return frozenset(_numbers(array))


def growth_of(job: JobRecord) -> Growth | None:
    """Set for an index of an elastic Job."""
    index = job.index
    return Growth(index.job_uid, index.number) if index is not None and index.grown else None


def has_begun(array: JobRecord) -> bool:
    """Whether any index of an array has started. The gates of the array hold no later index then."""
    assert array.array is not None
    return not array.suspended or bool(array.array.succeeded or array.array.failed)


def object_of(job: JobRecord) -> JobRecord:
    """The record under the name and uid of its object: that of the Job for an index, otherwise its own.

    The object of a pod that was added to an elastic Job is the object of its gang: Events and references name it, and no write changes it.
    """
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
