"""Jobs and pods as the watch reports them, as small frozen records: no more than planning and the protocol need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from typing import Final, NamedTuple, Protocol

from queuectl.domain.fleet import Fleet, SelectorTerm, Toleration
from queuectl.domain.notifications import JobNotifications
from queuectl.domain.quantity import NOTHING, Resources
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Reason
from queuectl.domain.request_rules import PodNeeds
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, TopologyMode, gpus_of

# ---- Jobs
#
# ``version`` is the integer resourceVersion: a record never replaces one with a higher version.


class JobOwner(Protocol):
    """A job, or its entry in the ledger."""

    @property
    def kind(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def uid(self) -> str: ...


class OwnerKey(NamedTuple):
    """The identity of an object that owns pods: a uid alone can be copied into another namespace."""

    kind: str
    namespace: str
    uid: str

    @classmethod
    def of(cls, owner: JobOwner) -> OwnerKey:
        """That of a job."""
        return cls(owner.kind, owner.namespace, owner.uid)


class JobOutcome(StrEnum):
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Changes of a Job for a start with fewer pods, which are undone when it stops.

    Attributes:
        requested: ``spec.parallelism`` as its user wrote it.
        shrunk: it is smaller now.
        completions_follow: ``spec.completions`` is kept equal to it.
    """

    requested: int
    shrunk: bool = False
    completions_follow: bool = False


@dataclass(frozen=True, slots=True)
class ArrayStatus:
    """The status of a job whose indexes start each for itself: all of them (an array), or those above the gang of an elastic job.

    Attributes:
        completions: number of its indexes.
        at_once: indexes that its controller runs at once.
        succeeded, failed: indexes that have ended for good.
        base: of an elastic job: the pods that start as one gang, which have the first indexes. 0: of an array.
        podset: of an elastic job of another kind: the podset with these indexes. "" = the only one, whose size its user can change.
        noted: the object states ``base``.
    """

    completions: int
    at_once: int
    succeeded: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    base: int = 0
    podset: str = ""
    noted: bool = False


@dataclass(frozen=True, slots=True)
class ArrayIndex:
    """The part of a record that is only on an index of an array, or of an elastic Job.

    Attributes:
        number: of the index.
        job, job_uid: name and uid of the Job.
        started: the Job is resumed.
        grown: it is of an elastic Job, and runs only alongside its gang. No write for it changes the Job, which is the object of that gang.
        barred: why it cannot run with that gang now; empty if it can, and for an array.
    """

    number: int
    job: str
    job_uid: str
    started: bool
    grown: bool = False
    barred: str = ""


def _label(labels: Iterable[tuple[str, str]], key: str | None) -> str | None:
    return next((value or None for name, value in labels if name == key), None)


def user_of(
    submitter: str,
    labels: Iterable[tuple[str, str]],
    naming: str | None,
    trusted: Collection[str],
) -> str | None:
    """Whose a job is: limits, past use and accounts by user go by it. None if that is not known.

    Args:
        submitter: the user who created the job, as admission recorded; empty = it did not.
        labels: of the job.
        naming: key of the label that names the user where the submitter is trusted or not recorded; None = no label does.
        trusted: names of the users who may submit jobs for others.
    """
    if submitter and submitter not in trusted:
        return submitter
    return _label(labels, naming) or submitter or None


MOST_LABELS: Final = 64
"""Labels of one job that the ledger has: the first ones, by key."""


