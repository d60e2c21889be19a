"""The jobs that depend on others, so that they are observed when these change."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from queuectl.domain.arrays import has_begun, object_of
from queuectl.domain.gates import JobFound, JobName, Standing, dependencies, statuses_of
from queuectl.domain.job_records import JobRecord
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror


class Dependents:
    """An index of the jobs of the mirror by name, and of the jobs that depend on each name.

    It follows from the mirror and the ledger, so a new leader has it after its first observation, which is of all jobs.
    """

    def __init__(self, mirror: Mirror, ledger: Ledger) -> None:
        self._mirror = mirror
        self._ledger = ledger
        self._names: dict[str, JobName] = {}  # by uid
        self._uids: dict[JobName, str] = {}  # if a job was created again: the last observed
        self._waiting: dict[JobName, set[str]] = {}  # uids of the jobs that depend on a name
        self._depends: dict[str, set[JobName]] = {}  # the same the other way round

    def of(self, touched: Collection[str], *, indirect: bool) -> set[str]:
        """The uids of the jobs that depend on changed ones.

        Args:
            touched: uids of changed and deleted jobs, new ones too.
            indirect: those that depend on a dependent too: a new or edited job can close or open a cycle.
        """
        names = [name for uid in touched if (name := self._indexed(uid)) is not None]
        found: set[str] = set()
        if not self._waiting:
            return found
        while names:
            for uid in self._waiting.get(names.pop(), set()) - found:
                found.add(uid)
                names.extend([self._names[uid]] if indirect else [])
        return found

    def statuses(self, job: JobRecord, gates: tuple[str, ...]) -> Mapping[str, Standing]:
        """Of those of these gates of a job that are dependencies, by gate."""
        name = JobName.of(job.kind, job.namespace, object_of(job).name)
        return statuses_of(name, gates, self._find)

    def _indexed(self, uid: str) -> JobName | None:
        """The name of a job, after its index is up to date; None for one that was never there."""
        job = self._mirror.jobs.get(uid) or self._mirror.arrays.get(uid)
        if job is None:
            self._depend(uid, set())
            name = self._names.pop(uid, None)
            if name is not None and self._uids.get(name) == uid:
                del self._uids[name]
            return name
        name = JobName.of(job.kind, job.namespace, job.name)
        self._names[uid] = name
        self._uids[name] = uid
        gates = dependencies(job.gates) if job.gates and job.outcome is None else ()
        self._depend(uid, {JobName.of(one.kind, job.namespace, one.name) for one in gates})
        return name

    def _depend(self, uid: str, names: set[JobName]) -> None:
        before = self._depends.pop(uid, set())
        if names:
            self._depends[uid] = names
        for name in before - names:
            self._waiting[name].discard(uid)
            if not self._waiting[name]:
                del self._waiting[name]
        for name in names - before:
            self._waiting.setdefault(name, set()).add(uid)

    def _find(self, name: JobName) -> JobFound | None:
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
