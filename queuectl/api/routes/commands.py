"""What people ask of a workload: each POST is kept as a command, which the leader carries out.

The answer says that it is kept, not that it is done: 202. What became of it is told under its id. A client that got no answer
sends the same again with the same ``Idempotency-Key``, and it is one command. What takes a gang down can be asked first what
that would cost and bring (``dry_run``).
"""

# No postponed annotations here: see routes/config.py.

import time
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Annotated, Any, Final, NoReturn
from uuid import uuid4

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from starlette.responses import JSONResponse

from queuectl.api.access import ANYBODY, Guard, caller_of
from queuectl.api.command_views import (
    CommandBody,
    CommandListView,
    CommandPage,
    CommandView,
    MoveBody,
    PreviewView,
    PriorityBody,
    command_view,
    own,
    preview_view,
    starter_view,
)
from queuectl.api.kinds import PREFIX
from queuectl.api.openapi import responses
from queuectl.api.params import NAME, After, Before, Limit, OfNamespace
from queuectl.api.ports import ApiStore, Diagnoser
from queuectl.api.problems import Problem, ProblemType, wrong_parameter
from queuectl.api.veil import veil_of
from queuectl.domain.commands import (
    EVICTING,
    Action,
    Command,
    CommandFilter,
    CommandState,
    objection,
)
from queuectl.domain.errors import Conflict
from queuectl.domain.identity import Right
from queuectl.domain.ledger import Entry
from queuectl.domain.queries import DocumentKey

P = ProblemType
Finder = Callable[..., Awaitable[Entry]]
RequestId = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern="^[!-~]{1,128}$",
        description="The same again is the same command, for a day; none = every request is another.",
    ),
]
Preview = Annotated[
    bool,
    Query(alias="dry_run", description="Ask for nothing: say what it would cost and bring now."),
]
OfWorkload = Annotated[
    str | None,
    Query(
        alias="workload",
        max_length=507,
        pattern=f"{NAME.removesuffix('$')}/{NAME.removeprefix('^')}",
        description="namespace/name; commands for all that had this name.",
    ),
]
By = Annotated[
    str | None,
    Query(max_length=1024, pattern=r"^[^\x00]*$", description="Who asked, as `by` tells it."),
]
InState = Annotated[
    list[CommandState] | None, Query(alias="state", description="Any of these; none = all.")
]
Number = Annotated[int, Path(ge=1, lt=1 << 63, description="`id` of the command.")]
_TAGS: Final[list[str | Enum]] = ["Workload"]
_SUMMARIES: Final = {
    Action.HOLD: "Keep it from starting; evict it first if it runs",
    Action.RELEASE: "Let it queue again after a hold",
    Action.REQUEUE: "End its back-off, or evict it and queue it again",
    Action.PREEMPT: "Evict it for whoever is next: it queues again behind those of its priority",
    Action.DEACTIVATE: "Give it up until it is activated; evict it first if it runs",
    Action.ACTIVATE: "Let it queue again after a deactivation; failed starts and time used are forgotten",
    Action.PRIORITY: "Set its priority in place of what its classes say, for a time or until it is taken back",
    Action.MOVE: "Move it to another LocalQueue of its namespace while it waits",
}
_PROBLEMS: Final = (
    P.MALFORMED_BODY,
    P.NOT_FOUND,
    P.AMBIGUOUS,
    P.NOT_IN_THIS_STATE,
    P.INVALID_PARAMETER,
    P.REQUEST_ID_REUSED,
)


def add_routes(
    routes: APIRouter,
    guard: Guard,
    store: ApiStore,
    diagnoser: Diagnoser | None,
    path: str,
    finder: Finder,
    tag: str,
) -> None:
    """Offer every action on the workload that ``finder`` finds, and what became of those asked for."""
    desk = _Desk(guard, store, diagnoser)
    for action in Action:
        _add(routes, desk, action, path, desk.allowed(action, finder), tag)
    _list(routes, store, path, finder, tag)


