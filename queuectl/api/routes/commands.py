"""Actions on a workload: each POST is stored as a command, which the leader executes.

The response 202 means that the command is stored, not that it is executed. Its result is available under its id. A client without a
response sends the same request again with the same ``Idempotency-Key``, which gives one command. An action that stops a gang can be
previewed with its cost and effect (``dry_run``).
"""

# No postponed annotations here: see routes/config.py.

from enum import Enum
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from starlette.responses import JSONResponse

from queuectl.api.access import Guard
from queuectl.api.command_batches import (
    BATCH_ACTIONS,
    MOST_WORKLOADS,
    BatchBody,
    BatchView,
    CommandBatches,
)
from queuectl.api.command_service import CommandService, Finder
from queuectl.api.command_views import (
    BODIES,
    REQUIRED,
    CommandListView,
    CommandPage,
    CommandView,
    PreviewView,
    command_view,
)
from queuectl.api.openapi import BODY_PROBLEMS, model_body, responses
from queuectl.api.params import NAME, REQUEST_ID, WORKLOAD, After, Before, Limit, OfNamespace
from queuectl.api.ports import Diagnoser
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.db.ports import ApiStore
from queuectl.domain.commands import (
    Action,
    CommandFilter,
    CommandState,
)
from queuectl.domain.identity import Right
from queuectl.domain.ledger import Entry
from queuectl.objects.configuration.config_kinds import PREFIX

P = ProblemType
RequestId = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=REQUEST_ID,
        description="A repeated request with the same key within a day is the same command. Without a key, each request is a new command.",
    ),
]
Preview = Annotated[
    bool,
    Query(
        alias="dry_run",
        description="Check the request, and show the change and its cost only. Nothing changes.",
    ),
]
OfWorkload = Annotated[
    str | None,
    Query(
        alias="workload",
        max_length=507,
        pattern=f"{NAME.removesuffix('$')}/{WORKLOAD.removeprefix('^')}",
        description="Only commands on workloads with this namespace/name.",
    ),
]
By = Annotated[
    str | None,
    Query(
        max_length=1024, pattern=r"^[^\x00]*$", description="The user of the command, as in `by`."
    ),
]
InState = Annotated[
    list[CommandState] | None,
    Query(alias="state", description="Only these states. You can repeat it; default: all."),
]
Number = Annotated[int, Path(ge=1, lt=1 << 63, description="`id` of the command.")]
_TAGS: Final[list[str | Enum]] = ["Workload"]
_SUMMARIES: Final = {
    Action.HOLD: "Keep it from starting; evict it first if it runs",
    Action.RELEASE: "Release it from a hold: it queues again",
    Action.REQUEUE: "End its back-off, or evict it and queue it again",
    Action.PREEMPT: "Evict it; it queues again behind the gangs of its priority",
    Action.DEACTIVATE: "Deactivate it until a user activates it; evict it first if it runs",
    Action.ACTIVATE: "Activate it: it queues again, without its failed starts and used time",
    Action.PRIORITY: "Set its priority instead of that of its classes, for a time or until it is reset",
    Action.MOVE: "Move it to another LocalQueue of its namespace while it waits",
    Action.CHECK: "Report the state of one of its admission checks",
}
_PROBLEMS: Final = (
    *BODY_PROBLEMS,
    P.NOT_FOUND,
    P.AMBIGUOUS,
    P.NOT_IN_THIS_STATE,
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
    """Add the actions on the workload that ``finder`` finds, and their results."""
    command_service = CommandService(guard, store, diagnoser)
    for action in Action:
        _add(routes, command_service, action, path, command_service.allowed(action, finder), tag)
    _list(routes, store, path, finder, tag)


def add_command_routes(
    routes: APIRouter, guard: Guard, store: ApiStore, diagnoser: Diagnoser | None
) -> None:
    """Add the actions on several workloads, and the results of commands on all workloads."""
    batches = CommandBatches(guard, store, diagnoser)
    for action in BATCH_ACTIONS:
        _add_batch(routes, batches, action)

    @routes.get(
        f"{PREFIX}/commands",
        tags=_TAGS,
        operation_id="listCommands",
        summary="The commands on workloads in the last day with their results, newest first",
        description="Includes the namespaces in which you are allowed to list workloads.",
        responses=responses(),
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
        summary="The result of a command",
        responses=responses(P.NOT_FOUND),
    )
    async def get_command(request: Request, number: Number) -> CommandView:
        command = await store.command(number)
        entry = await store.get_workload(command.uid) if command is not None else None
        namespace, name = (entry.namespace, entry.name) if entry is not None else ("", "")
        may = await guard.may(request, Right("get", "workloads", namespace, name))
        if command is None or not may:
            raise ApiProblem(
                P.NOT_FOUND, f"command {number} does not exist; results are kept for a day"
            )
        return command_view(command, entry.ref if entry is not None else None)


def _add_batch(routes: APIRouter, batches: CommandBatches, action: Action) -> None:
    async def ask(
        request: Request, request_id: RequestId = None, dry_run: Preview = False
    ) -> BatchView:
        return await batches.handle(request, action, request_id, dry_run=dry_run)

    routes.add_api_route(
        f"{PREFIX}/commands/{action}",
        ask,
        methods=["POST"],
        response_model=BatchView,
        tags=_TAGS,
        operation_id=f"{action}Workloads",
        summary=f"The command `{action}` for at most {MOST_WORKLOADS} workloads, each with its result",
        responses=responses(*BODY_PROBLEMS),
        openapi_extra=model_body(BatchBody, required=True),
    )


def _list(routes: APIRouter, store: ApiStore, path: str, finder: Finder, tag: str) -> None:
    Found = Annotated[Entry, Depends(finder)]  # noqa: N806 - a type

    @routes.get(
        f"{path}/commands",
        tags=_TAGS,
        operation_id=f"list{tag}WorkloadCommands",
        summary="Its commands in the last day with their results, oldest first",
        responses=responses(P.NOT_FOUND, P.AMBIGUOUS),
    )
    async def list_commands(entry: Found, after: After = 0, limit: Limit = 100) -> CommandPage:
        found = await store.commands_of(entry.uid, after, limit)
        return CommandPage(
            uid=entry.uid,
            items=[command_view(command, entry.ref) for command in found],
            next_after=found[-1].id if len(found) == limit else None,
        )


def _add(
    routes: APIRouter,
    command_service: CommandService,
    action: Action,
    path: str,
    finder: Finder,
    tag: str,
) -> None:
    FoundEntry = Annotated[Entry, Depends(finder)]  # noqa: N806 - a type

    async def ask(
        request: Request,
        response: Response,
        entry: FoundEntry,
        request_id: RequestId = None,
        dry_run: Preview = False,
    ) -> Any:
        if dry_run:
            view = await command_service.preview(request, entry, action)
            return JSONResponse(view.model_dump(mode="json", by_alias=True))
        return await command_service.keep(request, response, entry, action, request_id)

    answers = responses(*_PROBLEMS)
    answers[200] = {"model": PreviewView, "description": "Of a dry run."}
    routes.add_api_route(
        f"{path}/{action}",
        ask,
        methods=["POST"],
        status_code=202,
        response_model=CommandView,
        tags=_TAGS,
        operation_id=f"{action}{tag}Workload",
        summary=_SUMMARIES[action],
        responses=answers,
        openapi_extra=model_body(BODIES[action], required=action in REQUIRED),
    )
