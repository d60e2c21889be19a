"""The dependencies among the jobs of one namespace, as its users wrote them, for the page of a job.

The watch of each replica has them, so a standby shows the same as the leader. A dependency is within one namespace, and an index of a
namespace is made for a request and kept for a few seconds: to make it takes a pass over the jobs of the watch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

from queuectl.domain.arrays import object_of
from queuectl.domain.gates import Dependency, JobName, dependencies
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry
from queuectl.domain.related_jobs import PresentJob, RelatedJobs, related_jobs
from queuectl.state.mirror import Mirror

KEPT_SECONDS: Final = 5.0
_NAMESPACES: Final = 8  # whose index is kept


class _Index:
    """The jobs of a namespace by name."""

    def __init__(self, namespace: str, mirror: Mirror) -> None:
        self.made_at = time.monotonic()
        self._mirror = mirror
        self._gates: dict[JobName, tuple[str, ...]] = {}
        self._uids: dict[JobName, str] = {}
        self._dependents: dict[JobName, dict[JobName, str]] = {}
        for job in chain(mirror.jobs.values(), mirror.arrays.values()):
            if job.namespace == namespace:
                self._add(job)

    def _add(self, job: JobRecord) -> None:
        name = JobName.of(job.kind, job.namespace, job.index.job if job.index else job.name)
        if name in self._uids and job.index is not None:
            return
        self._uids[name] = job.uid
        if not job.gates:
            return
        self._gates[name] = job.gates
        for one in dependencies(job.gates):
            other = JobName.of(one.kind, job.namespace, one.name)
            self._dependents.setdefault(other, {})[name] = f"{job.kind}/{name.name}"

    def waits_for(self, name: JobName) -> Sequence[Dependency]:
        return dependencies(self._gates.get(name, ()))

    def dependents(self, name: JobName) -> Sequence[tuple[JobName, str]]:
        return list(self._dependents.get(name, {}).items())

    def job(self, name: JobName) -> JobRecord | None:
        uid = self._uids.get(name, "")
        return self._mirror.jobs.get(uid) or self._mirror.arrays.get(uid)


class DependencyIndex:
    """The indexes of one process."""

    def __init__(self, mirror: Mirror, live: Callable[[str], Entry | None]) -> None:
        """``live``: the entry of a workload that is not finished, by uid."""
        self._mirror = mirror
        self._live = live
        self._indexes: dict[str, _Index] = {}

    def near(self, entry: Entry) -> RelatedJobs | None:
        """The jobs near the job of a workload; None without any."""
        index = self._of(entry.namespace)
        own = self._mirror.jobs.get(entry.uid) or self._mirror.arrays.get(entry.uid)
        written = object_of(own).name if own is not None else entry.name
        root = JobName.of(entry.kind, entry.namespace, written)

        def observed(name: JobName) -> PresentJob | None:
            job = index.job(name)
            if job is None:
                return None
            live = self._live(job.uid)
            uid = job.uid if job.queues and job.uid in self._mirror.jobs else ""
            return PresentJob(uid, live.state if live is not None else None, job.outcome)

        def waits_for(name: JobName) -> Sequence[Dependency]:
            found = index.waits_for(name)
            return found or (dependencies(entry.gates) if name == root else ())

        title = f"{entry.kind}/{written}"
        return related_jobs(root, title, waits_for, index.dependents, observed)

    def _of(self, namespace: str) -> _Index:
        index = self._indexes.get(namespace)
        if index is None or time.monotonic() - index.made_at > KEPT_SECONDS:
            self._indexes.pop(namespace, None)
            while len(self._indexes) >= _NAMESPACES:
                self._indexes.pop(next(iter(self._indexes)))
            index = self._indexes[namespace] = _Index(namespace, self._mirror)
        return index