def add_command_routes(routes: APIRouter, guard: Guard, store: ApiStore) -> None:
    """Offer what is told of commands, whatever they were asked of."""

    @routes.get(
        f"{PREFIX}/commands",
        tags=_TAGS,
        operation_id="listCommands",
        summary="What was asked of workloads in the last day and what became of that, newest first",
        description="Of the namespaces in which you may list workloads.",
        responses=responses(P.INVALID_PARAMETER),
    )
    async def list_commands(
        request: Request,
        namespace: OfNamespace = None,
        workload: OfWorkload = None,
        by: By = None,
        state: InState = None,
        before: Before = None,
        limit: Limit = 100,
    ) -> CommandListView:
        only = namespace or (workload.partition("/")[0] if workload is not None else None)
        if only is not None:
            await guard.require(request, Right("list", "workloads", only))
            seen: frozenset[str] | None = frozenset({only})
        else:
            seen = await guard.visible(request, "list", "workloads", store.namespaces)
        wanted = CommandFilter(seen, workload, by, frozenset(state or ()), before)
        found = await store.newest_commands(wanted, limit)
        names = await store.workload_names({command.uid for command in found}) if found else {}
        return CommandListView(
            items=[command_view(command, names.get(command.uid)) for command in found],
            next_before=found[-1].id if len(found) == limit else None,
        )

    @routes.get(
        f"{PREFIX}/commands/{{number}}",
        tags=_TAGS,
        operation_id="getCommand",
        summary="What became of a command",
        responses=responses(P.NOT_FOUND, P.INVALID_PARAMETER),
    )
    async def get_command(request: Request, number: Number) -> CommandView:
        command = await store.command(number)
        entry = await store.get_workload(command.uid) if command is not None else None
        namespace, name = (entry.namespace, entry.name) if entry is not None else ("", "")
        may = await guard.may(request, Right("get", "workloads", namespace, name))
        if command is None or not may:
            raise Problem(P.NOT_FOUND, f"there is no command {number}; they are told for a day")
        return command_view(command, entry.ref if entry is not None else None)


def _list(routes: APIRouter, store: ApiStore, path: str, finder: Finder, tag: str) -> None:
    Found = Annotated[Entry, Depends(finder)]  # noqa: N806 - a type

    @routes.get(
        f"{path}/commands",
        tags=_TAGS,
        operation_id=f"list{tag}WorkloadCommands",
        summary="What was asked of it in the last day and what became of that, oldest first",
        responses=responses(P.NOT_FOUND, P.AMBIGUOUS, P.INVALID_PARAMETER),
    )
    async def list_commands(entry: Found, after: After = 0, limit: Limit = 100) -> CommandPage:
        found = await store.commands_of(entry.uid, after, limit)
        return CommandPage(
            uid=entry.uid,
            items=[command_view(command, entry.ref) for command in found],
            next_after=found[-1].id if len(found) == limit else None,
        )


def _add(
    routes: APIRouter, desk: "_Desk", action: Action, path: str, finder: Finder, tag: str
) -> None:
    Found = Annotated[Entry, Depends(finder)]  # noqa: N806 - a type

    async def ask(
        request: Request,
        response: Response,
        entry: Found,
        body: CommandBody | None = None,
        request_id: RequestId = None,
    ) -> CommandView:
        return await desk.keep(request, response, entry, action, body, request_id)

    async def evict(
        request: Request,
        response: Response,
        entry: Found,
        body: CommandBody | None = None,
        request_id: RequestId = None,
        dry_run: Preview = False,
    ) -> Any:
        if dry_run:
            view = await desk.preview(request, entry, action)
            return JSONResponse(view.model_dump(mode="json", by_alias=True))
        return await desk.keep(request, response, entry, action, body, request_id)

    async def prioritize(
        request: Request,
        response: Response,
        entry: Found,
        body: PriorityBody,
        request_id: RequestId = None,
    ) -> CommandView:
        return await desk.keep(request, response, entry, action, body, request_id)

    async def move(
        request: Request,
        response: Response,
        entry: Found,
        body: MoveBody,
        request_id: RequestId = None,
    ) -> CommandView:
        return await desk.keep(request, response, entry, action, body, request_id)

    endpoint: Any = {Action.PRIORITY: prioritize, Action.MOVE: move}.get(
        action, evict if action in EVICTING else ask
    )
    answers = responses(*_PROBLEMS)
    if action in EVICTING:
        answers[200] = {"model": PreviewView, "description": "Of a dry run."}
    routes.add_api_route(
        f"{path}/{action}",
        endpoint,
        methods=["POST"],
        status_code=202,
        response_model=CommandView,
        tags=_TAGS,
        operation_id=f"{action}{tag}Workload",
        summary=_SUMMARIES[action],
        responses=answers,
    )


