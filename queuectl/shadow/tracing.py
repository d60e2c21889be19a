"""From two moments that follow each other to the trace: which gangs arrived, started, stopped and left, and which nodes changed.

A change between two moments is somewhere between them. The times of objects make the bounds tighter, and only inside these bounds: clocks of
others can be wrong. If the clock of the moments is set back by more than an hour, the trace begins again. A gang that is missing at one moment and is there again within an hour has not left: its object could not be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from queuectl.domain.fleet import Node
from queuectl.domain.gpus import BY_NAME
from queuectl.domain.quantity import NOTHING
from queuectl.domain.shadow import Moment, SeenGang
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

REMEMBERED: Final = 3600.0
"""Seconds for which a gang that left can come back, by which the clock can be set back, and after which a change of CPU or memory of a node is
recorded."""


def trace(book: TraceBook, moment: Moment, longest: float) -> TraceStep:
    """The changes of the trace by a moment.

    Args:
        book: the trace before.
        moment: the new one.
        longest: seconds between two moments, above which the time between them is a gap.
    """
    if book.span is not None and moment.at < book.span.until - REMEMBERED:
        book = TraceBook()
    span = _span(book.span, moment.at, longest)
    since = Between(span.until if book.span is None else book.span.until, span.until)
    shown = {gang.gang.uid: gang for gang in moment.gangs}
    gangs = [*_present(book, shown, since), *_left(book, shown, since)]
    nodes = tuple(_nodes(book, moment, span.until))
    return TraceStep(span, tuple(gangs), nodes, begins=book.span is None)


def after(book: TraceBook, step: TraceStep) -> TraceBook:
    """The state with which the next moment is compared."""
    if step.begins:
        book = TraceBook()
    gangs = {**book.gangs, **{one.gang.uid: one for one in step.gangs}}
    oldest = step.span.until - REMEMBERED
    kept = {uid: one for uid, one in gangs.items() if one.gone is None or one.gone.most >= oldest}
    nodes = {**book.nodes, **{one.name: one for one in step.nodes}}
    return TraceBook(step.span, kept, nodes)


def _span(before: TraceSpan | None, at: float, longest: float) -> TraceSpan:
    """A moment that is a little earlier than the last one is at the same time."""
    if before is None:
        return TraceSpan(at, at)
    until = max(before.until, at)
    gaps = before.gaps
    if until - before.until > longest:
        gaps = (*gaps, Between(before.until, until))[-MOST_GAPS:]
    return TraceSpan(before.began, until, gaps)


def _present(book: TraceBook, shown: dict[str, SeenGang], since: Between) -> Iterator[TracedGang]:
    """The changed gangs of those that the moment shows."""
    for uid, gang in shown.items():
        before = book.gangs.get(uid)
        if before is None:
            if gang.blocked:
                continue
            before = _arrived(gang, since)
            yield _started(before, gang, since) if gang.placement is not None else before
            continue
        changed = _changed(before, gang, since)
        if changed != before:
            yield changed


def _arrived(seen: SeenGang, since: Between) -> TracedGang:
    return TracedGang(
        gang=seen.gang,
        podsets=seen.podsets,
        priority=seen.priority,
        user=seen.user,
        limit=seen.limit,
        arrived=_within(seen.created_at, since),
        state=TracedState.WAITING,
    )


def _changed(before: TracedGang, seen: SeenGang, since: Between) -> TracedGang:
    """A gang that was there before, or that left for less than an hour."""
    returned = before
    if before.state is TracedState.GONE:
        returned = _returned(before, running=seen.placement is not None)
    if seen.placement is not None:
        if returned.state is TracedState.RUNNING:
            resized = returned.resized or seen.gang.gpus != returned.gang.gpus
            return replace(returned, resized=resized)
        return _started(_as_now(returned, seen), seen, since)
    if returned.state is TracedState.RUNNING:
        returned = replace(returned, attempts=_ended(returned, since), state=TracedState.WAITING)
    return _as_now(returned, seen)


def _returned(gone: TracedGang, *, running: bool) -> TracedGang:
    """The gang as it was before it seemed to leave."""
    last = gone.attempts[-1] if gone.attempts else None
    ran = last is not None and last.ended is not None and last.ended == gone.gone
    if last is not None and ran and running:
        attempts = (*gone.attempts[:-1], replace(last, ended=None))
        return replace(gone, state=TracedState.RUNNING, attempts=attempts, gone=None)
    return replace(gone, state=TracedState.WAITING, gone=None)


def _as_now(before: TracedGang, seen: SeenGang) -> TracedGang:
    """A gang that waits has the request that it has now."""
    return replace(
        before,
        gang=seen.gang,
        podsets=seen.podsets,
        priority=seen.priority,
        user=seen.user,
        limit=seen.limit,
    )


def _started(before: TracedGang, seen: SeenGang, since: Between) -> TracedGang:
    assert seen.placement is not None
    # Its pods can get their nodes later than its admission, and no moment shows when.
    least = max(
        _within(seen.since, since) if seen.since is not None else since.least, before.arrived
    )
    started = Between(least, max(least, since.most))
    attempts = (*before.attempts, TracedAttempt(started, seen.placement))[-MOST_ATTEMPTS:]
    return replace(before, state=TracedState.RUNNING, attempts=attempts)


def _left(book: TraceBook, shown: dict[str, SeenGang], since: Between) -> Iterator[TracedGang]:
    for uid, before in book.gangs.items():
        if uid in shown or before.state is TracedState.GONE:
            continue
        attempts = before.attempts
        if before.state is TracedState.RUNNING:
            attempts = _ended(before, since)
        yield replace(before, state=TracedState.GONE, attempts=attempts, gone=since)


def _ended(gang: TracedGang, since: Between) -> tuple[TracedAttempt, ...]:
    last = gang.attempts[-1]
    return (*gang.attempts[:-1], replace(last, ended=since))


def _within(at: float, since: Between) -> float:
    return min(max(at, since.least), since.most)


# ---- Nodes


def _nodes(book: TraceBook, moment: Moment, at: float) -> Iterator[NodeVersion]:
    present = {node.name: node for node in moment.nodes}
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
