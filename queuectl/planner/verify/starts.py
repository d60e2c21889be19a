"""Starts at a time: planned starts can happen alongside all that starts now, and Reservations keep the nodes that they need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from typing import Final, TypeAlias

from queuectl.domain.plan import Admission, Plan, Refusal, ScheduledGang
from queuectl.domain.quantity import Resources
from queuectl.domain.queues import QueueingStrategy, WithinClusterQueue, domain_of
from queuectl.domain.reasons import Code
from queuectl.domain.reservations import AdvanceReservation, Occurrence
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import Placement, TopologyMode, Workload
from queuectl.planner.verify.capacity import check_capacity
from queuectl.planner.verify.order import (
    FirstGangs,
    inadmissible,
    never,
)
from queuectl.planner.verify.placement import check_gangs
from queuectl.planner.verify.plan_index import PlanIndex, PlanRule, PlanViolation
from queuectl.planner.verify.quota import check_claims, check_quota
from queuectl.planner.verify.running_use import Use, add_use

# ---- Planned starts
#
# The plan is checked again as it would be at each of these times: the gangs that have ended by then are left out, those that start now
# run, and the gangs planned for that time start. The other checks then say whether they fit.

_SLACK = 60.0  # seconds that the gangs before a planned start can take to stop
_MOST_OVERRUNS = 2
_ANY_FLAVOR = ("",)


def check_planned(index: PlanIndex) -> Iterator[PlanViolation]:
    """Planned starts, and gangs of unknown length that pass a gang that waits."""
    for planned in index.plan.planned:
        yield from _promise(index, planned)
    for at in sorted({p.start.at for p in index.planned}):
        yield from _at(index, at)
    yield from _unknown_lengths(index)


def _promise(index: PlanIndex, planned: ScheduledGang) -> Iterator[PlanViolation]:
    entry, refusal = index.pending.get(planned.uid), index.refused.get(planned.uid)
    broken = partial(PlanViolation, PlanRule.PLANNED_START, planned.uid)
    if entry is None or refusal is None or refusal.lease is not None:
        yield broken("does not wait, or waits for its victims")
        return
    last, start = entry.planned_start, planned.start
    if not planned.is_current:  # it keeps its latest time, or it loses it for a cause
        if last is None:
            yield broken("has no planned start to keep")
        elif planned.slip is None and start != last:
            yield broken("loses its latest time without a cause")
        return
    if start.at < index.snapshot.now:
        yield broken("its planned start is in the past")
    if last is None or last.promised is None or planned.slip is not None:
        return
    if start.at > last.promised + _SLACK:
        times = f"starts at {start.at:.0f}, planned {last.promised:.0f}"
        yield broken(f"is late without a cause: {times}")
    if start.promised is None or start.promised > last.promised:
        yield broken("is planned for a later time without a cause")


def _at(index: PlanIndex, at: float) -> Iterator[PlanViolation]:
    """The violations at one time, as those of the first gang that is planned for it."""
    here = [p for p in index.planned if p.start.at == at]
    snapshot = _later(index, at)
    plan = Plan(admitted=tuple(Admission(p.uid, p.start.placement) for p in here))
    then = PlanIndex(snapshot, plan)
    for check in (check_gangs, check_capacity, check_quota, check_claims):
        for violation in check(then):
            text = f"at its planned start {violation.subject}: {violation.message}"
            yield PlanViolation(PlanRule.PLANNED_START, here[0].uid, text)


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
        if (
            entry is not None
            and _still_runs(snapshot, entry.workload, at, guarded)
            and not _ends_with_its_gang(index, entry.workload, at)
        ):
            running.append(Admitted(entry.workload, admission.placement))
    running += [
        Admitted(entry.workload, refusal.lease.placement)
        for refusal in index.plan.pending
        if refusal.lease is not None
        and (entry := index.pending.get(refusal.uid)) is not None
        and _still_leased(refusal, entry.workload, at)
        and not _ends_with_its_gang(index, entry.workload, at)
    ]
    for p in index.planned:
        workload = index.pending[p.uid].workload
        if p.start.at < at < p.start.at + _length(workload):
            running.append(Admitted(workload, p.start.placement))
    pending = tuple(replace(entry, lease=None) for entry in waiting)
    return replace(snapshot, now=at, admitted=tuple(running), pending=pending)


def _stays(index: PlanIndex, gang: Admitted, at: float) -> bool:
    """Whether a running gang is still there: not if it leaves, nor if its end is known and has passed."""
    if gang.workload.uid in index.gone_after or _ends_with_its_gang(index, gang.workload, at):
        return False
    return gang.ends_at is None or max(gang.ends_at, index.snapshot.now + 1) > at


def _ends_with_its_gang(index: PlanIndex, workload: Workload, at: float) -> bool:
    """Whether a pod that was added to an elastic gang has ended because the gang has."""
    base = index.running.get(workload.family) if workload.grows else None
    return base is not None and not _stays(index, base, at)


def _still_runs(snapshot: Snapshot, workload: Workload, at: float, guarded: list[Workload]) -> bool:
    if snapshot.now + _length(workload) > at:
        return True
    sure = workload.duration is not None and workload.duration.enforced
    return not sure and any(not _evicts(snapshot, first, workload) for first in guarded)


def _still_leased(refusal: Refusal, workload: Workload, at: float) -> bool:
    """Whether a gang with a lease waits at a time, or still runs if it starts at the end of its lease."""
    assert refusal.lease is not None
    return bool(refusal.checks) or refusal.lease.expires_at + _length(workload) > at


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


def _unknown_lengths(index: PlanIndex) -> Iterator[PlanViolation]:
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
        ahead = first.before(index, queue, _ANY_FLAVOR, workload)
        if ahead is not None:
            text = f"of unknown length, passes {ahead.uid}"
            yield PlanViolation(PlanRule.PLANNED_START, uid, text)


def _first_that_wait(index: PlanIndex) -> FirstGangs:
    """The first gangs that wait and hold others back, by Backfill ClusterQueue."""
    first = FirstGangs()
    for refusal in index.plan.pending:
        entry = index.pending.get(refusal.uid)
        queue = index.queue_of(entry.workload) if entry is not None else None
        if entry is None or queue is None or queue.strategy is not QueueingStrategy.BACKFILL:
            continue
        workload = entry.workload
        if workload.grows:
            continue  # it holds back no gang
        if never(refusal) or refusal.lease is not None or inadmissible(index, entry) is not None:
            continue
        first.add(queue, _ANY_FLAVOR, workload)
    return first


# ---- Reservations
#
# A gang is *alongside* a Reservation that does not admit it, if it still runs when the Reservation has begun and not ended. On each node of a
# Reservation, gangs alongside it that start, or are planned to start, fit alongside what the Reservation keeps.

_Kept: TypeAlias = Mapping[str, Resources | None]
"""Nodes of a Reservation, and what it keeps there; None = the whole node."""


def check_reserved(index: PlanIndex) -> Iterator[PlanViolation]:
    """The placements of Reservations, and the gangs that start alongside them."""
    states = {state.name: state for state in index.plan.reserved}
    kept_nodes = {each.name: {*each.reservation.nodes} for each in index.snapshot.reservations}
    for name in kept_nodes.keys() & states.keys():
        kept_nodes[name].update(node for node, _ in states[name].nodes)
    for each in index.snapshot.reservations:
        capacity = each.reservation.capacity
        if capacity is None:
            yield from _starts(index, each, dict.fromkeys(each.reservation.nodes))
            continue
        state = states.get(each.name)
        if state is None or bool(state.nodes) == bool(state.reason):
            yield PlanViolation(PlanRule.RESERVATION, each.name, "has neither nodes nor a reason")
            continue
        nodes = dict(state.nodes)
        if not nodes:
            continue
        yield from _placement(index, each, nodes)
        yield from _shared_nodes(index, each, kept_nodes)
        kept = {name: capacity.requests * pods for name, pods in nodes.items()}
        yield from _starts(index, each, kept)


def check_evicted(index: PlanIndex) -> Iterator[PlanViolation]:
    """The gangs that leave for Reservations: without any of them, a node lacks something that a Reservation keeps there."""
    evicted = {e.uid for e in index.plan.evicted if e.code is Code.RESERVATION_STARTS}
    notice = index.snapshot.config.rules.eviction_grace
    due = [
        (each, _kept(index, each), _staying(index, each, evicted))
        for each in (index.snapshot.reservations if evicted else ())
        if each.reservation.evicts and each.begins - notice <= index.snapshot.now
    ]
    for uid in sorted(evicted & index.running.keys()):
        gang = index.running[uid]
        if not gang.evictable or gang.leaving:
            yield PlanViolation(PlanRule.RESERVATION, uid, "cannot be evicted")
        elif not any(_in_the_way(index, gang, *one) for one in due):
            text = "is evicted, and no Reservation that starts needs what it holds"
            yield PlanViolation(PlanRule.RESERVATION, uid, text)


def _kept(index: PlanIndex, each: Occurrence) -> _Kept:
    """The amounts that a Reservation keeps after the plan."""
    capacity = each.reservation.capacity
    if capacity is None:
        return dict.fromkeys(each.reservation.nodes)
    states = (state for state in index.plan.reserved if state.name == each.name)
    return {name: capacity.requests * pods for state in states for name, pods in state.nodes}


def _staying(index: PlanIndex, each: Occurrence, evicted: Collection[str]) -> Use:
    """Use of the nodes by gangs alongside a Reservation that do not leave for one."""
    return _on_nodes(
        (gang.workload, gang.placement)
        for uid, gang in index.running.items()
        if uid not in evicted and not gang.leaving and _runs_beside(index, each, gang)
    )


def _in_the_way(
    index: PlanIndex, gang: Admitted, each: Occurrence, kept_amounts: _Kept, staying: Use
) -> bool:
    """Whether what a Reservation keeps does not fit if a gang stays that leaves for it."""
    if not _runs_beside(index, each, gang):
        return False
    held = _on_nodes([(gang.workload, gang.placement)])
    for name in held.keys() & kept_amounts.keys():
        whole, node = kept_amounts[name], index.nodes.get(name)
        if whole is None or node is None or not node.in_service:
            return True
        others = index.snapshot.other_pods.get(name, Resources())
        used = staying.get(name, {})
        for resource in set(whole) & set(held[name]) - {"pods"}:
            free = node.allocatable[resource] - others[resource] - used.get(resource, 0)
            if 0 < held[name][resource] > free - whole[resource]:
                return True
    return False


def _placement(
    index: PlanIndex, each: Occurrence, nodes: dict[str, int]
) -> Iterator[PlanViolation]:
    capacity = each.reservation.capacity
    assert capacity is not None
    broken = partial(PlanViolation, PlanRule.RESERVATION, each.name)
    begun = each.begins <= index.snapshot.now
    if begun and each.placed:
        if nodes != dict(each.placed):
            yield broken("moves after it has begun")
        return
    if sum(nodes.values()) != capacity.pods:
        text = f"keeps room for {sum(nodes.values())} of {capacity.pods} pods"
        yield broken(text)
    flavor = index.snapshot.config.flavors.get(capacity.flavor or "")
    labels = [*capacity.node_labels, *(flavor.node_labels if flavor is not None else ())]
    for name in nodes:
        node = index.nodes.get(name)
        if node is None or not node.ready:
            yield broken(f"keeps node {name}, which is lost")
        elif any(node.labels.get(key) != value for key, value in labels):
            yield broken(f"keeps node {name} of other labels")
    asked = capacity.topology
    if asked is not None and asked.mode is TopologyMode.REQUIRED and asked.level is not None:
        topologies = list(index.snapshot.config.topologies.values())
        if flavor is not None:
            topologies = [t for t in topologies if t.name == flavor.topology]
        here = [index.nodes[name] for name in nodes if name in index.nodes]
        if len({domain_of(node, asked.level, topologies) for node in here}) > 1:
            text = f"is in several domains of {asked.level}"
            yield broken(text)


def _shared_nodes(
    index: PlanIndex, each: Occurrence, kept_nodes: Mapping[str, Collection[str]]
) -> Iterator[PlanViolation]:
    """Nodes that another Reservation keeps at the same time. One that has begun keeps its nodes."""
    if each.placed and each.active(index.snapshot.now):
        return
    for other in index.snapshot.reservations:
        shared = set(kept_nodes[each.name]) & set(kept_nodes[other.name])
        if other is not each and other.overlaps(each) and shared:
            text = f"keeps node {min(shared)} while Reservation {other.name} keeps it"
            yield PlanViolation(PlanRule.RESERVATION, each.name, text)


def _starts(index: PlanIndex, each: Occurrence, kept_amounts: _Kept) -> Iterator[PlanViolation]:
    """Gangs alongside a Reservation that start on its nodes."""
    starting = [
        (claim.workload, claim.placement)
        for claim in index.claims
        if claim.running is None
        and _beside(index, each, claim.workload, index.snapshot.now, _until(index, claim.workload))
    ]
    yield from _check(index, each, kept_amounts, starting, index.snapshot.now)
    for planned in index.planned:
        entry, at = index.pending[planned.uid], planned.start.at
        if _beside(index, each, entry.workload, at, at + _length(entry.workload)):
            later = [
                *starting_until(index, starting, at),
                (entry.workload, planned.start.placement),
            ]
            later += _planned_before(index, each, planned)
            yield from _check(index, each, kept_amounts, later, at)


def starting_until(
    index: PlanIndex, starting: list[tuple[Workload, Placement]], at: float
) -> list[tuple[Workload, Placement]]:
    """Of the gangs that start now, those that still run at a time."""
    return [(w, p) for w, p in starting if _until(index, w) > at]


def _planned_before(
    index: PlanIndex, each: Occurrence, planned: ScheduledGang
) -> Iterator[tuple[Workload, Placement]]:
    for other in index.planned:
        entry, at = index.pending[other.uid], planned.start.at
        if other.uid == planned.uid or other.start.at > at:
            continue
        until = other.start.at + _length(entry.workload)
        if until > at and _beside(index, each, entry.workload, other.start.at, until):
            yield entry.workload, other.start.placement


def _check(
    index: PlanIndex,
    each: Occurrence,
    kept_amounts: _Kept,
    starting: list[tuple[Workload, Placement]],
    at: float,
) -> Iterator[PlanViolation]:
    added = _on_nodes(starting)
    touched = added.keys() & kept_amounts.keys()
    if not touched:
        return
    used = _on_nodes(
        (gang.workload, gang.placement)
        for gang in index.snapshot.admitted
        if gang.workload.uid not in index.gone_after
        and _end(index, gang) > at
        and _runs_beside(index, each, gang)
    )
    for name in sorted(touched):
        whole = kept_amounts[name]
        node = index.nodes.get(name)
        if whole is None or node is None:
            text = f"a gang that runs until after its start is placed on node {name}"
            yield PlanViolation(PlanRule.RESERVATION, each.name, text)
            continue
        others = index.snapshot.other_pods.get(name, Resources())
        for resource in set(whole) & set(added[name]) - {"pods"}:
            free = node.allocatable[resource] - others[resource] - whole[resource]
            asked = added[name][resource] + used.get(name, {}).get(resource, 0)
            if asked > free:
                text = (
                    f"node {name}, {resource}: gangs alongside it hold {asked}, {free} are not kept"
                )
                yield PlanViolation(PlanRule.RESERVATION, each.name, text)


def _on_nodes(gangs: Iterable[tuple[Workload, Placement]]) -> Use:
    use: Use = {}
    for workload, placement in gangs:
        add_use(use, workload, placement)
    return use


def _beside(
    index: PlanIndex, each: Occurrence, workload: Workload, at: float, until: float
) -> bool:
    """Whether a gang that holds its place from a time until another one is alongside a Reservation."""
    return (
        at < each.ends and until > each.begins and not _admitted(index, each.reservation, workload)
    )


def _until(index: PlanIndex, workload: Workload) -> float:
    """The end of a gang of this plan: it starts now, or at the end of the lease that it gets now. A running one migrates."""
    uid, start = workload.uid, index.snapshot.now
    if (gang := index.running.get(uid)) is not None:
        return _end(index, gang)
    lease = index.refused[uid].lease if uid in index.refused else None
    if lease is not None and lease != index.pending[uid].lease:
        start = lease.expires_at
    return start + _length(workload)


def _runs_beside(index: PlanIndex, each: Occurrence, gang: Admitted) -> bool:
    return not _admitted(index, each.reservation, gang.workload) and _end(index, gang) > each.begins


def _admitted(index: PlanIndex, reservation: AdvanceReservation, workload: Workload) -> bool:
    queue = index.queue_of(workload)
    if queue is None or reservation.cluster_queue != queue.name:
        return False
    by_user = not reservation.users or workload.user in reservation.users
    return by_user and (not reservation.namespaces or workload.namespace in reservation.namespaces)


def _end(index: PlanIndex, gang: Admitted) -> float:
    return inf if gang.ends_at is None else max(gang.ends_at, index.snapshot.now + 1)


CHECKS: Final = (
    check_planned,
    check_reserved,
    check_evicted,
)
"""The checks of this module that need only the plan."""
