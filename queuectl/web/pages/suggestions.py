"""Suggestions for the filters of lists: the namespaces, ClusterQueues and users that the caller may see."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.web.site import AccessScope, Site

MOST: Final = 200
"""Suggestions of each kind."""


def routes(site: Site) -> list[Route]:
    """Offer the part of a page."""

    async def suggestions(request: Request) -> Response:
        access = await site.access(request)
        config = await site.config()
        local_queues = [q for q in config.local_queues.values() if access.sees(q.namespace)]
        return site.page(
            request,
            "_suggestions.html",
            access,
            suggestions={
                "namespaces": _first(_namespaces(access, {q.namespace for q in local_queues})),
                "cluster-queues": _first(
                    set(config.cluster_queues)
                    if access.queues
                    else {q.cluster_queue for q in local_queues}
                ),
                "local-queues": _first({q.name for q in local_queues}),
                "users": await site.store.users(access.namespaces, MOST),
            },
        )

    return [Route("/suggestions", suggestions)]


def _namespaces(access: AccessScope, with_queues: set[str]) -> set[str]:
    return set(access.namespaces) if access.namespaces is not None else with_queues


def _first(names: set[str]) -> list[str]:
    return sorted(names)[:MOST]
