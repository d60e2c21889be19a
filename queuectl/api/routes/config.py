"""Configuration: PUT, PATCH, GET and DELETE of each kind, with ETags.

A PUT creates or replaces a document. A repeated PUT of the same document changes nothing, so you can apply a repository of YAML
repeatedly. The normal form of a document is stored: a Kueue v1beta1 document is returned as queuectl.dev/v1.
"""

# No postponed annotations here: the parameters of a route depend on its kind, and FastAPI resolves strings in module scope.

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from queuectl.api.access import Guard
from queuectl.api.body import Bodies
from queuectl.api.documents import Documents
from queuectl.api.openapi import BODY_PROBLEMS, CONFIG_BODY, PATCH_BODY, responses
from queuectl.api.params import (
    DryRun,
    IfMatch,
    IfNoneMatch,
    Namespace,
    OfNamespace,
    key_in_path,
)
from queuectl.api.ports import Diagnoser
from queuectl.api.problems import ProblemType
from queuectl.api.schemas import ConfigApplied, ConfigList, ConfigObject
from queuectl.db.ports import ApiStore
from queuectl.domain.identity import Right
from queuectl.domain.queries import DocumentKey
from queuectl.objects.configuration.config_kinds import ConfigKind
from queuectl.objects.configuration.owners import Owner

P = ProblemType


def add_routes(
    routes: APIRouter,
    guard: Guard,
    bodies: Bodies,
    kind: ConfigKind,
    store: ApiStore,
    diagnoser: Diagnoser | None,
    owner: Owner,
) -> None:
    """Offer the paths of one kind. ``owner``: of the configuration."""
    offer = Documents(guard, bodies, kind, store, diagnoser, owner)
    object_path = kind.path("{namespace}", "{name}")
    Key = Annotated[DocumentKey, Depends(key_in_path(kind))]  # noqa: N806 - a type

    async def get_one(key: Key, if_none_match: IfNoneMatch = None) -> Response:
        return await offer.read(key, if_none_match)

    async def put_one(
        request: Request,
        key: Key,
        dry_run: DryRun = False,
        if_match: IfMatch = None,
        if_none_match: IfNoneMatch = None,
    ) -> Response:
        if dry_run:
            return await offer.dry_run(request, key, if_match, if_none_match)
        return await offer.write(request, key, if_match, if_none_match)

    async def patch_one(
        request: Request, key: Key, dry_run: DryRun = False, if_match: IfMatch = None
    ) -> Response:
        return await offer.patch(request, key, if_match, dry_run=dry_run)

    async def delete_one(key: Key, dry_run: DryRun = False, if_match: IfMatch = None) -> Response:
        return await offer.remove(key, if_match, dry_run=dry_run)

    routes.add_api_route(
        object_path,
        get_one,
        methods=["GET"],
        dependencies=[guard.needs("get", kind.plural)],
        tags=[kind.kind],
        operation_id=f"get{kind.kind}",
        summary=f"Read one {kind.kind}",
        response_model=ConfigObject,
        responses=responses(P.NOT_FOUND, not_modified=True),
    )
    routes.add_api_route(
        object_path,
        put_one,
        methods=["PUT"],
        dependencies=[guard.needs("update", kind.plural)],
        tags=[kind.kind],
        operation_id=f"put{kind.kind}",
        summary=f"Create or replace one {kind.kind}",
        response_model=ConfigApplied,
        responses=responses(
            *BODY_PROBLEMS,
            P.NOT_THE_OWNER,
            P.PRECONDITION_FAILED,
            P.INVALID_DOCUMENT,
            created=ConfigApplied,
        ),
        openapi_extra=CONFIG_BODY[kind.kind],
    )
    routes.add_api_route(
        object_path,
        patch_one,
        methods=["PATCH"],
        dependencies=[guard.needs("patch", kind.plural)],
        tags=[kind.kind],
        operation_id=f"patch{kind.kind}",
        summary=f"Change fields of one {kind.kind}",
        response_model=ConfigApplied,
        responses=responses(
            *BODY_PROBLEMS,
            P.NOT_FOUND,
            P.NOT_THE_OWNER,
            P.PRECONDITION_FAILED,
            P.INVALID_DOCUMENT,
            P.PRECONDITION_REQUIRED,
        ),
        openapi_extra=PATCH_BODY,
    )
    routes.add_api_route(
        object_path,
        delete_one,
        methods=["DELETE"],
        dependencies=[guard.needs("delete", kind.plural)],
        status_code=204,
        tags=[kind.kind],
        operation_id=f"delete{kind.kind}",
        summary=f"Delete one {kind.kind}",
        responses=responses(P.NOT_FOUND, P.NOT_THE_OWNER, P.PRECONDITION_FAILED),
    )
    _lists(routes, guard, kind, offer)


def _lists(routes: APIRouter, guard: Guard, kind: ConfigKind, offer: Documents) -> None:
    async def list_all(request: Request) -> Response:
        await guard.require(request, Right("list", kind.plural))
        return await offer.list(None)

    async def list_filtered(request: Request, namespace: OfNamespace = None) -> Response:
        if namespace is not None:
            return await list_namespace(request, namespace)
        return await offer.list(None, await offer.visible_namespaces(request))

    async def list_namespace(request: Request, namespace: Namespace) -> Response:
        await guard.require(request, Right("list", kind.plural, namespace))
        return await offer.list(namespace)

    def add(path: str, endpoint: Callable[..., Any], operation: str, summary: str) -> None:
        routes.add_api_route(
            path,
            endpoint,
            methods=["GET"],
            tags=[kind.kind],
            operation_id=operation,
            summary=summary,
            response_model=ConfigList,
            responses=responses(),
        )

    every = list_filtered if kind.namespaced else list_all
    add(kind.collection(), every, f"list{kind.kind}", f"List every {kind.kind}")
    if kind.namespaced:
        operation = f"listNamespaced{kind.kind}"
        add(
            kind.collection("{namespace}"),
            list_namespace,
            operation,
            f"List every {kind.kind} of a namespace",
        )
