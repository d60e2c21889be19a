"""Planned starts: each can happen at its time beside all that starts now, and none is late without a cause.

The plan is checked again as it would be at each of these times: the gangs that have ended by then are left out, those that start now
run, and the gangs planned for that time start. The other checks then say whether they fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from queuectl.domain.plan import Admission, Plan, Planned
from queuectl.domain.queues import QueueingStrategy, WithinClusterQueue
from queuectl.domain.snapshot import Admitted, PlannedStart, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner.verify.capacity import check_capacity
from queuectl.planner.verify.gangs import check_gangs
from queuectl.planner.verify.order import (
    Account,
    account,
    inadmissible,
    never,
    place,
    surely_before,
)
from queuectl.planner.verify.plan_index import PlanIndex, Rule, Violation
from queuectl.planner.verify.quota import check_quota

_SLACK = 60.0  # seconds that the gangs before a planned start can take to stop
_MOST_OVERRUNS = 2


def check_planned(index: PlanIndex) -> Iterator[Violation]:
    """Planned starts, and gangs of unknown length that pass a gang that waits."""
    for planned in index.plan.planned:
        yield from _promise(index, planned)
    for at in sorted({p.start.at for p in index.planned}):
        yield from _at(index, at)
    yield from _unknown_lengths(index)


def _promise(index: PlanIndex, planned: Planned) -> Iterator[Violation]:
    entry, refusal = index.pending.get(planned.uid), index.refused.get(planned.uid)
    if entry is None or refusal is None or refusal.lease is not None:
        yield Violation(Rule.PLANNED_START, planned.uid, "does not wait, or waits for its victims")
        return
    last, start = entry.planned_start, planned.start
    if not planned.known:
        yield from _withdrawn(planned, last)
        return
    if start.at < index.snapshot.now:
        yield Violation(Rule.PLANNED_START, planned.uid, "its planned start is in the past")
    if last is None or last.promised is None or planned.slip is not None:
        return
    if start.at > last.promised + _SLACK:
        text = f"is late without a cause: starts at {start.at:.0f}, planned {last.promised:.0f}"
        yield Violation(Rule.PLANNED_START, planned.uid, text)
    if start.promised is None or start.promised > last.promised:
        yield Violation(
            Rule.PLANNED_START, planned.uid, "is planned for a later time without a cause"
        )


def _withdrawn(planned: Planned, last: PlannedStart | None) -> Iterator[Violation]:
    """A planned start for which the plan has no time: it keeps its latest time, or it loses it for a cause."""
    if last is None:
        yield Violation(Rule.PLANNED_START, planned.uid, "has no planned start to keep")
    elif planned.slip is None and planned.start != last:
        yield Violation(Rule.PLANNED_START, planned.uid, "loses its latest time without a cause")


def _at(index: PlanIndex, at: float) -> Iterator[Violation]:
    """The violations at one time, as those of the first gang that is planned for it."""
    here = [p for p in index.planned if p.start.at == at]
    snapshot = _later(index, at)
    plan = Plan(admitted=tuple(Admission(p.uid, p.start.placement) for p in here))
    then = PlanIndex(snapshot, plan)
    for check in (check_gangs, check_capacity, check_quota):
        for violation in check(then):
            text = f"at its planned start {violation.subject}: {violation.message}"
            yield Violation(Rule.PLANNED_START, here[0].uid, text)


def _later(index: PlanIndex, at: float) -> Snapshot:
    """The snapshot as it would be at a time, without what starts then."""
    snapshot = index.snapshot
    waiting = [index.pending[p.uid] for p in index.planned if p.start.at == at]
    guarded = [
        entry.workload
        for entry in waiting
        if entry.planned_start is not None and entry.planned_start.overruns >= _MOST_OVERRUNS
    ]
    repaired = {a.uid: a.placement for a in index.plan.admitted if a.repaired}
    running = [
        replace(gang, placement=repaired.get(gang.workload.uid, gang.placement))
        for gang in snapshot.admitted
        if _stays(index, gang, at)
    ]
    for admission in index.plan.admitted:
        entry = index.pending.get(admission.uid)
        if entry is not None and _still_runs(snapshot, entry.workload, at, guarded):
            running.append(Admitted(entry.workload, admission.placement))
    running += [
        Admitted(index.pending[refusal.uid].workload, refusal.lease.placement)
        for refusal in index.plan.pending
        if refusal.lease is not None and refusal.uid in index.pending
    ]
    for p in index.planned:
        workload = index.pending[p.uid].workload
        if p.start.at < at < p.start.at + _length(workload):
            running.append(Admitted(workload, p.start.placement))
    pending = tuple(replace(entry, lease=None) for entry in waiting)
    return replace(snapshot, now=at, admitted=tuple(running), pending=pending)


def _stays(index: PlanIndex, gang: Admitted, at: float) -> bool:
    """Whether a running gang is still there: not if it leaves, nor if its end is known and has passed."""
    if gang.workload.uid in index.gone_after:
        return False
    return gang.ends_at is None or max(gang.ends_at, index.snapshot.now + 1) > at


def _still_runs(snapshot: Snapshot, workload: Workload, at: float, guarded: list[Workload]) -> bool:
    if snapshot.now + _length(workload) > at:
        return True
    sure = workload.duration is not None and workload.duration.enforced
    return not sure and any(not _evicts(snapshot, first, workload) for first in guarded)


def _evicts(snapshot: Snapshot, first: Workload, workload: Workload) -> bool:
    queue = snapshot.queue_of(first)
    return (
        queue is not None
        and queue is snapshot.queue_of(workload)
        and queue.within_cluster_queue is not WithinClusterQueue.NEVER
        and workload.preemptible
        and workload.priority < first.priority
    )


def _length(workload: Workload) -> float:
    return inf if workload.duration is None else workload.duration.seconds


def _unknown_lengths(index: PlanIndex) -> Iterator[Violation]:
    """In one ClusterQueue, a gang of unknown length that starts although one before it waits."""
    queues = index.snapshot.config.cluster_queues
    if not any(q.strategy is QueueingStrategy.BACKFILL for q in queues.values()):
        return
    first = _first_that_wait(index)
    for uid in sorted(index.started & index.pending.keys()):
        entry = index.pending[uid]
        workload, queue = entry.workload, index.queue_of(entry.workload)
        if queue is None or workload.duration is not None or entry.lease is not None:
            continue
        # The first of all accounts has the highest priority: it is surely before the gang if any of another account is.
        for whose in (None, account(workload)):
            ahead = first.get((queue.name, whose))
            if ahead is None or place(ahead) > place(workload):
                continue
            if surely_before(index, queue, ahead, workload):
                text = f"of unknown length, passes {ahead.uid}"
                yield Violation(Rule.PLANNED_START, uid, text)
                break


def _first_that_wait(index: PlanIndex) -> dict[tuple[str, Account | None], Workload]:
    """By Backfill ClusterQueue, the first gang that waits and holds others back: of each account, and of all (None)."""
    first: dict[tuple[str, Account | None], Workload] = {}
    for refusal in index.plan.pending:
        entry = index.pending.get(refusal.uid)
        queue = index.queue_of(entry.workload) if entry is not None else None
        if entry is None or queue is None or queue.strategy is not QueueingStrategy.BACKFILL:
            continue
        workload = entry.workload
        if workload.growth is not None:
            continue  # it holds back no gang
        if never(refusal) or refusal.lease is not None or inadmissible(index, entry) is not None:
            continue
        for whose in (None, account(workload)):
            known = first.setdefault((queue.name, whose), workload)
            first[queue.name, whose] = min(known, workload, key=place)
    return first
