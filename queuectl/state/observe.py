"""What the mirror says happened to one workload: facts for the state machine, in the order they happened.

Only what is seen counts. The same picture always gives the same events, so nothing is lost by a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from queuectl.domain.ledger import Change, Entry, Intent, State
from queuectl.domain.machine import (
    Adopt,
    Described,
    Drained,
    Echoed,
    Ended,
    Event,
    Evict,
    Gone,
    PodsReady,
    RetryDue,
    StartPolicy,
    Submitted,
    handle,
)
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import JobRecord, PodPhase, PodRecord
from queuectl.domain.words import counted
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement
from queuectl.state.adopt import running_placement
from queuectl.state.freeze import priority_of
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.usage import Usage


@dataclass(frozen=True, slots=True)
class Patience:
    """How long, in seconds, the cluster may take before a start counts as failed.

    Attributes:
        start: from the commit of an attempt until all its pods were ready once.
        unschedulable: kube-scheduler's refusal of a pinned pod, before the pin is given up.
    """

    start: float = 1800.0
    unschedulable: float = 30.0


def observe(
    entry: Entry,
    job: JobRecord | None,
    pods: Iterable[PodRecord],
    now: float,
    patience: Patience,
    names: Mapping[str, str],
) -> Iterator[Event]:
    """Events of one workload, each to be applied before the next is asked for.

    Args:
        entry: as the ledger has it; the caller restarts the iteration after each state change.
        job: its object, None when the watch no longer shows it.
        pods: all pods it controls.
        now: unix seconds.
        patience: time-outs.
        names: hostname label -> node name.
    """
    if job is None:
        yield Gone()
        return
    if job.outcome is not None:
        yield Ended(job.outcome)
        return
    match entry.state:
        case State.STARTING | State.RUNNING:
            yield from _live(entry, job, list(pods), now, patience, names)
        case State.EVICTING:
            if _drained(entry, job, pods):
                yield Drained()
        case _:
            yield from _waiting(entry, job, now)


def _waiting(entry: Entry, job: JobRecord, now: float) -> Iterator[Event]:
    if not job.suspended:
        text = "the job was resumed without queuectl; it is suspended again and keeps its place"
        yield Evict(Reason(Code.RESUMED_OUTSIDE, text))
    elif entry.state is State.BACKOFF and entry.requeue_at is not None and now >= entry.requeue_at:
        yield RetryDue()


def _live(
    entry: Entry,
    job: JobRecord,
    pods: list[PodRecord],
    now: float,
    patience: Patience,
    names: Mapping[str, str],
) -> Iterator[Event]:
    started = not job.suspended and job.attempt == entry.attempt
    if entry.intent is Intent.START and started:
        yield Echoed()
    elif entry.intent is None and job.suspended:
        yield Evict(Reason(Code.SUSPENDED_OUTSIDE, "the job was suspended without queuectl"))
        return
    current = [pod for pod in pods if pod.attempt == entry.attempt]
    trouble = _trouble(entry, job, current, now, patience, names)
    if trouble is not None:
        yield trouble
    elif entry.state is State.STARTING and started and _all_ready(job, current):
        yield PodsReady()


def _other_size(placed: PodSetPlacement, podset: PodSet, job: JobRecord) -> bool:
    """Whether the job's controller keeps another number of pods than was planned.

    Fewer slots than the podset's full size are right for one adopted when some of its completions were done, and for one
    that starts with fewer pods; of that the job itself knows once it is resumed.
    """
    least = job.expects(podset)
    if job.suspended:
        least = min(least, placed.pods_of(podset))
    return placed.count > 0 and not least <= placed.count <= podset.count


def _trouble(
    entry: Entry,
    job: JobRecord,
    pods: list[PodRecord],
    now: float,
    patience: Patience,
    names: Mapping[str, str],
) -> Evict | None:
    placed = entry.placement.podsets if entry.placement else ()
    asked = {p.name: p for p in job.podsets}
    if any(p.podset in asked and _other_size(p, asked[p.podset], job) for p in placed):
        return Evict(
            Reason(Code.CHANGED_OUTSIDE, "the number of its pods was changed while it ran")
        )
    for pod in pods:
        podset = asked.get(pod.podset)
        if podset is not None and not pod.terminal and not pod.requests.fits(podset.shape.requests):
            text = f"pod {pod.name} asks {pod.requests!r}, its template {podset.shape.requests!r}"
            return Evict(Reason(Code.PODS_LARGER_THAN_ASKED, text))
    stuck = [
        pod
        for pod in pods
        if pod.unschedulable_since is not None
        and not pod.gated
        and pod.phase is PodPhase.PENDING
        and now - pod.unschedulable_since >= patience.unschedulable
    ]
    if stuck:
        pins = sorted({names.get(pod.pin, pod.pin) for pod in stuck if pod.pin})
        text = (
            f"kube-scheduler refuses {counted(len(stuck), 'pinned pod')} on {', '.join(pins[:3])}"
        )
        return Evict(Reason(Code.PIN_UNSCHEDULABLE, text), excluded=tuple(pins))
    late = entry.state is State.STARTING and now - (entry.started_at or now) >= patience.start
    if late:
        text = f"not all pods were ready within {patience.start:.0f} s"
        return Evict(Reason(Code.PODS_READY_TIMEOUT, text))
    return None


def _all_ready(job: JobRecord, pods: list[PodRecord]) -> bool:
    ready: dict[str, int] = {}
    for pod in pods:
        if pod.phase is PodPhase.SUCCEEDED or (pod.ready and not pod.terminating):
            ready[pod.podset] = ready.get(pod.podset, 0) + 1
    return all(ready.get(podset.name, 0) >= job.expects(podset) for podset in job.podsets)


def _drained(entry: Entry, job: JobRecord, pods: Iterable[PodRecord]) -> bool:
    # A start that never landed is withdrawn by a newer write, which shows as this attempt on the suspended object.
    suspended = job.suspended and job.drained and job.attempt >= entry.attempt
    return suspended and all(pod.terminal for pod in pods)


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look found: changes to commit, at most one per workload, and whether plans may differ now."""

    changes: list[Change]
    plan_again: bool


