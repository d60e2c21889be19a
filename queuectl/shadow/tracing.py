"""From two observations that follow each other to the trace: which gangs arrived, started, stopped and left, and which nodes changed.

A change between two observations is somewhere between them. The times of objects make the bounds tighter, and only inside these bounds: clocks of
others can be wrong. If the clock of the observations is set back by more than an hour, the trace begins again. A gang that is missing
at one observation and is there again within an hour has not left: its object could not be read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import replace
from typing import Final

from queuectl.domain.fleet import Node
from queuectl.domain.gpus import BY_NAME
from queuectl.domain.quantity import NOTHING
from queuectl.domain.shadow import Observation, SeenGang
from queuectl.domain.shadow_trace import (
    MOST_ATTEMPTS,
    MOST_GAPS,
    Between,
    NodeVersion,
    TraceBook,
    TracedAttempt,
    TracedGang,
    TracedState,
    TraceSpan,
    TraceStep,
)
from queuectl.domain.workload import Placement

REMEMBERED: Final = 3600.0
"""Seconds for which a gang that left can come back, by which the clock can be set back, and after which a change of CPU or memory of a node is
recorded."""


def trace(book: TraceBook, observation: Observation, longest: float) -> TraceStep:
    """The changes of the trace by an observation.

    Args:
        book: the trace before.
        observation: the new one.
        longest: seconds between two observations, above which the time between them is a gap.
    """
    if book.span is not None and observation.at < book.span.until - REMEMBERED:
        book = TraceBook()
    span = _span(book.span, observation.at, longest)
    since = Between(span.until if book.span is None else book.span.until, span.until)
    shown = {gang.gang.uid: gang for gang in observation.gangs}
    usable = frozenset(one.name for one in observation.nodes if one.ready and not one.unschedulable)
    gangs = [*_present(book, shown, since, usable), *_left(book, shown, since)]
    nodes = tuple(_nodes(book, observation, span.until))
    return TraceStep(span, tuple(gangs), nodes, begins=book.span is None)


def after(book: TraceBook, step: TraceStep) -> TraceBook:
    """The records after a step."""
    if step.begins:
        book = TraceBook()
    gangs = {**book.gangs, **{one.gang.uid: one for one in step.gangs}}
    oldest = step.span.until - REMEMBERED
    kept = {uid: one for uid, one in gangs.items() if one.gone is None or one.gone.most >= oldest}
    nodes = {**book.nodes, **{one.name: one for one in step.nodes}}
    return TraceBook(step.span, kept, nodes)


def _span(before: TraceSpan | None, at: float, longest: float) -> TraceSpan:
    """An observation that is a little earlier than the last one is at the same time."""
    if before is None:
        return TraceSpan(at, at)
    until = max(before.until, at)
    gaps = before.gaps
    if until - before.until > longest:
        gaps = (*gaps, Between(before.until, until))[-MOST_GAPS:]
    return TraceSpan(before.began, until, gaps)


def _present(
    book: TraceBook, shown: dict[str, SeenGang], since: Between, usable: Container[str]
) -> Iterator[TracedGang]:
    """The changed gangs of those that the observation shows. ``usable``: nodes that take pods."""
    for uid, gang in shown.items():
        before = book.gangs.get(uid)
        if before is None:
            if gang.blocked:
                continue
            before = _arrived(gang, since)
            yield _started(before, gang, since) if gang.placement is not None else before
            continue
        changed = _changed(before, gang, since, usable)
        if changed != before:
            yield changed


def _arrived(shown: SeenGang, since: Between) -> TracedGang:
    return TracedGang(
        gang=shown.gang,
        podsets=shown.podsets,
        priority=shown.priority,
        user=shown.user,
        limit=shown.limit,
        arrived=_within(shown.created_at, since),
        state=TracedState.WAITING,
    )


def _changed(
    before: TracedGang, shown: SeenGang, since: Between, usable: Container[str]
) -> TracedGang:
    """A gang that was there before, or that left for less than an hour."""
    returned = before
    if before.state is TracedState.GONE:
        returned = _returned(before, running=shown.placement is not None)
    last = returned.attempts[-1] if returned.attempts else None
    if shown.placement is None:
        return _as_now(_stopped(returned, shown, since), shown)
    if last is None or returned.state is not TracedState.RUNNING:
        return _started(_as_now(returned, shown), shown, since)
    if shown.gang.gpus != returned.gang.gpus:
        return replace(returned, resized=True)
    if _moved(last.placement, shown.placement, usable):
        moved = replace(returned, attempts=_ended(returned, since, interrupted=True))
        return _started(moved, shown, since)
    return returned


def _stopped(gang: TracedGang, shown: SeenGang, since: Between) -> TracedGang:
    """A gang of which at least one pod has no node. It is interrupted as long as it keeps its quota, and evicted otherwise."""
    if gang.state is TracedState.RUNNING:
        attempts = _ended(gang, since, interrupted=shown.admitted)
        return replace(gang, attempts=attempts, state=TracedState.WAITING)
    if gang.attempts and not shown.admitted:
        attempts = (*gang.attempts[:-1], replace(gang.attempts[-1], interrupted=False))
        return replace(gang, attempts=attempts)
    return gang


def _moved(before: Placement, now: Placement, usable: Container[str]) -> bool:
    """Whether pods left nodes that no longer take pods. Pods that end and are replaced elsewhere do not interrupt their gang."""
    if before == now:
        return False
    old, new = _places(before), _places(now)
    return bool(new - old) and any(node not in usable for _, node in old - new)


def _places(placement: Placement) -> Counter[tuple[str, str]]:
    """The number of pods of each podset on each node."""
    places = Counter[tuple[str, str]]()
    for podset in placement.podsets:
        for node, pods in podset.nodes:
            places[podset.podset, node] += pods
    return places


def _returned(gone: TracedGang, *, running: bool) -> TracedGang:
    """The gang as it was before it seemed to leave."""
    last = gone.attempts[-1] if gone.attempts else None
    ran = last is not None and last.ended is not None and last.ended == gone.gone
    if last is not None and ran and running:
        attempts = (*gone.attempts[:-1], replace(last, ended=None))
        return replace(gone, state=TracedState.RUNNING, attempts=attempts, gone=None)
    return replace(gone, state=TracedState.WAITING, gone=None)


def _as_now(before: TracedGang, shown: SeenGang) -> TracedGang:
    """A gang that waits has the request that it has now."""
    return replace(
        before,
        gang=shown.gang,
        podsets=shown.podsets,
        priority=shown.priority,
        user=shown.user,
        limit=shown.limit,
    )


def _started(before: TracedGang, shown: SeenGang, since: Between) -> TracedGang:
    assert shown.placement is not None
    # Its pods can get their nodes later than its admission, and no observation shows when.
    least = max(
        _within(shown.since, since) if shown.since is not None else since.least, before.arrived
    )
    started = Between(least, max(least, since.most))
    attempts = (*before.attempts, TracedAttempt(started, shown.placement))[-MOST_ATTEMPTS:]
    return replace(before, state=TracedState.RUNNING, attempts=attempts)


def _left(book: TraceBook, shown: dict[str, SeenGang], since: Between) -> Iterator[TracedGang]:
    for uid, before in book.gangs.items():
        if uid in shown or before.state is TracedState.GONE:
            continue
        attempts = before.attempts
        if before.state is TracedState.RUNNING:
            attempts = _ended(before, since)
        yield replace(before, state=TracedState.GONE, attempts=attempts, gone=since)


def _ended(
    gang: TracedGang, since: Between, *, interrupted: bool = False
) -> tuple[TracedAttempt, ...]:
    last = gang.attempts[-1]
    return (*gang.attempts[:-1], replace(last, ended=since, interrupted=interrupted))


def _within(at: float, since: Between) -> float:
    return min(max(at, since.least), since.most)


# ---- Nodes


def _nodes(book: TraceBook, observation: Observation, at: float) -> Iterator[NodeVersion]:
    present = {node.name: node for node in observation.nodes}
    for name, node in present.items():
        before = book.nodes.get(name)
        if before is None or _differs(before, node, at):
            yield NodeVersion(name, at, node)
    for name, version in book.nodes.items():
        if name not in present and version.node is not None:
            yield NodeVersion(name, at, None)


def _differs(before: NodeVersion, node: Node, at: float) -> bool:
    """Whether a change is recorded now. The CPU and the memory that other pods use change all the time."""
    old = before.node
    if old is None or _without_amounts(old) != _without_amounts(node):
        return True
    if BY_NAME.counted(old.allocatable) != BY_NAME.counted(node.allocatable):
        return True
    return at - before.at >= REMEMBERED and old != node


def _without_amounts(node: Node) -> Node:
    return replace(node, allocatable=NOTHING)
