"""Protections of a running gang from being evicted for others: the table of them, and how long a gang waits to reclaim.

:data:`PROTECTIONS` is the only definition. Searches, moves, idle reclaim and explanations read it; a new protection is one more
row (and its setting, and its check in the verifier).

A gang that would take quota back waits first. An eviction loses the victims' work, and the next one may find them done. So a gang
evicts gangs that borrow, and whose priority is not lower, at the latest after ``reclaimPatienceSeconds`` of its ClusterQueue, and before only
if the wait costs more than the eviction loses, in GPU-seconds:

- If enforced limits leave room for it in that time, the rest of the wait counts.
- Otherwise its wait until now counts. This rule loses at most twice what the best decision loses, although it does not know when
  work ends (as in the ski rental problem).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from queuectl.domain.budgets import WhenSpent
from queuectl.domain.estimates import DAY
from queuectl.domain.plan import Plan, Preemption, PreemptionReason
from queuectl.domain.queues import ClusterQueue, Protection
from queuectl.domain.reasons import ENDS_BY_TIME, Code, Reason
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.words import counted, format_time
from queuectl.domain.workload import Workload
from queuectl.planner.preempt.cost import RESTART_COST, Sizes

_NONE: Final = Protection()
_TAKES_BACK: Final = frozenset(
    (PreemptionReason.IN_COHORT_RECLAMATION, PreemptionReason.IN_COHORT_FAIR_SHARING)
)


@dataclass(frozen=True, slots=True)
class _Question:
    """A running gang, the ClusterQueue it is charged to, and unix seconds.

    ``reclaimed``: another ClusterQueue would evict it because its own uses more than its nominal quota.
    """

    gang: Admitted
    queue: ClusterQueue
    now: float
    reclaimed: bool

    @property
    def evictions(self) -> list[float]:
        """When it was evicted, first to last; times later than now are clamped to it."""
        return sorted(min(at, self.now) for at in self.gang.evictions)


@dataclass(frozen=True, slots=True)
class _Protects:
    """One row: until when it protects a gang (unix seconds; a time past = it does not), and the sentence if time changes nothing."""

    until: Callable[[_Question], float]
    sentence: Callable[[_Question], str]


def _runs_briefly(question: _Question) -> float:
    if question.gang.held:
        return -inf
    return min(question.gang.started_at, question.now) + question.queue.protection.min_runtime


def _cools_down(question: _Question) -> float:
    times = question.evictions
    return times[-1] + question.queue.protection.cooldown if times else -inf


def _evicted_often(question: _Question) -> float:
    """When there are fewer evictions within a day again than the queue allows."""
    most = question.queue.protection.max_evictions_per_day
    if most is None:
        return -inf
    recent = [at for at in question.evictions if at + DAY > question.now]
    if len(recent) < most:
        return -inf
    return recent[-most] + DAY if most > 0 else inf


def _for_ever(question: _Question) -> str:
    return f"the protection of ClusterQueue {question.queue.name} has no end"


PROTECTIONS: Final = (
    _Protects(
        lambda asked: -inf if asked.gang.evictable else inf,
        lambda _: "the API server does not suspend its job",
    ),
    _Protects(
        lambda asked: (
            inf if opts_out(asked.gang.workload, asked.queue, reclaimed=asked.reclaimed) else -inf
        ),
        lambda asked: (
            "it is not preemptible, and preemptionOptOut of ClusterQueue "
            f"{asked.queue.name} is {asked.queue.preemption_opt_out}"
        ),
    ),
    _Protects(_runs_briefly, _for_ever),
    _Protects(_cools_down, _for_ever),
    _Protects(
        _evicted_often,
        lambda asked: f"maxEvictionsPerDay of ClusterQueue {asked.queue.name} is 0",
    ),
)


def protected_until(
    gang: Admitted, queue: ClusterQueue, now: float, *, reclaimed: bool = False
) -> float | None:
    """Until when a gang must not be evicted (or moved) for others; None = it is not protected now.

    Args:
        gang: it runs.
        queue: the ClusterQueue it is charged to, whose policy counts.
        now: unix seconds; times declared later than that are clamped to it.
        reclaimed: another ClusterQueue would evict it because this one uses more than its nominal quota.

    Returns:
        Unix seconds later than ``now``; infinity when time will not change it.
    """
    if queue.protection == _NONE and gang.evictable and gang.workload.preemptible:
        return None
    asked = _Question(gang, queue, now, reclaimed)
    until = max(row.until(asked) for row in PROTECTIONS)
    return until if until > now else None


def why_protected(
    gang: Admitted, queue: ClusterQueue, now: float, *, reclaimed: bool = False
) -> str | None:
    """The protection of a gang, as the end of a sentence; None = it has none. For the arguments see ``protected_until``."""
    asked = _Question(gang, queue, now, reclaimed)
    until = max(row.until(asked) for row in PROTECTIONS)
    if until == inf:
        return next(row.sentence(asked) for row in PROTECTIONS if row.until(asked) == inf)
    if until > now:
        return f"protected until {format_time(until)}"
    return None


def opts_out(workload: Workload, queue: ClusterQueue, *, reclaimed: bool = False) -> bool:
    """Whether a gang is not preemptible and its ClusterQueue honors that; for ``reclaimed`` see ``protected_until``."""
    return not workload.preemptible and queue.preemption_opt_out.counts(borrowing=reclaimed)


def slice_end(gang: Admitted, queue: ClusterQueue) -> float:
    """The time (unix seconds) from which a gang can be evicted in turn; infinity without time sharing, or if it has not started."""
    return inf if queue.time_slice is None or gang.held else gang.started_at + queue.time_slice


def _slices(snapshot: Snapshot) -> Iterator[float]:
    """The ends of time slices after the snapshot."""
    for gang in snapshot.admitted:
        queue = snapshot.queue_of(gang.workload)
        if queue is not None and not gang.leaving:
            end = slice_end(gang, queue)
            if snapshot.now < end < inf:
                yield end


def next_change(snapshot: Snapshot) -> float | None:
    """When time alone changes what a plan may do (unix seconds, later than the snapshot); None = it will not.

    The next running gang loses its protection or ends its time slice, the next one that moves loses its new place, or the next waiting one
    may borrow again, loses its place, or evicts gangs because its nodes have not joined.
    """
    ends = [
        p.borrows_at
        for p in snapshot.pending
        if p.borrows_at is not None and not p.may_borrow(snapshot.now)
    ]
    ends += [
        p.spares_until
        for p in snapshot.pending
        if p.spares_until is not None and p.spares(snapshot.now)
    ]
    ends += [
        p.returns_by
        for p in snapshot.pending
        if p.returns_by is not None and p.returns(snapshot.now)
    ]
    ends += [gang.lease.expires_at for gang in snapshot.admitted if gang.lease is not None]
    queues = snapshot.config.cluster_queues
    if any(queue.time_slice is not None for queue in queues.values()):
        ends.extend(_slices(snapshot))
    if all(queue.protection == _NONE for queue in queues.values()):
        return min(ends, default=None)
    for gang in snapshot.admitted:
        queue = snapshot.queue_of(gang.workload)
        until = (
            None if queue is None else protected_until(gang, queue, snapshot.now, reclaimed=True)
        )
        if until is not None and until < inf and not gang.leaving:
            ends.append(until)
    return min(ends, default=None)


def next_plan_due(snapshot: Snapshot, plan: Plan) -> float | None:
    """The time from which the next plan can do more than this one without another change (unix seconds); None = never.

    The first wait to reclaim ends, a budget that holds or lowers gangs has a new month, or what ``next_change`` names.
    """
    reasons = (refusal.reasons[0] for refusal in plan.pending)
    ends = [float(r.details["until"]) for r in reasons if r.code in ENDS_BY_TIME]
    if plan.pending:
        lowers = [b for b in snapshot.budgets if b.budget.when_spent is WhenSpent.LOWER_PRIORITY]
        ends += [balance.month.ends for balance in lowers]
    change = next_change(snapshot)
    return min(ends if change is None else (*ends, change), default=None)


def reclaim_wait(
    pending: Pending,
    queue: ClusterQueue,
    victims: Sequence[Preemption],
    now: float,
    room_by: Callable[[float], float | None],
    sizes: Sizes,
) -> Reason | None:
    """Why a gang does not evict these victims yet; None = it does.

    The details: ``since`` when it could have evicted gangs, ``until`` when it waits at most if nothing changes (both unix
    seconds), ``lostGpuSeconds`` of the victims, how many they are (``victims``), and, if it is known, ``roomAt``: when gangs that
    end leave room for it.

    Args:
        pending: the gang.
        queue: its ClusterQueue.
        victims: the gangs that it would evict.
        now: unix seconds.
        room_by: the first time at which enforced limits leave room for the gang, if there is one up to the given time.
        sizes: of gangs, in GPUs.
    """
    priority = pending.workload.priority
    if not any(v.reason in _TAKES_BACK and v.cost.priority >= priority for v in victims):
        return None
    since = pending.waits_since(now)
    last = since + queue.reclaim_patience
    lost = sum(max(0, v.cost.lost_work - RESTART_COST) for v in victims)
    if lost <= 0 or now >= last:
        return None
    gpus = sizes.of_waiting(pending.workload).total
    details = {"since": since, "lostGpuSeconds": lost, "victims": len(victims)}
    evicts = f"{counted(len(victims), 'gang')}, which now loses {lost} GPU-seconds of work"
    room = room_by(last)
    if room is not None and gpus * (room - now) < lost:
        text = f"waits for the room of gangs that end by {format_time(room)}; otherwise it evicts {evicts}"
        details |= {"until": room, "roomAt": room}
        return Reason(Code.WAITING_TO_RECLAIM, text, details)
    short = lost - gpus * (now - since)
    if short <= 0:
        return None
    until = last
    grows = sum(v.cost.size for v in victims)  # what the victims hold is lost with every second
    if gpus > grows:
        until = min(until, now + short / (gpus - grows))
    text = (
        f"waits up to {queue.reclaim_patience:g} s until other queues return borrowed quota; then it evicts "
        f"{evicts}"
    )
    return Reason(Code.WAITING_TO_RECLAIM, text, details | {"until": until})
