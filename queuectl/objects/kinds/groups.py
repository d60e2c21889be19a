"""The record of a workload that consists of pods alone: it follows from its pods, and from its entry in the ledger.

A group has the uid of its first pod. It keeps that uid while the ledger has its entry, also while none of its pods exists, because its
maker creates its pods again after an eviction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from queuectl.domain.gates import MOST_DEPENDENCIES, distinct_gates
from queuectl.domain.job_records import JobRecord, Outcome
from queuectl.domain.ledger import Entry
from queuectl.domain.pod_records import Member, PodPhase, PodRecord
from queuectl.domain.words import counted
from queuectl.domain.workload import PodSet, PodShape
from queuectl.objects.kinds.leaderworkerset import KIND as SET
from queuectl.objects.kinds.pods import POD, POD_GROUP


class GroupKey(NamedTuple):
    """``name``: of the group; for a single pod, its uid."""

    kind: str
    namespace: str
    name: str


def key_of(pod: PodRecord) -> GroupKey:
    """The workload to which a pod belongs."""
    assert pod.member is not None
    if pod.member.parent:
        return GroupKey(SET, pod.namespace, pod.member.group)
    if pod.member.group:
        return GroupKey(POD_GROUP, pod.namespace, pod.member.group)
    return GroupKey(POD, pod.namespace, pod.uid)


def member_of(pod: PodRecord) -> Member:
    """The request of a pod of a workload."""
    assert pod.member is not None
    return pod.member


@dataclass(slots=True)
class Group:
    """One workload.

    Attributes:
        key: its identity in the cluster.
        uid: its identity in the ledger; "" before its first record.
        pods: by uid.
        total: the number of pods that it requests.
        started: the podsets with which it started, while any of its pods is released.
        vanished: pods by podset that succeeded and were deleted since.
        entry: the entry of the ledger, as it was read when this process began; None = none, or no longer needed.
        record: the last one.
    """

    key: GroupKey
    uid: str = ""
    pods: dict[str, PodRecord] = field(default_factory=dict)
    total: int = 1
    started: dict[str, PodSet] = field(default_factory=dict)
    vanished: Counter[str] = field(default_factory=Counter)
    entry: Entry | None = None
    record: JobRecord | None = None

    def follow(self, entry: Entry) -> bool:  # noqa: ARG002 - for groups of a set
        """Take note of its entry. Returns whether its record can differ now."""
        return False

    def end(self) -> None:
        """Its entry is Finished, or does not exist any more."""

    def seated(self, pod: PodRecord) -> PodRecord:
        """The pod with the podset and the rank that it has in the group."""
        return pod

    def assemble(self, *, known: bool) -> JobRecord | None:
        """The record of the present pods; None if there is nothing to describe. ``known``: the ledger has it, not Finished."""
        current = self._current(known)
        if not current:
            return self._absent()
        first = member_of(next((pod for pod in current if not pod.terminal), current[0]))
        self.total = first.total or 1
        done = Counter(p.podset for p in current if p.phase is PodPhase.SUCCEEDED)
        released = [pod for pod in current if not (pod.gated or pod.terminal)]
        awaits = ""
        if released:
            podsets = self._running_podsets(current, done)
        else:
            self.started = {}
            podsets, awaits = self._waiting_podsets(current, done)
        self.entry = None
        if not podsets and self.record is not None:
            podsets = list(self.record.podsets)  # all its pods have ended
        error, unsupported = self._error(current)
        gates = _gates(current)
        if error is None and len(gates) > MOST_DEPENDENCIES:
            error = _too_many(self.key.name, len(gates))
        self.record = replace(
            first.job,
            kind=self.key.kind,
            name=first.job.name if self.key.kind == POD else self.key.name,
            uid=self.uid,
            version=max(pod.version for pod in current),
            podsets=tuple(podsets),
            suspended=not released,
            attempt=max(pod.attempt for pod in current),
            outcome=self._outcome(current, done),
            status=next((s for pod in current if (s := member_of(pod).job.status)), ""),
            deleting=all(pod.terminating for pod in current),
            staged=first.fast,
            awaits=awaits,
            gates=gates[:MOST_DEPENDENCIES],
            preempt_requested=common(pod.preempt_requested for pod in released),
            preempt_ready=bool(released) and all(pod.preempt_ready for pod in released),
            error=error,
            unsupported=unsupported,
        )
        return self.record

    def _absent(self) -> JobRecord | None:
        if self.record is None:
            if self.entry is None:
                return None
            self.total = self.entry.pods
            self.record = _remembered(self.entry)
        self.started = {}
        awaits = f"none of its {counted(self.total, 'pod')} exists"
        last = self.record
        self.record = replace(
            last, version=last.version + 1, absent=True, awaits=awaits, suspended=True
        )
        return self.record

    def _current(self, known: bool) -> list[PodRecord]:
        """Its pods in the order of their creation, without those of an earlier workload of the same name."""
        pods = sorted(
            self.pods.values(), key=lambda p: (member_of(p).job.created_at, p.name, p.uid)
        )
        new = [pod for pod in pods if pod.gated and not member_of(pod).workload]
        if self.record is not None and self.record.outcome is not None and new and not known:
            self._begin_again(new[0].uid)
        if not self.uid:
            labelled = [pod for pod in pods if member_of(pod).workload]
            live = next((p for p in labelled if not _ended(p, labelled)), None)
            named = member_of(live).workload if live is not None else ""
            beginning = (new or pods)[:1]
            self.uid = named or next((self._uid_of(pod) for pod in beginning), "")
        return [pod for pod in pods if member_of(pod).workload in ("", self.uid)]

    def _uid_of(self, first: PodRecord) -> str:
        return first.uid

    def _begin_again(self, uid: str) -> None:
        self.uid, self.record, self.entry = uid, None, None
        self.started, self.vanished = {}, Counter()

    def _running_podsets(self, pods: Sequence[PodRecord], done: Counter[str]) -> list[PodSet]:
        if not self.started:
            before = self.record
            if self.entry is not None and self.entry.placement is not None:
                self.started = _placed(self.entry, pods, done, self.total)
            elif before is not None and before.suspended and before.podsets:
                self.started = {podset.name: podset for podset in before.podsets}
            else:
                self.started = _grouped([p for p in pods if p.phase is not PodPhase.FAILED])
        return [
            replace(podset, count=podset.count - self.vanished[name])
            for name, podset in self.started.items()
            if podset.count > self.vanished[name]
        ]

    def _waiting_podsets(
        self, pods: Sequence[PodRecord], done: Counter[str]
    ) -> tuple[list[PodSet], str]:
        """The podsets that it requests, and the pods for which it waits. Pods beyond its number stay gated."""
        self._recall(done)
        needed = max(0, self.total - done.total() - self.vanished.total())
        waiting = [pod for pod in pods if pod.gated and not (pod.terminal or pod.terminating)]
        counts = _grouped(waiting[:needed])
        short = needed - min(needed, len(waiting))
        if short and counts:
            name = next(iter(counts))
            counts[name] = replace(counts[name], count=counts[name].count + short)
        podsets = list(counts.values()) or list(self.record.podsets if self.record else ())
        complete = not short or (member_of(pods[0]).fast and bool(waiting))
        text = f"{len(waiting[:needed])} of {counted(needed, 'pod')} of the group exist"
        return podsets, "" if complete else text

    def _recall(self, done: Counter[str]) -> None:
        """After a restart: the pods that had succeeded and were deleted are those that its entry did not request any more."""
        if self.entry is not None and self.entry.state.waiting and self.entry.pods:
            gone = self.total - self.entry.pods - done.total()
            self.vanished = Counter({"": max(0, gone)})

    def _outcome(self, pods: Sequence[PodRecord], done: Counter[str]) -> Outcome | None:
        if done.total() + self.vanished.total() >= self.total:
            return Outcome.SUCCEEDED
        final = any(not member_of(pod).retriable for pod in pods)
        return Outcome.FAILED if final and all(pod.terminal for pod in pods) else None

    def _error(self, pods: Sequence[PodRecord]) -> tuple[str | None, bool]:
        """The error of the first wrong pod, or of pods that contradict each other, and whether it is about a missing feature."""
        alive = [pod for pod in pods if not pod.terminal]
        wrong = next((p for p in alive if member_of(p).job.error is not None), None)
        if wrong is not None:
            job = member_of(wrong).job
            text = f"pod {wrong.name}: {job.error}" if member_of(wrong).group else job.error
            return text, job.unsupported
        for what, values in (
            ("queues", {str(member_of(pod).job.queue) for pod in alive}),
            ("values of pod-group-total-count", {str(member_of(pod).total) for pod in alive}),
        ):
            if len(values) > 1:
                text = f"the pods of group {self.key.name} have different {what}: {', '.join(sorted(values))}"
                return text, False
        return None, False


def _ended(pod: PodRecord, pods: Iterable[PodRecord]) -> bool:
    """Whether the workload of a pod has ended, so that new pods of this name are another workload."""
    own = [p for p in pods if member_of(p).workload == member_of(pod).workload]
    done = sum(p.phase is PodPhase.SUCCEEDED for p in own)
    return all(p.terminal for p in own) and done >= (member_of(pod).total or 1)


def _grouped(pods: Iterable[PodRecord]) -> dict[str, PodSet]:
    """The podsets of these pods, in the order of their first pods."""
    found: dict[str, PodSet] = {}
    for pod in pods:
        for podset in member_of(pod).job.podsets:
            known = found.get(podset.name)
            found[podset.name] = podset if known is None else replace(known, count=known.count + 1)
    return found


def _placed(
    entry: Entry, pods: Sequence[PodRecord], done: Counter[str], total: int
) -> dict[str, PodSet]:
    """The podsets of a running gang, as its placement has them. Slots of pods that succeeded are possibly free already."""
    assert entry.placement is not None
    shapes = _grouped(pods)
    planned = entry.planned.requests if entry.planned is not None else {}
    placed = {p.podset: p.pods if p.pods is not None else p.count for p in entry.placement.podsets}
    freed = total - sum(placed.values()) >= done.total()
    found = {}
    for name, count in placed.items():
        shape = shapes.get(name)
        if shape is None:
            if name not in planned:
                continue
            shape = PodSet(name, 1, PodShape(planned[name]))
        found[name] = replace(shape, count=count + (done[name] if freed else 0))
    return found


def _remembered(entry: Entry) -> JobRecord:
    """A group without pods, which its entry describes."""
    return JobRecord(
        kind=entry.kind,
        namespace=entry.namespace,
        name=entry.name,
        uid=entry.uid,
        version=0,
        created_at=entry.queued_at,
        queue=entry.queue,
        drained=True,
        attempt=entry.attempt,
        gates=entry.gates,
        followed=False,
        of_pods=True,
    )


def _gates(pods: Iterable[PodRecord]) -> tuple[str, ...]:
    """The gates of all pods: any pod of a group can name what the group waits for."""
    return distinct_gates(gate for pod in pods for gate in member_of(pod).job.gates)


def _too_many(group: str, gates: int) -> str:
    return (
        f"the pods of group {group} have {gates} different gates and jobs in queuectl.dev/after; at most {MOST_DEPENDENCIES} are "
        "possible"
    )


def common(values: Iterable[str]) -> str:
    """The value of all; "" if they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else ""
