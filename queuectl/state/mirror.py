"""The copy of the cluster that the watch keeps. An older record never replaces a newer one. It holds only fields with a reader."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain, islice
from operator import attrgetter
from typing import Final, TypeVar, assert_never

from queuectl.devices.gpu_sizes import GpuSizes
from queuectl.domain.admission import AdmissionObjects
from queuectl.domain.arrays import parted
from queuectl.domain.containment import Boundary, Containment, entering, never_contained
from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.jobs import (
    JobOwner,
    JobRecord,
    OwnerKey,
    PodPhase,
    PodRecord,
    PriorAdmission,
    PriorAdmissions,
)
from queuectl.domain.ledger import Entry
from queuectl.domain.provisioning import ProvisioningRecord
from queuectl.domain.queues import QueueConfig
from queuectl.domain.records import (
    ConfigurationRecord,
    Deleted,
    Delta,
    LimitRangeRecord,
    ListCompleted,
    NamespaceRecord,
    NodeRecord,
    PriorityClassRecord,
    Record,
    ResourceQuotaRecord,
    RuntimeClassRecord,
    Unreadable,
    Upserted,
    key_of,
)
from queuectl.domain.rules import AdmissionPlugin
from queuectl.objects.kinds import KINDS, JobKinds, job_resources
from queuectl.objects.kinds.groups import GroupKey
from queuectl.objects.kinds.parents import Parents
from queuectl.objects.kubernetes.provisioning import REQUESTS as PROVISIONING_REQUESTS
from queuectl.state import devices as device_objects
from queuectl.state.admission import AdmissionMirror
from queuectl.state.arrays import Arrays
from queuectl.state.devices import DeviceMirror
from queuectl.state.given_records import (
    LIMIT_RANGES,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
    RUNTIME_CLASSES,
    GivenRecord,
    GivenRecords,
    namespace_of,
    unit_key,
)
from queuectl.state.kueue_pods import KueuePods
from queuectl.state.nodes import NodeTable
from queuectl.state.owned_pods import OwnedPods
from queuectl.state.pod_claims import JobsWithClaims, all_resolved, claiming
from queuectl.state.pod_groups import (
    LargerPods,
    PodGroups,
    made_as,
    names_class,
    no_less,
    same_templates,
    under,
)
from queuectl.state.provisioning import ProvisioningRequests

_Named = TypeVar("_Named", NamespaceRecord, PriorityClassRecord)
MOST_ENDED: Final = 10_000  # ends of deleted jobs that are kept, for a process that reads no ledger
# The fields of a job's record on which a plan depends.
asked_of: Final = attrgetter(
    *(f.name for f in fields(JobRecord) if f.name not in ("version", "status", "face"))
)
# All fields of a pod's record that count when two are compared, except the version.
_state_of: Final = attrgetter(
    *(f.name for f in fields(PodRecord) if f.compare and f.name != "version")
)


def _as_far_as_known(unreadable: Unreadable, old: JobRecord) -> JobRecord:
    """The record of an unreadable job. If it is suspended, it is stopped when its pods have ended, so that it can be held and evicted."""
    if unreadable.suspended is None:
        return replace(old, version=unreadable.version)
    drained = unreadable.suspended or old.drained
    return replace(old, version=unreadable.version, suspended=unreadable.suspended, drained=drained)


def _closed(unreadable: Unreadable, old: NodeRecord | None) -> NodeRecord:
    """The record of an unreadable node: pods on it continue to run, and it takes no new ones."""
    record = old or NodeRecord(Node(unreadable.key), 0)
    node = replace(record.node, unschedulable=True)
    return replace(
        record, node=node, version=max(unreadable.version, record.version + 1), cordoned=True
    )


def _raised(old: ResourceQuotaRecord, new: ResourceQuotaRecord) -> bool:
    """Whether a changed ResourceQuota can allow gangs that it did not allow before. More use, from new pods, cannot."""
    before, after = old.allowance, new.allowance
    if (before.best_effort, before.terminating) != (after.best_effort, after.terminating):
        return True
    left = {limit.key: limit.hard - limit.used for limit in after.limits}
    return any(
        limit.key not in left or left[limit.key] > limit.hard - limit.used
        for limit in before.limits
    )


def _requests_of(uid: str) -> str:
    """The unit of containment in which the requests of a job are computed."""
    return f"requests of {uid}"


def _keeps(table: dict[str, _Named], record: _Named) -> bool:
    """Keep a record, unless a newer one is known. Returns whether it differs in more than its version."""
    old = table.get(record.name)
    if old is not None and old.version >= record.version:
        return False
    table[record.name] = record
    return record != old


def _indexes(job: JobRecord) -> tuple[bool, bool]:
    """Whether it is a gang, and whether its indexes are."""
    return job.queues, job.array is not None


def _with_pods_of(job: JobRecord, old: JobRecord) -> JobRecord:
    """The job with the gangs that its pods belong to."""
    return replace(
        job,
        array=old.array,
        podsets=old.podsets,
        expected=old.expected,
        late=old.late,
        unborn=old.unborn,
        kept_podsets=old.kept_podsets,
    )


def _base(job: JobRecord) -> int:
    return job.array.base if job.array is not None else 0


class Mirror:
    """Records by key, pods by owner, and marks for changes. The reader of a mark clears it.

    Attributes:
        touched: uids of jobs with a change of their record or of a pod.
        edited: uids of new jobs, and of jobs with another request than before.
        moved_pods: uids of pods that changed or were deleted.
        kinds: the job kinds.
        unschedulable: owners of pods that cannot start now, to observe them again as time passes. An observation that finds no such pod
            removes its owner.
        planning_changed: a node, its conditions, a namespace, priority class, ResourceQuota, device or unmanaged pod changed, or an ended pod was deleted, so plans can differ.
        devices: the objects of dynamic resource allocation.
        provisioning: the requests for nodes that queuectl made.
        ended: the last records of jobs that had ended when they were deleted, by uid, until :meth:`forget_ended`: the ledger may not have
            their end yet.
        unreadable: the objects that exist and that no reader can decode, by uid; those whose keys are names, by resource and name.
        containment: of the process. It has the records that cannot be kept.
        generation: grows each time the mirror was built again from its records, after an error while it changed. Everything that was derived
            from it before is then to be derived again.
    """

    def __init__(
        self,
        job_resources: Mapping[str, str],
        kinds: JobKinds = KINDS,
        containment: Containment | None = None,
        most_asked: int | None = None,
    ) -> None:
        """Make an empty one.

        Args:
            job_resources: plural resource name -> kind, for each watched job kind.
            kinds: how they are read and written.
            containment: of the process; None = its own.
            most_asked: jobs whose requests are computed again in one batch if an object from which they follow changes; None = all.
        """
        self._most_asked = most_asked
        self._kinds = dict(job_resources)
        self._plurals = {kind: resource for resource, kind in job_resources.items()}
        self.kinds = kinds
        self.containment = containment or Containment(time.time)
        self.generation = 0
        self._given = GivenRecords(self._plurals, self.containment)
        self._prior = PriorAdmissions()
        self._plugins: frozenset[AdmissionPlugin] = frozenset()
        self._expected: set[str] = set()
        self.ended: dict[str, JobRecord] = {}
        self._empty()

    def _empty(self) -> None:
        """Begin without records."""
        self.nodes = NodeTable()
        self.unreadable: dict[str, Unreadable] = {}
        self.jobs: dict[str, JobRecord] = {}
        self._by_namespace: dict[str, set[str]] = {}  # uids of the jobs
        self._claiming = JobsWithClaims()
        self._appeared: dict[str, int] = {}  # of jobs: the version of the first observation
        self.pods: dict[str, PodRecord] = {}
        self.namespaces: dict[str, NamespaceRecord] = {}
        self.priority_classes: dict[str, PriorityClassRecord] = {}
        self.resource_quotas: dict[str, ResourceQuotaRecord] = {}
        self._found_running: set[str] = set()
        self._admission = AdmissionMirror(self._plugins)
        # Uids of jobs whose requests are to be computed again, in order, and of those for which this failed.
        self._outdated: dict[str, None] = {}
        self._not_asked: set[str] = set()
        self._larger = LargerPods()
        self._groups = PodGroups()
        self._parents = Parents()
        # Children with their own queue, by the namespace and uid of their parent.
        self._own_queues: dict[tuple[str, str], str] = {}
        self._kueue_pods = KueuePods(self.kinds)
        self._owned = OwnedPods()
        self.touched: set[str] = set()
        self.moved_pods: set[str] = set()
        self.planning_changed = True
        self.edited: set[str] = set()
        self.unschedulable: set[str] = set()
        self._newer: set[str] = set()  # jobs with an object that is newer, and as before otherwise
        self.devices = DeviceMirror(self._in_queue)
        self.provisioning = ProvisioningRequests()
        self._gpus: GpuSizes | None = None
        self._arrays = Arrays(lambda key: self._owned.of(key).values())
        # Jobs that became a gang, an array or an elastic Job while pods exist, by uid.
        self._become: dict[str, JobRecord] = {}

    @classmethod
    def of(
        cls,
        kinds: JobKinds,
        containment: Containment | None = None,
        most_asked: int | None = None,
    ) -> Mirror:
        """A mirror of all objects of these kinds; ``most_asked`` as in the constructor."""
        return cls(job_resources(kinds), kinds, containment, most_asked)

    @property
    def arrays(self) -> Mapping[str, JobRecord]:
        """The arrays and elastic Jobs by uid. Their indexes are among the jobs, and elastic Jobs themselves."""
        return self._arrays.jobs

    def indexes(self, uid: str) -> Iterator[str]:
        """The uids of the indexes of an array or elastic Job; none for another uid."""
        return self._arrays.indexes(uid)

    @property
    def admission(self) -> AdmissionObjects:
        """The changes that the API server makes to new pods."""
        return self._admission.objects

    def job(self, uid: str) -> JobRecord | None:
        """The current record of a job, with the version of its object, on which writes are conditioned; None if it does not exist.

        ``jobs`` is another dictionary after the copy was built again. In it, indexes have an earlier version of their Job.
        """
        job = self.jobs.get(uid)
        if job is None or job.index is None:
            return job
        return replace(job, version=self.arrays[job.index.job_uid].version)

    def gpus(self, config: QueueConfig) -> GpuSizes:
        """The GPUs of pods and nodes; the same object until nodes, devices or the configuration change."""
        devices = self.devices.inventory(self.fleet)
        self._gpus = GpuSizes.of(self.fleet, devices, config, self._gpus)
        return self._gpus

    def sized(self, job: JobRecord, config: QueueConfig) -> JobRecord:
        """The job with the sizes of its pods in its ClusterQueue; the same object if their resources have the size as a name."""
        queue = config.cluster_queue_of(job.namespace, job.queue)
        name = queue.name if queue is not None else ""
        claims = self.devices.named_claims
        podsets = self.gpus(config).sized(job.podsets, job.namespace, name, claims)
        return replace(job, podsets=podsets) if podsets != job.podsets else job

    @property
    def resources(self) -> set[str]:
        """Plural names of all resources in this copy."""
        namespaced = {PODS, RESOURCE_QUOTAS, LIMIT_RANGES}
        own = {NODES, NAMESPACES, PRIORITY_CLASSES, RUNTIME_CLASSES, *namespaced, *self._kinds}
        return own | device_objects.RESOURCES | {PROVISIONING_REQUESTS}

    def apply(self, deltas: Sequence[Delta]) -> set[str]:
        """Apply a batch of watch events.

        Returns:
            The uids of the jobs that it touches, which are in ``touched`` too, and of those with an object that is newer and otherwise
            as before: a write that met an older one can succeed now.
        """
        earlier, self.touched = self.touched, set()
        tried = [self._given.if_kept(delta) for delta in deltas]
        before = [self._given.put(delta) for delta in tried]
        try:
            for delta in tried:
                self._apply(delta)
                if isinstance(delta, Upserted) and not self.containment.empty:
                    self.containment.passed(Boundary.RECORD, self._given.unit_of(delta.record))
            self._derive()
        except Exception as error:
            if never_contained(error):
                raise
            self._build_again(one for one in before if isinstance(one, Upserted))
        self._given.forget_last(tried)
        fresh, newer = self.touched, self._newer
        earlier |= fresh  # in place: a batch of one event costs the same after many others
        self.touched, self._newer = earlier, set()
        return fresh | newer

    def forget_marks(self) -> None:
        """Clear the marks of objects, for a reader that begins with all jobs and pods."""
        self.touched.clear()
        self.edited.clear()
        self.moved_pods.clear()
        self.unschedulable &= self.jobs.keys()

    def expect_again(self) -> None:
        """Replace the records of all jobs and pods by those of the next lists: another watch can decode the same versions differently."""
        self._expected = self._given.keys(PODS, *self._kinds)

    def _replaces(self, record: JobRecord | PodRecord, old: JobRecord | PodRecord) -> bool:
        """Whether a record is newer than the one that is kept, or is its expected replacement."""
        if record.version == old.version and record.uid in self._expected:
            self._expected.discard(record.uid)
            return True
        return record.version > old.version

    def _apply(self, delta: Delta) -> None:
        match delta:
            case Upserted():
                if self.containment.guards(Boundary.RECORD):
                    unit, namespace = self._given.unit_of(delta.record), namespace_of(delta.record)
                    entering(Boundary.RECORD, unit, namespace=namespace)
                self._upsert(delta.record)
            case Unreadable():
                self._set_aside(delta)
            case Deleted():
                self._delete(delta.resource, delta.key, delta.version)
            case ListCompleted():
                unreadable = {
                    one.key for one in self.unreadable.values() if one.resource == delta.resource
                }
                for key in (self._keys(delta.resource) | unreadable) - delta.keys:
                    self._delete(delta.resource, key)
            case _:
                assert_never(delta)

    def _derive(self) -> None:
        """Assemble the records that follow from others."""
        self._admission_changed()
        self._assemble_groups()
        self._devices_changed()
        self._ask_outdated(self._most_asked)

    def _build_again(self, before: Iterable[Upserted]) -> None:
        """Derive everything from the records again: an error can leave a change half made.

        Records that cannot be kept count as unreadable objects.

        Args:
            before: the records that those of this batch replaced. An object that is unreadable now keeps its own.
        """
        self.generation += 1
        given = self._given
        earlier = {(given.resource_of(one.record), key_of(one.record)): one for one in before}
        while failed := self._derived_again():
            for resource, key, delta in failed:
                given.cannot_be_kept(resource, key, delta, earlier)
        self.touched |= self._appeared.keys()

    def _derived_again(self) -> list[GivenRecord]:
        """Derive everything from all records. Returns those that cannot be kept; then the result is to be dropped."""
        before = (self.nodes, self._appeared, self.edited)
        moved = self.moved_pods | self.pods.keys()
        self._empty()
        nodes, self._appeared, self.edited = before
        self.moved_pods = moved
        self.nodes.mark_as(nodes)
        failed = [given for given in self._given if not self._kept(given[2], given[1])]
        if not failed:
            with self.containment.unit(Boundary.TASK, "groups and devices"):
                self._derive()
        return failed

    def _kept(self, delta: Upserted | Unreadable, key: str) -> bool:
        """Apply a change. An error sets the object aside."""
        try:
            self._apply(delta)
        except Exception as error:  # noqa: BLE001 - contained
            if isinstance(delta, Upserted):
                resource, version = self._given.resource_of(delta.record), delta.record.version
                self.containment.inputs.put(Boundary.RECORD, unit_key(resource, key), delta.record)
            else:
                resource, version = delta.resource, delta.version
            unit, ref = unit_key(resource, key), f"{resource}/{key}"
            self.containment.failed(Boundary.RECORD, unit, error, ref, version=version)
            return False
        return True

    def _set_aside(self, unreadable: Unreadable) -> None:
        """An object that exists and cannot be decoded keeps its last record, and holds what is known of it.

        A pod fills its node, a node takes no new pods, and a slice or a claim offers no devices.
        """
        resource = unreadable.resource
        unit = unit_key(resource, unreadable.key)
        if self.unreadable.get(unit) == unreadable:
            return  # another list of the same objects
        if resource == PODS:
            self._upsert_pod(self._unreadable_pod(unreadable))
        elif resource == NODES:
            old = self.nodes.get(unreadable.key)
            self.planning_changed |= self.nodes.put(_closed(unreadable, old))
        elif resource in self._kinds:
            job = self.jobs.get(unreadable.key)
            if job is not None and unreadable.version > job.version:
                self.jobs[job.uid] = _as_far_as_known(unreadable, job)
            self.touched.add(unreadable.key)
        elif resource in device_objects.RESOURCES:
            self._delete(resource, unreadable.key)
        self.unreadable[unit] = unreadable

    def _is_readable(self, resource: str, key: str) -> None:
        """Forget that an object was unreadable: it can be decoded, or does not exist.

        Its record replaces the one that it kept, also with the same version.
        """
        unit = unit_key(resource, key)
        known = self.unreadable.get(unit)
        if known is None or known.resource != resource:
            return
        del self.unreadable[unit]
        if resource == PODS and key in self.pods:
            self.pods[key] = replace(self.pods[key], version=0)
        elif resource == NODES and key in self.nodes:
            self.nodes.expect_again(key)
        elif key in self.jobs:
            self.jobs[key] = replace(self.jobs[key], version=0)

    def _unreadable_pod(self, unreadable: Unreadable) -> PodRecord:
        known = self.pods.get(unreadable.key)
        pod = known or PodRecord(unreadable.namespace, unreadable.name, unreadable.key, 0)
        ended = pod.phase if pod.terminal else PodPhase.FAILED
        return replace(
            pod,
            version=max(unreadable.version, pod.version + 1),
            node=unreadable.node or pod.node,
            phase=ended if unreadable.terminal else pod.phase,
            terminating=unreadable.terminating,
        )

    def hides(self, entry: Entry) -> bool:
        """Whether the workload of an entry exists, but its record cannot be made and never was."""
        if entry.uid in self.jobs:
            return False
        return entry.uid in self.unreadable or self._groups.hides(entry)

    def recognize(
        self, entries: Iterable[Entry], *, read: bool = False, all_of_them: bool = False
    ) -> None:
        """Take over the uids of groups of pods, and the indexes of arrays and elastic Jobs, from entries of the ledger.

        Args:
            entries: new or changed.
            read: they are from the database, not from this process.
            all_of_them: groups without an entry here have ended.
        """
        given = tuple(entries)
        self._groups.recognize(given, read=read, all_of_them=all_of_them)
        self._assemble_groups()
        self._keep_indexes(self._arrays.recognize(given, all_of_them=all_of_them))

    def _assemble_groups(self) -> None:
        """The records of the groups whose pods changed. An error sets one group aside: its workload stays as it was."""
        for key in self._groups.changed():
            unit, version = "/".join(key), self._groups.version(key)
            waits = self.containment.waits(Boundary.RECORD, unit, version, key.namespace)
            if waits is None or not self._groups.remains(key):
                entering(Boundary.RECORD, unit, unit, key.namespace)
                with self.containment.unit(
                    Boundary.RECORD, unit, unit, namespace=key.namespace, version=version
                ):
                    self._assemble_group(key)
                    continue
            self._own(self._groups.put_off(key))
        entering(Boundary.TASK, "groups and devices")

    def _assemble_group(self, key: GroupKey) -> None:
        before, record, pods = self._groups.settle(key)
        if before is not None and (record is None or record.uid != before.uid):
            self._forget_job(before.uid)
        differs = self._own(pods)
        if record is not None:
            self._appeared.setdefault(record.uid, record.version)
            known = self.jobs.get(record.uid)
            if differs or before is None or known is None or asked_of(before) != asked_of(record):
                self._keep_job(record, known)
            else:
                self.jobs[record.uid] = replace(
                    known, version=record.version, status=record.status, face=record.face
                )
                self._newer.add(record.uid)
        self._groups.show(key, record)

    def _own(self, pods: Mapping[str, PodRecord]) -> bool:
        """Keep these pods of a group with their owner. Returns whether any differs by it."""
        differing = [pod for uid, pod in pods.items() if self.pods[uid] != pod]
        for pod in differing:
            self._index(self.pods[pod.uid], pod)
        return bool(differing)

    def take_over(self, admissions: Iterable[PriorAdmission]) -> None:
        """Add the admissions of a Kueue, for jobs without an entry in the ledger."""
        self._prior = PriorAdmissions(admissions)

    def prior_of(self, job: JobRecord) -> PriorAdmission | None:
        """The admission of a job by a Kueue that ran before."""
        return self._prior.of(job)

    def appeared(self, uid: str) -> int:
        """The API server's revision of a job's first observation; 0 for a job that does not exist."""
        return self._appeared.get(uid, 0)

    def trust_running(self) -> None:
        """Count jobs that already ran at their first observation with at least the requests of their pods.

        Another process started them, under LimitRanges that can have changed. Call it when all objects are listed.
        """
        for uid in self._found_running & self.jobs.keys():
            job = self.jobs[uid]
            if not job.suspended:
                self._put_job(no_less(job, self.pods_of(job)), job)
        self._found_running.clear()

    def pods_of(self, owner: JobOwner) -> Iterable[PodRecord]:
        """Pods in its namespace whose controller reference has its kind and uid, as :meth:`OwnedPods.belonging` has them."""
        return self._owned.belonging(OwnerKey.of(owner))

    @property
    def fleet(self) -> Fleet:
        """All nodes, as :class:`NodeTable` has them."""
        return self.nodes.fleet

    def mark_unhealthy(self, evidence: Mapping[str, str]) -> bool:
        """Take these nodes out of placement, and no others. Returns whether a node changes.

        ``evidence``: by node name.
        """
        changed = self.nodes.mark_unhealthy(evidence)
        self.planning_changed |= changed
        return changed

    def mark_interrupted(self, conditions: Mapping[str, str], taints: Mapping[str, str]) -> bool:
        """The same for nodes of which a condition announces the end. ``taints``: that announce it."""
        changed = self.nodes.mark_interrupted(conditions, taints)
        self.planning_changed |= changed
        return changed

    def _keys(self, resource: str) -> set[str]:
        if resource in self._kinds:
            kind = self._kinds[resource]
            tops = (*self.arrays.values(), *self._groups.sets.values())
            jobs = (job for job in self.jobs.values() if not job.of_pods)
            own = {job.uid for job in (*jobs, *tops) if job.kind == kind}
            return own.union(self._parents.children(kind))
        if resource in device_objects.RESOURCES:
            return self.devices.keys(resource)
        if resource == PROVISIONING_REQUESTS:
            return self.provisioning.uids
        tables: dict[str, Mapping[str, Record]] = {
            NODES: self.nodes,
            PODS: self.pods,
            NAMESPACES: self.namespaces,
            PRIORITY_CLASSES: self.priority_classes,
            RESOURCE_QUOTAS: self.resource_quotas,
            LIMIT_RANGES: self._admission.limit_ranges,
            RUNTIME_CLASSES: self._admission.runtime_classes,
        }
        return set(tables[resource])

    def _upsert(self, record: Record) -> None:
        if self.unreadable:
            self._is_readable(self._given.resource_of(record), key_of(record))
        match record:
            case PodRecord():
                self._upsert_pod(record)
            case JobRecord():
                self._upsert_object(record)
            case NodeRecord():
                self.planning_changed |= self.nodes.put(record)
            case NamespaceRecord() | PriorityClassRecord():
                self._keep_named(record)
            case ResourceQuotaRecord():
                self._keep_quota(record)
            case LimitRangeRecord():
                self._admission.put_range(record)
            case RuntimeClassRecord():
                self._admission.put_class(record)
            case ProvisioningRecord():
                if self.provisioning.put(record):
                    self.touched.add(record.gang)
            case ConfigurationRecord():
                raise TypeError("objects of configuration are followed, and not mirrored")
            case _:
                self.devices.upsert(record)

    def _keep_quota(self, record: ResourceQuotaRecord) -> None:
        old = self.resource_quotas.get(record.uid)
        if old is None or record.version > old.version:
            self.resource_quotas[record.uid] = record
            self.planning_changed |= old is None or _raised(old, record)

    def _upsert_object(self, record: JobRecord) -> None:
        """A job, a set of gangs, or the object with the pod templates of another job."""
        if record.parent and (record.queue is None or self._parents.queues(record)):
            self._put_child(record)
            return
        tables = (self.jobs, self.arrays, self._groups.sets)
        old = next((table[record.uid] for table in tables if record.uid in table), None)
        appeared = self._appeared.setdefault(record.uid, record.version)
        if old is None or self._replaces(record, old):
            job = self._parents.put(record)
            self._become.pop(job.uid, None)
            if old is not None and _indexes(old) != _indexes(job):
                # A gang has become an array, or an array a gang. Its pods first end as what they are.
                if self._has_pods(old):
                    self._become[job.uid] = record
                    job = _with_pods_of(job, old)
                else:
                    self._forget_job(job.uid)
                    job, old = self._parents.put(record), None
                    self._appeared[job.uid] = appeared
            self._upsert_job(job, old)
            if record.parent:
                self._own_queues[record.namespace, record.parent] = record.uid
            child = self.jobs.get(self._own_queues.get((record.namespace, record.uid), ""))
            if child is not None and self._parents.queues(child):
                self._put_child(child)

    def _has_pods(self, job: JobRecord) -> bool:
        """Whether pods of the job, or of its indexes, have not ended."""
        key = OwnerKey.of(job)
        keys = (key, *(key._replace(uid=uid) for uid in self._arrays.indexes(job.uid)))
        return any(not pod.terminal for each in keys for pod in self._owned.of(each).values())

    def _become_when_ended(self, owner: str) -> None:
        """A job whose last pod has ended becomes what its object states."""
        index = parted(owner)
        uid = owner if index is None else index[0]
        record = self._become.get(uid)
        old = self.jobs.get(uid) or self.arrays.get(uid)
        if record is not None and old is not None and not self._has_pods(old):
            appeared = self._appeared[uid]
            self._forget_job(uid)
            self._appeared[uid] = appeared
            self._upsert_job(self._parents.put(record), None)

    def _put_child(self, record: JobRecord) -> None:
        """The object with the pod templates of another job. Its own queue label, which Kueue gives it, does not count."""
        if record.uid in self.jobs:
            self._forget_job(record.uid)
        self._keep_parent(self._parents.put_child(record))

    def _keep_parent(self, job: JobRecord | None) -> None:
        """The record of a job whose child has changed, if there is one."""
        if job is not None:
            self._keep_job(job, self.jobs.get(job.uid))

    def _keep_named(self, record: NamespaceRecord | PriorityClassRecord) -> None:
        if isinstance(record, PriorityClassRecord):
            self.planning_changed |= _keeps(self.priority_classes, record)
        elif _keeps(self.namespaces, record):
            self._admission.put_namespace(record)
            self.planning_changed = True

    def _upsert_job(self, job: JobRecord, old: JobRecord | None) -> None:
        if job.groups is not None:
            self._groups.put_set(job)
            return
        if job.queues:
            self._keep_job(job, old)
        if job.array is not None:
            self.touched.add(job.uid)  # other jobs can depend on it
            self._keep_indexes(self._arrays.put(job))
        if old is None or _base(old) != _base(job):
            for pod in list(self._owned.of(OwnerKey.of(job)).values()):
                self._index(pod, self._arrays.owner(pod))
        for uid in self._kueue_pods.put_job(job):
            pod = self.pods[uid]
            self._index(pod, self._arrays.owner(self._kueue_pods.put(pod)))

    def _keep_indexes(self, changed: Iterable[tuple[JobRecord | None, JobRecord]]) -> None:
        """Keep the records of indexes. One that differs only in the version of its Job stays: :meth:`job` has the newest."""
        for before, record in changed:
            known = self.jobs.get(record.uid)
            self._appeared.setdefault(record.uid, record.version)
            if before is None or known is None or asked_of(before) != asked_of(record):
                self._keep_job(record, known)

    def _devices_changed(self) -> None:
        """Pass on the marks of the changes of devices and claims."""
        devices = self.devices
        self.moved_pods |= devices.moved
        devices.moved.clear()
        self.planning_changed |= devices.plans_differ
        devices.plans_differ = False
        if not (devices.classes_named or devices.requests_changed):
            return
        every, devices.classes_named = devices.classes_named, False
        changed, devices.requests_changed = devices.requests_changed, set()
        uids = self._claiming.uids if every else chain(*map(self._claiming.of, changed))
        self._created_differently(set(uids))

    def _in_queue(self, pod: str) -> bool:
        record = self.pods.get(pod)
        return record is not None and record.owner in self.jobs

    def _keep_job(self, job: JobRecord, old: JobRecord | None) -> None:
        """The job with the requests of its future pods. The pods of a resumed job exist and keep their requests."""
        if old is None and not job.suspended:
            self._found_running.add(job.uid)
        if (
            old is not None
            and not job.suspended
            and (not old.suspended or same_templates(job, old))
        ):
            job = made_as(job, old)
        else:
            job = self._asking(job)
        self._put_job(job, old)

    def _asking(self, job: JobRecord) -> JobRecord:
        """The job with the requests that its pods will have."""
        seen = self._larger.applied(job)
        return claiming(under(seen, self.admission.of(job.namespace)), self.devices)

    def _compare_size(self, pod: PodRecord, job: JobRecord) -> None:
        """A gated pod that is larger than planned shows how large those of the other indexes of its array will be."""
        if self._larger.see(pod, job) and job.index is not None:
            for uid in self._arrays.indexes(job.index.job_uid):
                if uid in self.jobs and self.jobs[uid].suspended:
                    self._ask_again(self.jobs[uid])

    def _ask_again(self, job: JobRecord) -> None:
        """Compute the requests of an unstarted job again. One that asks for the same as before is not observed again."""
        asking = self._asking(job)
        if asking != job:
            self._put_job(asking, job)

    def _put_job(self, job: JobRecord, old: JobRecord | None) -> None:
        self.jobs[job.uid] = job
        self._by_namespace.setdefault(job.namespace, set()).add(job.uid)
        self._claiming.put(job)
        self.touched.add(job.uid)
        if old is None or asked_of(old) != asked_of(job):
            self.edited.add(job.uid)
            if not job.suspended and (old is None or old.podsets != job.podsets):
                # Whether its pods hold what its slots request.
                self.moved_pods.update(self._owned.of(OwnerKey.of(job)))

    def checkpoint_of(self, job: JobRecord, attempt: int) -> float | None:
        """The time of the gang's last checkpoint, as :meth:`OwnedPods.checkpoint` has it."""
        return self._owned.checkpoint(OwnerKey.of(job), attempt, job.checkpoint_at)

    def requests(self) -> tuple[Record, ...]:
        """The objects other than a job from which the request of its pods and its priority follow. Namespaces are among them, because they select nodes."""
        admission = self._admission
        ranges, classes = admission.limit_ranges.values(), admission.runtime_classes.values()
        named: tuple[Record, ...] = (*self.namespaces.values(), *self.priority_classes.values())
        return (*named, *ranges, *classes, *self.devices.requests())

    def _admission_changed(self) -> None:
        if not (self._admission.changed or self._not_asked):
            return
        namespaces, classes = self._admission.settle()
        uids = {uid for name in namespaces for uid in self._by_namespace.get(name, ())}
        if classes:
            uids.update(uid for uid, job in self.jobs.items() if names_class(job, classes))
        self._created_differently(uids | {uid for uid in self._not_asked if not self._waits(uid)})

    def declare(self, plugins: frozenset[AdmissionPlugin]) -> None:
        """Apply these plugins of the API server to new pods, and no others."""
        self._plugins = plugins
        if self._admission.declare(plugins):
            self._created_differently(self.jobs.keys())
            self._ask_outdated()

    @property
    def unfinished(self) -> bool:
        """Whether requests of jobs are still to be computed: an empty batch continues."""
        return bool(self._outdated)

    def _created_differently(self, uids: Iterable[str]) -> None:
        """Note that the requests of these jobs are to be computed again."""
        self._outdated.update(dict.fromkeys(uids))

    def _ask_outdated(self, most: int | None = None) -> None:
        """Compute the requests of outdated jobs again, except those whose pods exist.

        An error sets one job aside: it keeps its requests, and they are computed later.

        Args:
            most: jobs; None = all.
        """
        containment = self.containment
        for uid in list(islice(self._outdated, most)):
            del self._outdated[uid]
            job, unit = self.jobs.get(uid), _requests_of(uid)
            if job is None:
                self._not_asked.discard(uid)
                containment.passed(Boundary.RECORD, unit)
                continue
            self._not_asked.add(uid)
            if not self._waits(uid):
                ref, version = f"{job.kind}/{job.namespace}/{job.name}", job.version
                with containment.unit(
                    Boundary.RECORD, unit, ref, namespace=job.namespace, version=version
                ):
                    self._ask_unless_made(job)
                    self._not_asked.discard(uid)

    def _waits(self, uid: str) -> bool:
        """Whether the requests of a job are computed later, after an error."""
        job = self.jobs.get(uid)
        if job is None:
            return False
        unit = _requests_of(uid)
        return self.containment.waits(Boundary.RECORD, unit, job.version, job.namespace) is not None

    def _ask_unless_made(self, job: JobRecord) -> None:
        """Compute the requests of a job again, except of pods that exist.

        A list of jobs that already ran can be complete before the objects under which their pods were created.
        """
        devices_unknown = not job.suspended and not all_resolved(job)
        self.planning_changed |= devices_unknown
        if job.suspended or job.uid in self._found_running:
            self._ask_again(job)
        elif devices_unknown:
            self._put_job(claiming(job, self.devices), job)

    def _upsert_pod(self, pod: PodRecord) -> None:
        old = self.pods.get(pod.uid)
        if old is not None and not self._replaces(pod, old):
            return
        if old is not None and old.kueue_workload and old.kueue_workload != pod.kueue_workload:
            self._kueue_pods.remove(old)
        if pod.member is not None:
            differs = self._groups.put(pod)
            owned = pod if old is None else replace(old, version=pod.version, member=pod.member)
            owned = pod if differs else owned
        else:
            self._groups.remove(pod.uid)
            owned = self._arrays.owner(self._kueue_pods.put(pod))
            differs = old is None or _state_of(old) != _state_of(owned)
        if differs:
            self._index(old, owned)
        else:
            self._store(owned)
            self._newer.add(owned.owner)

    def _store(self, pod: PodRecord) -> None:
        """A pod of which only the version is newer, so that no observation of its workload differs."""
        self.pods[pod.uid] = pod
        self._owned.renew(pod)

    def _index(self, old: PodRecord | None, pod: PodRecord) -> None:
        self.pods[pod.uid] = pod
        self.moved_pods.add(pod.uid)
        if old is not None and old.owned_by != pod.owned_by:
            self._forget_owned(old)
        if pod.owner:
            self._owned.put(old, pod)
            self.touched.add(pod.owner)
            if pod.gated and pod.owner in self.jobs:
                self._compare_size(pod, self.jobs[pod.owner])
            if pod.unschedulable:
                self.unschedulable.add(pod.owner)
            self._pod_changed(pod.owner)

    def _delete(self, resource: str, key: str, version: int = 0) -> None:
        self._is_readable(resource, key)
        if resource in device_objects.RESOURCES:
            self.devices.delete(resource, key)
        elif resource == PROVISIONING_REQUESTS:
            request = self.provisioning.drop(key)
            if request is not None:
                self.touched.add(request.gang)
        elif resource == PODS:
            pod = self.pods.pop(key, None)
            self._groups.remove(key)
            if pod is not None:
                self.moved_pods.add(key)
                self._kueue_pods.remove(pod)
                self._forget_owned(pod)
        elif resource == NODES:
            self.planning_changed |= self.nodes.drop(key)
        elif resource in self._kinds:
            self._groups.remove_set(key)
            self._keep_parent(self._parents.remove_child(key, version))
            self._forget_job(key)
        elif resource in (NAMESPACES, PRIORITY_CLASSES):
            named = self.namespaces if resource == NAMESPACES else self.priority_classes
            named.pop(key, None)
            if resource == NAMESPACES:
                self._admission.drop_namespace(key)
            self.planning_changed = True
        else:
            self._delete_limit(resource, key)

    def _delete_limit(self, resource: str, key: str) -> None:
        """An object that limits or changes new pods."""
        if resource == RESOURCE_QUOTAS and self.resource_quotas.pop(key, None) is not None:
            self.planning_changed = True
        elif resource == LIMIT_RANGES:
            self._admission.drop_range(key)
        elif resource == RUNTIME_CLASSES:
            self._admission.drop_class(key)

    def forget_ended(self, uids: Iterable[str]) -> None:
        """Forget the ends of deleted jobs, which the ledger has or does not need."""
        for uid in list(uids):
            self.ended.pop(uid, None)
            self.touched.add(uid)  # jobs that depend on it no longer find it

    def _keep_end(self, job: JobRecord | None) -> None:
        if job is not None and job.outcome is not None:
            self.ended[job.uid] = job
            if len(self.ended) > MOST_ENDED:
                del self.ended[next(iter(self.ended))]

    def _forget_job(self, uid: str) -> None:
        self._keep_end(self.arrays.get(uid))
        for member in (*self._arrays.drop(uid), uid):
            job = self.jobs.pop(member, None)
            self._keep_end(job)
            self._parents.drop(member)
            self._kueue_pods.remove_job(member)
            self._appeared.pop(member, None)
            self._larger.forget(member)
            self._become.pop(member, None)
            self._claiming.drop(member)
            self._found_running.discard(member)
            if job is not None:
                self._prior.forget(job)
                self._own_queues.pop((job.namespace, job.parent), None)
                self._by_namespace[job.namespace].discard(member)
                if not self._by_namespace[job.namespace]:
                    del self._by_namespace[job.namespace]
            self.edited.discard(member)
            self.touched.add(member)

    def _forget_owned(self, pod: PodRecord) -> None:
        if not self._owned.drop(pod):
            return
        self.touched.add(pod.owner)
        job = self.jobs.get(pod.owner)
        # A job that waits can start without it.
        self.planning_changed |= (
            job is not None and job.suspended and pod.podset in job.kept_podsets
        )
        self._pod_changed(pod.owner)

    def _pod_changed(self, owner: str) -> None:
        self._keep_indexes(self._arrays.pod_changed(owner))
        if self._become:
            self._become_when_ended(owner)
