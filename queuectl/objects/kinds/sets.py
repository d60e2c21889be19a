"""The record of one group of a LeaderWorkerSet: it follows from the set, from the pods of the group, and from its entry in the ledger.

The operator creates the pods of a group again when one of them fails. The group keeps its admission in the meantime, also while none of its
pods exists or is released: only its entry shows that it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.domain.ledger import Entry, Intent
from queuectl.domain.words import counted
from queuectl.domain.workload import PodSet
from queuectl.objects.kinds.groups import GroupKey, PodGroup, common
from queuectl.objects.kinds.leaderworkerset import KIND, LEADER, WORKER, set_name
from queuectl.objects.kinds.roster import member_of


@dataclass(slots=True)
class SetGroup(PodGroup):
    """One group.

    Attributes:
        parent: the set; None while it is not known.
        running: the attempt as which it runs by its entry; 0 = it does not run.
    """

    parent: JobRecord | None = None
    running: int = 0

    @property
    def requested(self) -> bool:
        """Whether the set still has this group, so that the operator creates its pods again."""
        one = self.parent
        if one is None or one.groups is None:
            return False
        return not one.deleting and set_name(self.key.name)[1] < one.groups

    def follow(self, entry: Entry) -> bool:
        before, runs = self.running, entry.state.live and entry.intent is not Intent.START
        self.running = entry.attempt if runs else 0
        return self.running != before

    def end(self) -> None:
        self._begin_again("")
        self.running = 0

    def seated(self, pod: PodRecord) -> PodRecord:
        name = self._podset(pod)
        rank = pod.rank - 1 if name == WORKER and pod.rank else pod.rank
        return replace(pod, podset=name, rank=rank)

    def assemble(self, *, in_ledger: bool) -> JobRecord | None:
        roster = self._current(in_ledger)
        current = [self.seated(pod) for pod in roster]
        if not self.uid or not (current or self.requested):
            self.record = None
            return None
        alive = [pod for pod in current if not pod.terminal]
        released = [pod for pod in alive if not pod.gated]
        running = self.running if in_ledger and self.requested else 0
        runs = bool(released) or running > 0
        podsets = tuple(self._requests(alive, runs=runs))
        base = self._base(alive or current)
        error, unsupported = self._error(roster)
        self.record = replace(
            base,
            kind=self.key.kind,
            name=self.key.name,
            uid=self.uid,
            version=max((pod.version for pod in current), default=base.version + 1),
            podsets=podsets,
            suspended=not runs,
            attempt=max((running, *(pod.attempt for pod in current))),
            status=next((s for pod in current if (s := member_of(pod).job.status)), ""),
            awaits="" if runs else self._awaits(alive, podsets),
            preempt_requested=common(pod.preempt_requested for pod in released),
            preempt_ready=bool(released) and all(pod.preempt_ready for pod in released),
            error=base.error or error,
            unsupported=base.unsupported if base.error else unsupported,
            outcome=None,
            groups=None,
            followed=True,
        )
        self.entry = None
        return self.record

    def _base(self, pods: Sequence[PodRecord]) -> JobRecord:
        """The record to which the group adds: that of the set, with the queue and the face of the first pod."""
        first = member_of(pods[0]).job if pods else self.record
        base = self.parent or self.record or first
        assert base is not None  # a group without a set has pods
        if first is None:
            return base
        return replace(base, queue=first.queue, queue_keys=first.queue_keys, face=first.face)

    def _requests(self, pods: Sequence[PodRecord], *, runs: bool) -> Iterable[PodSet]:
        """The podsets of the set, with the requests that its pods have: of a rollout, they can be those of an older template."""
        if self.parent is None:
            return self._running_podsets(pods, self.vanished) if runs else ()
        made = {pod.podset: own for pod in reversed(pods) for own in member_of(pod).job.podsets}
        return [_as_made(podset, made.get(podset.name)) for podset in self.parent.podsets]

    def _awaits(self, pods: Sequence[PodRecord], podsets: Iterable[PodSet]) -> str:
        total = sum(podset.count for podset in podsets)
        waiting = sum(not pod.terminating for pod in pods)
        if self.parent is None:
            return f"LeaderWorkerSet {set_name(self.key.name)[0]} does not exist"
        if waiting >= total or (self.parent.staged and waiting):
            return ""
        return f"{waiting} of {counted(total, 'pod')} of the group exist"

    def _uid_of(self, first: PodRecord) -> str:
        """In the order of texts, the groups of a set are in the order of their indexes."""
        if self.parent is None:
            return ""
        one = self.parent
        known = one.uid or f"{one.kind}/{one.namespace}/{one.name}"
        return f"{known}.{set_name(self.key.name)[1]:03d}.{first.uid[:8]}"

    def _podset(self, pod: PodRecord) -> str:
        if self.parent is None or not self.parent.podsets:
            return pod.podset
        names = [podset.name for podset in self.parent.podsets]
        if names[0] != LEADER or pod.rank == 0:
            return names[0]
        return names[-1]


def new_group(key: GroupKey, sets: Mapping[tuple[str, str], JobRecord]) -> PodGroup:
    """A group without pods. ``sets``: by namespace and name."""
    if key.kind != KIND:
        return PodGroup(key)
    return SetGroup(key, parent=sets.get(set_key(key)))


def set_key(key: GroupKey) -> tuple[str, str]:
    """Namespace and name of the set of a group."""
    return key.namespace, set_name(key.name)[0]


def _as_made(podset: PodSet, own: PodSet | None) -> PodSet:
    """The podset with the requests of one of its pods, if there is one."""
    if own is None:
        return podset
    return replace(
        podset,
        shape=own.shape,
        limits=own.limits,
        needs=own.needs,
        rules=own.rules,
        path=own.path,
        claims=own.claims,
    )
