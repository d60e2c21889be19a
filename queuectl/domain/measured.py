"""Samples of a workload, and which sample covers which part of a span of time.

A sample covers the time before it, back to the previous sample; the newest one also covers the time after it, until the next one.
No sample covers a time more than :data:`FRESH_SECONDS` away: that time is unknown, and unknown is not idle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import Final, NamedTuple

from queuectl.domain.utilization import GangUse

FRESH_SECONDS: Final = 300.0


class Segment(NamedTuple):
    """A part of a span, and the sample that covers it; None = no sample does. It is negative where the span is."""

    start: float
    end: float
    sample: GangUse | None


def pieces(
    start: float, end: float, samples: Sequence[GangUse], attempt: int, since: float
) -> list[Segment]:
    """A span of one attempt by what was measured of it.

    A part that was accounted before is covered by the samples that were known then, so that taking it back takes back the same.

    Args:
        start: unix seconds.
        end: the same; before ``start`` for a span that is taken back.
        samples: oldest first, of any attempt.
        attempt: only samples of this one count.
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
    """A span that no later sample covers: the one before it does for a limited time."""
    if low >= high:
        return
    until = min(high, last.at + FRESH_SECONDS) if last is not None else -inf
    if low < until:
        yield Segment(low, until, last)
    if max(low, until) < high:
        yield Segment(max(low, until), high, None)


def _joined(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Pieces that one sample covers, as one."""
    kept: Segment | None = None
    for piece in segments:
        if kept is not None and kept.sample is piece.sample:
            kept = kept._replace(end=piece.end)
        else:
            if kept is not None:
                yield kept
            kept = piece
    if kept is not None:
        yield kept
