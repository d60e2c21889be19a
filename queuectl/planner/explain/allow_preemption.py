"""Fixes by policy: what would have to be allowed so that the gang evicts others, and what that costs them.

Each setting of a policy has one or more values, each of which allows more than the one before. Each setting is tried by itself;
if none is enough, all of them together are, less every one that can be left out or be weaker. The planner proves each fix: on the
changed snapshot it evicts gangs for this one, and names the victims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Any, Final

from queuectl.domain.diagnosis import (
    AllowPreemption,
    LiftProtection,
    MakePreemptible,
    PolicyField,
    ReclaimIdle,
    Remedy,
    SuggestedChange,
    SuggestedFix,
    apply_all,
)
from queuectl.domain.gpus import as_number
from queuectl.domain.plan import Preemption
from queuectl.domain.queues import ClusterQueue, OptOut, ReclaimMode, ReclaimWithinCohort
from queuectl.domain.snapshot import Admitted
from queuectl.domain.words import counted, counted_gpus, some
from queuectl.planner.explain.context import HOLDERS, GangContext
from queuectl.planner.explain.relaxation import ask, past_heads, requests
from queuectl.planner.preempt.protections import opts_out, protected_until
from queuectl.planner.preempt.rules import evictable
from queuectl.planner.preempt.running import in_reach
from queuectl.planner.problem.problem import survey

_FIXES: Final = 3

_Changes = tuple[SuggestedChange, ...]


def others_evicted(ctx: GangContext) -> Iterator[SuggestedFix]:
    """Each single setting that is enough; otherwise a set of settings of which none can be left out."""
    if ctx.queue is None or ctx.head is not None or not ctx.staying:
        return
    if _may_help(ctx, ()) and _victims(ctx, ()):
        return  # it evicts others as it is
    settings = list(_settings(ctx, ctx.queue))
    found: list[SuggestedFix] = []
    for values in settings:
        for changes in values:  # the least first; what more would do is not suggested
            if any(set(fix.changes) <= set(changes) for fix in found):
                continue
            if _may_help(ctx, changes) and (fix := _tried(ctx, changes)) is not None:
                found.append(fix)
                break
        if len(found) == _FIXES:
            break
    yield from found or _together(ctx, settings)


def _settings(ctx: GangContext, own: ClusterQueue) -> Iterator[list[_Changes]]:
    """Per setting of policy, the values that it could have, each allowing more than the one before."""
    known = ctx.snapshot.config.cluster_queues
    for name in in_reach(ctx.problem, ctx.pending.workload, own, dry=True):
        if known[name].idle_reclaim.mode is ReclaimMode.DRY_RUN:
            yield [(ReclaimIdle(name),)]
    yield _stronger(own, PolicyField.WITHIN, own.within_cluster_queue)
    if own.cohort is not None:
        yield _stronger(own, PolicyField.RECLAIM, own.reclaim_within_cohort)
        if not (own.preempts_to_borrow and own.borrow_threshold is None):
            low = ReclaimWithinCohort.LOWER_PRIORITY.value
            to_borrow: _Changes = (AllowPreemption(own.name, PolicyField.BORROW, low),)
            if (
                own.reclaim_within_cohort is ReclaimWithinCohort.NEVER
            ):  # it counts only alongside this
                to_borrow = (
                    AllowPreemption(own.name, PolicyField.RECLAIM, low),
                    *to_borrow,
                )
            yield [to_borrow]
        if not own.evicts_within_nominal:
            yield [(AllowPreemption(own.name, PolicyField.ROOM, "true"),)]
    protecting, unwilling = _protected(ctx)
    for name in sorted(protecting):
        yield [(LiftProtection(name),)]
    if unwilling:
        yield [(MakePreemptible(tuple(sorted(unwilling))),)]


def _stronger(own: ClusterQueue, field: PolicyField, now: StrEnum) -> list[_Changes]:
    """The values of a field that allow more than the one it has."""
    values = list(type(now))
    more = values[values.index(now) + 1 :]
    return [(AllowPreemption(own.name, field, value.value),) for value in more]


def _protected(ctx: GangContext) -> tuple[set[str], set[str]]:
    """ClusterQueues whose protections shield some gang now; and uids of gangs that opt out, where their queue honors it."""
    protecting, unwilling = set(), set()
    for gang in ctx.staying:
        queue = ctx.queue_of(gang)
        if queue is None or not gang.evictable:
            continue
        if opts_out(gang.workload, queue):
            unwilling.add(gang.workload.uid)
        if not opts_out(gang.workload, queue, reclaimed=True) and protected_until(
            gang, queue, ctx.snapshot.now, reclaimed=True
        ):
            protecting.add(queue.name)
    return protecting, unwilling


def _together(ctx: GangContext, settings: Iterable[list[_Changes]]) -> list[SuggestedFix]:
    """All settings that could count, less all that can be left out or be weaker; none if that does not help."""
    ladders = [[changes[-1] for changes in values] for values in settings if values]
    ladders.sort(key=lambda values: not isinstance(values[0], AllowPreemption))
    everything = [values[-1] for values in ladders]
    if len(everything) < 2 or not _may_help(ctx, everything):
        return []
    fix = _tried(ctx, _reduced(ladders, partial(_may_help, ctx)))
    if fix is None and _victims(ctx, everything):
        fix = _tried(ctx, _reduced(ladders, lambda fewer: bool(_victims(ctx, fewer))))
    return [fix] if fix is not None else []


def _reduced(
    ladders: Sequence[Sequence[SuggestedChange]],
    enough: Callable[[Sequence[SuggestedChange]], bool],
) -> list[SuggestedChange]:
    """Of each setting the least value that is still enough, or none."""
    chosen: list[SuggestedChange | None] = [values[-1] for values in ladders]
    for at, values in enumerate(ladders):
        for less in (None, *values[:-1]):
            fewer = [c for c in (*chosen[:at], less, *chosen[at + 1 :]) if c is not None]
            if enough(fewer):
                chosen[at] = less
                break
    return [change for change in chosen if change is not None]


def _may_help(ctx: GangContext, changes: Sequence[SuggestedChange]) -> bool:
    """Whether it would fit if all left that it may evict then: otherwise a trial is not worth its time."""
    legal = _legal(ctx, changes)
    relaxed = replace(past_heads(ctx), gone=(*legal, *ctx.leaving))
    return bool(legal) and ask(ctx, relaxed).fits


def _legal(ctx: GangContext, changes: Sequence[SuggestedChange]) -> list[Admitted]:
    """The gangs that it may evict after these changes, under some choice of flavors."""
    changed, config = apply_all(changes, ctx.snapshot), ctx.snapshot.config
    if all(isinstance(change, AllowPreemption) for change in changes):
        state = ctx.state(HOLDERS, config)
    else:
        state = ctx.fresh_state(HOLDERS, config)
        state.problem = survey(changed, ctx.problem.cache.fork())
    assert ctx.queue is not None
    queue = changed.config.cluster_queues[ctx.queue.name]
    asked = requests(ctx, past_heads(ctx))
    named = frozenset[str]().union(*(evictable(state, request, queue) for request in asked))
    return [gang for gang in ctx.staying if gang.workload.uid in named]


def _tried(ctx: GangContext, changes: Sequence[SuggestedChange]) -> SuggestedFix | None:
    """The fix, if the planner evicts others for the gang then; with the victims and what that loses."""
    victims = _victims(ctx, changes)
    gone = {v.victim for v in victims}
    if victims and any(isinstance(change, MakePreemptible) for change in changes):
        rest = [c for c in changes if not isinstance(c, MakePreemptible)]
        needed = [u for c in changes if isinstance(c, MakePreemptible) for u in c.uids if u in gone]
        changes = [*rest, MakePreemptible(tuple(needed))]
        victims = _victims(ctx, changes)
    return _fix(ctx, changes, victims) if victims else None


def _victims(ctx: GangContext, changes: Sequence[SuggestedChange]) -> list[Preemption]:
    cycle = ctx.checks.decided(changes)
    return [v for v in cycle.preempted if v.preemptor == ctx.uid] if cycle is not None else []


def _fix(
    ctx: GangContext, changes: Sequence[SuggestedChange], victims: Sequence[Preemption]
) -> SuggestedFix:
    refs = ctx.refs
    victims = sorted(victims, key=lambda v: refs[v.victim])
    gpus = sum((v.cost.gpus for v in victims), Fraction())
    lost = sum(v.cost.lost_work for v in victims)
    descriptions = [_in_words(ctx, change) for change in changes]
    message = (
        f"{' and '.join(text for text, _ in descriptions)}; the gang then evicts {counted(len(victims), 'gang')} "
        f"({counted_gpus(gpus)}, {lost} GPU-seconds of lost work): "
        f"{some([refs[v.victim] for v in victims])}"
    )
    gangs = [
        {
            "workload": refs[v.victim],
            "gpus": as_number(v.cost.gpus),
            "lostGpuSeconds": v.cost.lost_work,
        }
        for v in victims
    ]
    policy = list(chain.from_iterable(rows for _, rows in descriptions))
    details = {"policy": policy, "gangs": gangs, "count": len(victims), "gpus": as_number(gpus)}
    return SuggestedFix(Remedy.ALLOW_PREEMPTION, message, details, tuple(changes))


def _in_words(ctx: GangContext, change: SuggestedChange) -> tuple[str, list[dict[str, Any]]]:
    """A change of policy as text, and as plain JSON values."""

    def row(queue: str, field: str, setting: object) -> list[dict[str, Any]]:
        return [{"clusterQueue": queue, "field": field, "value": setting}]

    match change:
        case AllowPreemption(queue, field, value):
            text = f"set {field} of ClusterQueue {queue} to {value}"
            return text, row(queue, field.value, field is PolicyField.ROOM or value)
        case ReclaimIdle(queue):
            mode = ReclaimMode.ON_DEMAND
            text = f"set idleReclaim of ClusterQueue {queue} to {mode}"
            return text, row(queue, "idleReclaim", mode.value)
        case LiftProtection(queue):
            text = f"remove the protection from ClusterQueue {queue}"
            return text, row(queue, "protection", None)
        case MakePreemptible(uids):
            named = map(ctx.queue_of, ctx.snapshot.admitted_of(uids))
            queues = sorted({queue.name for queue in named if queue is not None})
            policy = f"set preemptionOptOut of ClusterQueue {some(queues)} to {OptOut.NEVER}"
            refs = [ctx.refs[uid] for uid in uids]
            rows = [{"workload": ref, "field": "preemptible", "value": True} for ref in refs]
            return f"make {some(refs)} preemptible, or {policy}", rows
    raise AssertionError(change)
