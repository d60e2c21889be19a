"""The HTTP application: discovery, schemas, and reads of QueuedJobs.

Each request is identified and authorized by itself, by the access reviews of the cluster for the group of this API.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol

import orjson
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from queuectl.api.access import Guard, Rights, caller_of, set_caller
from queuectl.api.ports import Diagnoser
from queuectl.api.presenter import WorkloadPresenter
from queuectl.api.schemas import ExplainView
from queuectl.domain.errors import (
    BadInput,
    ClusterUnavailable,
    StoreUnavailable,
    TooManyReviews,
)
from queuectl.domain.identity import Caller, Right
from queuectl.domain.ledger import Entry
from queuectl.visibility import discovery
from queuectl.visibility.identity import NotIdentified
from queuectl.visibility.objects import (
    API_VERSION,
    GROUP,
    LIST_KIND,
    PLURAL,
    QueuedJob,
    fields_of,
    labels_of,
    object_name,
    queued_job,
)
from queuectl.visibility.requests import (
    ListOptions,
    Target,
    continuation,
    segments,
    target_of,
    wants_aggregated,
    wants_table,
)
from queuectl.visibility.rows import KnownWorkloads, LastKnown
from queuectl.visibility.selectors import matches
from queuectl.visibility.status import JSON, StatusError, error_response
from queuectl.visibility.tables import IncludeObject, table

RETRY_SECONDS: Final = "5"
PAGE: Final = 500
"""Objects that are encoded before other requests can continue."""
_log = structlog.get_logger(source="queuectl.visibility")


class Identifies(Protocol):
    """Who sent a request."""

    def caller_of(self, scope: Mapping[str, Any]) -> Caller:
        """The user. Raises NotIdentified."""


@dataclass(frozen=True)
class OwnRights:
    """The rights to QueuedJobs, for readers that ask about workloads: who may list QueuedJobs sees the names of gangs."""

    rights: Rights

    async def may(self, caller: Caller, right: Right) -> bool:
        """Whether the caller has the right to the QueuedJobs of the same namespace. Can raise ClusterUnavailable."""
        return await self.rights.may(
            caller, Right(right.verb, PLURAL, right.namespace, right.name, GROUP)
        )


class VisibilityApp:
    """The application, as ASGI."""

    def __init__(
        self, identity: Identifies, rights: Rights, rows: LastKnown, diagnoser: Diagnoser | None
    ) -> None:
        """``diagnoser``: None where no controller runs."""
        self._identity = identity
        self._guard = Guard(OwnRights(rights))
        self._rows = rows
        self._presenter = WorkloadPresenter(self._guard, rows, diagnoser)
        self._long_lists = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        try:
            response = await self._answer(Request(scope, receive))
        except StatusError as error:
            response = error_response(error)
        except NotIdentified as error:
            # The connection ends: the next one is asked for a certificate of the authorities of then.
            response = error_response(StatusError(401, str(error), {"Connection": "close"}))
        except BadInput as error:
            response = error_response(StatusError(400, str(error)))
        except TooManyReviews as error:
            response = error_response(StatusError(429, str(error), {"Retry-After": RETRY_SECONDS}))
        except (StoreUnavailable, ClusterUnavailable) as error:
            response = error_response(StatusError(503, str(error), {"Retry-After": RETRY_SECONDS}))
        except Exception:  # noqa: BLE001 - the last boundary: each answer is a Status
            _log.exception("visibility_defect", path=str(scope.get("path"))[:300])
            response = error_response(StatusError(500, "see the log of queuectl"))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        set_caller(request.scope, self._identity.caller_of(request.scope))
        if request.method != "GET":
            allowed = {"Allow": "GET"}
            raise StatusError(405, "QueuedJobs can only be read: get, list, watch", allowed)
        parts = segments(request.scope["raw_path"])
        target = target_of(parts)
        if target is None:
            return _about(parts, request)
        if target.name:
            return await self._get(request, target)
        options = ListOptions.read(request.scope["query_string"])
        if options.watch:
            raise StatusError(405, "watch is not supported")
        return await self._list(request, target, options)

    async def _get(self, request: Request, target: Target) -> Response:
        await self._require(request, target.right("get"))
        as_table = wants_table(request.headers.get("accept", ""))
        known = await self._known()
        entry = known.by_key.get((target.namespace, target.name))
        if entry is None:
            raise StatusError(404, _not_found(known, target))
        (view,) = await self._presenter.workloads(request, (entry,))
        explanation = None if as_table else await self._explained(request, entry)
        job = queued_job(entry, view, known.versions[entry.uid], explanation)
        body: dict[str, Any] = (
            table([job], _include(request), {"resourceVersion": job.metadata.resource_version})
            if as_table
            else job.model_dump(mode="json", by_alias=True)
        )
        return self._encoded(known, body)

    async def _explained(self, request: Request, entry: Entry) -> ExplainView:
        try:
            return await self._presenter.explained(request, entry)
        except StoreUnavailable:
            return await self._presenter.explained(request, entry, solve=False)

    async def _list(self, request: Request, target: Target, options: ListOptions) -> Response:
        await self._require(request, target.right("list", options.name))
        as_table = wants_table(request.headers.get("accept", ""))
        known = await self._known()
        entries = _selected(known, target, options)
        page = entries[: options.limit] if options.limit else entries
        metadata: dict[str, Any] = {"resourceVersion": str(known.version)}
        if len(page) < len(entries):
            last = page[-1]
            metadata["continue"] = continuation((last.namespace, object_name(last)))
            metadata["remainingItemCount"] = len(entries) - len(page)
        jobs = await self._jobs(request, known, page)
        body: dict[str, Any] = (
            table(jobs, options.include, metadata)
            if as_table
            else {
                "kind": LIST_KIND,
                "apiVersion": API_VERSION,
                "metadata": metadata,
                "items": [job.model_dump(mode="json", by_alias=True) for job in jobs],
            }
        )
        return self._encoded(known, body)

    async def _jobs(
        self, request: Request, known: KnownWorkloads, entries: Sequence[Entry]
    ) -> list[QueuedJob]:
        """The objects of these workloads. Long lists wait for each other, so that they do not fill the memory."""
        if len(entries) > PAGE:
            async with self._long_lists:
                return await self._made(request, known, entries)
        return await self._made(request, known, entries)

    async def _made(
        self, request: Request, known: KnownWorkloads, entries: Sequence[Entry]
    ) -> list[QueuedJob]:
        views = await self._presenter.workloads(request, entries)
        return [
            queued_job(entry, view, known.versions[entry.uid])
            for entry, view in zip(entries, views, strict=True)
        ]

    async def _require(self, request: Request, right: Right) -> None:
        if not await self._guard.may(request, right):
            raise StatusError(403, f"{caller_of(request).name} may not {right}")

    async def _known(self) -> KnownWorkloads:
        known = await self._rows.recent()
        if known is None:
            text = "the database does not answer, and this replica has read nothing from it yet"
            raise StatusError(503, text, {"Retry-After": RETRY_SECONDS})
        return known

    def _encoded(self, known: KnownWorkloads, body: dict[str, Any]) -> Response:
        headers = {}
        age = self._rows.age(known)
        if age is not None:
            text = f"queuectl's database does not answer: this is what was known {age:.0f} s ago"
            headers = {"Warning": f'299 - "{text}"', "Age": f"{age:.0f}"}
        return Response(orjson.dumps(body), headers=headers, media_type=JSON)


def _selected(known: KnownWorkloads, target: Target, options: ListOptions) -> list[Entry]:
    """The workloads of a list, after the one at which the last answer ended."""
    after = options.after
    return [
        entry
        for key, entry in known.by_key.items()
        if (not target.namespace or key[0] == target.namespace)
        and (after is None or key > after)
        and (not options.labels or matches(options.labels, labels_of(entry)))
        and (not options.fields or matches(options.fields, fields_of(entry)))
    ]


def _not_found(known: KnownWorkloads, target: Target) -> str:
    message = f'{PLURAL}.{GROUP} "{target.name}" not found'
    ends = f"-{target.name}"
    similar = [
        name
        for (namespace, name), entry in known.by_key.items()
        if namespace == target.namespace and name.endswith(ends) and entry.name == target.name
    ]
    if similar:
        message += f": the name begins with the kind of the job: {' or '.join(islice(similar, 5))}"
    return message


def _include(request: Request) -> IncludeObject:
    return ListOptions.read(request.scope["query_string"]).include


_DOCUMENTS: Final[Mapping[tuple[str, ...], Callable[[], dict[str, Any]]]] = {
    ("apis",): lambda: discovery.GROUP_LIST,
    ("apis", GROUP): lambda: discovery.GROUP_DOCUMENT,
    ("apis", GROUP, "v1"): lambda: discovery.RESOURCE_LIST,
    ("openapi", "v2"): discovery.openapi_v2,
    ("openapi", "v3"): discovery.openapi_v3_root,
    ("openapi", "v3", "apis", GROUP, "v1"): discovery.openapi_v3,
}


def _about(parts: tuple[str, ...], request: Request) -> Response:
    """A document about the group, for each identified caller."""
    if parts == ("apis",) and wants_aggregated(request.headers.get("accept", "")):
        return Response(orjson.dumps(discovery.AGGREGATED), media_type=discovery.AGGREGATED_TYPE)
    document = _DOCUMENTS.get(parts)
    if document is None:
        raise StatusError(404, "the server could not find the requested resource")
    return Response(orjson.dumps(document()), media_type=JSON)
