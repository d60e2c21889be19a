"""Fixes by the submitter: a coarser level, fewer pods, fewer node rules, a higher priority."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil, floor
from typing import Final

from queuectl.domain.devices import CLAIM_PODSET
from queuectl.domain.diagnosis import (
    FewerPods,
    Limit,
    LimitRun,
    RaisePriority,
    RelaxLevel,
    RelaxRules,
    Remedy,
    SuggestedChange,
    SuggestedFix,
    apply_all,
)
from queuectl.domain.fleet import NodeRules, Toleration
from queuectl.domain.words import counted
from queuectl.domain.workload import PodSet, TopologyMode, Workload
from queuectl.planner.explain.context import HOLDERS, GangContext
from queuectl.planner.explain.left_out import taints
from queuectl.planner.explain.relaxation import Relaxation, ask, past_heads
from queuectl.planner.explain.remedy import offer
from queuectl.planner.order.queue_order import place
from queuectl.planner.reasons.words import level_name

_TAINTS_TRIED: Final = 4
_PRIORITIES_TRIED: Final = 3


def _with(ctx: GangContext, change: SuggestedChange) -> Relaxation:
    """The gang after its own change, past the heads."""
    snapshot = replace(ctx.snapshot, pending=(ctx.pending,))
    return replace(past_heads(ctx), workload=apply_all([change], snapshot).pending[0].workload)


def fewer_pods(ctx: GangContext) -> Iterator[SuggestedFix]:
    """The largest number of pods of its largest podset that fits now; proved by the next larger one.

    A gang that never fits is decided after others. With fewer pods it can come before them, so each number is planned.
    """
    if any(reason.never_fits for reason in ctx.stated):
        fix = largest_part(ctx, lambda change: ctx.checks.starts((change,)))
        if fix is not None:
            yield replace(fix, least=all(map(ctx.checks.refuses, more_pods(ctx, fix))))
        return

    def enough(change: FewerPods) -> bool:
        return ask(ctx, _with(ctx, change)).fits

    fix = largest_part(ctx, enough)
    if fix is not None:
        yield from offer(ctx, _with(ctx, fix.changes[0]), fix, more_pods(ctx, fix))


def more_pods(ctx: GangContext, fix: SuggestedFix) -> Sequence[tuple[SuggestedChange, ...]]:
    """The next larger number of pods, if it is not the gang as it is."""
    [change] = fix.changes
    assert isinstance(change, FewerPods)
    podset = next(p for p in ctx.pending.workload.podsets if p.name == change.podset)
    count = change.count + podset.slice_size
    return [(replace(change, count=count),)] if count < podset.count else []


def largest_part(ctx: GangContext, enough: Callable[[FewerPods], bool]) -> SuggestedFix | None:
    """The gang with as many pods of its largest podset as are still ``enough``; None where it sets a minimum itself."""
    workload = ctx.pending.workload
    podset = max(workload.podsets, key=lambda p: (p.count, p.name), default=None)
    if podset is None or any(p.min_count is not None for p in workload.podsets):
        return None
    step = podset.slice_size

    def part(slices: int) -> FewerPods:
        return FewerPods(ctx.uid, podset.name, slices * step)

    fewer = range(1, podset.count // step)
    change = part(bisect_left(fewer, True, key=lambda slices: not enough(part(slices))))
    count = change.count
    if not count:
        return None
    message = f"start with {count} of {counted(podset.count, 'pod')} of podset {podset.name}"
    details = {"podSet": podset.name, "count": count, "of": podset.count}
    return SuggestedFix(Remedy.FEWER_PODS, message, details, (change,), least=True)


def coarser_level(ctx: GangContext) -> Iterator[SuggestedFix]:
    """The finest level that is coarse enough, or no topology at all."""
    bound = [p for p in ctx.pending.workload.podsets if _bound(p)]
    asked = sorted({level_name(p.topology.level) for p in bound if p.topology and p.topology.level})
    finer: list[tuple[SuggestedChange, ...]] = []
    for level in _coarser(ctx, bound):
        change = RelaxLevel(ctx.uid, {p.name: level for p in bound if _finer(ctx, p, level)})
        to = f"one {level_name(level)}" if level is not None else "any nodes"
        message = f"request {to} instead of one {' or '.join(asked)}" if asked else f"request {to}"
        details = {"podSets": sorted(change.levels), "from": asked, "to": level}
        fix = SuggestedFix(Remedy.RELAX_TOPOLOGY, message, details, (change,), least=True)
        found = list(offer(ctx, _with(ctx, change), fix, finer))
        if found:
            yield from found
            return
        finer = [(change,)]


def _bound(podset: PodSet) -> bool:
    """Whether its user requests a topology for it; a claim that it shares keeps it on one node in each case."""
    if podset.group is not None and podset.group.startswith(CLAIM_PODSET):
        return False
    asked = podset.topology
    return asked is not None and (asked.mode is TopologyMode.REQUIRED or bool(asked.slices))


def _levels(ctx: GangContext, podset: PodSet) -> tuple[tuple[str, ...], int]:
    """Levels of the topology that the podset's own level is of, coarse to fine, and its own position."""
    level = podset.topology.level if podset.topology is not None else None
    known = ctx.snapshot.config.topologies.values()
    levels = next((t.levels for t in known if level in t.levels), ())
    return levels, levels.index(level) if level in levels else 0


