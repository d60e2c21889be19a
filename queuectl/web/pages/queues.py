"""ClusterQueues: all at a glance, and one in full: its quota, who waits in it in order, and who runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.api.problems import Problem, ProblemType
from queuectl.domain.errors import BadInput
from queuectl.domain.identity import Right
from queuectl.domain.ledger import State
from queuectl.domain.queries import IN_LINE, WorkloadFilter
from queuectl.domain.queue_counts import QueueCounts
from queuectl.domain.queues import ClusterQueue
from queuectl.web.access_scope import AccessScope
from queuectl.web.quotas import QuotaBar, Quotas, quotas_of
from queuectl.web.site import Site, whole

PAGE: Final = 100  # waiting gangs shown at once
RUNS: Final = frozenset({State.STARTING, State.RUNNING, State.EVICTING})
_LAST: Final = 1_000_000  # to skip
_ASIDE: Final = (State.HELD, State.BACKOFF, State.DEACTIVATED)


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A ClusterQueue in a listing. ``bars``: of GPUs alone where it has any."""

    queue: ClusterQueue
    bars: tuple[QuotaBar, ...]
    running: int
    waiting: int
    waiting_gpus: int
    aside: int
    oldest: float | None


def rows(quotas: Quotas, tallies: tuple[QueueCounts, ...], sight: AccessScope) -> list[QueueRow]:
    """The ClusterQueues that may be seen, by name; their counts are of workloads that may be seen."""
    return [
        _row(quotas, queue, [t for t in tallies if t.cluster_queue == queue.name])
        for queue in sorted(quotas.config.cluster_queues.values(), key=lambda q: q.name)
        if sees(queue.name, quotas, sight)
    ]


def sees(name: str, quotas: Quotas, sight: AccessScope) -> bool:
    """Whether a ClusterQueue may be seen: all may, or a LocalQueue of a visible namespace leads to it."""
    locals_of_it = (q for q in quotas.config.local_queues.values() if q.cluster_queue == name)
    return sight.queues or any(sight.sees(local.namespace) for local in locals_of_it)


def _row(quotas: Quotas, queue: ClusterQueue, tallies: list[QueueCounts]) -> QueueRow:
    weights = quotas.config.rules.accounting.gpus
    bars = quotas.of_queue(queue)
    waits = [t for t in tallies if t.state in IN_LINE]
    return QueueRow(
        queue,
        tuple(bar for bar in bars if weights.of(bar.resource)) or bars,
        running=sum(t.workloads for t in tallies if t.state in RUNS),
        waiting=sum(t.workloads for t in waits),
        waiting_gpus=sum(t.gpus for t in waits),
        aside=sum(t.workloads for t in tallies if t.state in _ASIDE),
        oldest=min((t.oldest for t in waits), default=None),
    )


async def quotas_now(site: Site) -> Quotas:
    """Quota as it is in force, and its use where this process knows it."""
    return quotas_of(await site.config(), await site.picture(), site.cache)


def routes(site: Site) -> list[Route]:
    """Offer the pages."""

    async def queues(request: Request) -> Response:
        sight = await site.sight(request)
        tallies = await site.store.tallies()
        quotas = await quotas_now(site)
        found = rows(quotas, sight.tallies(tallies), sight)
        return site.page(request, "queues.html", sight, queues=found)

    async def queue(request: Request) -> Response:
        return await _queue(site, request)

    return [
        Route("/queues", queues),
        Route("/queues/{name}", queue),
    ]


async def _queue(site: Site, request: Request) -> Response:
    name = request.path_params["name"]
    sight, quotas, tallies = await _seen(site, request, name)
    queue = quotas.config.cluster_queues[name]
    mine = [t for t in sight.tallies(tallies) if t.cluster_queue == name]
    page = await _running(site, request, name, sight)
    return site.page(
        request,
        "queue.html",
        sight,
        row=_row(quotas, queue, mine),
        bars=quotas.of_queue(queue),
        cohort=quotas.of_cohort(queue.cohort) if queue.cohort is not None else (),
        members=_members(quotas, queue, sight),
        local_queues=_local_queues(mine),
        configured=await site.guard.may(request, Right("get", "clusterqueues", "", name)),
        **await _waiting(site, request, name, sight),
        **page,
    )


async def _seen(
    site: Site, request: Request, name: str
) -> tuple[AccessScope, Quotas, tuple[QueueCounts, ...]]:
    """What a page about a ClusterQueue starts from.

    Raises:
        Problem: there is none, or who asks may not see it.
    """
    sight = await site.sight(request)
    tallies = await site.store.tallies()
    quotas = await quotas_now(site)
    if not sees(name, quotas, sight):
        await site.guard.require(request, Right("get", "clusterqueues", "", name))
    if name not in quotas.config.cluster_queues:
        raise Problem(ProblemType.NOT_FOUND, f"there is no ClusterQueue {name}")
    return sight, quotas, tallies


def _members(quotas: Quotas, queue: ClusterQueue, sight: AccessScope) -> list[ClusterQueue]:
    """The other ClusterQueues of its cohort."""
    others = quotas.config.cluster_queues.values()
    return [
        other
        for other in sorted(others, key=lambda q: q.name)
        if queue.cohort is not None and other.cohort == queue.cohort and other is not queue
        and sees(other.name, quotas, sight)
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class LocalRow:
    """A LocalQueue in a ClusterQueue's page."""

    namespace: str
    name: str
    running: int
    waiting: int
    aside: int


def _local_queues(tallies: list[QueueCounts]) -> list[LocalRow]:
    names = sorted({(t.namespace, t.queue) for t in tallies})

    def count(key: tuple[str, str], states: frozenset[State] | tuple[State, ...]) -> int:
        return sum(
            t.workloads for t in tallies if (t.namespace, t.queue) == key and t.state in states
        )

    return [
        LocalRow(*key, count(key, RUNS), count(key, IN_LINE), count(key, _ASIDE)) for key in names
    ]


async def _waiting(site: Site, request: Request, name: str, sight: AccessScope) -> dict[str, Any]:
    """A page of those that wait, with where they stand in line."""
    skip = min(whole(request, "skip"), _LAST)
    found = await site.store.waiting(name, sight.namespaces, skip=skip, limit=PAGE + 1)
    return {
        "waiting": await site.presenter.workloads(request, found[:PAGE]),
        "skip": skip,
        "next_skip": skip + PAGE if len(found) > PAGE else None,
    }


async def _running(site: Site, request: Request, name: str, sight: AccessScope) -> dict[str, Any]:
    """A page of those that hold places, by name."""
    cursor = request.query_params.get("cursor")
    wanted = WorkloadFilter(cluster_queue=name, states=RUNS, namespaces=sight.namespaces)
    try:
        page = await site.store.list_workloads(wanted, cursor, PAGE)
    except BadInput as error:
        raise Problem(ProblemType.INVALID_PARAMETER, str(error)) from error
    return {
        "running": await site.presenter.workloads(request, page.entries),
        "next_cursor": page.cursor,
    }
