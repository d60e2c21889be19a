"""Workloads that consist of pods alone, by name, and the requests of the pods of a job.

Webhooks can change pods, so that they request more than planned when they are created. The next start is planned with their requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from queuectl.domain.admission import PodAdmission, created, refusal
from queuectl.domain.containment import never_contained
from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.domain.ledger import Entry, State
from queuectl.domain.quantity import Resources
from queuectl.domain.request_rules import PodNeeds
from queuectl.domain.workload import PodSet
from queuectl.objects.kinds.groups import (
    GroupKey,
    PodGroup,
    SetGroup,
    key_of,
    new_group,
    set_key,
)
from queuectl.objects.kinds.leaderworkerset import KIND as SET
from queuectl.objects.kinds.pods import POD, POD_GROUP
from queuectl.objects.kinds.roster import member_of

# ---- Workloads by name


class PodGroups:
    """All workloads that consist of pods, by key."""

    def __init__(self) -> None:
        self._groups: dict[GroupKey, PodGroup] = {}
        self._keys: dict[str, GroupKey] = {}  # by uid of the pod
        self._known: dict[GroupKey, str] = {}  # uids of the ledger
        self._changed: dict[GroupKey, dict[str, None]] = {}  # uids of their pods that changed
        self._reseated: set[GroupKey] = set()  # those whose pods all can have changed
        self._put_off: dict[GroupKey, None] = {}  # those whose records could not be kept
        self._shown: dict[GroupKey, JobRecord] = {}  # the last records
        self.sets: dict[str, JobRecord] = {}  # by uid
        self._sets: dict[tuple[str, str], JobRecord] = {}  # by namespace and name
        self._of_set: dict[tuple[str, str], set[GroupKey]] = {}

    def put_set(self, record: JobRecord) -> None:
        """A set of groups that is new or has changed."""
        before = self.sets.get(record.uid)
        self.sets[record.uid] = record
        unchanged = before and replace(before, version=record.version, status=record.status)
        if unchanged != record:
            self._adopt((record.namespace, record.name), record)

    def remove_set(self, uid: str) -> None:
        """A set that no longer exists, by uid; without effect for other objects."""
        record = self.sets.pop(uid, None)
        if record is None:
            return
        name = (record.namespace, record.name)
        known = self._sets.get(name)
        if known is not None and known.uid == uid:
            self._adopt(name, None)

    def _adopt(self, name: tuple[str, str], record: JobRecord | None) -> None:
        before = self._sets.get(name)
        if record is None:
            del self._sets[name]
        else:
            self._sets[name] = record
        differs, reseats = (of(before) != of(record) for of in (_shared_by_groups, _podset_names))
        for key in self._of_set.get(name, ()):
            group = self._groups[key]
            assert isinstance(group, SetGroup)
            requested = group.requested
            group.belong(record)
            if differs or group.requested is not requested:
                self._changed.setdefault(key, {})
            if reseats:
                self._reseated.add(key)

    def _mark(self, key: GroupKey) -> None:
        self._changed.setdefault(key, {})
        self._reseated.add(key)

    def _group(self, key: GroupKey) -> PodGroup:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = new_group(key, self._sets)
            if key.kind == SET:
                self._of_set.setdefault(set_key(key), set()).add(key)
        return group

    def _drop(self, key: GroupKey) -> None:
        del self._groups[key]
        if key.kind == SET:
            groups = self._of_set[set_key(key)]
            groups.discard(key)
            if not groups:
                del self._of_set[set_key(key)]

    def put(self, pod: PodRecord) -> bool:
        """A pod that is new or has changed. Returns whether it differs from before in more than its version and its labels."""
        if member_of(pod).gone:
            self.remove(pod.uid)
            return True
        key = key_of(pod)
        if self._keys.get(pod.uid, key) != key:
            self.remove(pod.uid)
        self._keys[pod.uid] = key
        group = self._group(key)
        before = group.get(pod.uid)
        group.put(pod)
        self._changed.setdefault(key, {})[pod.uid] = None
        return before is None or not _same(before, pod)

    def remove(self, uid: str) -> None:
        """A pod that no longer exists, by uid; without effect for other pods."""
        key = self._keys.pop(uid, None)
        if key is None:
            return
        self._groups[key].pop(uid)
        self._changed.setdefault(key, {}).pop(uid, None)

    def recognize(
        self, entries: Iterable[Entry], *, read: bool = False, all_of_them: bool = False
    ) -> None:
        """See :meth:`queuectl.state.mirror.Mirror.recognize`."""
        left = set(self._known) if all_of_them else set()
        for entry in entries:
            if entry.kind not in (POD_GROUP, SET):
                continue
            key = GroupKey(entry.kind, entry.namespace, entry.name)
            if entry.state is not State.FINISHED:
                left.discard(key)
                self._learn(key, entry, read)
            elif self._known.get(key) == entry.uid:
                left.add(key)
        for key in left:
            del self._known[key]
            if key in self._groups:
                self._mark(key)
                self._groups[key].end()

    def _learn(self, key: GroupKey, entry: Entry, read: bool) -> None:
        group = self._group(key)
        if group.follow(entry):
            self._mark(key)
        if read:
            group.entry, group.started = entry, {}
        if read or group.uid != entry.uid:
            group.become(entry.uid)
            self._mark(key)
        self._known[key] = entry.uid

    def changed(self) -> list[GroupKey]:
        """The groups that changed since they were shown, and those that were put off."""
        return list({**self._changed, **self._put_off})

    def settle(
        self, key: GroupKey
    ) -> tuple[JobRecord | None, JobRecord | None, Mapping[str, PodRecord]]:
        """The last record of a group that was shown, its record now, and its changed pods with their owner and podset.

        The group counts as changed until its record is shown.
        """
        group, before = self._groups[key], self._shown.get(key)
        record = None
        if self.remains(key):
            record = group.assemble(in_ledger=self._known.get(key, "") == group.uid != "")
        all_again = key in self._put_off or (before.uid if before else "") != group.uid
        return before, record, self._owned(key, all_again=all_again)

    def show(self, key: GroupKey, record: JobRecord | None) -> None:
        """Everything that follows from a group has its current record."""
        self._settle_marks(key)
        self._put_off.pop(key, None)
        if record is None:
            self._shown.pop(key, None)
        else:
            self._shown[key] = record
        if not self.remains(key):
            self._drop(key)

    def put_off(self, key: GroupKey) -> Mapping[str, PodRecord]:
        """Leave a group as it was last shown, until it is settled. Returns its changed pods with their owner and podset as far as known."""
        owned: Mapping[str, PodRecord] = {}
        if self._groups[key].uid:
            try:
                owned = self._owned(key)
            except Exception as error:  # a pod has no podset in the group
                if never_contained(error):
                    raise
                owned = self._owned(key, seat=lambda pod: pod)
        self._settle_marks(key)
        self._put_off[key] = None
        return owned

    def remains(self, key: GroupKey) -> bool:
        """Whether the group has a pod, or an entry in the ledger."""
        group = self._groups[key]
        return bool(group.pods or group.other_pods) or key in self._known

    def hides(self, entry: Entry) -> bool:
        """Whether the workload of an entry was put off."""
        name = entry.uid if entry.kind == POD else entry.name
        return GroupKey(entry.kind, entry.namespace, name) in self._put_off

    def version(self, key: GroupKey) -> tuple[int, int]:
        """Of the pods of a group, and of its set: another one means that they have changed."""
        group = self._groups[key]
        parent = group.parent if isinstance(group, SetGroup) else None
        return group.version, parent.version if parent is not None else 0

    def _owned(
        self,
        key: GroupKey,
        *,
        all_again: bool = False,
        seat: Callable[[PodRecord], PodRecord] | None = None,
    ) -> Mapping[str, PodRecord]:
        """Its changed pods, or all of them. ``seat``: gives a pod its podset; None = that in the group."""
        group, uids = self._groups[key], self._changed.get(key, {})
        seat = seat or group.seated
        everyone = all_again or key in self._reseated
        pods = group.pods if everyone else filter(None, map(group.pods.get, uids))
        return {pod.uid: replace(seat(pod), owner=group.uid, owner_kind=key.kind) for pod in pods}

    def _settle_marks(self, key: GroupKey) -> None:
        self._changed.pop(key, None)
        self._reseated.discard(key)


def _shared_by_groups(record: JobRecord | None) -> JobRecord | None:
    """The part of the record of a set that the records of its groups have."""
    return replace(record, version=0, status="", groups=None) if record is not None else None


def _podset_names(record: JobRecord | None) -> tuple[str, ...] | None:
    """A set, with the names from which the podsets of pods follow."""
    return (record.uid, *(each.name for each in record.podsets)) if record is not None else None


def _same(before: PodRecord, pod: PodRecord) -> bool:
    """Whether two states of a pod differ only in their versions and labels."""
    known, member = member_of(before), member_of(pod)
    job = replace(
        member.job, version=known.job.version, face=known.job.face, labels=known.job.labels
    )
    return before == replace(pod, version=before.version, member=replace(member, job=job))


# ---- Requests of the pods of a job


def same_templates(left: JobRecord, right: JobRecord) -> bool:
    """Whether the containers of two records of a job are equal in each podset."""
    mine, theirs = ([(p.name, p.needs) for p in job.podsets] for job in (left, right))
    return mine == theirs


def made_as(job: JobRecord, old: JobRecord) -> JobRecord:
    """The job with the pods of an older record of it."""
    if job.podsets == old.podsets:
        return job
    were = {podset.name: podset for podset in old.podsets}
    podsets = tuple(
        replace(now, shape=was.shape, limits=was.limits, overhead=was.overhead)
        if (was := were.get(now.name)) is not None
        else now
        for now in job.podsets
    )
    return replace(job, podsets=podsets)


def no_less(job: JobRecord, pods: Iterable[PodRecord]) -> JobRecord:
    """The job with the requests of its released pods where those are larger."""
    placed = [pod for pod in pods if pod.attempt == job.attempt and not (pod.gated or pod.terminal)]

    def raised(podset: PodSet) -> PodSet:
        requests = podset.shape.requests
        for pod in placed:
            if pod.podset == podset.name:
                requests = requests.at_least(pod.requests)
        if requests == podset.shape.requests:
            return podset
        return replace(podset, shape=replace(podset.shape, requests=requests))

    return replace(job, podsets=tuple(map(raised, job.podsets)))


_CHECKED: Final = ("Job", "Workload")
"""Kinds of which the API server has checked the requests: of the second, those of its job."""


def names_class(job: JobRecord, names: Collection[str]) -> bool:
    """Whether a pod of the job has one of these RuntimeClasses."""
    return any(podset.needs and podset.needs.runtime_class in names for podset in job.podsets)


def under(job: JobRecord, around: PodAdmission) -> JobRecord:
    """The job with the pods that the API server creates for it; the same object if admission changes nothing."""
    podsets = tuple(created(podset, around) for podset in job.podsets)
    forbidden = refusal(
        podsets, job.namespace, around, exist=job.of_pods, accepted=job.kind in _CHECKED
    )
    if podsets == job.podsets and forbidden == job.forbidden:
        return job
    return replace(job, podsets=podsets, forbidden=forbidden)


# ---- Pods that are larger than planned


class LargerPods:
    """The largest requests of the gated pods of each job. It forgets those of an earlier template."""

    def __init__(self) -> None:
        self._larger: dict[str, dict[str, tuple[PodNeeds, Resources]]] = {}  # by job and podset

    def see(self, pod: PodRecord, job: JobRecord) -> bool:
        """Remember a gated pod if it is larger than its podset, and return whether it is. Pods that are a job themselves have no template."""
        podset = next((each for each in job.podsets if each.name == pod.podset), None)
        if podset is None or podset.needs is None or (job.of_pods and job.index is None):
            return False
        # The template of an array does not change, and its pods have attempt 0 until they are released.
        outdated = pod.attempt < job.attempt and job.index is None
        if outdated or pod.requests.fits(podset.shape.requests):
            return False
        requests = pod.requests.at_least(self._of(job, podset) or podset.larger_requests)
        self._larger.setdefault(_template(job), {})[podset.name] = (podset.needs, requests)
        return True

    def _of(self, job: JobRecord, podset: PodSet) -> Resources | None:
        needs, requests = self._larger.get(_template(job), {}).get(podset.name, (None, None))
        return requests if needs == podset.needs else None

    def applied(self, job: JobRecord) -> JobRecord:
        """The job with the requests that its earlier pods had; the same object if none was larger."""
        if not self._larger.get(_template(job)):
            return job
        podsets = ((podset, self._of(job, podset)) for podset in job.podsets)
        return replace(
            job,
            podsets=tuple(
                replace(podset, larger_requests=larger) if larger else podset
                for podset, larger in podsets
            ),
        )

    def forget(self, uid: str) -> None:
        """Forget a deleted job."""
        self._larger.pop(uid, None)


def _template(job: JobRecord) -> str:
    """The uid of the object with the template, which the indexes of an array share."""
    return job.index.job_uid if job.index is not None else job.uid
