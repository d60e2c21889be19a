"""Why a gang does not start, in numbers and in a sentence, as the walk finds it.

What would let it start is worked out on demand, off the admission path: :mod:`queuectl.planner.why`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.planner.demand import Demand
from queuectl.planner.flavors import Options
from queuectl.planner.ledger import Ledger
from queuectl.planner.room import plain, room_of
from queuectl.planner.topology import Ints
from queuectl.planner.words import asked_by


@dataclass(frozen=True, slots=True)
class Explained:
    """Why one choice of flavors does not do."""

    reason: Reason


def no_flavor(queue: ClusterQueue, options: Options) -> Explained:
    """No choice of flavors is admissible."""
    details: dict[str, Any] = {"clusterQueue": queue.name}
    if options.uncovered:
        names = ", ".join(options.uncovered)
        details["uncovered"] = list(options.uncovered)
        text = f"ClusterQueue {queue.name} covers no {names}"
        return Explained(Reason(Code.NO_MATCHING_FLAVOR, text, details))
    details["flavors"] = dict(sorted(options.refused.items()))
    why = "; ".join(f"{name}: {text}" for name, text in sorted(options.refused.items()))
    text = f"no flavor of ClusterQueue {queue.name} admits it ({why})"
    return Explained(Reason(Code.NO_MATCHING_FLAVOR, text, details))


def undecided(budget: int, alarm: str = "") -> Explained:
    """The search ended before an answer."""
    if alarm:
        text = "the solver failed on it; it is tried again"
        return Explained(Reason(Code.UNDECIDED, text, {"budget": budget, "alarm": alarm}))
    text = "the solver's limit ended the search first; it is tried again with a larger one"
    return Explained(Reason(Code.UNDECIDED, text, {"budget": budget}))


def waits_for_victims(victims: Sequence[str]) -> Reason:
    """Its capacity is leased; those who hold it are leaving."""
    whom = f"{len(victims)} workload{'s' if len(victims) != 1 else ''}"
    text = f"waits for {whom} to leave; their capacity is leased to it"
    if not victims:
        text = "waits for workloads that are leaving already; their capacity is leased to it"
    return Reason(Code.WAITING_FOR_PREEMPTED, text, {"victims": sorted(victims)})


# Placement.


def placement_failed(ledger: Ledger, demand: Demand) -> Explained:
    """No placement on what is free beside the gangs that come before it."""
    return _first_tight(demand, ledger.free()) or _together(demand)


def never_fits(ledger: Ledger, demand: Demand) -> Explained:
    """No placement even if every node were healthy and empty.

    Args:
        ledger: of the walk.
        demand: built with ``lasting`` nodes.
    """
    empty = ledger.arena.index.allocatable
    for unit in demand.units:
        room = room_of(unit, empty)
        if room.short:
            text = f"{asked_by(unit)}; even empty, {room.sentence}"
            return Explained(Reason(Code.SHAPE_NEVER_FITS, text, room.details))
    text = f"{'; '.join(map(asked_by, demand.units))}: no placement exists even on the empty fleet"
    details = {"units": [plain(unit) for unit in demand.units]}
    return Explained(Reason(Code.SHAPE_NEVER_FITS, text, details))


def _first_tight(demand: Demand, free: Ints) -> Explained | None:
    """The first unit whose floor sums alone exclude every domain."""
    for unit in demand.units:
        room = room_of(unit, free)
        if room.short:
            text = f"{asked_by(unit)}; {room.sentence}{room.free_in_all}"
            return Explained(Reason(Code.TOPOLOGY_PLACEMENT_FAILED, text, room.details))
    return None


def _together(demand: Demand) -> Explained:
    parts = "; ".join(map(asked_by, demand.units))
    text = f"{parts}: each part has room by itself, but not all at once"
    details = {"units": [plain(unit) for unit in demand.units]}
    return Explained(Reason(Code.TOPOLOGY_PLACEMENT_FAILED, text, details))
