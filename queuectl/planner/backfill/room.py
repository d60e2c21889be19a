"""When gangs that end leave room for a gang that waits, although no gang is evicted for it."""

from __future__ import annotations

from bisect import bisect_left

from queuectl.planner.backfill.timeline import Timeline
from queuectl.planner.capacity.state import State
from queuectl.planner.placement import several
from queuectl.planner.problem.problem import caps
from queuectl.planner.problem.request import GangRequest


def first_room(state: State, request: GangRequest, until: float) -> float | None:
    """The first time at which enforced limits leave a gang its quota and a place that is found greedily.

    An end that is only expected does not count: its gang can run longer, and then an eviction loses more.

    Args:
        state: of the cycle. Gangs that start in it hold their room until their ends.
        request: the gang.
        until: the last time that counts, in unix seconds.

    Returns:
        Unix seconds; None = there is no such time, or the greedy search does not find it.
    """
    timeline = Timeline(state)
    times = [at for at in timeline.times() if at <= until]

    def fits(at: float) -> bool:
        if not state.quota.allows(request, timeline.use(at)):
            return False
        free = timeline.free(at)
        return several.find(request, free, lambda shape: caps(free, shape)) is not None

    if not times or not fits(times[-1]):
        return None
    room = times[bisect_left(times, True, key=fits)]
    return room if all(gang.end_enforced for gang in timeline.ended(room)) else None
