"""Estimated starts of pending gangs: the queue order of one ClusterQueue, simulated without later submissions.

A gang starts once enough of what runs has ended for it and for all before it; then it holds its GPUs for as long as it is
expected to run. That counts GPUs and nothing else: no topology, no borrowing that is still to come, no preemption, and no gang
is passed. It is an estimate for people. No plan depends on it.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeldGpus:
    """GPUs that a gang holds. ``ends``: unix seconds of the expected end; None = unknown."""

    gpus: float
    ends: float | None


@dataclass(frozen=True, slots=True)
class Waits:
    """A pending gang. ``seconds``: how long it will hold its GPUs once it starts; None = unknown."""

    uid: str
    gpus: float
    seconds: float | None


def estimated_starts(
    line: Sequence[Waits], running: Collection[HeldGpus], free: float, now: float, *, strict: bool
) -> dict[str, float]:
    """When each gang can start, in unix seconds. Of gangs that are left out nothing is known.

    Args:
        line: in the order of the queue.
        running: what its gangs hold.
        free: free GPUs of its own quota.
        now: unix seconds.
        strict: no gang starts before one that cannot start; else those behind a gang of unknown length continue without it.
    """
    wanting = [gang for gang in line if gang.gpus > 0]
    if not wanting:
        return {}
    ends = [(max(gang.ends, now), gang.gpus) for gang in running if gang.ends is not None]
    heapq.heapify(ends)
    coming = sum(gpus for _, gpus in ends)
    left, at = _usable(wanting, free, strict=strict), now
    starts = {}
    for gang in wanting:
        if gang.gpus > left + coming:
            if strict:
                break
            continue
        while left < gang.gpus and ends:
            end, gpus = heapq.heappop(ends)
            at = max(at, end)
            left += gpus
            coming -= gpus
        starts[gang.uid] = at
        left -= gang.gpus
        if gang.seconds is not None:
            heapq.heappush(ends, (at + gang.seconds, gang.gpus))
            coming += gang.gpus
    return starts


def _usable(line: Sequence[Waits], free: float, *, strict: bool) -> float:
    """Of the free GPUs, those that count. A gang that could start now and does not lacks one more, whatever the quota states."""
    asked = line[0].gpus if strict else min(gang.gpus for gang in line)
    return min(max(free, 0.0), max(asked - 1.0, 0.0))
