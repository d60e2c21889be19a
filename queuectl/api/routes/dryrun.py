"""A dry run of many documents at once: each may be harmless alone, and together lower a quota."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from queuectl.api.body import MAX_LIST_BYTES, read_document
from queuectl.api.kinds import PREFIX
from queuectl.api.openapi import LIST_BODY, responses
from queuectl.api.ports import ApiStore, Diagnoser
from queuectl.api.problems import Problem, ProblemType
from queuectl.api.rehearsal import applied, excess_views, rehearse
from queuectl.api.schemas import DryRunView

P = ProblemType
PATH = f"{PREFIX}/dryrun"


def add_routes(routes: APIRouter, store: ApiStore, diagnoser: Diagnoser | None) -> None:
    """Offer the path."""

    async def dry_run(request: Request) -> Response:
        rehearsal = await rehearse(
            _items(await read_document(request, MAX_LIST_BYTES)), store, diagnoser
        )
        return JSONResponse(
            {
                "objects": [applied(one) for one in rehearsal.objects],
                "overQuota": excess_views(rehearsal.excesses),
            }
        )

    routes.add_api_route(
        PATH,
        dry_run,
        methods=["POST"],
        tags=["Configuration"],
        operation_id="dryRun",
        summary="What applying these documents together would do",
        response_model=DryRunView,
        responses=responses(
            P.MALFORMED_BODY, P.BODY_TOO_LARGE, P.UNSUPPORTED_MEDIA_TYPE, P.INVALID_DOCUMENT
        ),
        openapi_extra=LIST_BODY,
    )


def _items(body: dict[str, Any]) -> list[dict[str, Any]]:
    items = body.get("items")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        detail = "items: must be a list of documents"
        errors = [{"field": "items", "reason": "must be a list of documents"}]
        raise Problem(P.INVALID_DOCUMENT, detail, errors=errors)
    return items
