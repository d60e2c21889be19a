"""The decisions of planning cycles, the newest first, each with its steps."""

# No postponed annotations here: see routes/config.py.

from enum import Enum
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request

from queuectl.api.access import Guard
from queuectl.api.decisions import (
    DecisionDetailView,
    DecisionPageView,
    decision_view,
)
from queuectl.api.feed import event_view
from queuectl.api.openapi import responses
from queuectl.api.params import After, Limit
from queuectl.api.presenter import WorkloadPresenter
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.db.ports import ApiStore
from queuectl.objects.configuration.config_kinds import PREFIX

P = ProblemType
PATH: Final = f"{PREFIX}/decisions"
_TAGS: Final[list[str | Enum]] = ["Decisions"]
_ID: Final = {"ge": 1, "lt": 1 << 63}

Before = Annotated[int | None, Query(**_ID, description="Only records with smaller ids.")]
Number = Annotated[int, Path(**_ID, description="The `id` of the record.")]


def add_routes(routes: APIRouter, guard: Guard, store: ApiStore) -> None:
    """Offer the paths."""
    presenter = WorkloadPresenter(guard, store, None)

    @routes.get(
        PATH,
        tags=_TAGS,
        operation_id="listDecisions",
        summary="Planning cycles that changed something, the newest first",
        responses=responses(),
        dependencies=[guard.needs("list", "decisions")],
    )
    async def list_decisions(before: Before = None, limit: Limit = 100) -> DecisionPageView:
        found = await store.decisions(before, limit)
        return DecisionPageView(
            items=[decision_view(decided) for decided in found],
            next_before=found[-1].id if len(found) == limit else None,
        )

    @routes.get(
        f"{PATH}/{{number}}",
        tags=_TAGS,
        operation_id="getDecision",
        summary="One planning cycle, with its steps by workload",
        responses=responses(P.NOT_FOUND),
        dependencies=[guard.needs("get", "decisions")],
    )
    async def get_decision(
        request: Request,
        number: Number,
        after: After = 0,
    ) -> DecisionDetailView:
        decided = await store.get_decision(number)
        if decided is None:
            raise ApiProblem(
                P.NOT_FOUND, f"decision {number} does not exist; decisions are kept for a week"
            )
        steps, next_after = await presenter.decided(request, store, decided, after)
        return DecisionDetailView(
            **dict(decision_view(decided)),
            steps=[event_view(line) for line in steps],
            next_after=next_after,
        )
