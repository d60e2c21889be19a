"""Writing configuration: a text is checked, then applied unchanged; an object is deleted after a confirmation.

Rules and messages match the REST API's PUT and DELETE. A form is refused where the object was changed after it was
read. The refusal shows the typed text alongside the changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from queuectl.api.auth.audit import record_change, record_operation
from queuectl.api.auth.layers import CHECK
from queuectl.api.documents import Documents
from queuectl.api.dry_run import changes_of, dry_run_removal, excess_views, seen_excesses
from queuectl.api.params import etag
from queuectl.api.problems import ApiProblem, ProblemType, too_many_reviews, wrong_document
from queuectl.domain.errors import BadInput, ClusterUnavailable, StoreUnavailable, TooManyReviews
from queuectl.domain.ledger import HOLDING
from queuectl.domain.queries import IN_QUEUE_ORDER, ConfigDocument, DocumentKey
from queuectl.web.configuration import (
    HOME,
    Draft,
    address_of,
    changes_as_yaml,
    draft_of,
    form_of,
    key_of,
    kind_of,
    line_of,
    named_in,
    version_of,
    yaml_of,
)
from queuectl.web.pages.config import addressed, editor, right_to, stored_as
from queuectl.web.site import PREFIX, AccessScope, Site, text

log = structlog.get_logger()

_OUTAGE: Final = "The database or the API server does not respond. It is unknown whether the change was stored. Try again in a moment."
_BOTH: Final = "changed by both"
_UNDONE: Final = "your text reverts it"
_EDITED: Final = (
    "The text was changed after the check and is not applied. This is the result of a new check."
)


@dataclass(frozen=True, slots=True)
class ConcurrentEdit:
    """The changes of an object since the editor was opened.

    Attributes:
        gone: it was deleted.
        appeared: it was created.
        changes: of its fields, both sides as YAML.
        marks: what the draft does to each of these fields.
    """

    gone: bool
    appeared: bool
    changes: list[dict[str, str]]
    marks: Mapping[str, str] = field(default_factory=dict)


def routes(site: Site) -> list[Route]:
    """Offer the forms, and the confirmation page of a deletion."""

    async def check(request: Request) -> Response:
        # The address names the object, so that the right to it is reviewed before the form is read.
        if part := text(request, "of"):
            await site.guard.require(request, right_to("update", key_of(part)))
        else:
            await site.guard.writes_some(request, site.store.namespaces)
        draft = draft_of(await form_of(request, site.bodies))
        return await _kept(site, request, draft, lambda: _check(site, request, draft))

    async def change(request: Request) -> Response:
        key = addressed(request)
        if not await site.guard.may(request, right_to("delete", key)):
            await site.guard.require(request, right_to("update", key))
        form = await form_of(request, site.bodies)
        if form.get("do") == "delete":
            record_operation(request, f"delete{key.kind}")
            return await _delete(site, request, key, version_of(form))
        record_operation(request, f"put{key.kind}")
        draft = draft_of(form)
        return await _kept(site, request, draft, lambda: _apply(site, request, key, draft))

    async def ask(request: Request) -> Response:
        key = key_of(text(request, "of"))
        return await _before_deletion(site, request, key)

    return [
        Route(CHECK.removeprefix(PREFIX), check, methods=["POST"]),
        Route("/config/delete", ask),
        Route("/config/{plural}/{name}", change, methods=["POST"]),
        Route("/config/{plural}/{namespace}/{name}", change, methods=["POST"]),
    ]


def _documents(site: Site, key: DocumentKey) -> Documents:
    """The verbs of the REST API."""
    return Documents(site.guard, site.bodies, kind_of(key), site.store, site.diagnoser, site.owner)


async def _kept(
    site: Site, request: Request, draft: Draft, step: Callable[[], Awaitable[Response]]
) -> Response:
    """The response of a step. After a refusal or an outage, the editor with the typed text and the reason."""
    try:
        return await _explained(site, request, draft, step)
    except TooManyReviews as error:
        problem = too_many_reviews(error)  # rights are reviewed before a write
        page = _unavailable(site, request, draft, problem.kind.status, problem.detail)
        page.headers.update(problem.headers or {})
        return page
    except (StoreUnavailable, ClusterUnavailable) as error:
        log.warning("configuration_not_written", path=request.url.path, error=str(error))
        return _unavailable(site, request, draft, 503, _OUTAGE)


def _unavailable(site: Site, request: Request, draft: Draft, status: int, message: str) -> Response:
    """The typed text, without rights and without the object."""
    return site.page(
        request,
        "config_outage.html",
        status=status,
        still=True,
        draft=draft,
        check=CHECK,
        message=message,
    )


async def _explained(
    site: Site, request: Request, draft: Draft, step: Callable[[], Awaitable[Response]]
) -> Response:
    try:
        return await step()
    except BadInput as error:
        problem = wrong_document(error)
    except ApiProblem as error:
        if error.kind is ProblemType.FORBIDDEN:
            raise
        problem = error
    record_change(request, problem.detail)
    return await editor(site, request, draft, status=problem.kind.status, problem=problem)


async def _check(
    site: Site, request: Request, draft: Draft, *, note: str = "", status: int = 200
) -> Response:
    """The editor with the effect of the text. Raises ApiProblem and BadInput as the API's dry run."""
    body = await site.bodies.yaml(draft.text)
    if draft.key is not None:
        key = draft.key
    else:
        key = await site.bodies.work(partial(named_in, body))
    await site.guard.require(request, right_to("update", key))
    documents = _documents(site, key)
    meanwhile = None
    try:
        checked = await documents.dry_run_of(request, key, body, *draft.conditions)
    except ApiProblem as problem:
        if problem.kind is not ProblemType.PRECONDITION_FAILED:
            raise
        record_change(request, problem.detail)
        checked = await documents.dry_run_of(request, key, body, None, None)
        present = await site.store.get_config(key)
        meanwhile = await _meanwhile(site, draft, present, checked)
        draft = await _over(site, draft, key, present)
        status, note = problem.kind.status, ""
    changes = await changes_as_yaml(site.bodies, checked["changes"])
    return await editor(
        site,
        request,
        replace(draft, checked=draft.seal),
        status=status,
        note=note,
        checked={**checked, "changes": changes},
        meanwhile=meanwhile,
        target=key,
    )