@dataclass(frozen=True, slots=True)
class PodFace:
    """A pod, as the object to which a write or an Event is sent."""

    name: str
    uid: str
    version: int


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A managed job of any kind.

    Attributes:
        kind: ``Job``, ``PyTorchJob``...; names the module in objects/kinds.
        queue: LocalQueue it names.
        priority_class: WorkloadPriorityClass named by label, if any.
        pod_priority_class: the user's PriorityClass of its pods (before the admission policy replaced it).
        podsets: what it asks, read from its templates. Of a suspended job, without the pods that do not run again.
        error: why the request can never be honored (contradictory, malformed, unsupported), or None.
        suspended: ``spec.suspend``.
        drained: the controller confirms suspension (condition Suspended=True).
        attempt: ``queuectl.dev/attempt`` label of its pod templates, 0 if none.
        outcome: final state, or None.
        utilization: annotation, 0..1; None if absent or unreadable.
        checkpoint_at: annotation, unix seconds.
        status: the status annotation of the object.
        expected: pods its controller keeps at once per podset where that is fewer than the podset's count (a Job with
            few completions left, or started with fewer pods); empty otherwise.
        parallelism: of a Job that may start with fewer pods, or did; None otherwise.
        gates: what must be released before it is queued: ``admission-gated-by`` and ``after``, as in :mod:`queuectl.domain.gates`.
        max_execution: ``max-exec-time-seconds``: how long it may run, over all attempts; None = no limit.
        expected_duration: ``expected-duration-seconds``: how long its user expects it to run, over all attempts; None = not stated.
        followed: another pod can follow a pod that succeeded, as ``expects`` states; otherwise none does.
        restarts: its controller can create all pods again while it runs, including those that have succeeded. It keeps their slots.
        final: its suspension is its end: its controller then counts it as succeeded.
        preempt_requested: annotation: the last deadline of a notice, "" if none.
        preempt_ready: annotation: the job is ready to be suspended at once.
        notify: the receivers that its annotations name; None = none.
        labels: its labels, by key, but for those that queuectl itself reads.
        ungated: (podset, its other scheduling gates) of each template without our gate: of a job from before the admission
            policies. Its start puts the gate there.
        idle_reclaim: annotation: False = it is never taken for not using its GPUs.
        warmup: annotation: seconds after its pods are ready in which its GPUs can be idle; None = as in its queue.
        applied: it was created by server-side apply, so the managers of its fields matter.
        queue_keys: the labels by which it names its queue.
        forbidden: the violation of a LimitRange of its namespace, or a resource claim that does not exist, or None. The
            mirror sets it; until then, and without one, ``podsets`` follow from the templates.
        submitter: name of the user who created it, as admission recorded; empty for one from before the policies.
        of_pods: it has no field to suspend it: its pods exist with the gate while it waits. It starts when they are released,
            and it is suspended while none of them is released.
        staged: its later pods exist only after earlier ones were released.
        awaits: the pods that must exist before it can start; empty if they exist.
        absent: none of its pods exists. Only of a group of pods, which has no other object.
        made_by: kind of the object whose controller creates its pods, with the queue of that object. Only of a group of pods.
        array: of an array, which is in no queue itself; ``podsets`` has one pod then. Also of an elastic Job, which is in a queue;
            ``podsets`` has the pods that start as one gang then.
        ended: ranks of its only podset that have ended, and do not run again.
        parent: uid of the job whose pod templates it has; "" for all others. It is not a workload then.
        groups: of a set of gangs, which is in no queue itself: the number of its gangs. ``podsets`` describe one gang.
        index: of one index of an array or an elastic Job, as :mod:`queuectl.domain.arrays` makes it: a workload that consists of its pod.
        face: the pod with the status and the Events of a workload that consists of pods, also after its deletion; None for all others.
        list_indexes: (podset, index of its entry) for podsets of a list.
        missing: maps that its object does not have and that patches write to, as JSON pointers. Only of kinds with a list of podsets.
        ranks: (podset, size of a group) for podsets whose pods have the index of a group and an index inside it.
        first_ranks: (podset, first index) for podsets whose pods have indexes that do not begin with 0.
        kept_podsets: podsets whose ended pods its controller keeps, and does not replace.
        counts_old_pods: while failed pods of an earlier attempt exist, its controller counts them as failures of the job.
        late: podsets whose pods its controller creates only when the pods of others run, or have ended.
        unborn: those of which it has created none, because pods of others must run or end first.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    version: int
    created_at: float
    queue: str | None
    podsets: tuple[PodSet, ...] = ()
    priority_class: str | None = None
    pod_priority_class: str | None = None
    error: str | None = None
    unsupported: bool = False  # `error` is about a constraint placement cannot honor, not a mistake
    preemptible: bool = True
    suspended: bool = True
    drained: bool = False
    attempt: int = 0
    outcome: JobOutcome | None = None
    utilization: float | None = None
    checkpoint_at: float | None = None
    status: str = ""
    deleting: bool = False
    expected: tuple[tuple[str, int], ...] = ()
    parallelism: Parallelism | None = None
    gates: tuple[str, ...] = ()
    max_execution: float | None = None
    expected_duration: float | None = None
    followed: bool = True
    restarts: bool = False
    final: bool = False
    preempt_requested: str = ""
    preempt_ready: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    notify: JobNotifications | None = None
    ungated: tuple[tuple[str, tuple[str, ...]], ...] = ()
    idle_reclaim: bool = True
    warmup: float | None = None
    applied: bool = False
    queue_keys: tuple[str, ...] = ()
    forbidden: Reason | None = None
    submitter: str = ""
    of_pods: bool = False
    staged: bool = False
    awaits: str = ""
    absent: bool = False
    made_by: str = ""
    face: PodFace | None = None
    list_indexes: tuple[tuple[str, int], ...] = ()
    missing: tuple[str, ...] = ()
    ranks: tuple[tuple[str, int], ...] = ()
    first_ranks: tuple[tuple[str, int], ...] = ()
    kept_podsets: tuple[str, ...] = ()
    counts_old_pods: bool = False
    late: tuple[str, ...] = ()
    unborn: tuple[str, ...] = ()
    array: ArrayStatus | None = None
    ended: frozenset[int] = frozenset()
    parent: str = ""
    groups: int | None = None
    index: ArrayIndex | None = None

    @property
    def listed_labels(self) -> tuple[tuple[str, str], ...]:
        """The labels by which lists are selected."""
        return self.labels[:MOST_LABELS]

    def label(self, key: str | None) -> str | None:
        """Value of a label; None without one, or where it is empty."""
        return _label(self.labels, key)

    def user(self, naming: str | None, trusted: Collection[str]) -> str | None:
        """Whose the job is, as :func:`user_of` has it."""
        return user_of(self.submitter, self.labels, naming, trusted)

    @property
    def has_object(self) -> bool:
        """Whether it has an object for its status and its Events.

        A workload that consists of pods has none if this process has seen none of its pods, for example after a restart.
        """
        return self.face is not None or self.index is not None or not self.of_pods

    @property
    def resizable(self) -> bool:
        """Whether its user can change its number of pods while it runs."""
        return self.array is not None and not self.array.podset

    @property
    def elastic(self) -> bool:
        """Of a gang: whether it belongs to an elastic job, or is a pod that is added to one."""
        return self.array is not None or (self.index is not None and self.index.grown)

    @property
    def of_indexes(self) -> PodSet:
        """The podset whose indexes can be separate workloads."""
        assert self.array is not None
        return next(p for p in self.podsets if self.array.podset in ("", p.name))

    @property
    def pods_at_once(self) -> dict[str, int]:
        """The pods that exist at once when the gang is whole, by podset."""
        expected = dict(self.expected)
        return {podset.name: expected.get(podset.name, podset.count) for podset in self.podsets}

    @property
    def queues(self) -> bool:
        """Whether it is a gang in a queue, and not only its indexes are."""
        return self.array is None or self.array.base > 0

    @property
    def first_podsets(self) -> tuple[PodSet, ...]:
        """The podsets whose pods its controller creates at its start."""
        return tuple(podset for podset in self.podsets if podset.name not in self.late)

    @property
    def pods(self) -> int:
        return sum(p.count for p in self.podsets)

    @property
    def gpus(self) -> Fraction:
        return gpus_of((podset, podset.count) for podset in self.podsets)


