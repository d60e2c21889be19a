"""What a person may ask of a workload, as the pages offer it: the words on the button, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from queuectl.api.access import Guard
from queuectl.domain.commands import EVICTING, Action, objection, reserved_to_admins
from queuectl.domain.identity import Right
from queuectl.domain.ledger import Entry

_WORDS: Final = {
    Action.HOLD: ("Hold", "It stays out of the queue until somebody releases it."),
    Action.RELEASE: ("Release", "It queues again at its old place."),
    Action.REQUEUE: ("Requeue", "It queues again at once, at its old place."),
    Action.PREEMPT: ("Preempt", "It makes room for whoever is next, and queues again."),
    Action.DEACTIVATE: ("Deactivate", "It is given up until somebody activates it."),
    Action.ACTIVATE: (
        "Activate",
        "It queues again; failed starts and time used are forgotten.",
    ),
    Action.PRIORITY: ("Set priority", "It goes before what its priority classes say."),
    Action.MOVE: ("Move to another queue", "It keeps its place in time."),
}


@dataclass(frozen=True, slots=True)
class ActionButton:
    """A button.

    Attributes:
        follows: what comes of it, in a sentence or two.
        evicts: it takes down what runs now.
        objection: why it makes no sense at present; None when it does.
    """

    action: Action
    label: str
    follows: str
    evicts: bool
    objection: str | None


def label_of(action: Action) -> str:
    """The words on its button."""
    return _WORDS[action][0]


async def offers(guard: Guard, request: Request, entry: Entry) -> list[ActionButton]:
    """What who asks may do with a workload. May raise ClusterUnavailable."""
    found = []
    for action in Action:
        what = f"workloads/{action}"
        if await guard.may(request, Right("create", what, entry.namespace, entry.name)):
            barred = reserved_to_admins(entry, action)
            if barred is not None and await guard.may(request, Right("create", what)):
                barred = None
            found.append(_offer(entry, action, barred))
    return found


def _offer(entry: Entry, action: Action, barred: str | None) -> ActionButton:
    label, follows = _WORDS[action]
    evicts = entry.state.live and action in EVICTING
    if evicts:
        follows = (
            f"Its {entry.pods} pods are stopped, work since the last checkpoint is lost. {follows}"
        )
    return ActionButton(action, label, follows, evicts, barred or objection(entry, action))
