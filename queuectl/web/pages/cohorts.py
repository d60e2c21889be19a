"""Cohorts as a tree: every cohort with its child cohorts and ClusterQueues, their quota, its use, and fair shares."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.reports.quotas import cohort_trees
from queuectl.web.pages.queues import quotas_now, sees_queue
from queuectl.web.site import Site


def routes(site: Site) -> list[Route]:
    """The route of the page."""

    async def cohorts(request: Request) -> Response:
        access = await site.access(request)
        quotas = await quotas_now(site)
        trees, alone = cohort_trees(quotas, sees_queue(quotas, access))
        return site.page(
            request, "cohorts.html", access, trees=trees, alone=alone, known=quotas.use is not None
        )

    return [Route("/cohorts", cohorts)]
