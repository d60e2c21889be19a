"""Jobs whose pods depend on objects that their controller creates: the records of both become that of the gang."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from queuectl.domain.jobs import JobRecord
from queuectl.objects import keys
from queuectl.objects.kinds.description import BATCH_JOB, JOB_SET
from queuectl.objects.kinds.jobset import ended_in, without_ended
from queuectl.objects.kinds.trainjob import composed

_KINDS = keys.PARENT_KINDS | {JOB_SET.kind}

_Key = tuple[str, str]
"""Namespace and uid of a job. A child in another namespace can name any uid."""


class Parents:
    """JobSets, and the jobs of :data:`~queuectl.objects.keys.PARENT_KINDS`, as their own objects have them, and their children."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobRecord] = {}
        self._jobsets: dict[str, JobRecord] = {}  # those that are children, by their own uid
        self._children: dict[_Key, JobRecord] = {}  # the newest of them, by the job
        self._deleted: set[str] = set()  # uids of these whose request their job keeps
        self._begun: dict[str, JobRecord] = {}  # Jobs of JobSets with ended pods
        # JobSet to the ended pods of these Jobs, by podset.
        self._ended = defaultdict[_Key, Counter[str]](Counter)
        # The same of Jobs that are complete, until the status of their JobSet counts them.
        self._completed = defaultdict[_Key, Counter[str]](Counter)

    def put(self, job: JobRecord) -> JobRecord:
        """The record of a job with what its children state. Other jobs stay as they are."""
        if job.kind not in _KINDS:
            return job
        self._jobs[job.uid] = job
        self._completed.pop(_key(job), None)
        return self._whole(job)

    def put_child(self, child: JobRecord) -> JobRecord | None:
        """The new record of its job; None if the job is not known, or the child does not change it."""
        of_jobset = child.kind == BATCH_JOB.kind
        known = (self._begun if of_jobset else self._jobsets).get(child.uid)
        if known is not None and known.version >= child.version:
            return None
        parent = _parent(child)
        if of_jobset:
            if known is not None:
                self._forget(known)
            self._begun[child.uid] = child
            self._ended[parent].update(ended_in(child))
        else:
            newest = self._children.get(parent)
            if newest is not None and newest.version >= child.version:
                return None
            if newest is not None and newest.uid in self._deleted:
                self._drop_child(newest)
            self._children[parent] = self._jobsets[child.uid] = child
            self._completed.pop(_key(child), None)
        return self._of(parent)

    def queues(self, child: JobRecord) -> bool:
        """Whether the job of a child is known, and names a queue."""
        job = self._job(_parent(child))
        return job is not None and job.queue is not None

    def remove_child(self, uid: str, version: int = 0) -> JobRecord | None:
        """The new record of its job. A job that runs keeps its request: its controller creates its JobSet again.

        A Job of a JobSet is removed when it is complete. In most cases, the watch shows that before it shows the status of the JobSet.

        ``version``: at which it was removed; 0 = unknown.
        """
        begun = self._begun.pop(uid, None)
        if begun is not None:
            self._forget(begun)
            parent = _parent(begun)
            jobset = self._job(parent) or self._child(parent)
            if jobset is not None and not jobset.suspended and jobset.version < version:
                self._completed[parent].update(ended_in(begun))
            return self._of(parent)
        child = self._jobsets.get(uid)
        if child is None:
            return None
        parent = _parent(child)
        newest = self._children.get(parent) is child
        job = self._job(parent)
        if newest and job is not None and not job.suspended:
            self._deleted.add(uid)
            return None
        del self._jobsets[uid]
        if not newest:
            return None
        del self._children[parent]
        return job

    def drop(self, uid: str) -> None:
        """Forget a job that no longer exists, or is in no queue. Its JobSet can exist."""
        job = self._jobs.pop(uid, None)
        if job is None:
            return
        self._completed.pop(_key(job), None)
        child = self._children.get(_key(job))
        if child is not None and child.uid in self._deleted:
            self._drop_child(child)

    def _drop_child(self, child: JobRecord) -> None:
        """Forget a JobSet that was deleted."""
        del self._children[_parent(child)], self._jobsets[child.uid]
        self._completed.pop(_key(child), None)
        self._deleted.discard(child.uid)

    def children(self, kind: str) -> Iterable[str]:
        """The uids of the children of a kind."""
        known = (*self._jobsets.values(), *self._begun.values())
        return [child.uid for child in known if child.kind == kind]

    def _forget(self, job: JobRecord) -> None:
        """The ended pods of a Job no longer count."""
        ended = self._ended[_parent(job)]
        ended.subtract(ended_in(job))
        if not any(ended.values()):
            del self._ended[_parent(job)]

    def _job(self, key: _Key) -> JobRecord | None:
        job = self._jobs.get(key[1])
        return job if job is not None and _key(job) == key else None

    def _child(self, key: _Key) -> JobRecord | None:
        """The JobSet with this key that is a child."""
        jobset = self._jobsets.get(key[1])
        return jobset if jobset is not None and _key(jobset) == key else None

    def _of(self, key: _Key) -> JobRecord | None:
        """The record of a job, also by the key of its JobSet; None if it is not known, or is elastic."""
        jobset = self._child(key)
        job = self._job(_parent(jobset) if jobset is not None else key)
        return self._whole(job) if job is not None and job.array is None else None

    def _whole(self, job: JobRecord) -> JobRecord:
        jobset = job if job.kind == JOB_SET.kind else self._children.get(_key(job))
        if jobset is None:
            return job
        key = _key(jobset)
        ended = self._ended.get(key, Counter()) + self._completed.get(key, Counter())
        jobset = without_ended(jobset, ended)
        return jobset if job.kind == JOB_SET.kind else composed(job, jobset)


def _key(job: JobRecord) -> _Key:
    return job.namespace, job.uid


def _parent(child: JobRecord) -> _Key:
    return child.namespace, child.parent
