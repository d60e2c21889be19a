"""What people ask of one workload: rows that the API writes and the leader consumes, so that only the leader changes state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from queuectl.domain.ledger import Entry, State
from queuectl.domain.reasons import Code


class Action(StrEnum):
    """What may be asked; the value is the word of the REST path and of the command line."""

    HOLD = "hold"  # wait, evicted first if it runs, until released
    RELEASE = "release"
    REQUEUE = "requeue"  # end its back-off; a gang that runs is evicted and queues again
    DEACTIVATE = "deactivate"  # as hold, but as one given up: until activated
    ACTIVATE = "activate"
    PRIORITY = "priority"  # in place of what its classes say; None = as they say again


@dataclass(frozen=True, slots=True)
class Command:
    """One request.

    Attributes:
        id: rises in the order in which they are carried out.
        uid: of the workload.
        by: who asked, as he said.
        request_id: chosen by who asked; the same again is the same command.
        at: unix seconds of the request.
        priority: only of a PRIORITY; None takes an earlier one back.
    """

    id: int
    uid: str
    action: Action
    by: str
    request_id: str
    at: float
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a command, in a few words."""

    id: int
    outcome: str


LARGEST_PRIORITY = 1 << 31  # as of PriorityClasses, in either direction


def objection(entry: Entry, action: Action) -> str | None:
    """Why an action makes no sense for a workload as it stands, or None when it does."""
    held = entry.parked is not None and entry.parked.code is Code.HELD
    given_up = entry.parked is not None and not held
    state = f"{entry.ref} is {entry.state}"
    if entry.state is State.FINISHED:
        return state
    match action:
        case Action.HOLD:
            return f"{entry.ref} is deactivated; activate it first" if given_up else None
        case Action.RELEASE:
            return None if held else f"{state}, and nobody holds it"
        case Action.REQUEUE:
            may = entry.state is State.BACKOFF or entry.state.live
            return None if may else f"{state}: only what runs or waits for a back-off is requeued"
        case Action.ACTIVATE:
            return None if given_up else f"{state}, not deactivated"
        case Action.DEACTIVATE | Action.PRIORITY:
            return None
