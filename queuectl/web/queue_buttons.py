"""The buttons that stop and resume a queue, for a caller who has the right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import orjson
from starlette.requests import Request

from queuectl.api.access import Guard
from queuectl.domain.identity import Right
from queuectl.domain.queries import DocumentKey
from queuectl.domain.queues import StopPolicy
from queuectl.objects.configuration.config_kinds import BY_KIND

_STOPPED: Final = "No gang of the queue starts until you resume it."


@dataclass(frozen=True, slots=True)
class QueueButton:
    """A button.

    Attributes:
        label: its text.
        follows: the effect, for the dialog that asks for confirmation.
        address: of the REST API, for a POST.
        body: the JSON to send there, without the reason.
        evicts: gangs that run are evicted: the dialog shows their cost.
    """

    label: str
    follows: str
    address: str
    body: str
    evicts: bool = False


async def queue_buttons(
    guard: Guard, request: Request, key: DocumentKey, policy: StopPolicy
) -> list[QueueButton]:
    """The buttons that change the stop policy of a queue. May raise ClusterUnavailable."""
    kind = BY_KIND[key.kind]
    path = kind.path(key.namespace, key.name)

    async def may(verb: str) -> bool:
        right = Right("create", f"{kind.plural}/{verb}", key.namespace, key.name)
        return await guard.may(request, right)

    def stop(label: str, follows: str, *, drain: bool) -> QueueButton:
        body = orjson.dumps({"drain": drain}).decode()
        return QueueButton(label, follows, f"{path}/stop", body, drain)

    buttons = []
    if policy is not StopPolicy.NONE and await may("resume"):
        follows = "Its gangs start again, in their old order."
        buttons.append(QueueButton("Resume", follows, f"{path}/resume", "{}"))
    if policy is not StopPolicy.HOLD_AND_DRAIN and await may("stop"):
        if policy is StopPolicy.NONE:
            follows = f"{_STOPPED} Gangs that run continue."
            buttons.append(stop("Stop", follows, drain=False))
        follows = (
            f"{_STOPPED} Gangs that run are evicted. They keep their place in the queue order."
        )
        buttons.append(stop("Stop and drain", follows, drain=True))
    return buttons
