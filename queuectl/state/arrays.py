"""Arrays and elastic Jobs: their indexes as records, and the pods that wait for lower ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from queuectl.domain.arrays import (
    differing,
    gang_uid,
    index_of,
    index_uid,
    numbers,
    parted,
    runs_again,
    without_pod,
)
from queuectl.domain.jobs import ArrayIndex, JobRecord, OwnerKey, PodRecord
from queuectl.domain.ledger import Entry, State
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Pending
from queuectl.state.ledger import Ledger

# ---- Records of the indexes

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
        """The pod with its index as owner, if it is one of an index; otherwise as it is.

        The template of an elastic Job has the attempt of its gang. A pod above the gang has an attempt only once it was released.
        """
        job = self.jobs.get(pod.owner)
        if job is None or job.array is None or pod.owned_by != OwnerKey.of(job):
            return pod
        uid = gang_uid(job, pod)
        if uid == job.uid:
            return pod
        own = not job.array.base or pod.workload == uid
        return replace(pod, owner=uid, attempt=pod.attempt if own else 0)

    def recognize(self, entries: Iterable[Entry], *, all_of_them: bool = False) -> Changed:
        """The records of indexes that entries of the ledger are about.

        The parallelism of a Job can be less than it was. An index keeps its entry, and waits.

        ``all_of_them``: no other entries exist.
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
        """Keep a newer record of an array or elastic Job, and make those of its indexes that differ from the earlier ones."""
        assert job.array is not None
        older = self.jobs.get(job.uid)
        self.jobs[job.uid] = job
        made, known = self._made.setdefault(job.uid, {}), self._known.get(job.uid, ())
        current, ended = set(numbers(job)), job.array.succeeded | job.array.failed
        changed = differing(job, older) if older is not None else None
        if changed is None:
            changed = ended.union(made, current, known)
        for number in sorted(changed):
            if number < job.array.base and number not in made and number not in known:
                continue
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
        key = OwnerKey.of(job)._replace(uid=index_uid(job.uid, number))
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

    def indexes(self, uid: str) -> Iterator[str]:
        """The uids of the indexes of an array or elastic Job; none for another uid."""
        for number in self._made.get(uid, ()):
            yield index_uid(uid, number)

    def drop(self, uid: str) -> Iterator[str]:
        """Forget an array or elastic Job. Yields the uids of its indexes."""
        self.jobs.pop(uid, None)
        for number in self._made.pop(uid, {}):
            yield index_uid(uid, number)


# ---- Indexes in a snapshot

_STALLED: Final = (State.EVICTING, State.BACKOFF, State.HELD, State.DEACTIVATED)


RETURN_SECONDS: Final = 60.0
"""Seconds for which a gang that started before keeps its place in the queue while its pods are to be created again."""


def stalled_ranks(ledger: Ledger) -> Mapping[str, Entry]:
    """By uid of an elastic gang, the lowest rank that leaves or is not planned now: the gang itself, or an index above it.

    Other gangs are there too, under their own uids.
    """
    found: dict[str, Entry] = {}
    for entry in ledger.entries(*_STALLED):
        index = parted(entry.uid)
        base = index[0] if index is not None else entry.uid
        if base not in found or entry.uid < found[base].uid:
            found[base] = entry
    return found


def after_lower_ranks(pending: Pending, stalled: Mapping[str, Entry]) -> Pending:
    """A pod of an elastic gang waits until its gang and the ranks below it run or are pending, so that its gang has no gaps."""
    growth = pending.workload.growth
    lower = stalled.get(growth.base) if growth is not None else None
    if lower is None or pending.blocked is not None or lower.uid > pending.workload.uid:
        return pending
    if growth is not None and lower.uid == growth.base:
        text = f"its gang {lower.ref} is {lower.state}"
        return replace(pending, blocked=Reason(Code.WAITING_FOR_PODS, text))
    text = f"its gang grows in the order of ranks: {lower.ref} is {lower.state}"
    return replace(pending, blocked=Reason(Code.WAITING_IN_ORDER, text, {"behind": lower.ref}))


def opened_by_one(
    pending: Iterable[Pending], jobs: Mapping[str, JobRecord], ledger: Ledger
) -> tuple[Pending, ...]:
    """The same gangs. Of the indexes of an array that is suspended, one is planned, and resumes it; the others wait for their pods.

    Each index could resume it, and each start is a write to the same object. The index that is planned is the one with the fewest limits.
    """
    gangs = list(pending)
    starting = (parted(one.uid) for one in ledger.entries(State.STARTING))
    begun = {one[0] for one in starting if one is not None}
    openers: dict[str, list[tuple[bool, bool, int, int, float, int, int]]] = {}
    for place, one in enumerate(gangs):
        index = _opener(one, jobs)
        if index is not None:
            limits = (one.lease is None, one.borrows_at is not None, len(one.excluded))
            order = (*limits, -one.workload.priority, one.workload.queued_at, index.number, place)
            openers.setdefault(index.job_uid, []).append(order)
    for uid, found in openers.items():
        first = None if uid in begun else min(found)
        for order in found:
            if order != first:
                number, place = order[-2:]
                gangs[place] = _without_pod(gangs[place], number, ledger)
    return tuple(gangs)


def _opener(pending: Pending, jobs: Mapping[str, JobRecord]) -> ArrayIndex | None:
    """The index whose start would resume its array; None for all other gangs."""
    job = jobs.get(pending.workload.uid) if pending.blocked is None else None
    index = job.index if job is not None else None
    return None if index is None or index.started or index.grown else index


def _without_pod(pending: Pending, number: int, ledger: Ledger) -> Pending:
    entry = ledger.get(pending.workload.uid)
    returns = entry.since + RETURN_SECONDS if entry is not None and entry.attempt else None
    blocked = Reason(Code.WAITING_FOR_PODS, without_pod(number))
    return replace(pending, blocked=blocked, returns_by=returns)


def in_rank_order(pending: Iterable[Pending]) -> tuple[Pending, ...]:
    """The same gangs. A pod of an elastic gang is not queued before the pods of lower ranks, which can be newer."""
    gangs = list(pending)
    ranks = sorted(
        (growth.base, growth.rank, place)
        for place, one in enumerate(gangs)
        if (growth := one.workload.growth) is not None
    )
    latest: dict[str, float] = {}
    for base, _, place in ranks:
        workload = gangs[place].workload
        queued_at = max(workload.queued_at, latest.get(base, workload.queued_at))
        if queued_at > workload.queued_at:
            gangs[place] = replace(gangs[place], workload=replace(workload, queued_at=queued_at))
        latest[base] = queued_at
    return tuple(gangs)
