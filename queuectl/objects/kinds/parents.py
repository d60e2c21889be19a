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


class Parents:
    """JobSets, and the jobs of :data:`~queuectl.objects.keys.PARENT_KINDS`, as their own objects have them, and their children."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobRecord] = {}
        self._children: dict[str, JobRecord] = {}  # JobSets, by the uid of the job
        self._parents: dict[str, str] = {}  # uid of such a JobSet to that of the job
        self._begun: dict[str, JobRecord] = {}  # Jobs of JobSets with ended pods
        # Uid of a JobSet to the ended pods of these Jobs, by podset.
        self._ended = defaultdict[str, Counter[str]](Counter)
        # The same of Jobs that are complete, until the status of their JobSet counts them.
        self._completed = defaultdict[str, Counter[str]](Counter)

    def put(self, job: JobRecord) -> JobRecord:
        """The record of a job with what its children state. Other jobs stay as they are."""
        if job.kind not in _KINDS:
            return job
        self._jobs[job.uid] = job
        self._completed.pop(job.uid, None)
        return self._whole(job)

    def put_child(self, child: JobRecord) -> JobRecord | None:
        """The new record of its job; None if the job is not known, or the child does not change it."""
        of_jobset = child.kind == BATCH_JOB.kind
        known = self._begun.get(child.uid) if of_jobset else self._children.get(child.parent)
        if known is not None and known.version >= child.version:
            return None
        if of_jobset:
            if known is not None:
                self._forget(known)
            self._begun[child.uid] = child
            self._ended[child.parent].update(ended_in(child))
        else:
            self._children[child.parent] = child
            self._parents[child.uid] = child.parent
            self._completed.pop(child.uid, None)
        return self._of(child.parent)

    def queues(self, uid: str) -> bool:
        """Whether the job is known, and names a queue."""
        job = self._jobs.get(uid)
        return job is not None and job.queue is not None

    def remove_child(self, uid: str, version: int = 0) -> JobRecord | None:
        """The new record of its job. A job that runs keeps its request: its controller creates its JobSet again.

        A Job of a JobSet is removed when it is complete. In most cases, the watch shows that before it shows the status of the JobSet.

        ``version``: at which it was removed; 0 = unknown.
        """
        begun = self._begun.pop(uid, None)
        if begun is not None:
            self._forget(begun)
            jobset = self._jobs.get(begun.parent) or self._children.get(
                self._parents.get(begun.parent, "")
            )
            if jobset is not None and not jobset.suspended and jobset.version < version:
                self._completed[begun.parent].update(ended_in(begun))
            return self._of(begun.parent)
        parent = self._parents.get(uid, "")
        job = self._jobs.get(parent)
        if job is not None and not job.suspended:
            return None
        self._children.pop(parent, None)
        self._parents.pop(uid, None)
        return job

    def drop(self, uid: str) -> None:
        """Forget a job that no longer exists."""
        self._jobs.pop(uid, None)
        self._completed.pop(uid, None)
        child = self._children.pop(uid, None)
        if child is not None:
            self._parents.pop(child.uid, None)
            self._completed.pop(child.uid, None)

    def children(self, kind: str) -> Iterable[str]:
        """The uids of the children of a kind."""
        known = (*self._children.values(), *self._begun.values())
        return [child.uid for child in known if child.kind == kind]

    def _forget(self, job: JobRecord) -> None:
        """The ended pods of a Job no longer count."""
        ended = self._ended[job.parent]
        ended.subtract(ended_in(job))
        if not any(ended.values()):
            del self._ended[job.parent]

    def _of(self, uid: str) -> JobRecord | None:
        """The record of a job, also by the uid of its JobSet; None if it is not known, or is elastic."""
        job = self._jobs.get(self._parents.get(uid, uid))
        return self._whole(job) if job is not None and job.array is None else None

    def _whole(self, job: JobRecord) -> JobRecord:
        jobset = job if job.kind == JOB_SET.kind else self._children.get(job.uid)
        if jobset is None:
            return job
        ended = self._ended.get(jobset.uid, Counter()) + self._completed.get(jobset.uid, Counter())
        jobset = without_ended(jobset, ended)
        return jobset if job.kind == JOB_SET.kind else composed(job, jobset)
