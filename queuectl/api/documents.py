"""The operations on configuration documents of one kind, from requests to stored documents and responses."""

# No postponed annotations here: see routes/config.py.

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import orjson
from fastapi import Request
from starlette.responses import JSONResponse, Response

from queuectl.api.access import Guard
from queuectl.api.auth.audit import record_change
from queuectl.api.body import MAX_SMALL, Bodies
from queuectl.api.dry_run import (
    applied,
    changes_of,
    dry_run_documents,
    excess_views,
    not_the_owner,
    seen_excesses,
    write_verb,
)
from queuectl.api.params import check_write, etag, matches_any, unchanged
from queuectl.api.ports import Diagnoser
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.api.reading import merged
from queuectl.api.reservation_status import with_status
from queuectl.db.ports import ApiStore
from queuectl.domain.errors import Conflict, NotFound
from queuectl.domain.pastuse import AccountScope, Used
from queuectl.domain.queries import ConfigDocument, DocumentKey
from queuectl.objects.configuration.config_kinds import API_VERSION, BY_KIND, ONLY_NAME, ConfigKind
from queuectl.objects.configuration.links import (
    dangling,
    references,
    refuse_circular_cohorts,
    refuse_reserved_devices,
)
from queuectl.objects.configuration.owners import Owner, followed_kind
from queuectl.objects.configuration.queue_config import build, validate
from queuectl.objects.documents import as_document
from queuectl.objects.errors import DocumentError
from queuectl.objects.kubernetes.past_use import read_used

P = ProblemType
_TRIES: Final = 5
"""Of a write over each version, while others write the same object."""


