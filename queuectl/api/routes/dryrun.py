"""A dry run of several documents together, because their combined effect can differ from that of each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from queuectl.api.access import Guard
from queuectl.api.body import Bodies
from queuectl.api.dry_run import (
    DryRun,
    DryRunObject,
    applied,
    dry_run_documents,
    excess_views,
    not_the_owner,
    seen_excesses,
    write_verb,
)
from queuectl.api.openapi import BODY_PROBLEMS, LIST_BODY, responses
from queuectl.api.ports import Diagnoser
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.api.schemas import DryRunView
from queuectl.db.ports import ApiStore
from queuectl.domain.diagnosis import Excess
from queuectl.domain.identity import Right
from queuectl.domain.queries import DocumentKey
from queuectl.objects.configuration.config_kinds import BY_KIND, CONFIG_KINDS, PREFIX
from queuectl.objects.configuration.owners import Owner, followed_kind

P = ProblemType
PATH = f"{PREFIX}/dryrun"


def add_routes(
    routes: APIRouter,
    guard: Guard,
    bodies: Bodies,
    store: ApiStore,
    diagnoser: Diagnoser | None,
    owner: Owner,
) -> None:
    """Offer the path. ``owner``: of the configuration."""

    async def dry_run(request: Request) -> Response:
        await guard.writes_some(request, store.namespaces)
        items, rights = await bodies.documents(request, _needed)
        await guard.require_all(request, rights)
        checked = await dry_run_documents(items, store, diagnoser, bodies)
        over = await seen_excesses(guard, request, checked.excesses)
        answer = await bodies.work(partial(_encoded, checked, over, owner))
        return Response(answer, media_type="application/json")

    routes.add_api_route(
        PATH,
        dry_run,
        methods=["POST"],
        tags=["Configuration"],
        operation_id="dryRun",
        summary="The effect of applying these documents together, without a change",
        response_model=DryRunView,
        responses=responses(*BODY_PROBLEMS, P.INVALID_DOCUMENT),
        openapi_extra=LIST_BODY,
    )


def _needed(body: dict[str, Any]) -> tuple[list[dict[str, Any]], list[Right]]:
    """The documents, and the rights to write them."""
    items = _items(body)
    return items, sorted({_right(item) for item in items}, key=str)


def _encoded(checked: DryRun, over: Sequence[Excess] | None, owner: Owner) -> bytes:
    """The response, encoded object by object: a thread that encodes megabytes at once blocks all others."""
    objects = b",".join(
        orjson.dumps({**applied(one), "refused": _refused(one, owner)}) for one in checked.objects
    )
    return b'{"objects":[%b],"overQuota":%b}' % (objects, orjson.dumps(excess_views(over)))


def _refused(checked: DryRunObject, owner: Owner) -> str | None:
    """Why the server refuses to store a valid document; None = it does not."""
    key = DocumentKey.of(checked.document)
    followed = followed_kind(owner, key.kind)
    if followed is None:
        return None
    return not_the_owner(followed, key, write_verb(checked.outcome)).detail


def _right(document: dict[str, Any]) -> Right:
    """The rights to write this document. The reader refuses an unknown kind, with its reason."""
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    kind = BY_KIND.get(str(document.get("kind")))
    if kind is None:
        return Right("update", CONFIG_KINDS[0].plural)
    namespace = str(metadata.get("namespace") or "") if kind.namespaced else ""
    return Right("update", kind.plural, namespace, str(metadata.get("name") or ""))


def _items(body: dict[str, Any]) -> list[dict[str, Any]]:
    items = body.get("items")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        detail = "items: must be a list of documents"
        errors = [{"field": "items", "reason": "must be a list of documents"}]
        raise ApiProblem(P.INVALID_DOCUMENT, detail, errors=errors)
    return items
