"""Gangs that do not use their GPUs: which to warn, which other gangs can evict, and which to evict without a preemptor.

Each step follows from an evaluation of samples, never from time alone: a grace period ends when an evaluation after its end finds
the gang idle. A gang is evicted as idle only if each evaluation since a warning by this leader found it idle. Thus warnings
are kept in memory only, and the next leader starts with its own warning.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from queuectl.domain.events import Evict, NoteAdded
from queuectl.domain.gpus import as_number
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import LIVE, Entry, EntryChange, State
from queuectl.domain.plan import Cost
from queuectl.domain.queues import ClusterQueue, IdleReclaim, OptOut, QueueConfig, ReclaimMode
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.utilization import GangUse, UseState
from queuectl.domain.words import counted_gpus, format_time
from queuectl.lifecycle.machine import handle
from queuectl.objects.keys import IDLE_RECLAIM, PREFIX
from queuectl.objects.times import parse_time
from queuectl.planner.preempt.cost import costs, sizes_of
from queuectl.planner.preempt.protections import protected_until, why_protected
from queuectl.state.claims import exempt_from_idle_reclaim
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror

GangReader = Callable[[Entry, JobRecord, QueueConfig, float], Admitted | None]
"""A running gang as the planner sees it, at unix seconds."""


class IdlenessResult(NamedTuple):
    """The result of an evaluation: warnings and evictions, and whether plans can differ now."""

    due: bool
    plan_again: bool


# ReclaimMode lists the modes from the mildest to the strictest.
_STRICTNESS = {mode: number for number, mode in enumerate(ReclaimMode)}


@dataclass(frozen=True, slots=True)
class _Warned:
    """An idle gang, with the times of its warnings and the end of its grace period that they announced (unix seconds).

    Attributes:
        mode: the consequence that they announced.
    """

    attempt: int
    mode: ReclaimMode
    ends: float
    first: float
    second: float | None = None

    def allows(self, entry: Entry, rule: IdleReclaim) -> bool:
        """Whether its warnings are for this start, and announced what the policy does now, or more."""
        return self.attempt == entry.attempt and _STRICTNESS[rule.mode] <= _STRICTNESS[self.mode]

    def grace_ends(self, rule: IdleReclaim) -> float:
        return max(self.ends, self.first + rule.grace)


class Idleness:
    """Decides which gangs are idle, for one leadership."""

    def __init__(
        self,
        mirror: Mirror,
        ledger: Callable[[], Ledger],
        read_gang: GangReader,
        fresh_seconds: float,
        borrowing: Callable[[], Container[str]] = tuple,
    ) -> None:
        """Start without a measurement.

        Args:
            mirror: what the watch shows.
            ledger: the workloads.
            read_gang: of a gang, to compute the cost of its eviction.
            fresh_seconds: the age in seconds after which an evaluation is no longer valid.
            borrowing: ClusterQueues that use more than their nominal quota now.
        """
        self._borrowing = borrowing
        self._borrowed: Container[str] = ()
        self._mirror = mirror
        self._ledger = ledger
        self._read_gang = read_gang
        self._fresh = fresh_seconds
        self._uses: Mapping[str, GangUse] = {}
        self._warned: dict[str, _Warned] = {}
        self._due: set[str] = set()
        self._takeable: frozenset[str] = frozenset()
        self._grown: frozenset[str] = frozenset()

    def evaluated(
        self, uses: Mapping[str, GangUse], config: QueueConfig, now: float
    ) -> IdlenessResult:
        """Store the GPU utilization of each gang, by uid, as of now."""
        if any(now - use.at > self._fresh for use in self._uses.values()):
            self._takeable = frozenset()  # plans since then contain no idle gang
        self._uses = uses
        self._borrowed = self._borrowing()
        self._grown = frozenset(self._grown_and_working())
        idle = {
            uid: found
            for uid, use in uses.items()
            if use.state is UseState.IDLE and (found := self._idle(uid, config)) is not None
        }
        for uid in self._warned.keys() - idle.keys():
            del self._warned[uid]
        self._due = {
            uid for uid, gang in idle.items() if self._step(*gang, config, now) is not None
        }
        before = self._takeable
        self._takeable = frozenset(
            uid
            for uid, (entry, job, _) in idle.items()
            if self.since(entry, job, config, now) is not None
        )
        return IdlenessResult(bool(self._due), self._takeable != before)

    def since(self, entry: Entry, job: JobRecord, config: QueueConfig, now: float) -> float | None:
        """The start of its idle time (unix seconds), if it can be evicted as idle now; otherwise None."""
        warned, use = self._warned.get(entry.uid), self._uses.get(entry.uid)
        queue = config.cluster_queues.get(entry.cluster_queue)
        if warned is None or use is None or queue is None:
            return None
        if not (warned.allows(entry, queue.idle_reclaim) and self._counts(entry, job, queue, use)):
            return None
        over = use.at >= warned.grace_ends(queue.idle_reclaim)
        return use.since if over and self._is_fresh(use, now) else None

    def changes(self, config: QueueConfig, now: float, busy: Container[str]) -> list[EntryChange]:
        """Warnings that are due after the last evaluation, and evictions for the mode Always.

        Args:
            config: in use.
            now: unix seconds.
            busy: uids of gangs that change for other reasons; they are considered after the next evaluation.
        """
        due, self._due = self._due, set()
        found = []
        for uid in sorted(due):
            known = None if uid in busy else self._idle(uid, config)
            if known is None:
                continue
            event = self._step(*known, config, now)
            change = handle(known[0], event, now, config.rules) if event is not None else None
            if change is not None:
                found.append(change)
        return found

    def note(self, changes: Iterable[EntryChange]) -> None:
        """Keep only warnings that are in the database."""
        for change in changes:
            if change.note is None or change.note.reason.code is not Code.IDLE_GPUS:
                continue
            uid, details = change.after.uid, change.note.reason.details
            warned = self._warned.get(uid)
            mode, ends = ReclaimMode(details["mode"]), parse_time(details["graceEnds"])
            if warned is None or details["warning"] == 1:
                self._warned[uid] = _Warned(change.after.attempt, mode, ends, change.at)
            else:
                self._warned[uid] = replace(warned, mode=mode, ends=ends, second=change.at)

    def _idle(self, uid: str, config: QueueConfig) -> tuple[Entry, JobRecord, ClusterQueue] | None:
        """A gang that the last evaluation found idle, in a queue with a policy for idle gangs."""
        entry, job, use = self._ledger().get(uid), self._mirror.jobs.get(uid), self._uses.get(uid)
        if entry is None or job is None or use is None:
            return None
        queue = config.cluster_queues.get(entry.cluster_queue)
        if queue is None or not self._counts(entry, job, queue, use):
            return None
        return entry, job, queue

    def _grown_and_working(self) -> Iterator[str]:
        """The elastic gangs to which a pod was added that is not idle. It would end with its gang."""
        for entry in self._ledger().entries(*LIVE):
            job, use = self._mirror.jobs.get(entry.uid), self._uses.get(entry.uid)
            idle = use is not None and use.state is UseState.IDLE
            if job is not None and job.index is not None and job.index.grown and not idle:
                yield job.index.job_uid

    def _counts(self, entry: Entry, job: JobRecord, queue: ClusterQueue, use: GangUse) -> bool:
        """Whether it is idle, and the policy of its queue and its job allow a consequence."""
        if job.outcome is not None or job.deleting or not _counts(entry, use, queue.idle_reclaim):
            return False
        if entry.uid in self._grown:
            return False
        return not exempt_from_idle_reclaim(job, queue, borrowing=queue.name in self._borrowed)

    def _is_fresh(self, use: GangUse, now: float) -> bool:
        return now - use.at <= self._fresh

    def _step(
        self, entry: Entry, job: JobRecord, queue: ClusterQueue, config: QueueConfig, now: float
    ) -> NoteAdded | Evict | None:
        """The step that is due for an idle gang. Each step needs an evaluation after the step before."""
        use, warned, rule = self._uses[entry.uid], self._warned.get(entry.uid), queue.idle_reclaim
        if not self._is_fresh(use, now):
            return None
        if warned is None or not warned.allows(entry, rule):
            gang = self._read_gang(entry, job, config, now)
            return NoteAdded(_warning(entry, gang, use, queue, now, now + rule.grace, 1))
        ends = warned.grace_ends(rule)
        if warned.second is None:
            if use.at < (warned.first + ends) / 2:
                return None
            gang = self._read_gang(entry, job, config, now)
            return NoteAdded(_warning(entry, gang, use, queue, now, ends, 2))
        over = use.at > warned.second and use.at >= ends
        if rule.mode is not ReclaimMode.ALWAYS or not over:
            return None
        gang = self._read_gang(entry, job, config, now)
        if gang is None or protected_until(gang, queue, now) is not None:
            return None
        sizes = sizes_of(Snapshot(now, self._mirror.fleet, config))
        return Evict(_taken(use, rule, costs([gang], now, sizes)[entry.uid]))


def _counts(entry: Entry, use: GangUse, rule: IdleReclaim) -> bool:
    """Whether it is idle, and the policy of its queue allows a consequence."""
    if use.state is not UseState.IDLE or use.attempt != entry.attempt:
        return False
    whole = entry.state is State.RUNNING and entry.unready_since is None
    started = entry.started_at if entry.started_at is not None else entry.since
    rested = not entry.evictions or use.at >= started + rule.cooldown
    return rule.mode is not ReclaimMode.OFF and whole and rested


def _warning(
    entry: Entry,
    gang: Admitted | None,
    use: GangUse,
    queue: ClusterQueue,
    now: float,
    until: float,
    number: int,
) -> Reason:
    """``until``: the end of the grace period (unix seconds)."""
    rule, ends = queue.idle_reclaim, format_time(until)
    what = {
        ReclaimMode.DRY_RUN: f"ClusterQueue {queue.name} only reports this (idleReclaim: DryRun)",
        ReclaimMode.ON_DEMAND: f"from {ends} on it is evicted when another gang needs its capacity",
        ReclaimMode.ALWAYS: f"after {ends} it is evicted",
    }[rule.mode]
    held = f" with {counted_gpus(entry.gpus)}" if entry.gpus else ""
    unless = "" if rule.mode is ReclaimMode.DRY_RUN else ", unless its GPUs are in use by then"
    protected = why_protected(gang, queue, now) if gang is not None and unless else None
    if protected is not None:
        unless += f"; it is not evicted now: {protected}"
    text = (
        f"idle since {format_time(use.since)}{held}: {use.text}; {what}{unless}. {_remedy(queue)}"
    )
    details = {
        "warning": number,
        "mode": rule.mode.value,
        "idleSince": format_time(use.since),
        "graceEnds": ends,
        "gpus": as_number(entry.gpus),
    }
    return Reason(Code.IDLE_GPUS, text, details)


def _remedy(queue: ClusterQueue) -> str:
    """The reason that exempts a gang from idle reclaim, under the policy of its ClusterQueue."""
    annotation = f'Annotation {PREFIX}{IDLE_RECLAIM}: "false"'
    policy = f"preemptionOptOut of ClusterQueue {queue.name} is {queue.preemption_opt_out}"
    match queue.preemption_opt_out:
        case OptOut.NEVER:
            return f"No annotation exempts it: {policy}"
        case OptOut.WITHIN_NOMINAL:
            return f"{annotation} exempts it while that ClusterQueue does not borrow: {policy}"
        case OptOut.ALWAYS:
            return f"{annotation} exempts it"


def _taken(use: GangUse, rule: IdleReclaim, cost: Cost) -> Reason:
    """An eviction with its lost work, computed as for each other victim."""
    since = format_time(use.since)
    text = (
        f"idle since {since}, and warned twice: {use.text}; this loses {cost.lost_work} GPU-seconds of work "
        f"and frees {counted_gpus(cost.gpus)}"
    )
    details = {
        "idleSince": since,
        "restSeconds": rule.cooldown,
        "lostGpuSeconds": cost.lost_work,
        "priority": cost.priority,
        "gpus": as_number(cost.gpus),
    }
    return Reason(Code.IDLE_RECLAIMED, text, details)
