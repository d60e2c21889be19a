"""The records of an input to a Snapshot, by the mirror, the ledger and the freeze of the controller."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final

from queuectl.domain.admission import wrong_requests
from queuectl.domain.arrays import gang_uid, index_uid, numbers
from queuectl.domain.containment import Containment, SetAside
from queuectl.domain.gates import DependencyStatus, held_by, remaining
from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.domain.ledger import Entry
from queuectl.domain.limits import with_classes, with_promises
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import NamespaceRecord, Record, ResourceQuotaRecord, Upserted
from queuectl.domain.snapshot import Admitted, Pending, Snapshot, SolverLimits
from queuectl.domain.words import counted
from queuectl.domain.workload import Placement, PodSet
from queuectl.lifecycle.transitions import Dependents
from queuectl.objects import keys
from queuectl.objects.documents import Document
from queuectl.objects.errors import Address
from queuectl.objects.files.pods import GivenPod, field_of_pod, workload_pod
from queuectl.objects.files.records import unseen
from queuectl.objects.files.workloads import KIND as WORKLOAD
from queuectl.objects.kinds import KINDS, JobKinds
from queuectl.objects.kubernetes.nodes import priority_values
from queuectl.offline.account import DocumentUse, Fate
from queuectl.offline.entries import SYSTEM_CLASSES, Ledgers
from queuectl.offline.fates import Fates
from queuectl.offline.gangs import (
    DocumentedGang,
    as_admitted,
    documented,
    joined,
    with_made_up,
    without_unoffered,
)
from queuectl.offline.owners import Owners, Seats, Slot
from queuectl.offline.slots import (
    MOST_STAND_INS,
    Binding,
    FreeCapacity,
    Place,
    RunningGang,
    stand_ins,
    stated_slots,
    unseen_slots,
    used,
    without_slots,
)
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.planning_state import PlanningState
from queuectl.state.usage import names_of

_TICK: Final = 1e-5
"""Seconds between gangs without a time: they queue behind all others, in the order of the file."""


@dataclass
class Parts:
    """The content of the documents, in their order.

    Attributes:
        records: of all objects except those of the other lists.
        quotas: the ResourceQuotas.
        jobs, workloads: without the relations between them.
        pods: with their documents.
        created: kind, and namespace/name, of each child of a job, to those of its controller.
        warnings: so far. More are added.
    """

    records: list[Record] = field(default_factory=list)
    quotas: list[ResourceQuotaRecord] = field(default_factory=list)
    jobs: list[DocumentedGang] = field(default_factory=list)
    workloads: list[DocumentedGang] = field(default_factory=list)
    pods: list[tuple[Document, GivenPod]] = field(default_factory=list)
    created: dict[tuple[str, str], tuple[str, str] | None] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    kinds: JobKinds = field(default_factory=lambda: KINDS)


def _raise(failure: SetAside, error: BaseException | None) -> None:
    """A plan of files sets nothing aside: it fails."""
    del failure
    if error is not None:
        raise error


class Assembly:
    """Assembles one input, once."""

    def __init__(self, parts: Parts, stated: QueueConfig, config: QueueConfig, now: float) -> None:
        """``stated``: the configuration as its documents state it. ``config``: with the overrides in force at ``now``."""
        self._parts = parts
        self._now = now
        self._stated = stated
        self._config = config
        self.mirror = Mirror.of(parts.kinds, Containment(lambda: now, report=_raise))
        self.state = PlanningState(self.mirror, idle_since=self._idle_since, quota_free=True)
        self._gangs: dict[str, DocumentedGang] = {}  # by uid of the object, or of the gang of pods
        self._documents: dict[str, Document] = {}  # by uid of pods that are parts of gangs
        self._stated_slots: dict[str, dict[Slot, int]] = {}
        self._shown: frozenset[str] = frozenset()  # uids of the jobs of which the input has pods
        self._left: dict[str, str] = {}  # uid of the object to the reason why it is not planned
        self._of_workloads: list[tuple[Document, str]] = []  # with the uids of their gangs
        self._of_pods: list[tuple[Document, PodRecord]] = []
        self._warned: set[str] = set()
        self._running_gangs: list[RunningGang] = []

    def snapshot(self) -> Snapshot:
        """The snapshot, with past use and Reservations as the state has them.

        Raises:
            DocumentError: naming file, document and field.
        """
        parts = self._parts
        self._apply(parts.records)
        gangs, names = joined(parts.jobs, parts.workloads)
        for one in parts.workloads:
            uid = names[one.record.namespace, one.record.name]
            self._of_workloads.append((one.document, uid))
        owners = Owners(gangs, names, parts.created)
        pods = [(document, pod, owners.of(pod)) for document, pod in parts.pods]
        # A job with pods was submitted. A pod of an index can wait before that.
        submitted = {
            gang.record.uid
            for _, pod, gang in pods
            if gang is not None
            and (not pod.record.gated or gang_uid(gang.record, pod.record) == gang.record.uid)
        }
        drafts = {gang.record.uid for gang in gangs if gang.draft} - submitted
        gangs = [replace(gang, draft=gang.record.uid in drafts) for gang in gangs]
        offered = frozenset(name for node in self.mirror.fleet.nodes for name in node.allocatable)
        gangs = [as_admitted(gang, self._config, offered) for gang in gangs]
        self._config = with_made_up(self._config, gangs)
        self.state.configure(with_made_up(self._stated, gangs), self._now)
        hosts = names_of(self.mirror.fleet)
        self._place = Place(
            self.mirror.fleet, hosts, self._config, self._warn, self.mirror.devices.backed
        )
        for gang in gangs:
            slots = stated_slots(gang, self._place, with_pods=bool(pods)) if gang.runs else None
            if slots is not None:
                self._stated_slots[gang.record.uid] = slots
        self._refuse_wrong_requests(gangs)
        self._warn_of_unknown_classes(gangs)
        records = self._pods(pods, offered)
        self._of_pods = [(one[0], record) for one, record in zip(pods, records, strict=True)]
        self._keep(gangs, records)
        self._load(gangs)
        return self._frozen()

    def fates(self, snapshot: Snapshot) -> dict[Address, Fate]:
        """The fates of gangs and pods in the snapshot, by the addresses of their documents."""
        fates = Fates(self.mirror, snapshot, self._given_of, self._shown, self._left)
        found = [(gang.document, fates.of_gang(gang)) for gang in self._gangs.values()]
        found += [(d, fates.of_gang(self._gangs[uid])) for d, uid in self._of_workloads]
        found += [(document, fates.of_pod(document, pod)) for document, pod in self._of_pods]
        known: dict[Address, Fate] = {}
        for document, fate in found:
            before = known.get(document.address)
            if before is None or before.use is DocumentUse.IGNORED:
                known[document.address] = fate
        return known

    def bindings(self) -> Iterator[Binding]:
        """Of the gangs in the snapshot that run and are not being evicted."""
        for one in self._running_gangs:
            if not one.gang.leaves:
                yield one.binding()

    def _refuse_wrong_requests(self, gangs: Iterable[DocumentedGang]) -> None:
        """Raise DocumentError for a job that was not created yet and whose requests the API server refuses for each pod."""
        for gang in gangs:
            if gang.workload is None:
                self._refuse_wrong(gang.document, gang.record.namespace, gang.record.podsets)

    def _refuse_wrong(self, document: Document, namespace: str, podsets: Iterable[PodSet]) -> None:
        if unseen(document):
            around = self.mirror.admission.of(namespace)
            wrong = wrong_requests(podsets, namespace, around)
            if wrong is not None:
                raise document.error("", wrong.message)

    def _warn_of_unknown_classes(self, gangs: Iterable[DocumentedGang]) -> None:
        """The pods of a running gang can hold more than their templates state."""
        for gang in gangs:
            names = {one.needs.runtime_class for one in gang.record.podsets if one.needs} - {""}
            unknown = names - self.mirror.admission.runtime_classes.keys()
            for name in sorted(unknown) if gang.runs else ():
                text = f"RuntimeClass {name} is not in the input: its overhead is not counted"
                self._warn(gang, text)

    # ---- records

    def _apply(self, records: Iterable[Record]) -> None:
        self.mirror.apply([Upserted(record) for record in records])

    def _pods(
        self,
        pods: Iterable[tuple[Document, GivenPod, DocumentedGang | None]],
        offered: Collection[str],
    ) -> list[PodRecord]:
        """The records of the pods: as workloads or parts of one, as pods of their gangs, or as other pods."""
        records: list[PodRecord] = []
        owned: dict[int, tuple[GivenPod, DocumentedGang]] = {}  # by place in the list
        for document, pod, gang in pods:
            of_workload = gang is not None and gang.workload is not None
            member = None if of_workload else workload_pod(document, pod.record, self._parts.kinds)
            if member is not None and member.member is not None:
                job = member.member.job
                made = [replace(one, path=field_of_pod(document, "")) for one in job.podsets]
                self._refuse_wrong(document, job.namespace, made)
                self._documents.setdefault(member.uid, document)
                podsets = tuple(without_unoffered(podset, offered) for podset in job.podsets)
                whole = replace(member.member, job=replace(job, podsets=podsets))
                records.append(replace(member, member=whole))
                continue
            if gang is not None:
                owned[len(records)] = pod, gang
            records.append(pod.record)
        for place, record in Seats(self._stated_slots, self._place.names).owned(owned):
            records[place] = record
        return _distinct(self._as_left(records))

    def _as_left(self, pods: Iterable[PodRecord]) -> Iterator[PodRecord]:
        """As they are once Kubernetes has deleted those of lost nodes. A node of a cluster states since when it is not ready."""
        nodes = self.mirror.fleet.nodes
        lost = {node.name for node in nodes if not node.ready and node.out_since is None}
        for pod in pods:
            yield replace(pod, terminating=True) if pod.node in lost else pod

    def _keep(self, gangs: Iterable[DocumentedGang], pods: Sequence[PodRecord]) -> None:
        """The records of jobs and pods in the mirror."""
        own = defaultdict[str, list[PodRecord]](list)
        for pod in pods:
            own[pod.owner].append(pod)
        self._shown = frozenset(own)
        self._gangs = {g.record.uid: self._with_attempt(g, own[g.record.uid]) for g in gangs}
        self._apply(self._namespaces(pods))
        self._apply(gang.record for gang in self._gangs.values())
        self._apply(pods)
        self.mirror.trust_running()
        self._note_gangs_of_pods()

    def _with_attempt(self, gang: DocumentedGang, pods: Iterable[PodRecord]) -> DocumentedGang:
        """The attempt that its living pods have: files often lack the label of the templates, or that of the pods.

        ``pods``: of the gang.
        """
        record = gang.record
        if not gang.runs or record.array is not None:
            return gang
        living = {pod.attempt for pod in pods if not pod.terminal}
        attempt = record.attempt if not living or record.attempt in living else max(living)
        suspended = record.suspended and bool(self._parts.pods)
        return replace(gang, record=replace(record, attempt=attempt, suspended=suspended))

    def _namespaces(self, pods: Iterable[PodRecord]) -> Iterator[NamespaceRecord]:
        """Those of all gangs, with the label that the API server adds."""
        of_gangs = {gang.record.namespace for gang in self._gangs.values() if not gang.finished}
        of_pods = {pod.namespace for pod in pods if pod.member is not None}
        known = dict(self.mirror.namespaces)
        for name in sorted(of_gangs | of_pods | known.keys()):
            record = known.get(name) or NamespaceRecord(name, 1)
            labels = {keys.NAMESPACE_NAME: name, **dict(record.labels)}
            yield replace(record, version=1, labels=tuple(labels.items()))

    def _note_gangs_of_pods(self) -> None:
        """The gangs of pods, which are behind all others."""
        documents = self._documents
        places = {uid: number for number, uid in enumerate(documents)}
        last = max((gang.position for gang in self._gangs.values()), default=0) + 1
        for uid, job in self.mirror.jobs.items():
            if uid in self._gangs or job.index is not None:
                continue
            face = job.face.uid if job.face is not None else ""
            first = face if face in documents else uid
            self._gangs[uid] = documented(documents[first], last + places[first], job)

    def _given_of(self, job: JobRecord) -> DocumentedGang:
        return self._gangs[job.index.job_uid if job.index is not None else job.uid]

    # ---- entries

    def _load(self, gangs: list[DocumentedGang]) -> None:
        dependents = Dependents(self.mirror, Ledger())
        jobs = (*self.mirror.jobs.values(), *self.mirror.arrays.values())
        dependents.of([job.uid for job in jobs if job.kind != WORKLOAD])
        self._refuse_cycles(dependents)
        self._add_indexes(gangs, dependents)
        records = self.mirror.priority_classes
        ledgers = Ledgers(
            self._config,
            self._now,
            priority_values(records.values()),
            SYSTEM_CLASSES.union(records),
            dependents.statuses,
            self._warn,
        )
        running, waiting = self._sorted()
        self._running_gangs = running
        entries = []
        for number, (gang, job) in enumerate(waiting, 1):
            at = gang.created_at
            queued_at = self._now + number * _TICK if at is None else at
            entries.append(ledgers.waiting(gang, job, queued_at))
        self._assume(running, ledgers, entries)
        for one, placement in self._seated(running):
            entries.append(ledgers.running(one.gang, one.job, placement))
        self._apply(self._quotas(running))
        self.state.load(entries)

    def _seated(self, running: Sequence[RunningGang]) -> Iterator[tuple[RunningGang, Placement]]:
        """Each running gang with its placement. Slots of which the input shows no pods get pods that stand in for them.

        Small gangs are first, so that one with millions of such slots takes the memory of no other. These slots use nothing.
        """
        placed = [(one, one.placement()) for one in running]
        unseen = {one.job.uid: unseen_slots(one, placement) for one, placement in placed}
        pods = {uid: sum(count for *_, count in slots) for uid, slots in unseen.items()}
        smallest_first = sorted(pods, key=pods.__getitem__)
        totals = accumulate(pods[uid] for uid in smallest_first)
        seated = {uid for uid, n in zip(smallest_first, totals, strict=True) if n <= MOST_STAND_INS}
        for one, placement in placed:
            slots = unseen[one.job.uid]
            if one.job.uid in seated:
                self._apply(stand_ins(one.job, slots))
                yield one, placement
            else:
                missing = counted(pods[one.job.uid], "pod")
                text = f"{missing} without a node in the input: they use no quota"
                self._warn(one.gang, text)
                yield one, without_slots(placement, slots)

    def _refuse_cycles(self, dependents: Dependents) -> None:
        """Refuse jobs that were not created yet and wait, directly or not, for themselves.

        Jobs of a cluster are held with this reason instead.
        """
        for gang in self._gangs.values():
            job = gang.record
            if gang.finished or not job.gates or not unseen(gang.document):
                continue
            for one in dependents.statuses(job, job.gates).values():
                if one.status is DependencyStatus.CYCLE:
                    where = f"metadata.annotations: {keys.PREFIX}{keys.AFTER}"
                    raise gang.document.error(where, f"is {one.cycle_text}")

    def _add_indexes(self, gangs: Iterable[DocumentedGang], dependents: Dependents) -> None:
        """The pods of indexes that the controllers of arrays and elastic Jobs would create, where the input has no pods of the Job.

        An array that waits is resumed with its first index. Its indexes are planned as they are then, unless gates hold it.
        """
        for gang in gangs:
            job = self.mirror.arrays.get(gang.record.uid)
            if job is None or job.array is None or job.uid in self._shown or job.outcome:
                continue
            if not gang.runs:
                statuses = dependents.statuses(job, job.gates)
                if job.array.base:
                    continue
                if remaining(job.gates, statuses):
                    self._left[job.uid] = held_by(job.gates, statuses, job.error).message
                    continue
                job = replace(job, suspended=False, version=job.version + 1)
                self._apply([job])
            self._apply(_stand_in(job, number) for number in numbers(job))

    def _sorted(self) -> tuple[list[RunningGang], list[tuple[DocumentedGang, JobRecord]]]:
        """The gangs that run and those that wait, in the order of the input."""
        running: list[RunningGang] = []
        waiting: list[tuple[DocumentedGang, JobRecord]] = []
        jobs = [(self._given_of(job), job) for job in self.mirror.jobs.values()]
        for gang, job in sorted(jobs, key=lambda one: (one[0].position, one[1].uid)):
            if gang.finished or job.outcome is not None or _cannot_exist(gang, job):
                continue
            if not (gang.runs if job.index is None else not job.suspended):
                # queuectl starts no job without a queue. An input without queues asks only for places.
                if job.queue is not None or not self._config.cluster_queues:
                    waiting.append((gang, job))
            elif (found := self._running(gang, job)) is not None:
                running.append(found)
        return running, waiting

    def _running(self, gang: DocumentedGang, job: JobRecord) -> RunningGang | None:
        """A gang that runs; None if what it holds is not known. Its pods are other pods then."""
        if job.error is not None:
            self._left[gang.record.uid] = f"its request is not valid: {job.error}"
            return None
        if not gang.assigned and job.queue is None:
            return None
        pods = [
            pod for pod in self.mirror.pods_of(job) if pod.attempt == job.attempt or gang.leaves
        ]
        found = RunningGang(gang, job, pods, self._place)
        found.seat(self._stated_slots.get(job.uid))
        if not found.shown:
            text = "it is not suspended, but neither its pods nor its admission are in the input"
            self._left[gang.record.uid] = text
            return None
        return found

    def _assume(
        self, running: list[RunningGang], ledgers: Ledgers, waiting: Iterable[Entry]
    ) -> None:
        if not any(gang.coarse for gang in running):
            return
        known = [
            ledgers.running(gang.gang, gang.job, gang.placement(warn=False)) for gang in running
        ]
        self.state.load([*waiting, *known])
        use = used(running, self.state.usage.other_pods)
        capacity = FreeCapacity(self.mirror.fleet, use)
        for gang in running:
            gang.assume(capacity)

    def _quotas(self, running: Iterable[RunningGang]) -> Iterator[ResourceQuotaRecord]:
        """For a ResourceQuota without a stated use, the running gangs of the input count as its use."""
        held = defaultdict[str, list[tuple[PodSet, int]]](list)
        for gang in running:
            held[gang.job.namespace] += [(one.podset, one.count) for one in gang.podsets]
        for record in self._parts.quotas:
            use = () if record.counted else held[record.namespace]
            allowance = with_classes(record.allowance, self.mirror.devices.classes)
            yield replace(record, allowance=with_promises(allowance, use))

    def _idle_since(
        self, entry: Entry, job: JobRecord, config: QueueConfig, now: float
    ) -> float | None:
        del entry, config
        at = self._given_of(job).idle_since
        return at if at is not None and at <= now else None

    # ---- the snapshot

    def _frozen(self) -> Snapshot:
        snapshot = self.state.snapshot(self._now, SolverLimits())
        parked = self.state.builder.parked(snapshot.config)
        admitted = tuple(map(self._unhealthy, sorted(snapshot.admitted, key=self._position)))
        bases = {gang.workload.uid for gang in admitted}
        pending = (
            _beside(gang, bases)
            for gang in sorted((*snapshot.pending, *parked), key=self._position)
        )
        return replace(snapshot, admitted=admitted, pending=tuple(pending))

    def _position(self, gang: Admitted | Pending) -> tuple[int, str]:
        uid = gang.workload.uid
        return self._given_of(self.mirror.jobs[uid]).position, uid

    def _unhealthy(self, gang: Admitted) -> Admitted:
        """With the slots on nodes that its Workload names as lost."""
        workload = self._given_of(self.mirror.jobs[gang.workload.uid]).workload
        if workload is None or not workload.unhealthy or gang.leaving:
            return gang
        names = self._place.names
        away = {at for name in workload.unhealthy for at in (name, names.get(name, name))}
        lost = [slot for slot in gang.lost if slot[1] not in away]
        for placed in gang.placement.podsets:
            lost += [(placed.podset, n, c) for n, c in placed.by_node.items() if n in away]
        return replace(gang, lost=tuple(lost))

    def _warn(self, gang: DocumentedGang, text: str) -> None:
        warning = f"{gang.document.address}: {text}"
        if warning not in self._warned:
            self._warned.add(warning)
            self._parts.warnings.append(warning)


def _distinct(pods: Iterable[PodRecord]) -> list[PodRecord]:
    """Each pod with its own uid."""
    seen: set[str] = set()
    found = []
    for pod in pods:
        uid = pod.uid
        if not uid or uid in seen:
            uid = f"Pod/{pod.namespace}/{pod.name}".replace(".", "~")
        seen.add(uid)
        found.append(pod if uid == pod.uid else replace(pod, uid=uid))
    return found


def _stand_in(job: JobRecord, number: int) -> PodRecord:
    """The pod of an index, which waits."""
    return PodRecord(
        job.namespace,
        f"{job.name}-{number}",
        index_uid(job.uid, number) + "/pod",
        1,
        owner=job.uid,
        owner_kind=job.kind,
        rank=number,
        gated=True,
        podset=job.of_indexes.name,
    )


def _cannot_exist(gang: DocumentedGang, job: JobRecord) -> bool:
    """Whether it is an index that cannot exist together with the gang of its Job."""
    index, array = job.index, gang.record.array
    if index is None or not index.grown or array is None:
        return False
    inside = array.base <= index.number < array.at_once
    return not gang.runs or not (inside or not job.suspended)


def _beside(gang: Pending, running: Collection[str]) -> Pending:
    """A pod above an elastic gang waits for that gang."""
    growth = gang.workload.growth
    if growth is None or growth.base in running:
        return gang
    why = Reason(Code.WAITING_FOR_PODS, "the gang that it extends does not run")
    return replace(gang, blocked=why)
