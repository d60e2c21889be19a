"""Configuration: PUT, GET and DELETE of every kind, with ETags.

A PUT is create-or-replace, and the same document put twice changes nothing: a repository of YAML can be applied over and
over. What is stored is the reader's normal form, so a Kueue v1beta1 document comes back as queuectl.dev/v1.
"""

# No postponed annotations here: the parameters of a route depend on its kind, and FastAPI resolves strings in module scope.

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from queuectl.api.body import read_document
from queuectl.api.kinds import API_VERSION, BY_KIND, ONLY_NAME, ConfigKind
from queuectl.api.openapi import CONFIG_BODY, responses
from queuectl.api.params import DryRun, IfMatch, IfNoneMatch, Name, Namespace, OfNamespace
from queuectl.api.ports import ApiStore, Diagnoser
from queuectl.api.preconditions import check_write, etag, unchanged
from queuectl.api.problems import Problem, ProblemType
from queuectl.api.rehearsal import applied, changes_of, excess_views, rehearse
from queuectl.api.schemas import ConfigApplied, ConfigList, ConfigObject
from queuectl.domain.errors import Conflict, NotFound
from queuectl.domain.pastuse import Scope
from queuectl.domain.queries import ConfigDocument, DocumentKey
from queuectl.objects.config import build, validate
from queuectl.objects.config_links import dangling, refuse_cycle
from queuectl.objects.documents import as_document
from queuectl.objects.errors import DocumentError
from queuectl.objects.pastuse import read_used

P = ProblemType


def add_routes(
    routes: APIRouter, kind: ConfigKind, store: ApiStore, diagnoser: Diagnoser | None
) -> None:
    """Offer the paths of one kind."""
    offer = _ConfigRoutes(kind, store, diagnoser)
    item = kind.path("{namespace}", "{name}")
    Key = Annotated[DocumentKey, Depends(offer.key())]  # noqa: N806 - a type

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
            return await offer.rehearse(request, key, if_match, if_none_match)
        return await offer.write(request, key, if_match, if_none_match)

    async def delete_one(key: Key, if_match: IfMatch = None) -> Response:
        return await offer.remove(key, if_match)

    routes.add_api_route(
        item,
        get_one,
        methods=["GET"],
        tags=[kind.kind],
        operation_id=f"get{kind.kind}",
        summary=f"Read one {kind.kind}",
        response_model=ConfigObject,
        responses=responses(P.NOT_FOUND, P.INVALID_PARAMETER, not_modified=True),
    )
    routes.add_api_route(
        item,
        put_one,
        methods=["PUT"],
        tags=[kind.kind],
        operation_id=f"put{kind.kind}",
        summary=f"Create or replace one {kind.kind}",
        response_model=ConfigApplied,
        responses=responses(
            P.MALFORMED_BODY,
            P.PRECONDITION_FAILED,
            P.BODY_TOO_LARGE,
            P.UNSUPPORTED_MEDIA_TYPE,
            P.INVALID_DOCUMENT,
            P.INVALID_PARAMETER,
            created=ConfigApplied,
        ),
        openapi_extra=CONFIG_BODY[kind.kind],
    )
    routes.add_api_route(
        item,
        delete_one,
        methods=["DELETE"],
        status_code=204,
        tags=[kind.kind],
        operation_id=f"delete{kind.kind}",
        summary=f"Delete one {kind.kind}",
        responses=responses(P.NOT_FOUND, P.PRECONDITION_FAILED, P.INVALID_PARAMETER),
    )
    _lists(routes, kind, offer)


def _lists(routes: APIRouter, kind: ConfigKind, offer: "_ConfigRoutes") -> None:
    async def list_all() -> Response:
        return await offer.list(None)

    async def list_filtered(namespace: OfNamespace = None) -> Response:
        return await offer.list(namespace)

    async def list_namespace(namespace: Namespace) -> Response:
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
            responses=responses(P.INVALID_PARAMETER) if kind.namespaced else responses(),
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


