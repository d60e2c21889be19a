"""The record of a workload that consists of pods alone: it follows from its pods, and from its entry in the ledger.

A group has the uid of its first pod. It keeps that uid while the ledger has its entry, even while none of its pods exists, because its
maker creates its pods again after an eviction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, NamedTuple, cast

from queuectl.domain.gates import INVALID, MOST_DEPENDENCIES, distinct_gates
from queuectl.domain.jobs import JobOutcome, JobRecord, PodPhase, PodRecord
from queuectl.domain.ledger import Entry, Intent
from queuectl.domain.words import counted
from queuectl.domain.workload import PodSet, PodShape
from queuectl.objects.kinds.leaderworkerset import KIND as SET
from queuectl.objects.kinds.leaderworkerset import LEADER, WORKER, set_name
from queuectl.objects.kinds.pods import MOST_PODS, POD, POD_GROUP
from queuectl.objects.kinds.roster import Fact, Roster, member_of
from queuectl.objects.kubernetes.templates import too_much

_NAMED: Final = 10  # values in a message
_STATEFUL_SET: Final = "StatefulSet"


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


class _Source(NamedTuple):
    """The StatefulSet of a pod, and what its pods request. New pods of the same source replace those that were deleted."""

    uid: str
    podset: str
    queue: str | None
    total: int | None


def _source(pod: PodRecord) -> _Source | None:
    """None if no StatefulSet creates the pod."""
    if pod.owner_kind != _STATEFUL_SET:
        return None
    member = member_of(pod)
    return _Source(pod.owner, pod.podset, member.job.queue, member.total)


@dataclass(slots=True)
class PodGroup:
    """One workload.

    Attributes:
        key: its identity in the cluster.
        uid: its identity in the ledger; "" before its first record.
        pods: those that were released for it, and those that never were released.
        other_pods: the other pods of its name, of earlier workloads.
        version: the largest one that any pod of its name had.
        total: the number of pods that it requests.
        started: the podsets with which it started, while any of its pods is released.
        vanished: pods by podset that succeeded and were deleted since.
        running: the attempt as which it runs by its entry; 0 = it does not run.
        source: of its released pods, as :func:`_source` has it.
        entry: the entry of the ledger, as it was read when this process began; None = none, or no longer needed.
        record: the last one.
    """

    key: GroupKey
    uid: str = ""
    pods: Roster = field(default_factory=Roster)
    other_pods: Roster = field(default_factory=Roster)
    version: int = 0
    total: int = 1
    started: dict[str, PodSet] = field(default_factory=dict)
    vanished: Counter[str] = field(default_factory=Counter)
    running: int = 0
    source: _Source | None = None
    entry: Entry | None = None
    record: JobRecord | None = None

    def follow(self, entry: Entry) -> bool:
        """Take note of its entry. Returns whether its record can differ now."""
        before, runs = self.running, entry.state.live and entry.intent is not Intent.START
        self.running = entry.attempt if runs else 0
        return self.running != before

    def end(self) -> None:
        """Its entry is Finished, or no longer exists."""
        self.running, self.source = 0, None

    def get(self, uid: str) -> PodRecord | None:
        """One of all pods of its name, or None."""
        return self.pods.get(uid) or self.other_pods.get(uid)

    def put(self, pod: PodRecord) -> None:
        """A pod of its name that is new or has changed."""
        self.version = max(self.version, pod.version)
        into, out_of = self.pods, self.other_pods
        if not self._has(pod):
            into, out_of = out_of, into
        if out_of.get(pod.uid) is not None:
            out_of.pop(pod.uid)
        into.put(pod)

    def pop(self, uid: str) -> None:
        """Remove a pod of its name."""
        if self.other_pods.get(uid) is not None:
            self.other_pods.pop(uid)
            return
        pod = self.pods.pop(uid)
        if pod.phase is PodPhase.SUCCEEDED and member_of(pod).workload in ("", self.uid):
            self.vanished[pod.podset] += 1

    def become(self, uid: str) -> None:
        """It is the workload with this uid."""
        if uid != self.uid:
            self.uid = uid
            self._sort()

    def _sort(self) -> None:
        """Separate its own pods from the others again."""
        everyone = [*self.pods, *self.other_pods]
        self.pods = Roster(pod for pod in everyone if self._has(pod))
        self.other_pods = Roster(pod for pod in everyone if not self._has(pod))

    def _has(self, pod: PodRecord) -> bool:
        """Whether a pod of its name is its own. Before it has a uid, all are."""
        return not self.uid or member_of(pod).workload in ("", self.uid)

    def seated(self, pod: PodRecord) -> PodRecord:
        """The pod with the podset and the rank that it has in the group."""
        return pod

    def assemble(self, *, in_ledger: bool) -> JobRecord | None:
        """The record of the current pods; None if there is nothing to describe. ``in_ledger``: the ledger has it, not Finished."""
        current = self._current(in_ledger)
        released = current.count(Fact.RELEASED)
        held = self._held(current) if in_ledger else 0
        if not current:
            return self._absent(held)
        pod = current.first(Fact.ALIVE) or current.oldest
        first = member_of(pod)
        self.total = first.total or 1
        succeeded = Counter({str(name): n for name, n in current.counts(Fact.SUCCEEDED).items()})
        awaits = ""
        if released or held:
            podsets = self._running_podsets(current, succeeded)
        else:
            self.started = {}
            podsets, awaits = self._waiting_podsets(current, succeeded)
        self.entry = None
        if not podsets and self.record is not None:
            podsets = list(self.record.podsets)  # all its pods have ended
        shown = current.first(Fact.STATUS)
        gates, too_many = self._gates(current)
        error, unsupported = (too_many, False) if too_many else self._error(current)
        error = error or too_much(podsets)
        self.record = replace(
            first.job,
            kind=self.key.kind,
            name=first.job.name if self.key.kind == POD else self.key.name,
            uid=self.uid,
            version=current.version,
            podsets=tuple(podsets),
            suspended=not (released or held),
            attempt=max((held, *cast(Counter[int], current.counts(Fact.ATTEMPT)))),
            outcome=self._outcome(current, succeeded),
            status=member_of(shown).job.status if shown is not None else "",
            deleting=current.count(Fact.TERMINATING) == len(current),
            staged=first.fast,
            made_by=pod.owner_kind if first.group else "",
            awaits=awaits,
            gates=gates,
            preempt_requested=common(map(str, current.counts(Fact.NOTICE))),
            preempt_ready=0 < released == current.count(Fact.READY_TO_STOP),
            error=error,
            unsupported=unsupported,
        )
        return self.record

    def _held(self, pods: Roster) -> int:
        """The attempt as which it runs, even if none of its pods is released: its StatefulSet creates the same pods again.

        0: it does not run, or not without released pods.
        """
        released, new = pods.first(Fact.RELEASED), pods.first(Fact.NEW)
        if released is not None:
            self.source = _source(released)
        same = new is None or _source(new) == self.source
        return self.running if self.source is not None and same else 0

    def _absent(self, held: int) -> JobRecord | None:
        if self.record is None:
            if self.entry is None:
                return None
            self.total = self.entry.pods
            self.record = _remembered(self.entry)
        if not held:
            self.started = {}
        awaits = f"none of its {counted(self.total, 'pod')} exists"
        last = self.record
        self.record = replace(
            last,
            version=last.version + 1,
            absent=True,
            awaits=awaits,
            suspended=not held,
            attempt=held or last.attempt,
            deleting=False,
        )
        return self.record

    def _current(self, in_ledger: bool) -> Roster:
        """Its own pods, after it has a uid."""
        new = self.pods.first(Fact.NEW)
        if self.record is not None and self.record.outcome is not None and new and not in_ledger:
            self._begin_again(new.uid)
        if not self.uid and self.pods:
            live = self._live()
            named = member_of(live).workload if live is not None else ""
            self.become(named or self._uid_of(new or self.pods.oldest))
        return self.pods

    def _live(self) -> PodRecord | None:
        """The first pod of a workload that has not ended."""
        for workload in self.pods.distinct(Fact.MEMBER):
            first = self.pods.first(Fact.MEMBER, workload)
            ended = self.pods.count(Fact.MEMBER, workload) == self.pods.count(
                Fact.ENDED_MEMBER, workload
            )
            if first is None or workload == "":
                continue
            done = self.pods.count(Fact.SUCCEEDED_MEMBER, workload)
            if not ended or done < (member_of(first).total or 1):
                return first
        return None

    def _uid_of(self, first: PodRecord) -> str:
        return first.uid

    def _begin_again(self, uid: str) -> None:
        self.record, self.entry = None, None
        self.started, self.vanished = {}, Counter()
        self.become(uid)

    def _running_podsets(self, pods: Iterable[PodRecord], succeeded: Counter[str]) -> list[PodSet]:
        if not self.started:
            before = self.record
            if self.entry is not None and self.entry.placement is not None:
                self.started = _placed(self.entry, pods, succeeded, self.total)
                left = self.total - sum(_slots(self.entry).values()) - succeeded.total()
                # Then the placement has no slots of pods that have succeeded, whether they still exist or not.
                if left >= 0:
                    self.vanished = Counter({"": left})
            elif before is not None and before.suspended and before.podsets:
                self.started = {podset.name: podset for podset in before.podsets}
            else:
                self.started = _grouped([p for p in pods if p.phase is not PodPhase.FAILED])
        return [
            replace(podset, count=podset.count - self.vanished[name])
            for name, podset in self.started.items()
            if podset.count > self.vanished[name]
        ]

    def _waiting_podsets(self, pods: Roster, succeeded: Counter[str]) -> tuple[list[PodSet], str]:
        """The podsets that it requests, and the pods for which it waits. Pods beyond its number stay gated."""
        self._recall(succeeded, can_succeed=member_of(pods.oldest).succeeds)
        needed = max(0, self.total - succeeded.total() - self.vanished.total())
        waiting = pods.counts(Fact.WAITING).total()
        if waiting > needed:
            gated = (p for p in pods if p.waits)
            counts = _grouped(islice(gated, needed))
        else:
            counts = _waiting(pods)
        short = needed - min(needed, waiting)
        if short and counts:
            name = next(iter(counts))
            counts[name] = replace(counts[name], count=counts[name].count + short)
        podsets = list(counts.values()) or list(self.record.podsets if self.record else ())
        complete = not short or (member_of(pods.oldest).fast and waiting > 0)
        text = f"{min(waiting, needed)} of {counted(needed, 'pod')} of the group exist"
        return podsets, "" if complete else text

    def _recall(self, succeeded: Counter[str], *, can_succeed: bool) -> None:
        """After a restart: the pods that had succeeded and were deleted are those that its entry no longer requested.

        Otherwise a difference means that its pods were created again in another number while no leader watched.
        """
        entry = self.entry
        if entry is not None and entry.state.waiting and entry.pods and entry.attempt:
            gone = self.total - entry.pods - succeeded.total() if can_succeed else 0
            self.vanished = Counter({"": max(0, gone)})

    def _outcome(self, pods: Roster, succeeded: Counter[str]) -> JobOutcome | None:
        if succeeded.total() + self.vanished.total() >= self.total:
            return JobOutcome.SUCCEEDED
        ended = pods.count(Fact.ENDED) == len(pods)
        return JobOutcome.FAILED if ended and pods.count(Fact.FINAL) else None

    def _gates(self, pods: Roster) -> tuple[tuple[str, ...], str | None]:
        """The gates of all pods, and the error if they are too many: any pod of a group can name what the group waits for."""
        lists = cast(list[tuple[str, ...]], pods.distinct(Fact.GATES))
        gates = distinct_gates(gate for each in lists[:MOST_DEPENDENCIES] for gate in each)
        number = max(len(gates), len(lists))
        if number <= MOST_DEPENDENCIES:
            return gates, None
        error = (
            f"the pods of group {self.key.name} have {number} different gates or lists of gates and of jobs in queuectl.dev/after; "
            f"at most {MOST_DEPENDENCIES} are possible"
        )
        return (INVALID,), error

    def _error(self, pods: Roster) -> tuple[str | None, bool]:
        """The error of the first wrong pod, or of pods that contradict each other, and whether it is about a missing feature."""
        wrong = pods.first(Fact.ERROR)
        if wrong is not None:
            job = member_of(wrong).job
            text = f"pod {wrong.name}: {job.error}" if member_of(wrong).group else job.error
            return text, job.unsupported
        if len(pods) > MOST_PODS:
            text = f"the group has {len(pods)} pods; at most {MOST_PODS} are possible"
            return text, False
        for what, fact in (
            ("queues", Fact.QUEUE),
            ("values of pod-group-total-count", Fact.TOTAL),
        ):
            values = sorted(map(str, pods.counts(fact)))
            if len(values) > 1:
                text = f"the pods of group {self.key.name} have different {what}: {', '.join(values[:_NAMED])}"
                return text, False
        return None, False


def _waiting(pods: Roster) -> dict[str, PodSet]:
    """The podsets of the pods that wait, in the order of their first pods."""
    found: dict[str, PodSet] = {}
    for name in pods.distinct(Fact.WAITING):
        first = pods.first(Fact.WAITING, name)
        for podset in member_of(first).job.podsets if first is not None else ():
            found[podset.name] = replace(podset, count=pods.count(Fact.WAITING, name))
    return found


def _grouped(pods: Iterable[PodRecord]) -> dict[str, PodSet]:
    """The podsets of these pods, in the order of their first pods."""
    found: dict[str, PodSet] = {}
    counts: Counter[str] = Counter()
    for pod in pods:
        for podset in member_of(pod).job.podsets:
            found.setdefault(podset.name, podset)
            counts[podset.name] += 1
    return {name: replace(podset, count=counts[name]) for name, podset in found.items()}


def _placed(
    entry: Entry, pods: Iterable[PodRecord], succeeded: Counter[str], total: int
) -> dict[str, PodSet]:
    """The podsets of a running gang, as its placement has them. Slots of pods that succeeded are possibly free already."""
    assert entry.placement is not None
    shapes = _grouped(pods)
    planned = entry.planned.requests if entry.planned is not None else {}
    placed = _slots(entry)
    freed = total - sum(placed.values()) >= succeeded.total()
    found = {}
    for name, count in placed.items():
        shape = shapes.get(name)
        if shape is None:
            if name not in planned:
                continue
            shape = PodSet(name, 1, PodShape(planned[name]))
        found[name] = replace(shape, count=count + (succeeded[name] if freed else 0))
    return found


def _slots(entry: Entry) -> dict[str, int]:
    """The slots of its placement, by podset."""
    podsets = entry.placement.podsets if entry.placement is not None else ()
    return {p.podset: p.pods if p.pods is not None else p.count for p in podsets}


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


def common(texts: Iterable[str]) -> str:
    """The value of all; "" if they differ."""
    found = set(texts)
    return found.pop() if len(found) == 1 else ""


# ---- A group of a LeaderWorkerSet
#
# Its record also follows from the set. The operator creates the pods of a group again when one of them fails. The group keeps its
# admission in the meantime, even while none of its pods exists or is released: only its entry shows that it runs.


@dataclass(slots=True)
class SetGroup(PodGroup):
    """One group.

    Attributes:
        parent: the set of its name; None while it is not known.
    """

    parent: JobRecord | None = None

    @property
    def own_set(self) -> JobRecord | None:
        """The set to which it belongs; None if that is not known, or another set has its name now."""
        one = self.parent
        if one is None or (self.uid and not self.uid.startswith(f"{_identity(one)}.")):
            return None
        return one

    @property
    def requested(self) -> bool:
        """Whether the set still has this group, so that the operator creates its pods again."""
        one = self.own_set
        if one is None or one.groups is None:
            return False
        return not one.deleting and set_name(self.key.name)[1] < one.groups

    def belong(self, parent: JobRecord | None) -> None:
        """The set of its name is new, has changed or was deleted."""
        before, self.parent = self.own_set, parent
        if (before is None) != (self.own_set is None):
            self._sort()

    def _has(self, pod: PodRecord) -> bool:
        """New pods are those of the set that has the name now."""
        if self.own_set is None and self.uid:
            return member_of(pod).workload == self.uid
        return PodGroup._has(self, pod)

    def end(self) -> None:
        PodGroup.end(self)
        self._begin_again("")

    def seated(self, pod: PodRecord) -> PodRecord:
        name = self._podset(pod)
        rank = pod.rank - 1 if name == WORKER and pod.rank else pod.rank
        return replace(pod, podset=name, rank=rank)

    def assemble(self, *, in_ledger: bool) -> JobRecord | None:
        current = self._current(in_ledger)
        if not self.uid or not (current or self.requested):
            self.record = None
            return None
        released = current.count(Fact.RELEASED)
        running = self.running if in_ledger and self.requested else 0
        runs = released > 0 or running > 0
        podsets = tuple(self._requests(current, runs=runs))
        base = self._base(current)
        shown = current.first(Fact.STATUS)
        error, unsupported = self._error(current)
        refused = base.error if not runs else None  # an error of the set concerns its next pods
        self.record = replace(
            base,
            kind=self.key.kind,
            name=self.key.name,
            uid=self.uid,
            version=current.version if current else base.version + 1,
            podsets=podsets,
            suspended=not runs,
            attempt=max((running, *cast(Counter[int], current.counts(Fact.ATTEMPT)))),
            status=member_of(shown).job.status if shown is not None else "",
            awaits="" if runs else self._awaits(current, podsets),
            preempt_requested=common(map(str, current.counts(Fact.NOTICE))),
            preempt_ready=0 < released == current.count(Fact.READY_TO_STOP),
            error=refused or error,
            unsupported=base.unsupported if refused else unsupported,
            outcome=None,
            made_by=SET,
            groups=None,
            followed=True,
        )
        self.entry = None
        return self.record

    def _base(self, pods: Roster) -> JobRecord:
        """The record to which the group adds: that of the set, with the queue and the face of the first pod."""
        pod = pods.first(Fact.ALIVE) or (pods.oldest if pods else None)
        first = member_of(pod).job if pod is not None else self.record
        base = self.own_set or self.record or first
        assert base is not None  # a group without a set has pods
        if first is None:
            return base
        return replace(base, queue=first.queue, queue_keys=first.queue_keys, face=first.face)

    def _requests(self, pods: Roster, *, runs: bool) -> Iterable[PodSet]:
        """The podsets of the set, with the requests that its pods have: of a rollout, they can be those of an older template.

        A set whose new template has an error has no podsets. A group that runs then keeps its own.
        """
        own, before = self.own_set, self.record
        known = own.podsets if own is not None else ()
        if not known and runs:
            known = before.podsets if own is not None and before is not None else ()
            if not known:
                alive = (self.seated(pod) for pod in pods if not pod.terminal)
                return self._running_podsets(alive, self.vanished)
        # The last one counts: the first of all, also where leader and workers have one podset.
        first = filter(None, map(pods.first, (Fact.FOLLOWS, Fact.LEADS, Fact.ALIVE)))
        made = {self._podset(pod): one for pod in first for one in member_of(pod).job.podsets}
        return [_as_made(podset, made.get(podset.name)) for podset in known]

    def _awaits(self, pods: Roster, podsets: Iterable[PodSet]) -> str:
        total = sum(podset.count for podset in podsets)
        waiting = pods.count(Fact.STAYS)
        own = self.own_set
        if own is None:
            return f"LeaderWorkerSet {set_name(self.key.name)[0]} does not exist"
        if waiting >= total or (own.staged and waiting):
            return ""
        return f"{waiting} of {counted(total, 'pod')} of the group exist"

    def _uid_of(self, first: PodRecord) -> str:
        """In the order of texts, the groups of a set are in the order of their indexes."""
        if self.parent is None:
            return ""
        return f"{_identity(self.parent)}.{set_name(self.key.name)[1]:03d}.{first.uid[:8]}"

    def _podset(self, pod: PodRecord) -> str:
        own = self.own_set
        if own is None or not own.podsets:
            return pod.podset
        names = [podset.name for podset in own.podsets]
        if names[0] != LEADER or pod.rank == 0:
            return names[0]
        return names[-1]


def new_group(key: GroupKey, sets: Mapping[tuple[str, str], JobRecord]) -> PodGroup:
    """A group without pods. ``sets``: by namespace and name."""
    if key.kind != SET:
        return PodGroup(key)
    return SetGroup(key, parent=sets.get(set_key(key)))


def _identity(parent: JobRecord) -> str:
    """The prefix of the uids of a set's groups. In files, a set can be without a uid."""
    return parent.uid or f"{parent.kind}/{parent.namespace}/{parent.name}"


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
        overhead=own.overhead,
        needs=own.needs,
        rules=own.rules,
        path=own.path,
        claims=own.claims,
        has_deadline=own.has_deadline,
    )
