"""The arrays and elastic Jobs of the mirror, and the records of their indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from queuectl.domain.arrays import gang_uid, index_of, index_uid, numbers, parted
from queuectl.domain.job_records import JobRecord, OwnerKey
from queuectl.domain.ledger import Entry, State
from queuectl.domain.pod_records import PodRecord

Changed = Iterator[tuple[JobRecord | None, JobRecord]]
"""Records of indexes that are new or changed, each with the one before."""


class Arrays:
    """Arrays and elastic Jobs by uid. The mirror has their indexes as jobs, and the pods of an index under its uid."""

    def __init__(self, pods_of: Callable[[OwnerKey], Iterable[PodRecord]]) -> None:
        """``pods_of``: the pods of an index in the mirror."""
        self._pods_of = pods_of
        self.jobs: dict[str, JobRecord] = {}
        self._made: dict[str, dict[int, JobRecord]] = {}  # by uid of the Job
        self._known: dict[str, set[int]] = {}  # likewise, with an entry in the ledger

    def owner(self, pod: PodRecord) -> PodRecord:
        """The pod with its index as owner, if it is one of an index; else as it is.

        The template of an elastic Job has the attempt of its gang. A pod above the gang has an attempt only once it was released.
        """
        job = self.jobs.get(pod.owner)
        if job is None or job.array is None or pod.owned_by != _key(job):
            return pod
        uid = gang_uid(job, pod)
        if uid == job.uid:
            return pod
        own = not job.array.base or pod.workload == uid
        return replace(pod, owner=uid, attempt=pod.attempt if own else 0)

    def recognize(self, entries: Iterable[Entry]) -> Changed:
        """The records of indexes of elastic Jobs that entries of the ledger are about.

        The parallelism of such a Job can be less than it was. An index keeps its entry, and waits.
        """
        for entry in entries:
            index = parted(entry.uid)
            if index is None:
                continue
            uid, number = index
            known = self._known.setdefault(uid, set())
            if entry.state is State.FINISHED:
                known.discard(number)
            elif number not in known:
                known.add(number)
                job = self.jobs.get(uid)
                if job is not None and _keeps(job):
                    yield from self._put(job, number)

    def put(self, job: JobRecord) -> Changed:
        """Keep a newer record of an array or elastic Job."""
        assert job.array is not None
        self.jobs[job.uid] = job
        made = self._made.setdefault(job.uid, {})
        ended = {n for n in job.array.succeeded | job.array.failed if n >= job.array.base}
        known = self._known.get(job.uid, set()) if _keeps(job) else set()
        for number in sorted({*made, *numbers(job), *ended, *known}):
            before = made.get(number)
            if before is None or before.outcome is None:
                yield from self._put(job, number)

    def pod_changed(self, owner: str) -> Changed:
        """The record of the index with this uid after one of its pods changed."""
        index = parted(owner)
        job = self.jobs.get(index[0]) if index is not None else None
        if job is not None and index is not None:
            yield from self._put(job, index[1])

    def _put(self, job: JobRecord, number: int) -> Changed:
        key = _key(job)._replace(uid=index_uid(job.uid, number))
        made = self._made[job.uid]
        before = made.get(number)
        record = index_of(job, number, self._pods_of(key))
        if record != before:
            made[number] = record
            yield before, record

    def drop(self, uid: str) -> Iterator[str]:
        """Forget an array or elastic Job. Yields the uids of its indexes."""
        self.jobs.pop(uid, None)
        for number in self._made.pop(uid, {}):
            yield index_uid(uid, number)


def _keeps(job: JobRecord) -> bool:
    """Whether it keeps the indexes that it once had: the parallelism of an elastic Job changes while it runs."""
    return job.array is not None and job.array.base > 0


def _key(job: JobRecord) -> OwnerKey:
    return OwnerKey(job.kind, job.namespace, job.uid)
