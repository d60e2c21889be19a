"""Actions on workloads: checks of rights and state, and previews of their cost and effect.

An accepted action is stored as a command, once for each ``Idempotency-Key``. The leader executes it.
"""

# No postponed annotations here: see routes/config.py.

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, NoReturn
from uuid import uuid4

from fastapi import Depends, Request, Response

from queuectl.api.access import ANONYMOUS, Guard, caller_of, redactor_of
from queuectl.api.body import missing, read_small
from queuectl.api.command_views import (
    BODIES,
    REQUIRED,
    CheckBody,
    CommandBody,
    CommandView,
    EvictingBody,
    MoveBody,
    PreviewView,
    PriorityBody,
    command_view,
    own,
    preview_view,
    starter_view,
)
from queuectl.api.ports import Diagnoser
from queuectl.api.problems import ApiProblem, ProblemType, wrong_parameter
from queuectl.db.ports import ApiStore
from queuectl.domain.commands import (
    EVICTING,
    Action,
    Command,
    change_of,
    objection,
    other_attempt,
    reserved_to_admins,
)
from queuectl.domain.errors import Conflict, TooManyCommands
from queuectl.domain.identity import Right
from queuectl.domain.ledger import Entry
from queuectl.domain.queries import DocumentKey
from queuectl.objects.configuration.config_kinds import PREFIX

P = ProblemType
Finder = Callable[..., Awaitable[Entry]]  # of the workload that a request names


class CommandService:
    """Accepts actions on workloads."""

    def __init__(self, guard: Guard, store: ApiStore, diagnoser: Diagnoser | None) -> None:
        self._guard = guard
        self._store = store
        self._diagnoser = diagnoser

    def allowed(self, action: Action, finder: Finder) -> Finder:
        """The finder with a check that the caller is allowed to do this to the workload."""
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
        request_id: str | None,
    ) -> CommandView:
        """Read the body, and store the command for the leader."""
        command, attempt = await self._read(request, entry, action, request_id)
        try:
            await self._check(entry, command, attempt)
        except ApiProblem:  # a stored command always has the same answer
            if await self._store.get_command(command.request_id) is None:
                raise
        try:
            kept = await self._store.add_command(command)
        except Conflict as error:
            raise ApiProblem(P.REQUEST_ID_REUSED, str(error)) from error
        except TooManyCommands as error:
            raise ApiProblem(P.TOO_MANY_REQUESTS, str(error), {"Retry-After": "1"}) from error
        response.headers["Location"] = f"{PREFIX}/commands/{kept.id}"
        return command_view(kept, entry.ref)

    async def _read(
        self, request: Request, entry: Entry, action: Action, request_id: str | None
    ) -> tuple[Command, int | None]:
        """The command of a request that the caller is allowed to send, and the attempt that it is for; None = any."""
        body = await read_small(request, BODIES[action])
        if body is None and action in REQUIRED:
            raise missing()
        caller = caller_of(request)
        given = body.by if body is not None else None
        by = given if given is not None and caller is ANONYMOUS else caller.name
        key = request_id or str(uuid4())
        admin = await self._guard.may(request, Right("create", f"workloads/{action}"))
        forbidden = None if admin else reserved_to_admins(entry, action)
        if forbidden is not None:
            raise ApiProblem(P.FORBIDDEN, forbidden)
        own_key = key if caller is ANONYMOUS else own(caller, key)
        command = replace(_command(entry, action, body, by, own_key), admin=admin)
        return command, body.attempt if isinstance(body, EvictingBody) else None

    async def _check(self, entry: Entry, command: Command, attempt: int | None) -> None:
        """Refuse an action that is never valid, or that is not valid now if no earlier command can change that."""
        started = other_attempt(entry, attempt)
        if started is not None:
            raise ApiProblem(P.NOT_IN_THIS_STATE, started, state=str(entry.state))
        why = objection(entry, command.action)
        if why is not None:
            waiting = await self._store.commands()
            if all(earlier.uid != entry.uid for earlier in waiting):
                raise ApiProblem(P.NOT_IN_THIS_STATE, why, state=str(entry.state))
        if command.report is not None and entry.checks.of(command.report.check) is None:
            named = ", ".join(status.name for status in entry.checks.statuses)
            _refuse("check", f"{command.report.check} is not a check of {entry.ref} now ({named})")
        if command.until is not None and command.until <= time.time():
            _refuse("until", "is not in the future")
        if command.until is not None and command.priority is None:
            _refuse("until", "is the end of a priority that is set; none is set here")
        if command.queue is not None:
            key = DocumentKey("LocalQueue", entry.namespace, command.queue)
            if await self._store.get_config(key) is None:
                text = f"LocalQueue {command.queue} does not exist in namespace {entry.namespace}"
                _refuse("queue", text)

    async def preview(self, request: Request, entry: Entry, action: Action) -> PreviewView:
        """The change, its cost and its effect. The request is checked as without a dry run."""
        command, attempt = await self._read(request, entry, action, None)
        await self._check(entry, command, attempt)
        change = change_of(entry, command)
        preview = None
        if action in EVICTING and self._diagnoser is not None:
            preview = await self._diagnoser.preview(entry, action)
        starts = preview.starts if preview is not None else None
        if starts is None:
            return preview_view(entry, action, change, preview, None)
        names = await self._store.workload_names(starts) if starts else {}
        redactor = await redactor_of(self._guard, request, self._store, names.values())
        shown = {uid: redactor.name(names.get(uid, uid)) for uid in starts}
        views = [starter_view(uid, name) for uid, name in shown.items()]
        return preview_view(entry, action, change, preview, views)


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
        at=0.0,  # the store assigns the time
        priority=body.priority if isinstance(body, PriorityBody) else None,
        until=until.timestamp() if until is not None else None,
        queue=body.queue if isinstance(body, MoveBody) else None,
        why=(body.why or "") if body is not None else "",
        report=body.report if isinstance(body, CheckBody) else None,
    )


def _refuse(field: str, reason: str) -> NoReturn:
    raise wrong_parameter(field, reason, f"{field}: {reason}")