# ---- Pods above the gang of an elastic job


def podsets_joining(
    podsets: Sequence[PodSet], placement: Placement, config: QueueConfig, fleet: Fleet
) -> tuple[PodSet, ...]:
    """The podsets of one pod, restricted to the nodes on which it can be a pod of a gang with this placement.

    These nodes have the labels of the gang's flavors. If the gang requires a topology, they are in its domain.
    """
    return tuple(_beside(podset, placement.of(podset.name), config, fleet) for podset in podsets)


def _beside(
    podset: PodSet, placed: PodSetPlacement | None, config: QueueConfig, fleet: Fleet
) -> PodSet:
    if placed is None:
        return podset
    rules = podset.shape.rules
    wanted = {**_labels(podset, placed, config, fleet), **dict(rules.selector)}
    selector = tuple(sorted(wanted.items()))
    return replace(podset, shape=replace(podset.shape, rules=replace(rules, selector=selector)))


def _labels(
    podset: PodSet, placed: PodSetPlacement, config: QueueConfig, fleet: Fleet
) -> dict[str, str]:
    names = sorted(set(placed.flavors.values()))  # of several shares, those of the first ranks
    flavors = [config.flavors[name] for name in names if name in config.flavors]
    labels = {key: value for flavor in flavors for key, value in flavor.node_labels}
    request = podset.topology
    if request is None or request.mode is not TopologyMode.REQUIRED or request.level is None:
        return labels
    nodes = [fleet.by_name[name] for name, _ in placed.nodes if name in fleet.by_name]
    for topology in {flavor.topology for flavor in flavors if flavor.topology is not None}:
        levels = config.topologies[topology].levels if topology in config.topologies else ()
        if request.level in levels and nodes:
            above = levels[: levels.index(request.level) + 1]
            labels |= {key: nodes[0].labels[key] for key in above if key in nodes[0].labels}
    return labels


