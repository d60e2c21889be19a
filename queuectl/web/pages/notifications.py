"""The caller's subscriptions to events, and the receivers that it may use; for administrators the status of each receiver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from queuectl.api.auth.audit import record_change, record_operation
from queuectl.api.problems import ApiProblem, ProblemType, wrong_fields
from queuectl.api.subscriptions import SubscriptionBody
from queuectl.domain.identity import Right
from queuectl.domain.notifications import SELECTABLE, Mode
from queuectl.web.configuration import form_of
from queuectl.web.site import PREFIX, Site

PATH: Final = "/notifications"
_LARGEST_ID: Final = 18  # digits


def routes(site: Site) -> list[Route]:
    """Offer the page and its forms."""
    subscriptions = site.subscriptions

    async def show(
        request: Request, typed: Mapping[str, str], problem: ApiProblem | None = None
    ) -> Response:
        access = await site.access(request)
        page = await subscriptions.receivers(request)
        own = await subscriptions.own(request)
        return site.page(
            request,
            "notifications.html",
            access,
            status=problem.kind.status if problem is not None else 200,
            still=problem is not None,
            receivers=page.items,
            address=page.address,
            wrong=page.error,
            own=own.items,
            may_create=await subscriptions.may_create(request),
            events=SELECTABLE,
            typed=typed,
            problem=problem,
        )

    async def notifications(request: Request) -> Response:
        return await show(request, {})

    async def create(request: Request) -> Response:
        if not await subscriptions.may_create(request):
            await site.guard.require(request, Right("create", "subscriptions"))
        record_operation(request, "createSubscription")
        form = await form_of(request, site.bodies)
        try:
            await subscriptions.create(request, _body(form))
        except ApiProblem as problem:
            if problem.kind is ProblemType.FORBIDDEN:
                raise
            record_change(request, problem.detail)
            return await show(request, form, problem)
        return RedirectResponse(PREFIX + PATH, 303)

    async def delete(request: Request) -> Response:
        record_operation(request, "deleteSubscription")
        await subscriptions.delete(request, _number(request), dry_run=False)
        return RedirectResponse(PREFIX + PATH, 303)

    return [
        Route(PATH, notifications),
        Route(PATH, create, methods=["POST"]),
        Route(f"{PATH}/{{number}}", delete, methods=["POST"]),
    ]


def _number(request: Request) -> int:
    text = str(request.path_params["number"])
    return int(text) if text.isdecimal() and len(text) <= _LARGEST_ID else 0


def _body(form: Mapping[str, str]) -> SubscriptionBody:
    """The subscription of a form.

    Raises:
        Problem: invalid-parameter.
    """
    fields = {
        "receiver": form.get("receiver", ""),
        "scope": form.get("scope", ""),
        "target": form.get("target", "").strip() or None,
        "events": [each.value for each in SELECTABLE if form.get(each.value) == "on"],
        "mode": Mode.DIGEST if form.get("digest") == "on" else Mode.IMMEDIATE,
    }
    try:
        return SubscriptionBody.model_validate(fields)
    except ValidationError as error:
        raise wrong_fields(error.errors(include_url=False, include_input=False)) from error