class _Desk:
    """Takes what is asked."""

    def __init__(self, guard: Guard, store: ApiStore, diagnoser: Diagnoser | None) -> None:
        self._guard = guard
        self._store = store
        self._diagnoser = diagnoser

    def allowed(self, action: Action, finder: Finder) -> Finder:
        """The same finder, for those who may do this to what it finds."""
        Found = Annotated[Entry, Depends(finder)]  # noqa: N806 - a type

        async def find(request: Request, entry: Found) -> Entry:
            right = Right("create", f"workloads/{action}", entry.namespace, entry.name)
            await self._guard.require(request, right)
            return entry

        return find

    async def keep(
        self,
        request: Request,
        response: Response,
        entry: Entry,
        action: Action,
        body: CommandBody | None,
        request_id: str | None,
    ) -> CommandView:
        """Keep it for the leader."""
        caller = caller_of(request)
        given = body.by if body is not None else None
        by = given if given is not None and caller is ANYBODY else caller.name
        key = request_id or str(uuid4())
        command = _command(entry, action, body, by, key if caller is ANYBODY else own(caller, key))
        try:
            await self._check(entry, command)
        except Problem:  # once kept, it is answered alike for ever
            if await self._store.get_command(command.request_id) is None:
                raise
        try:
            kept = await self._store.add_command(command)
        except Conflict as error:
            raise Problem(P.REQUEST_ID_REUSED, str(error)) from error
        response.headers["Location"] = f"{PREFIX}/commands/{kept.id}"
        return command_view(kept, entry.ref)

    async def _check(self, entry: Entry, command: Command) -> None:
        """Refuse what can never be, and what makes no sense now unless earlier commands may yet change that."""
        why = objection(entry, command.action)
        if why is not None:
            waiting = await self._store.commands()
            if all(earlier.uid != entry.uid for earlier in waiting):
                raise Problem(P.NOT_IN_THIS_STATE, why, state=str(entry.state))
        if command.until is not None and command.until <= command.at:
            _refuse("until", "is not in the future")
        if command.until is not None and command.priority is None:
            _refuse("until", "is the end of a priority that is set; none is set here")
        if command.queue is not None:
            key = DocumentKey("LocalQueue", entry.namespace, command.queue)
            if await self._store.get_config(key) is None:
                text = f"LocalQueue {command.queue} does not exist in namespace {entry.namespace}"
                _refuse("queue", text)

    async def preview(self, request: Request, entry: Entry, action: Action) -> PreviewView:
        """What it would cost and bring."""
        why = objection(entry, action)
        if why is not None:
            raise Problem(P.NOT_IN_THIS_STATE, why, state=str(entry.state))
        told = await self._diagnoser.preview(entry, action) if self._diagnoser else None
        starts = told.starts if told is not None else None
        if starts is None:
            return preview_view(entry, action, told, None)
        names = await self._store.workload_names(starts) if starts else {}
        veil = await veil_of(self._guard, request, self._store, names.values())
        shown = {uid: veil.name(names.get(uid, uid)) for uid in starts}
        views = [starter_view(uid, name) for uid, name in shown.items()]
        return preview_view(entry, action, told, views)


def _command(
    entry: Entry, action: Action, body: CommandBody | None, by: str, request_id: str
) -> Command:
    until = body.until if isinstance(body, PriorityBody) else None
    return Command(
        id=0,
        uid=entry.uid,
        action=action,
        by=by,
        request_id=request_id,
        at=time.time(),
        priority=body.priority if isinstance(body, PriorityBody) else None,
        until=until.timestamp() if until is not None else None,
        queue=body.queue if isinstance(body, MoveBody) else None,
        why=(body.why or "") if body is not None else "",
    )


def _refuse(field: str, reason: str) -> NoReturn:
    raise wrong_parameter(field, reason, f"{field}: {reason}")