class Observer:
    """Looks at what the mirror says changed since the last look."""

    def __init__(
        self,
        mirror: Mirror,
        ledger: Ledger,
        usage: Usage,
        patience: Patience,
        backoff: StartPolicy,
    ) -> None:
        self._mirror = mirror
        self._ledger = ledger
        self._usage = usage
        self._patience = patience
        self._backoff = backoff
        self._plan_again = False

    def look(self, config: QueueConfig, now: float) -> Seen:
        """Take the mirror's marks and turn them into changes."""
        mirror = self._mirror
        moved, mirror.moved_pods = mirror.moved_pods, set()
        touched, mirror.touched = mirror.touched, set()
        edited, mirror.edited = mirror.edited, set()
        self._plan_again = self._usage.refresh(moved) or mirror.planning_changed
        self._plan_again |= any(map(self._waits, edited))
        mirror.planning_changed = False
        changes = []
        # In the order of the API server's revisions, so that of two jobs seen together the first created is first in line.
        for number, uid in enumerate(sorted(touched, key=self._revision)):
            change = self._one(uid, config, now + number * 1e-6)
            if change is not None:
                changes.append(change)
        return Seen(changes, self._plan_again)

    def _one(self, uid: str, config: QueueConfig, now: float) -> Change | None:
        """All that is new about one workload, as one change."""
        before = self._ledger.get(uid)
        job = self._mirror.jobs.get(uid)
        if before is None:
            return self._submitted(job, config, now) if job and job.outcome is None else None
        last: Change | None = None
        pods = list(self._mirror.pods_of(uid))
        for event in observe(before, job, pods, now, self._patience, self._usage.names):
            change = handle(last.after if last else before, event, now, self._backoff)
            last = _joined(last, change)
        if last is not None and last.after.state is State.EVICTING and before.state.waiting:
            last = self._adopted(before, job, config, now) or last
        if last is None and job is not None and before.state.waiting:
            last = handle(before, self._described(job, config), now)
            self._plan_again |= last is not None
        if last is not None and last.after.state is not before.state:
            self._plan_again = True
        if before.state.live and self.on_lost_nodes(before):
            self._plan_again = (
                True  # one of its pods there may just have gone, so that its slot can move
            )
        return last

    def on_lost_nodes(self, entry: Entry) -> bool:
        """Whether any node of its placement is gone or not ready."""
        nodes = self._mirror.nodes
        placed = entry.placement.podsets if entry.placement is not None else ()
        return any(
            name not in nodes or not nodes[name].node.ready for p in placed for name, _ in p.nodes
        )

    def _revision(self, uid: str) -> tuple[int, str]:
        job = self._mirror.jobs.get(uid)
        return (job.version if job is not None else 0, uid)

    def _waits(self, uid: str) -> bool:
        entry = self._ledger.get(uid)
        return entry is not None and entry.state.waiting

    def _submitted(self, job: JobRecord, config: QueueConfig, now: float) -> Change | None:
        self._plan_again = True
        described = self._described(job, config)
        new = handle(None, Submitted(job, described.priority, described.cluster_queue), now)
        placement = self._running(job, config)
        if new is None or placement is None:
            return new
        return _joined(new, handle(new.after, Adopt(placement, job.attempt), now))

    def _adopted(
        self, entry: Entry, job: JobRecord | None, config: QueueConfig, now: float
    ) -> Change | None:
        """A gang that runs as a later attempt than the ledger knows: the database is from the past."""
        if job is None or job.attempt <= entry.attempt:
            return None
        placement = self._running(job, config)
        return handle(entry, Adopt(placement, job.attempt), now) if placement else None

    def _running(self, job: JobRecord, config: QueueConfig) -> Placement | None:
        pods = self._mirror.pods_of(job.uid)
        return running_placement(job, pods, self._mirror.fleet.by_name, config)

    def _described(self, job: JobRecord, config: QueueConfig) -> Described:
        queue = config.cluster_queue_of(job.namespace, job.queue)
        classes = self._mirror.priority_classes
        priority = priority_of(job, config, {name: c.value for name, c in classes.items()})
        return Described(job.queue or "", queue.name if queue else "", priority, job.gpus, job.pods)


def _joined(first: Change | None, then: Change | None) -> Change | None:
    """Two changes of one workload as one; at most one of them has a history line."""
    if first is None or then is None:
        return first or then
    return Change(first.before, then.after, then.at, then.note or first.note)
