"""The audit of a recording: whether the cluster was in a forbidden state at any revision.

Each check uses the objects of the API server at every revision:

- **complete**: no pod of an attempt loses its gate before all pods of that attempt exist, and all pods of an attempt are bound
  to nodes, unless the job is suspended, finished or deleted
- **group**: the same for gangs that consist of pods alone, in groups or of LeaderWorkerSets. If the group can start before all its
  pods exist, those that exist start together
- **domain**: all pods of a PodSet (or PodSet group) with a required topology are in one domain of that level
- **capacity**: on each node, the requests of the bound or pinned pods fit the largest allocatable resources that it has had.
  Resources that it has never had are devices of ResourceSlices, which kube-scheduler allocates
- **once**: no two attempts of a gang, and no two pods of the same rank, occupy capacity at the same time
- **quota**: the requests of each queue's pods are within the given limit; a finished job has no quota, even if its
  controller leaves pods running, as the training operator does with workers after the master

A pod counts from the revision without its gate until it is terminal. Only jobs with a queue label are gangs. Each index of an array, and
each above the minimum of pods of an elastic Job, is a gang. A pod of a group has the labels of its attempt only from its release on,
and the group can get other pods in the same attempt: they replace pods that were lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple, Protocol

from queuectl.demo.recorder import (
    ObservedState,
    PodRevision,
    Recording,
    Replay,
    place_of,
    podset_of,
)
from queuectl.domain.arrays import gang_uid, index_of
from queuectl.domain.jobs import JobRecord, PodPhase, PodRecord
from queuectl.domain.quantity import GPU, NOTHING, Resources, format_quantity
from queuectl.domain.workload import PodSet, TopologyMode
from queuectl.objects.kinds.groups import GroupKey, key_of
from queuectl.objects.kinds.leaderworkerset import KIND as SET
from queuectl.objects.kinds.leaderworkerset import set_name
from queuectl.objects.kinds.pods import POD
from queuectl.objects.kinds.roster import member_of

# ---- Findings


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """The result of one check.

    Attributes:
        name: the checked statement.
        numbers: its figures.
        problems: one sentence for each violation.
    """

    name: str
    numbers: str
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems


def opens(step: PodRevision) -> bool:
    """Whether this step removes the gates of a pod."""
    return (
        step.after is not None
        and not step.after.gated
        and (step.before is None or step.before.gated)
    )


# ---- All checks

Queue = tuple[str, str]
"""Namespace and name of a LocalQueue."""


class Check(Protocol):
    """Receives every step in order, then returns its finding."""

    def see(self, step: PodRevision) -> None: ...

    def finding(self) -> AuditFinding: ...


def checks(
    recording: Recording, *, limits: Mapping[Queue, Resources] | None = None
) -> list[AuditFinding]:
    """Run every check over a recording.

    Args:
        recording: the recording, complete up to now (Recorder.settle).
        limits: the limit of each queue's requests; a queue without a limit is not checked.
    """
    replay = Replay(recording)
    observed = replay.observed
    audits: list[Check] = [
        Whole(observed),
        DomainAudit(observed),
        CapacityAudit(observed),
        Once(observed),
    ]
    if any(isinstance(one.fact, PodRecord) and one.fact.member for one in recording.events):
        audits.append(Groups(observed))
    if limits:
        audits.append(Quota(observed, limits))
    for step in replay.steps():
        for check in audits:
            check.see(step)
    return [check.finding() for check in audits]


# ---- Gangs of jobs


def _gang(pod: PodRecord | None, observed: ObservedState) -> JobRecord | None:
    return observed.jobs.get(pod.owner) if pod is not None else None


def _uid(job: JobRecord, pod: PodRecord) -> str:
    """The uid of the gang of a pod: of its job, or of the index of an array."""
    return gang_uid(job, pod)


@dataclass(slots=True)
class _Attempt:
    job: JobRecord
    number: int
    expected: int
    opened_at: float
    bound: set[str] = field(default_factory=set)
    whole_at: float | None = None


@dataclass(slots=True)
class Whole:
    """See the module's docstring."""

    observed: ObservedState
    attempts: dict[tuple[str, int], _Attempt] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def see(self, step: PodRevision) -> None:
        pod = step.after
        job = _gang(pod, self.observed)
        if pod is None or job is None:
            return
        key = (_uid(job, pod), pod.attempt)
        if opens(step) and key not in self.attempts:
            self.attempts[key] = self._open(step, pod, job)
        attempt = self.attempts.get(key)
        if attempt is not None and pod.node and attempt.whole_at is None:
            attempt.bound.add(pod.uid)
            if len(attempt.bound) >= attempt.expected:
                attempt.whole_at = step.at

    def _open(self, step: PodRevision, pod: PodRecord, job: JobRecord) -> _Attempt:
        siblings = self.observed.of_job[pod.owner].values()
        own = [p for p in siblings if p.attempt == pod.attempt and _uid(job, p) == _uid(job, pod)]
        there = Counter(podset_of(job, p) for p in own if not p.terminal)
        gang = job if _uid(job, pod) == job.uid else index_of(job, pod.rank or 0, ())
        at_once = gang.pods_at_once
        for podset in gang.first_podsets:
            if there[podset.name] < at_once[podset.name]:
                self.problems.append(
                    f"{job.namespace}/{job.name}: a pod of attempt {pod.attempt} lost its gates at revision {step.version}, "
                    f"when {there[podset.name]} of {at_once[podset.name]} pods of {podset.name} existed"
                )
        return _Attempt(job, pod.attempt, sum(at_once.values()), step.at)

    def finding(self) -> AuditFinding:
        for (_, number), attempt in self.attempts.items():
            job = self.observed.jobs.get(attempt.job.uid)
            over = job is None or job.suspended or job.outcome is not None or job.attempt != number
            if attempt.whole_at is None and not over:
                self.problems.append(
                    f"{attempt.job.namespace}/{attempt.job.name}: attempt {number} has "
                    f"{len(attempt.bound)} of {attempt.expected} pods on nodes"
                )
        spans = [a.whole_at - a.opened_at for a in self.attempts.values() if a.whole_at is not None]
        gangs = len({uid for uid, _ in self.attempts})
        numbers = f"{len(self.attempts)} starts of {gangs} gangs; at most {max(spans, default=0):.1f} s from the first to the last pod"
        return AuditFinding("all pods of each gang started together", numbers, tuple(self.problems))


