"""The jobs that depend on others, so that they are observed when these change."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from queuectl.domain.arrays import has_begun, object_of
from queuectl.domain.dependency_graph import DependencyGraph, JobFound
from queuectl.domain.gates import JobName, Standing
from queuectl.domain.jobs import JobRecord
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror


class Dependents:
    """An index of the jobs of the mirror by name, and the graph of their dependencies.

    It follows from the mirror and the ledger, so a new leader has it after its first observation, which is of all jobs.
    """

    def __init__(self, mirror: Mirror, ledger: Ledger) -> None:
        self._mirror = mirror
        self._ledger = ledger
        self._names: dict[str, JobName] = {}  # by uid
        self._uids: dict[JobName, str] = {}  # if a job was created again: the last observed
        self._graph = DependencyGraph()

    def of(self, touched: Collection[str]) -> set[str]:
        """The uids of the jobs that depend on changed ones: directly, or in a cycle that begins or ends with the change.

        ``touched``: uids of changed and deleted jobs, new ones too.
        """
        names = {name: None for uid in touched if (name := self._indexed(uid)) is not None}
        affected = self._put(names)
        # The ledger has removed satisfied dependencies since their last observation.
        affected |= self._put(dict.fromkeys(affected))
        return {uid for name in affected if (uid := self._uids.get(name)) is not None}

    def statuses(self, job: JobRecord, gates: tuple[str, ...]) -> Mapping[str, Standing]:
        """Of those of these gates of a job that are dependencies, by gate."""
        name = JobName.of(job.kind, job.namespace, object_of(job).name)
        return self._graph.statuses(name, gates)

    def _put(self, names: Collection[JobName]) -> set[JobName]:
        return self._graph.put({name: self._found(name) for name in names})

    def _indexed(self, uid: str) -> JobName | None:
        """The name of a job, after the index by name is up to date; None for one that was never there."""
        job = self._mirror.jobs.get(uid) or self._mirror.arrays.get(uid)
        if job is None:
            name = self._names.pop(uid, None)
            if name is not None and self._uids.get(name) == uid:
                del self._uids[name]
            return name
        name = JobName.of(job.kind, job.namespace, job.name)
        self._names[uid] = name
        self._uids[name] = uid
        return name

    def _found(self, name: JobName) -> JobFound | None:
        uid = self._uids.get(name)
        if uid is None:
            return None
        job = self._mirror.jobs.get(uid) or self._mirror.arrays.get(uid)
        if job is None:
            return None
        if not job.queues:
            return JobFound(job.outcome, () if has_begun(job) else job.gates)
        entry = self._ledger.get(job.uid)
        return JobFound(job.outcome, job.gates if entry is None else entry.gates)
