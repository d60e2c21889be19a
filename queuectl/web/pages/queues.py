"""ClusterQueues: a list, and a page for each with its quota, history, reasons, pending gangs in queue order, and admitted gangs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.domain.errors import BadInput
from queuectl.domain.identity import Right
from queuectl.domain.ledger import HOLDING
from queuectl.domain.queries import MOST_URGENT_FIRST, DocumentKey, QueueCounts, WorkloadFilter
from queuectl.domain.queues import ClusterQueue
from queuectl.reports.quotas import QuotaBar, Quotas, quotas_of
from queuectl.web.actions import queue_buttons
from queuectl.web.counts import GangCounts, by_local_queue, counts_of, pending_reasons
from queuectl.web.history import usage_chart
from queuectl.web.site import AccessScope, Site, whole

PAGE: Final = 100  # gangs of a table
_LAST: Final = 1_000_000  # to skip


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A ClusterQueue in a list. ``bars``: of GPUs alone where it has a quota of GPUs."""

    queue: ClusterQueue
    bars: tuple[QuotaBar, ...]
    counts: GangCounts


def rows(quotas: Quotas, tallies: tuple[QueueCounts, ...], access: AccessScope) -> list[QueueRow]:
    """The ClusterQueues that the caller may see, by name; ``tallies`` are of gangs that the caller may see."""
    sees = sees_queue(quotas, access)
    counts: dict[str, list[QueueCounts]] = {}
    for tally in tallies:
        counts.setdefault(tally.cluster_queue, []).append(tally)
    return [
        _row(quotas, queue, counts.get(queue.name, []))
        for queue in sorted(quotas.stated.cluster_queues.values(), key=lambda q: q.name)
        if sees(queue.name)
    ]


def sees_queue(quotas: Quotas, access: AccessScope) -> Callable[[str], bool]:
    """Whether the caller may see a ClusterQueue: all of them, or one to which a LocalQueue of a visible namespace points."""
    if access.queues:
        return lambda _: True
    locals_of_caller = (q for q in quotas.stated.local_queues.values() if access.sees(q.namespace))
    return frozenset(local.cluster_queue for local in locals_of_caller).__contains__


def _row(quotas: Quotas, queue: ClusterQueue, tallies: list[QueueCounts]) -> QueueRow:
    weights = quotas.config.rules.accounting.gpus
    bars = quotas.of_queue(queue)
    gpus = tuple(bar for bar in bars if weights.of(bar.resource))
    return QueueRow(queue, gpus or bars, counts_of(tallies))


async def quotas_now(site: Site) -> Quotas:
    """The quota in force, and its use if this process knows it."""
    return quotas_of(await site.config(), await site.current_snapshot(), site.cache)


def routes(site: Site) -> list[Route]:
    """The routes of the pages."""

    async def queues(request: Request) -> Response:
        access = await site.access(request)
        tallies = await site.store.tallies()
        quotas = await quotas_now(site)
        found = rows(quotas, access.tallies(tallies), access)
        return site.page(request, "queues.html", access, queues=found)

    async def queue(request: Request) -> Response:
        return await _queue(site, request)

    return [
        Route("/queues", queues),
        Route("/queues/{name}", queue),
    ]


async def _queue(site: Site, request: Request) -> Response:
    name = request.path_params["name"]
    access, quotas, tallies = await _seen(site, request, name)
    queue = quotas.stated.cluster_queues[name]
    mine = [t for t in access.tallies(tallies) if t.cluster_queue == name]
    key = DocumentKey("ClusterQueue", "", name)
    return site.page(
        request,
        "queue.html",
        access,
        row=_row(quotas, queue, mine),
        bars=quotas.of_queue(queue),
        cohort=quotas.of_cohort(queue.cohort) if queue.cohort is not None else (),
        members=_members(quotas, queue, access),
        local_queues=_local_queues(quotas, name, mine, access),
        reasons=pending_reasons(mine, queue=name),
        chart=await usage_chart(site, request, access, cluster_queue=name),
        configured=await site.guard.may(request, Right("get", "clusterqueues", "", name)),
        buttons=await queue_buttons(site.guard, request, key, queue.stop_policy),
        **await pending_page(site, request, access, name),
        **await _admitted(site, request, name, access),
    )


async def _seen(
    site: Site, request: Request, name: str
) -> tuple[AccessScope, Quotas, tuple[QueueCounts, ...]]:
    """The basis of a page about a ClusterQueue.

    Raises:
        Problem: it does not exist, or the caller may not see it.
    """
    access = await site.access(request)
    tallies = await site.store.tallies()
    quotas = await quotas_now(site)
    if not sees_queue(quotas, access)(name):
        await site.guard.require(request, Right("get", "clusterqueues", "", name))
    if name not in quotas.stated.cluster_queues:
        raise ApiProblem(ProblemType.NOT_FOUND, f"ClusterQueue {name} does not exist")
    return access, quotas, tallies


def _members(quotas: Quotas, queue: ClusterQueue, access: AccessScope) -> list[ClusterQueue]:
    """The other ClusterQueues of its cohort."""
    others = quotas.stated.cluster_queues.values()
    sees = sees_queue(quotas, access)
    return [
        other
        for other in sorted(others, key=lambda q: q.name)
        if queue.cohort is not None and other.cohort == queue.cohort and other is not queue
        and sees(other.name)
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class LocalRow:
    """A LocalQueue in the page of its ClusterQueue. ``exists``: it is configured; otherwise only gangs name it."""

    namespace: str
    name: str
    exists: bool
    counts: GangCounts


def _local_queues(
    quotas: Quotas, cluster_queue: str, tallies: list[QueueCounts], access: AccessScope
) -> list[LocalRow]:
    """Its LocalQueues of visible namespaces, and those that its gangs name."""
    configured = {
        (local.namespace, local.name)
        for local in quotas.stated.local_queues.values()
        if local.cluster_queue == cluster_queue and access.sees(local.namespace)
    }
    counted = by_local_queue(tallies)
    return [
        LocalRow(*key, key in configured, counts_of(counted.get(key, ())))
        for key in sorted(configured | counted.keys())
    ]


async def pending_page(
    site: Site,
    request: Request,
    access: AccessScope,
    cluster_queue: str,
    local: tuple[str, str] | None = None,
) -> dict[str, Any]:
    """A page of the pending gangs of a ClusterQueue, or of one of its LocalQueues, in queue order with their positions.

    ``local``: namespace and name of the LocalQueue; its namespace is one that the caller may see.
    """
    skip = min(whole(request, "skip"), _LAST)
    found = await site.store.waiting(
        cluster_queue,
        access.namespaces if local is None else {local[0]},
        queue=local[1] if local is not None else None,
        skip=skip,
        limit=PAGE + 1,
    )
    return {
        "pending": await site.presenter.workloads(request, found[:PAGE]),
        "skip": skip,
        "next_skip": skip + PAGE if len(found) > PAGE else None,
    }


async def _admitted(site: Site, request: Request, name: str, access: AccessScope) -> dict[str, Any]:
    """A page of the gangs that hold quota, the newest first."""
    cursor = request.query_params.get("cursor")
    wanted = WorkloadFilter(
        cluster_queue=name, states=frozenset(HOLDING), namespaces=access.namespaces
    )
    try:
        page = await site.store.list_workloads(wanted, cursor, PAGE, MOST_URGENT_FIRST)
    except BadInput as error:
        raise ApiProblem(ProblemType.INVALID_PARAMETER, str(error)) from error
    return {
        "admitted": await site.presenter.workloads(request, page.entries),
        "next_cursor": page.cursor,
        "paged": cursor is not None,
    }
