"""The audit log: changes with their callers, and refused requests."""

# No postponed annotations here: see routes/config.py.

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from queuectl.api.access import Guard
from queuectl.api.openapi import responses
from queuectl.api.params import Before, Limit
from queuectl.api.schemas import View
from queuectl.db.ports import ApiStore
from queuectl.domain.audit import AuditFilter, AuditLine, result_of, uid_of, words_of
from queuectl.domain.words import utc
from queuectl.objects.configuration.config_kinds import PREFIX

PATH = f"{PREFIX}/audit"
_LONGEST = 1024

OfCaller = Annotated[str | None, Query(alias="caller", max_length=_LONGEST, pattern=r"^[^\x00]*$")]
OfPath = Annotated[
    str | None,
    Query(
        alias="path",
        max_length=_LONGEST,
        pattern=r"^[^\x00]*$",
        description="Only paths with this prefix.",
    ),
]
Since = Annotated[float | None, Query(ge=0, le=1e11, description="Unix seconds.")]


class AuditLineView(View):
    """A request for a change."""

    id: int
    at: datetime
    request_id: str = Field(
        description="The X-Request-Id of the response, which is also in the log."
    )
    caller: str
    groups: list[str]
    method: str
    path: str
    operation: str = Field(description="operationId; empty if the request reached no operation.")
    status: int | None = Field(
        description="Status of the response; null = begun, with an unknown outcome."
    )
    detail: str = Field(description="The reason of the refusal, or the change.")
    what: str = Field(description="The request in words, as in `hold team-a/train`.")
    result: str = Field(
        description="The result in words: done, accepted, refused or failed, with the detail; or that it is not known."
    )


class AuditPage(View):
    """Newest first."""

    items: list[AuditLineView]
    next_before: int | None = Field(
        description="Value of `before` for the next page; null = this is the last page."
    )


def add_routes(routes: APIRouter, guard: Guard, store: ApiStore) -> None:
    """Offer the path."""

    @routes.get(
        PATH,
        dependencies=[guard.needs("get", "audit")],
        tags=["Audit"],
        operation_id="listAudit",
        summary="Changes with their callers, and refused requests, newest first",
        responses=responses(),
    )
    async def list_audit(
        caller: OfCaller = None,
        path: OfPath = None,
        since: Since = None,
        before: Before = None,
        limit: Limit = 100,
    ) -> AuditPage:
        found = await store.audit.lines(AuditFilter(caller, path, since, before), limit)
        names = await workload_names(store, found)
        return AuditPage(
            items=[_view(line, names) for line in found],
            next_before=found[-1].id if len(found) == limit else None,
        )


async def workload_names(store: ApiStore, lines: Iterable[AuditLine]) -> Mapping[str, str]:
    """``namespace/name`` of the workloads that lines name by their uids. May raise StoreUnavailable."""
    uids = {uid for line in lines if (uid := uid_of(line.operation, line.path)) is not None}
    return await store.workload_names(uids) if uids else {}


def _view(line: AuditLine, names: Mapping[str, str]) -> AuditLineView:
    return AuditLineView(
        id=line.id,
        at=utc(line.at),
        request_id=line.request_id,
        caller=line.caller,
        groups=list(line.groups),
        method=line.method,
        path=line.path,
        operation=line.operation,
        status=line.status,
        detail=line.detail,
        what=str(words_of(line.operation, line.method, line.path, names)),
        result=result_of(line.status, line.detail),
    )
