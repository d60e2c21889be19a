"""The page of one workload: its state and reason, what would help, its run and its cost, its nodes and pods, dependencies and history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.domain.gates import JobName
from queuectl.domain.identity import Right
from queuectl.domain.ledger import KEPT_SECONDS, Entry, State
from queuectl.domain.links import Link, LinkPlace, filled
from queuectl.domain.queries import IN_QUEUE_ORDER, HistoryLine
from queuectl.domain.related_jobs import RelatedJobs
from queuectl.web.actions import asked_of, next_step, offers
from queuectl.web.dependencies import JobGraph, graph_of
from queuectl.web.pages.workloads import UID
from queuectl.web.pods import PodTable, pod_table, ranks_of
from queuectl.web.run import attempts_of, last_placement, progress_of, use_chart
from queuectl.web.site import AccessScope, Site, whole

_STEPS: Final = 100  # of a history, the latest: attempts are taken from them
_SHOWN: Final = 40  # steps that are listed
_PLACED: Final = (State.RESERVED, State.STARTING)
_MOST_MISSING: Final = 8  # jobs of a graph that are looked up in the ledger


def routes(site: Site) -> list[Route]:
    """Offer the page, and the parts of it that are refreshed by themselves."""

    async def page(request: Request) -> Response:
        return await _page(site, request)

    async def why(request: Request) -> Response:
        """The part of the page that the solver works on for up to a few seconds."""
        entry, access = await visible_workload(site, request)
        explained = await site.presenter.explained(request, entry)
        return site.page(request, "_why.html", access, entry=entry, explained=explained)

    async def pods(request: Request) -> Response:
        """The table of pods, which changes without a step of the history."""
        entry, access = await visible_workload(site, request)
        return site.page(request, "_pods.html", access, entry=entry, pods=await _pods(site, entry))

    async def asked(request: Request) -> Response:
        """The results of the latest commands. When all of them have a result, the page is refreshed."""
        entry, access = await visible_workload(site, request)
        newest, reads = (whole(request, name) for name in ("newest", "reads"))
        found = await asked_of(site.store, entry.uid, newest, reads)
        part = site.page(request, "_asked.html", access, entry=entry, asked=found)
        if found.answered:
            part.headers["HX-Trigger"] = "live"
        return part

    return [
        Route("/workloads/{uid}", page),
        Route("/workloads/{uid}/asked", asked),
        Route("/workloads/{uid}/pods", pods),
        Route("/workloads/{uid}/why", why),
    ]


async def visible_workload(site: Site, request: Request) -> tuple[Entry, AccessScope]:
    """The workload of the path.

    Raises:
        Problem: none that the caller may read exists.
    """
    uid = request.path_params["uid"]
    entry = await site.store.get_workload(uid) if UID.fullmatch(uid) else None
    none = ApiProblem(ProblemType.NOT_FOUND, f"no workload has the uid {uid}")
    if entry is None:
        raise none
    right = Right("get", "workloads", entry.namespace, entry.name)
    if not await site.guard.may(request, right):
        raise none
    access = await site.access(request)
    return entry, access


async def _page(site: Site, request: Request) -> Response:
    entry, access = await visible_workload(site, request)
    steps = await site.store.newest_lines(entry.uid, _STEPS)
    history = await site.presenter.steps(request, steps)
    explained = await site.presenter.explained(request, entry, solve=False)
    efficiency = await site.efficiencies.of(entry)
    placement = entry.lease.placement if entry.lease is not None else entry.placement
    past = placement is None and entry.state not in IN_QUEUE_ORDER
    if past:
        placement = last_placement(history)
    config = await site.config()
    now = site.clock()
    fields = _fields(entry, now)
    pods = await _pods(site, entry)
    return site.page(
        request,
        "workload.html",
        access,
        entry=entry,
        explained=explained,
        waits=entry.state in IN_QUEUE_ORDER,
        efficiency=efficiency,
        progress=progress_of(entry, explained.run_time, now),
        checkpoint_at=await site.checkpoint_at(entry) if entry.state.live else None,
        chart=use_chart(efficiency.utilization),
        ranks=ranks_of(placement, await site.current_snapshot()) if placement is not None else (),
        placed="Reserved placement" if entry.lease else "Last placement" if past else "Placement",
        attempts=attempts_of(history),
        history=history[:_SHOWN],
        more_steps=len(history) > _SHOWN,
        decided=_decided(history[:_SHOWN], now) if access.decisions else frozenset(),
        evictions=[line for line in history if line.evicts],
        asked=await asked_of(site.store, entry.uid),
        offers=await offers(site.guard, request, entry),
        advice=next_step(entry.state, entry.reason.code),
        with_pods=entry.state.live or bool(pods and pods.total),
        pods=pods,
        graph=await _graph(site, access, entry),
        links=filled(site.links, LinkPlace.JOB, fields),
        node_links=lambda node: filled(site.links, LinkPlace.NODE, {**fields, "node": node}),
        queues=sorted(
            name for namespace, name in config.local_queues if namespace == entry.namespace
        ),
    )


def _decided(history: Sequence[HistoryLine], now: float) -> frozenset[int]:
    """Ids of the steps by which a planning cycle placed it, of cycles whose records are kept."""
    return frozenset(
        line.id
        for line in history
        if line.to_state in _PLACED
        and line.from_state not in (None, line.to_state)
        and line.at >= now - KEPT_SECONDS
    )


async def _pods(site: Site, entry: Entry) -> PodTable | None:
    """None while this process does not know the cluster."""
    observed = await site.pods(entry)
    if observed is None:
        return None
    fields = _fields(entry, site.clock())

    def links(pod: str, node: str) -> tuple[Link, ...]:
        return filled(site.links, LinkPlace.POD, {**fields, "pod": pod, "node": node})

    return pod_table(entry, observed, links)


async def _graph(site: Site, access: AccessScope, entry: Entry) -> JobGraph | None:
    """The jobs near it; None if it depends on no job, and no job depends on it."""
    related = await site.related(entry)
    if related is None:
        return None
    sees_all = access.sees(entry.namespace)
    finished = await _finished(site, related) if sees_all else {}
    return graph_of(related, entry, sees_all=sees_all, finished=finished)


async def _finished(site: Site, related: RelatedJobs) -> Mapping[JobName, Entry]:
    """Workloads of jobs that are no longer in the cluster."""
    missing = [job.name for job in related.jobs[1:] if job.observed is None][:_MOST_MISSING]
    found = {}
    for name in missing:
        for entry in await site.store.find_workloads(name.namespace, name.name):
            if entry.kind.lower() == name.kind:
                found[name] = entry
    return found


def _fields(entry: Entry, now: float) -> Mapping[str, str]:
    """The fields of links. The times are those of the run, and of the wait before the first start."""
    begins = entry.queued_at if entry.started_at is None else entry.started_at
    ends = entry.finished_at if entry.finished_at is not None else now
    return {
        "namespace": entry.namespace,
        "name": entry.name,
        "uid": entry.uid,
        "kind": entry.kind,
        "user": entry.user,
        "cluster_queue": entry.cluster_queue,
        "from_ms": str(int(begins * 1000)),
        "to_ms": str(int(ends * 1000)),
    }
