"""Capacity that the sample keeps: Reservations in each phase, and the planned start of a pending gang."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from queuectl.domain.ledger import Entry
from queuectl.domain.reservations import ReservationState
from queuectl.domain.snapshot import PlannedStart
from queuectl.domain.words import format_time

PLANNED = "wait-00001"
"""The pending gang that has a planned start."""
CAPACITY = {"clusterQueue": "vision", "capacity": {"pods": 2, "requests": {"nvidia.com/gpu": 8}}}


def reservations(now: float) -> list[dict[str, Any]]:
    """Reservations as users write them."""
    return [
        _reservation("over", now - 7200, now - 3600),
        _reservation("planned", now + 3600, now + 7200),
        _reservation("active", now - 60, now + 3600),
        _reservation("crowded", now + 60, now + 3600),
        _reservation("firmware", now + 120, now + 3600, nodes=["gpu-00-00-00"]),
    ]


def reservation_states(now: float) -> tuple[ReservationState, ...]:
    """The placements of those that have one or could have one."""
    begins, ends = float(int(now)), float(int(now)) + 3600
    return (
        ReservationState("planned", begins + 3600, begins + 7200, (("gpu-00-01-00", 2),)),
        ReservationState("active", begins - 60, ends, (("gpu-00-02-00", 2),)),
        ReservationState("crowded", begins + 60, ends, (), "at most 1 of 2 pods fit", ends + 60),
    )


def with_planned_start(entries: list[Entry], now: float) -> PlannedStart:
    """Give one pending gang the placement of the largest running gang, two hours from now."""
    before = max((e for e in entries if e.placement is not None), key=lambda entry: entry.gpus)
    assert before.placement is not None
    start = PlannedStart(
        now + 7200, before.placement, now + 7200, ((before.uid, now + 7200),), overruns=1
    )
    place = next(i for i, entry in enumerate(entries) if entry.uid == PLANNED)
    entries[place] = replace(entries[place], planned_start=start)
    return start


def _reservation(name: str, begins: float, ends: float, **spec: Any) -> dict[str, Any]:
    times = {"from": format_time(begins), "until": format_time(ends)}
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Reservation",
        "metadata": {"name": name},
        "spec": {**times, **(spec or CAPACITY)},
    }
