"""The status of a Reservation: its current or next occurrence, and where the last plan of the leader keeps it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from queuectl.domain.reservations import ReservationPhase, ReservationState, occurrences
from queuectl.domain.words import format_time
from queuectl.objects.configuration.queue_config import read
from queuectl.objects.errors import DocumentError


def with_status(
    document: Mapping[str, Any], states: Sequence[ReservationState], now: float | None = None
) -> dict[str, Any]:
    """The document of a Reservation with its status. ``now``: unix seconds, by default now."""
    now = time.time() if now is None else now
    try:
        reservation = read(document).content
    except DocumentError:  # of a more lenient release
        return dict(document)
    found = occurrences([reservation], states, now)
    if not found:
        return {**document, "status": {"phase": ReservationPhase.ENDED.value}}
    (match,) = found
    state = next((s for s in states if (s.name, s.begins) == (match.name, match.begins)), None)
    phase = match.phase(state, now)
    status: dict[str, Any] = {
        "phase": phase.value,
        "from": format_time(match.begins),
        "until": format_time(match.ends),
    }
    if phase is ReservationPhase.NOT_PLACEABLE and state is not None:
        status["reason"] = state.reason
        if state.earliest is not None:
            status["earliest"] = format_time(state.earliest)
    if reservation.capacity is None:
        status["nodes"] = [{"name": name} for name in reservation.nodes]
    elif match.placed:
        status["nodes"] = [{"name": name, "pods": pods} for name, pods in match.placed]
    return {**document, "status": status}
