"""The steps of transitions, and when a workload is observed again.

The steps (leave a state, evict, queue again) are pure functions. A workload is observed again without a change of its objects when time
changes its state, and when a job changes on which it depends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Any, Final

from queuectl.domain.arrays import has_begun, object_of
from queuectl.domain.dependency_graph import DependencyGraph, JobFound
from queuectl.domain.estimates import DAY
from queuectl.domain.gates import JobName, Standing, held_by
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, EntryChange, Intent, Note, State, idle_wait, parked_state
from queuectl.domain.pacing import doubling
from queuectl.domain.reasons import (
    BY_POLICY,
    COOPERATIVE,
    FAILED_START,
    PLANNED_AGAIN,
    Code,
    Reason,
)
from queuectl.domain.rules import PodsReadyRules, Rules
from queuectl.domain.snapshot import CapacityLease
from queuectl.lifecycle.failures import ready_by
from queuectl.state.arrays import RETURN_SECONDS
from queuectl.state.claims import MOST_FAILED_STARTS
from queuectl.state.holding_gangs import is_grown
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror

# ---- Steps


def next_of(entry: Entry, **changes: Any) -> Entry:
    """The entry with the next version of its row."""
    return replace(entry, version=entry.version + 1, **changes)


def move(entry: Entry, state: State, now: float, reason: Reason, **changes: Any) -> EntryChange:
    """Enter a state, with a line in the history. A planned start is one of a pending gang, and checks belong to a placement."""
    if state is not State.PENDING:
        changes["planned_start"] = None
    if state not in (State.PENDING, State.RESERVED):
        changes["announced_start"] = None
    if state.waiting and state is not State.RESERVED:
        changes.setdefault("checks", entry.checks.reset())
    after = next_of(entry, state=state, since=now, reason=reason, **changes)
    return EntryChange(entry, after, now, Note(str(reason.code), entry.state, state, reason))


def rejoin(entry: Entry, now: float, reason: Reason, **changes: Any) -> EntryChange:
    """Queue with this reason, or stay held, deactivated or gated."""
    parked: Reason | None = changes.get("parked", entry.parked)
    gates: tuple[str, ...] = changes.get("gates", entry.gates)
    if parked is not None:
        return move(entry, parked_state(parked), now, parked, **changes)
    if gates:
        return move(entry, State.HELD, now, held_by(gates), **changes)
    return move(entry, State.PENDING, now, reason, **changes)


def evict(
    entry: Entry,
    now: float,
    reason: Reason,
    rules: Rules,
    *,
    excluded: tuple[str, ...] = (),
    lease: CapacityLease | None = None,
    parked: Reason | None = None,
    behind: bool = False,
) -> EntryChange:
    """Stop the gang: at once, or after a notice if the rules grant time and it has work to save.

    ``behind``: it queues again behind the gangs that are pending now, where time decides the order.
    """
    code = reason.code
    failed = code in FAILED_START
    grace = notice(entry, code, rules)
    behind |= failed and rules.pods_ready.requeue_by_eviction
    # A user who requeues it has fixed the cause of its failed starts.
    avoided, failures = ((), 0) if code is Code.REQUEUED else (entry.excluded, entry.failures)
    return move(
        entry,
        State.EVICTING,
        now,
        reason,
        intent=Intent.STOP,
        lease=lease,
        requeue_at=_borrows_at(reason, now),
        requeued_at=now if behind else entry.requeued_at,
        unready_since=None,
        past_seconds=entry.executed(now),
        stop_at=now + grace if grace > 0 else None,
        evictions=entry.evictions + 1,
        evicted_for=code,
        preempted_at=_preemptions(entry, code, now),
        failures=failures + 1 if failed else failures,
        excluded=tuple(sorted({*avoided, *excluded})),
        parked=parked if parked is not None else entry.parked,
    )


def _borrows_at(reason: Reason, now: float) -> float | None:
    """The time until which an evicted gang does not borrow; None if it can borrow at once."""
    _pause = float(reason.details.get("borrowBackoffSeconds", 0.0))
    return now + _pause if _pause > 0 else None


def notice(entry: Entry, code: Code, rules: Rules) -> float:
    """Seconds between the notice of an eviction for this reason and the suspension."""
    cooperative = code in COOPERATIVE and entry.state is State.RUNNING
    return rules.eviction_grace if cooperative else 0.0


def _preemptions(entry: Entry, code: Code, now: float) -> tuple[float, ...]:
    """The evictions of the last day that protections count, with this one if it counts; at least the last one, for a longer cooldown."""
    times = (*entry.preempted_at, now) if code in BY_POLICY else entry.preempted_at
    return tuple(at for at in times if at > now - DAY) or times[-1:]


def drained(entry: Entry, now: float, policy: PodsReadyRules) -> EntryChange:
    """The state after all its pods have terminated. It follows from the reason of the eviction."""
    cleared: dict[str, Any] = {
        "placement": None,
        "planned": None,
        "intent": Intent.MOVE if entry.queue_set is not None else None,
        "started_at": None,
        "ready_at": None,
        "stop_at": None,
    }
    code = entry.reason.code
    if entry.parked is not None:
        return rejoin(entry, now, entry.parked, lease=None, **cleared)
    if code in FAILED_START:
        return _failed(entry, now, policy, cleared)
    if (wait := idle_wait(entry)) > 0:
        why = "its GPUs were idle" if code is Code.IDLE_RECLAIMED else entry.reason.message
        reason = Reason(Code.BACKOFF, f"{why}; it queues again in {wait:.0f} s")
        return move(entry, State.BACKOFF, now, reason, requeue_at=now + wait, lease=None, **cleared)
    if entry.lease is not None and not entry.gates:
        waits = Reason(
            Code.WAITING_FOR_PREEMPTED, "evicted to migrate; its new placement is reserved"
        )
        return move(entry, State.RESERVED, now, waits, **cleared)
    reason = Reason(Code.QUEUED, f"requeued after {code}")
    return rejoin(entry, now, reason, lease=None, **cleared)


def _failed(
    entry: Entry, now: float, policy: PodsReadyRules, cleared: dict[str, Any]
) -> EntryChange:
    explains = entry.reason.code in (Code.START_REFUSED, Code.PODS_LARGER_THAN_ASKED)
    why = f": {entry.reason.message}" if explains else ""
    failed = f"start {entry.attempt} failed ({entry.reason.code}{why})"
    limit = policy.backoff_limit
    if limit is not None and entry.failures > limit:
        text = f"{failed}; {entry.failures} failed starts in a row exceed the limit of {limit}"
        deactivated = Reason(Code.REQUEUING_LIMIT, text)
        return rejoin(entry, now, deactivated, parked=deactivated, lease=None, **cleared)
    if entry.reason.details.get(PLANNED_AGAIN):
        text = f"{failed}; it is planned again with the requests of its pods"
        return rejoin(entry, now, Reason(Code.QUEUED, text), lease=None, **cleared)
    wait = _pause(policy, entry)
    text = f"{failed}; the next start is tried in {wait:.0f} s"
    if entry.failures > MOST_FAILED_STARTS:
        text += ", without evicting other gangs"
    reason = Reason(Code.BACKOFF, text)
    return move(entry, State.BACKOFF, now, reason, requeue_at=now + wait, lease=None, **cleared)


def _pause(policy: PodsReadyRules, entry: Entry) -> float:
    """Seconds until a gang is retried after a failed start.

    The jitter depends on uid and attempt. Thus gangs that fail together do not retry together, and the same history gives the
    same times.
    """
    wait = doubling(policy.backoff_base, policy.backoff_ceiling, entry.failures)
    drawn = hashlib.blake2b(f"{entry.uid}/{entry.attempt}".encode(), digest_size=8).digest()
    return wait * (1.0 + policy.backoff_jitter * int.from_bytes(drawn) / 2.0**64)


_REPLACED_WITHIN: Final = 3600.0
"""Seconds in which the maker of an evicted group must create its pods again."""


def awaits_replacements(
    entry: Entry, job: JobRecord, now: float, absent_since: float | None
) -> bool:
    """Whether a group without pods has not ended: their maker can create them again.

    It stays in its queue if queuectl deleted its pods. If others deleted them, it keeps its place for a time if it runs and has a StatefulSet,
    whose controller creates a pod again only after the pod is deleted. Other groups have ended. They can be evicted first if their pods end
    before they are deleted.
    """
    if entry.state.live:
        return not job.suspended and now < (absent_since or now) + RETURN_SECONDS
    if entry.evicted_for is Code.SUSPENDED_OUTSIDE:
        return False
    if entry.state is State.EVICTING:
        return True
    return entry.evicted_for is not None and now < entry.since + _REPLACED_WITHIN


_CONFIRMED_WITHIN: Final = 600.0
"""Seconds in which the controller of an evicted job must confirm that the job is suspended, if no pod of the job exists."""


def unconfirmed_at(entry: Entry) -> float:
    """The time (unix seconds) from which an eviction needs no confirmation of the job's controller.

    The controller may not exist, or not know the kind. Its later pods would have the gate, and belong to an earlier attempt.
    """
    return entry.since + _CONFIRMED_WITHIN


# ---- Observations without a change


def execution_limit(entry: Entry, job: JobRecord) -> float | None:
    """Seconds that a workload can run, over all attempts; None = no limit. A pod that was added to a gang ends with the gang."""
    return None if is_grown(job) else entry.execution_limit(job.max_execution)


def alarm_of(
    entry: Entry,
    job: JobRecord | None,
    rules: PodsReadyRules,
    now: float,
    absent_since: float | None = None,
) -> float | None:
    """The first moment (unix seconds) at which time alone changes its state, or None.

    ``absent_since``: as in :class:`queuectl.lifecycle.workload_events.ObservationRules`.
    """
    requeue_at = entry.requeue_at if entry.state is State.BACKOFF else None
    due = entry.checks.due if entry.awaits_checks else None
    moments = [requeue_at, entry.stop_at, entry.priority_until, ready_by(entry, rules), due]
    if entry.state.waiting:
        moments += entry.checks.unasked.values()
    if job is not None and job.absent:
        moments.append(entry.since + _REPLACED_WITHIN)
    if absent_since is not None and entry.state.live:
        moments.append(absent_since + RETURN_SECONDS)
    if entry.state is State.EVICTING and now < unconfirmed_at(entry):
        moments.append(unconfirmed_at(entry))
    limit = execution_limit(entry, job) if job is not None else None
    if entry.state.live and limit is not None:
        moments.append((entry.started_at or entry.since) + limit - entry.past_seconds)
    return min((at for at in moments if at is not None), default=None)


class Timers:
    """The next time of each workload. A timer that has expired is removed; the observation that follows sets the next one."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def put(self, uid: str, at: float | None) -> None:
        """Set the timer of this workload to unix seconds ``at``; None removes it."""
        if at is None:
            self._at.pop(uid, None)
        elif self._at.get(uid) != at:
            self._at[uid] = at
            heappush(self._heap, (at, uid))
            if len(self._heap) > 64 + 2 * len(self._at):
                self._heap = [(at, uid) for uid, at in self._at.items()]
                heapify(self._heap)

    def due(self, now: float) -> set[str]:
        """The workloads to observe now."""
        found = set()
        while self._heap and self._heap[0][0] <= now:
            at, uid = heappop(self._heap)
            if self._at.get(uid) == at:
                del self._at[uid]
                found.add(uid)
        return found


