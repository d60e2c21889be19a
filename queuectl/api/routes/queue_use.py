"""The use of ClusterQueues next to their quota: all that the caller may see, in one request."""

# No postponed annotations here: see routes/config.py.

import asyncio
import time
from typing import Final

from fastapi import APIRouter, Request

from queuectl.api.access import Guard
from queuectl.api.openapi import responses
from queuectl.api.params import OfClusterQueue
from queuectl.api.ports import ClusterReader
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.api.queue_use import ClusterQueueUses, queue_uses, reached_from
from queuectl.api.reading import CurrentConfiguration
from queuectl.db.ports import ApiStore
from queuectl.domain.identity import Right
from queuectl.domain.queues import in_force
from queuectl.objects.configuration.config_kinds import PREFIX
from queuectl.planner.cache import PlannerCache
from queuectl.reports.quotas import quotas_of

PATH: Final = f"{PREFIX}/queueuse"
LIST_QUEUES: Final = Right("list", "clusterqueues")


def add_routes(
    routes: APIRouter,
    guard: Guard,
    store: ApiStore,
    stated: CurrentConfiguration,
    cluster_reader: ClusterReader | None,
) -> None:
    """Offer the path. ``cluster_reader``: None in a process that does not watch the cluster."""

    @routes.get(
        PATH,
        tags=["ClusterQueue"],
        operation_id="listClusterQueueUse",
        summary="The use of ClusterQueues next to their quota, and their gangs",
        description="Includes all ClusterQueues if you are allowed to list them, and otherwise those to which LocalQueues lead in the namespaces in which you are allowed to list workloads.",
        responses=responses(ProblemType.NOT_FOUND, ProblemType.NOT_KNOWN_YET),
    )
    async def list_use(request: Request, cluster_queue: OfClusterQueue = None) -> ClusterQueueUses:
        right = Right("get", "clusterqueues", "", cluster_queue) if cluster_queue else LIST_QUEUES
        visible = await guard.visible(request, "list", "workloads", store.namespaces)
        limited = visible is not None and not await guard.may(request, LIST_QUEUES)
        if limited and not visible:
            await guard.require(request, right)
        config = in_force(await stated.config(), time.time())
        names = frozenset(config.cluster_queues)
        if limited:
            names &= reached_from(config, visible or frozenset())
        if cluster_queue is not None:
            if cluster_queue not in names:
                await guard.require(request, right)
            names = frozenset(config.cluster_queues) & {cluster_queue}
            if not names:
                raise ApiProblem(
                    ProblemType.NOT_FOUND, f"ClusterQueue {cluster_queue} does not exist"
                )
        tallies = [
            each for each in await store.tallies() if visible is None or each.namespace in visible
        ]
        snapshot = await cluster_reader.current_snapshot() if cluster_reader is not None else None
        cache = cluster_reader.cache if cluster_reader is not None else PlannerCache()
        quotas = quotas_of(config, snapshot, cache)
        return ClusterQueueUses(
            items=await asyncio.to_thread(
                queue_uses, quotas, tallies, names, resources=cluster_queue is not None
            )
        )