async def _over(
    site: Site, draft: Draft, key: DocumentKey, present: ConfigDocument | None
) -> Draft:
    """The same text, to be written over the object as it is now."""
    if present is None:
        return replace(draft, key=None, version=None, base="")
    base = await yaml_of(site.bodies, present.document)
    return replace(draft, key=key, version=present.version, base=base)


async def _meanwhile(
    site: Site,
    draft: Draft,
    present: ConfigDocument | None,
    checked: Mapping[str, Any],
) -> ConcurrentEdit:
    if present is None or draft.version is None:
        return ConcurrentEdit(gone=present is None, appeared=present is not None, changes=[])
    try:
        base = await site.bodies.yaml(draft.base)
    except ApiProblem:  # not sent by the editor; the effect of the draft is shown without marks
        return ConcurrentEdit(gone=False, appeared=False, changes=[])
    changes, own = await site.bodies.work(
        lambda: [changes_of(base, each) for each in (present.document, checked["object"])]
    )
    typed = {change["field"] for change in own}
    undone = {change["field"] for change in checked["changes"]}
    words = {name: _BOTH if name in typed else _UNDONE for name in undone}
    shown = await changes_as_yaml(site.bodies, changes)
    return ConcurrentEdit(gone=False, appeared=False, changes=shown, marks=words)


async def _apply(site: Site, request: Request, key: DocumentKey, draft: Draft) -> Response:
    """Write the checked text. Raises ApiProblem and BadInput as the API's PUT."""
    await site.guard.require(request, right_to("update", key))
    if draft.checked != draft.seal:
        record_change(request, "not applied: the text was changed after it was checked")
        return await _check(site, request, draft, note=_EDITED, status=409)
    given = await site.bodies.yaml(draft.text)
    try:
        answer = await _documents(site, key).put(request, key, given, *draft.conditions)
    except ApiProblem as problem:
        if problem.kind is not ProblemType.PRECONDITION_FAILED:
            raise
        return await _check(site, request, draft)
    result = "created" if answer.status_code == 201 else "configured"
    return RedirectResponse(f"{address_of(key)}?done={result}", 303)


async def _delete(site: Site, request: Request, key: DocumentKey, version: int | None) -> Response:
    await site.guard.require(request, right_to("delete", key))
    try:
        await _documents(site, key).remove(key, etag(version) if version is not None else None)
    except ApiProblem as problem:
        if problem.kind is not ProblemType.PRECONDITION_FAILED:
            raise
        record_change(request, problem.detail)
        return await _before_deletion(site, request, key, changed=True)
    record_change(request, "deleted")
    return RedirectResponse(f"{HOME}?done=deleted", 303)


async def _before_deletion(
    site: Site, request: Request, key: DocumentKey, *, changed: bool = False
) -> Response:
    """The confirmation page with the consequences. ``changed``: the object was changed since the page was first shown."""
    await site.guard.require(request, right_to("delete", key))
    stored = await stored_as(site, key)
    removal = await dry_run_removal(key, site.store, site.diagnoser, site.bodies)
    over = await seen_excesses(site.guard, request, removal.excesses)
    access = await site.access(request)
    holds, waits = await _users(site, access, key)
    return site.page(
        request,
        "config_delete.html",
        access,
        status=412 if changed else 200,
        still=True,
        key=key,
        version=stored.version,
        address=address_of(key),
        line=line_of(stored.document),
        plain=await yaml_of(site.bodies, stored.document),
        missing=removal.missing,
        over=excess_views(over),
        holds=holds,
        waits=waits,
        changed=changed,
    )


async def _users(site: Site, access: AccessScope, key: DocumentKey) -> tuple[int, int]:
    """The number of visible gangs that a queue has admitted, and that are pending in it."""
    mine = [
        tally
        for tally in access.tallies(await site.store.tallies())
        if (key.kind == "ClusterQueue" and tally.cluster_queue == key.name)
        or (
            key.kind == "LocalQueue" and (tally.namespace, tally.queue) == (key.namespace, key.name)
        )
    ]
    holds = sum(tally.workloads for tally in mine if tally.state in HOLDING)
    return holds, sum(tally.workloads for tally in mine if tally.state in IN_QUEUE_ORDER)
