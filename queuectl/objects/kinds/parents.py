"""Jobs whose pods depend on objects that their controller creates: the records of both become that of the gang."""

from __future__ import annotations

from collections.abc import Iterable

from queuectl.domain.job_records import JobRecord
from queuectl.objects import keys
from queuectl.objects.kinds.description import BATCH_JOB, JOB_SET
from queuectl.objects.kinds.jobset import without_ended
from queuectl.objects.kinds.trainjob import composed

_KINDS = keys.PARENT_KINDS | {JOB_SET.kind}


class Parents:
    """JobSets, and the jobs of :data:`~queuectl.objects.keys.PARENT_KINDS`, as their own objects have them, and their children."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobRecord] = {}
        self._children: dict[str, JobRecord] = {}  # JobSets, by the uid of the job
        self._begun: dict[
            str, dict[str, JobRecord]
        ] = {}  # uid of a JobSet to its Jobs with ended pods

    def put(self, job: JobRecord) -> JobRecord:
        """The record of a job with what its children state. Other jobs stay as they are."""
        if job.kind not in _KINDS:
            return job
        self._jobs[job.uid] = job
        return self._whole(job)

    def put_child(self, child: JobRecord) -> JobRecord | None:
        """The new record of its job; None if the job is not known, or the child does not change it."""
        if child.kind == BATCH_JOB.kind:
            siblings, key = self._begun.setdefault(child.parent, {}), child.uid
        else:
            siblings, key = self._children, child.parent
        known = siblings.get(key)
        if known is not None and known.version >= child.version:
            return None
        siblings[key] = child
        return self._of(child.parent)

    def remove_child(self, uid: str) -> JobRecord | None:
        """The new record of its job. A job that runs keeps its request: its controller creates its JobSet again."""
        for jobset, jobs in self._begun.items():
            if jobs.pop(uid, None) is not None:
                if not jobs:
                    del self._begun[jobset]
                return self._of(jobset)
        parent = next((one.parent for one in self._children.values() if one.uid == uid), "")
        job = self._jobs.get(parent)
        if job is not None and not job.suspended:
            return None
        self._children.pop(parent, None)
        return job

    def drop(self, uid: str) -> None:
        """Forget a job that does not exist any more."""
        self._jobs.pop(uid, None)
        self._children.pop(uid, None)

    def children(self, kind: str) -> Iterable[str]:
        """The uids of the children of a kind."""
        jobs = (job for jobs in self._begun.values() for job in jobs.values())
        return [one.uid for one in (*self._children.values(), *jobs) if one.kind == kind]

    def _of(self, uid: str) -> JobRecord | None:
        """The record of a job, also by the uid of its JobSet; None if it is not known, or is elastic."""
        uid = next((one.parent for one in self._children.values() if one.uid == uid), uid)
        job = self._jobs.get(uid)
        return self._whole(job) if job is not None and job.array is None else None

    def _whole(self, job: JobRecord) -> JobRecord:
        jobset = job if job.kind == JOB_SET.kind else self._children.get(job.uid)
        if jobset is None:
            return job
        jobset = without_ended(jobset, self._begun.get(jobset.uid, {}).values())
        return jobset if job.kind == JOB_SET.kind else composed(job, jobset)
