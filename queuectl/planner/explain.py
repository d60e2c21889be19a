"""Why a gang does not start, in numbers and in a sentence, and what would change it where the numbers say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from queuectl.domain.quantity import PODS, Resources, format_quantity
from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.planner.arena import caps
from queuectl.planner.cells import asked_pods
from queuectl.planner.demand import ANYWHERE, Demand, Pods, Unit
from queuectl.planner.flavors import Options
from queuectl.planner.ledger import Ledger
from queuectl.planner.topology import Ints

_TIMES: Final = "\u00d7"


@dataclass(frozen=True, slots=True)
class Explained:
    """One reason with what would remove it."""

    reason: Reason
    unblock: tuple[str, ...] = ()


def no_flavor(queue: ClusterQueue, options: Options) -> Explained:
    """No choice of flavors is admissible."""
    details: dict[str, Any] = {"clusterQueue": queue.name}
    if options.uncovered:
        names = ", ".join(options.uncovered)
        details["uncovered"] = list(options.uncovered)
        text = f"ClusterQueue {queue.name} covers no {names}"
        unblock = (f"a resource group of {queue.name} that covers {names}",)
        return Explained(Reason(Code.NO_MATCHING_FLAVOR, text, details), unblock)
    details["flavors"] = dict(sorted(options.refused.items()))
    why = "; ".join(f"{name}: {text}" for name, text in sorted(options.refused.items()))
    text = f"no flavor of ClusterQueue {queue.name} admits it ({why})"
    return Explained(Reason(Code.NO_MATCHING_FLAVOR, text, details))


def exceeds_quota(queue: ClusterQueue, demand: Demand, nominal: Mapping[Any, int]) -> Explained:
    """Larger than the whole nominal quota of the chosen flavors."""
    rows = [
        (flavor, resource, need, nominal[flavor, resource])
        for (flavor, resource), need in demand.charges.items()
        if need > nominal[flavor, resource]
    ]
    parts = [
        f"{format_quantity(r, need)} {r} of flavor {f}, nominal quota {format_quantity(r, most)}"
        for f, r, need, most in rows
    ]
    details = {
        "clusterQueue": queue.name,
        "quota": [
            {"flavor": f, "resource": r, "needs": need, "nominal": most}
            for f, r, need, most in rows
        ],
    }
    text = f"needs more than ClusterQueue {queue.name} ever has: {'; '.join(parts)}"
    unblock = tuple(
        f"{format_quantity(r, need - most)} more {r} of nominal quota in {queue.name}, flavor {f}"
        for f, r, need, most in rows
    )
    return Explained(Reason(Code.EXCEEDS_MAX_QUOTA, text, details), unblock)


def waits_for_quota(
    queue: ClusterQueue, demand: Demand, nominal: Mapping[Any, int], left: Mapping[Any, int]
) -> Explained:
    """Within the nominal quota, but others hold it now."""
    rows = [
        (flavor, resource, need, nominal[flavor, resource], left[flavor, resource])
        for (flavor, resource), need in demand.charges.items()
        if need > left[flavor, resource]
    ]
    parts = [
        f"needs {format_quantity(r, need)} {r} of flavor {f}, "
        f"{format_quantity(r, most - free)} of {format_quantity(r, most)} in use or leased"
        for f, r, need, most, free in rows
    ]
    details = {
        "clusterQueue": queue.name,
        "quota": [
            {"flavor": f, "resource": r, "needs": need, "used": most - free, "nominal": most}
            for f, r, need, most, free in rows
        ],
    }
    text = f"waits for quota of ClusterQueue {queue.name}: {'; '.join(parts)}"
    unblock = tuple(
        f"{format_quantity(r, need - max(free, 0))} more {r} of quota in {queue.name}, flavor {f}"
        for f, r, need, most, free in rows
    )
    return Explained(Reason(Code.WAITING_FOR_QUOTA, text, details), unblock)


def undecided(budget: int, alarm: str = "") -> Explained:
    """The search ended before an answer."""
    if alarm:
        text = "the solver failed on it; it is tried again"
        return Explained(Reason(Code.UNDECIDED, text, {"budget": budget, "alarm": alarm}))
    text = "the solver's limit ended the search first; it is tried again with a larger one"
    return Explained(Reason(Code.UNDECIDED, text, {"budget": budget}))


def waits_for_victims(victims: Sequence[str]) -> Reason:
    """Its capacity is leased; those who hold it are leaving."""
    whom = f"{len(victims)} preempted workload{'s' if len(victims) != 1 else ''}"
    text = f"waits for {whom} to leave; their capacity is leased to it"
    if not victims:
        text = "waits for workloads that are leaving already; their capacity is leased to it"
    return Reason(Code.WAITING_FOR_PREEMPTED, text, {"victims": sorted(victims)})


# Placement.


def placement_failed(ledger: Ledger, demand: Demand) -> Explained:
    """No placement on what is free beside the gangs that come before it."""
    return _first_tight(demand, ledger.free(), ledger) or _together(demand)


def never_fits(ledger: Ledger, demand: Demand) -> Explained:
    """No placement even if every node were healthy and empty.

    Args:
        ledger: of the walk.
        demand: built with ``lasting`` nodes.
    """
    empty = ledger.arena.index.allocatable
    for unit in demand.units:
        room = _room(unit, empty)
        if room.short:
            text = f"{_asks(unit)}; even empty, {room.sentence(unit)}"
            return Explained(Reason(Code.SHAPE_NEVER_FITS, text, room.details(unit)))
    text = f"{'; '.join(map(_asks, demand.units))}: no placement exists even on the empty fleet"
    return Explained(
        Reason(Code.SHAPE_NEVER_FITS, text, {"units": [_plain(u) for u in demand.units]})
    )


def _first_tight(demand: Demand, free: Ints, ledger: Ledger) -> Explained | None:
    """The first unit whose floor sums alone exclude every domain."""
    for unit in demand.units:
        room = _room(unit, free)
        if room.short:
            text = f"{_asks(unit)}; {room.sentence(unit)}{_free_in_all(unit, free, ledger)}"
            reason = Reason(Code.TOPOLOGY_PLACEMENT_FAILED, text, room.details(unit))
            return Explained(reason, _nodes_to_add(unit, room, ledger))
    return None


def _together(demand: Demand) -> Explained:
    text = (
        f"{'; '.join(map(_asks, demand.units))}: each part has room by itself, but not all at once"
    )
    details = {"units": [_plain(unit) for unit in demand.units]}
    return Explained(Reason(Code.TOPOLOGY_PLACEMENT_FAILED, text, details))


@dataclass(frozen=True, slots=True)
class _Room:
    """How much of a unit its best domain holds."""

    domain: int
    fits: tuple[int, ...]  # per pods, in the best domain
    asked: tuple[Pods, ...]
    nodes: int  # nodes eligible for the first pods

    @property
    def short(self) -> bool:
        return any(n < p.count for n, p in zip(self.fits, self.asked, strict=True))

    def sentence(self, unit: Unit) -> str:
        if unit.on_one_node:
            return f"no node of the {self.nodes} it may use has room for all of them"
        parts = [
            f"{n}"
            if len(self.fits) == 1
            else f"{n} of {p.count} {_TIMES} {_requests(p.shape.requests)}"
            for n, p in zip(self.fits, self.asked, strict=True)
        ]
        held = " and ".join(parts)
        if unit.required == ANYWHERE:
            return f"the {self.nodes} nodes it may use have room for {held}"
        level = _level(unit)
        if self.domain < 0:
            return f"no {level} has an eligible node"
        name = unit.tree.names[unit.required][self.domain][-1]
        return f"the freest {level}, {name}, has room for {held}"

    def details(self, unit: Unit) -> dict[str, Any]:
        details = _plain(unit)
        details["fits"] = list(self.fits)
        if not unit.on_one_node and unit.required != ANYWHERE and self.domain >= 0:
            details["domain"] = list(unit.tree.names[unit.required][self.domain])
        return details


def _room(unit: Unit, free: Ints) -> _Room:
    asked = asked_pods(unit)
    per_node = [caps(free, p.shape) for p in asked]
    nodes = int(np.count_nonzero(asked[0].shape.eligible))
    if unit.on_one_node or unit.required == ANYWHERE:
        return _Room(-1, tuple(int(row.sum()) for row in per_node), asked, nodes)
    sums = np.stack([unit.tree.sums(unit.required, row) for row in per_node])
    if not sums.shape[1] or not sums.any():
        return _Room(-1, (0,) * len(asked), asked, nodes)
    counts = np.array([p.count for p in asked], dtype=np.int64)[:, None]
    share = (np.minimum(sums, counts) / counts).min(axis=0)
    best = int(np.lexsort((-sums.sum(axis=0), -share))[0])
    return _Room(best, tuple(int(n) for n in sums[:, best]), asked, nodes)


def _free_in_all(unit: Unit, free: Ints, ledger: Ledger) -> str:
    """How much of the scarcest resource it asks is free on all nodes it may use."""
    shape = unit.pods[0].shape
    if not shape.columns or unit.required == ANYWHERE:
        return ""
    column = shape.columns[0]
    amount = int(np.maximum(free[column], 0)[shape.eligible].sum())
    name = ledger.arena.resources[column]
    return f"; {format_quantity(name, amount)} {name} are free in all"


def _nodes_to_add(unit: Unit, room: _Room, ledger: Ledger) -> tuple[str, ...]:
    """How many more free nodes would do, where all nodes there hold the same when empty."""
    if len(room.asked) > 1 or unit.on_one_node or (unit.required != ANYWHERE and room.domain < 0):
        return ()
    pods = room.asked[0]
    empty = caps(ledger.arena.index.allocatable, pods.shape)
    if unit.required != ANYWHERE:
        empty = empty[unit.tree.nodes_in(unit.required, room.domain)]
    kinds = np.unique(empty[empty > 0])
    if len(kinds) != 1:
        return ()
    more = -(-(pods.count - room.fits[0]) // int(kinds[0]))
    where = ""
    if unit.required != ANYWHERE:
        where = f" in {_level(unit)} {unit.tree.names[unit.required][room.domain][-1]}"
    return (f"{more} more free node{'s' if more > 1 else ''}{where}",)


# Words.


def _asks(unit: Unit) -> str:
    pods = " and ".join(
        f"{p.count} pod{'s' if p.count > 1 else ''} {_TIMES} {_requests(p.shape.requests)}"
        for p in unit.pods
    )
    if unit.on_one_node:
        return f"needs {pods} on one node"
    return f"needs {pods}" + (f" in one {_level(unit)}" if unit.required != ANYWHERE else "")


def _requests(requests: Resources) -> str:
    """What tells a pod apart: its devices; else whatever it asks."""
    named = [(n, v) for n, v in sorted(requests.items()) if n != PODS]
    devices = [(n, v) for n, v in named if "/" in n]
    shown = devices or named or [(PODS, requests[PODS])]
    return " + ".join(f"{format_quantity(n, v)} {n}" for n, v in shown)


def _level(unit: Unit) -> str:
    """``cloud.example.com/topology-rack`` reads as ``rack``."""
    name = unit.tree.levels[unit.required].rpartition("/")[2]
    return name.removeprefix("topology-").removeprefix("topology.")


def _plain(unit: Unit) -> dict[str, Any]:
    level = None
    if unit.on_one_node:
        level = unit.tree.node_level
    elif unit.required != ANYWHERE:
        level = unit.tree.levels[unit.required]
    return {
        "level": level,
        "pods": [
            {"count": p.count, "requests": dict(sorted(p.shape.requests.items()))}
            for p in unit.pods
        ],
    }
