"""A dry run of many documents at once: each may be harmless alone, and together lower a quota."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from queuectl.api.access import Guard
from queuectl.api.body import Bodies
from queuectl.api.kinds import BY_KIND, CONFIG_KINDS, PREFIX
from queuectl.api.openapi import LIST_BODY, responses
from queuectl.api.ports import ApiStore, Diagnoser
from queuectl.api.problems import Problem, ProblemType
from queuectl.api.rehearsal import applied, excess_views, rehearse, seen_excesses
from queuectl.api.schemas import DryRunView
from queuectl.domain.identity import Right

P = ProblemType
PATH = f"{PREFIX}/dryrun"


def add_routes(
    routes: APIRouter,
    guard: Guard,
    bodies: Bodies,
    store: ApiStore,
    diagnoser: Diagnoser | None,
) -> None:
    """Offer the path."""

    async def dry_run(request: Request) -> Response:
        await guard.writes_some(request, store.namespaces)
        items = _items(await bodies.documents(request))
        for right in sorted({_right(item) for item in items}, key=str):
            await guard.require(request, right)
        rehearsal = await rehearse(request, items, store, diagnoser, bodies)
        over = await seen_excesses(guard, request, rehearsal.excesses)
        return JSONResponse(
            {
                "objects": [applied(one) for one in rehearsal.objects],
                "overQuota": excess_views(over),
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


def _right(item: dict[str, Any]) -> Right:
    """What a write of this document would need. One that no kind reads is refused by the reader, with its reason."""
    metadata = item.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    kind = BY_KIND.get(str(item.get("kind")))
    if kind is None:
        return Right("update", CONFIG_KINDS[0].plural)
    namespace = str(metadata.get("namespace") or "") if kind.namespaced else ""
    return Right("update", kind.plural, namespace, str(metadata.get("name") or ""))


def _items(body: dict[str, Any]) -> list[dict[str, Any]]:
    items = body.get("items")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        detail = "items: must be a list of documents"
        errors = [{"field": "items", "reason": "must be a list of documents"}]
        raise Problem(P.INVALID_DOCUMENT, detail, errors=errors)
    return items
