"""Configuration: all objects by kind with a search, and the page of one object with its text. Writes are in ``config_write``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.api.auth.layers import CHECK
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.domain.identity import Right
from queuectl.domain.queries import ConfigDocument, DocumentKey
from queuectl.objects.configuration.config_kinds import CONFIG_KINDS, ConfigKind
from queuectl.objects.configuration.links import references
from queuectl.web.configuration import (
    BY_PLURAL,
    HOME,
    Draft,
    address_of,
    changes_of,
    key_of,
    kind_of,
    line_of,
    yaml_of,
)
from queuectl.web.site import PREFIX, Site, text
from queuectl.web.starts import start_of

SHOWN: Final = 100  # objects of a kind at once
_DONE: Final = {
    "created": "The object is created.",
    "configured": "The object is changed.",
}


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """An object in the list."""

    name: str
    address: str
    line: str


@dataclass(frozen=True, slots=True)
class KindListing:
    """The objects of a kind.

    Attributes:
        rows: the objects that are shown.
        total: number of objects that match the search.
        may_add: the caller may create another object.
    """

    kind: ConfigKind
    rows: tuple[ObjectRow, ...]
    total: int
    may_add: bool


def right_to(verb: str, key: DocumentKey) -> Right:
    """The right that a verb on an object needs."""
    return Right(verb, kind_of(key).plural, key.namespace, key.name)


def routes(site: Site) -> list[Route]:
    """Offer the pages that change nothing."""

    async def listed(request: Request) -> Response:
        return await _list(site, request)

    async def new(request: Request) -> Response:
        kind = _kind(text(request, "kind"))
        if not await _may_add(site, request, kind):
            await site.guard.require(request, Right("update", kind.plural))
        return await editor(site, request, Draft(start_of(kind.kind, site.clock())), kind=kind)

    async def changed(request: Request) -> Response:
        """The part of a page that reads the audit log."""
        key = key_of(text(request, "of"))
        for right in (right_to("get", key), Right("get", "audit")):
            await site.guard.require(request, right)
        lines = await changes_of(site.store.audit, key)
        return site.page(request, "_changes.html", lines=lines)

    async def one(request: Request) -> Response:
        key = addressed(request)
        await site.guard.require(request, right_to("get", key))
        stored = await stored_as(site, key)
        note = _DONE.get(text(request, "done"), "")
        draft = await draft_of(site, key, stored)
        return await editor(site, request, draft, stored=stored, note=note)

    return [
        Route("/config", listed),
        Route("/config/new", new),
        Route("/config/changes", changed),
        Route("/config/{plural}/{name}", one),
        Route("/config/{plural}/{namespace}/{name}", one),
    ]


def addressed(request: Request) -> DocumentKey:
    """The object of a path. Raises ApiProblem when the path identifies none."""
    path = request.path_params
    parts = (path["plural"], path.get("namespace", ""), path["name"])
    return key_of("/".join(part for part in parts if part))


async def stored_as(site: Site, key: DocumentKey) -> ConfigDocument:
    """The object. Raises ApiProblem when it does not exist."""
    stored = await site.store.get_config(key)
    if stored is None:
        raise ApiProblem(ProblemType.NOT_FOUND, f"{key} does not exist")
    return stored


async def draft_of(site: Site, key: DocumentKey, stored: ConfigDocument) -> Draft:
    """The text of an object as the editor begins with it."""
    plain = await yaml_of(site.bodies, stored.document)
    return Draft(plain, key, stored.version, plain)


async def editor(
    site: Site,
    request: Request,
    draft: Draft,
    *,
    stored: ConfigDocument | None = None,
    status: int = 200,
    **context: Any,
) -> Response:
    """The page of an object with its text, which a caller with the right to it can edit.

    Args:
        site: the sources.
        request: of the caller.
        draft: the content of the editor.
        stored: the stored object, where the page shows it.
        status: of the response.
        context: the result of the last step; see config_object.html.
    """
    key = draft.key
    # The check of a new object reviews the right to the name in its text.
    may_write, may_delete = True, False
    links: list[tuple[str, str]] = []
    if key is not None:
        may_write, may_delete = await asyncio.gather(
            *(site.guard.may(request, right_to(verb, key)) for verb in ("update", "delete"))
        )
        links = await _links(site, key, stored) if stored is not None else []
    page: dict[str, Any] = {
        "draft": draft,
        "kind": kind_of(key) if key is not None else None,
        "line": line_of(stored.document) if stored is not None else "",
        "links": links,
        "may_write": may_write,
        "may_delete": may_delete and draft.version is not None,
        "note": "",
        "problem": None,
        "checked": None,
        "meanwhile": None,
        "target": None,
        "check": CHECK,
        "address_of": address_of,
        **context,
    }
    access = await site.access(request)
    return site.page(request, "config_object.html", access, status=status, still=True, **page)


async def _links(site: Site, key: DocumentKey, stored: ConfigDocument) -> list[tuple[str, str]]:
    """The objects that it refers to, and the page of its queue."""
    named = await site.store.get_configs(references(dict(stored.document)))
    links = [(str(other.key), address_of(other.key)) for other in named]
    if key.kind == "ClusterQueue":
        links.insert(0, ("ClusterQueue page", f"{PREFIX}/queues/{key.name}"))
    return links


async def _list(site: Site, request: Request) -> Response:
    query = {name: text(request, name) for name in ("q", "kind", "done")}
    kinds = [kind for kind in CONFIG_KINDS if query["kind"] in ("", kind.plural)] or CONFIG_KINDS
    listings = [
        listing
        for kind in kinds
        if (listing := await _listing(site, request, kind, query["q"].lower()))
    ]
    if not listings:
        await site.guard.require(request, Right("list", kinds[0].plural))
    return site.page(
        request,
        "config.html",
        await site.access(request),
        asked=query,
        kinds=CONFIG_KINDS,
        home=HOME,
        listings=[listing for listing in listings if listing.total or not query["q"]],
    )


async def _listing(site: Site, request: Request, kind: ConfigKind, q: str) -> KindListing | None:
    """The objects of a kind that match; None where the caller may see none of this kind."""
    stored = await _seen(site, request, kind)
    if stored is None:
        return None
    found = [one for one in stored if q in _searched(one)]
    may_add = await _may_add(site, request, kind) and not (kind.single and stored)
    return KindListing(kind, tuple(map(_row, found[:SHOWN])), len(found), may_add)


async def _seen(
    site: Site, request: Request, kind: ConfigKind
) -> tuple[ConfigDocument, ...] | None:
    if not kind.namespaced:
        may = await site.guard.may(request, Right("list", kind.plural))
        return await site.store.list_config(kind.kind) if may else None
    seen = await site.guard.visible(request, "list", kind.plural, site.store.namespaces)
    if seen is not None and not seen:
        return None
    stored = await site.store.list_config(kind.kind)
    return tuple(one for one in stored if seen is None or one.key.namespace in seen)


async def _may_add(site: Site, request: Request, kind: ConfigKind) -> bool:
    """Whether the caller may create an object in any namespace. The check of the text reviews the right to its name."""
    if not kind.namespaced:
        return await site.guard.may(request, Right("update", kind.plural))
    return await site.guard.somewhere(request, "update", kind.plural, site.store.namespaces)


def _searched(stored: ConfigDocument) -> str:
    """The text that a search matches."""
    key = stored.key
    name = f"{key.namespace}/{key.name}" if key.namespace else key.name
    return f"{name} {orjson.dumps(dict(stored.document)).decode()}".lower()


def _row(stored: ConfigDocument) -> ObjectRow:
    key = stored.key
    name = f"{key.namespace}/{key.name}" if key.namespace else key.name
    return ObjectRow(name, address_of(key), line_of(stored.document))


def _kind(plural: str) -> ConfigKind:
    """Raises ApiProblem when the kind does not exist."""
    kind = BY_PLURAL.get(plural)
    if kind is None:
        raise ApiProblem(ProblemType.NOT_FOUND, f"{plural!r} is not a kind of configuration")
    return kind
