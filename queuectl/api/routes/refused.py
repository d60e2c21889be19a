"""Plans that the verifier refused, as files that ``queuectl plan --snapshot`` replays."""

# No postponed annotations here: see routes/config.py.

import asyncio
from datetime import datetime
from enum import Enum
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from queuectl.api.access import Guard
from queuectl.api.openapi import Responses, responses
from queuectl.api.params import Number
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.api.schemas import View
from queuectl.db.ports import ApiStore
from queuectl.domain.identity import Right
from queuectl.domain.ledger import RefusedPlan
from queuectl.domain.words import utc
from queuectl.objects.configuration.config_kinds import PREFIX
from queuectl.objects.files.refused_plans import redact

P = ProblemType
PATH: Final = f"{PREFIX}/refusedplans"
MEDIA_TYPE: Final = "application/gzip"
_TAGS: Final[list[str | Enum]] = ["Refused plans"]
_FILE: Final[Responses] = {
    200: {"content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
}


Names = Annotated[
    bool,
    Query(
        description="true = with the names of the cluster. You need permission to get refusedplans/names."
    ),
]


class RefusedPlanView(View):
    """A plan that broke a rule, so it was not committed."""

    id: int
    at: datetime = Field(description="Time of the snapshot.")
    epoch: int = Field(description="Epoch of the leader.")
    cycle: int = Field(description="Number of the cycle in this epoch.")
    rules: list[str] = Field(description="The violated rules.")
    bytes: int = Field(description="Size of the file with all names.")


class RefusedPlanList(View):
    items: list[RefusedPlanView] = Field(description="The newest first; at most 20 are kept.")


def add_routes(routes: APIRouter, guard: Guard, store: ApiStore) -> None:
    """Offer the paths."""
    one_at_a_time = asyncio.Lock()  # to redact a large file takes memory and seconds of CPU

    @routes.get(
        PATH,
        tags=_TAGS,
        operation_id="listRefusedPlans",
        summary="Plans that the verifier refused, the newest first",
        responses=responses(),
        dependencies=[guard.needs("list", "refusedplans")],
    )
    async def list_refused_plans() -> RefusedPlanList:
        return RefusedPlanList(items=[_view(one) for one in await store.refused_plans()])

    @routes.get(
        f"{PATH}/{{number}}",
        tags=_TAGS,
        operation_id="getRefusedPlan",
        summary="The file for `queuectl plan --snapshot`; names are redacted by default",
        responses=_FILE | responses(P.NOT_FOUND),
        response_class=Response,
        dependencies=[guard.needs("get", "refusedplans")],
    )
    async def get_refused_plan(request: Request, number: Number, names: Names = False) -> Response:
        if names:
            await guard.require(request, Right("get", "refusedplans/names"))
        content = await store.refused_plan(number)
        if content is None:
            raise ApiProblem(
                P.NOT_FOUND, f"refused plan {number} does not exist; the newest 20 are kept"
            )
        if not names:
            async with one_at_a_time:
                content = await asyncio.to_thread(redact, content)
        file = f'attachment; filename="refused-plan-{number}.gz"'
        return Response(content, media_type=MEDIA_TYPE, headers={"Content-Disposition": file})


def _view(plan: RefusedPlan) -> RefusedPlanView:
    return RefusedPlanView(
        id=plan.id,
        at=utc(plan.at),
        epoch=plan.epoch,
        cycle=plan.cycle,
        rules=list(plan.rules),
        bytes=plan.size,
    )
