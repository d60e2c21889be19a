"""From a plan to changes of the ledger: each decision is compared with the current cluster, then passed to the state machine.

A deletion, a resize or a hold between snapshot and commit takes precedence: the decision is dropped and planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from queuectl.domain.checks import CheckStatus, updated
from queuectl.domain.estimates import DAY
from queuectl.domain.events import Admit, Event, Evict, NoteAdded, Refuse, Repair, Reserve
from queuectl.domain.gpus import as_number, summed
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.plan import (
    Admission,
    Cost,
    Move,
    Plan,
    Preemption,
    PreemptionReason,
    Refusal,
    ScheduledGang,
)
from queuectl.domain.queries import IN_QUEUE_ORDER
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, CapacityLease, PlannedStart, Snapshot
from queuectl.domain.words import counted_gpus, gpu_hours_of, some
from queuectl.domain.workload import Placement, PodSet, Workload
from queuectl.lifecycle.machine import handle
from queuectl.lifecycle.outstanding_writes import as_checked, planned_of, request_digest
from queuectl.objects.kubernetes.nodes import priority_values
from queuectl.state.claims import priority_now
from queuectl.state.durations import stated_of
from queuectl.state.holding_gangs import is_grown
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror

# The shortest interval at which the numbers of an unchanged reason are written.
REFRESH_SECONDS = 5.0
REFRESH_PER_SECOND = 200  # and the number of gangs: a long queue must not keep the database busy


class Decider:
    """Turns plans into changes, and keeps the time at which each reason was written last."""

    def __init__(
        self, mirror: Mirror, ledger: Ledger, idles: Callable[[str], bool] = lambda _: True
    ) -> None:
        """``idles``: whether a gang, by uid, can be evicted as idle now."""
        self._idles = idles
        self._mirror = mirror
        self._ledger = ledger
        self._refreshed: dict[str, float] = {}
        # The start of each idle time, and the gang for which a dry run would evict the idle gang.
        self._spared: dict[str, tuple[float, set[str]]] = {}
        self._rest = REFRESH_SECONDS
        self._changed_queues: Container[tuple[str, str]] = frozenset()
        self._classes: Mapping[str, int] = {}  # value of each PriorityClass of the cluster

    def changes(
        self,
        snapshot: Snapshot,
        plan: Plan,
        now: float,
        changed_queues: Container[tuple[str, str]] = frozenset(),
    ) -> list[EntryChange]:
        """Changes of all decisions that are still valid, at most one for each workload.

        ``changed_queues``: LocalQueues (namespace, name) whose gangs are no longer admitted; decisions for them are dropped.
        """
        self._changed_queues = changed_queues
        self._classes = priority_values(self._mirror.priority_classes.values())
        spared = list(self._dry_run_events(snapshot, plan))
        requested = _requested(snapshot, plan)
        leaving = _leaving(plan)
        changes = []
        for uid, event in (*self._events(plan, requested, now, snapshot.config), *spared):
            entry = self._ledger.get(uid)
            job = self._mirror.jobs.get(uid)
            if entry is None or job is None or job.outcome is not None:
                continue
            if isinstance(event, Repair) and _asked(entry, job) != requested[uid].requested:
                continue  # resized since the snapshot
            if isinstance(event, Admit | Reserve) and not self._as_seen(
                entry, job, requested[uid], snapshot.config
            ):
                continue  # its requests have changed since the snapshot
            if isinstance(event, Admit | Repair) and not self._stands(event.placement, uid):
                continue  # a node was lost since the snapshot
            if isinstance(event, Admit) and not self._is_beside(job, leaving):
                continue  # the gang that it is added to stops
            if isinstance(event, Refuse | Reserve | Admit) and (
                entry.state not in IN_QUEUE_ORDER or not self._may_start(entry)
            ):
                continue
            if isinstance(event, Admit):
                limit = stated_of(entry, job, snapshot.config).limit
                decided: Event = replace(event, planned=planned_of(job, limit))
            elif isinstance(event, Reserve):
                decided = replace(event, request=request_digest(job))
            else:
                decided = event
            change = handle(entry, decided, now, snapshot.config.rules)
            if change is not None:
                changes.append(change)
                self._refreshed[uid] = now
        return changes

    def _as_seen(
        self, entry: Entry, job: JobRecord, workload: Workload, config: QueueConfig
    ) -> bool:
        """Whether a pending gang still has the size and the position in queue order of the snapshot."""
        if job.deleting or not job.suspended or job.awaits:
            return False
        if job.error is not None or job.forbidden is not None:
            return False
        if _asked(entry, job) != workload.requested or not as_checked(entry, job):
            return False
        queue = config.cluster_queue_of(job.namespace, job.queue)
        if entry.cluster_queue != (queue.name if queue is not None else ""):
            return False  # its LocalQueue leads to another one, and the gang is not observed yet
        user = job.user(config.rules.user_label, config.rules.trusted_submitters)
        priority = priority_now(self._ledger, entry, job, config, self._classes)
        asked = (workload.queue, workload.priority, workload.user)
        return asked == (job.queue or "", priority, user) and asked[:2] == (
            entry.queue,
            entry.priority,
        )

    def forget(self, uid: str) -> None:
        """Forget a workload that has left the ledger."""
        self._refreshed.pop(uid, None)
        self._spared.pop(uid, None)

    def _events(
        self, plan: Plan, requested: Mapping[str, Workload], now: float, config: QueueConfig
    ) -> Iterator[tuple[str, Event]]:
        no_longer_idle = set(self._no_longer_idle(plan))
        wanting = {preemption.preemptor for preemption in plan.preempted} - no_longer_idle
        waiting = {
            refusal.uid
            for refusal in plan.pending
            if refusal.uid in wanting and self._still_wants(requested[refusal.uid], config)
        }
        for admission in plan.admitted:
            workload = requested.get(admission.uid)
            yield admission.uid, _admission(admission, workload, config)
        for eviction in plan.evicted:
            yield eviction.uid, Evict(Reason(eviction.code, eviction.message))
        for preemption in plan.preempted:
            if preemption.preemptor in waiting:
                yield preemption.victim, self._preemption(preemption, config, now)
        moves = list(self._moves(plan, requested, config))
        yield from moves
        self._rest = max(REFRESH_SECONDS, len(plan.pending) / REFRESH_PER_SECOND)
        put_off = no_longer_idle | (
            {move.beneficiary for move in plan.moved} if not moves else set()
        )
        planned = {each.uid: each for each in plan.planned}
        for refusal in self._news(plan.pending, planned, now):
            if refusal.uid not in put_off:
                yield refusal.uid, _refusal(refusal, planned.get(refusal.uid), config, now)

    def _moves(
        self, plan: Plan, requested: Mapping[str, Workload], config: QueueConfig
    ) -> Iterator[tuple[str, Event]]:
        """All moves or none: no gang is evicted if the gang that needs the capacity, or a new place, no longer exists."""
        if not plan.moved:
            return
        leases = {refusal.uid: refusal.lease for refusal in plan.pending}
        ready = [(move, lease) for move in plan.moved if (lease := leases.get(move.beneficiary))]
        for move, lease in ready:
            waits = self._still_wants(requested[move.beneficiary], config)
            runs = self._runs_unchanged(requested[move.uid])
            if not (waits and runs and self._stands(move.placement)):
                return
            if not self._stands(lease.placement, move.beneficiary):
                return
        for move, lease in ready:
            yield move.uid, self._move(move, lease)

    def relocations(
        self, snapshot: Snapshot, moves: Iterable[Move], until: float, now: float
    ) -> list[EntryChange]:
        """Evictions of gangs from nodes that are emptied for a pending gang: all or none.

        ``until``: the end of the reservation of each new place, unix seconds.
        """
        runs = {gang.workload.uid: gang.workload for gang in snapshot.admitted}
        changes = []
        for move in moves:
            entry, workload = self._ledger.get(move.uid), runs.get(move.uid)
            if entry is None or workload is None or not self._runs_unchanged(workload):
                return []
            lease = CapacityLease(move.placement, (), now, until)
            evicts = self._move(move, lease) if self._stands(move.placement) else None
            change = handle(entry, evicts, now, snapshot.config.rules) if evicts else None
            if change is None:
                return []
            changes.append(change)
        return changes

    def _runs_unchanged(self, workload: Workload) -> bool:
        entry, job = self._ledger.get(workload.uid), self._mirror.jobs.get(workload.uid)
        if entry is None or job is None or not entry.state.live:
            return False
        same = _asked(entry, job) == workload.requested
        return job.outcome is None and not job.deleting and same

    def _is_beside(self, job: JobRecord, leaving: Container[str]) -> bool:
        """Whether the gang of a pod that is added to an elastic job runs on. True for all other gangs."""
        if not is_grown(job):
            return True
        base = self._ledger.elastic_gang(job)
        return base is not None and base.state.live and base.uid not in leaving

    def _may_start(self, entry: Entry) -> bool:
        """Whether its LocalQueue admits a gang that has not started."""
        return entry.state.live or (entry.namespace, entry.queue) not in self._changed_queues

    def _still_wants(self, workload: Workload, config: QueueConfig) -> bool:
        """Whether gangs can be evicted or moved for it: it has not changed since the snapshot, so it gets the free capacity."""
        entry, job = self._ledger.get(workload.uid), self._mirror.jobs.get(workload.uid)
        if entry is None or job is None or job.outcome is not None:
            return False
        if entry.state.live:  # it has lost a node
            return self._runs_unchanged(workload)
        if entry.state not in IN_QUEUE_ORDER or not self._may_start(entry):
            return False
        return self._as_seen(entry, job, workload, config)

    def _stands(self, placement: Placement, repaired: str = "") -> bool:
        """Whether the nodes of a placement are ready, except those whose slots a running gang, given by its uid, has already."""
        nodes, entry = self._mirror.nodes, self._ledger.get(repaired)
        known = entry.placement if entry is not None and entry.state.live else None
        kept = {
            (podset.podset, name): count
            for podset in (known.podsets if known is not None else ())
            for name, count in podset.nodes
        }
        return all(
            name in nodes and nodes[name].node.ready
            for podset in placement.podsets
            for name, count in podset.nodes
            if count > kept.get((podset.podset, name), 0)
        )

    def _news(
        self, refusals: Iterable[Refusal], planned: Mapping[str, ScheduledGang], now: float
    ) -> Iterator[Refusal]:
        """Whether the reason of a gang is new: most gangs have the same recent reason, and hold no lease."""
        entry_of, refreshed, since = self._ledger.get, self._refreshed.get, now - self._rest
        for refusal in refusals:
            uid, code = refusal.uid, refusal.reasons[0].code
            if code is Code.PENDING_EVALUATION and self._has_reason(refusal, planned):
                continue
            if refusal.lease is None and code is not Code.UNDECIDED and refreshed(uid, 0.0) > since:
                entry = entry_of(uid)
                if (
                    entry is not None
                    and entry.reason.code is code
                    and entry.state is State.PENDING
                    and entry.planned_start == _start_of(uid, planned)
                ):
                    continue
            yield refusal

    def _has_reason(self, refusal: Refusal, planned: Mapping[str, ScheduledGang]) -> bool:
        """Whether a gang that this plan has left out keeps the reason of an earlier plan, which states more."""
        entry = self._ledger.get(refusal.uid)
        if entry is None or entry.state is not State.PENDING or refusal.lease is not None:
            return False
        unknown = entry.reason.code in (Code.QUEUED, Code.PENDING_EVALUATION, Code.UNDECIDED)
        return not unknown and entry.planned_start == _start_of(refusal.uid, planned)

    def _no_longer_idle(self, plan: Plan) -> Iterator[str]:
        """Gangs for which an idle gang was to be evicted that now uses its GPUs, or whose utilization is unknown."""
        for preemption in plan.preempted:
            if preemption.reason == PreemptionReason.IDLE and not self._idles(preemption.victim):
                yield preemption.preemptor

    def _dry_run_events(self, snapshot: Snapshot, plan: Plan) -> Iterator[tuple[str, Event]]:
        """Idle gangs that a dry run would evict, each reported once for each preemptor while it is idle."""
        if not plan.spared:
            return
        idle = {gang.workload.uid: gang.idle_since for gang in snapshot.admitted}
        goes = _leaving(plan)
        for spared in plan.spared:
            since = idle.get(spared.victim)
            if since is None or spared.victim in goes:
                continue
            if self._spared.get(spared.victim, (None,))[0] != since:
                self._spared[spared.victim] = (since, set())
            reported = self._spared[spared.victim][1]
            if spared.preemptor not in reported:
                reported.add(spared.preemptor)
                yield spared.victim, self._spared_by(spared)

    def _spared_by(self, spared: Preemption) -> NoteAdded:
        cost = spared.cost
        text = (
            f"its GPUs are idle; without idleReclaim: DryRun it would be evicted for {self._name(spared.preemptor)}; "
            f"{_loss(cost)}"
        )
        return NoteAdded(Reason(Code.WOULD_RECLAIM, text, _cost_of(spared)))

    def _name(self, uid: str) -> str:
        entry = self._ledger.get(uid)
        return entry.ref if entry is not None else uid

    def _preemption(self, preemption: Preemption, config: QueueConfig, now: float) -> Evict:
        name, cost = self._name(preemption.preemptor), preemption.cost
        over = (
            "its time slice is over; " if preemption.reason == PreemptionReason.TIME_SLICE else ""
        )
        text = f"preempted for {name}; {over}{_loss(cost)}"
        details = _cost_of(preemption)
        entry = self._ledger.get(preemption.victim)
        queue = config.cluster_queues.get(entry.cluster_queue) if entry is not None else None
        sliced = preemption.reason == PreemptionReason.TIME_SLICE
        without_backoff = sliced or preemption.reason == PreemptionReason.IDLE
        if entry is not None and queue is not None and not without_backoff:
            pause = queue.pause_before_borrowing(
                cost.lost_work / max(1.0, cost.size),
                sum(at > now - DAY for at in entry.preempted_at),
            )
            details["borrowBackoffSeconds"] = round(pause, 1)
        return Evict(Reason(Code.PREEMPTED, text, details), behind=sliced)

    def _move(self, move: Move, lease: CapacityLease) -> Evict:
        """Evict it with a lease on its new place, which lasts as long as that of the gang for which it moves."""
        name, entry = self._name(move.beneficiary), self._ledger.get(move.uid)
        text = f"migrated so that {name} fits, at the loss of {gpu_hours_of(move.cost.lost_work)} of work"
        details = {
            "beneficiary": move.beneficiary,
            "clusterQueue": entry.cluster_queue if entry is not None else "",
            "lostGpuSeconds": move.cost.lost_work,
            "nodes": sorted({node for p in move.placement.podsets for node, _ in p.nodes}),
        }
        place = CapacityLease(move.placement, (), lease.created_at, lease.expires_at)
        return Evict(Reason(Code.DEFRAGMENTED, text, details), lease=place)


def _start_of(uid: str, planned: Mapping[str, ScheduledGang]) -> PlannedStart | None:
    return planned[uid].start if uid in planned else None


def _requested(snapshot: Snapshot, plan: Plan) -> dict[str, Workload]:
    """The requests of the gangs about which the plan decides more than a reason, by uid."""
    uids = {a.uid for a in plan.admitted} | {p.preemptor for p in plan.preempted}
    uids.update(uid for move in plan.moved for uid in (move.uid, move.beneficiary))
    uids.update(refusal.uid for refusal in plan.pending if refusal.lease is not None)
    if not uids:
        return {}
    requested = {
        gang.workload.uid: gang.workload for gang in snapshot.admitted if gang.workload.uid in uids
    }
    return requested | {
        p.workload.uid: p.requested for p in snapshot.pending if p.workload.uid in uids
    }


def _leaving(plan: Plan) -> frozenset[str]:
    """The uids of the gangs that a plan evicts."""
    preempted = [preemption.victim for preemption in plan.preempted]
    return frozenset((*preempted, *(m.uid for m in plan.moved), *(e.uid for e in plan.evicted)))


def with_relocations(
    decided: Sequence[EntryChange], relocations: Sequence[EntryChange]
) -> list[EntryChange]:
    """The changes of a plan together with the relocations next to it: one for each workload.

    A note on a gang that is relocated, which runs until now, is left out. If the plan decides anything else about such a gang, no
    gang is relocated now: all of them are, or none is.
    """
    moving = {change.after.uid for change in relocations}
    both = [change for change in decided if change.after.uid in moving]
    if any(c.before is None or _placed(c.before) != _placed(c.after) for c in both):
        return list(decided)
    return [*(c for c in decided if c.after.uid not in moving), *relocations]


def _placed(entry: Entry) -> tuple[State, Placement | None]:
    return entry.state, entry.placement


def _loss(cost: Cost) -> str:
    return f"this loses {gpu_hours_of(cost.lost_work)} of work and frees {counted_gpus(cost.gpus)}"


def _cost_of(preemption: Preemption) -> dict[str, Any]:
    """The part of it that history stores."""
    return {
        "preemptor": preemption.preemptor,
        "why": preemption.reason,
        "lostGpuSeconds": preemption.cost.lost_work,
        "priority": preemption.cost.priority,
        "gpus": as_number(preemption.cost.gpus),
    }


def _admission(admission: Admission, workload: Workload | None, config: QueueConfig) -> Event:
    if admission.repaired:
        return Repair(admission.placement)
    if workload is None:
        return Admit(admission.placement)
    queue = config.cluster_queue_of(workload.namespace, workload.queue)
    return Admit(admission.placement, details=queue.shown_prices if queue is not None else {})


def _refusal(
    refusal: Refusal, planned: ScheduledGang | None, config: QueueConfig, now: float
) -> Event:
    first, *more = refusal.reasons
    details = dict(first.details)
    if more:
        details["also"] = [{"code": str(r.code), "message": r.message} for r in more]
    details["proof"] = str(refusal.proof)
    reason = Reason(first.code, first.message, details)
    if refusal.lease is not None:
        return Reserve(refusal.lease, reason, _needed(refusal.checks, config, now))
    if planned is None:
        return Refuse(reason)
    return Refuse(reason, planned.start, planned.slip)


def _needed(names: Iterable[str], config: QueueConfig, now: float) -> tuple[CheckStatus, ...]:
    """Checks without an answer."""
    limits = {name: config.checks[name].timeout for name in names}
    return tuple(
        CheckStatus(name, since=now, due=now + limit if limit is not None else None)
        for name, limit in limits.items()
    )


def _asked(entry: Entry, job: JobRecord) -> tuple[PodSet, ...]:
    """The request of its object, with what its admission checks add."""
    return updated(job.podsets, entry.checks.updates)


def sentence(snapshot: Snapshot, plan: Plan, changes: Iterable[EntryChange]) -> str:
    """A summary of the cycle for the log: the number of decisions, and the reasons of gangs that stay pending.

    A gang that starts with fewer pods counts with the GPUs of these pods.
    """
    committed = list(changes)
    parts = []
    noted = {c.after.uid: c.after for c in committed if c.note}
    decided = [a for a in plan.admitted if a.uid in noted and noted[a.uid].state.live]
    started = [a for a in decided if not a.repaired]
    if started:
        gpus = _gpus_started(snapshot, started)
        parts.append(f"admitted {len(started)} ({counted_gpus(gpus)})")
    repaired = [noted[a.uid].ref for a in decided if a.repaired]
    if repaired:
        parts.append(f"repairing {some(repaired)}")
    leaving = [c.after for c in committed if c.after.state is State.EVICTING and c.note]
    moving = [e for e in leaving if e.reason.code is Code.DEFRAGMENTED]
    evicted = [e for e in leaving if e not in moving]
    if moving:
        parts.append(f"migrating {some([e.ref for e in moving])}")
    if evicted:
        parts.append(f"evicting {some([e.ref for e in evicted])}")
    if plan.pending:
        inner = ", ".join(f"{code} {count}" for code, count in plan.waiting_by_code.items())
        parts.append(f"{len(plan.pending)} pending ({inner})")
    return "; ".join(parts) or "no change"


def _gpus_started(snapshot: Snapshot, started: Iterable[Admission]) -> Fraction:
    """The GPUs of gangs that start. A repaired gang is none of them: it was not pending in the snapshot."""
    asked = {p.workload.uid: p.workload for p in snapshot.pending}
    return summed(Admitted(asked[a.uid], a.placement).gpus for a in started)
