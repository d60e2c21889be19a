"""Budgets: their top-ups, and the report of what they have spent and will spend."""

# No postponed annotations here: see routes/config.py.

import time
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Header, Request

from queuectl.api.access import Guard
from queuectl.api.body import missing, read_small
from queuectl.api.budgets import BudgetsView, TopUpBody, TopUpView, shown, status_view, top_up
from queuectl.api.openapi import BODY_PROBLEMS, model_body, responses
from queuectl.api.params import REQUEST_ID, DryRun, key_in_path
from queuectl.api.ports import ClusterReader
from queuectl.api.problems import ProblemType, not_known_yet
from queuectl.db.ports import ApiStore
from queuectl.domain.queries import DocumentKey
from queuectl.domain.spending import BudgetReport
from queuectl.domain.words import utc
from queuectl.objects.configuration.config_kinds import BY_KIND, PREFIX

P = ProblemType
PATH: Final = f"{PREFIX}/reports/budgets"
RequestId = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=REQUEST_ID,
        description="A repeated request of the same user with the same key is the same top-up, while its BudgetTopUp exists. Without a key, each request is a new top-up.",
    ),
]


def add_routes(
    routes: APIRouter, guard: Guard, store: ApiStore, cluster_reader: ClusterReader | None
) -> None:
    """Offer the paths. ``cluster_reader``: None in a process that does not watch the cluster."""
    kind = BY_KIND["Budget"]
    Key = Annotated[DocumentKey, Depends(key_in_path(kind))]  # noqa: N806 - a type

    @routes.post(
        f"{kind.path('', '{name}')}/topups",
        tags=[kind.kind],
        operation_id="topUpBudget",
        summary="Add GPU-hours to one month of a Budget",
        dependencies=[guard.needs("create", "budgets/topups")],
        status_code=201,
        responses=responses(
            *BODY_PROBLEMS,
            P.NOT_FOUND,
            P.PRECONDITION_FAILED,
            P.INVALID_DOCUMENT,
            P.REQUEST_ID_REUSED,
        ),
        openapi_extra=model_body(TopUpBody),
    )
    async def top_up_budget(
        request: Request, key: Key, request_id: RequestId = None, dry_run: DryRun = False
    ) -> TopUpView:
        body = await read_small(request, TopUpBody)
        if body is None:
            raise missing()
        return await top_up(request, store, key, body, request_id, dry_run=dry_run)

    @routes.get(
        PATH,
        tags=["Reports"],
        operation_id="reportBudgets",
        summary="The Budgets in the current month: granted, spent, committed, and when they will be spent",
        description="Budgets of the namespaces in which you are allowed to get reports. Those of ClusterQueues and users are for callers that are allowed to get reports in all namespaces.",
        responses=responses(ProblemType.NOT_KNOWN_YET),
    )
    async def report_budgets(request: Request) -> BudgetsView:
        seen = await guard.visible(request, "get", "reports", store.namespaces)
        if seen is not None and not seen:
            return BudgetsView(at=utc(time.time()), items=[])
        found = await known_budgets(cluster_reader)
        return BudgetsView(
            at=utc(found.at),
            items=[status_view(one, found) for one in found.forecasts if shown(one, seen)],
        )


async def known_budgets(cluster_reader: ClusterReader | None) -> BudgetReport:
    """The report of this process.

    Raises:
        Problem: not-known-yet.
    """
    found = await cluster_reader.budgets() if cluster_reader is not None else None
    if found is None:
        raise not_known_yet()
    return found
