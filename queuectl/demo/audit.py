"""Checks of a recording: whether the cluster was in a forbidden state at any revision.

Each check uses the objects of the API server at every revision:

- **complete**: no pod of an attempt loses its gate before all pods of that attempt exist, and all pods of an attempt are bound
  to nodes, unless the job is suspended, finished or deleted
- **domain**: all pods of a PodSet (or PodSet group) with a required topology are in one domain of that level
- **capacity**: on each node, the requests of the bound or pinned pods fit the largest allocatable resources that it has had.
  Resources that it has never had are devices of ResourceSlices, which kube-scheduler allocates
- **once**: no two attempts of a gang, and no two pods of the same rank, occupy capacity at the same time
- **quota**: the requests of each queue's pods are within the given limit; a finished job has no quota, even if its
  controller leaves pods running, as the training operator does with workers after the master

A pod counts from the revision without its gate until it is terminal. Only jobs with a queue label are gangs. Each index
of an array, and each above the least number of pods of an elastic Job, is a gang. :mod:`queuectl.demo.group_audit` has the check of
gangs that consist of pods alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from queuectl.demo.findings import AuditFinding, opens
from queuectl.demo.group_audit import Groups
from queuectl.demo.recorder import Recording
from queuectl.demo.replay import ObservedState, PodRevision, Replay, place_of, podset_of
from queuectl.domain.arrays import gang_uid, index_of
from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.domain.quantity import GPU, NOTHING, Resources, format_quantity
from queuectl.domain.workload import PodSet, TopologyMode

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
        for podset in gang.first_podsets:
            if there[podset.name] < gang.expects(podset):
                self.problems.append(
                    f"{job.namespace}/{job.name}: a pod of attempt {pod.attempt} lost its gates at revision {step.version}, "
                    f"when {there[podset.name]} of {gang.expects(podset)} pods of {podset.name} existed"
                )
        expected = sum(gang.expects(podset) for podset in gang.podsets)
        return _Attempt(job, pod.attempt, expected, step.at)

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