def _coarser(ctx: GangContext, bound: list[PodSet]) -> Iterator[str | None]:
    """Levels coarser than the finest one asked, the finest first; then none."""
    if not bound:
        return
    levels, rank = max((_levels(ctx, p) for p in bound), key=lambda found: found[1])
    yield from reversed(levels[:rank])
    yield None


def _finer(ctx: GangContext, podset: PodSet, level: str | None) -> bool:
    """Whether a podset asks for something finer than a level."""
    levels, rank = _levels(ctx, podset)
    return level is None or (level in levels and rank > levels.index(level))


def fewer_rules(ctx: GangContext) -> Iterator[SuggestedFix]:
    """Without one selector, without the affinity, or with one toleration more."""
    for message, details, rules in _relaxed(ctx):
        change = RelaxRules(ctx.uid, rules)
        fix = SuggestedFix(Remedy.RELAX_RULES, message, details, (change,), least=True)
        yield from offer(ctx, _with(ctx, change), fix)


def shorter_run(ctx: GangContext) -> Iterator[SuggestedFix]:
    """The longest limit with which it delays no planned start, where the reason states one."""
    reason = ctx.of_order
    seconds = int(reason.details.get("mostSeconds", 0)) if reason is not None else 0
    if seconds > 0:
        longer = LimitRun(ctx.uid, seconds + 1.0)
        least = not ctx.checks.starts((longer,)) and not ctx.checks.over
        yield limited_run(ctx, seconds, least=least)


def limited_run(ctx: GangContext, seconds: int, *, least: bool) -> SuggestedFix:
    """A limit of the attempt that would start now. The label counts all attempts, so its value contains those before."""
    used = ctx.pending.past_seconds
    limit = floor(used + seconds)
    text = f"set a limit of {limit} s or less (label queuectl.dev/max-exec-time-seconds)"
    if used:
        text += f": earlier attempts ran for {ceil(used)} s"
    change = LimitRun(ctx.uid, float(seconds))
    return SuggestedFix(Remedy.SHORTEN_RUN, text, {"seconds": limit}, (change,), least)


def _relaxed(ctx: GangContext) -> Iterator[tuple[str, dict[str, str], dict[str, NodeRules]]]:
    rules = {p.name: p.shape.rules for p in ctx.pending.workload.podsets}
    own = {p.name: p.shape.rules for p in ctx.pending.workload.requested}
    for selector in sorted({s for r in own.values() for s in r.selector}):
        less = {
            name: replace(r, selector=tuple(s for s in r.selector if s != selector))
            for name, r in rules.items()
            if selector in r.selector
        }
        term = "=".join(selector)
        yield f"remove the node selector {term}", {"selector": term}, less
    less = {n: replace(r, affinity=None) for n, r in rules.items() if r.affinity is not None}
    if less:
        yield "remove the required node affinity", {"affinity": "required"}, less
    for key in taints(ctx)[:_TAINTS_TRIED]:
        more = (Toleration(key, "Exists"),)
        less = {n: replace(r, tolerations=r.tolerations + more) for n, r in rules.items()}
        text = f"add a toleration for the taint {key}"
        if any(key in podset.shape.requests for podset in ctx.pending.workload.podsets):
            text += ", or declare the admission plugin ExtendedResourceToleration if the API server uses it"
        yield text, {"taint": key}, less


def higher_priority(ctx: GangContext) -> Iterator[SuggestedFix]:
    """The least priority, of those at which it comes before more gangs, with which it would start."""
    relaxed = replace(past_heads(ctx), holders=HOLDERS - {Limit.ORDER})
    own = ctx.pending.workload
    if own.grows:
        return  # a pod has the priority of the gang that it extends
    if ctx.pending.own_priority is not None:
        return  # a spent Budget lowers each priority
    others = (p.workload for p in ctx.snapshot.pending if p.blocked is None)
    before = [workload for workload in others if place(workload) < place(own)]
    for priority, ahead in _priorities(own, before)[:_PRIORITIES_TRIED]:
        if ctx.queue is not None and ctx.queue.capped(priority) < priority:
            return
        change, less = RaisePriority(ctx.uid, priority), RaisePriority(ctx.uid, priority - 1)
        message = f"raise the priority to {priority} or more, to come before {ahead.ref} ({ahead.priority})"
        details = {"priority": priority, "now": own.priority, "above": ahead.ref}
        fix = SuggestedFix(Remedy.RAISE_PRIORITY, message, details, (change,))
        for found in offer(ctx, relaxed, fix):
            least = found.changes == fix.changes and ctx.checks.refuses((less,))
            yield replace(found, least=least)
            return


def _priorities(own: Workload, before: Iterable[Workload]) -> list[tuple[int, Workload]]:
    """Each priority at which it comes before more gangs, the least first, with the first gang in queue order that it passes there.

    With an equal priority, it passes the gangs that were queued after it.
    """
    first: dict[int, Workload] = {}
    for ahead in sorted(before, key=place):
        was_queued_first = place(ahead)[1:] < place(own)[1:]
        first.setdefault(ahead.priority + was_queued_first, ahead)
    return sorted(first.items())
