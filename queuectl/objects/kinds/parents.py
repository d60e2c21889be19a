"""Jobs whose pod templates are in an object that their controller creates: the records of both become that of the gang."""

from __future__ import annotations

from collections.abc import Iterable

from queuectl.domain.job_records import JobRecord
from queuectl.objects import keys
from queuectl.objects.kinds.trainjob import composed


class Parents:
    """The jobs of :data:`~queuectl.objects.keys.PARENT_KINDS`, as their own objects have them, and their children."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobRecord] = {}
        self._children: dict[str, JobRecord] = {}  # by the uid of the job

    def put(self, job: JobRecord) -> JobRecord:
        """The record of a job with the request of its child, if there is one. Other jobs stay as they are."""
        if job.kind not in keys.PARENT_KINDS:
            return job
        self._jobs[job.uid] = job
        return composed(job, self._children.get(job.uid))

    def put_child(self, child: JobRecord) -> JobRecord | None:
        """The new record of its job; None if the job is not known, or the child is older than the known one."""
        known = self._children.get(child.parent)
        if known is not None and known.version >= child.version:
            return None
        self._children[child.parent] = child
        job = self._jobs.get(child.parent)
        return composed(job, child) if job is not None else None

    def remove_child(self, uid: str) -> JobRecord | None:
        """The new record of its job, if that is known. A job that runs keeps its request: its controller creates the child again."""
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
        return [child.uid for child in self._children.values() if child.kind == kind]
