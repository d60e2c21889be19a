"""The arrays of the mirror, and the records of their indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from queuectl.domain.arrays import index_of, index_uid, numbers
from queuectl.domain.records import JobRecord, OwnerKey, PodRecord


class Arrays:
    """Arrays by uid. The mirror has their indexes as jobs, and the pods of an index under its uid."""

    def __init__(self, pods_of: Callable[[OwnerKey], Iterable[PodRecord]]) -> None:
        """``pods_of``: the pods of an index in the mirror."""
        self._pods_of = pods_of
        self.jobs: dict[str, JobRecord] = {}
        self._made: dict[str, dict[int, JobRecord]] = {}  # by uid of the array

    def owner(self, pod: PodRecord) -> PodRecord:
        """The pod with its index as owner, if it is one of an array; else as it is."""
        job = self.jobs.get(pod.owner)
        if job is None or pod.rank is None or pod.owned_by != _key(job):
            return pod
        return replace(pod, owner=index_uid(job.uid, pod.rank))

    def put(self, job: JobRecord) -> Iterator[tuple[JobRecord | None, JobRecord]]:
        """Keep a newer record of an array. Yields the records of indexes that are new or changed, each with the one before."""
        assert job.array is not None
        self.jobs[job.uid] = job
        made = self._made.setdefault(job.uid, {})
        ended = job.array.succeeded | job.array.failed
        for number in sorted({*made, *numbers(job), *ended}):
            before = made.get(number)
            if before is None or before.outcome is None:
                yield from self._put(job, number)

    def pod_changed(self, owner: str) -> Iterator[tuple[JobRecord | None, JobRecord]]:
        """The record of the index with this uid, as :meth:`put` yields it, after one of its pods changed."""
        uid, _, number = owner.rpartition(".")
        job = self.jobs.get(uid)
        if job is not None:
            yield from self._put(job, int(number))

    def _put(self, job: JobRecord, number: int) -> Iterator[tuple[JobRecord | None, JobRecord]]:
        key = _key(job)._replace(uid=index_uid(job.uid, number))
        made = self._made[job.uid]
        before = made.get(number)
        record = index_of(job, number, self._pods_of(key))
        if record != before:
            made[number] = record
            yield before, record

    def drop(self, uid: str) -> Iterator[str]:
        """Forget an array. Yields the uids of its indexes."""
        self.jobs.pop(uid, None)
        for number in self._made.pop(uid, {}):
            yield index_uid(uid, number)


def _key(job: JobRecord) -> OwnerKey:
    return OwnerKey(job.kind, job.namespace, job.uid)
