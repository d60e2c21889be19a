"""Ways out by policy: what would have to be allowed so that the gang evicts others, and what that costs them.

One change of policy is tried after the other; if none is enough by itself, all of them together are, less every one that can
be left out. Each way is proved by the planner: on the changed snapshot it holds a lease for the gang and names the victims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from queuectl.domain.changes import Change, apply_all
from queuectl.domain.diagnosis import Remedy, Way
from queuectl.domain.permits import (
    AllowPreemption,
    LiftProtection,
    MakePreemptible,
    PolicyField,
    ReclaimIdle,
)
from queuectl.domain.plan import Preemption
from queuectl.domain.queues import (
    ClusterQueue,
    OptOut,
    ReclaimMode,
    ReclaimWithinCohort,
    WithinClusterQueue,
)
from queuectl.domain.snapshot import Admitted
from queuectl.domain.words import counted
from queuectl.planner.explain.held import HOLDERS
from queuectl.planner.explain.offer import turn_after
from queuectl.planner.explain.trial import ask, past_heads, requests
from queuectl.planner.explain.turn import Turn
from queuectl.planner.preempt.idle import in_reach
from queuectl.planner.preempt.policy import schemes
from queuectl.planner.preempt.shield import opts_out, protected_until
from queuectl.planner.problem.problem import survey
from queuectl.planner.reasons.words import some

_WAYS: Final = 3
_STRONGER: Final[dict[PolicyField, tuple[str, ...]]] = {
    PolicyField.WITHIN: tuple(WithinClusterQueue),
    PolicyField.RECLAIM: tuple(ReclaimWithinCohort),
}


def others_evicted(turn: Turn) -> Iterator[Way]:
    """Each single change of policy that is enough; else a set of which none can be left out."""
    if turn.queue is None or turn.head is not None or not turn.staying:
        return
    if _may_help(turn, ()) and _victims(turn, ()):
        return  # it evicts others as it is
    found: list[Way] = []
    for choices in _singly(turn):
        for changes in choices:  # the least first; what more would do is not said
            if any(set(way.changes) <= set(changes) for way in found):
                continue
            if _may_help(turn, changes) and (way := _tried(turn, changes)) is not None:
                found.append(way)
                break
        if len(found) == _WAYS:
            break
    if not found:
        found = _together(turn)
    yield from found


def _singly(turn: Turn) -> Iterator[list[tuple[Change, ...]]]:
    """Per field of policy, the values it could have, each allowing more than the one before."""
    assert turn.queue is not None
    own = turn.queue
    for name in _only_told(turn, own):
        yield [(ReclaimIdle(name),)]
    now = {
        PolicyField.WITHIN: own.within_cluster_queue.value,
        PolicyField.RECLAIM: own.reclaim_within_cohort.value,
    }
    for field, values in _STRONGER.items():
        if field is PolicyField.WITHIN or own.cohort is not None:
            more = values[values.index(now[field]) + 1 :]
            yield [(AllowPreemption(own.name, field, value),) for value in more]
    if own.cohort is not None and not (own.preempts_to_borrow and own.borrow_threshold is None):
        yield [_borrowing(own)]
    if own.cohort is not None and not own.evicts_within_nominal:
        yield [(AllowPreemption(own.name, PolicyField.ROOM, "true"),)]
    for name in _protecting(turn):
        yield [(LiftProtection(name),)]
    shielded = _unwilling(turn)
    if shielded:
        yield [(MakePreemptible(shielded),)]


def _only_told(turn: Turn, own: ClusterQueue) -> list[str]:
    """ClusterQueues of its tree with idle gangs that would yield to it, were it not a dry run."""
    known = turn.snapshot.config.cluster_queues
    names = in_reach(turn.problem, turn.pending.workload, own, dry=True)
    return [name for name in names if known[name].idle_reclaim.mode is ReclaimMode.DRY_RUN]


def _borrowing(own: ClusterQueue) -> tuple[Change, ...]:
    """``borrowWithinCohort`` counts only beside ``reclaimWithinCohort``."""
    low = ReclaimWithinCohort.LOWER_PRIORITY.value
    to_borrow = AllowPreemption(own.name, PolicyField.BORROW, low)
    if own.reclaim_within_cohort is not ReclaimWithinCohort.NEVER:
        return (to_borrow,)
    return AllowPreemption(own.name, PolicyField.RECLAIM, low), to_borrow


def _protecting(turn: Turn) -> list[str]:
    """ClusterQueues whose protections shield some gang now."""
    config, now = turn.snapshot.config, turn.snapshot.now
    names = set()
    for gang in turn.staying:
        queue = config.cluster_queue_of(gang.workload.namespace, gang.workload.queue)
        if queue is None or not gang.evictable or opts_out(gang.workload, queue, reclaimed=True):
            continue
        if protected_until(gang, queue, now, reclaimed=True):
            names.add(queue.name)
    return sorted(names)


def _unwilling(turn: Turn) -> tuple[str, ...]:
    """Gangs that opt out of preemption, where their ClusterQueue honours that."""
    config = turn.snapshot.config
    found = []
    for gang in turn.staying:
        queue = config.cluster_queue_of(gang.workload.namespace, gang.workload.queue)
        if queue is not None and gang.evictable and opts_out(gang.workload, queue):
            found.append(gang.workload.uid)
    return tuple(sorted(found))


def _together(turn: Turn) -> list[Way]:
    """All changes that could count, less every one that can be left out; none if that does not help."""
    everything = [change for choices in _singly(turn) if choices for change in choices[-1]]
    everything = list(_strongest(everything))
    if len(everything) < 2 or not _may_help(turn, everything):
        return []
    way = _tried(turn, _reduced(everything, partial(_may_help, turn)))
    if way is None and _victims(turn, everything):
        way = _tried(turn, _reduced(everything, lambda fewer: bool(_victims(turn, fewer))))
    return [way] if way is not None else []


def _reduced(changes: list[Change], enough: Callable[[list[Change]], bool]) -> list[Change]:
    """The changes less all that can be left out, or be weaker."""
    left = changes
    for change in changes:
        for less in (None, *_weaker(change)):
            fewer = [c if c != change else less for c in left]
            kept = [c for c in fewer if c is not None]
            if enough(kept):
                left = kept
                break
    return left


def _weaker(change: Change) -> Iterator[Change]:
    """The same change by less, the least first."""
    if isinstance(change, AllowPreemption) and change.field in _STRONGER:
        values = _STRONGER[change.field]
        yield from (
            replace(change, value=value) for value in values[1 : values.index(change.value)]
        )


def _strongest(changes: Sequence[Change]) -> Iterator[Change]:
    """Of several values for one field, the one that allows most."""
    values = {(c.queue, c.field): c.value for c in changes if isinstance(c, AllowPreemption)}
    for field, order in _STRONGER.items():
        for change in changes:
            if isinstance(change, AllowPreemption) and change.field is field:
                known = values[change.queue, field]
                values[change.queue, field] = max(known, change.value, key=order.index)
    yield from (AllowPreemption(q, field, value) for (q, field), value in values.items())
    yield from (c for c in changes if not isinstance(c, AllowPreemption))


def _may_help(turn: Turn, changes: Sequence[Change]) -> bool:
    """Whether it would fit if everybody left whom it may evict then: without that, no trial is worth its time."""
    legal = _legal(turn, changes)
    if not legal:
        return False
    leaving = [g for g in turn.snapshot.admitted if g.leaving]
    return ask(turn, replace(past_heads(turn), gone=(*legal, *leaving))).fits


def _legal(turn: Turn, changes: Sequence[Change]) -> list[Admitted]:
    """Whom it may evict after these changes, under some choice of flavors."""
    changed = apply_all(changes, turn.snapshot)
    if all(isinstance(change, AllowPreemption) for change in changes):
        state = turn.state(HOLDERS, turn.snapshot.config)
    else:
        state = turn.fresh_ledger(HOLDERS, turn.snapshot.config)
        state.problem = survey(changed, turn.problem.cache)
    assert turn.queue is not None
    queue = changed.config.cluster_queues[turn.queue.name]
    named: set[str] = set()
    for request in requests(turn, past_heads(turn), turn.problem):
        for together in schemes(state, request, queue):
            named |= {gang.workload.uid for scheme in together for gang in scheme.bench.gangs}
    return [gang for gang in turn.staying if gang.workload.uid in named]


def _tried(turn: Turn, changes: Sequence[Change]) -> Way | None:
    """The way, if the planner evicts others for the gang then; with who goes and what that loses."""
    victims = _victims(turn, changes)
    needed = [c for c in changes if isinstance(c, MakePreemptible)]
    if not victims or not needed:
        return _way(turn, changes, victims) if victims else None
    gone = {v.victim for v in victims}
    fewer = tuple(uid for c in needed for uid in c.uids if uid in gone)
    rest = [c for c in changes if not isinstance(c, MakePreemptible)]
    changes = [*rest, MakePreemptible(fewer)]
    victims = _victims(turn, changes)
    return _way(turn, changes, victims) if victims else None


def _victims(turn: Turn, changes: Sequence[Change]) -> list[Preemption]:
    later = turn_after(turn, changes)
    if later is None:
        return []
    cycle = later.cycle
    (waiting,) = (p for p in later.snapshot.pending if p.workload.uid == turn.uid)
    cycle.consider(waiting)
    return [v for v in cycle.preempted if v.preemptor == turn.uid]


def _way(turn: Turn, changes: Sequence[Change], victims: Sequence[Preemption]) -> Way:
    refs = {g.workload.uid: g.workload.ref for g in turn.snapshot.admitted}
    gpus = sum(v.cost.gpus for v in victims)
    lost = sum(v.cost.lost_work for v in victims)
    names = sorted(refs[v.victim] for v in victims)
    message = (
        f"{' and '.join(_said(turn, change) for change in changes)}: it would evict "
        f"{counted(len(victims), 'gang')} with {counted(gpus, 'GPU')}, at {lost} GPU-seconds of lost work: {some(names)}"
    )
    details = {
        "policy": [row for change in changes for row in _plain(turn, change)],
        "gangs": [
            {"workload": refs[v.victim], "gpus": v.cost.gpus, "lostGpuSeconds": v.cost.lost_work}
            for v in sorted(victims, key=lambda v: refs[v.victim])
        ],
        "count": len(victims),
        "gpus": gpus,
    }
    return Way(Remedy.ALLOW_PREEMPTION, message, details, tuple(changes))


def _said(turn: Turn, change: Change) -> str:
    refs = {g.workload.uid: g.workload.ref for g in turn.snapshot.admitted}
    match change:
        case AllowPreemption(queue, field, value):
            return f"set {field} of ClusterQueue {queue} to {value}"
        case ReclaimIdle(queue):
            return f"set idleReclaim of ClusterQueue {queue} to {ReclaimMode.ON_DEMAND}"
        case LiftProtection(queue):
            return f"lift the protection of gangs of ClusterQueue {queue}"
        case MakePreemptible(uids):
            config = turn.snapshot.config
            owners = (
                config.cluster_queue_of(g.workload.namespace, g.workload.queue)
                for g in turn.snapshot.admitted
                if g.workload.uid in uids
            )
            queues = some(sorted({queue.name for queue in owners if queue is not None}))
            policy = f"set preemptionOptOut of ClusterQueue {queues} to {OptOut.NEVER}"
            return f"make {some([refs[uid] for uid in uids])} preemptible, or {policy}"
    raise AssertionError(change)


def _plain(turn: Turn, change: Change) -> Iterator[dict[str, Any]]:
    refs = {g.workload.uid: g.workload.ref for g in turn.snapshot.admitted}
    match change:
        case AllowPreemption(queue, field, value):
            plain = True if field is PolicyField.ROOM else value
            yield {"clusterQueue": queue, "field": field.value, "value": plain}
        case ReclaimIdle(queue):
            value = ReclaimMode.ON_DEMAND.value
            yield {"clusterQueue": queue, "field": "idleReclaim", "value": value}
        case LiftProtection(queue):
            yield {"clusterQueue": queue, "field": "protection", "value": None}
        case MakePreemptible(uids):
            yield from ({"workload": refs[u], "field": "preemptible", "value": True} for u in uids)
