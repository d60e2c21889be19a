"""Search of workloads by a part of their names, among those that the caller may list."""

# No postponed annotations here: see routes/config.py.

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request

from queuectl.api.access import Guard
from queuectl.api.openapi import responses
from queuectl.api.search import SearchResultView, WorkloadSearch, search_result_view
from queuectl.db.ports import ApiStore
from queuectl.domain.search import LONGEST_SEARCH, MOST_MATCHES
from queuectl.objects.configuration.config_kinds import PREFIX

PATH: Final = f"{PREFIX}/search"


def add_routes(
    routes: APIRouter, guard: Guard, store: ApiStore, workload_search: WorkloadSearch
) -> None:
    """Offer the path."""

    @routes.get(
        PATH,
        tags=["Workload"],
        operation_id="searchWorkloads",
        summary="Find workloads by a part of their names",
        description="Includes finished workloads, and the namespaces in which you are allowed to list workloads.",
        responses=responses(),
    )
    async def search_workloads(
        request: Request,
        q: Annotated[
            str,
            Query(
                max_length=LONGEST_SEARCH,
                description="A part of `namespace/name`, or the beginning of a uid with at least 8 characters.",
            ),
        ] = "",
        limit: Annotated[
            int,
            Query(ge=1, le=MOST_MATCHES, description="The largest number of items."),
        ] = MOST_MATCHES,
    ) -> SearchResultView:
        visible = await guard.visible(request, "list", "workloads", store.namespaces)
        return search_result_view(await workload_search.find(q, visible, limit))