@dataclass(slots=True)
class DomainAudit:
    """See the module's docstring."""

    observed: ObservedState
    domains: dict[tuple[str, int, str, str], set[str]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def see(self, step: PodRevision) -> None:
        pod = step.after
        job = _gang(pod, self.observed)
        if pod is None or job is None or not pod.node or (step.before and step.before.node):
            return
        podset = next((p for p in job.podsets if p.name == podset_of(job, pod)), None)
        level = _required(podset)
        node = self.observed.nodes.get(pod.node)
        if podset is None or level is None or node is None:
            return
        uid = _uid(job, pod)
        key = (uid, pod.attempt, podset.group or podset.name, level)
        self.domains.setdefault(key, set()).add(node.labels.get(level, f"no {level}"))
        self.names[uid] = f"{job.namespace}/{job.name}"

    def finding(self) -> AuditFinding:
        problems = [
            f"{self.names[uid]}: {what} of attempt {attempt} is in {len(domains)} domains of {level}: "
            + ", ".join(sorted(domains))
            for (uid, attempt, what, level), domains in self.domains.items()
            if len(domains) > 1
        ]
        gangs = len(self.names)
        numbers = f"{gangs} gangs with a required topology, {len(self.domains)} placements"
        return AuditFinding("each gang is inside its required domain", numbers, tuple(problems))


def _required(podset: PodSet | None) -> str | None:
    request = podset.topology if podset is not None else None
    return request.level if request and request.mode is TopologyMode.REQUIRED else None


@dataclass(slots=True)
class CapacityAudit:
    """See the module's docstring."""

    observed: ObservedState
    peak: int = 0
    revisions: int = 0
    problems: list[str] = field(default_factory=list)

    def see(self, step: PodRevision) -> None:
        self.revisions += 1
        held = self.observed.node_of(step.before) if step.before else None
        node = self.observed.node_of(step.after) if step.after else None
        if node is None or node == held:
            return
        known, use = self.observed.capacity.get(node), self.observed.use[node]
        self.peak = max(self.peak, sum(use[GPU] for use in self.observed.use.values()))
        over = []
        if known is not None and not use.fits(known):
            over = [
                f"{format_quantity(name, value)} of {format_quantity(name, known[name])} {name}"
                for name, value in use.items()
                if value > known[name] and name in known
            ]
        if over:
            self.problems.append(f"{node} at revision {step.version}: {', '.join(over)}")

    def finding(self) -> AuditFinding:
        total = sum(node.allocatable[GPU] for node in self.observed.nodes.values())
        numbers = f"{len(self.observed.nodes)} nodes, {self.revisions} revisions of pods; at most {self.peak} of {total} GPUs in use"
        return AuditFinding("no node exceeds its capacity", numbers, tuple(self.problems))


@dataclass(slots=True)
class Once:
    """See the module's docstring."""

    observed: ObservedState
    gangs: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def see(self, step: PodRevision) -> None:
        pod = step.after
        job = _gang(pod, self.observed)
        if pod is None or job is None or not opens(step):
            return
        uid = _uid(job, pod)
        self.gangs.add(uid)
        for other in self.observed.of_job[pod.owner].values():
            if other.uid == pod.uid or place_of(other) is None or _uid(job, other) != uid:
                continue
            if other.attempt != pod.attempt:
                what = f"a pod of attempt {other.attempt} still occupies a node"
            elif pod.rank is not None and (other.podset, other.rank) == (pod.podset, pod.rank):
                what = f"two pods of rank {pod.rank} of {podset_of(job, pod)} occupy nodes"
            else:
                continue
            self.problems.append(
                f"{job.namespace}/{job.name}: attempt {pod.attempt} at revision {step.version}: {what}"
            )

    def finding(self) -> AuditFinding:
        numbers = f"{len(self.gangs)} gangs"
        return AuditFinding(
            "no gang has two attempts at the same time", numbers, tuple(self.problems)
        )


@dataclass(slots=True)
class Quota:
    """See the module's docstring."""

    observed: ObservedState
    limits: Mapping[Queue, Resources]
    use: dict[Queue, Resources] = field(default_factory=dict)
    peaks: dict[Queue, int] = field(default_factory=dict)
    charged: dict[str, dict[str, tuple[Queue, Resources]]] = field(default_factory=dict)
    """By job, then by pod."""
    problems: list[str] = field(default_factory=list)

    def see(self, step: PodRevision) -> None:
        pod = step.after or step.before
        job = _gang(pod, self.observed)
        if pod is None:
            return
        if step.after is None or place_of(step.after) is None:
            self._release(pod.owner, pod.uid)
        elif (
            job is not None
            and job.queue is not None
            and job.outcome is None
            and pod.uid not in self.charged.get(pod.owner, ())
        ):
            self._charge((job.namespace, job.queue), pod, step.version)

    def _release(self, owner: str, uid: str) -> None:
        queue, requests = self.charged.get(owner, {}).pop(uid, (("", ""), NOTHING))
        self.use[queue] = self.use.get(queue, NOTHING) - requests

    def _release_ended(self) -> None:
        for owner, pods in self.charged.items():
            job = self.observed.jobs.get(owner)
            if job is not None and job.outcome is not None:
                for uid in list(pods):
                    self._release(owner, uid)

    def _charge(self, queue: Queue, pod: PodRecord, version: int) -> None:
        self._release_ended()
        self.charged.setdefault(pod.owner, {})[pod.uid] = (queue, pod.requests)
        use = self.use[queue] = self.use.get(queue, NOTHING) + pod.requests
        self.peaks[queue] = max(self.peaks.get(queue, 0), use[GPU])
        limit = self.limits.get(queue)
        for name in limit or ():
            if limit is not None and use[name] > limit[name]:
                self.problems.append(
                    f"{'/'.join(queue)} at revision {version}: {use[name]} of {limit[name]} {name}"
                )

    def finding(self) -> AuditFinding:
        numbers = "; ".join(
            f"{'/'.join(queue)} at most {self.peaks.get(queue, 0)} of {limit[GPU]} GPUs"
            for queue, limit in self.limits.items()
        )
        return AuditFinding("no queue exceeds its quota", numbers, tuple(self.problems))


# ---- Gangs of pods

_RELEASE_SECONDS: Final = 10.0
"""The release of a group takes one write for each pod. A pod that is deleted at most this many seconds before one of these writes can have
existed when the release began."""


class StartKey(NamedTuple):
    """One start of a group. ``workload``: uid of the gang; a later group can have the same name."""

    group: GroupKey
    workload: str
    attempt: int


@dataclass(slots=True)
class _Start:
    expected: int
    opened_at: float
    bound: set[str] = field(default_factory=set)
    whole_at: float | None = None
    stopped: bool = False


@dataclass(slots=True)
class Groups:
    """See the module's docstring."""

    observed: ObservedState
    starts: dict[StartKey, _Start] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    _pods: dict[GroupKey, dict[str, PodRecord]] = field(default_factory=lambda: defaultdict(dict))
    _succeeded: dict[tuple[GroupKey, str], set[str]] = field(
        default_factory=lambda: defaultdict(set)
    )
    """By group and workload: the uids of the pods that have succeeded, also of those that no longer exist."""
    _deleted: dict[GroupKey, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    """By group and uid of a pod: when it was deleted before its release, unix seconds."""
    _created: dict[str, float] = field(default_factory=dict)
    """By uid of a pod: when it was first seen, unix seconds."""

    def see(self, step: PodRevision) -> None:
        pod = step.after or step.before
        if pod is None or pod.member is None or key_of(pod).kind == POD:
            return
        group = key_of(pod)
        self._created.setdefault(pod.uid, step.at)
        if pod.gated and (step.after is None or pod.terminating):
            self._deleted[group].setdefault(pod.uid, step.at)
        key = StartKey(group, pod.member.workload, pod.attempt)
        if step.after is None:
            self._pods[group].pop(pod.uid, None)
        else:
            self._pods[group][pod.uid] = pod
        if opens(step) and key not in self.starts:
            self.starts[key] = self._open(step, key, pod)
        if pod.phase is PodPhase.SUCCEEDED:
            self._succeeded[group, key.workload].add(pod.uid)
        if key in self.starts and not pod.gated:
            self._follow(self.starts[key], step, pod)

    def _follow(self, start: _Start, step: PodRevision, pod: PodRecord) -> None:
        if pod.node and start.whole_at is None:
            start.bound.add(pod.uid)
            if len(start.bound) >= start.expected:
                start.whole_at = step.at
        lost = step.after is None or pod.terminating or pod.phase is PodPhase.FAILED
        start.stopped |= lost and pod.phase is not PodPhase.SUCCEEDED

    def _open(self, step: PodRevision, key: StartKey, pod: PodRecord) -> _Start:
        done = self._succeeded[key.group, key.workload]
        others = [one for one in self._pods[key.group].values() if one.uid not in done]
        there = sum(one.alive for one in others)
        # Pods that were deleted while this pod existed, and during the release.
        earliest = max(self._created[pod.uid], step.at - _RELEASE_SECONDS)
        there += sum(deleted_at >= earliest for deleted_at in self._deleted[key.group].values())
        first, expected = self._needed(key, pod, there, len(done))
        if there < first:
            self.problems.append(
                f"{key.group.namespace}/{key.group.name}: a pod of attempt {key.attempt} lost its gates at revision "
                f"{step.version}, when {there} of {first} pods existed"
            )
        return _Start(expected, step.at)

    def _needed(self, key: StartKey, pod: PodRecord, there: int, finished: int) -> tuple[int, int]:
        """The pods that must exist at the start, and those that the start is for."""
        made = self._set_of(key.group) if key.group.kind == SET else None
        if made is not None:
            return (1 if made.staged else made.pods), made.pods
        member = member_of(pod)
        if member.total is None or member.fast:
            return 1, there  # also of a group whose LeaderWorkerSet is deleted
        return member.total - finished, member.total - finished

    def _set_of(self, group: GroupKey) -> JobRecord | None:
        wanted = (SET, group.namespace, set_name(group.name)[0])
        jobs = self.observed.jobs.values()
        return next((one for one in jobs if (one.kind, one.namespace, one.name) == wanted), None)

    def finding(self) -> AuditFinding:
        latest = {key.group: key for key in self.starts}
        unfinished = [
            f"{key.group.namespace}/{key.group.name}: attempt {key.attempt} has {len(start.bound)} of {start.expected} pods on nodes"
            for key, start in self.starts.items()
            if start.whole_at is None and not (start.stopped or latest[key.group] != key)
        ]
        spans = [s.whole_at - s.opened_at for s in self.starts.values() if s.whole_at is not None]
        numbers = f"{len(self.starts)} starts of {len(latest)} groups; at most {max(spans, default=0):.1f} s from the first to the last pod"
        problems = tuple(chain(self.problems, unfinished))
        return AuditFinding("all pods of each group started together", numbers, problems)
