"""When gangs that wait may start: one ClusterQueue's line, walked as if nobody else ever came.

A gang starts once enough of what runs has ended for it and for all before it; then it holds its GPUs for as long as it is
expected to run. That counts GPUs and nothing else: no topology, no borrowing that is still to come, no preemption, and nobody
is passed. It is an estimate for people. No plan depends on it.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """A workload that has finished: how many seconds it held its place, all attempts together. ``user`` "" = nobody in particular."""

    namespace: str
    queue: str
    user: str
    seconds: float


@dataclass(frozen=True, slots=True)
class HeldGpus:
    """GPUs that a gang holds. ``ends``: unix seconds at which it is expected to be gone; None = nobody knows."""

    gpus: float
    ends: float | None


@dataclass(frozen=True, slots=True)
class Waits:
    """A gang in line. ``seconds``: for which it will hold its GPUs once it starts; None = nobody knows."""

    uid: str
    gpus: float
    seconds: float | None


def estimated_starts(
    line: Sequence[Waits], running: Collection[HeldGpus], free: float, now: float, *, strict: bool
) -> dict[str, float]:
    """When each gang may start, in unix seconds. Who is left out may start at any time, or never: nobody knows.

    Args:
        line: in the order of the queue.
        running: what its gangs hold.
        free: GPUs of its own quota that nobody holds.
        now: unix seconds.
        strict: nobody passes a gang that cannot start; else those behind one of which nothing is known go on without it.
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
    """Of the free GPUs, those that count. Whoever may start now and does not lacks one more, whatever the quota says."""
    asked = line[0].gpus if strict else min(gang.gpus for gang in line)
    return min(max(free, 0.0), max(asked - 1.0, 0.0))
