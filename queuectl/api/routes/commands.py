"""What people ask of a workload: each POST is kept as a command, which the leader carries out.

The answer says that it is kept, not that it is done: 202. A client that got no answer sends the same again with the same
``Idempotency-Key``, and it is one command.
"""

# No postponed annotations here: see routes/config.py.

import time
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Annotated, Any, Final
from uuid import uuid4

from fastapi import APIRouter, Depends, Header

from queuectl.api.openapi import responses
from queuectl.api.ports import ApiStore
from queuectl.api.problems import Problem, ProblemType
from queuectl.api.schemas import CommandBody, CommandView, PriorityBody, moment
from queuectl.domain.commands import Action, Command, objection
from queuectl.domain.errors import Conflict
from queuectl.domain.ledger import Entry

P = ProblemType
NOBODY: Final = "somebody at the REST API"
RequestId = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern="^[!-~]{1,128}$",
        description="The same again is the same command, for a day; none = every request is another.",
    ),
]
_TAGS: Final[list[str | Enum]] = ["Workload"]
_SUMMARIES: Final = {
    Action.HOLD: "Keep it from starting; evict it first if it runs",
    Action.RELEASE: "Let it queue again after a hold",
    Action.REQUEUE: "End its back-off, or evict it and queue it again",
    Action.DEACTIVATE: "Give it up until it is activated; evict it first if it runs",
    Action.ACTIVATE: "Let it queue again after a deactivation; failed starts and time used are forgotten",
    Action.PRIORITY: "Set its priority in place of what its classes say",
}


def add_routes(
    routes: APIRouter, store: ApiStore, path: str, finder: Callable[..., Awaitable[Entry]], tag: str
) -> None:
    """Offer every action on the workload that ``finder`` finds."""
    for action in Action:
        _add(routes, store, action, path, finder, tag)


def _add(
    routes: APIRouter,
    store: ApiStore,
    action: Action,
    path: str,
    finder: Callable[..., Awaitable[Entry]],
    tag: str,
) -> None:
    Found = Annotated[Entry, Depends(finder)]  # noqa: N806 - a type

    async def ask(
        entry: Found, body: CommandBody | None = None, request_id: RequestId = None
    ) -> CommandView:
        by = body.by if body is not None else None
        return await _keep(store, entry, action, by, None, request_id)

    async def prioritize(
        entry: Found, body: PriorityBody, request_id: RequestId = None
    ) -> CommandView:
        return await _keep(store, entry, action, body.by, body.priority, request_id)

    endpoint: Any = prioritize if action is Action.PRIORITY else ask
    routes.add_api_route(
        f"{path}/{action}",
        endpoint,
        methods=["POST"],
        status_code=202,
        tags=_TAGS,
        operation_id=f"{action}{tag}Workload",
        summary=_SUMMARIES[action],
        responses=responses(
            P.MALFORMED_BODY,
            P.NOT_FOUND,
            P.AMBIGUOUS,
            P.NOT_IN_THIS_STATE,
            P.INVALID_PARAMETER,
            P.REQUEST_ID_REUSED,
        ),
    )


async def _keep(
    store: ApiStore,
    entry: Entry,
    action: Action,
    by: str | None,
    priority: int | None,
    request_id: str | None,
) -> CommandView:
    request = request_id or str(uuid4())
    command = Command(0, entry.uid, action, by or NOBODY, request, time.time(), priority)
    why = objection(entry, action)
    if why is not None and not await _may_come(store, entry, request):
        raise Problem(P.NOT_IN_THIS_STATE, why, state=str(entry.state))
    try:
        kept = await store.add_command(command)
    except Conflict as error:
        raise Problem(P.REQUEST_ID_REUSED, str(error)) from error
    return CommandView(
        id=kept.id,
        uid=kept.uid,
        workload=entry.ref,
        action=kept.action,
        priority=kept.priority,
        by=kept.by,
        request_id=kept.request_id,
        at=moment(kept.at),
    )


async def _may_come(store: ApiStore, entry: Entry, request: str) -> bool:
    """Whether it may make sense all the same: this is a repetition, or earlier commands are not carried out yet."""
    if await store.get_command(request) is not None:
        return True
    return any(command.uid == entry.uid for command in await store.commands())