class _ConfigRoutes:
    """The four verbs for one kind."""

    def __init__(self, kind: ConfigKind, store: ApiStore, diagnoser: Diagnoser | None) -> None:
        self._kind = kind
        self._store = store
        self._diagnoser = diagnoser

    def key(self) -> Callable[..., DocumentKey]:
        """The dependency that reads an object's identity from the path."""
        kind = self._kind.kind

        def clusterwide(name: Name) -> DocumentKey:
            return DocumentKey(kind, "", name)

        def namespaced(namespace: Namespace, name: Name) -> DocumentKey:
            return DocumentKey(kind, namespace, name)

        return namespaced if self._kind.namespaced else clusterwide

    async def list(self, namespace: str | None) -> Response:
        stored = await self._store.list_config(self._kind.kind, namespace)
        return JSONResponse(
            {
                "apiVersion": API_VERSION,
                "kind": f"{self._kind.kind}List",
                "items": [_shown(document) for document in stored],
            }
        )

    async def read(self, key: DocumentKey, if_none_match: str | None) -> Response:
        stored = await self._store.get_config(key)
        if stored is None:
            raise Problem(P.NOT_FOUND, f"{key} does not exist")
        headers = {"ETag": etag(stored.version)}
        if unchanged(stored.version, if_none_match):
            return Response(status_code=304, headers=headers)
        return JSONResponse(_shown(stored), headers=headers)

    async def write(
        self, request: Request, key: DocumentKey, if_match: str | None, if_none_match: str | None
    ) -> Response:
        given = _addressed(await read_document(request), key)
        document, warnings = validate(given)
        if key.kind == "Cohort":
            refuse_cycle(document, await self._parents())
        stored = await self._present(key, if_match, if_none_match)
        before = stored.version if stored is not None else 0
        await self._take_over_use(given)
        conditional = if_match is not None or if_none_match is not None
        try:
            version = await self._store.put_config(document, before if conditional else None)
        except Conflict as error:
            raise Problem(P.PRECONDITION_FAILED, str(error)) from error
        result = "unchanged" if version == before else "configured" if before else "created"
        warnings = (*warnings, *await self._dangling(key))
        shown = _shown(ConfigDocument(document, version))
        changes = changes_of(stored.document if stored is not None else None, document)
        body = {
            "result": result,
            "warnings": list(warnings),
            "changes": changes,
            "object": shown,
            "overQuota": None,
        }
        created = result == "created"
        headers = {"ETag": etag(version)}
        if created:
            headers["Location"] = request.url.path
        return JSONResponse(body, 201 if created else 200, headers=headers)

    async def _take_over_use(self, given: dict[str, Any]) -> None:
        """What a LocalQueue of Kueue's says it used lately is where ours starts, if ours knows nothing of it."""
        stated = read_used([as_document(given)])
        own = [used for used in stated if used.account.scope is Scope.LOCAL_QUEUE]
        if own:
            await self._store.start_use(own)

    async def rehearse(
        self, request: Request, key: DocumentKey, if_match: str | None, if_none_match: str | None
    ) -> Response:
        """What :meth:`write` would answer, and what would be over quota then."""
        document = _addressed(await read_document(request), key)
        await self._present(key, if_match, if_none_match)
        rehearsal = await rehearse([document], self._store, self._diagnoser)
        (one,) = rehearsal.objects
        over = excess_views(rehearsal.excesses)
        return JSONResponse({**applied(one), "overQuota": over})

    async def remove(self, key: DocumentKey, if_match: str | None) -> Response:
        before = None
        if if_match is not None:
            stored = await self._present(key, if_match, None)
            before = stored.version if stored is not None else 0
        try:
            await self._store.delete_config(key, before)
        except NotFound as error:
            raise Problem(P.NOT_FOUND, f"{key} does not exist") from error
        except Conflict as error:
            raise Problem(P.PRECONDITION_FAILED, str(error)) from error
        return Response(status_code=204)

    async def _parents(self) -> dict[str, str | None]:
        """Cohort name to its parent's, as stored."""
        stored = [cohort.document for cohort in await self._store.list_config("Cohort", None)]
        return {c["metadata"]["name"]: c.get("spec", {}).get("parentName") for c in stored}

    async def _dangling(self, key: DocumentKey) -> tuple[str, ...]:
        """Names in the stored object that lead nowhere, as it stands among all others now."""
        revision, documents = await self._store.configuration()
        try:
            found = dangling(build(documents, revision))
        except DocumentError as error:  # another object, stored by a more lenient release
            return (f"{key}: the names it refers to were not checked: {error}",)
        return tuple(sentence for sentence in found if sentence.startswith(f"{key}: "))

    async def _present(
        self, key: DocumentKey, if_match: str | None, if_none_match: str | None
    ) -> ConfigDocument | None:
        """The stored object, if there is one, once the preconditions hold."""
        stored = await self._store.get_config(key)
        check_write(stored.version if stored else None, if_match, if_none_match)
        return stored


def _addressed(document: dict[str, Any], key: DocumentKey) -> dict[str, Any]:
    """The document, once it is the one its path speaks of. A namespace that is left out is the path's."""
    metadata = document.get("metadata")
    metadata = dict(metadata) if isinstance(metadata, dict) else {}
    if key.namespace:
        metadata.setdefault("namespace", key.namespace)
    if BY_KIND[key.kind].single:
        metadata.setdefault("name", ONLY_NAME)
    found = {
        "kind": (document.get("kind"), key.kind),
        "metadata.name": (metadata.get("name"), key.name),
        "metadata.namespace": (metadata.get("namespace") or "", key.namespace),
    }
    errors = [
        {"field": field, "reason": f"is {given!r}, but the path says {expected!r}"}
        for field, (given, expected) in found.items()
        if given != expected
    ]
    if errors:
        detail = "; ".join(f"{error['field']} {error['reason']}" for error in errors)
        raise Problem(P.INVALID_DOCUMENT, detail, errors=errors)
    return {**document, "metadata": metadata}


def _shown(stored: ConfigDocument) -> dict[str, Any]:
    """The document with its version where Kubernetes' tools look for it."""
    metadata = {**stored.document["metadata"], "resourceVersion": str(stored.version)}
    return {**stored.document, "metadata": metadata}
