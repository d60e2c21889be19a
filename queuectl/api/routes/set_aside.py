"""Objects of units that were set aside because of an unexpected error, as files for a report or another run."""

# No postponed annotations here: see routes/config.py.

from datetime import datetime
from enum import Enum
from typing import Final

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from queuectl.api.access import Guard
from queuectl.api.openapi import Responses, responses
from queuectl.api.params import Number
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.api.schemas import View
from queuectl.db.ports import ApiStore
from queuectl.domain.containment import KEPT_OBJECTS, SetAsideObject
from queuectl.domain.words import utc
from queuectl.objects.configuration.config_kinds import PREFIX

P = ProblemType
PATH: Final = f"{PREFIX}/setasideobjects"
MEDIA_TYPE: Final = "application/json"
_TAGS: Final[list[str | Enum]] = ["Set-aside objects"]
_FILE: Final[Responses] = {200: {"content": {MEDIA_TYPE: {"schema": {"type": "object"}}}}}


class SetAsideObjectView(View):
    """An object that an unexpected error of queuectl concerns."""

    id: int
    at: datetime = Field(description="Time of the first failure.")
    epoch: int = Field(description="Epoch of the leader that stored it.")
    boundary: str = Field(description="Where the error occurred.")
    unit: str = Field(description="The object, for example `Job/namespace/name`.")
    error: str = Field(description="Identifier of the error, as in the log event `unit_set_aside`.")
    place: str = Field(description="Type of the error, and its place in the code.")
    bytes: int = Field(description="Size of the object before redaction.")
    truncated: bool = Field(description="true = the file has only the first 256 KiB.")


class SetAsideObjectList(View):
    items: list[SetAsideObjectView] = Field(
        description="The newest first; at most 20 are kept, one for each unit."
    )


def add_routes(routes: APIRouter, guard: Guard, store: ApiStore) -> None:
    """Offer the paths. The objects have names of all teams, so both need the right to see names."""
    names = guard.needs("get", "refusedplans/names")

    @routes.get(
        PATH,
        tags=_TAGS,
        operation_id="listSetAsideObjects",
        summary="Objects that were set aside because of an unexpected error, the newest first",
        responses=responses(),
        dependencies=[guard.needs("list", "refusedplans"), names],
    )
    async def list_set_aside_objects() -> SetAsideObjectList:
        return SetAsideObjectList(items=[_view(one) for one in await store.set_aside_objects()])

    @routes.get(
        f"{PATH}/{{number}}",
        tags=_TAGS,
        operation_id="getSetAsideObject",
        summary="The object without secrets, or the records of its workload",
        responses=_FILE | responses(P.NOT_FOUND),
        response_class=Response,
        dependencies=[guard.needs("get", "refusedplans"), names],
    )
    async def get_set_aside_object(number: Number) -> Response:
        content = await store.set_aside_object(number)
        if content is None:
            text = f"no stored object has the id {number}: the newest {KEPT_OBJECTS} are kept"
            raise ApiProblem(P.NOT_FOUND, text)
        file = f'attachment; filename="set-aside-{number}.json"'
        return Response(content, media_type=MEDIA_TYPE, headers={"Content-Disposition": file})


def _view(set_aside: SetAsideObject) -> SetAsideObjectView:
    return SetAsideObjectView(
        id=set_aside.id,
        at=utc(set_aside.at),
        epoch=set_aside.epoch,
        boundary=set_aside.boundary,
        unit=set_aside.ref,
        error=set_aside.error,
        place=set_aside.place,
        bytes=set_aside.size,
        truncated=set_aside.truncated,
    )