# ---- Decisions of a Kueue that ran before queuectl


@dataclass(frozen=True, slots=True)
class PriorPodSet:
    """``flavors`` by resource; ``hosts``: (hostname label, pods) in the order of ranks, empty where that is not known."""

    flavors: Mapping[str, str] = field(default_factory=dict)
    hosts: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PriorAdmission:
    """The decisions of a Kueue that ran here before, about a job. Times are unix seconds.

    Attributes:
        uid, kind, namespace, name: of the job, as the Workload names its owner.
        queued_at: since when it was in its queue; None if that is not known.
        active: False: Kueue had deactivated it, or a user held it.
        cluster_queue: that its admission names, "" without one.
        admitted_at: None unless it was admitted.
        podsets: of its admission, by name.
    """

    uid: str
    kind: str
    namespace: str
    name: str
    queued_at: float | None = None
    active: bool = True
    cluster_queue: str = ""
    admitted_at: float | None = None
    podsets: Mapping[str, PriorPodSet] = field(default_factory=dict)

    @property
    def ref(self) -> str:
        """``namespace/name`` of the job."""
        return f"{self.namespace}/{self.name}"

    def of_attempt(self, attempt: int) -> PriorAdmission:
        """Its part about an attempt. Kueue admitted only attempt 0: queuectl chose the nodes of the others."""
        if not attempt:
            return self
        return replace(self, cluster_queue="", admitted_at=None, podsets={})


class PriorAdmissions:
    """The admissions by a Kueue that ran before. Each is of the job in its namespace whose kind and uid it names.

    Of several of a job, the last one counts.
    """

    def __init__(self, admissions: Iterable[PriorAdmission] = ()) -> None:
        by_time = sorted(admissions, key=lambda one: one.admitted_at or 0.0)
        self._by_owner = {OwnerKey.of(one): one for one in by_time}

    def of(self, job: JobRecord) -> PriorAdmission | None:
        """The part about its current attempt; None without an admission."""
        prior = self._by_owner.get(OwnerKey.of(job))
        return prior.of_attempt(job.attempt) if prior is not None else None

    def forget(self, job: JobRecord) -> None:
        """Another job cannot have its uid."""
        self._by_owner.pop(OwnerKey.of(job), None)


# ---- Pods

DAEMON_SET: Final = "DaemonSet"
"""Kind of the owner of pods that run on each node."""


class PodPhase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class PodGroupMember:
    """The request of a pod with its own queue label.

    Attributes:
        job: the pod as a separate workload. Its only podset has the name that pods of this shape have in a group.
        group: its group; empty = it is a separate workload.
        parent: the set of gangs to which its group belongs; empty = none.
        total: the number of pods of its group; None without a valid number.
        fast: its group can start before all of them exist.
        retriable: a pod can follow it after it has failed.
        workload: uid of the workload for which it was released, "" before.
        succeeds: it can succeed: its containers do not always start again.
        gone: it ended because it is being deleted. It counts as deleted: it has neither succeeded nor failed.
    """

    job: JobRecord
    group: str = ""
    parent: str = ""
    total: int | None = None
    fast: bool = False
    retriable: bool = True
    workload: str = ""
    succeeds: bool = True
    gone: bool = False


