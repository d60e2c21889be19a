"""The commands that a page offers for a workload: the label of each button, and what the command does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from queuectl.api.access import Guard
from queuectl.domain.commands import EVICTING, Action, objection, reserved_to_admins
from queuectl.domain.identity import Right
from queuectl.domain.ledger import Entry
from queuectl.domain.words import counted

_WORDS: Final = {
    Action.HOLD: ("Hold", "It is not admitted until a user releases it."),
    Action.RELEASE: ("Release", "It returns to its previous position in the queue."),
    Action.REQUEUE: (
        "Requeue",
        "It returns to its previous position in the queue, without back-off.",
    ),
    Action.PREEMPT: ("Preempt", "It is evicted so that the next gang can start, and queues again."),
    Action.DEACTIVATE: ("Deactivate", "It is not retried until a user activates it."),
    Action.ACTIVATE: (
        "Activate",
        "It queues again. Failed starts and past run time no longer count.",
    ),
    Action.PRIORITY: ("Set priority", "The value replaces the priority of its priority classes."),
    Action.MOVE: ("Move to another queue", "It keeps its queueing time."),
}
"""Reports of admission checks have no button: programs make them."""


@dataclass(frozen=True, slots=True)
class ActionButton:
    """A button.

    Attributes:
        follows: what the command does, in a sentence or two.
        evicts: the command stops running pods.
        objection: why the command is not available now; None when it is.
    """

    action: Action
    label: str
    follows: str
    evicts: bool
    objection: str | None


def label_of(action: Action) -> str:
    """The label of its button."""
    return _WORDS[action][0]


async def offers(guard: Guard, request: Request, entry: Entry) -> list[ActionButton]:
    """The commands that the caller may give for a workload. May raise ClusterUnavailable."""
    found = []
    for action in _WORDS:
        what = f"workloads/{action}"
        if await guard.may(request, Right("create", what, entry.namespace, entry.name)):
            forbidden = reserved_to_admins(entry, action)
            if forbidden is not None and await guard.may(request, Right("create", what)):
                forbidden = None
            found.append(_offer(entry, action, forbidden))
    return found


def objections(buttons: Iterable[ActionButton]) -> list[tuple[str, list[str]]]:
    """Why buttons are disabled: each reason once, with the labels that it concerns, in the order of the buttons."""
    found: dict[str, list[str]] = {}
    for button in buttons:
        if button.objection is not None:
            found.setdefault(button.objection, []).append(button.label)
    return list(found.items())


def _offer(entry: Entry, action: Action, forbidden: str | None) -> ActionButton:
    label, follows = _WORDS[action]
    evicts = entry.state.live and action in EVICTING
    if evicts:
        follows = f"Its {counted(entry.started_pods, 'pod')} are stopped. Work since the last checkpoint is lost. {follows}"
    return ActionButton(action, label, follows, evicts, forbidden or objection(entry, action))
