"""What was measured of a workload, look by look, and which look tells of which part of a span of time.

A look tells of the time before it, back to the look before; the newest one also of the time after it, until the next comes.
No look tells of a time more than :data:`FRESH_SECONDS` away: of that nothing is known, and what is not known is not idle (I5).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import Final, NamedTuple

from queuectl.domain.utilization import GangUse

FRESH_SECONDS: Final = 300.0


class Segment(NamedTuple):
    """A part of a span, and the look that tells of it; None = nothing does. It runs backwards where the span does."""

    start: float
    end: float
    sample: GangUse | None


def pieces(
    start: float, end: float, samples: Sequence[GangUse], attempt: int, since: float
) -> list[Segment]:
    """A span of one attempt by what was measured of it.

    What was accounted for already is told of by the looks that were known then, so that taking it back takes back the same.

    Args:
        start: unix seconds.
        end: the same; before ``start`` for a span that is taken back.
        samples: oldest first, of any attempt.
        attempt: only looks at this one count.
        since: until when everything was accounted for.
    """
    mine = [sample for sample in samples if sample.attempt == attempt]
    if not mine or start == end:
        return [Segment(start, end, None)]
    low, high = min(start, end), max(start, end)
    found = [*_segments(low, min(high, since), [sample for sample in mine if sample.at <= since])]
    found += _segments(max(low, since), high, mine)
    found = list(_joined(found))
    if start < end:
        return found
    return [Segment(piece.end, piece.start, piece.sample) for piece in reversed(found)]


def _segments(low: float, high: float, samples: Sequence[GangUse]) -> Iterator[Segment]:
    """The pieces of a span that runs forwards, in order."""
    at = low
    for before, sample in pairwise([None, *samples]):
        if sample is not None and at < min(sample.at, high):
            begins = sample.at - FRESH_SECONDS
            yield from _fading(at, min(begins, high), before)
            at = max(at, begins)
            if at < high:
                yield Segment(at, min(sample.at, high), sample)
            at = min(sample.at, high)
    yield from _fading(at, high, samples[-1] if samples else None)


def _fading(low: float, high: float, last: GangUse | None) -> Iterator[Segment]:
    """A span that no later look tells of: the one before it does for a while."""
    if low >= high:
        return
    until = min(high, last.at + FRESH_SECONDS) if last is not None else -inf
    if low < until:
        yield Segment(low, until, last)
    if max(low, until) < high:
        yield Segment(max(low, until), high, None)


def _joined(found: Sequence[Segment]) -> Iterator[Segment]:
    """Pieces that one look tells of, as one."""
    kept: Segment | None = None
    for piece in found:
        if kept is not None and kept.sample is piece.sample:
            kept = kept._replace(end=piece.end)
        else:
            if kept is not None:
                yield kept
            kept = piece
    if kept is not None:
        yield kept
