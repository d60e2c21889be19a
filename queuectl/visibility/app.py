"""The HTTP application: discovery, schemas, and reads of QueuedJobs.

Each request is identified and authorized by itself, by the access reviews of the cluster for the group of this API.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
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
from queuectl.api.problems import ApiProblem
from queuectl.api.routes.events import StreamLimit
from queuectl.domain.errors import (
    BadInput,
    ClusterUnavailable,
    StoreUnavailable,
    TooManyReviews,
)
from queuectl.domain.identity import Caller, Right
from queuectl.visibility import discovery
from queuectl.visibility.answers import JobAnswers, document
from queuectl.visibility.identity import NotIdentified
from queuectl.visibility.objects import GROUP, PLURAL, object_name
from queuectl.visibility.requests import (
    ListOptions,
    ReadTarget,
    all_chosen,
    continuation,
    segments,
    target_of,
    wants_aggregated,
    wants_table,
)
from queuectl.visibility.rows import KnownWorkloads, LastKnown
from queuectl.visibility.status import JSON, StatusError, error_response
from queuectl.visibility.watching import Watch, WatchResponse

RETRY_SECONDS: Final = "5"
MOST_WATCHES: Final = 400
MOST_OF_CALLER: Final = 100
"""Watches."""
_log = structlog.get_logger(source="queuectl.visibility")


class Identifies(Protocol):
    """The user of a request."""

    def caller_of(self, scope: Mapping[str, Any]) -> Caller:
        """The user. Raises NotIdentified."""


@dataclass(frozen=True)
class OwnRights:
    """The rights to QueuedJobs, for readers that ask about workloads: a user who may list QueuedJobs sees the names of gangs."""

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
        self._answers = JobAnswers(WorkloadPresenter(self._guard, rows, diagnoser), rows)
        self._streams = StreamLimit(MOST_WATCHES, MOST_OF_CALLER)

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
        try:
            await response(scope, receive, send)
        except ApiProblem as problem:  # too many watches; nothing is sent yet
            refusal = StatusError(problem.kind.status, problem.detail, problem.headers)
            await error_response(refusal)(scope, receive, send)

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
            return await self._watch(request, target, options)
        return await self._list(request, target, options)

    async def _get(self, request: Request, target: ReadTarget) -> Response:
        await self._require(request, target.right("get"))
        as_table = wants_table(request.headers.get("accept", ""))
        options = ListOptions.read(request.scope["query_string"])
        workloads = await self._known()
        entry = workloads.by_key.get((target.namespace, target.name))
        if entry is None:
            raise StatusError(404, _not_found(workloads, target))
        if as_table:
            metadata = {"resourceVersion": str(workloads.versions[entry.uid])}
            return await self._answers.listed(
                request, workloads, [entry], metadata, options.include
            )
        job = await self._answers.explained(request, entry, workloads.versions[entry.uid])
        return self._answers.response(workloads, orjson.dumps(document(job)))

    async def _list(self, request: Request, target: ReadTarget, options: ListOptions) -> Response:
        await self._require(request, target.right("list", options.name))
        as_table = wants_table(request.headers.get("accept", ""))
        workloads = await self._known()
        entries = await asyncio.to_thread(all_chosen, workloads.by_key, target, options)
        page = entries[: options.limit] if options.limit else entries
        metadata: dict[str, Any] = {"resourceVersion": str(workloads.version)}
        if len(page) < len(entries):
            last = page[-1]
            metadata["continue"] = continuation((last.namespace, object_name(last)))
            metadata["remainingItemCount"] = len(entries) - len(page)
        include = options.include if as_table else None
        return await self._answers.listed(request, workloads, page, metadata, include)

    async def _watch(self, request: Request, target: ReadTarget, options: ListOptions) -> Response:
        right = target.right("watch", options.name)
        await self._require(request, right)
        as_table = wants_table(request.headers.get("accept", ""))
        workloads, log = await self._known(), self._rows.log
        assert log is not None
        watch = Watch(
            request,
            target,
            options,
            as_table,
            self._rows,
            log,
            self._answers,
            partial(self._guard.may, request, right),
        )
        return WatchResponse(watch.chunks(workloads), self._streams)

    async def _require(self, request: Request, right: Right) -> None:
        if not await self._guard.may(request, right):
            raise StatusError(403, f"{caller_of(request).name} may not {right}")

    async def _known(self) -> KnownWorkloads:
        workloads = await self._rows.recent()
        if workloads is None:
            text = "the database does not answer, and this replica has read nothing from it yet"
            raise StatusError(503, text, {"Retry-After": RETRY_SECONDS})
        return workloads


def _not_found(workloads: KnownWorkloads, target: ReadTarget) -> str:
    message = f'{PLURAL}.{GROUP} "{target.name}" not found'
    ends = f"-{target.name}"
    similar = [
        name
        for (namespace, name), entry in workloads.by_key.items()
        if namespace == target.namespace and name.endswith(ends) and entry.name == target.name
    ]
    if similar:
        message += f": the name begins with the kind of the job: {' or '.join(islice(similar, 5))}"
    return message


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
