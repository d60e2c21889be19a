"""The arrays and elastic Jobs of the mirror, and the records of their indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from queuectl.domain.arrays import gang_uid, index_of, index_uid, numbers, parted, runs_again
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

    def recognize(self, entries: Iterable[Entry], *, all_of_them: bool = False) -> Changed:
        """The records of indexes that entries of the ledger are about.

        The parallelism of a Job can be less than it was. An index keeps its entry, and waits.

        ``all_of_them``: there are no other entries.
        """
        if all_of_them:
            self._known = {}
        for entry in entries:
            index = parted(entry.uid)
            if index is None:
                continue
            uid, number = index
            if entry.state is State.FINISHED:
                self._unlearn(uid, number)
            elif number not in self._known.setdefault(uid, set()):
                self._known[uid].add(number)
                job = self.jobs.get(uid)
                if job is not None:
                    yield from self._put(job, number)

    def _unlearn(self, uid: str, number: int) -> None:
        known = self._known.get(uid)
        if known is not None:
            known.discard(number)
            if not known:
                del self._known[uid]

    def put(self, job: JobRecord) -> Changed:
        """Keep a newer record of an array or elastic Job."""
        assert job.array is not None
        self.jobs[job.uid] = job
        made = self._made.setdefault(job.uid, {})
        ended = {n for n in job.array.succeeded | job.array.failed if n >= job.array.base}
        known, current = self._known.get(job.uid, ()), set(numbers(job))
        for number in sorted({*made, *current, *ended, *known}):
            before = made.get(number)
            if before is None or before.outcome is None or number in current:
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
        pods = list(self._pods_of(key))
        record = index_of(job, number, pods)
        ended = before is not None and before.outcome is not None
        if record != before and (
            not ended or record.outcome is not None or runs_again(job, number, pods)
        ):
            made[number] = record
            yield before, record

    def drop(self, uid: str) -> Iterator[str]:
        """Forget an array or elastic Job. Yields the uids of its indexes."""
        self.jobs.pop(uid, None)
        for number in self._made.pop(uid, {}):
            yield index_uid(uid, number)


def _key(job: JobRecord) -> OwnerKey:
    return OwnerKey(job.kind, job.namespace, job.uid)