class Documents:
    """The operations on one kind."""

    def __init__(
        self,
        guard: Guard,
        bodies: Bodies,
        kind: ConfigKind,
        store: ApiStore,
        diagnoser: Diagnoser | None,
        owner: Owner = Owner.DATABASE,
    ) -> None:
        """``owner``: of the configuration."""
        self._followed = followed_kind(owner, kind.kind)
        self._guard = guard
        self._bodies = bodies
        self._kind = kind
        self._store = store
        self._diagnoser = diagnoser

    async def visible_namespaces(self, request: Request) -> frozenset[str] | None:
        """The namespaces whose objects the caller is allowed to list; None = all."""
        resource = self._kind.plural
        return await self._guard.visible(request, "list", resource, self._store.namespaces)

    async def list(self, namespace: str | None, visible: frozenset[str] | None = None) -> Response:
        stored = await self._store.list_config(self._kind.kind, namespace)
        if visible is not None:
            stored = tuple(s for s in stored if s.document["metadata"]["namespace"] in visible)
        return JSONResponse(
            {
                "apiVersion": API_VERSION,
                "kind": f"{self._kind.kind}List",
                "items": await self._with_status([_shown(document) for document in stored]),
            }
        )

    async def read(self, key: DocumentKey, if_none_match: str | None) -> Response:
        stored = await self._store.get_config(key)
        if stored is None:
            raise ApiProblem(P.NOT_FOUND, f"{key} does not exist")
        headers = {"ETag": etag(stored.version)}
        # The status of a Reservation changes without a new version.
        if self._kind.kind != "Reservation" and unchanged(stored.version, if_none_match):
            return Response(status_code=304, headers=headers)
        (shown,) = await self._with_status([_shown(stored)])
        return JSONResponse(shown, headers=headers)

    async def _with_status(self, shown: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """The documents, with the status that Reservations have."""
        if self._kind.kind != "Reservation" or not shown:
            return shown
        states = await self._store.reservations()
        return [with_status(document, states) for document in shown]

    async def write(
        self, request: Request, key: DocumentKey, if_match: str | None, if_none_match: str | None
    ) -> Response:
        given = await self._bodies.document(request)
        return await self.put(request, key, given, if_match, if_none_match)

    async def put(
        self,
        request: Request,
        key: DocumentKey,
        body: dict[str, Any],
        if_match: str | None,
        if_none_match: str | None,
    ) -> Response:
        """Store a document that was parsed before."""
        body = _addressed(body, key)
        document, warnings = await self._checked(body)
        conditional = if_match is not None or if_none_match is not None
        used = _stated_use(body)

        async def kept() -> Response:
            stored = await self._present(key, if_match, if_none_match)
            self._refuse_write(key, "edit" if stored is not None else "apply")
            return await self._keep(
                request, key, document, warnings, stored, used, conditional=conditional
            )

        return await _written(kept, if_match)

    async def patch(
        self, request: Request, key: DocumentKey, if_match: str | None, *, dry_run: bool
    ) -> Response:
        """Change the version that the caller has read, not a later one; with ``*``, the current one."""
        if if_match is None:
            detail = "a PATCH needs If-Match: the ETag of what you have read, or *"
            raise ApiProblem(P.PRECONDITION_REQUIRED, detail)
        patch = await self._bodies.patch(request)

        async def kept() -> Response:
            stored = await self._store.get_config(key)
            if stored is None:
                raise ApiProblem(P.NOT_FOUND, f"{key} does not exist")
            check_write(stored.version, if_match, None)
            given = _addressed(merged(stored.document, patch), key)
            if dry_run:
                return JSONResponse(await self._dry_run(request, key, given))
            self._refuse_write(key, "edit")
            document, warnings = await self._checked(given)
            return await self._keep(request, key, document, warnings, stored, (), conditional=True)

        return await _written(kept, if_match)

    async def _checked(self, body: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The stored form of the document, and warnings."""
        if len(orjson.dumps(body)) <= MAX_SMALL:
            document, warnings = validate(body)
        else:
            document, warnings = await self._bodies.work(partial(validate, body))
        if document["kind"] == "Cohort":
            refuse_circular_cohorts([document], await self._parents(document))
        if document["kind"] == "Reservation" and self._diagnoser is not None:
            refuse_reserved_devices([document], await self._diagnoser.device_resources())
        return document, warnings

    async def _keep(
        self,
        request: Request,
        key: DocumentKey,
        document: dict[str, Any],
        warnings: tuple[str, ...],
        stored: ConfigDocument | None,
        used: Sequence[Used],
        *,
        conditional: bool,
    ) -> Response:
        """Store it, with the past use that it states; ``conditional``: only over the version that was read. Can raise Conflict."""
        before = stored.version if stored is not None else 0
        version = await self._store.put_config(document, before if conditional else None, used)
        change = "unchanged" if version == before else "configured" if before else "created"
        warnings = (*warnings, *await self._dangling(key, document))
        shown = _shown(ConfigDocument(document, version))
        changes = changes_of(stored.document if stored is not None else None, document)
        body = {
            "result": change,
            "warnings": list(warnings),
            "changes": changes,
            "object": shown,
            "overQuota": None,
        }
        created = change == "created"
        headers = {"ETag": etag(version)}
        record_change(request, _summary(change, changes))
        if created:
            headers["Location"] = request.url.path
        return JSONResponse(body, 201 if created else 200, headers=headers)

    async def dry_run(
        self, request: Request, key: DocumentKey, if_match: str | None, if_none_match: str | None
    ) -> Response:
        """The response of :meth:`write` without the write, and the running gangs that would exceed their quota."""
        given = await self._bodies.document(request)
        return JSONResponse(await self.dry_run_of(request, key, given, if_match, if_none_match))

    async def dry_run_of(
        self,
        request: Request,
        key: DocumentKey,
        body: dict[str, Any],
        if_match: str | None,
        if_none_match: str | None,
    ) -> dict[str, Any]:
        """The same for a document that was parsed before."""
        document = _addressed(body, key)
        await self._present(key, if_match, if_none_match)
        return await self._dry_run(request, key, document)

    async def _dry_run(
        self, request: Request, key: DocumentKey, document: dict[str, Any]
    ) -> dict[str, Any]:
        checked = await dry_run_documents([document], self._store, self._diagnoser, self._bodies)
        (one,) = checked.objects
        self._refuse_write(key, write_verb(one.outcome))
        over = excess_views(await seen_excesses(self._guard, request, checked.excesses))
        return {**applied(one), "overQuota": over}

    async def remove(
        self, key: DocumentKey, if_match: str | None, *, dry_run: bool = False
    ) -> Response:
        """Delete it. ``dry_run``: only check the request."""
        self._refuse_write(key, "delete")
        if dry_run:
            if await self._present(key, if_match, None) is None:
                raise ApiProblem(P.NOT_FOUND, f"{key} does not exist")
            return Response(status_code=204)

        async def removed() -> Response:
            before = None
            if if_match is not None:
                stored = await self._present(key, if_match, None)
                before = stored.version if stored is not None else 0
            try:
                await self._store.delete_config(key, before)
            except NotFound as error:
                raise ApiProblem(P.NOT_FOUND, f"{key} does not exist") from error
            return Response(status_code=204)

        return await _written(removed, if_match)

    def _refuse_write(self, key: DocumentKey, verb: str) -> None:
        """Refuse a write of configuration that objects of the cluster own: the leader would undo it.

        Raises:
            Problem: not-the-owner, with the command of kubectl that does the same.
        """
        if self._followed is not None:
            raise not_the_owner(self._followed, key, verb)

    async def _parents(self, cohort: dict[str, Any]) -> dict[str, str | None]:
        """The parent of each Cohort after this document is stored."""
        stored = [one.document for one in await self._store.list_config("Cohort", None)]
        every = [*stored, cohort]
        return {one["metadata"]["name"]: one.get("spec", {}).get("parentName") for one in every}

    async def _dangling(self, key: DocumentKey, document: dict[str, Any]) -> tuple[str, ...]:
        """References of the object to objects that do not exist."""
        named = references(document)
        others = [other.document for other in await self._store.get_configs(named)] if named else []
        try:
            found = dangling(build([document, *others], 0))
        except DocumentError as error:  # another object, stored by a more lenient release
            return (f"{key}: the names it refers to were not checked: {error}",)
        return tuple(sentence for sentence in found if sentence.startswith(f"{key}: "))

    async def _present(
        self, key: DocumentKey, if_match: str | None, if_none_match: str | None
    ) -> ConfigDocument | None:
        """The stored object, if there is one. Checks the preconditions."""
        stored = await self._store.get_config(key)
        check_write(stored.version if stored else None, if_match, if_none_match)
        return stored


async def _written(write: Callable[[], Awaitable[Response]], if_match: str | None) -> Response:
    """The answer of a write, which reads the stored version first. ``*`` matches each version, so a Conflict is tried again.

    Raises:
        Problem: precondition-failed.
    """
    tries = _TRIES if if_match is not None and matches_any(if_match) else 1
    while True:
        tries -= 1
        try:
            return await write()
        except Conflict as error:
            if not tries:
                raise ApiProblem(P.PRECONDITION_FAILED, str(error)) from error


def _addressed(document: dict[str, Any], key: DocumentKey) -> dict[str, Any]:
    """The document, if it matches the path. The path gives a missing namespace."""
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
        {"field": field, "reason": f"is {given!r}, but the path has {expected!r}"}
        for field, (given, expected) in found.items()
        if given != expected
    ]
    if errors:
        detail = "; ".join(f"{error['field']} {error['reason']}" for error in errors)
        raise ApiProblem(P.INVALID_DOCUMENT, detail, errors=errors)
    return {**document, "metadata": metadata}


def _stated_use(body: dict[str, Any]) -> Sequence[Used]:
    """The past use in the status of a Kueue LocalQueue, which queuectl imports if it has none for it. Raises DocumentError."""
    stated = read_used([as_document(body)], time.time())
    return [used for used in stated if used.account.scope is AccountScope.LOCAL_QUEUE]


def _summary(change: str, changes: list[dict[str, Any]]) -> str:
    """The reason, for the audit log."""
    fields = (f"{c['field']}: {c['before']!r} -> {c['after']!r}" for c in changes)
    return "; ".join([change, *fields])


def _shown(stored: ConfigDocument) -> dict[str, Any]:
    """The document with its version as metadata.resourceVersion, for Kubernetes tools."""
    metadata = {**stored.document["metadata"], "resourceVersion": str(stored.version)}
    return {**stored.document, "metadata": metadata}