class Dependents:
    """An index of the jobs of the mirror by name, and the graph of their dependencies.

    It follows from the mirror and the ledger, so a new leader has it after its first observation, which is of all jobs.
    """

    def __init__(self, mirror: Mirror, ledger: Ledger) -> None:
        self._mirror = mirror
        self._ledger = ledger
        self._names: dict[str, JobName] = {}  # by uid
        self._uids: dict[JobName, str] = {}  # if a job was created again: the last observed
        self._graph = DependencyGraph()

    def of(self, touched: Collection[str]) -> set[str]:
        """The uids of the jobs that depend on changed ones: directly, or in a cycle that begins or ends with the change.

        ``touched``: uids of changed and deleted jobs, new ones too.
        """
        names = {name: None for uid in touched if (name := self._indexed(uid)) is not None}
        affected = self._put(names)
        # The ledger has removed satisfied dependencies since their last observation.
        affected |= self._put(dict.fromkeys(affected))
        return {uid for name in affected if (uid := self._uids.get(name)) is not None}

    def statuses(self, job: JobRecord, gates: tuple[str, ...]) -> Mapping[str, Standing]:
        """The dependencies among these gates of a job, by gate."""
        name = JobName.of(job.kind, job.namespace, object_of(job).name)
        return self._graph.statuses(name, gates)

    def _put(self, names: Collection[JobName]) -> set[JobName]:
        return self._graph.put({name: self._found(name) for name in names})

    def _indexed(self, uid: str) -> JobName | None:
        """The name of a job, after the index by name is up to date; None for one that was never there."""
        job = self._job(uid)
        if job is None:
            name = self._names.pop(uid, None)
            if name is not None and self._uids.get(name) == uid:
                del self._uids[name]
            return name
        name = JobName.of(job.kind, job.namespace, job.name)
        self._names[uid] = name
        if uid in self._mirror.jobs or uid in self._mirror.arrays:
            self._uids[name] = uid
        else:
            self._uids.setdefault(name, uid)  # a deleted one, which can have been created again
        return name

    def _job(self, uid: str) -> JobRecord | None:
        """A job, also one that had ended when it was deleted."""
        mirror = self._mirror
        return mirror.jobs.get(uid) or mirror.arrays.get(uid) or mirror.ended.get(uid)

    def _found(self, name: JobName) -> JobFound | None:
        uid = self._uids.get(name)
        if uid is None:
            return None
        job = self._job(uid)
        if job is None:
            return None
        if not job.queues:
            return JobFound(job.outcome, () if has_begun(job) else job.gates)
        entry = self._ledger.get(job.uid)
        return JobFound(job.outcome, job.gates if entry is None else entry.gates)
