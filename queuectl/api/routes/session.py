"""The caller, and sessions: a browser sends a token once, and a cookie afterwards."""

# No postponed annotations here: see routes/config.py.

from datetime import datetime

import structlog
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from queuectl.api.access import ANONYMOUS, caller_of
from queuectl.api.auth.authentication import PROOF, SESSION_PATH, SessionService
from queuectl.api.body import missing, read_small
from queuectl.api.openapi import BODY_PROBLEMS, model_body, responses
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.api.schemas import SignInBody, View
from queuectl.domain.words import utc

P = ProblemType
_log = structlog.get_logger(source="queuectl.api")


class CallerView(View):
    """The caller, with the names that RBAC rules use."""

    name: str
    groups: list[str]
    authenticated: bool = Field(
        description="false: queuectl does not authenticate callers and permits everything."
    )
    expires_at: datetime | None = Field(
        default=None, description="End of the session, in the response to the sign-in."
    )


def add_routes(routes: APIRouter, session_service: SessionService | None) -> None:
    """Add the path. ``session_service``: None without authentication. Each caller can use it, so it needs no right."""

    @routes.get(
        SESSION_PATH,
        tags=["Session"],
        operation_id="getSession",
        summary="The caller",
        responses=responses(),
    )
    async def get_session(request: Request) -> CallerView:
        caller = caller_of(request)
        known = caller is not ANONYMOUS
        return CallerView(name=caller.name, groups=list(caller.groups), authenticated=known)

    @routes.post(
        SESSION_PATH,
        tags=["Session"],
        operation_id="openSession",
        summary="Sign in with a token and get a session cookie",
        description=f"A change with the cookie needs the header `{PROOF}: 1`.",
        response_model=CallerView,
        status_code=201,
        responses=responses(
            *BODY_PROBLEMS,
            P.NOT_IN_THIS_STATE,
        ),
        openapi_extra=model_body(SignInBody),
    )
    async def open_session(request: Request) -> Response:
        body = await read_small(request, SignInBody)
        if body is None:
            raise missing()
        if session_service is None:
            raise ApiProblem(
                P.NOT_IN_THIS_STATE,
                "queuectl does not authenticate callers here: QUEUECTL_AUTH=none",
            )
        opened = await session_service.open(request, body.token.strip())
        if opened is None:
            raise ApiProblem(P.UNAUTHENTICATED, "the token is not valid, or it has expired")
        name, session = opened
        _log.info("signed_in", caller=session.caller.name)
        view = CallerView(
            name=session.caller.name,
            groups=list(session.caller.groups),
            authenticated=True,
            expires_at=utc(session.until),
        )
        response = JSONResponse(view.model_dump(mode="json", by_alias=True), 201)
        session_service.give(response, name, session)
        return response

    @routes.delete(
        SESSION_PATH,
        tags=["Session"],
        operation_id="closeSession",
        summary="Sign out",
        status_code=204,
        responses=responses(),
    )
    async def close_session(request: Request) -> Response:
        response = Response(status_code=204)
        if session_service is not None:
            await session_service.close(request, response)
        return response
