"""Ways out that the submitter can go: fewer pods, a coarser level, fewer node rules, another place in line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from queuectl.domain.changes import (
    Change,
    FewerPods,
    RaisePriority,
    RelaxLevel,
    RelaxRules,
    apply_all,
)
from queuectl.domain.diagnosis import Limit, Remedy, Way
from queuectl.domain.fleet import PASSING_TAINTS, NodeRules, Toleration
from queuectl.domain.words import counted
from queuectl.domain.workload import PodSet, TopologyMode, Workload
from queuectl.planner.explain.held import HOLDERS
from queuectl.planner.explain.offer import Idea, offer
from queuectl.planner.explain.trial import ask, past_heads
from queuectl.planner.explain.turn import Turn
from queuectl.planner.reasons.words import level_name

_TAINTS_TRIED: Final = 4
_PRIORITIES_TRIED: Final = 2


def fewer_pods(turn: Turn) -> Iterator[Way]:
    """The largest number of pods of its largest podset that fits now; proved by the next larger one."""
    workload = turn.pending.workload
    podset = max(workload.podsets, key=lambda p: (p.count, p.name), default=None)
    if podset is None or any(p.min_count is not None for p in workload.podsets):
        return
    slices = podset.topology.slices if podset.topology is not None else ()
    step = slices[0].size if slices else 1
    low, high = 0, podset.count // step  # low fits (or is nothing), high does not
    while high - low > 1:
        middle = (low + high) // 2
        change = FewerPods(turn.uid, podset.name, middle * step)
        if ask(turn, replace(past_heads(turn), workload=changed(turn, change))).fits:
            low = middle
        else:
            high = middle
    if not low:
        return
    count = low * step
    change = FewerPods(turn.uid, podset.name, count)
    message = f"start with {count} of {counted(podset.count, 'pod')} of podset {podset.name}"
    details = {"podSet": podset.name, "count": count, "of": podset.count}
    idea = Idea(Remedy.FEWER_PODS, message, details, (change,), least=True)
    yield from offer(turn, replace(past_heads(turn), workload=changed(turn, change)), idea)


def changed(turn: Turn, change: Change) -> Workload:
    """The gang after a change of its own."""
    snapshot = replace(turn.snapshot, pending=(turn.pending,))
    return apply_all([change], snapshot).pending[0].workload


def coarser_level(turn: Turn) -> Iterator[Way]:
    """The finest level that is coarse enough, or no topology at all."""
    bound = [p for p in turn.pending.workload.podsets if _bound(p)]
    for level in _coarser(turn, bound):
        names = {p.name: level for p in bound if _finer(turn, p, level)}
        change = RelaxLevel(turn.uid, names)
        world = replace(past_heads(turn), workload=changed(turn, change))
        asked = sorted(
            {level_name(p.topology.level) for p in bound if p.topology and p.topology.level}
        )
        to = f"one {level_name(level)}" if level is not None else "any nodes"
        message = f"ask for {to} instead of one {' or '.join(asked)}" if asked else f"ask for {to}"
        details = {"podSets": sorted(names), "from": asked, "to": level}
        idea = Idea(Remedy.RELAX_TOPOLOGY, message, details, (change,), least=True)
        found = list(offer(turn, world, idea))
        if found:
            yield from found
            return


def _bound(podset: PodSet) -> bool:
    asked = podset.topology
    return asked is not None and (asked.mode is TopologyMode.REQUIRED or bool(asked.slices))


def _levels(turn: Turn, podset: PodSet) -> tuple[str, ...]:
    """Levels of the topology that the podset's own level belongs to, coarse to fine."""
    level = podset.topology.level if podset.topology is not None else None
    known = turn.snapshot.config.topologies.values()
    return next((t.levels for t in known if level in t.levels), ())


def _coarser(turn: Turn, bound: list[PodSet]) -> Iterator[str | None]:
    """Levels coarser than the finest one asked, the finest first; then none."""
    if not bound:
        return
    finest = max(bound, key=lambda p: _rank(turn, p))
    yield from reversed(_levels(turn, finest)[: _rank(turn, finest)])
    yield None


def _rank(turn: Turn, podset: PodSet) -> int:
    levels = _levels(turn, podset)
    level = podset.topology.level if podset.topology is not None else None
    return levels.index(level) if level in levels else 0


def _finer(turn: Turn, podset: PodSet, level: str | None) -> bool:
    """Whether a podset asks for something finer than a level."""
    levels = _levels(turn, podset)
    return level is None or (level in levels and _rank(turn, podset) > levels.index(level))


def fewer_rules(turn: Turn) -> Iterator[Way]:
    """One selector, one affinity or one missing toleration less in the way."""
    for message, details, rules in _eased(turn):
        change = RelaxRules(turn.uid, rules)
        world = replace(past_heads(turn), workload=changed(turn, change))
        idea = Idea(Remedy.RELAX_RULES, message, details, (change,), least=True)
        yield from offer(turn, world, idea)


def _eased(turn: Turn) -> Iterator[tuple[str, dict[str, str], dict[str, NodeRules]]]:
    podsets = turn.pending.workload.podsets
    for key, value in sorted({s for p in podsets for s in p.shape.rules.selector}):
        rules = {
            p.name: replace(
                p.shape.rules,
                selector=tuple(s for s in p.shape.rules.selector if s != (key, value)),
            )
            for p in podsets
            if (key, value) in p.shape.rules.selector
        }
        yield f"drop the node selector {key}={value}", {"selector": f"{key}={value}"}, rules
    if any(p.shape.rules.affinity is not None for p in podsets):
        rules = {
            p.name: replace(p.shape.rules, affinity=None)
            for p in podsets
            if p.shape.rules.affinity is not None
        }
        yield "drop the required node affinity", {"affinity": "required"}, rules
    for key in _taints(turn):
        extra = (Toleration(key, "Exists"),)
        rules = {
            p.name: replace(p.shape.rules, tolerations=p.shape.rules.tolerations + extra)
            for p in podsets
        }
        yield f"tolerate the taint {key}", {"taint": key}, rules


def _taints(turn: Turn) -> list[str]:
    """Keys of taints, of nodes and of flavors, that are no sign of ill health."""
    taints = {t.key for node in turn.snapshot.fleet.nodes for t in node.taints}
    taints |= {t.key for f in turn.snapshot.config.flavors.values() for t in f.node_taints}
    return sorted(key for key in taints if key not in PASSING_TAINTS)[:_TAINTS_TRIED]


def higher_priority(turn: Turn) -> Iterator[Way]:
    """The least priority, of those one above a gang before it, with which it would start."""
    world = replace(past_heads(turn), holders=HOLDERS - {Limit.ORDER}, strict=False)
    own = turn.pending.workload
    before = [p.workload for p in turn.snapshot.pending if _before(p.workload, own)]
    least = True
    for priority in sorted({w.priority for w in before})[:_PRIORITIES_TRIED]:
        change = RaisePriority(turn.uid, priority + 1)
        ahead = next(w for w in before if w.priority == priority)
        message = f"priority {priority + 1} or more, above {ahead.ref} ({priority})"
        details = {"priority": priority + 1, "now": own.priority, "above": ahead.ref}
        found = list(offer(turn, world, Idea(Remedy.RAISE_PRIORITY, message, details, (change,))))
        if found:
            yield replace(found[0], least=least)
            return


def _before(other: Workload, own: Workload) -> bool:
    return other.uid != own.uid and (-other.priority, other.queued_at, other.uid) < (
        -own.priority,
        own.queued_at,
        own.uid,
    )