@dataclass(frozen=True, slots=True)
class PodRecord:
    """Any pod of the cluster; managed ones carry an attempt.

    Attributes:
        requests: as kube-scheduler counts them.
        overhead: the part of its requests that kube-scheduler counts in addition to the pod's own requests and overhead.
        owner: uid of the controller owner reference, "" if none. If that is a child of a workload, uid of the workload.
        owner_kind: kind in that reference. Both are a claim of the creator of the pod; see ``owned_by``.
        maker: uid of the pod that created it for the workload, "" if none did.
        pin: node that its required node affinity names; None without one.
        host: the hostname label that its node selector requires, which limits it in the same way; None without one.
        node: node it is bound to, None before.
        gated: it still carries the gate ``queuectl.dev/placement``.
        attempt: label; 0 when absent.
        podset: label; "" when absent.
        rank: from the kind's rank label, None without one.
        unschedulable: kube-scheduler reports so now (PodScheduled=False, reason Unschedulable). Since when is not read: the
            condition keeps the time at which the API server put it on the gated pod.
        gates: its other scheduling gates. The patch that drops our gate must repeat them, and
        affinity: terms of its required node affinity, only while ``gated``; None without one.
        tolerations: its tolerations, only while ``gated``.
        scheduler: the name of the scheduler that is to bind it; "" = the default, or it is bound.
        needs: what its containers request; only while ``gated``, to compare it with its template.
        started_at: unix seconds at which its node took it on, None before; in whole seconds.
        checkpoint_at: annotation, unix seconds; None if absent or unreadable.
        restarts: of all its containers together.
        guaranteed: its QoS class is Guaranteed.
        preempt_requested: annotation: the last deadline of a notice, "" if none.
        preempt_ready: annotation: it can be stopped at once.
        workload: uid of the workload for which it was made or released; of pods with a rank only, "" for others.
        kueue_workload: name of the Workload with which a Kueue started it; "" if queuectl did. The mirror then sets its owner to the
            job of that Workload.
        member: of a pod with a queue label that admission took in; None for all others. The mirror then sets its owner.
        status_reason: why it does not run, in one word as ``kubectl get pods`` shows it; "" where its status names no reason.
    """

    namespace: str
    name: str
    uid: str
    version: int
    requests: Resources = NOTHING
    owner: str = ""
    pin: str | None = None
    host: str | None = None
    node: str | None = None
    gated: bool = False
    attempt: int = 0
    podset: str = ""
    rank: int | None = None
    phase: PodPhase = PodPhase.PENDING
    ready: bool = False
    terminating: bool = False
    unschedulable: bool = False
    gates: tuple[str, ...] = ()
    scheduler: str = ""
    affinity: tuple[SelectorTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    needs: PodNeeds | None = field(default=None, compare=False, repr=False)
    started_at: float | None = None
    checkpoint_at: float | None = None
    owner_kind: str = ""
    maker: str = ""
    restarts: int = 0
    status_reason: str = ""
    guaranteed: bool = False
    preempt_requested: str = ""
    preempt_ready: bool = False
    workload: str = ""
    kueue_workload: str = ""
    member: PodGroupMember | None = field(default=None, repr=False)
    overhead: Resources = NOTHING

    @property
    def owned_by(self) -> OwnerKey:
        """The object it names as its controller, which can only be one of its own namespace."""
        return OwnerKey(self.owner_kind, self.namespace, self.owner)

    @property
    def terminal(self) -> bool:
        """Whether it will never use its node again."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)

    @property
    def alive(self) -> bool:
        """Whether it is neither terminal nor terminating."""
        return not (self.terminal or self.terminating)

    @property
    def waits(self) -> bool:
        """Whether it can still be released to a node."""
        return self.gated and self.alive
