"""Why a gang does not start, in numbers and in a sentence, as the walk finds it.

What would let it start is worked out on demand, off the admission path: :mod:`queuectl.planner.explain`.
"""

from __future__ import annotations

from typing import Any

from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.planner.capacity.state import State
from queuectl.planner.problem.flavors import Options
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.topology import Ints
from queuectl.planner.reasons.room import plain, room_of
from queuectl.planner.reasons.words import asked_by


def no_flavor(queue: ClusterQueue, options: Options) -> Reason:
    """No choice of flavors is admissible."""
    details: dict[str, Any] = {"clusterQueue": queue.name}
    if options.uncovered:
        names = ", ".join(options.uncovered)
        details["uncovered"] = list(options.uncovered)
        text = f"ClusterQueue {queue.name} covers no {names}"
        return Reason(Code.NO_MATCHING_FLAVOR, text, details)
    details["flavors"] = dict(sorted(options.refused.items()))
    why = "; ".join(f"{name}: {text}" for name, text in sorted(options.refused.items()))
    text = f"no flavor of ClusterQueue {queue.name} admits it ({why})"
    return Reason(Code.NO_MATCHING_FLAVOR, text, details)


def undecided(budget: int, alarm: str = "") -> Reason:
    """The search ended before an answer."""
    if alarm:
        text = "the solver failed on it; it is tried again"
        return Reason(Code.UNDECIDED, text, {"budget": budget, "alarm": alarm})
    text = "the solver's limit ended the search first; it is tried again with a larger one"
    return Reason(Code.UNDECIDED, text, {"budget": budget})


# Placement.


def placement_failed(state: State, request: GangRequest) -> Reason:
    """No placement on what is free beside the gangs that come before it."""
    return _first_tight(request, state.free()) or _together(request)


def never_fits(state: State, request: GangRequest) -> Reason:
    """No placement even if every node were healthy and empty.

    Args:
        state: of the walk.
        request: built with ``lasting`` nodes.
    """
    empty = state.problem.index.allocatable
    for unit in request.units:
        room = room_of(unit, empty)
        if room.short:
            text = f"{asked_by(unit)}; even empty, {room.sentence}"
            return Reason(Code.SHAPE_NEVER_FITS, text, room.details)
    text = f"{'; '.join(map(asked_by, request.units))}: no placement exists even on the empty fleet"
    details = {"units": [plain(unit) for unit in request.units]}
    return Reason(Code.SHAPE_NEVER_FITS, text, details)


def _first_tight(request: GangRequest, free: Ints) -> Reason | None:
    """The first unit whose floor sums alone exclude every domain."""
    for unit in request.units:
        room = room_of(unit, free)
        if room.short:
            text = f"{asked_by(unit)}; {room.sentence}{room.free_in_all}"
            return Reason(Code.TOPOLOGY_PLACEMENT_FAILED, text, room.details)
    return None


def _together(request: GangRequest) -> Reason:
    parts = "; ".join(map(asked_by, request.units))
    text = f"{parts}: each part has room by itself, but not all at once"
    details = {"units": [plain(unit) for unit in request.units]}
    return Reason(Code.TOPOLOGY_PLACEMENT_FAILED, text, details)
