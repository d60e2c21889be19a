"""LocalQueues: a list by namespace, and a page for each with its ClusterQueue, its use and its pending gangs in queue order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.domain.identity import Right
from queuectl.domain.queries import DocumentKey
from queuectl.domain.queues import WEIGHT_UNIT, ClusterQueue, LocalQueue
from queuectl.reports.quotas import held_by
from queuectl.web.actions import queue_buttons
from queuectl.web.counts import GangCounts, by_local_queue, counts_of, pending_reasons
from queuectl.web.history import usage_chart
from queuectl.web.pages.queues import pending_page
from queuectl.web.site import Site, text

SHOWN: Final = 500  # LocalQueues of a list


@dataclass(frozen=True, slots=True)
class LocalQueueRow:
    """A LocalQueue in the list. ``target``: its ClusterQueue; None where that does not exist."""

    queue: LocalQueue
    target: ClusterQueue | None
    counts: GangCounts


def routes(site: Site) -> list[Route]:
    """The routes of the pages."""

    async def listed(request: Request) -> Response:
        return await _list(site, request)

    async def one(request: Request) -> Response:
        return await _one(site, request)

    return [
        Route("/localqueues", listed),
        Route("/localqueues/{namespace}/{name}", one),
    ]


async def _list(site: Site, request: Request) -> Response:
    access = await site.access(request)
    config = await site.config()
    namespace = text(request, "namespace")
    queues = [
        queue
        for _, queue in sorted(config.local_queues.items())
        if access.sees(queue.namespace) and namespace in ("", queue.namespace)
    ]
    tallies = by_local_queue(access.tallies(await site.store.tallies()))
    rows = [
        LocalQueueRow(
            queue,
            config.cluster_queues.get(queue.cluster_queue),
            counts_of(tallies.get((queue.namespace, queue.name), ())),
        )
        for queue in queues[:SHOWN]
    ]
    return site.page(
        request, "local_queues.html", access, queues=rows, found=len(queues), namespace=namespace
    )


async def _one(site: Site, request: Request) -> Response:
    namespace, name = request.path_params["namespace"], request.path_params["name"]
    access = await site.access(request)
    config = await site.config()
    queue = config.local_queues.get((namespace, name))
    if queue is None or not access.sees(namespace):
        raise ApiProblem(ProblemType.NOT_FOUND, f"LocalQueue {namespace}/{name} does not exist")
    snapshot = await site.current_snapshot()
    tallies = await site.store.tallies()
    mine = [t for t in tallies if (t.namespace, t.queue) == (namespace, name)]
    key = DocumentKey("LocalQueue", namespace, name)
    return site.page(
        request,
        "local_queue.html",
        access,
        queue=queue,
        target=config.cluster_queues.get(queue.cluster_queue),
        weight=queue.weight / WEIGHT_UNIT,
        counts=counts_of(mine),
        held=held_by(snapshot, site.cache, namespace, name) if snapshot is not None else None,
        reasons=pending_reasons(mine, namespace=namespace, localqueue=name),
        chart=await usage_chart(site, request, access, queue=f"{namespace}/{name}"),
        configured=await site.guard.may(request, Right("get", "localqueues", namespace, name)),
        buttons=await queue_buttons(site.guard, request, key, queue.stop_policy),
        **await pending_page(site, request, access, queue.cluster_queue, (namespace, name)),
    )
